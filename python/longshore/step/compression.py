"""Top-k compression: of a block's gradients only the largest go to UPDATE, as codes. What is left out waits on the
drives, in plane R of the run, and is added to the next gradients (error feedback).

The gradients stay whole until the step is decided: where UPDATE has to run again, they are encoded again, with the
residual of the committed step and so with the same bits.
"""

import os

import torch

from .. import native
from ..native import SEGMENT, ffi, lib
from ..run.state import Buffer

_VALUES = lib.SHORE_SPARSE_BF16


def share_of(value):
    """"top1%" or 0.01, as the program's --compress takes them, as a share; 0 for None and "none": gradients go
    whole."""
    if value is None:
        return 0.0
    share = ffi.new("double *")
    if isinstance(value, bool) or lib.shore_sparse_share(str(value).encode(), share):
        raise ValueError(f"compress={value!r}: is a share above 0 and up to 1 such as top1% or 0.01, or none")
    return share[0]


def _trained(layout):
    return [number for number, block in enumerate(layout.blocks) if block.trains]


def _code_bytes(layout, share):
    """Of the block whose codes take most."""
    most = 0
    for number in _trained(layout):
        nbytes = lib.shore_sparse_bound(_VALUES, lib.shore_sparse_count(share, layout.elems(number)),
                                        layout.segments[number])
        if nbytes >= 1 << 32:
            raise ValueError(f"compress: so much of {layout.blocks[number].name} would take more than 4 GiB; compress "
                             "more, or not")
        most = max(most, nbytes)
    return most


def memory_bytes(layout, share):
    """What compressing takes beside the gradients."""
    elems = max((layout.elems(number) for number in _trained(layout)), default=0)
    selected = 18 * lib.shore_sparse_count(share, elems) + (os.cpu_count() << 13)  # while it selects
    return 4 * elems + 2 * (2 * elems + _code_bytes(layout, share)) + selected if share else 0


class _Codes:
    """Of one block at a time, from when it is encoded until its update has ended."""

    def __init__(self, elems, code_bytes):
        self.reader = None  # number of the block whose update reads them
        self.residual, self.code = Buffer(2 * elems), Buffer(code_bytes)
        self.offsets = ffi.new("uint32_t[]", elems // SEGMENT + 1)

    def fill(self, request):
        request.form = lib.SHORE_GRADIENT_SPARSE
        request.gradient, request.offsets = self.code.pointer, self.offsets
        request.residual = ffi.cast("uint16_t *", self.residual.pointer)


class Compression:
    def __init__(self, gradients, share, after):
        """after: steps with whole gradients first."""
        self.gradients, self.share, self.after = gradients, share, after
        layout = gradients.streams.layout
        self.elems = max(layout.elems(number) for number in _trained(layout))
        self.sums = Buffer(4 * self.elems)
        # one is encoded while the other is read
        self.codes = [_Codes(self.elems, _code_bytes(layout, share)) for _ in range(2)]
        self.whole = None  # of a block that was put aside

    def encode(self, engine, number, request, values=None):
        """Fills a request with the codes of a block's gradients (of these {index: gradient}). The step before is
        committed: its residual is added. Returns SHORE_STEP_WHOLE where they go whole in this step."""
        state = engine.state
        if state.step < self.after:
            return lib.SHORE_STEP_WHOLE
        codes = self.codes[0]
        self.codes.reverse()
        if codes.reader is not None:
            self.gradients.step.tell(lib.shore_step_wait, codes.reader)
        codes.reader = number
        layout, name = state.layout, state.layout.blocks[number].name
        state.fetch(number, lib.SHORE_FETCH_R, codes.residual.pointer).result()
        values = values or self._values(number)
        items, count = state.gather(number, values)
        sums, residual = ffi.cast("float *", self.sums.pointer), ffi.cast("uint16_t *", codes.residual.pointer)
        lib.shore_sparse_add_residual(layout.segments[number], items, count, sums, residual)
        most = lib.shore_sparse_count(self.share, sum(g.numel() for g in values.values()))
        nbytes = ffi.new("uint64_t *", codes.code.nbytes)
        native.check(lib.shore_sparse_encode_feedback(_VALUES, layout.segments[number], sums, most, codes.code.pointer,
                                                      nbytes, codes.offsets,
                                                      residual), None, f"the gradients of {name} cannot be compressed")
        codes.fill(request)
        return 0

    def _values(self, number):
        """{index of the tensor: gradient} of those that got one."""
        block, state = self.gradients.blocks[number], self.gradients.state
        if block.held:
            return block.held
        if self.whole is None:
            self.whole = Buffer(4 * self.elems)
        state.fetch(number, lib.SHORE_FETCH_SPILLED, self.whole.pointer).result()
        tensors, offsets = state.layout.blocks[number].tensors, state.layout.offsets[number]
        return {t: self.whole.view(torch.float32)[offsets[t]:offsets[t] + tensors[t].elems] for t in block.arrived}
