"""The ranks of a run: processes that train it together, and what they say to each other."""
