"""Helpers for resumed DeepSpeed runs: settings that an existing run keeps, the latest checkpoint, weights files."""

import os

import torch

from ..run import checkpoint
from ..run.engine_surface import core_of
from ..run.options import that_stay
from .deepspeed_config import say_once


def say_what_stays(engine, settings):
    """Warns about settings of the configuration that differ from an existing run's, which keeps its own."""
    core = core_of(engine)
    other = that_stay(core.state, settings.said)
    if core.how["compute"] != settings.dtype:
        other.append(f"computed in {core.how['compute']}, and not {settings.dtype}")
    if other:
        say_once(f"{core.state.path}: continues as it was made: {'; '.join(other)}")


def latest(checkpoint_dir):
    """The tag in a directory's file `latest`, or None if there is no such file."""
    try:
        with open(os.path.join(checkpoint_dir, "latest"), encoding="utf-8") as f:
            return f.read().strip()
    except FileNotFoundError:
        return None


def write(values, path, safe):
    """Writes {name: tensor} to a file: as safetensors if safe is true, otherwise with torch.save()."""
    if safe:
        from safetensors.torch import save_file

        save_file(values, path, metadata={"format": "pt"})
    else:
        torch.save(values, path)


def say_weights(engine, directory, tag):
    """Writes zero_to_fp32.py and README.txt beside a checkpoint: they make and explain its weights files."""
    script = os.path.join(directory, "zero_to_fp32.py")
    if not os.path.exists(script):
        with open(script, "w", encoding="utf-8") as f:
            f.write("from longshore.deepspeed.zero_to_fp32 import main\n\nmain()\n")
    checkpoint.say_weights(engine, directory, tag, _WEIGHTS)


_WEIGHTS = """zero_to_fp32.py here does the same. "stage3_gather_16bit_weights_on_model_save": true in the
configuration's "zero_optimization" lets transformers' Trainer write them with each later checkpoint, or instead of it
(save_only_model=True). In longshore.transformers' TrainingArguments, use checkpoint_weights=True.
engine.save_pretrained(DIR) writes the present step's weights."""
