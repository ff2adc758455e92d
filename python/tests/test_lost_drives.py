"""Drives of another host whose link breaks at any instant: training goes on with the same bits, or says how."""

import contextlib
import os
import queue
import random
import signal
import threading
import time
from unittest import mock

import pytest

import longshore
from lives import kept, make, train
from longshore.drives.state import State
from longshore.model import activations
from longshore.run import memory_plan
from test_program import PROGRAM

pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="the program is not installed"),
    pytest.mark.usefixtures("one_thread"),
]
STEPS = 6


class FarSide:
    """A stand-in for ssh, whose servers can be killed."""

    def __init__(self, place, monkeypatch):
        self.pids, self.down, self.losses = place / "pids", place / "down", 0
        rsh = place / "rsh"
        rsh.write_text(
            f"#!/bin/sh\n[ ! -e {self.down} ] || exit 255\nshift\necho $$ >>{self.pids}\nexec '{PROGRAM}' "
            "drive serve --stdio\n"
        )
        rsh.chmod(0o755)
        monkeypatch.setenv("LONGSHORE_RSH", str(rsh))
        for name in ("far", "near"):
            (place / name).mkdir()
        self.drives = [f"ssh://far{place / 'far'}"]

    def kill(self):
        before, serves = self.losses, b"drive\0serve"
        for pid in map(int, self.pids.read_text().split()):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                if serves in f.read():
                    os.kill(pid, signal.SIGKILL)
                    self.losses = before + 1


@pytest.fixture
def far(tmp_path, monkeypatch):
    return FarSide(tmp_path, monkeypatch)


def undisturbed(tmp_path, seed, slots=None, together=False, steps=STEPS, **how):
    (tmp_path / "local").mkdir()
    with kept(slots), make(tmp_path / "whole", [str(tmp_path / "local")], seed, **how) as engine:
        return train(engine, steps, seed, together)


def break_at(engine, where, far):
    """Kills it at a place of the step after the next one, and of each second one from there."""
    layer, turns = engine.module.transformer.h[1], [0]

    def due():
        turns[0] += 1
        return turns[0] % 4 == 3

    if where == "forward":
        layer.register_forward_pre_hook(lambda module, args: far.kill() if due() else None)
    elif where == "backward":
        layer.mlp.register_full_backward_hook(lambda module, *grads: far.kill() if due() else None)
    return (
        (lambda engine: far.kill() if due() else None)
        if where == "stepped"
        else (lambda engine: (engine.settle(), far.kill() if due() else None))
        if where == "settled"
        else lambda engine: None
    )


@pytest.mark.parametrize(
    "how", [{}, {"compress": "top5%", "compress_after": 2}, {"moments": "8bit"}, {"storage": "bf16"}], ids=str
)
@pytest.mark.parametrize("where", ["forward", "backward", "stepped", "settled"])
def test_the_step_goes_on(where, how, far, tmp_path, seed):
    want = undisturbed(tmp_path, seed, **how)
    with make(tmp_path / "run", far.drives, seed, **how) as engine:
        assert train(engine, STEPS, seed, after=break_at(engine, where, far)) == want
    assert far.losses and longshore.verify(tmp_path / "run") == want


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("how", [{}, {"compress": "top5%", "compress_after": 2}, {"moments": "8bit"}], ids=str)
def test_at_random_instants(how, together, far, tmp_path, seed):
    """At one instant of each step, or of the next: a busy machine, where all takes longer, gets on as well."""
    steps, rnd, begun, killed = 25, random.Random(seed), queue.Queue(), queue.Queue()
    began = [time.monotonic()]
    want = undisturbed(tmp_path, seed, None, together, steps, **how)
    usual = (time.monotonic() - began[0]) / steps

    def killer():
        for seconds in iter(begun.get, None):  # that the step before has taken, with its recovery
            time.sleep(rnd.uniform(0, 1.5) * rnd.choice([usual, seconds]))
            far.kill()
            killed.put(None)

    def after(engine):
        if engine.step_number > 1:
            killed.get()  # those of the step before
        now = time.monotonic()
        begun.put(now - began[-1])
        began.append(now)

    with make(tmp_path / "run", far.drives + [str(tmp_path / "near")], seed, **how) as engine:
        thread = threading.Thread(target=killer)
        thread.start()
        try:
            digest = train(engine, steps, seed, together, after)
        finally:
            begun.put(None)
            thread.join()
    assert digest == want and far.losses > 2
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == steps


def test_gradients_on_the_drives_are_made_again(far, tmp_path, seed):
    """With no room for gradients in memory those of the step are lost with the link; what is committed is not."""
    want = undisturbed(tmp_path, seed, slots=1)
    with kept(1), make(tmp_path / "run", far.drives, seed) as engine:
        with pytest.raises(longshore.LongshoreError, match="is back.*(make the step again|the engine is at step)"):
            train(engine, STEPS, seed, after=break_at(engine, "backward", far))
        assert 0 < engine.step_number < STEPS
    with kept(1), longshore.resume(tmp_path / "run") as engine:
        assert train(engine, STEPS, seed) == want


