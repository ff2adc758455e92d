"""A training step: gradients, micro-batches, the optimizer, recovery of lost drives."""
