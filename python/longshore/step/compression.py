"""Top-k compression: sends only the largest gradients of a block to its update, as codes.

The rest, the residual, waits on the drives in plane R of the run, and is added to the next gradients (error feedback).
The full gradients stay until the step is decided. If an update must run again, they are encoded again with the residual
of the committed step, and so with the same bits.
"""

import math

from .. import native
from ..drives.buffer import Buffer
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


def _most(layout, share):
    """Returns the most elements of a block that trains, bytes of its codes, and bytes that encoding works in."""
    size, most = ffi.new("struct shore_sparse_size *"), (0, 0, 0)
    for number, block in enumerate(layout.blocks):
        if block.trains:
            native.call(lib.shore_sparse_size_of, _VALUES, share, layout.c.blocks + number, 0, size)
            most = tuple(map(max, most, (layout.elems(number), size.code_bytes, size.work_bytes)))
    return most


def memory_bytes(layout, share):
    """Returns how many bytes compression needs beside the gradients."""
    elems, code_bytes, work_bytes = _most(layout, share) if share else (0, 0, 0)
    return 4 * elems + 2 * (2 * elems + code_bytes) + work_bytes


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
        elems, code_bytes, work_bytes = _most(gradients.streams.layout, share)
        self.sums, self.work = Buffer(4 * elems), Buffer(work_bytes)
        # one is filled while an update reads the other
        self.codes = [_Codes(elems, code_bytes) for _ in range(2)]
        self.energy = {}  # by block: squared sums of its last gradients and residual, and of what was sent of them

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
        values = values or self.gradients.values(number)
        items, count = state.gather(number, values)
        sums, residual = ffi.cast("float *", self.sums.pointer), ffi.cast("uint16_t *", codes.residual.pointer)
        lib.shore_sparse_add_residual(layout.segments[number], items, count, sums, residual)
        most = lib.shore_sparse_count(self.share, sum(g.numel() for g in values.values()))
        nbytes, segments = ffi.new("uint64_t *", codes.code.nbytes), layout.segments[number]
        energy, sent = ffi.new("double[]", segments), ffi.new("double[]", segments)
        code = codes.code.pointer, nbytes, codes.offsets
        work = self.work.pointer, self.work.nbytes
        native.check(
            lib.shore_sparse_encode_feedback(_VALUES, segments, sums, most, *code, residual, *work, energy, sent),
            None,
            f"the gradients of {name} cannot be compressed",
        )
        self.energy[number] = sum(energy), sum(sent)
        codes.fill(request)
        return 0

    def dropped(self, changed):
        """Returns the share of the energy of a step's gradients and residual that its codes leave out; NaN: it has no
        codes. changed: numbers of the blocks that it changes."""
        known = [self.energy[number] for number in changed if number in self.energy]
        if not known:
            return math.nan
        energy, sent = map(sum, zip(*known))
        return max(0.0, 1 - sent / energy) if energy else 0.0
