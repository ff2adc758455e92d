"""What the engine keeps of a parameter beside what is computed with: fp32 master, moments, gradient. To look at, and to change."""

import torch

from . import hooks, mending
from .errors import LongshoreError, NotFiniteError
from .interrupts import whole
from .native import SEGMENT, lib
from .state import Buffer

KINDS = {"master": lib.SHORE_FETCH_MASTER, "m": lib.SHORE_FETCH_M, "v": lib.SHORE_FETCH_V}


def _place(param):
    handle = param.longshore
    engine, number = handle.streams.engine(), handle.block.number
    if engine is None or engine.state is None:
        raise LongshoreError(f"{handle.name}: the engine is closed")
    return handle, engine, number, engine.layout.offsets[number][handle.index]


def _segments(engine, number, at, elems, kind):
    """(the segments of a block that hold these elements, at the committed step; the first one's number)"""
    engine.settle()
    first = at // SEGMENT
    count = (at + elems + SEGMENT - 1) // SEGMENT - first
    buffer = Buffer(count * SEGMENT * 4)
    mending.persist(engine, lambda: engine.state.fetch(number, KINDS[kind], buffer.pointer, first, count).result())
    return buffer, first


def read(param, kind):
    """A copy at the committed step, fp32, of the parameter's shape. kind: master, m or v (zeros, where the optimizer has none)."""
    _, engine, number, at = _place(param)
    buffer, first = _segments(engine, number, at, param.numel(), kind)
    return buffer.view(torch.float32)[at - first * SEGMENT:][:param.numel()].clone().view(param.shape)


def write(param, kind, value):
    """Commits another master or moment of a parameter, as a step of its own in which nothing else changes."""
    handle, engine, number, at = _place(param)
    hooks.before_step(engine.streams, handle.name)
    _refuse_begun(engine, handle.name)
    value = torch.as_tensor(value, dtype=torch.float32).expand(param.shape).reshape(-1)
    if not bool(torch.isfinite(value).all()):
        raise NotFiniteError(f"{handle.name}: a value that is not finite was not written")
    buffer, first = _segments(engine, number, at, param.numel(), kind)
    buffer.view(torch.float32)[at - first * SEGMENT:][:param.numel()] = value
    commit(engine, lambda: [(number, first, {kind: buffer, **({} if kind == "master" else {"tensor": handle.index})})])


def _masters(engine, streamed):
    """(the masters of a block, as the drives have them; of each parameter: itself, its handle, its part of them, what it would be)"""
    whole = mending.persist(engine, lambda: engine.state.masters(streamed.number))
    parts = []
    for p, handle in streamed.parameters:
        at = engine.layout.offsets[streamed.number][handle.index]
        before = whole.view(torch.float32)[at:at + p.numel()]
        parts.append((p, handle, before, before.to(streamed.storage).to(p.dtype)))
    return whole, parts


def changed_in(engine, blocks):
    """Those of blocks in memory that are not what the drives have. A change through .data has no version."""
    engine.settle()
    return [b for b in blocks if any(p._version != handle.version for p, handle in b.parameters)
            or not all(torch.equal(fetched, p.detach().reshape(-1)) for p, _, _, fetched in _masters(engine, b)[1])]


def _refuse_begun(engine, name):
    engine.gradients.hide()  # what somebody has done to p.grad counts
    begun = engine._backwards or any(block.had for block in engine.gradients.blocks)
    engine.gradients.show()
    if begun:
        raise LongshoreError(f"{name}: was changed within a step that has been begun, whose gradients would be dropped; change it before backward() "
                             "or after step(), after engine.optimizer.zero_grad(), or with write=\"temporary\" where it is put back before the step")


def write_back(engine, blocks):
    """Commits what was changed in place in these blocks: see longshore.resident()."""
    _refuse_begun(engine, blocks[0].parameters[0][1].name)
    engine.drop_gradients()
    for p, handle in (pair for streamed in blocks for pair in streamed.parameters):
        if not bool(torch.isfinite(p.detach()).all()):
            raise NotFiniteError(f"{handle.name}: holds a value that is not finite, and was not written back")

    def masters():
        for streamed in blocks:
            whole, parts = _masters(engine, streamed)
            for p, handle, before, fetched in parts:
                now = p.detach().reshape(-1)
                # what still reads the same keeps the master's lower half
                before.copy_(torch.where(fetched == now, before, now.float()))
                handle.version = p._version
            yield streamed.number, 0, {"master": whole}

    engine.settle()
    commit(engine, masters)


@whole
def commit(engine, changes):
    """Makes a step of other values. changes(): yields (block, its first segment that changes, {kind: Buffer of whole segments from there
    on}, with "tensor" where it is a moment of that one), each block once, and anew where a drive was lost meanwhile."""
    engine._settle_updates()
    try:
        written = None
        while written is None:
            written = mending.persist(engine, lambda: _write(engine, changes()))
        engine._close_step(False, {"written": written})
    except BaseException:
        engine._discard()
        engine.streams.forget()
        raise
    engine.settle()


def _write(engine, changes):
    """Names of the blocks that are other ones in the next step. None: what was written is lost with a drive, and is to be written again."""
    engine._counts_before = [list(counts) for counts in engine._counts]
    state, changed, attempt = engine.state, [], engine.state.attempt
    for number, first, values in changes:
        after = first + next(iter(values.values())).nbytes // (4 * SEGMENT)
        state.store_values(number, first, after - first, **values)
        for segment, end in ((0, first), (after, state.layout.segments[number])):
            if segment < end:
                state.carry(number, segment, end - segment).result()
        changed.append(number)
        engine.streams.changed.add(number)
    for number in range(len(engine.streams.blocks)):
        if number not in changed:
            state.carry(number).result()
            engine.streams.carried(number)
    return [engine.layout.blocks[number].name for number in changed] if attempt == state.attempt else None


def _gathered(param):
    handle, engine, number, _ = _place(param)
    block = engine.gradients.blocks[number]
    if block.spilled:  # maybe not all of it: what has come since is in memory
        engine.gradients.bring(number)
    return handle, engine, block


def gradient(param):
    """A copy of what backward() has gathered for a parameter in this step, fp32; None: there is nothing."""
    handle, _, block = _gathered(param)
    return block.held[handle.index].to(torch.float32, copy=True).view(param.shape) if handle.index in block.had else None


def set_gradient(param, value):
    """Puts another gradient in the place of what backward() has gathered for a parameter. None: it has none."""
    handle, engine, block = _gathered(param)
    if handle.index not in block.had:
        raise LongshoreError(f"{handle.name}: has no gradient yet that could be changed; call backward() first")
    if value is not None:
        value = torch.as_tensor(value, dtype=torch.float32).detach().expand(param.shape).clone()
    engine.gradients.replace(handle.block.number, handle.index, value)
    if handle.block.number in engine._early:
        engine._stale = True
