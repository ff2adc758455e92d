"""What a run becomes for others: safetensors under the parameters' names, in constant memory."""

import json
import os

from . import native
from .errors import LongshoreError
from .native import ffi, lib

_DTYPES = {"fp32": lib.SHORE_DTYPE_FP32, "bf16": lib.SHORE_DTYPE_BF16, "fp16": lib.SHORE_DTYPE_FP16}


def save(engine, directory, dtype=None, max_shard_size=None):
    directory = os.fspath(directory)
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"save_pretrained: dtype={dtype!r}; it is fp32, bf16 or fp16")
    state = engine.state
    if state is None:
        raise LongshoreError("save_pretrained: the engine is closed")
    engine.settle()
    how = native.new("struct shore_run_exporting", converted=dtype is not None, dtype=_DTYPES[dtype or "fp32"],
                     shard_bytes=0 if max_shard_size is None else native.size(max_shard_size))
    native.call(lib.shore_run_export, state.run, native.path_bytes(directory), how, ffi.NULL)
    buffers = {name: b for name, b in engine.module.named_buffers() if name in engine._kept_buffers}
    if buffers:
        _add_buffers(directory, buffers)
    for name in ("config", "generation_config"):
        thing = getattr(engine.module, name, None)
        if hasattr(thing, "save_pretrained"):
            thing.save_pretrained(directory)


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

        with safe_open(os.path.join(directory, "model.safetensors"), "pt") as f:
            said = {"metadata": {"total_size": 0}, "weight_map": {name: "model.safetensors" for name in f.keys()}}
    said["weight_map"].update({name: "model-buffers.safetensors" for name in buffers})
    with open(index, "w", encoding="utf-8") as f:
        json.dump(said, f, indent=2, sort_keys=True)
