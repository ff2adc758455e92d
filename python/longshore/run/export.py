"""Exports a run's model as safetensors, in constant memory: save_pretrained() and its helpers."""

import contextlib
import copy
import inspect
import json
import mmap
import os
import re
import shutil
import sys
import tempfile

import torch

from .. import native, progress
from ..drives.layout import DTYPES
from ..errors import ExistsError, LongshoreError
from ..model import adapters, hooks
from ..native import ffi, lib
from ..step import commit_blob
from . import hub_names, weights_files
from .weights import TORCH, readable

# safetensors' names of dtypes: those of PyTorch, in short
_NAMES = {
    getattr(torch, name): re.sub("float|complex|uint|int", lambda found: found[0][0], name).upper()
    for name in """float64 float32 bfloat16 float16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool
    complex64""".split()
}
_WEIGHTS = r".*\.safetensors(\.index\.json)?|.*(?<!training_args)\.bin"
_REPLACED = r"(pytorch_model|model|diffusion_pytorch_model|adapter_model)\b.*|optimizer$"  # by overwrite=True
_READ = {short: dtype for dtype, short in _NAMES.items()}


def save(core, directory, dtype=None, max_shard_size=None, moments=False, whole=False, overwrite=False):
    """Writes the model for from_pretrained(): Engine.save_pretrained().

    whole: writes all parameters and buffers under their own names, also the base model of adapters.
    overwrite: replaces weights that are there, once the new ones are complete.
    """
    directory = os.path.realpath(directory)
    if dtype is not None and dtype not in TORCH:
        raise ValueError(f"save_pretrained: dtype={dtype!r}; it must be fp32, bf16 or fp16")
    core.settle_for("save_pretrained")
    hooks.before_step(core.streams, "engine.save_pretrained")
    there = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    weights = [name for name in there if re.fullmatch(_WEIGHTS, name)]
    if os.path.exists(os.path.join(directory, "optimizer", "optimizer.json")):
        weights.append("optimizer")  # moments of those weights
    if weights and not overwrite or os.path.isfile(directory):
        raise ExistsError(
            f"{directory}: holds {weights[0] if weights else 'a file'} already; save to another "
            "directory" + (", or use overwrite=True" if weights else "")
        )
    adapted = adapters.saved_alone(core.module) and not whole
    most = max_shard_size and native.size(max_shard_size, "max_shard_size")
    if moments and adapted:
        raise ValueError(
            "save_pretrained: moments=True is for whole models; the moments of adapters stay in the run, "
            "and resume() continues with them"
        )
    how = {"dtype": dtype, "max_shard_size": max_shard_size, "moments": moments}
    core.state.by_rank_0("engine.save_pretrained()", lambda: _write(core, directory, there, weights, whole, most, how))


def _write(core, directory, there, weights, whole, most, how):
    """Writes the files of save(). there: names in the directory, of which weights are those of older weights. most: of
    bytes in a file. how: arguments of export()."""
    dtype, moments = how["dtype"], how["moments"]
    partial = os.path.join(os.path.dirname(directory), f".{os.path.basename(directory)}.saving")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    try:
        if adapters.saved_alone(core.module) and not whole:
            with readable(core):
                adapters.save(core.module, partial, dtype and TORCH[dtype], most)
        elif not whole and _is_diffusers(core.module) and getattr(core.module, "_hf_peft_config_loaded", False):
            _save_lora(core, partial, {**how, "moments": moments or None})
        elif not whole and _saves_itself(core.module):
            _let_save(core, partial, **how)
        else:
            export(core, partial, **how)
            if not whole:
                hub_names.rewrite(core.module, partial, _map, _NAMES, most)
                _describe(core, partial, dtype)
        _put_in_place(partial, directory, there, [name for name in weights if re.match(_REPLACED, name)])
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _put_in_place(partial, directory, there, old):
    """Renames the complete directory, or moves its files into an existing one, indexes last.

    old: names of weights there that the new ones replace.
    """
    if not there:
        os.rename(partial, directory)
        return
    for name in os.listdir(partial):
        if os.path.isdir(os.path.join(partial, name)) and name in there and name not in old:
            raise ExistsError(f"{directory}: holds {name} already; save to another directory")
    for name in sorted(old, key=lambda name: not name.endswith("index.json")):
        if os.path.isdir(os.path.join(directory, name)):
            shutil.rmtree(os.path.join(directory, name))
        elif name.endswith("index.json") or name not in os.listdir(partial):
            os.remove(os.path.join(directory, name))

    def turn(name):
        return name.endswith("index.json") or name.startswith("model"), name.endswith("index.json"), name

    for name in sorted(os.listdir(partial), key=turn):
        os.replace(os.path.join(partial, name), os.path.join(directory, name))
    os.rmdir(partial)


