"""Where a model computes: which device wrap() and resume() choose, what goes there beside the parameters, and what is
said of tensors that lie elsewhere."""

import contextlib
import re

import torch

from ..errors import LongshoreError
from ..native import first_line, readable
from ..ranks.launch import local_rank
from ..torch_internals import accelerator, buffers_of, may_get, tree_leaves

# what PyTorch says of tensors on several devices
_MIXED = re.compile(r"same device|Input type .* and weight type")


def usable_accelerator():
    """The kind of device that PyTorch has beside the CPU, and can use here; None: there is none."""
    usable = has_streams() and torch.accelerator.is_available()
    return torch.device(torch.accelerator.current_accelerator().type) if usable else None


def has_streams():
    """Whether this PyTorch has what computing on an accelerator needs: 2.7 does."""
    return hasattr(getattr(torch, "accelerator", None), "current_device_index") and hasattr(torch.Stream, "__enter__")


def of(model, asked, who, otherwise=None):
    """The device that a model's modules compute on, with its number; None: the CPU.

    asked: a torch.device or its name. None: where the model lies, if that is not the CPU, then otherwise, then the
    accelerator that there is. Without a number, of several it is LOCAL_RANK's. who: begins a message about asked.
    Raises LongshoreError if nothing can compute there, and ValueError for what is no device.
    """
    places = {p.device: name for name, p in model.named_parameters() if p.device.type != "meta"}
    lies = next((place for place in places if place.type != "cpu"), torch.device("cpu"))
    if len(places) > 1:
        names = ", ".join(sorted(f"{place} ({name})" for place, name in places.items()))
        raise LongshoreError(
            f"the model lies on {names}, and computes on one device: model.to() moves all of it to one"
        )
    if asked is None:
        who = f"the model lies on {lies}"
        asked = lies if lies.type != "cpu" else otherwise or usable_accelerator() or lies
    where = _parsed(asked)
    if where is not None and where.type == "cpu":
        return None
    there = usable_accelerator()
    count = 0 if there is None else torch.accelerator.device_count()
    has = ", ".join(f"{there}:{n}" for n in range(count)) or "no accelerator that PyTorch can use"
    advice = f'this machine has {has}, and device="cpu" computes on the CPU'
    if where is None:
        raise ValueError(f"{who}: must be a torch.device or the name of one; {advice}")
    if where.index is None:
        where = lies if where.type == lies.type else _of_rank(where.type, count)
    if there is None or where.type != there.type:
        why = _why_not(where)
    elif where.index is not None and where.index >= count:
        why = f"there is no {where}"
    else:
        try:
            return torch.empty(0, device=where).device  # from here on PyTorch uses it: it has random states, too
        except RuntimeError as failure:
            why = first_line(failure)
    raise LongshoreError(f"{who}: {why}; {advice}")


def _of_rank(kind, count):
    """The device of a kind that is LOCAL_RANK's, where this host has several and the script has chosen none."""
    rank = local_rank()
    chosen = count < 2 or torch.accelerator.current_device_index() != 0
    return torch.device(kind if chosen or rank is None else f"{kind}:{rank}")


def _parsed(asked):
    """The torch.device that was asked for; None: it is none."""
    with contextlib.suppress(RuntimeError):
        return torch.device(asked) if isinstance(asked, (str, torch.device)) else None
    return None


def recorded(where):
    """What a run records of the device that of() returned."""
    return "cpu" if where is None else where.type


def _why_not(where):
    """Why PyTorch cannot use a device that is not its accelerator here, in its own words if it has any."""
    if accelerator().type == where.type and not has_streams():
        return f"PyTorch {torch.__version__} is too old for it: install 2.7 or newer"
    try:
        torch.empty(0, device=where)
    except Exception as failure:
        return first_line(failure).partition(". ")[0]
    return "it is no accelerator of this PyTorch"


# ---- what goes along


def copies_beside(model, where):
    """[(tensor, its data on a device)] of what is on no drive: buffers, and parameters without elements."""
    beside = [*model.buffers(), *(p for p in model.parameters() if not p.numel())]
    try:
        return [(t, t.detach().to(where)) for t in beside if t.device != where and not t.is_meta]
    except torch.OutOfMemoryError as failure:
        nbytes = readable(sum(t.nbytes for t in beside))
        raise LongshoreError(f"{nbytes} of buffers are refused on {where} ({first_line(failure)})") from failure


def put(model, copies):
    """Gives tensors of copies_beside() their data. They stay the same objects where PyTorch allows it."""
    for t, data in copies:
        if may_get(t, data):
            t.data = data
            continue
        for module in model.modules():
            for name, b in buffers_of(module).items():
                if b is t:
                    buffers_of(module)[name] = data


# ---- what lies elsewhere


def explained(failure, model, where, args, kwargs):
    """The library's error if a forward pass has failed because tensors lie on several devices; else None.

    where: the device that the model computes on. args, kwargs: of its forward.
    """
    if isinstance(failure, LongshoreError) or not isinstance(failure, RuntimeError) or not _MIXED.search(str(failure)):
        return None

    def elsewhere(value):
        """The device of the first tensor in a value that lies elsewhere. Numbers of the host may."""
        tensors = (t for t in tree_leaves(value) if isinstance(t, torch.Tensor))
        return next((t.device for t in tensors if t.device != where and (t.dim() or t.device.type != "cpu")), None)

    said = f"the model computes on {where}, and"
    or_cpu = "" if where.type == "cpu" else '; or compute on the CPU, with device="cpu"'
    given = {**{f"argument {n + 1}": value for n, value in enumerate(args)}, **kwargs}
    batch = {name: device for name, value in given.items() if (device := elsewhere(value)) is not None}
    if batch:
        named = ", ".join(f"{name} on {device}" for name, device in batch.items())
        return LongshoreError(f"{said} the batch lies elsewhere ({named}): batch.to(engine.device) moves it{or_cpu}")
    own = [(f"buffer {name}", b, "move it there") for name, b in model.named_buffers()]
    for module, m in model.named_modules():
        tensors = [(f"{module}.{key}".lstrip("."), t) for key, t in vars(m).items() if torch.is_tensor(t)]
        own += [(name, t, "make it a buffer, which wrap() moves, with register_buffer()") for name, t in tensors]
    for name, t, advice in own:
        if elsewhere(t) is not None:
            return LongshoreError(f"{said} {name} of the model lies on {t.device}: {advice}{or_cpu}")
    return LongshoreError(
        f"{said} its code makes a tensor elsewhere ({first_line(failure)}): make it with device=, that of another "
        f"tensor{or_cpu}"
    )
