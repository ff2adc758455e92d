"""A training step: gradients, micro-batches, the optimizer, what commits with it."""
