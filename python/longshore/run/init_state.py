"""Writes a new run's first state: the model's values, and moments that were saved or that an optimizer has."""

import os
from concurrent.futures import ThreadPoolExecutor

import torch

from .. import native
from ..drives.layout import PIECE
from ..errors import LongshoreError, MissingError
from ..model import unreadable_weights
from ..step.optimizer_state import parse
from ..step.optimizer_table import OPTIMIZERS
from ..step.parameter_state import refuse_wrong
from . import weights_files

INDEX = "model.safetensors.index.json"


class Moments:
    """An optimizer's moments in DIRECTORY/optimizer, by parameter name.

    ``longshore export --moments`` and save_pretrained(moments=True) write them.
    """

    def __init__(self, directory, optimizer, momentum):
        self.path = os.path.join(os.fspath(directory), "optimizer")
        said = self._read(optimizer)
        self.updates, self.fewer = said["updates"], said.get("fewer", {})
        known = OPTIMIZERS[optimizer]
        planes = {plane: name for name, plane in known.states.items()}
        if known.takes_momentum:
            self._refuse_other_momentum(os.path.join(self.path, planes["m"]), momentum)
            planes = planes if momentum else {}
        self._files = [self._open(planes[plane]) if plane in planes else None for plane in "mv"]

    def _refuse_other_momentum(self, path, momentum):
        """Checks that SGD has saved momentum if and only if wrap() was given momentum."""
        if (there := os.path.isdir(path)) != bool(momentum):
            made, give = ("exists", "...") if there else ("is missing", "0")
            raise LongshoreError(
                f"{path}: {made}, so these are moments of SGD {'with' if there else 'without'} momentum: give "
                f"wrap(..., momentum={give}), or leave moments_from out"
            )

    def _read(self, optimizer):
        """The contents of optimizer.json. Raises LongshoreError if it is damaged or of another optimizer."""
        path = os.path.join(self.path, "optimizer.json")
        try:
            said = weights_files.read(path)
            whose, updates, fewer = said["optimizer"], said["updates"], said.get("fewer", {})
            right = all(type(n) is int and 0 <= n <= updates for n in (updates, *fewer.values()))
        except FileNotFoundError:
            raise MissingError(
                f"{path}: is not there: wrap(moments_from=DIRECTORY) takes what `longshore export "
                "--moments` or save_pretrained(moments=True) has written"
            ) from None
        except (ValueError, KeyError, AttributeError, TypeError):
            right = False
        if not right:
            raise LongshoreError(
                f'{path}: does not say which optimizer\'s moments these are ("optimizer"), and how '
                'many updates they have had ("updates")'
            )
        if whose != optimizer:
            raise LongshoreError(
                f"{path}: these are moments of {whose}, not of {optimizer}: give wrap(..., "
                f"optimizer={whose!r}), or leave moments_from out"
            )
        return said

    def _open(self, name):
        """{parameter: the open file that holds its moment}"""
        from safetensors import SafetensorError, safe_open

        path = directory = os.path.join(self.path, name)
        found = {}
        try:
            files = {file for file in os.listdir(directory) if file.endswith(".safetensors")}
            if INDEX in os.listdir(directory):
                path = os.path.join(directory, INDEX)
                files.update(unreadable_weights.weight_map(path).values())
            for file in sorted(files):
                path = os.path.join(directory, file)
                opened = safe_open(path, "pt")
                found.update(dict.fromkeys(opened.keys(), opened))
        except (OSError, ValueError, SafetensorError) as why:
            raise LongshoreError(
                f"{path}: the moments cannot be read: {why}; save them again, or wrap without moments_from"
            ) from why
        return found

    def of(self, names, shape):
        """[m, v] of the parameter with these names, flat fp32, each None if it was not saved."""
        out = []
        for files in self._files:
            name = next((n for n in names if files and n in files), None)
            value = files[name].get_tensor(name) if name else None
            if value is not None and tuple(value.shape) != tuple(shape):
                raise LongshoreError(
                    f"{self.path}: {name} is of shape {list(value.shape)} there, and {list(shape)} "
                    "in the model: they do not belong together"
                )
            out.append(None if value is None else value.float().reshape(-1))
        return out

    def knows(self, names):
        """Whether every moment of the parameter with these names was saved."""
        return all(files is None or any(n in files for n in names) for files in self._files)

    def counts(self, layout):
        """The number of updates of each tensor, as the engine counts them; 0 for a tensor without saved moments."""

        def count(tensor):
            return self.fewer.get(tensor.name, self.updates) if tensor.trains and self.knows(tensor.names) else 0

        counts = [[count(tensor) for tensor in block.tensors] for block in layout.blocks]
        if self.updates and not any(map(any, counts)):
            raise LongshoreError(
                f"{self.path}: holds no moments of the model's parameters, such as "
                f"{layout.blocks[0].tensors[0].name} for one"
            )
        return counts


