"""The module tree: blocks, parameters that are not in memory, hooks, adapters."""
