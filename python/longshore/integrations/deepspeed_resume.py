"""What of a configuration does not count for a run that is gone on with, and how a checkpoint becomes a model."""

import os

import torch

from ..run import checkpoint
from ..run.options import that_stay
from .deepspeed_config import say_once


def say_what_stays(engine, settings):
    """Of a run that is gone on with: what the configuration asks for otherwise."""
    other = that_stay(engine, settings.said)
    if engine.how["compute"] != settings.dtype:
        other.append(f"computed in {engine.how['compute']}, and not {settings.dtype}")
    if other:
        say_once(f"{engine.state.path}: goes on as it was made: {'; '.join(other)}")


def latest(checkpoint_dir):
    """The tag of the checkpoint that was saved last in a directory; None: it does not say."""
    try:
        with open(os.path.join(checkpoint_dir, "latest"), encoding="utf-8") as f:
            return f.read().strip()
    except FileNotFoundError:
        return None


def write(values, path, safe):
    """safe: as safetensors, otherwise as torch.save() does."""
    if safe:
        from safetensors.torch import save_file

        save_file(values, path, metadata={"format": "pt"})
    else:
        torch.save(values, path)


def say_weights(engine, directory, tag):
    """Writes what makes a checkpoint's weights files, as DeepSpeed does, and says so."""
    script = os.path.join(directory, "zero_to_fp32.py")
    if not os.path.exists(script):
        with open(script, "w", encoding="utf-8") as f:
            f.write("from longshore.deepspeed.zero_to_fp32 import main\n\nmain()\n")
    checkpoint.say_weights(engine, directory, tag, _WEIGHTS)


_WEIGHTS = """zero_to_fp32.py here does the same. "stage3_gather_16bit_weights_on_model_save": true in the
configuration's "zero_optimization" lets transformers' Trainer write them with each checkpoint that comes, or in its
place (save_only_model=True). Under longshore.transformers' TrainingArguments it is checkpoint_weights=True.
engine.save_pretrained(DIR) writes those of the present step."""
