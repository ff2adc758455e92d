"""Top-k compression: sends only the largest gradients of a block to its update, as codes.

The rest, the residual, waits on the drives in plane R of the run, and is added to the next gradients (error feedback).
The full gradients stay until the step is decided. If an update must run again, they are encoded again with the residual
of the committed step, and so with the same bits.
"""

import os

import torch

from .. import native
from ..drives.state import Buffer
from ..native import SEGMENT, ffi, lib

_VALUES = lib.SHORE_SPARSE_BF16


def share_of(value):
    """Converts "top1%" or 0.01, as the program's --compress takes them, to a share; None and "none" to 0: no
    compression."""
    if value is None:
        return 0.0
    share = ffi.new("double *")
    if isinstance(value, bool) or lib.shore_sparse_share(str(value).encode(), share):
        raise ValueError(f"compress={value!r}: must be a share above 0 and up to 1, such as top1% or 0.01, or none")
    return share[0]


def _trained(layout):
    return [number for number, block in enumerate(layout.blocks) if block.trains]


def _code_bytes(layout, share):
    """Returns the size of the largest block's codes."""
    most = 0
    for number in _trained(layout):
        nbytes = lib.shore_sparse_bound(
            _VALUES, lib.shore_sparse_count(share, layout.elems(number)), layout.segments[number]
        )
        if nbytes >= 1 << 32:
            raise ValueError(
                f"compress: this share of {layout.blocks[number].name} would take more than 4 GiB; "
                "compress more, or not"
            )
        most = max(most, nbytes)
    return most


def memory_bytes(layout, share):
    """Returns how many bytes compression needs beside the gradients."""
    elems = max((layout.elems(number) for number in _trained(layout)), default=0)
    selected = 18 * lib.shore_sparse_count(share, elems) + (os.cpu_count() << 13)  # during selection
    return 4 * elems + 2 * (2 * elems + _code_bytes(layout, share)) + selected if share else 0


class _Codes:
    """Buffers for the codes of one block, in use from encoding until its update has ended."""

    def __init__(self, elems, code_bytes):
        self.reader = None  # number of the block whose update reads them
        self.residual, self.code = Buffer(2 * elems), Buffer(code_bytes)
        self.offsets = ffi.new("uint32_t[]", elems // SEGMENT + 1)

    def fill(self, request):
        request.form = lib.SHORE_GRADIENT_SPARSE
        request.gradient, request.offsets = self.code.pointer, self.offsets
        request.residual = ffi.cast("uint16_t *", self.residual.pointer)


class Compression:
    """Encodes the gradients of one engine."""

    def __init__(self, gradients, share, after):
        """share: of the gradients that are sent. after: how many steps send all gradients first."""
        self.gradients, self.share, self.after = gradients, share, after
        layout = gradients.streams.layout
        self.elems = max(layout.elems(number) for number in _trained(layout))
        self.sums = Buffer(4 * self.elems)
        # one is filled while an update reads the other
        self.codes = [_Codes(self.elems, _code_bytes(layout, share)) for _ in range(2)]
        self.whole = None  # buffer for the gradients of a spilled block

    def encode(self, core, number, request, values=None):
        """Fills a request with the codes of a block's gradients, after adding the committed step's residual. values:
        {index: gradient}; by default the block's. Returns 0, or SHORE_STEP_WHOLE if this step sends all gradients."""
        state = core.state
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
        native.check(
            lib.shore_sparse_encode_feedback(
                _VALUES, layout.segments[number], sums, most, codes.code.pointer, nbytes, codes.offsets, residual
            ),
            None,
            f"the gradients of {name} cannot be compressed",
        )
        codes.fill(request)
        return 0

    def _values(self, number):
        """Returns {index of the tensor: gradient} of a block, read from the drives if they were spilled."""
        block, state = self.gradients.blocks[number], self.gradients.streams.state
        if block.held:
            return block.held
        if self.whole is None:
            self.whole = Buffer(4 * self.elems)
        state.fetch(number, lib.SHORE_FETCH_SPILLED, self.whole.pointer).result()
        tensors, offsets = state.layout.blocks[number].tensors, state.layout.offsets[number]
        return {t: self.whole.view(torch.float32)[offsets[t] : offsets[t] + tensors[t].elems] for t in block.arrived}
