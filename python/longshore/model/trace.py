"""Traces a step of any module: runs its forward and backward on tensors without memory, and writes down by unit what
computes, what autograd saves and what is in memory for a moment.

A unit is a repeated layer, or a module outside of layers with parameters of its own. What the model does outside of
units belongs to the one before. The model itself stays as it is: a copy without values runs.

Values decide some sizes and branches (a router that picks experts, `if x.any():`). The trace then takes a likely one,
and says so in `guesses`.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import math
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch.utils.flop_counter import flop_registry

from ..errors import LongshoreError
from ..native import first_line
from ..torch_internals import (
    DispatchMode,
    FakeMode,
    UnknownValue,
    argument,
    current_node,
    device_of,
    fake_log,
    in_backward,
    is_compiled,
    is_view,
    name_of,
    next_sequence_number,
    parameters_of,
    remove_hooks,
    sequence_number,
    storage_id,
    tree_leaves,
    tree_map,
)
from . import blocks as tree
from .equal_layers import equal_layers, lengthen, shorten

PRECISION_OF = {torch.bfloat16: "bf16", torch.float16: "fp16"}  # others: fp32
# operations by name
_NO_WORK = "detach lift_fresh _unsafe_view empty empty_like empty_strided new_empty new_empty_strided".split()
_PICKS = "embedding", "index", "index_select", "gather"  # they read as much as they write
_BATCHED = "bmm", "baddbmm"
# that compute functions: bytes of tanh which take as long as one of theirs, on a processor
_FUNCTIONS = {
    **dict.fromkeys("tanh tan atan".split(), 1),
    **dict.fromkeys("native_dropout bernoulli bernoulli_ multinomial normal_ uniform_ rand randn".split(), 2),
    **dict.fromkeys("sin cos erf pow_scalar log1p gelu_backward".split(), 0.5),
    **dict.fromkeys("exp log gelu softplus mish".split(), 0.3),
    **dict.fromkeys("_softmax _log_softmax native_layer_norm native_group_norm native_batch_norm".split(), 0.2),
    **dict.fromkeys("native_layer_norm_backward native_group_norm_backward sum".split(), 0.16),
    **dict.fromkeys("_softmax_backward_data _log_softmax_backward_data sigmoid silu silu_backward".split(), 0.12),
}
ROW_BYTES = 4096  # of the rows by which rates of "rows" are known
_ROWS_MOST = 4096  # the most of them that are measured with memory that is there
NEW_BYTES = 32 << 20  # a processor's memory of this size is new each time, and the system clears it
# what the engine's own part takes, in calls of PyTorch: of a module with parameters, of a tensor that autograd saves,
# and again as it reads it, of a gradient
MODULE_CALLS, SAVED_CALLS, GRADIENT_CALLS = 8, 1, 2
OF_ENGINE = 1  # the `rows` of such calls
_FLOPS = {packet.__name__: count for packet, count in flop_registry.items()}
for _way in ("", "_backward"):  # which older versions do not count on a CPU
    _flash = f"_scaled_dot_product_flash_attention{{}}{_way}"
    _FLOPS.setdefault(_flash.format("_for_cpu"), _FLOPS[_flash.format("")])
_EXPERTS = "num_local_experts", "num_experts", "n_routed_experts"  # how configurations name their number
_NO_NUMBER = 2**64 - 1  # of nodes that add up gradients


@dataclass(frozen=True)
class Work:
    """What a unit computes of one kind. The kinds and precisions are plan.h's, in small letters."""

    # "product", "product_input", "product_weight", "attention", "attention_backward", "rows", "functions" or "calls"
    kind: str
    precision: str  # "fp32", "bf16", "fp16", "tf32" or "fp8"
    rows: int  # of the product, or that are read and written
    # 2 for each multiply-add; of "rows" the bytes that are read and written, of "functions" those of as much tanh, of
    # "calls" their number
    work: int = 0


@dataclass
class Unit:
    """One run of a unit's forward, and the backward that belongs to it."""

    name: str  # of its module
    layer: bool  # whether it is a repeated layer
    parameters: list  # names of the parameters that it computes with, each its first one
    forward: list = field(default_factory=list)  # of Work
    backward: list = field(default_factory=list)  # of Work; with what checkpoints compute again
    saved_bytes: int = 0  # of storages that autograd saves here first, without parameters, buffers and the batch
    saved_sizes: list = field(default_factory=list)  # bytes of each of them
    boundary_bytes: int = 0  # of its inputs that other units have made, from which it can be computed again
    output_bytes: int = 0  # of its outputs
    # the most in memory that autograd has not saved, without parameters and the batch, while it computes
    forward_temporary_bytes: int = 0
    backward_temporary_bytes: int = 0
    # the most in memory, saved or not, beyond what earlier units have saved, while it computes; and what waits there as
    # its backward begins
    forward_most_bytes: int = 0
    backward_most_bytes: int = 0
    backward_waits_bytes: int = 0
    before_bytes: int = 0  # what earlier units have saved as it begins
    seconds: dict = field(default_factory=dict)  # of "forward" and "backward", once a step was measured


