"""Loops of PyTorch at random, and the same of an engine: what they read of losses, norms and gradients is the same."""

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
OFTEN = {"backward": 6, "step": 3, "write": 2}
# what a budget without room for p.grad may refuse, before anything is lost
REFUSED = {
    "in part": (longshore.LongshoreError, "give parameter.grad another tensor"),
    "numpy": (ValueError, "read-only"),
    "dlpack": (longshore.LongshoreError, "has no memory of its own"),
}


def in_part(g):
    g.view(-1)[:3] = 1e-3


def row(g):
    g[0].zero_()


def numpy(g):
    g.numpy().reshape(-1)[-2:] *= 0.5


def dlpack(g):
    torch.from_dlpack(g).mul_(0.5)


def data(g):
    g.data = g.data * 0.5


def other_storage(g):
    g.set_(g * 0.5)


def in_place(g):
    g.mul_(0.5)


def lists(g):
    torch._foreach_add_([g, g], [torch.full(g.shape, 1e-3), torch.full(g.shape, 1e-4)])


def through_detach(g):
    g.detach().data.add_(1e-3)


WRITES = {
    in_part: "in part",
    row: "in part",
    numpy: "numpy",
    dlpack: "dlpack",
    data: "",
    other_storage: "",
    in_place: "",
    lists: "",
    through_detach: "",
}


