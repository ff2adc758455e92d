"""Micro-batches that are computed together: what nobody can put back. Tensors that a pass changes in place, and what
the model's own code keeps in globals and closures."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import longshore
from longshore.step.module_changes import ModuleChanges
from test_loop import engine_for
from test_together import mean, trained

STATE, FACTOR = {"factor": 1.0}, 1.0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("bias", torch.zeros(8))

    def forward(self, x):
        return x + self.inner(x).tanh() + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.layers, self.head = (
            nn.Linear(8, 8),
            nn.ModuleList([self.block() for _ in range(3)]),
            nn.Linear(8, 4),
        )
        self.register_buffer("average", torch.zeros(8))
        self.plain, self.kept = torch.zeros(8), {"average": torch.zeros(8)}

    block = Block

    def through(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x):
        return self.head(self.through(x))


class WrittenBefore(Net):
    def forward(self, x):
        self.average.mul_(0.9).add_(x.detach().mean(0))
        return self.head(self.through(x) - self.average)


class WrittenAfter(Net):
    def forward(self, x):
        y = self.through(x - self.average)
        self.average.mul_(0.9).add_(x.detach().mean(0))
        return self.head(y)


class WrittenThroughData(Net):
    def forward(self, x):
        y = self.through(x - self.average)
        self.average.data.copy_(x.mean(0))
        return self.head(y)


class NoBuffer(Net):
    def forward(self, x):
        y = self.through(x - self.plain)
        self.plain.copy_(x.mean(0))
        return self.head(y)


class InAContainer(Net):
    def forward(self, x):
        y = self.through(x - self.kept["average"])
        self.kept["average"].copy_(x.mean(0))
        return self.head(y)


class OfTheFirstLayer(Net):
    """As statistics of routers that the model moves when it has seen all of them."""

    def forward(self, x):
        y = self.through(x)
        self.layers[0].bias.add_(y.detach().mean().sign() * 0.1)
        return self.head(y)


class SharedStatistics(Net):
    def __init__(self):
        super().__init__()
        norm = nn.BatchNorm1d(8)
        for layer in self.layers:
            layer.norm = norm

    class block(Block):
        def forward(self, x):
            return self.norm(x) + self.inner(x).tanh()


class Global(Net):
    class block(Block):
        def forward(self, x):
            return x + self.inner(x).tanh() * FACTOR

    def forward(self, x):
        global FACTOR
        FACTOR = 1.5 if x.mean() > 0 else 0.5
        return super().forward(x)


class GlobalThatAHookSets(Net):
    class block(Block):
        def forward(self, x):
            return x + self.inner(x).tanh() * STATE["factor"]

    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(lambda module, args: STATE.update(factor=1.5 if args[0].mean() > 0 else 0.5))


class Closures(Net):
    def __init__(self):
        super().__init__()
        now = {"factor": 1.0}
        self.register_forward_pre_hook(lambda module, args: now.update(factor=1.5 if args[0].mean() > 0 else 0.5))
        for layer in self.layers:
            layer.register_forward_hook(lambda module, args, out: out * now["factor"])


ALL = [
    WrittenBefore,
    WrittenAfter,
    WrittenThroughData,
    NoBuffer,
    InAContainer,
    OfTheFirstLayer,
    SharedStatistics,
    Global,
    GlobalThatAHookSets,
    Closures,
]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_what_stays_changed(kind, tmp_path, seed, monkeypatch, caplog):
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    plain, model, batches = kind(), None, list(torch.randn(4, 5, 8))
    # a copy's hooks have the closures of the first
    model = copy.deepcopy(plain) if kind is not Closures else Closures()
    model.load_state_dict(plain.state_dict())
    expected, plain = trained(plain, lambda model, x, i: mean(model, x), batches)
    with engine_for(model, tmp_path, lr=1e-2, clip=0) as engine, caplog.at_level(logging.INFO, "longshore"):
        losses = []
        for _ in range(2):
            losses += engine.backward_together(batches, lambda x: mean(engine, x))
            engine.step()
        assert losses == pytest.approx(expected, rel=1e-5)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert "one after the other" in caplog.text


class Norms(Net):
    """Each module's statistics are its own, and it is called once in a pass."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = (
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)),
            nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4)),
        )

    class block(Block):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x):
            self.bias.copy_(x.detach().mean(0))
            return self.norm(x) + self.inner(x).tanh() + self.bias


def test_statistics_of_layers_go_together(tmp_path, seed, caplog):
    model, batches = Norms(), list(torch.randn(4, 5, 8))
    expected, plain = trained(copy.deepcopy(model), lambda model, x, i: mean(model, x), batches)
    with engine_for(model, tmp_path, lr=1e-2, clip=0) as engine, caplog.at_level(logging.INFO, "longshore"):
        losses = []
        for _ in range(2):
            losses += engine.backward_together(batches, lambda x: mean(engine, x))
            engine.step()
        assert losses == pytest.approx(expected, rel=1e-4)
        for name, value in plain.named_buffers():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)
    assert "one after the other" not in caplog.text


class NowAndThen(Net):
    writes = False

    def forward(self, x):
        y = super().forward(x - self.average)
        if x.shape[0] == 3:
            self.average.add_(1.0)
        return y


def test_what_the_first_pass_has_not_shown(tmp_path, seed):
    """It is refused by its name, and the next step is made as the sentence says."""
    with engine_for(NowAndThen(), tmp_path) as engine:
        batches = list(torch.randn(3, 5, 8))
        engine.backward_together(batches, lambda x: mean(engine, x))
        engine.step()
        batches[1] = batches[1][:3]
        with pytest.raises(longshore.LongshoreError, match="NowAndThen.average is changed by a micro-batch"):
            engine.backward_together(batches, lambda x: mean(engine, x))
        engine.accumulate = 3
        for x in batches:
            engine.backward(mean(engine, x))
        assert engine.step().step == 2


class Halves(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 0.5 if func is torch.Tensor.tanh else out


def test_modes_around_a_step(tmp_path, seed):
    model, batches = Net(), list(torch.randn(3, 5, 8))
    with Halves():
        expected, _ = trained(copy.deepcopy(model), lambda model, x, i: mean(model, x), batches)
        with engine_for(model, tmp_path, lr=1e-2, clip=0) as engine:
            losses = []
            for _ in range(2):
                losses += engine.backward_together(batches, lambda x: mean(engine, x))
                engine.step()
    assert losses == pytest.approx(expected, rel=1e-5)


def test_only_parameters_with_hooks_are_compared():
    """Each compared container costs time at every turn of a micro-batch."""
    plain, hooked = nn.Linear(2, 2), nn.Linear(2, 2)
    hooked.weight.register_hook(lambda g: g)
    found = [
        [
            place.container
            for group in ModuleChanges(model, []).groups
            for place in group.places
            if "a hook of a parameter" in place.where
        ]
        for model in (plain, hooked)
    ]
    assert found[0] == [] and len(found[1]) == 1 and found[1][0] is hooked.weight._backward_hooks