@dataclass
class Trace:
    """A step of a model, with one batch."""

    units: list  # of Unit, in the order in which they run in forward
    tokens: int  # of the batch; samples, if it has none
    inputs_bytes: int  # of the batch
    logits_bytes: int = 0  # of the output's `logits`; 0: it has none
    vocabulary: int = 0  # the last dimension of these
    has_loss: bool = False  # whether the model computes a loss
    guesses: list = field(default_factory=list)  # what the values of a batch decide, and the trace does not know
    why: str = ""  # if it is made of the blocks alone: why the model could not be traced

    @property
    def saved_bytes(self):
        return sum(unit.saved_bytes for unit in self.units)

    def times(self, factor):
        """The Trace of a batch so many times as large, with sequences of the same length."""
        units = []
        for unit in self.units:
            works = {
                way: [
                    w
                    if w.kind == "calls"
                    else replace(w, work=w.work * factor, rows=w.rows * (1 if "attention" in w.kind else factor))
                    for w in of
                ]
                for way, of in (("forward", unit.forward), ("backward", unit.backward))
            }
            sizes = {name: getattr(unit, name) * factor for name in vars(unit) if name.endswith("_bytes")}
            sizes["saved_sizes"] = [size * factor for size in unit.saved_sizes]
            units.append(replace(unit, **works, **sizes, seconds={w: s * factor for w, s in unit.seconds.items()}))
        more = {name: getattr(self, name) * factor for name in ("tokens", "inputs_bytes", "logits_bytes")}
        return replace(self, units=units, **more)

    def notes(self):
        """What the trace does not know, in sentences."""
        if self.why:
            yield (
                f"{self.why}, so it is planned from its blocks: two operations forward and four backward for each "
                "parameter and token, and no activations"
            )
        for guess in self.guesses:
            yield f"the plan is for one case of {guess}: a step may take less or more"


class Untraceable(LongshoreError):
    """A model that cannot be traced."""


class Refused(Untraceable):
    """A batch that the model refuses."""


def trace(model, batch, device=None, loss_of=None, layers=None):
    """The Trace of a step of a model, which may lie on the meta device. Raises Untraceable.

    batch: keyword arguments of the model as a dict, positional ones as a tuple, or one argument. device: what the step
    computes on; None: the CPU. loss_of(output): the loss; by default output.loss, or else the sum of all outputs.
    layers: names of the modules that are units; None: layers_of().
    """
    device = torch.device("cpu") if device is None else device
    layers = tree.layers_of(model) if layers is None else layers
    found = equal_layers(model, layers)
    for taken in (found, {}) if found else ({},):
        refused: list = []
        try:
            with _refusals(refused):
                return lengthen(_traced(model, batch, device, loss_of, layers, taken), taken)
        except Exception as failure:  # which a model also raises that counts its layers
            why = failure
    if refused or isinstance(why, ValueError):
        raise Refused(f"{type(model).__name__} refuses this batch: {first_line(why)}") from why
    raise Untraceable(f"{type(model).__name__} cannot be traced: {first_line(why)}") from why


@contextlib.contextmanager
def _refusals(out):
    """Adds PyTorch's reports of operations that refuse their tensors to a list, in place of its log."""

    def take(record):
        out.append(record)
        return False

    fake_log.addFilter(take)
    try:
        yield
    finally:
        fake_log.removeFilter(take)


def _traced(model, batch, device, loss_of, layers, taken):
    """The Trace without these layers, which equal_layers() has found."""
    with FakeMode(allow_non_fake_inputs=True), torch.enable_grad():
        runs = _copied(model, device)
        shorten(runs, taken)
        made = {id(t): _like(t, device) for t in _tensors(batch)}  # labels may be the inputs themselves
        batch = tree_map(lambda t: made.get(id(t), t), batch)
        recorder = _Recorder(runs, batch, device)
        recorder.hook(runs, layers)
        with recorder, torch.autograd.graph.saved_tensors_hooks(recorder.pack, recorder.unpack):
            _step(runs, batch, loss_of, recorder)
    return recorder.made()


