"""Whether a loss belongs to an engine: its graph leads to a parameter of the engine."""

import torch

from ..errors import LongshoreError
from ..model.absent import is_read
from ..torch_internals import is_of_function, leaf_of


def refuse_other(loss, streams, who):
    """Raises ValueError for what is no loss, and LongshoreError if no parameter of these streams gets a gradient of it.
    who: begins the message."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(f"{who}: the loss must be a tensor of one element")
    if loss.grad_fn is None and not loss.requires_grad:
        raise LongshoreError(f"{who}: the loss has no graph: it was detached, or computed under torch.no_grad()")
    ways, seen = [loss.grad_fn], set()
    if _has(loss, streams):
        return
    while ways:
        node = ways.pop()
        if node is None or node in seen:
            continue
        if _has(leaf_of(node), streams) or is_of_function(node) and not is_read(node):
            return  # a checkpoint, say, whose backward makes the rest of its graph
        seen.add(node)
        ways += [following for following, _ in node.next_functions]
    raise LongshoreError(
        f"{who}: no trained parameter of this engine's model is in the graph of the loss: give it the "
        "loss of what the engine returned, and other losses to loss.backward()"
    )


def _has(leaf, streams):
    handle = getattr(leaf, "longshore", None)
    return handle is not None and handle.streams is streams
