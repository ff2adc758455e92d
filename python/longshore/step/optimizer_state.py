"""The state of the engine's optimizer in torch.optim's form: optimizer.state and load_state_dict().

A moment is read from the drives when a script uses its value. Loading a state commits it as a step of its own."""

import copy
import mmap
import os
import tempfile
from collections import OrderedDict, defaultdict
from collections.abc import Mapping

import torch

from .. import native
from ..drives.buffer import Buffer
from ..errors import LongshoreError
from ..model.absent import StandIn, fetched, is_that_already
from ..torch_internals import tree_map, wrapper
from . import parameter_state
from .optimizer_table import OPTIMIZERS

_ADVICE = "optimizer.load_state_dict() writes the state"
_IN_PLACE = f"{_ADVICE}, and another optimizer loads a copy.deepcopy() of it"
_IN_MEMORY = 1 << 16  # bytes; a larger moment is saved from a file
# methods that give a pointer to memory, which must live as long as the tensor
_POINTERS = {"data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__"}


def _step_of(param):
    return param.longshore.streams.core().cycle.open_state("step_number").step


class Moment(StandIn):
    """A moment of a parameter, fp32, on the drives; or the number of its updates. Computing with it, or copying it,
    reads its value."""

    @staticmethod
    def __new__(cls, param, kind):
        out = wrapper(cls, torch.Size() if kind == "step" else param.shape, torch.float32)
        out.held, out.param, out.kind, out.at_step = (None, param, kind, _step_of(param))
        return out

    def is_now(self, param, kind):
        """Whether this is that moment of that parameter, at the engine's present step."""
        return self.param is param and self.kind == kind and self.at_step == _step_of(param)

    def value(self):
        """Reads the value into memory."""
        if self.kind == "step":  # torch.optim's counts on, too
            count = float(count_of(self.param.longshore.streams.core(), self.param))
            return torch.tensor(
                count, dtype=torch.promote_types(torch.float32, torch.get_default_dtype()), device="cpu"
            )
        self._check()
        return parameter_state.read(self.param, self.kind)

    def longshore_value(self):
        """Reads the value into a mapped file that disappears with the tensor, so that a whole state needs no memory."""
        nbytes = self.numel() * 4
        if nbytes <= _IN_MEMORY:
            return self.value()
        self._check()
        state = self.param.longshore.streams.core().state
        directory = next((d for d in state.drives if os.path.isdir(d)), state.path)
        try:
            with tempfile.TemporaryFile(dir=directory, prefix="longshore-") as f:
                for piece in parameter_state.pieces(self.param, self.kind):
                    f.write(piece)
                f.flush()
                mapped = mmap.mmap(f.fileno(), nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as why:
            raise LongshoreError(
                f"{directory}: the optimizer's state is put there while it is saved, "
                f"{native.readable(nbytes)} of {self.param.longshore.name} now: {why.strerror}; make "
                "room there, or use engine.snapshot()"
            ) from why
        return torch.frombuffer(mapped, dtype=torch.float32).view(self.shape)

    def _check(self):
        handle = self.param.longshore
        core = handle.streams.core()
        if core is not None and core.state is not None and core.state.step != self.at_step:
            raise LongshoreError(
                f"{handle.name}: this is the optimizer's state of step {self.at_step}, and the "
                f"engine is at step {core.state.step}: ask for state_dict() again, or keep a "
                "copy.deepcopy() of it"
            )

    @classmethod
    def longshore_call(cls, func, name, first, args, kwargs):
        if isinstance(first, Moment) and (
            name == "detach" or name in ("to", "cpu", "float") and is_that_already(name, first, args[1:], kwargs)
        ):
            return first
        if isinstance(first, Moment) and name in _POINTERS:
            if first.held is None:
                first.held = first.longshore_value()
            return func(first.held, *args[1:], **kwargs)
        return func(*_read(args), **_read(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*_read(args), **_read(kwargs or {}))

    def __repr__(self, **kwargs):
        return repr(self.value())


def _read(tree):
    def read(a):
        return fetched(a.value(), f"{a.param.longshore.name}: its state", _IN_PLACE) if isinstance(a, Moment) else a

    return tree_map(read, tree)


class Entry(dict):
    """The optimizer's state of one parameter, read-only: a change would never be used."""

    def refuse(self, *args, **kwargs):
        raise LongshoreError(f"optimizer.state: it lies on the drives, and a change here would be lost; {_ADVICE}")

    def __setitem__(self, key, value):
        if value is not self.get(key):  # the same value: code that moves a state to the device that it is on
            self.refuse()

    __delitem__ = pop = popitem = clear = update = setdefault = __ior__ = refuse

    def __deepcopy__(self, memo):
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self):
        return OrderedDict, (), None, None, iter(self.items())


class States(Mapping):
    """`optimizer.state`: the Entry of each parameter that has been updated."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def __iter__(self):
        return iter([p for group in self._optimizer.param_groups for p in group["params"] if p in self])

    def __len__(self):
        return sum(1 for _ in self)

    def __contains__(self, param):
        core = self._optimizer.core
        core.cycle.open_state("optimizer.state")
        full = _known(core).empty is not None and id(param) in self._optimizer.group_of
        return _has_state(core, param) and (full or count_of(core, param) > 0)

    def __getitem__(self, param):
        core = self._optimizer.core
        if param not in self:
            raise KeyError(param)
        return Entry({key: Moment(param, plane) for key, plane in _entries_of(core).items()})

    def get(self, param, default=None):
        return self[param] if param in self else default

    def __setitem__(self, param, entry):
        planes = _entries_of(self._optimizer.core)
        same = isinstance(entry, Mapping) and entry.keys() == planes.keys() and param in self
        if not same or not all(isinstance(v, Moment) and v.is_now(param, planes[k]) for k, v in entry.items()):
            Entry().refuse()

    def __delitem__(self, *args, **kwargs):
        Entry().refuse()

    clear = pop = popitem = update = setdefault = __delitem__

    def __reduce__(self):
        return defaultdict, (dict, dict(self.items()))


def _known(core):
    return OPTIMIZERS[core.how["optimizer"]]


def planes_of(core):
    """Returns {torch.optim's name of a moment: its plane} of the moments that the run has."""
    known = _known(core)
    return {} if known.takes_momentum and not core.state.made.with_momentum else known.states


def _entries_of(core):
    """Returns {torch.optim's name of a value in state[p]: its plane, or "step"}."""
    return {**({} if _known(core).takes_momentum else {"step": "step"}), **planes_of(core)}


def _has_state(core, param):
    """Whether the optimizer may keep a state of a parameter: it trained at wrap(), whether it is frozen now or not."""
    optimizer = core.optimizer
    if id(param) not in optimizer.trained or not planes_of(core):
        return False
    if not _known(core).takes_momentum:
        return True
    if optimizer.group_of.get(id(param), {}).get("momentum"):
        return True
    return bool(count_of(core, param) and parameter_state.read(param, "m").any())


def count_of(core, param):
    """Returns how many updates a parameter has had."""
    handle = param.longshore
    return core.cycle.counts[handle.block.number][handle.index]


def parse(kind, has_moments, name, shape, entry):
    """Converts torch.optim's state of a parameter to (number of updates, {plane: moment}); the dict may be empty.
    Raises for state that the engine's optimizer does not have."""
    where = f"the optimizer's state: {name}"
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where}: {type(entry).__name__} is not a state of a parameter, which is a dict")
    planes = OPTIMIZERS[kind].states
    entry = {k: v for k, v in entry.items() if v is not None}
    same = "load the state of the same optimizer"
    for key in entry:
        if key not in planes and key != "step":
            raise LongshoreError(f"{where}: {key!r} is not a state of {kind}, which has {', '.join(planes)}; {same}")
    found = {plane: entry[key] for key, plane in planes.items() if key in entry}
    missing = [key for key in planes if key not in entry]
    if missing and (found or float(entry.get("step", 0))):
        raise LongshoreError(f"{where}: has no {missing[0]}, which {kind} needs to continue; {same}")
    if found and not has_moments:
        raise LongshoreError(
            f"{where}: has a momentum_buffer, and momentum was 0 when the run was made: wrap() with the momentum"
        )
    for value in found.values():
        if not isinstance(value, torch.Tensor) or tuple(value.shape) != tuple(shape):
            said = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ValueError(
                f"{where}: is of shape {said} there, and the parameter of {list(shape)}: they do not belong together"
            )
    count = float(entry.get("step", 1 if found else 0))
    if not count >= 0 or count != int(count):
        raise ValueError(f"{where}: step {count!r} is not a number of updates")
    return int(count), found


# ---- load_state_dict()


def load(optimizer, said):
    """Loads groups and state as torch.optim.Optimizer.load_state_dict() does, and commits them as a step of its own,
    which changes nothing else."""
    core = optimizer.core
    core.cycle.open_state("optimizer.load_state_dict")
    groups, saved = optimizer.param_groups, said["param_groups"]
    own, theirs = ([len(group["params"]) for group in some] for some in (groups, saved))
    if own != theirs:
        raise ValueError(
            f"load_state_dict: parameter groups of {theirs} parameters, and the optimizer's have {own}; give "
            "wrap(optimizer=) one of the same groups"
        )
    by_index = {index: p for mine, theirs in zip(groups, saved) for p, index in zip(mine["params"], theirs["params"])}
    entries = {id(p): (0, {}) for p in by_index.values()}
    for index, entry in said["state"].items():
        if index not in by_index:
            raise ValueError(f"load_state_dict: state[{index!r}] is of no parameter in param_groups")
        p = by_index[index]
        parsed = entries[id(p)] = parse(core.how["optimizer"], bool(planes_of(core)), p.longshore.name, p.shape, entry)
        if parsed[1] and id(p) not in optimizer.trained:
            raise LongshoreError(
                f"load_state_dict: {p.longshore.name}: is frozen in this run, which has no room for "
                "its moments; leave its state out"
            )
    before = [dict(group) for group in groups]
    try:
        for group, numbers in zip(groups, saved):
            group.update({k: v for k, v in numbers.items() if k != "params"})
        if not all(_is_there(core, p, *entries[id(p)]) for p in by_index.values()):
            _commit(core, entries)
    except BaseException:
        for group, numbers in zip(groups, before):
            group.clear()
            group.update(numbers)
        raise


def _is_there(core, param, count, moments):
    """Whether the engine has this state of a parameter already."""
    if not moments and not _has_state(core, param):
        return True
    if count != count_of(core, param) and not _known(core).takes_momentum:
        return False
    if not moments:
        return not count_of(core, param)
    return all(isinstance(v, Moment) and v.is_now(param, plane) for plane, v in moments.items())


def _commit(core, entries):
    """Commits counts and moments. entries: {id of a parameter: (its updates, {plane: moment})}."""
    if parameter_state.begun(core):
        raise LongshoreError(
            "load_state_dict: the gradients of a step that has been begun would be dropped; load "
            "before backward() or after step()"
        )
    core.cycle.settle()
    counts = [list(of_block) for of_block in core.cycle.counts]
    for streamed in core.streams.blocks:
        for p, handle in streamed.parameters:
            if id(p) in entries:
                counts[streamed.number][handle.index] = entries[id(p)][0]

    def changes():
        for streamed in core.streams.blocks:
            theirs = [pair for pair in streamed.parameters if id(pair[0]) in core.optimizer.trained]
            wanted = {handle.index: entries[id(p)][1] for p, handle in theirs if id(p) in entries}
            if wanted:
                yield from _pieces(core, streamed.number, wanted)

    parameter_state.commit(core, changes, {"loaded": "the optimizer's state"}, counts)


def _pieces(core, number, wanted):
    """Yields the changes of a block for parameter_state.commit(). wanted: {index of the tensor: {plane: moment}};
    missing moments become zeros."""
    flat = {}
    for index, moments in wanted.items():
        for plane, value in moments.items():
            flat[index, plane] = (value.longshore_value() if isinstance(value, Moment) else value.detach()).reshape(-1)
    for first, count, inside in core.layout.pieces(number):
        buffers = {plane: Buffer(count * native.SEGMENT * 4) for plane in planes_of(core).values()}
        tensors = []
        for index, at, begin, end in inside:
            if index not in wanted:
                continue
            tensors.append(index)
            for plane, buffer in buffers.items():
                if (index, plane) in flat:
                    part = buffer.view(torch.float32)[at : at + end - begin]
                    part.copy_(flat[index, plane][begin:end])
                    name = core.layout.blocks[number].tensors[index].name
                    parameter_state.refuse_wrong(f"load_state_dict: {name}", plane, part, ", and nothing was loaded")
        if tensors:
            yield number, first, count, {"tensors": tensors, **buffers}
