"""What stands behind longshore.transformers and longshore.deepspeed: configurations, names, hooks, Trainer steps."""
