"""Converts a model to bfloat16 or float32 when a script asks for that.

Parameters that are float32 on purpose stay float32. A warning names the buffers that are rounded."""

import copy
import logging
import re
import sys

import torch

from ..torch_internals import BatchNorm, buffers_of
from . import random_numbers
from .blocks import dtype_of, persistent_buffers, refuse_lazy

_log = logging.getLogger("longshore")
# between a module's name and its parameter's
_OF_PEFT = re.compile(r"\.(base_layer|original_module|modules_to_save\.[^.]+)(?=\.)")


@torch.no_grad()
def cast(model, dtype, buffers=False, spool=None):
    """Converts a model's parameters to dtype, one at a time; those in files of the spool stay in files.

    Models of transformers get the dtypes that from_pretrained(dtype=) gives them. In other models buffers keep their
    dtype, unless buffers=True: buffers of the state_dict are converted then, as DeepSpeed does. If a model is bfloat16
    except for a few parameters, these keep their dtype."""
    refuse_lazy(model)
    loaded = _as_loaded(model, dtype) if dtype == torch.bfloat16 else {}
    kept = _on_purpose(model, dtype)
    if dtype == torch.bfloat16 and not buffers:
        kept |= _with_statistics(model, loaded)
    for p in model.parameters():
        to = loaded.get(id(p), dtype)
        others = id(p) in kept or getattr(p, "longshore", None) is not None or p.is_meta
        if p.is_floating_point() and p.dtype not in (to, dtype) and not others:
            _convert(p, to, spool)
    _cast_buffers(model, dtype, loaded, buffers)


def _convert(p, dtype, spool):
    """Converts one parameter, within the spool if it lies there."""
    if spool is None or not spool.has(p):
        p.data = p.data.to(dtype)
        return
    new = spool.empty(p.shape, dtype)
    new.copy_(p)
    spool.relieve(new.nbytes)
    p.data = new


def _cast_buffers(model, dtype, loaded, all_that_are_saved):
    """Converts buffers as cast() says, and logs which are rounded, and which keep their dtype."""
    saved, stay, rounded, made = persistent_buffers(model), [], [], {}
    for module_name, module in model.named_modules():
        for name, b in buffers_of(module).items():
            full = f"{module_name}.{name}" if module_name else name
            if b is None or not b.is_floating_point() or b.dtype == dtype or b.is_meta:
                continue
            to = loaded.get(id(b), dtype if all_that_are_saved and full in saved else b.dtype)
            if to == b.dtype:
                stay += [full] if id(b) not in loaded else []
            elif torch.finfo(to).bits < torch.finfo(b.dtype).bits:
                rounded.append(full)
            if to != b.dtype:
                buffers_of(module)[name] = made.setdefault(id(b), (b, b.to(to)))[1]
    said = str(dtype).removeprefix("torch.")
    if rounded:
        _log.warning(f"these buffers are rounded to {said}: {_names(rounded)}")
    if stay:
        _log.info(
            f"these buffers keep their dtype, beside parameters of {said}: {_names(stay)}; convert them where "
            f"the model adds them to what it computes in {said}"
        )


def _names(names):
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _on_purpose(model, dtype):
    """Returns the ids of float32 parameters (adapters, norms) that an otherwise bfloat16 model keeps."""
    if dtype != torch.bfloat16 or dtype_of(model) != dtype:
        return set()
    return {id(p) for p in model.parameters() if p.dtype == torch.float32}


def _with_statistics(model, loaded):
    """Returns the ids of parameters of norms whose statistics keep their dtype: PyTorch wants both in one dtype."""
    norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.running_mean is not None]
    return {id(p) for m in norms if id(m.running_mean) not in loaded for p in m.parameters(recurse=False)}


def _as_loaded(model, dtype):
    """Returns {id of a parameter or buffer: the dtype that it has when transformers loads its model in dtype}."""
    kind, out, inside = getattr(sys.modules.get("transformers"), "PreTrainedModel", ()), {}, set()
    for module in model.modules():
        if isinstance(module, kind) and id(module) not in inside:
            inside.update(map(id, module.modules()))
            out.update(_of_pretrained(module, dtype))
    return out


def _of_pretrained(model, dtype):
    """Returns the same as _as_loaded() for one model of transformers."""
    # transformers 4 matches whole parts of a name
    form = "{}" if hasattr(model, "_get_dtype_plan") else r"(^|\.){}($|\.)"
    parts = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    strict = [form.format(part.replace("*", ".*")) for part in parts]
    saved = {*dict(model.named_parameters(remove_duplicate=False)), *persistent_buffers(model)}
    made: dict = _made_in(model, dtype)
    out: dict = {}
    for full, t in _tensors_of(model):
        name = _OF_PEFT.sub("", full)
        if full in saved and any(re.search(part, name) for part in strict):
            out[id(t)] = torch.float32
        elif name in made:
            out.setdefault(id(t), made[name])
    return out


def _made_in(model, dtype):
    """Returns {name: dtype} of a new model of the same configuration; {} if its class needs more than that."""
    config, random, before = copy.deepcopy(model.config), random_numbers.now(), torch.get_default_dtype()
    configs = [config]
    for inner in configs:
        inner.dtype = dtype
        parts = [getattr(inner, name, None) for name in getattr(inner, "sub_configs", ())]
        configs += [part for part in parts if part is not None]
    try:
        torch.set_default_dtype(dtype)
        with torch.device("meta"):
            new = type(model)(config)
    except Exception:  # the class needs other arguments
        return {}
    finally:
        torch.set_default_dtype(before)
        random_numbers.put(random)
    return {name: t.dtype for name, t in _tensors_of(new)}


def _tensors_of(model):
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
