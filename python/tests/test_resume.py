"""Runs go on after kills with the same bits, random states, buffers, schedulers and groups among them."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import longshore
from longshore import making
from models import Cnn, gpt2, tokens
from test_loop import engine_for

SCRIPT = """
import os, sys, torch
sys.path.insert(0, {tests!r})
import longshore
from models import gpt2, tokens
torch.set_num_threads(1)
run, drive, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
if os.path.exists(run + "/run.json"):
    engine = longshore.resume(run)
else:
    torch.manual_seed(5)
    with longshore.init(run, drives=[drive]):
        model = gpt2(dropout=0.1)
    engine = longshore.wrap(model, lr=1e-3, clip=1.0)
engine.train()
scheduler = torch.optim.lr_scheduler.StepLR(engine.optimizer, 3, 0.5)
engine.follow("scheduler", scheduler)
batches = tokens(steps)
while engine.step_number < steps:
    engine.backward(engine(**batches[engine.step_number]).loss)
    engine.step()
    scheduler.step()
print(engine.digest())
"""


def program(tmp_path, name, steps):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(tests=os.path.dirname(__file__)))
    (tmp_path / f"{name}-drive").mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, str(script), str(tmp_path / name), str(tmp_path / f"{name}-drive"), str(steps)],
                            stdout=subprocess.PIPE, text=True, env=env)


def test_kills(tmp_path, seed):
    """Of a loop with dropout and a scheduler, killed whenever its metrics say that a step has been made."""
    whole = program(tmp_path, "whole", 10)
    expected = whole.communicate()[0]
    assert whole.returncode == 0 and len(expected.strip()) == 32
    kills, metrics = 0, tmp_path / "killed" / "metrics.jsonl"
    while kills < 4:
        before = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        process = program(tmp_path, "killed", 10)
        while process.poll() is None and (metrics.read_bytes().count(b"\n") if metrics.exists() else 0) <= before:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    last = program(tmp_path, "killed", 10)
    assert last.communicate()[0] == expected and last.returncode == 0


def test_buffers_groups_and_random_states(tmp_path, seed):
    digests, states = [], []
    for n in range(2):
        torch.manual_seed(seed)
        model = Cnn()
        groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.2}, {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0, "lr": 5e-3}]
        engine = engine_for(model, tmp_path, f"run{n}", groups=groups)
        for i in range(4):
            if n and i == 2:
                engine.close()
                torch.manual_seed(99)
                engine = longshore.resume(tmp_path / "run1", Cnn)
                engine.train()
            if i == 1:
                engine.optimizer.param_groups[0]["lr"] = 2e-3
            x, y = torch.randn(5, 1, 8, 8), torch.randint(0, 4, (5,))
            engine.backward(torch.nn.functional.cross_entropy(engine(x), y))
            engine.step()
        digests.append(engine.digest())
        states.append({k: v.clone() for k, v in engine.module.named_buffers()})
        engine.close()
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert digests[0] == digests[1]


def test_another_model_is_named(tmp_path, seed):
    engine_for(gpt2(), tmp_path).close()
    with pytest.raises(longshore.LongshoreError, match="transformer.h.2.ln_1.weight is missing"):
        longshore.resume(tmp_path / "run", lambda: gpt2(layers=2))


def test_a_second_engine_is_refused(tmp_path, seed):
    with engine_for(gpt2(), tmp_path):
        with pytest.raises(longshore.BusyError, match="works on this run"):
            longshore.resume(tmp_path / "run")


def test_the_budget_holds_when_resumed(tmp_path, seed, monkeypatch):
    """With the least memory, the drives take their least rings, too."""
    opened = []
    before = making.State.open.__func__
    monkeypatch.setattr(making.State, "open", classmethod(lambda cls, run, **how: opened.append(how) or before(cls, run, **how)))
    with pytest.raises(longshore.BudgetError) as least:
        longshore.wrap(gpt2(), run=tmp_path / "none", memory="1MiB")
    with engine_for(gpt2(), tmp_path, memory=str(least.value).rsplit("minimum ", 1)[1]) as engine:
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        digest = engine.digest()
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.digest() == digest
    assert opened[-1]["ring_bytes"] > 0


class WideNorm(torch.nn.Module):
    """Its statistics take more than what commits beside a step."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 12000), torch.nn.BatchNorm1d(12000), torch.nn.Linear(12000, 2))

    def forward(self, x):
        return self.body(x)


def test_many_statistics(tmp_path, seed):
    from safetensors.torch import load_file
    digests, states = [], []
    for n in range(2):
        torch.manual_seed(seed)
        engine = engine_for(WideNorm(), tmp_path, f"run{n}")
        engine.train()
        for i in range(3):
            if n and i:
                engine.close()
                engine = longshore.resume(tmp_path / "run1", WideNorm)
                engine.train()
            engine.backward(engine(torch.randn(5, 4)).square().mean())
            engine.step()
        digests.append(engine.digest())
        states.append({k: v.detach() * 1 for k, v in engine.module.state_dict().items()})
        engine.save_pretrained(tmp_path / f"out{n}")
        engine.close()
    assert digests[0] == digests[1] and states[0]["body.1.running_var"].std() > 0 and states[0]["body.1.num_batches_tracked"] == 3
    saved = {}
    for file in (tmp_path / "out1").glob("*.safetensors"):
        saved.update(load_file(file))
    assert saved.keys() == states[0].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]) and torch.equal(value, saved[name]), name
