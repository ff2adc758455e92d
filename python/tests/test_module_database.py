"""PyTorch's own database of modules: each that trains takes three steps beside torch.optim.AdamW, and is the same
afterwards."""

import copy
import sys
import types
import unittest
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import longshore
from longshore import deepspeed
from longshore.transformers import Trainer, TrainingArguments

PARTS = 8  # among which the modules are shared out, for several processors
SAMPLES = 2  # of each module
EPS = 1e-3  # so that a gradient which is nothing but rounding, as that of an attention's key bias, moves nothing


def database():
    # of which it needs the name alone
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))
    with mock.patch("torch.backends.disable_global_flags"):  # other tests of this process may set some
        from torch.testing._internal.common_modules import module_db
    return [info for info in module_db if torch.float32 in info.dtypes]


def losses(model, call, step):
    out = []
    for _ in range(3):
        args, kwargs = tree_map(
            lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, (call.args, call.kwargs)
        )
        found = [t for t in tree_leaves(model(*args, **kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        loss = sum(t.square().mean() for t in found)
        step(loss)
        out.append(float(loss.detach()))
    return out


def compare(info, sample, path):
    """False: there is nothing to train in it."""
    made = sample.constructor_input
    model = info.module_cls(*made.args, **made.kwargs)
    if next(model.parameters(), None) is None:
        return False
    if any(map(nn.parameter.is_lazy, model.parameters())):
        model(*copy.deepcopy(sample.forward_input.args))
    for module in model.modules():  # dropout draws other numbers here: see docs/python.md
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=EPS)

    def step(loss):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    expected = losses(plain, sample.forward_input, step)
    with longshore.wrap(model, run=path, memory="64MiB", lr=1e-2, eps=EPS) as engine:

        def engine_step(loss):
            engine.backward(loss)
            engine.step()

        assert losses(engine, sample.forward_input, engine_step) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        for (name, t), u in zip(plain.state_dict().items(), model.state_dict().values()):
            assert torch.allclose(t, u, rtol=1e-5, atol=1e-6), name
    return True


@pytest.mark.parametrize("part", range(PARTS))
def test_modules_of_pytorch(part, tmp_path, seed):
    trained = 0
    for info in database()[part::PARTS]:
        torch.manual_seed(seed)
        samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
        for n, sample in enumerate(samples[:SAMPLES]):
            print(info.name, n)
            trained += compare(info, sample, tmp_path / f"{info.name}-{n}")
    assert trained >= 4


LAZY = [
    (lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)), "0.weight"),
    (lambda: nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d(affine=False)), "1.running_mean"),
]


@pytest.mark.parametrize("make, name", LAZY)
def test_a_lazy_module_is_run_first(make, name, tmp_path, seed):
    said = f"{name}: has no shape yet, because its module is lazy: run one forward pass first"
    with longshore.init(tmp_path / "run"):
        model = make()
    with pytest.raises(longshore.LongshoreError, match=said):
        longshore.wrap(model)
    with pytest.raises(longshore.LongshoreError, match=said):
        Trainer(
            make(),
            TrainingArguments(tmp_path / "out", bf16=True, max_steps=1, report_to=[]),
            train_dataset=[{"input": torch.ones(3)}],
        ).train()
    config = {
        "train_batch_size": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "longshore": {"run": str(tmp_path / "other")},
    }
    with pytest.raises(longshore.LongshoreError, match=said):
        deepspeed.initialize(model=make(), config=config)
    model(torch.rand(2, 3))
    with longshore.wrap(model) as engine:
        engine.backward(engine(torch.rand(2, 3)).sum())
        engine.step()
    with pytest.raises(longshore.LongshoreError, match=said):
        longshore.resume(tmp_path / "run", make)
    again = make()
    again(torch.rand(2, 3))
    longshore.resume(tmp_path / "run", again).close()