def from_blocks(blocks, tokens, why):
    """The Trace of a model that is known by its blocks alone: each parameter is in a product with each token."""
    units = {}
    for block in blocks:
        if not block.buffers:
            unit = units.setdefault(block.module, Unit(block.module, block.layer, []))
            unit.parameters += [t.name for t in block.tensors]
            elems = sum(t.elems for t in block.tensors)
            precision = PRECISION_OF.get(block.dtype, "fp32")
            unit.forward.append(Work("product", precision, tokens, 2 * elems * tokens))
            unit.backward.append(Work("product_input", precision, tokens, 2 * elems * tokens))
            if block.trains:
                unit.backward.append(Work("product_weight", precision, tokens, 2 * elems * tokens))
    return Trace(list(units.values()), tokens, 0, why=why)


def tokens_of(batch):
    """Tokens of a batch: of its first matrix of whole numbers; if it has none, samples: the first dimension."""
    tensors = [t for t in tree_leaves(batch) if isinstance(t, torch.Tensor)]
    ids = [t for t in tensors if t.dim() == 2 and not t.is_floating_point()]
    return ids[0].numel() if ids else max([1, *(t.shape[0] for t in tensors if t.dim())])


def _fp32_products():
    """The precision of a device's products of float32."""
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _like(t, device):
    """A tensor without values like another one."""
    out = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
    return torch.nn.Parameter(out, t.requires_grad) if isinstance(t, torch.nn.Parameter) else out


def _copied(model, device):
    """A copy of a model without values, on a device."""
    own = [*model.parameters(), *model.buffers()]
    copied = copy.deepcopy(model, {id(t): _like(t, device) for t in own})
    for module in copied.modules():
        remove_hooks(module)  # a script's, too, which expect values
    return copied


def _step(model, batch, loss_of, recorder):
    if isinstance(batch, Mapping):
        output = model(**batch)
    else:
        output = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    logits = getattr(output, "logits", None)
    if isinstance(logits, torch.Tensor):
        recorder.logits = logits.untyped_storage().nbytes(), logits.shape[-1]
    loss = loss_of(output) if loss_of is not None else getattr(output, "loss", None)
    recorder.has_loss = loss is not None
    if loss is None:
        tensors = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
        loss = sum(t.float().sum() for t in tensors)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        for p in model.parameters():
            if p.requires_grad:  # the engine takes gradients as they come
                p.register_post_accumulate_grad_hook(recorder.take)
        del output, logits
        loss.backward()


