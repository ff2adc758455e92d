"""Reads and writes a parameter's fp32 master, its moments and its gradient.

Masters and moments lie on the drives. A write commits them as a step of its own, which changes nothing else."""

import torch

from ..drives import recovery
from ..drives.buffer import Buffer
from ..drives.layout import PIECE
from ..errors import LongshoreError, NotFiniteError
from ..interrupts import whole
from ..model import hooks
from ..native import SEGMENT, ffi, lib
from ..torch_internals import version_of

KINDS = {"master": lib.SHORE_FETCH_MASTER, "m": lib.SHORE_FETCH_M, "v": lib.SHORE_FETCH_V}
_NOT_WRITTEN = ", and was not written"


def _place(param):
    """Returns (handle, core, block number, offset in the block in elements) of a parameter."""
    handle = param.longshore
    handle.streams.open_state(handle.name)
    core, number = handle.streams.core(), handle.block.number
    return handle, core, number, core.layout.offsets[number][handle.index]


def _segments(core, number, at, elems, kind):
    """Reads the segments of a block that hold these elements, at the committed step. Returns (Buffer, number of the
    first segment)."""
    core.cycle.settle()
    first = at // SEGMENT
    count = (at + elems + SEGMENT - 1) // SEGMENT - first
    buffer = Buffer(count * SEGMENT * 4)
    recovery.persist(core, lambda: core.state.fetch(number, KINDS[kind], buffer.pointer, first, count).result())
    return buffer, first


def refuse_wrong(name, plane, values, more=""):
    """Raises for values that cannot be stored. plane: as `kind` of read(); more: ends the message."""
    if not bool(torch.isfinite(values).all()):
        raise NotFiniteError(f"{name}: holds a value that is not finite{more}")
    if plane == "v" and bool((values < 0).any()):
        raise LongshoreError(f"{name}: holds a negative second moment, which is one of squares{more}")


def read(param, kind):
    """Returns a copy at the committed step, in fp32 and the parameter's shape. kind: "master", "m" or "v" (zeros if the
    optimizer has none)."""
    _, core, number, at = _place(param)
    buffer, first = _segments(core, number, at, param.numel(), kind)
    return buffer.view(torch.float32)[at - first * SEGMENT :][: param.numel()].clone().view(param.shape)


def pieces(param, kind):
    """Yields the bytes of read() piece by piece. Each piece is valid until the next one."""
    _, core, number, at = _place(param)
    end = at + param.numel()
    while at < end:
        count = min(PIECE * SEGMENT, end - at)
        buffer, first = _segments(core, number, at, count, kind)
        skip = (at - first * SEGMENT) * 4
        yield memoryview(ffi.buffer(buffer.pointer, buffer.nbytes))[skip : skip + count * 4]
        at += count


