"""What stands behind longshore.transformers and longshore.deepspeed."""