def test_they_do_not_come_back(far, tmp_path, seed):
    want = undisturbed(tmp_path, seed)
    engine = make(tmp_path / "run", far.drives, seed)
    engine.reconnect_timeout = 0.5

    def gone(engine):
        if engine.step_number == 2:
            far.down.touch()
            far.kill()

    with pytest.raises(longshore.LongshoreError, match="gave up after .* go on with: longshore.resume"):
        train(engine, STEPS, seed, after=gone)
    for use in engine.settle, engine.digest, lambda: engine.snapshot("x"):
        with pytest.raises(longshore.LongshoreError, match="gave up|closed the connection|is gone"):
            use()
    with contextlib.suppress(longshore.LongshoreError):
        engine.close()
    assert engine._core.state is None
    far.down.unlink()
    with longshore.resume(tmp_path / "run") as engine:
        assert 1 <= engine.step_number <= 2
        assert train(engine, STEPS, seed) == want


def _save(engine):
    engine.save_pretrained(
        os.path.join(os.path.dirname(engine._core.state.path), f"out{engine.step_number}"), moments=True
    )


def _weight(engine):
    return engine.module.transformer.h[0].mlp.c_fc.weight


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e.snapshot(),
        lambda e: e.digest(),
        _save,
        lambda e: _weight(e).norm(),
        lambda e: e.module.state_dict(),
        lambda e: longshore.step.parameter_state.read(_weight(e), "m"),
        lambda e: e.drop_gradients(),
        lambda e: e.settle(),
    ],
    ids=["snapshot", "digest", "save", "value", "all", "moment", "drop", "settle"],
)
@pytest.mark.parametrize("settled", [True, False])
def test_between_steps(use, settled, far, tmp_path, seed):
    want = undisturbed(tmp_path, seed)

    def between(engine):
        if engine.step_number % 2:
            if settled:
                engine.settle()
            far.kill()
            use(engine)

    with make(tmp_path / "run", far.drives, seed) as engine:
        assert train(engine, STEPS, seed, after=between) == want
    assert far.losses == STEPS // 2


@pytest.mark.parametrize("when", ["settled", "before", "within", "after"])
def test_a_write_among_them(when, far, tmp_path, seed):
    """Values that are written by hand are a step of their own, which is whole or not made, or part of the last one."""

    def write(engine, lost):
        if engine.step_number == 3:
            if when == "settled":
                engine.settle()  # before that, it becomes part of the step
            if lost and when in ("settled", "before"):
                far.kill()
            with longshore.resident(_weight(engine), write=True):
                _weight(engine).data.mul_(0.5)
                if lost and when == "within":
                    far.kill()
            if lost and when == "after":
                far.kill()

    (tmp_path / "local").mkdir()
    with make(tmp_path / "whole", [str(tmp_path / "local")], seed) as engine:
        want = train(engine, STEPS, seed, after=lambda e: write(e, False))
    with make(tmp_path / "run", far.drives, seed) as engine:
        assert train(engine, STEPS, seed, after=lambda e: write(e, True)) == want
    assert far.losses and longshore.verify(tmp_path / "run") == want


@pytest.mark.parametrize(
    "where,settled",
    [("store_values", True), ("carry", True), ("masters", True), ("store_values", False), ("masters", False)],
)
def test_a_write_is_made_again(where, settled, far, tmp_path, seed):
    """Of what was written of several blocks nothing is left out, whenever the link breaks within."""

    def write(engine, lost):
        call, turns = getattr(State, where), []

        def counted(state, *args, **how):
            turns.append(None)
            if lost and len(turns) in (2, 7):
                far.kill()
            return call(state, *args, **how)

        if engine.step_number == 3:
            if settled:
                engine.settle()
            with mock.patch.object(State, where, counted), longshore.resident(engine.module.transformer.h, write=True):
                for p in engine.module.transformer.h.parameters():
                    p.data.mul_(0.5)

    (tmp_path / "local").mkdir()
    with make(tmp_path / "whole", [str(tmp_path / "local")], seed) as engine:
        want = train(engine, STEPS, seed, after=lambda e: write(e, False))
    with make(tmp_path / "run", far.drives, seed) as engine:
        assert train(engine, STEPS, seed, after=lambda e: write(e, True)) == want
    assert far.losses and longshore.verify(tmp_path / "run") == want


@pytest.mark.parametrize("slots", [None, 1])
@pytest.mark.parametrize("where", ["forward", "backward", "stepped", "settled"])
def test_activations_on_them(where, slots, far, tmp_path, seed, monkeypatch):
    """What forward has saved there may be gone with the link: an exception says so, and nothing else is lost."""
    monkeypatch.setattr(activations, "LEAST_BYTES", 1024)
    monkeypatch.setattr(memory_plan, "POOL_BYTES", (64 << 10, 64 << 10))
    want, came = undisturbed(tmp_path, seed, slots), 0
    with kept(slots):
        engine, digest = make(tmp_path / "run", far.drives, seed, activations="drives", activation_room="64MiB"), None
        while digest is None:
            try:
                digest = train(engine, STEPS, seed, after=break_at(engine, where, far))
            except longshore.LongshoreError as said:
                assert far.losses < 20 and ("again" in str(said) or "is back" in str(said))
            came += engine._core.streams.activations.counts.read_bytes
            engine.close()
            engine = longshore.resume(tmp_path / "run")
        engine.close()
    assert digest == want and came and far.losses