def _is_of(model, package, module, name):
    """Whether a model is an instance of a package's class and uses its save_pretrained(). Imports nothing."""
    of = getattr(sys.modules.get(f"{package}.{module}") if package in sys.modules else None, name, None)
    return of is not None and isinstance(model, of) and type(model).save_pretrained is of.save_pretrained


def _is_diffusers(model):
    return _is_of(model, "diffusers", "models.modeling_utils", "ModelMixin")


def _saves_itself(model):
    """Whether the model has a save_pretrained() of its own, which alone knows the files to write."""
    known = _is_of(model, "transformers", "modeling_utils", "PreTrainedModel") or _is_diffusers(model)
    return not known and callable(getattr(type(model), "save_pretrained", None))


def export(core, directory, dtype=None, max_shard_size=None, moments=False):
    """Writes parameters and buffers as model.safetensors or shards of it, and the moments if asked."""
    extras, keep = _extras(commit_blob.small_buffers(core.module, core.layout, core.streams.device))
    most = 0 if max_shard_size is None else native.size(max_shard_size, "max_shard_size")
    kind = {"converted": dtype is not None, "dtype": DTYPES[TORCH[dtype or "fp32"]], "moments": moments}
    how = native.new("struct shore_run_exporting", **kind, shard_bytes=most, nextras=len(extras), extras=extras)
    with progress.Progress(f"saving {os.path.basename(directory).removeprefix('.').removesuffix('.saving')}") as shown:
        work, interrupts, callback = progress.of_work(shown)
        try:
            native.call(lib.shore_run_export, core.state.run, native.path_bytes(directory), how, work)
        except LongshoreError as stopped:
            raise (interrupts or [stopped])[0] from None
    if moments:
        _say_updates(core, os.path.join(directory, "optimizer", "optimizer.json"))


def _extras(buffers):
    """(struct shore_extra array of buffers for shore_run_export(), the objects that it points to)."""
    out, keep = ffi.new("struct shore_extra[]", len(buffers)), []
    for extra, (name, b) in zip(out, buffers.items()):
        if b.dtype not in _NAMES:
            raise LongshoreError(
                f"save_pretrained: {name} is a buffer of {b.dtype}, which safetensors cannot store; "
                "use another dtype, or register_buffer(..., persistent=False)"
            )
        value = b.detach().contiguous()
        extra.name = label = ffi.new("char[]", name.encode())
        extra.type = dtype = ffi.new("char[]", _NAMES[b.dtype].encode())
        keep.append((value, label, dtype))
        extra.rank, extra.data = value.dim(), ffi.cast("void *", value.data_ptr())
        for i, size in enumerate(value.shape):
            extra.dims[i] = size
    return out, keep


def _describe(core, directory, dtype):
    """Writes the configuration files that from_pretrained() needs, and gives the weights the names it expects."""
    model = core.module
    if _is_diffusers(model):
        model.save_config(directory)
        _rename(directory, "diffusion_pytorch_model")
        return
    config = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config = copy.deepcopy(config)
        config.architectures = [type(model).__name__]
        config.dtype = str(TORCH[dtype or core.how["compute"]]).removeprefix("torch.")
        config.save_pretrained(directory)
    generation = getattr(model, "generation_config", None)
    if hasattr(generation, "save_pretrained"):
        generation.save_pretrained(directory)


