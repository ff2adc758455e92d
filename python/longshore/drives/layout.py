"""Blocks of tensors, and where the tensors of each block lie on drives."""

import math
from collections import Counter
from dataclasses import dataclass, field

import torch

from .. import native
from ..errors import LongshoreError
from ..native import ffi, lib

DTYPES = {
    torch.float32: lib.SHORE_DTYPE_FP32,
    torch.bfloat16: lib.SHORE_DTYPE_BF16,
    torch.float16: lib.SHORE_DTYPE_FP16,
}
_TORCH = {number: dtype for dtype, number in DTYPES.items()}

PIECE = max(1, (16 << 20) // (4 * native.SEGMENT))  # segments in one read or write: 16 MiB of fp32


@dataclass
class Tensor:
    """A parameter. ``name``: its first one in named_parameters(); ``names``: all of them, if it is tied."""

    name: str
    shape: tuple
    dtype: torch.dtype
    trains: bool
    names: list = field(default_factory=list)

    @property
    def elems(self):
        return math.prod(self.shape)


@dataclass
class Block:
    """Tensors that are fetched, evicted and updated together."""

    name: str
    tensors: list
    layer: bool  # whether it is a repeated layer, which shares slots with others
    trains: bool
    module: str = ""  # the name of its module
    buffers: bool = False  # whether it holds buffers of modules, which are not fetched
    may_share: bool = False  # whether it may share slots as a layer does, where memory is short

    @property
    def dtype(self):
        """The dtype of its parameters."""
        return self.tensors[0].dtype


class Layout:
    """Where the tensors of each block lie.

    Each tensor is a separate parameter group of its block, so that each step can update it or leave it out. Frozen
    blocks are stored once, without moments or a second slot.
    """

    def __init__(self, blocks):
        self.blocks = blocks
        self.c = _make_layout(blocks)
        self.segments = [self.c.blocks[b].segments for b in range(len(blocks))]
        self.offsets = [
            [self.c.blocks[b].tensors[t].offset_elems for t in range(len(block.tensors))]
            for b, block in enumerate(blocks)
        ]

    def elems(self, block):
        return self.segments[block] * native.SEGMENT

    def nbytes(self, block):
        """Bytes of a block's parameters in memory."""
        return self.elems(block) * self.blocks[block].dtype.itemsize

    def fetched(self, block, compute, storage):
        """The dtype in which a block is fetched. compute: the dtype of most parameters, fetched as storage."""
        dtype = self.blocks[block].dtype
        return storage if dtype == compute else dtype

    def handed_back(self, compute, storage):
        """The dtype in which updates hand parameters back: that in which most trained elements are fetched."""
        elems = Counter({storage: 0})
        for b, block in enumerate(self.blocks):
            elems[self.fetched(b, compute, storage)] += self.elems(b) * block.trains
        return max(elems, key=lambda dtype: elems[dtype])

    def page_bytes(self, block, compute, storage):
        """Bytes of a block as it is fetched."""
        return self.elems(block) * self.fetched(block, compute, storage).itemsize

    def spans(self, block, segment, count):
        """The first and last + 1 of the elements of each tensor that are in these segments of a block."""
        begin, end = segment * native.SEGMENT, (segment + count) * native.SEGMENT
        return [
            (min(max(begin - at, 0), tensor.elems), min(max(end - at, 0), tensor.elems))
            for tensor, at in zip(self.blocks[block].tensors, self.offsets[block])
        ]

    def pieces(self, block, segment=0, count=None):
        """Yields (first segment, number of segments, tensors) for pieces of at most PIECE segments of these of a block,
        by default of all.

        Each tensor is (index, offset in the piece, first and last + 1 of its elements that are in the piece); they
        count from its first one that is in the segments.
        """
        count = self.segments[block] if count is None else count
        starts = [first for first, _ in self.spans(block, segment, count)]
        for first in range(segment, segment + count, PIECE):
            pieces = min(PIECE, segment + count - first)
            begin, end = first * native.SEGMENT, (first + pieces) * native.SEGMENT
            inside = []
            for t, tensor in enumerate(self.blocks[block].tensors):
                at = self.offsets[block][t]
                a, b = max(at, begin), min(at + tensor.elems, end)
                if a < b:
                    inside.append((t, a - begin, a - at - starts[t], b - at - starts[t]))
            yield first, pieces, inside

    def layers(self):
        """Returns the numbers of the blocks of each layer (frozen and trained, of each dtype), the largest first.
        Blocks that may share are layers of their own; the head comes after the layers, as in forward."""
        layers = {}
        rest = [n for n, block in enumerate(self.blocks) if block.may_share]
        repeated = [n for n in range(len(self.blocks)) if n not in rest]
        for number in repeated + (rest[::-1] if any(self.blocks[n].layer for n in repeated) else rest):
            if self.blocks[number].layer:
                layers.setdefault(self.blocks[number].module, []).append(number)
        return [sorted(numbers, key=self.elems, reverse=True) for numbers in layers.values()]

    def share_rest(self):
        """Lets embeddings, heads and the like share the slots of layers. Returns False if none are left that can."""
        more = [block for block in self.blocks if block.may_share and not block.layer]
        for block in more:
            block.layer = True
        return bool(more)

    def sides(self):
        """The parts of a layer slot, each as the list of blocks that use it in turn: the i-th block of one dtype of
        every layer, so that they have similar sizes."""
        sides = {}
        for numbers in self.layers():
            count = Counter()
            for b in numbers:
                dtype = self.blocks[b].dtype
                sides.setdefault((dtype, count[dtype]), []).append(b)
                count[dtype] += 1
        return list(sides.values())

    def sides_of_all(self):
        """The same for one slot that blocks outside of layers share, too, if they may."""
        sides = self.sides()
        for b, block in enumerate(self.blocks):
            if block.may_share and not block.layer:
                own = next((side for side in sides if self.blocks[side[0]].dtype == block.dtype), None)
                if own is None:
                    sides.append([b])
                else:
                    own.append(b)
        return sides

    def memory_bytes(self, slots, bytes_of=None):
        """Bytes of parameters in memory with this number of layer slots; 0: one, which blocks outside of layers share.
        bytes_of(block): its bytes, nbytes() by default."""
        bytes_of = bytes_of or self.nbytes
        sides = self.sides() if slots else self.sides_of_all()
        apart = {b for b, block in enumerate(self.blocks) if not block.buffers}.difference(*sides)
        slot = sum(max(map(bytes_of, side)) for side in sides)
        return slot * max(1, min(slots, len(self.layers()))) + sum(map(bytes_of, apart))

    def continue_as(self, other, run):
        """Replaces the blocks by those of another layout, which know the model. Raises LongshoreError if they differ.

        run: named in the message.
        """
        mine = [(t.name, t.shape) for block in self.blocks for t in block.tensors]
        theirs = [(t.name, t.shape) for block in other.blocks for t in block.tensors]
        wrong = [name for (name, shape), there in zip(mine, theirs) if (name, shape) != there]
        if wrong or len(mine) != len(theirs) or self.offsets != other.offsets:
            raise LongshoreError(
                f"{run}: is of another model: {wrong[0] if wrong else f'{len(mine)} tensors instead of {len(theirs)}'}"
            )
        self.blocks = other.blocks

    def shapes(self):
        """(struct shore_shape array for shore_run_create(), the objects that it points to)."""
        tensors = [t for block in self.blocks for t in block.tensors]
        out, keep = ffi.new("struct shore_shape[]", len(tensors)), []
        for shape, tensor in zip(out, tensors):
            names = [
                ffi.new("char[]", n.encode()) for n in [tensor.name] + [n for n in tensor.names if n != tensor.name]
            ]
            tied = ffi.new("char *[]", names[1:])
            keep += [names, tied]
            shape.name, shape.ntied, shape.tied = names[0], len(names) - 1, tied
            shape.rank, shape.dtype = len(tensor.shape), DTYPES[tensor.dtype]
            shape.dims[0 : len(tensor.shape)] = tensor.shape
        return out, keep

    @classmethod
    def of_run(cls, run):
        """A copy of an open run's layout."""
        c = lib.shore_run_layout(run)
        count = ffi.new("uint32_t *")
        shapes = lib.shore_run_shapes(run, count)
        by_place = {(shapes[i].block, shapes[i].tensor): shapes[i] for i in range(count[0])}
        blocks = []
        for b in range(c.nblocks):
            tensors = []
            for s in (by_place[b, t] for t in range(c.blocks[b].ntensors)):
                names = [native.text(name) for name in (s.name, *(s.tied[i] for i in range(s.ntied)))]
                shape = tuple(s.dims[i] for i in range(s.rank))
                tensors.append(Tensor(names[0], shape, _TORCH[s.dtype], True, names))
            blocks.append(Block(native.text(c.blocks[b].name), tensors, False, True))
        return cls(blocks)


def _make_layout(blocks):
    """The engine's struct shore_layout for blocks."""
    keep = []
    specs = ffi.new("struct shore_block_spec[]", len(blocks))
    for spec, block in zip(specs, blocks):
        tensors = ffi.new("struct shore_tensor_spec[]", len(block.tensors))
        for t, tensor in enumerate(block.tensors):
            name = ffi.new("char[]", tensor.name.encode())
            keep.append(name)
            tensors[t].name, tensors[t].elems = name, tensor.elems
            tensors[t].group = t if block.trains or block.buffers else lib.SHORE_GROUP_RESTS
        name = ffi.new("char[]", block.name.encode())
        keep += [name, tensors]
        spec.name, spec.tensors, spec.ntensors = name, tensors, len(block.tensors)
    out = ffi.new("struct shore_layout **")
    native.check(lib.shore_layout_make(specs, len(blocks), out), None, "the layout of the model")
    return ffi.gc(out[0], lib.shore_layout_free)
