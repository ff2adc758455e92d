"""Write tracking: finds out, when a block is evicted, whether a script has written to its parameters.

A change in place raises the tensor's version in PyTorch. A change through `.data` or NumPy does not. So Longshore
compares checksums of a parameter after a script has read its `.data`, and of each small parameter in its block's first
pass.
"""

import ctypes
import zlib

import torch
from torch import nn

from ..torch_internals import storage_users, version_of

CHANGE = (
    "change it inside `with longshore.resident(parameter, write=True):`, which commits it (with that step, if it "
    'comes right after step()), or write="temporary", at whose end it is put back'
)
IN_PASS = (
    "keep what a module changes itself in a buffer (register_buffer), which is saved with every step, or "
    "change the parameter right after step(), inside `with longshore.resident(parameter, write=True):`, which "
    "commits it with that step"
)
LOOK_BYTES = 16 << 20  # the largest parameter whose checksum is compared in the first pass


def bits(tensor):
    """Returns a checksum of a tensor's bits and their order."""
    flat = tensor.detach().cpu().contiguous()
    return zlib.crc32((ctypes.c_char * flat.nbytes).from_address(flat.data_ptr()))


_data = torch.Tensor.data


def _hand_out(p):
    """nn.Parameter.data: watches the parameter from here on."""
    handle = p.__dict__.get("longshore")
    if handle is not None and handle.block.present and not handle.temporary:
        watch(handle)
    return _data.__get__(p)


nn.Parameter.data = property(_hand_out, _data.__set__)  # no subclass: nn.Parameter(p) checks the exact type


def watch(handle):
    """Notes a parameter's checksum, so that changed() sees every change from here on."""
    updates = handle.block.updates
    if handle.view.device.type != "cpu":
        return  # a checksum would wait for the device
    if handle.bits is None or handle.bits[0] != updates:
        handle.bits = updates, bits(handle.view)


def watch_first(streamed):
    """Watches a block's small parameters in its first pass."""
    if not streamed.first_pass_done:
        streamed.first_pass_done = True
        for _, handle in streamed.parameters:
            if handle.view.nbytes <= LOOK_BYTES:
                watch(handle)


def changed(p, handle):
    """Whether a parameter has changed since it was fetched. It stays watched if a script still shares its memory."""
    if handle.temporary:
        return False
    if version_of(p) != handle.version or is_elsewhere(p, handle):
        return True
    before, handle.bits = handle.bits, None
    if before is None or before[0] != handle.block.updates:
        return False
    if before[1] != bits(handle.view):
        return True
    if storage_users(handle.view) > handle.users:
        handle.bits = before
    return False


def is_elsewhere(p, handle):
    """Whether a script has assigned other data to a parameter."""
    view = handle.view
    return (
        p.data_ptr() != view.data_ptr() or p.dtype != view.dtype or p.shape != view.shape or p.stride() != view.stride()
    )


def say_lost(streams, handle):
    """Returns the message for a change in forward or backward: why it is refused, and what to do instead."""
    for full in handle.block.block.tensors[handle.index].names:
        module, name = streams.owners[full]
        if name == "weight" and getattr(module, "max_norm", None) is not None:
            return (
                f"{full}: its module renormalizes it in forward (max_norm), which would be lost; give the module "
                "max_norm=None, and before each forward call torch.embedding_renorm_(weight.data, ids, "
                f"{module.max_norm}, {module.norm_type}) inside `with longshore.resident(weight, write=True):`"
            )
    return f"{handle.name}: was changed in forward or backward, which would be lost; {IN_PASS}"
