"""deepspeed.comm: torch.distributed's collective operations. With one rank they have nothing to send."""

import functools
import os

import torch
from torch import distributed

from ..ranks.launch import ranks

ReduceOp = getattr(distributed, "ReduceOp", None)


def backend(kind):
    """The name of torch.distributed's backend for tensors of a kind of device."""
    try:
        return distributed.get_default_backend_for_device(kind)
    except (AttributeError, ValueError):  # an older PyTorch, a device that no backend knows
        return "gloo"


def init_distributed(dist_backend=None, *others, **more):
    """Initializes torch.distributed; for one rank without a port. None of DeepSpeed's arguments has an effect."""
    if ranks().size > 1:  # which are connected by now
        return
    if distributed.is_available() and not distributed.is_initialized():
        from .accelerator import get_accelerator

        kind = get_accelerator().current_device().type
        both = "gloo" if backend(kind) == "gloo" else f"cpu:gloo,{kind}:{backend(kind)}"
        distributed.init_process_group(both, store=distributed.HashStore(), rank=0, world_size=1)


def always(value):
    """A function that returns value for any arguments."""
    return lambda *args, **kwargs: value


def _of_ranks(name, alone):
    """torch.distributed's function of a name, where there are several ranks; with one, alone()."""

    @functools.wraps(alone)
    def call(*args, **kwargs):
        several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        return (getattr(distributed, name) if several else alone)(*args, **kwargs)

    return call


def is_initialized():
    return not distributed.is_available() or distributed.is_initialized()


def _first(into, value, *args, **kwargs):
    """What one rank gathers."""
    if isinstance(into, list):
        into[0].copy_(value)
    else:
        into.copy_(value.view_as(into))


def _first_object(objects, obj, group=None):
    objects[0] = obj


is_available = distributed.is_available
get_rank = _of_ranks("get_rank", always(0))
get_global_rank = _of_ranks("get_global_rank", always(0))
get_world_size = get_data_parallel_world_size = _of_ranks("get_world_size", always(1))
new_group, barrier = _of_ranks("new_group", always(None)), _of_ranks("barrier", always(None))
monitored_barrier = _of_ranks("monitored_barrier", always(None))
all_reduce = inference_all_reduce = _of_ranks("all_reduce", always(None))
broadcast, reduce = _of_ranks("broadcast", always(None)), _of_ranks("reduce", always(None))
broadcast_object_list = _of_ranks("broadcast_object_list", always(None))
all_gather, all_gather_into_tensor = _of_ranks("all_gather", _first), _of_ranks("all_gather_into_tensor", _first)
reduce_scatter_tensor = _of_ranks("reduce_scatter_tensor", _first)
all_gather_object = _of_ranks("all_gather_object", _first_object)


def get_local_rank():
    return int(os.environ.get("LOCAL_RANK") or 0)


def get_world_group():
    return distributed.group.WORLD if is_initialized() else None


def destroy_process_group(group=None):
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def device_count():
    return torch.accelerator.device_count() if hasattr(torch, "accelerator") else 0
