"""A run on drives: making and opening it, its state, checkpoints, export, memory."""
