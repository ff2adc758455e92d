"""What is written to a parameter that is in memory is seen when its block leaves.

A change in place counts in PyTorch's version of a tensor. One through `.data` or NumPy counts nowhere: who asks for
`.data` has the bits looked at when the block leaves, and so has every small parameter in its block's first pass,
whoever writes to it in whatever way.
"""

import ctypes
import zlib

import torch
from torch import nn

from ..torch_internals import storage_users, version_of

CHANGE = ("change it inside `with longshore.resident(parameter, write=True):`, which commits it, or "
          "write=\"temporary\", at whose end it is put back")
IN_PASS = ("keep what a module changes itself in a buffer (register_buffer), which is saved with every step, or "
           "change the parameter between steps, inside `with longshore.resident(parameter, write=True):`")
LOOK_BYTES = 16 << 20  # of a parameter that is looked at in its first pass


def users(tensor):
    """How many have its storage."""
    return storage_users(tensor)


def bits(tensor):
    """A checksum: other bits, or the same in another order, have another one."""
    flat = tensor.detach().cpu().contiguous()
    return zlib.crc32((ctypes.c_char * flat.nbytes).from_address(flat.data_ptr()))


_data = torch.Tensor.data


def _hand_out(p):
    handle = p.__dict__.get("longshore")
    if handle is not None and handle.block.present and not handle.temporary:
        watch(handle)
    return _data.__get__(p)


nn.Parameter.data = property(_hand_out, _data.__set__)  # not of a class of its own: nn.Parameter(p) asks for the type


def watch(handle):
    """From here on a change of its bits is seen."""
    updates = handle.block.updates
    if handle.view.device.type != "cpu":
        return  # it would be waited for
    if handle.bits is None or handle.bits[0] != updates:
        handle.bits = updates, bits(handle.view)


def watch_first(streamed):
    """A block comes into memory: in its first pass all that is small is watched."""
    if not streamed.first_pass_done:
        streamed.first_pass_done = True
        for _, handle in streamed.parameters:
            if handle.view.nbytes <= LOOK_BYTES:
                watch(handle)


def changed(p, handle):
    """Whether a parameter is another one than when it came into memory. What somebody still has the memory of stays
    watched."""
    if handle.temporary:
        return False
    if version_of(p) != handle.version or is_elsewhere(p, handle):
        return True
    before, handle.bits = handle.bits, None
    if before is None or before[0] != handle.block.updates:
        return False
    if before[1] != bits(handle.view):
        return True
    if users(handle.view) > handle.users:
        handle.bits = before
    return False


def is_elsewhere(p, handle):
    """Whether somebody has given it other data."""
    view = handle.view
    return (p.data_ptr() != view.data_ptr() or p.dtype != view.dtype or p.shape != view.shape
            or p.stride() != view.stride())


def say_lost(streams, handle):
    """Why a change in forward or backward is refused, and what works."""
    for full in handle.block.block.tensors[handle.index].names:
        module, name = streams.owners[full]
        if name == "weight" and getattr(module, "max_norm", None) is not None:
            return (f"{full}: its module renormalizes it in forward (max_norm), which would be lost; give the module "
                    "max_norm=None, and before each forward call torch.embedding_renorm_(weight.data, ids, "
                    f"{module.max_norm}, {module.norm_type}) inside `with longshore.resident(weight, write=True):`")
    return f"{handle.name}: was changed in forward or backward, which would be lost; {IN_PASS}"