def write(param, kind, value):
    """Commits a new master or moment of a parameter, as a step of its own, which changes nothing else."""
    handle, core, number, at = _place(param)
    _refuse_begun(core, handle.name)
    value = torch.as_tensor(value, dtype=torch.float32, device="cpu").expand(param.shape).reshape(-1)
    refuse_wrong(handle.name, kind, value, _NOT_WRITTEN)
    buffer, first = _segments(core, number, at, param.numel(), kind)
    buffer.view(torch.float32)[at - first * SEGMENT :][: param.numel()] = value
    values = {kind: buffer, "tensors": [] if kind == "master" else [handle.index]}
    commit(core, lambda: [(number, first, buffer.nbytes // (4 * SEGMENT), values)])


def _masters(core, streamed):
    """Reads the masters of a block from the drives. Returns (Buffer of all, [(parameter, its handle, its masters, the
    value that modules compute with)])."""
    whole = recovery.persist(core, lambda: core.state.masters(streamed.number))
    parts = []
    for p, handle in streamed.parameters:
        at = core.layout.offsets[streamed.number][handle.index]
        before = whole.view(torch.float32)[at : at + p.numel()]
        parts.append((p, handle, before, _fetched(before, streamed.storage).to(p.dtype)))
    return whole, parts


def _fetched(masters, storage):
    """What a fetch of fp32 masters gives, in fp32. In bf16 that is their upper half, of which the lower one is a signed
    rest: half-way cases are rounded up."""
    if storage == torch.float32:
        return masters
    return ((masters.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)


def _set_masters(masters, fetched, now):
    """Sets masters to new values, which were fetched as these. An unchanged element keeps the lower half of its own."""
    masters.copy_(torch.where(fetched == now, masters, now.float()))


def changed_in(core, blocks):
    """Returns the blocks in memory that differ from the drives. It compares values too, since a change through .data
    counts no version."""
    core.cycle.settle()

    def is_changed(b):
        if any(version_of(p) != handle.version for p, handle in b.parameters):
            return True
        return any(not torch.equal(was, p.detach().cpu().reshape(-1)) for p, _, _, was in _masters(core, b)[1])

    changed = core.state.meet("resident(write=True)", [b.number for b in blocks if is_changed(b)])[0]  # rank 0's count
    return [b for b in blocks if b.number in changed]


@whole
def amend(core, blocks):
    """Makes changes of parameters in memory a part of the last step, whose commit has not begun: a write of the changed
    segments. Returns False if that step takes none."""
    if not core.cycle.takes_changes() or core.streams.device is not None:
        return False
    changed = {}  # {block: (its masters, first and last changed element)}
    for streamed in blocks:
        core.gradients.step.tell(lib.shore_step_wait, streamed.number)
        core.gradients.step.tell(lib.shore_step_forget_state, streamed.number)  # which waits until it is written
        try:
            masters, parts = _masters(core, streamed)
        except LongshoreError:
            core.cycle.settle()  # raises the cause, if the block's update failed
            raise
        for p, handle, before, fetched in parts:
            core.state.take_rank_0s(p.detach())
            now = p.detach().reshape(-1)
            if torch.equal(fetched, now):
                handle.version = version_of(p)
                continue
            refuse_wrong(handle.name, "master", now, _NOT_WRITTEN)
            _set_masters(before, fetched, now)
            at = core.layout.offsets[streamed.number][handle.index]
            first, last = changed.get(streamed, (None, at, at))[1:]
            changed[streamed] = masters, min(first, at), max(last, at + p.numel() - 1)
    if changed:
        _refuse_begun(core, blocks[0].parameters[0][1].name)
    core.state.meet("resident(write=True)")  # nobody reads the values before any more
    try:
        for streamed, (masters, first, last) in changed.items():
            _amend_block(core, streamed, masters, first // SEGMENT, last // SEGMENT + 1)
    except LongshoreError:
        core.streams.forget()
        core.cycle.unmake()  # the step has a part of them
        raise
    if changed:
        core.cycle.changed(streamed.number for streamed in changed)
    core.state.meet("resident(write=True)")  # all have written theirs
    return True


def _amend_block(core, streamed, masters, segment, end):
    """Stores segments of a block's masters into the last step, and shows what a fetch of them gives."""
    part = Buffer((end - segment) * SEGMENT * 4)
    masters = masters.view(torch.float32)
    part.view(torch.float32).copy_(masters[segment * SEGMENT : end * SEGMENT])
    core.cycle.store_masters(streamed.number, segment, end - segment, part)
    streamed.updates += 1
    for (p, handle), at in zip(streamed.parameters, core.layout.offsets[streamed.number]):
        if streamed.widens:
            with torch.no_grad():
                p.copy_(_fetched(masters[at : at + p.numel()], streamed.storage).view(p.shape))
        handle.version = version_of(p)
    core.streams.places.detach_views(streamed.parameters)


def begun(core):
    """Whether a step has been begun: whether there are gradients that are not zero."""
    core.gradients.look()
    return bool(core.cycle.backwards) or core.gradients.has_more_than_zeros()


def _refuse_begun(core, name):
    hooks.before_step(core.streams, name)
    if begun(core):
        raise LongshoreError(
            f"{name}: was changed in the middle of a step, whose gradients this would drop; change "
            "it before backward() or after step(), after engine.optimizer.zero_grad(), or with "
            'write="temporary" where it is put back before the step'
        )


def write_back(core, blocks, value_of=torch.Tensor.detach):
    """Commits new values of parameters in these blocks, by default those in memory: see longshore.resident().
    value_of(p): the value, or None to keep the old one."""
    _refuse_begun(core, blocks[0].parameters[0][1].name)
    core.cycle.drop(keep=True)
    for p, handle in (pair for streamed in blocks for pair in streamed.parameters):
        value = value_of(p)
        if value is not None:
            refuse_wrong(handle.name, "master", value, _NOT_WRITTEN)

    def masters():
        for streamed in blocks:
            whole, parts = _masters(core, streamed)
            for p, handle, before, fetched in parts:
                value = value_of(p)
                now = fetched if value is None else value.reshape(-1).to("cpu", p.dtype)
                _set_masters(before, fetched, now)
                handle.version = version_of(p)
            yield streamed.number, 0, core.layout.segments[streamed.number], {"master": whole}

    core.cycle.settle()
    commit(core, masters)


@whole
def commit(core, changes, said=None, counts=None):
    """Makes a step of given values.

    changes(): yields, in order, (block, first changed segment, number of segments, {kind: Buffer, "tensors": indices of
    tensors whose moments change}); it is called again if a drive was lost. said: the metrics; by default the names of
    the blocks. counts: the new number of updates of each tensor."""
    cycle = core.cycle
    core.state.meet("a change of parameters")
    try:
        with cycle.changing(counts):
            changed = None
            while changed is None:
                changed = recovery.persist(core, lambda: _write(core, changes()))
            cycle.close(said or {"written": [core.layout.blocks[number].name for number in changed]}, changed)
    except BaseException:
        core.streams.forget()
        raise
    cycle.settle()


def _write(core, changes):
    """Writes the changes, and carries everything else over. Returns the numbers of the changed blocks; None: a drive
    was lost with them, and they must be written again."""
    state, changed, attempt = core.state, {}, core.state.attempt  # changed: {block: segments done}

    def carry(number, end):
        if changed[number] < end:
            state.carry(number, changed[number], end - changed[number]).result()

    for number, first, count, values in changes:
        changed.setdefault(number, 0)
        carry(number, first)
        state.store_values(number, first, count, **values)
        changed[number] = first + count
    for number in range(len(core.streams.blocks)):
        if number in changed:
            carry(number, state.layout.segments[number])
        else:
            state.carry(number).result()
    return list(changed) if attempt == state.attempt else None


def gradient(param):
    """Returns a copy of a parameter's gradient in this step, in fp32; None if it has none."""
    gradients = _place(param)[1].gradients
    gradients.look()
    if not gradients.has(param):
        return None
    return gradients.value_of(param).to(param.device, torch.float32, copy=True).view(param.shape)


def set_gradient(param, value):
    """Replaces a parameter's gradient in this step. value: None removes it."""
    handle, core, _, _ = _place(param)
    core.gradients.look()
    if not core.gradients.has(param):
        raise LongshoreError(f"{handle.name}: has no gradient yet; call backward() first")
    if value is not None:
        value = torch.as_tensor(value, dtype=torch.float32, device="cpu").expand(param.shape)
    core.gradients.change(param, value)
    core.gradients.shown.renew(core.gradients, param)
