"""Processes that are forked off: they leave the run alone, and end as they like."""

import os
import signal
import subprocess
import sys

import pytest
import torch

import longshore
from longshore import native
from longshore.drives.state import State
from models import HANGS_SECONDS, gpt2, tokens
from test_loop import engine_for


class Numbers(torch.utils.data.Dataset):
    """Asks in vain for a parameter, in a process of its own."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 4

    def __getitem__(self, i):
        try:
            with torch.no_grad():
                self.model.transformer.h[0].mlp.c_fc.weight.sum()
            return torch.tensor(-1)
        except longshore.LongshoreError as said:
            assert "transformer.h.0.mlp.c_fc.weight" in str(said) and "forked" in str(said)
            return tokens(4, length=6)[i]["input_ids"]


def test_forked_loaders_leave_the_run_alone(tmp_path, seed, monkeypatch):
    with engine_for(gpt2(layers=2), tmp_path, slots=1, gradient_bytes=0, monkeypatch=monkeypatch) as engine:
        for x in torch.utils.data.DataLoader(Numbers(engine.module), num_workers=2, multiprocessing_context="fork"):
            engine.backward(engine(input_ids=x[0], labels=x[0]).loss)
            engine.step()
        assert engine.step_number == 4
        digest = engine.digest()
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.digest() == digest


def test_a_child_closes_what_is_the_runs_alone(tmp_path, seed, monkeypatch):
    """A file that another thread opens while the run is being opened is not the run's; the run stays locked."""
    with engine_for(gpt2(layers=2), tmp_path):
        pass
    there, call, others = _descriptors(), native.call, []

    def opening(*arguments, **named):
        others.append(os.open(tmp_path / "others", os.O_CREAT | os.O_RDWR))
        return call(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(native, "call", opening)
        engine = longshore.resume(tmp_path / "run")
    with engine:
        if (child := os.fork()) == 0:
            left = _descriptors() - there
            named = [os.readlink(f"/proc/self/fd/{fd}") for fd in left - set(others)]
            os._exit(any(str(tmp_path) in name or "io_uring" in name for name in named) or not left.issuperset(others))
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(longshore.BusyError):
            State.open(tmp_path / "run")
        batch = tokens(1, length=6)[0]
        engine.backward(engine(**batch).loss)
        engine.step()
    for fd in others:
        os.close(fd)


def _descriptors():
    return {fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.lexists(f"/proc/self/fd/{fd}")}


FORKING = """
import gc, os, signal, sys, torch
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
import longshore
from models import gpt2, tokens
engine = longshore.wrap(gpt2(layers=2), run=sys.argv[1], drives=[sys.argv[2]])
batch = tokens(1, length=6)[0]
engine.backward(engine(**batch).loss)
engine.step()
engine.backward(engine(**batch).loss)
child = os.fork()
if child == 0:
    for use in engine.step, engine.digest, lambda: engine(**batch):
        try:
            use()
        except longshore.LongshoreError as said:
            print(said, flush=True)
    engine.drop_gradients()
    engine.close()
    del engine
    gc.collect()
    sys.exit(7)
assert os.waitpid(child, 0)[1] >> 8 == 7
engine.step()
print(engine.digest(), flush=True)
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_ends_as_it_likes_and_may_outlive_its_parent(tmp_path, seed):
    (tmp_path / "drive").mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", FORKING.format(tests=os.path.dirname(__file__)), tmp_path / "run", tmp_path / "drive"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        *said, digest = [process.stdout.readline().strip() for _ in range(4)]
        assert all("forked" in line for line in said)
        assert process.wait(HANGS_SECONDS) == -signal.SIGKILL
        with longshore.resume(tmp_path / "run") as engine:  # the second child is there
            assert engine.step_number == 2 and engine.digest() == digest
        process.stdin.close()
        process.stdin = None
