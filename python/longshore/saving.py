"""What a run becomes for others: safetensors under the parameters' names, in constant memory."""

import copy
import json
import os
import shutil

import torch

from . import adapters, hooks, native, position
from .errors import ExistsError, LongshoreError
from .native import ffi, lib

_TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DTYPES = {"fp32": lib.SHORE_DTYPE_FP32, "bf16": lib.SHORE_DTYPE_BF16, "fp16": lib.SHORE_DTYPE_FP16}


def save(engine, directory, dtype=None, max_shard_size=None, moments=False, whole=False):
    """As Engine.save_pretrained(). whole: also the base that adapters stand on, under the parameters' names."""
    directory = os.path.realpath(directory)
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"save_pretrained: dtype={dtype!r}; it is fp32, bf16 or fp16")
    if engine.state is None:
        raise LongshoreError("save_pretrained: the engine is closed")
    hooks.before_step(engine.streams, "engine.save_pretrained")
    there = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    weights = [name for name in there if name.endswith((".safetensors", ".safetensors.index.json", ".bin")) or (moments and name == "optimizer")]
    if weights or os.path.isfile(directory):
        raise ExistsError(f"{directory}: holds {weights[0] if weights else 'a file'} already, which stays; save to another directory")
    adapted = adapters.saved_alone(engine.module) and not whole
    if moments and adapted:
        raise ValueError("save_pretrained: moments=True is for whole models; those of adapters stay in the run, which resume() goes on with")
    engine.settle()
    partial = os.path.join(os.path.dirname(directory), f".{os.path.basename(directory)}.saving")
    shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
    try:
        if adapted:
            adapters.save(engine.module, partial, dtype and _TORCH[dtype], max_shard_size and native.size(max_shard_size, "max_shard_size"))
        else:
            _export(engine, partial, dtype, max_shard_size, moments)
        if there:
            for name in sorted(os.listdir(partial), key=lambda name: (name.startswith("model"), name.endswith("index.json"), name)):
                os.replace(os.path.join(partial, name), os.path.join(directory, name))
            os.rmdir(partial)
        else:
            os.rename(partial, directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _export(engine, directory, dtype, max_shard_size, moments):
    how = native.new("struct shore_run_exporting", converted=dtype is not None, dtype=_DTYPES[dtype or "fp32"],
                     shard_bytes=0 if max_shard_size is None else native.size(max_shard_size, "max_shard_size"), moments=moments)
    native.call(lib.shore_run_export, engine.state.run, native.path_bytes(directory), how, ffi.NULL)
    if moments:
        _say_updates(engine, os.path.join(directory, "optimizer", "optimizer.json"))
    model = engine.module
    buffers = position.small_buffers(engine)
    if buffers:
        _add_buffers(directory, buffers)
    config = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config = copy.deepcopy(config)
        config.architectures = [type(model).__name__]
        config.dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[dtype or engine.how["compute"]]
        config.save_pretrained(directory)
    generation = getattr(model, "generation_config", None)
    if hasattr(generation, "save_pretrained"):
        generation.save_pretrained(directory)


def _say_updates(engine, path):
    """How many the moments have seen, which may differ: a tensor without a gradient is left as it is."""
    counts = {t.name: n for block, ns in zip(engine.layout.blocks, engine._counts) for t, n in zip(block.tensors, ns) if t.trains}
    most = max(counts.values())
    with open(path, encoding="utf-8") as f:
        said = json.load(f)
    said.update(updates=most, fewer={name: n for name, n in counts.items() if n < most})
    with open(path, "w", encoding="utf-8") as f:
        json.dump(said, f, indent=2)
        f.flush()
        os.fsync(f.fileno())


def _add_buffers(directory, buffers):
    """Statistics of norms and the like, which are no parameters, in a file of their own."""
    from safetensors.torch import save_file

    save_file({name: b.detach().contiguous() for name, b in buffers.items()}, os.path.join(directory, "model-buffers.safetensors"))
    index = os.path.join(directory, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as f:
            said = json.load(f)
    else:
        from safetensors import safe_open

        first = "model-weights.safetensors"  # model.safetensors would be taken for all there is, whatever the index says
        os.rename(os.path.join(directory, "model.safetensors"), os.path.join(directory, first))
        with safe_open(os.path.join(directory, first), "pt") as f:
            said = {"metadata": {"total_size": 0}, "weight_map": {name: first for name in f.keys()}}
    said["weight_map"].update({name: "model-buffers.safetensors" for name in buffers})
    with open(index, "w", encoding="utf-8") as f:
        json.dump(said, f, indent=2, sort_keys=True)