class Pair:
    """A model with an engine, and a copy of it without."""

    def __init__(self, chance, directory, seed, monkeypatch):
        self.chance, self.directory, self.batches = chance, directory, iter(tokens(60, seed=seed))
        model = LANGUAGE[chance.choice(sorted(LANGUAGE))]().train()
        if chance.random() < 0.3:
            for p in list(model.parameters())[3:7]:
                p.requires_grad_(False)
        self.trained = [p.requires_grad for p in model.parameters()]
        self.passed = False  # a backward pass, since the last step
        self.anew = []  # gradients of engine.step(), which end at the next backward unless a script changes them
        self.kept = []  # gradients that the script keeps: of the engine and of PyTorch
        self.plain, self.clip = copy.deepcopy(model), chance.choice([0, 0.5])
        kind = chance.choice(["adamw", "sgd"])
        make, numbers = {"adamw": (torch.optim.AdamW, {"eps": 1e-3}), "sgd": (torch.optim.SGD, {"momentum": 0.9})}[kind]
        self.optimizer = make(self.plain.parameters(), lr=1e-2, weight_decay=0.1, **numbers)
        self.little = chance.random() < 0.5
        with monkeypatch.context() as patched:
            self.engine = engine_for(
                model,
                directory,
                slots=chance.choice([None, 1, 2]),
                gradient_bytes=chance.choice([None, 0, 40000, 200000]),
                monkeypatch=patched,
                lr=1e-2,
                clip=self.clip,
                optimizer=kind,
                **numbers,
                activations=chance.choice(["memory", "memory", "drives"]),
                activation_room="64MiB",
            )
        if self.little:
            self.engine._core.plan.spare_bytes = 0

    def _parameters(self):
        both = zip(self.engine.module.parameters(), self.plain.parameters(), self.trained)
        return [(p, q) for p, q, trained in both if trained]

    def _gradients(self):
        return [q.grad for _, q in self._parameters() if q.grad is not None]

    def _one(self):
        """A parameter of both that has a gradient, or None."""
        pairs = [(p, q) for p, q in self._parameters() if q.grad is not None]
        return self.chance.choice(pairs) if pairs else None

    def _changed(self, q):
        self.anew = [g for g in self.anew if g is not q.grad]

    def _all_end(self):
        return all(any(g is h for h in self.anew) for g in self._gradients())

    def _begin(self):
        for _, q in self._parameters():
            if any(q.grad is g for g in self.anew):
                q.grad = None
        self.anew = []

    def _end(self, adds):
        """Makes PyTorch's step, with the clip that wrap() has, which p.grad does not show."""
        grads = self._gradients()
        before = [g.clone() for g in grads]
        if self.clip:
            clip_grad_norm_(self.plain.parameters(), self.clip)
        self.optimizer.step()
        for g, value in zip(grads, before):
            g.copy_(value)
        self.anew = [] if adds else grads

    def backward(self):
        batch = next(self.batches)
        loss, expected = self.engine(**batch).loss, self.plain(**batch).loss
        assert loss.item() == pytest.approx(expected.item(), rel=4e-6)
        if expected.requires_grad:
            self.chance.choice(
                [torch.Tensor.backward, lambda loss: self.engine.backward(loss, last=self.chance.random() < 0.5)]
            )(loss)
            self._begin()
            expected.backward()
            self.passed = True

    def together(self):
        if self._all_end() and not self.engine._core.cycle.backwards:
            batches = [next(self.batches) for _ in range(2)]
            self._begin()
            self.engine.backward_together(batches, lambda batch: self.engine.module(**batch).loss)
            for batch in batches:
                (self.plain(**batch).loss / 2).backward()
            self.passed = True

    def step(self):
        adds = self.chance.random() < 0.5
        step = self.engine.optimizer.step if adds else self.engine.step
        if not self.passed and self._all_end():
            if adds:
                step()  # does nothing
            else:
                with pytest.raises(longshore.LongshoreError, match="there was no backward pass"):
                    step()
                self.anew = []
                self.optimizer.zero_grad()
            return
        step()
        self._begin()
        self.passed = False
        self._end(adds)
        if self.chance.random() < 0.6:
            self.drop()

    def clip_norm(self):
        if self.anew:
            return  # whether they go on at the next backward depends on whether this changes them
        norms = [clip_grad_norm_(ps, 0.3).item() for ps in zip(*self._parameters())]
        assert norms[0] == pytest.approx(norms[1], rel=1e-3, abs=1e-6)

    def clip_value(self):
        if self._gradients() and not self.anew:
            for ps in zip(*self._parameters()):
                clip_grad_value_(ps, 1e-2)

    def scale(self):
        for p, q in self._parameters()[self.chance.randrange(5) :]:
            if q.grad is not None:
                p.grad.mul_(0.5)
                q.grad.mul_(0.5)
                self._changed(q)

    def write(self):
        if (pair := self._one()) is None:
            return
        write = self.chance.choice([*WRITES])
        print("  ", write.__name__)
        error, said = REFUSED.get(WRITES[write], (None, ""))
        if self.little and error is not None:
            try:
                write(pair[0].grad)
            except error as refused:
                assert said in str(refused)
                return
        else:
            write(pair[0].grad)
        write(pair[1].grad)
        self._changed(pair[1])

    def drop(self):
        to_none = self.chance.random() < 0.6
        print("  ", to_none)
        if to_none:
            self.chance.choice(
                [self.engine.optimizer.zero_grad, self.engine.module.zero_grad, self.engine.drop_gradients]
            )()
        else:
            self.chance.choice([self.engine.optimizer.zero_grad, self.engine.module.zero_grad])(set_to_none=False)
        self.optimizer.zero_grad(set_to_none=to_none)
        self.anew = []

    def zero_one(self):
        if (pair := self._one()) is not None and bool(pair[1].grad.any()):
            for p in pair:
                p.grad.zero_()
            self._changed(pair[1])

    def drop_one(self):
        for p in self.chance.choice(self._parameters()):
            p.grad = None

    def set_one(self):
        for p, q in self.chance.sample(self._parameters(), 2):
            p.grad, q.grad = torch.full_like(q, 1e-3), torch.full_like(q, 1e-3)
            self.kept.append((p.grad, q.grad))

    def keep(self):
        if (pair := self._one()) is not None:
            self.kept.append(tuple(p.grad for p in pair))

    def read_kept(self):
        for pair in [*self.kept]:
            try:
                ours = pair[0].clone()
            except longshore.LongshoreError as refused:
                assert self.little and "was kept after it was dropped" in str(refused)
                self.kept = [other for other in self.kept if other is not pair]
                continue
            torch.testing.assert_close(ours, pair[1], rtol=2e-3, atol=1e-6)
            for p, q in self._parameters():
                assert (p.grad is pair[0]) == (q.grad is pair[1])

    def freeze_one(self):
        for p in self.chance.choice(self._parameters()):
            p.requires_grad_(not p.requires_grad)

    def evaluate(self):
        with torch.no_grad():
            assert self.engine(**tokens(1)[0]).loss.item() == pytest.approx(
                self.plain(**tokens(1)[0]).loss.item(), rel=4e-6
            )

    def read(self):
        for p, q in self._parameters():
            assert (p.grad is None) == (q.grad is None)
            assert q.grad is None or torch.allclose(p.grad, q.grad, rtol=2e-3, atol=1e-6)

    def norm(self):
        if self._gradients() and not self.anew:
            norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in self._gradients()])).item()
            assert self.engine.grad_norm() == pytest.approx(norm, rel=1e-3, abs=1e-7)

    def resume(self):
        if not self._gradients() and self.engine.step_number and not self.kept:
            self.engine.close()
            self.engine = longshore.resume(self.directory / "run", copy.deepcopy(self.plain))
            self.engine.train()
            for p, q in self._parameters():
                p.requires_grad_(q.requires_grad)
            self.passed = False
            if self.little:
                self.engine._core.plan.spare_bytes = 0


def test_loops_at_random(tmp_path, seed, monkeypatch):
    """LONGSHORE_LOOPS of them. The seed of one that fails is the last that is printed."""
    every = [name for name in vars(Pair) if not name.startswith("_")]
    for number in range(LOOPS):
        print("LONGSHORE_SEED", seed + number)
        torch.manual_seed(seed + number)
        chance, directory = random.Random(seed + number), tmp_path / str(number)
        directory.mkdir()
        pair = Pair(chance, directory, seed + number, monkeypatch)
        for _ in range(16):
            what = chance.choice([name for name in every for _ in range(OFTEN.get(name, 1))])
            print(what)
            getattr(pair, what)()
        pair.engine.close()
        shutil.rmtree(directory)
