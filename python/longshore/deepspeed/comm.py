"""deepspeed.comm for one process: collective operations have nothing to send."""

import os

import torch
from torch import distributed

from ..errors import LongshoreError

ReduceOp = getattr(distributed, "ReduceOp", None)


def backend(kind):
    """The name of torch.distributed's backend for tensors of a kind of device."""
    try:
        return distributed.get_default_backend_for_device(kind)
    except (AttributeError, ValueError):  # an older PyTorch, a device that no backend knows
        return "gloo"


def init_distributed(dist_backend=None, *others, **more):
    """Initializes torch.distributed for one process, without a port. None of DeepSpeed's arguments has an effect."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise LongshoreError(
            "WORLD_SIZE: several processes do not share a run; start one: python -m longshore.deepspeed train.py"
        )
    if distributed.is_available() and not distributed.is_initialized():
        from .accelerator import get_accelerator

        kind = get_accelerator().current_device().type
        both = "gloo" if backend(kind) == "gloo" else f"cpu:gloo,{kind}:{backend(kind)}"
        distributed.init_process_group(both, store=distributed.HashStore(), rank=0, world_size=1)


def always(value):
    """A function that returns value for any arguments."""
    return lambda *args, **kwargs: value


def is_initialized():
    return not distributed.is_available() or distributed.is_initialized()


is_available = distributed.is_available


get_rank = get_local_rank = get_global_rank = always(0)
get_world_size = get_data_parallel_world_size = always(1)
new_group = barrier = monitored_barrier = always(None)
all_reduce = broadcast = reduce = inference_all_reduce = broadcast_object_list = always(None)


def get_world_group():
    return distributed.group.WORLD if is_initialized() else None


def all_gather(tensor_list, tensor, group=None, async_op=False):
    tensor_list[0].copy_(tensor)


def all_gather_into_tensor(output_tensor, tensor, group=None, async_op=False):
    output_tensor.copy_(tensor.view_as(output_tensor))


def reduce_scatter_tensor(output_tensor, tensor, op=None, group=None, async_op=False):
    output_tensor.copy_(tensor.view_as(output_tensor))


def all_gather_object(object_list, obj, group=None):
    object_list[0] = obj


def destroy_process_group(group=None):
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def device_count():
    return torch.accelerator.device_count() if hasattr(torch, "accelerator") else 0
