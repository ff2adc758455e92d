"""A run on drives: wrap() makes it, resume() opens it; state, checkpoints, export, memory."""
