"""Loops of PyTorch at random, and the same of an engine: what they read of losses, norms and gradients is the same."""

import contextlib
import copy
import os
import random
import shutil

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import longshore
from models import LANGUAGE, tokens
from test_loop import engine_for

LOOPS = int(os.environ.get("LONGSHORE_LOOPS", 40))
OFTEN = {"backward": 5, "step": 3}


class Pair:
    """A model with an engine, and a copy of it without."""

    def __init__(self, chance, directory, seed, monkeypatch):
        self.chance, self.directory, self.batches = chance, directory, iter(tokens(60, seed=seed))
        model = LANGUAGE[chance.choice(sorted(LANGUAGE))]().train()
        if chance.random() < 0.3:
            for p in list(model.parameters())[3:7]:
                p.requires_grad_(False)
        self.passed = False  # a backward pass, since the last step
        self.plain, self.clip = copy.deepcopy(model), chance.choice([0, 0.5])
        kind = chance.choice(["adamw", "sgd"])
        make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[kind]
        self.optimizer = make(self.plain.parameters(), lr=1e-2, weight_decay=0.1)
        with monkeypatch.context() as patched:
            self.engine = engine_for(model, directory, slots=chance.choice([None, 1, 2]),
                                     gradient_bytes=chance.choice([None, 0, 40000, 200000]),
                                     monkeypatch=patched, lr=1e-2, clip=self.clip, optimizer=kind,
                                     activations=chance.choice(["memory", "memory", "drives"]), activation_room="64MiB")

    def parameters(self):
        both = zip(self.engine.module.parameters(), self.plain.parameters())
        return [(p, q) for p, q in both if p.requires_grad]

    def gradients(self):
        return [q.grad for _, q in self.parameters() if q.grad is not None]

    def backward(self):
        batch = next(self.batches)
        loss, expected = self.engine(**batch).loss, self.plain(**batch).loss
        assert loss.item() == pytest.approx(expected.item(), rel=4e-6)
        self.chance.choice([torch.Tensor.backward,
                            lambda loss: self.engine.backward(loss, last=self.chance.random() < 0.5)])(loss)
        expected.backward()
        self.passed = True

    def together(self):
        if not self.gradients():
            batches = [next(self.batches) for _ in range(2)]
            self.engine.backward_together(batches, lambda batch: self.engine.module(**batch).loss)
            for batch in batches:
                (self.plain(**batch).loss / 2).backward()
            self.passed = True

    def step(self):
        step = self.chance.choice([self.engine.step, self.engine.optimizer.step])
        refused = not self.passed and step == self.engine.step  # torch's step() without a gradient does nothing
        with (pytest.raises(longshore.LongshoreError, match="there was no backward pass") if refused
              else contextlib.nullcontext()):
            step()
        self.passed = False
        if self.clip:
            clip_grad_norm_(self.plain.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def clip_norm(self):
        norms = [clip_grad_norm_(ps, 0.3).item() for ps in zip(*self.parameters())]
        assert norms[0] == pytest.approx(norms[1], rel=1e-3, abs=1e-6)

    def clip_value(self):
        if self.gradients():
            for ps in zip(*self.parameters()):
                clip_grad_value_(ps, 1e-2)

    def scale(self):
        for p, q in self.parameters()[self.chance.randrange(5):]:
            if q.grad is not None:
                p.grad.mul_(0.5)
                q.grad.mul_(0.5)

    def drop(self):
        self.chance.choice([self.engine.optimizer.zero_grad, self.engine.module.zero_grad,
                            self.engine.drop_gradients])()
        self.optimizer.zero_grad()

    def drop_one(self):
        for p in self.chance.choice(self.parameters()):
            p.grad = None

    def replace_one(self):
        p, q = self.chance.choice(self.parameters())
        if q.grad is not None:
            p.grad, q.grad = torch.full_like(q.grad, 1e-3), torch.full_like(q.grad, 1e-3)

    def evaluate(self):
        with torch.no_grad():
            assert self.engine(**tokens(1)[0]).loss.item() == pytest.approx(self.plain(**tokens(1)[0]).loss.item(),
                                                                            rel=4e-6)

    def read(self):
        for p, q in self.parameters():
            assert (p.grad is None) == (q.grad is None)
            assert q.grad is None or torch.allclose(p.grad, q.grad, rtol=2e-3, atol=1e-6)

    def norm(self):
        if self.gradients():
            norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in self.gradients()])).item()
            assert self.engine.grad_norm() == pytest.approx(norm, rel=1e-3, abs=1e-7)

    def resume(self):
        if not self.gradients() and self.engine.step_number:
            self.engine.close()
            self.engine = longshore.resume(self.directory / "run", copy.deepcopy(self.plain))
            self.engine.train()
            self.passed = False


def test_loops_at_random(tmp_path, seed, monkeypatch):
    """LONGSHORE_LOOPS of them. The seed of one that fails is the last that is printed."""
    every = [name for name in vars(Pair) if not name.startswith("_") and name not in ("parameters", "gradients")]
    for number in range(LOOPS):
        print("LONGSHORE_SEED", seed + number)
        torch.manual_seed(seed + number)
        chance, directory = random.Random(seed + number), tmp_path / str(number)
        directory.mkdir()
        pair = Pair(chance, directory, seed + number, monkeypatch)
        for _ in range(14):
            what = chance.choice([name for name in every for _ in range(OFTEN.get(name, 1))])
            print(what)
            getattr(pair, what)()
        pair.engine.close()
        shutil.rmtree(directory)