class Handed:
    """The moments of a torch.optim.Optimizer object that was given to wrap() after it made steps. Used like Moments."""

    def __init__(self, optimizer, kind, momentum, model):
        self._of = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            if p in optimizer.state:
                has_moments = momentum or not OPTIMIZERS[kind].takes_momentum
                self._of[name] = parse(kind, has_moments, name, p.shape, optimizer.state[p])
        self.updates = max((count for count, _ in self._of.values()), default=0)

    def _entry(self, names):
        return next((self._of[n] for n in names if n in self._of), (0, {}))

    def of(self, names, shape):
        found = self._entry(names)[1]
        return [found[plane].detach().float().reshape(-1) if plane in found else None for plane in "mv"]

    def counts(self, layout):
        return [[self._entry(t.names)[0] if t.trains else 0 for t in b.tensors] for b in layout.blocks]


_NO_RUN = ", so no run was made of it: give it finite values, or load another copy of the file it is from"
_PLANES = "master", "m", "v"


def _values(model, block, moments):
    """[value, m, v] of each tensor of a block, flat; None or missing: zeros."""
    parameters = {**dict(model.named_buffers()), **dict(model.named_parameters(remove_duplicate=False))}

    def of(tensor):
        value = parameters[tensor.name].detach().reshape(-1)
        return [value, *(moments.of(tensor.names, tensor.shape) if moments and tensor.trains else ())]

    return [of(tensor) for tensor in block.tensors]


def check(layout, model, moments=None):
    """Raises for values that fill() would refuse: before a run that stands there may have to go."""
    with torch.no_grad():
        for block in layout.blocks:
            for tensor, values in zip(block.tensors, _values(model, block, moments)):
                for plane, value in zip(_PLANES, values):
                    for part in () if value is None else value.split(PIECE * native.SEGMENT):
                        refuse_wrong(tensor.name, plane, part, _NO_RUN)


def fill(state, model, spool, progress, moments=None):
    """Writes a new run's state block by block; one piece is written while the next is assembled. Of several ranks, each
    writes rank 0's values to its own drives.

    progress: counts the fp32 bytes of the model's values.
    """
    layout, writing = state.layout, None
    with torch.no_grad(), ThreadPoolExecutor(1) as writer:
        for b, block in enumerate(layout.blocks):
            values = _values(model, block, moments) if not state.rank else []
            there = [any(len(v) > i and v[i] is not None for v in values) for i in range(3)]
            there = state.meet("the first state of a block", there)[0]
            for segment, count, inside in layout.pieces(b):
                pieces = [
                    torch.zeros(count * native.SEGMENT, dtype=torch.float32, device="cpu") if is_there else None
                    for is_there in there
                ]
                for t, at, first, last in inside if values else ():
                    for plane, piece, value in zip(_PLANES, pieces, values[t]):
                        if value is None:
                            continue
                        piece[at : at + last - first] = value[first:last]
                        refuse_wrong(block.tensors[t].name, plane, piece[at : at + last - first], _NO_RUN)
                for piece in pieces:
                    if piece is not None:
                        state.take_rank_0s(piece)
                if writing is not None:
                    writing.result()
                writing = writer.submit(state.init_block, b, segment, *pieces)
                progress.add(4 * count * native.SEGMENT)
                if spool is not None:
                    spool.relieve(pieces[0].nbytes)
        writing.result()
