"""Blocks: divides a model's parameters into the units that are fetched, evicted and updated together.

A block holds the parameters of one repeated layer (an element of a ``ModuleList`` or ``Sequential``), or of a module
outside of layers. Tied parameters occur once, under their first name.
"""

from collections import Counter

import torch
from torch import nn

from ..drives.layout import Block, Tensor
from ..errors import LongshoreError
from ..torch_internals import buffers_not_saved, parameters_of

TENSORS_MOST = 1023  # tensors of a block: each is a parameter group of its own there
NAME_OF = {torch.float32: "fp32", torch.bfloat16: "bf16"}  # the dtypes that parameters may have


def _is_list(module):
    return (
        isinstance(module, (nn.ModuleList, nn.Sequential))
        and sum(1 for c in module.children() if _has_parameters(c)) > 1
    )


def _has_parameters(module):
    return next(module.parameters(), None) is not None


def layers_of(model):
    """Returns the names of repeated modules, outermost ones only: a T5Block is one, its parts are not."""
    found = []

    def walk(module, name):
        for child_name, child in module.named_children():
            full = f"{name}.{child_name}" if name else child_name
            if _is_list(module) and _has_parameters(child):
                found.append(full)
            else:
                walk(child, full)

    walk(model, "")
    return found


def refuse_lazy(model):
    """Raises LongshoreError for a lazy module, which has no shapes before its first forward."""
    for name, t in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(t):
            raise LongshoreError(f"{name}: has no shape yet, because its module is lazy: run one forward pass first")


def dtype_of(model):
    """Returns the dtype of most elements of a model's parameters, in which modules compute with them."""
    elems = Counter()
    for p in model.parameters():
        elems[p.dtype] += p.numel()
    return max(elems, key=lambda dtype: (elems[dtype], dtype == torch.float32))


def partition(model, layers=None):
    """Divides a model into blocks, in the order of its modules. layers: names of the modules that become blocks of
    their own; None: layers_of().

    Frozen tensors get separate blocks, so that a step moves nothing for them. Tensors of the less common dtype do, too,
    and each block is fetched in its own.
    """
    compute = dtype_of(model)
    if isinstance(layers, str):
        raise ValueError(f"layers={layers!r}: must be a list of names: layers=[{layers!r}]")
    layers = layers_of(model) if layers is None else list(layers)
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in layers:
        if name not in modules:
            raise ValueError(f"layers: {name!r} is not a module of {type(model).__name__}")
    names = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    seen, blocks = set(), []

    def tensors_of(pairs):
        out = []
        for name, p in pairs:
            if id(p) in seen or p.numel() == 0:
                continue
            seen.add(id(p))
            out.append(Tensor(name, tuple(p.shape), p.dtype, p.requires_grad, names[id(p)]))
        return out

    def add(name, tensors, layer):
        for dtype in (compute, *(NAME_OF.keys() - {compute})):
            for trains in (True, False):
                some = [t for t in tensors if t.trains == trains and t.dtype == dtype]
                for first in range(0, len(some), TENSORS_MOST):
                    suffix = ("" if dtype == compute else "." + NAME_OF[dtype]) + ("" if trains else ".frozen")
                    suffix += f"#{first // TENSORS_MOST}" if first else ""
                    some_of_them = some[first : first + TENSORS_MOST]
                    blocks.append(Block(name + suffix, some_of_them, layer, trains, name))

    left, owners = [], {}
    inside = {name: next((layer for layer in layers if f"{name}.".startswith(f"{layer}.")), None) for name in modules}
    for name, module in modules.items():
        for p in parameters_of(module).values():
            owners.setdefault(id(p), {}).setdefault(id(module), inside[name])
    for name, module in modules.items():
        pairs = [(f"{name}.{n}" if name else n, p) for n, p in parameters_of(module).items() if p is not None]
        # parameters that modules of several layers use belong to no layer
        shared = [
            (n, p) for n, p in pairs if len(set(owners[id(p)].values())) > 1 and None not in owners[id(p)].values()
        ]
        left.append((name, pairs) if inside[name] is None else (f"{name}.shared", shared))
    # modules outside of layers first take their tied parameters: an embedding does not belong to a layer that ties it
    for name, pairs in left:
        add(name or "model", tensors_of(pairs), False)
    for layer in layers:
        add(layer, tensors_of((f"{layer}.{n}", p) for n, p in modules[layer].named_parameters()), True)
    return blocks