def _rename(directory, stem):
    """Renames model.safetensors, its shards and their index, so that they begin with `stem`."""
    for name in os.listdir(directory):
        if name.startswith("model") and name.endswith(".safetensors"):
            os.rename(os.path.join(directory, name), os.path.join(directory, stem + name.removeprefix("model")))
    index = os.path.join(directory, "model.safetensors.index.json")
    if os.path.exists(index):
        said = weights_files.read(index)
        said["weight_map"] = {name: stem + file.removeprefix("model") for name, file in said["weight_map"].items()}
        weights_files.write_json(os.path.join(directory, f"{stem}.safetensors.index.json"), said)
        os.remove(index)


@contextlib.contextmanager
def streamed(core):
    """A context in which the module's own save_pretrained() is the engine's."""
    module = core.module

    def save_pretrained(directory, max_shard_size=None, safe_serialization=True, **others):
        del module.save_pretrained  # for models that write their files themselves
        if not safe_serialization:
            raise ValueError("push_to_hub: safe_serialization=False: only safetensors are written; leave it out")
        save(core, directory, max_shard_size=max_shard_size, overwrite=True)

    module.save_pretrained = save_pretrained
    try:
        yield
    finally:
        vars(module).pop("save_pretrained", None)


# ---- models that save themselves


def _let_save(core, directory, dtype, max_shard_size, moments):
    """Calls the model's own save_pretrained() while its parameters are mapped from a file."""
    model = core.module
    takes = inspect.signature(model.save_pretrained).parameters
    size = {} if max_shard_size is None else {"max_shard_size": max_shard_size}
    _refuse(model, {"dtype": dtype, "moments": moments or None, **({} if "max_shard_size" in takes else size)})
    with mapped(core, os.path.dirname(directory)):
        model.save_pretrained(directory, **size)


def _save_lora(core, directory, asked):
    """Writes adapters of diffusers' add_adapter() for its load_lora_adapter().

    diffusers' from_pretrained() cannot load a model with adapters.
    """
    model = core.module
    _refuse(model, asked)
    several = len(model.peft_config) > 1
    with mapped(core, os.path.dirname(directory)):
        for name in model.peft_config:
            model.save_lora_adapter(os.path.join(directory, name) if several else directory, adapter_name=name)


def _refuse(model, asked):
    for name, value in asked.items():
        if value is not None:
            raise ValueError(
                f"save_pretrained: {name}={value!r}: a {type(model).__name__} writes its files itself, "
                f"and takes no {name}; leave it out"
            )


def mapped(core, place):
    """A context in which parameters read their values from mapped files: see through_files()."""
    return core.streams.reading(through_files(place, lambda directory: export(core, directory)))


def through_files(place, write):
    """{name: tensor} of the safetensors files that write(directory) writes, mapped into memory.

    Values come into memory when they are read, and the system may take that memory back. place: a directory for the
    files. Their names are gone from there at once.
    """
    scratch = tempfile.mkdtemp(prefix=".longshore-", dir=place)
    try:
        directory = os.path.join(scratch, "all")
        write(directory)
        files = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))
        return {name: tensor for file in files for name, tensor in _map(os.path.join(directory, file))}
    finally:
        shutil.rmtree(scratch)


def _map(path):
    """Yields (name, tensor) for a safetensors file. Each tensor has its own storage, so that none look tied."""
    with open(path, "rb") as f:
        memory = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
    header = 8 + int.from_bytes(memory[:8], "little")
    for name, t in sorted(json.loads(memory[8:header]).items()):
        if name != "__metadata__":
            (first, last), dtype = t["data_offsets"], _READ[t["dtype"]]
            data = memoryview(memory)[header + first : header + last]
            yield (
                name,
                (torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype, device="cpu")).view(
                    t["shape"]
                ),
            )


def _say_updates(core, path):
    """Adds each tensor's number of updates to optimizer.json. They differ if a step had no gradient for a tensor."""
    pairs = [pair for b, ns in zip(core.layout.blocks, core.cycle.counts) for pair in zip(b.tensors, ns)]
    counts = {t.name: n for t, n in pairs if t.trains}
    most = max(counts.values())
    said = weights_files.read(path)
    said.update(updates=most, fewer={name: n for name, n in counts.items() if n < most})
    weights_files.write_json(path, said)
