"""A model's state on drives: blocks and their layout, an open run, the wait for drives that were lost."""