class _Recorder(DispatchMode):
    """Sees each operation, and writes it down for the unit that runs."""

    def __init__(self, model, batch, device):
        super().__init__()
        self.on_cpu = device.type == "cpu"  # a device computes while the processor calls
        self.precisions = {**PRECISION_OF, torch.float32: "fp32" if self.on_cpu else _fp32_products()}
        self.logits, self.has_loss, self.guesses = (0, 0), False, {}
        config = getattr(model, "config", None)
        self.experts = next((n for name in _EXPERTS if (n := getattr(config, name, None))), 1)
        first = Unit("", False, [], Counter(), Counter())  # becomes the first one that runs
        self.units, self.running, self.current = [first], [], first
        self.begun = False  # whether one runs, or has run
        self.numbers, self.makers = [0], [first]  # of autograd nodes: which unit makes those from a number on
        # of storages in memory: {id: [bytes, whether autograd has saved it]}; bytes by that
        self.sizes, self.live = {}, Counter()
        self.counted = set()  # ids of storages that were counted as inputs of a unit
        self.parameters = {_storage(p) for p in model.parameters()}
        inputs = {_storage(t): t.untyped_storage().nbytes() for t in _tensors(batch)}
        self.given, self.inputs_bytes = (
            {*self.parameters, *inputs, *map(_storage, model.buffers())},
            sum(inputs.values()),
        )
        self.tokens = tokens_of(batch)

    # ---- units

    def hook(self, model, layers):
        """Attaches hooks to the modules that are units."""
        first = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            first.setdefault(id(p), name)
        for name, module in model.named_modules():
            is_layer = name in layers
            own = module.parameters() if is_layer else parameters_of(module).values()
            names = [first[id(p)] for p in own if p is not None]
            if not is_compiled(module) and any(p is not None for p in parameters_of(module).values()):
                module.register_forward_pre_hook(self._enters)
            inside = not is_layer and any(f"{name}.".startswith(f"{layer}.") for layer in layers)
            if names and not inside:
                module.register_forward_pre_hook(self._entry(name, is_layer, names), prepend=True, with_kwargs=True)
                module.register_forward_hook(self._leave, always_call=True)

    def _enters(self, module, args):
        self._add("calls", MODULE_CALLS * self.on_cpu, rows=OF_ENGINE)

    def _entry(self, name, is_layer, names):
        def enter(module, args, kwargs):
            again = [unit for unit in self.units if unit.name == name] if in_backward() else []
            self.running.append(again[-1] if again else self._begin(name, is_layer, names, (args, kwargs)))
            self._now(self.running[-1])

        return enter

    def _begin(self, name, is_layer, names, given):
        if self.begun:
            self.units.append(Unit("", False, [], Counter(), Counter()))
        self.begun, unit = True, self.units[-1]
        unit.before_bytes = self.live[True]
        unit.name, unit.layer, unit.parameters = name, is_layer, names
        for t in _tensors(given):
            if t.requires_grad and _storage(t) not in self.given | self.counted:
                self.counted.add(_storage(t))
                unit.boundary_bytes += t.untyped_storage().nbytes()
        return unit

    def _leave(self, module, args, output):
        unit = self.running.pop()
        if not in_backward():
            unit.output_bytes = sum(t.untyped_storage().nbytes() for t in _tensors(output))
        self._now(self.running[-1] if self.running else unit)

    def _now(self, unit):
        self.current = unit
        self.numbers.append(next_sequence_number())
        self.makers.append(unit)

    # ---- what autograd saves

    def pack(self, t):
        """Called for each tensor that autograd saves."""
        found, unit = self.sizes.get(_storage(t)), self.current
        self._add("calls", SAVED_CALLS * self.on_cpu, rows=OF_ENGINE)
        if found is not None and not found[1] and not in_backward():  # where a checkpoint computes again
            found[1] = True
            self.live[False] -= found[0]
            self.live[True] += found[0]
            unit.saved_bytes += found[0]
            unit.saved_sizes.append(found[0])
        return t

    def unpack(self, t):
        """Called for each of them that backward reads."""
        self._add("calls", SAVED_CALLS * self.on_cpu, rows=OF_ENGINE)
        return t

    def take(self, p):
        """The gradient of a parameter is complete."""
        self._add("calls", GRADIENT_CALLS * self.on_cpu, rows=OF_ENGINE)
        p.grad = None

    # ---- operations

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if name_of(function) == "device":
            return device_of(args[0])
        kwargs = kwargs or {}
        try:
            out = function(*args, **kwargs)
        except UnknownValue:
            out = self._guessed(function, args, kwargs)
        node, name = current_node(), name_of(function)
        if name == "mkldnn_rnn_layer":  # whose workspace has no size without values
            *out, workspace = out
            out.append(workspace.new_empty(_workspace_bytes(args[0], out[1])))
        self._add("calls", self.on_cpu)
        if name in _NO_WORK or is_view(function):
            self._note(out)
            return out
        if node is not None and not self.running and sequence_number(node) < _NO_NUMBER:
            self.current = self.makers[bisect.bisect_right(self.numbers, sequence_number(node)) - 1]
        backward = in_backward() and not self.running  # otherwise a checkpoint computes forward again
        kind, precision, rows, work = self._work(name, args, kwargs, out, backward)
        if kind.startswith("attention") and argument(function, args, kwargs, "is_causal"):
            work //= 2  # the masked half is left out
        if kind == "rows" and self.on_cpu and name in _FUNCTIONS:
            kind, work = "functions", int(work * _FUNCTIONS[name])
        self._add(kind, work, precision, rows)
        made = max((t.untyped_storage().nbytes() for t in _tensors(out) if _storage(t) not in self.sizes), default=0)
        if self.on_cpu and made >= NEW_BYTES:
            self._add("rows", made, rows=NEW_BYTES // ROW_BYTES)
        self._note(out, backward and name == "add" and len(args) == 2 and out.shape == args[0].shape)
        return out

    def _add(self, kind, work, precision="fp32", rows=0):
        (self.current.backward if in_backward() else self.current.forward)[kind, precision, rows] += work

    def _note(self, out, in_place=False):
        """Counts the memory of new tensors. in_place: a sum of gradients, which autograd computes in the first one's
        memory, if it is no subclass's."""
        for t in _tensors(out):
            key = _storage(t)
            if key in self.sizes or key in self.given:
                continue
            storage = t.untyped_storage()
            self.sizes[key] = [storage.nbytes(), False]
            self.live[False] += storage.nbytes()
            weakref.finalize(storage, self._gone, key).atexit = False
        unit, live = self.current, self.live[False] - (_nbytes(out) if in_place else 0)
        most = live + self.live[True] - unit.before_bytes
        if in_backward():
            unit.backward_waits_bytes = unit.backward_waits_bytes or live
            unit.backward_most_bytes = max(unit.backward_most_bytes, most)
            unit.backward_temporary_bytes = max(unit.backward_temporary_bytes, live)
        else:
            unit.forward_most_bytes = max(unit.forward_most_bytes, most)
            unit.forward_temporary_bytes = max(unit.forward_temporary_bytes, live)

    def _gone(self, key):
        nbytes, saved = self.sizes.pop(key)
        self.live[saved] -= nbytes
        self.counted.discard(key)

    def _work(self, name, args, kwargs, out, backward):
        """(kind, precision, rows, work) of an operation."""
        if name == "_grouped_mm":
            a, b = args[:2]
            grouped = a.dim() == 2 and b.dim() == 2
            flops = 2 * a.shape[-1] * (a.shape[0] * b.shape[-1] if grouped else out.numel())
        elif name in _FLOPS:
            flops = _FLOPS[name](*args, **kwargs, out_val=out)
        else:
            there = {_storage(t): t for t in _tensors((args, kwargs))}
            made = [t for t in _tensors(out) if _storage(t) not in there]
            written = sum(map(_nbytes, made))
            read = sum(map(_nbytes, there.values()))
            work = written + (min(read, written) if name in _PICKS else read)
            return "rows", "fp32", min(max(1, written // ROW_BYTES), _ROWS_MOST), work
        factors = [t for t in _tensors(args) if t.is_floating_point()]
        precision = self.precisions.get(factors[-1].dtype, "fp32")
        if "attention" in name:
            query = factors[backward]  # in backward after a gradient
            return "attention_backward" if backward else "attention", precision, query.shape[-2], flops
        first, second = factors[-2:]
        if not backward:
            return "product", precision, _rows(out, name), flops
        if name == "convolution_backward":
            return "product_weight", precision, _rows(first, name), flops
        of_weight = self.parameters.isdisjoint({_storage(first), _storage(second)}) and name not in _BATCHED
        return (
            ("product_weight", precision, first.shape[-1], flops)
            if of_weight
            else ("product_input", precision, _rows(out, name), flops)
        )

    # ---- what values decide

    def _guessed(self, function, args, kwargs):
        name = name_of(function)
        if name == "_local_scalar_dense":
            self.guesses["a branch or a number that values decide"] = True
            return {torch.bool: True}.get(args[0].dtype, 1.0 if args[0].is_floating_point() else 1)
        if name == "equal":
            self.guesses["a branch or a number that values decide"] = True
            return True
        self.guesses["tensors whose sizes values decide, such as those of experts that a router picks"] = True
        if name == "nonzero":
            return args[0].new_empty((self._hits(args[0]), args[0].dim()), dtype=torch.long)
        if name == "masked_select":
            return args[0].new_empty(self._hits(args[1]))
        if name in ("index", "index_put", "index_put_"):
            found = []
            for i in args[1]:
                masks = i is not None and i.dtype in (torch.bool, torch.uint8)
                found += [i.new_empty(self._hits(i), dtype=torch.long)] * i.dim() if masks else [i]
            return function(args[0], found, *args[2:], **kwargs)
        raise

    def _hits(self, mask):
        """How many elements of a mask are set: all of a vector's; of others if experts share tokens evenly."""
        return mask.numel() if mask.dim() < 2 else -(-mask.numel() // self.experts)

    def made(self):
        for unit in self.units:
            for name in ("forward", "backward"):
                works = [Work(*key, work) for key, work in getattr(unit, name).items()]
                setattr(unit, name, works)
        return Trace(self.units, self.tokens, self.inputs_bytes, *self.logits, self.has_loss, [*self.guesses])


def _storage(t):
    return storage_id(t.untyped_storage())


def _tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _nbytes(t):
    """Bytes of a tensor that are read: less than its elements' if it is expanded."""
    return min(t.numel() * t.dtype.itemsize, t.untyped_storage().nbytes())


def _workspace_bytes(x, state):
    """Bytes that an LSTM's kernel leaves for its backward, of float32, at most. x: (steps, sequences, width). state:
    (sequences, width)."""
    width = state.shape[-1]
    return 4 * (x.shape[0] + 1) * x.shape[1] * (6 * max(x.shape[-1], width) + 10 * width)


def _rows(out, name):
    """Rows of a product: of a convolution its outputs' places."""
    if name in _BATCHED or out.dim() < 3:
        return out.shape[-2]
    return math.prod(out.shape) // out.shape[1]
