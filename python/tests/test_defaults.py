"""The device and the dtype that a script sets as PyTorch's default are for its own tensors: no engine goes by them."""

import contextlib
import copy
import functools

import pytest
import torch
from torch import nn

import longshore
from longshore.step import parameter_state


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, 300)  # more than a segment
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300)) for _ in range(4)])
        self.register_buffer("nothing", torch.empty(0))

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


@contextlib.contextmanager
def of_device(name):
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def of_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def life(path, context):
    """Digests, and what is read, of an engine whose script has set a default."""
    out = []
    torch.manual_seed(3)
    models, batches = [Net() for _ in range(3)], [torch.arange(n, n + 4) for n in range(8)]
    how = {"lr": 1e-2, "compress": "top10%", "compress_after": 1, "activations": "drives", "activation_room": "16MiB"}
    with context(), longshore.wrap(models[0], run=path / "a", memory="64MiB", device="cpu", **how) as engine:
        engine.module.layers[0][0].weight.register_hook(lambda g: None)
        with longshore.wrap(models[1], trains=False) as teacher:
            for n in range(2):
                engine.train_batch(batches[:2], lambda output, ids: (output - teacher(ids)).square().mean())
                engine(batches[n]).square().mean().backward()
                engine.optimizer.step()
                engine.optimizer.zero_grad()
        weight = engine.module.layers[1][0].weight
        with longshore.resident(weight, write=True), torch.no_grad():
            weight.mul_(2)
        engine.backward(engine(batches[3]).square().mean())
        parameter_state.set_gradient(weight, [0.5] * 300)
        engine.step()
        parameter_state.write(weight, "master", 0.25)
        engine.optimizer.load_state_dict(copy.deepcopy(engine.optimizer.state_dict()))
        out += [float(value.double().sum()) for value in engine.optimizer.state[weight].values()]
        out += [float(value.double().sum()) for _, value in engine.weights()]
        out += [float((weight * 1).detach().double().sum()), float(copy.deepcopy(weight).detach().double().sum())]
        engine.sleep()
        engine.wake()
        engine.save_pretrained(path / "saved")
        engine.snapshot("one")
        out.append(engine.digest())
    with context(), longshore.resume(path / "a", models[2], memory="64MiB") as engine:
        engine.backward(engine(batches[4]).square().mean())
        engine.step()
        return [*out, engine.digest()]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return life(tmp_path_factory.mktemp("plain"), contextlib.nullcontext)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_default_dtype(dtype, tmp_path, expected):
    assert life(tmp_path, functools.partial(of_dtype, dtype)) == expected


def test_the_default_device(tmp_path, expected):
    """One that has no values."""
    assert life(tmp_path, functools.partial(of_device, "meta")) == expected