def check(model):
    """Raises LongshoreError if a model cannot be streamed."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise LongshoreError(
                f"wrap: {name or type(model).__name__} is TorchScript, which has no hooks to fetch "
                "its parameters; wrap the module that it was made of"
            )
    _check_dtypes(model)
    for name, b in persistent_buffers(model).items():
        if b.layout != torch.strided:
            raise LongshoreError(
                f"wrap: {name} is a buffer of layout {b.layout}, which a step cannot save; "
                "register_buffer(..., persistent=False) it, and make it with the model"
            )
    # parameters that overlap in memory: an update of one would not reach the other
    of_memory = sorted(
        (p.data_ptr(), p.nbytes, name, p)
        for name, p in model.named_parameters()
        if p.numel() and p.is_contiguous() and not p.is_meta
    )
    for (first, nbytes, name, p), (following, _, other, q) in zip(of_memory, of_memory[1:]):
        if following < first + nbytes and (p.requires_grad or q.requires_grad):
            raise LongshoreError(
                f"wrap: {name} and {other} are two parameters that share memory; make them one "
                "(a.weight = b.weight), or clone() one of them"
            )


def _check_dtypes(model):
    """Raises LongshoreError for dtypes that no run has."""
    for name, p in model.named_parameters():
        if p.numel() and p.dtype not in NAME_OF:
            advice = (
                "dequantize the model first (transformers' model.dequantize()), or let it be a buffer (register_buffer)"
            )
            if p.dtype == torch.float16:
                advice = "load or make the model as float32, which holds all that float16 does"
            elif p.is_floating_point():
                advice = "make the model as float32"
            elif p.is_complex():
                advice = "keep the real and the imaginary part as two, torch.view_as_complex() joins them"
            raise LongshoreError(
                f"wrap: a parameter has one dtype, float32 or bfloat16: {name} is {_said(p.dtype)}; {advice}"
            )


def _said(dtype):
    return str(dtype).removeprefix("torch.")


def mark_rest(blocks, model):
    """Marks blocks outside of layers that may share slots with layers (may_share). They belong to a module of PyTorch's
    own without tied parameters (an embedding, a head), and are not small beside the rest."""
    modules = dict(model.named_modules(remove_duplicate=False))
    most = max(sum(t.elems for t in b.tensors) for b in blocks)
    for block in blocks:
        owner = block.tensors[0].name.rpartition(".")[0]
        module = modules.get(owner) if owner else None
        apart = not block.layer and not block.buffers
        if apart and type(module).__module__.startswith("torch.nn.modules"):
            alone = all(t.names == [t.name] and t.name.rpartition(".")[0] == owner for t in block.tensors)
            large = 8 * sum(t.elems for t in block.tensors) > most
            if alone and large and not any(map(_has_parameters, module.children())):
                block.module, block.may_share = owner, True


def of_buffers(model, most_bytes):
    """Returns blocks of a model's persistent buffers (statistics of norms), if these take more than most_bytes. Leaves
    out buffers that are not finite or have no exact fp32 form."""
    exact = torch.float32, torch.bfloat16, torch.float16
    stay = {name: b for name, b in persistent_buffers(model).items() if b.dtype in exact and b.numel()}
    stay = {name: b for name, b in stay.items() if b.is_meta or bool(torch.isfinite(b).all())}
    tensors = [Tensor(name, tuple(b.shape), b.dtype, False, [name]) for name, b in stay.items()]
    if sum(t.elems * t.dtype.itemsize for t in tensors) <= most_bytes:
        return []
    return [
        Block(f"buffers#{first // TENSORS_MOST}", tensors[first : first + TENSORS_MOST], False, False, buffers=True)
        for first in range(0, len(tensors), TENSORS_MOST)
    ]


def persistent_buffers(model):
    """Returns {name: buffer} of the buffers in a state_dict()."""
    pairs = [(owner, name) for owner, module in model.named_modules() for name in buffers_not_saved(module)]
    temporary = {f"{owner}.{name}" if owner else name for owner, name in pairs}
    return {name: b for name, b in model.named_buffers() if name not in temporary}
