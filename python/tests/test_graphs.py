"""Micro-batches that one backward pass of autograd computes: their sums are those of one after the other, in every
bit."""

import queue

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from test_loop import engine_for

LENGTHS = 9, 4, 6  # of micro-batches
CAME = queue.SimpleQueue()  # in backward: (number of autograd's pass, place of the layer, length)


class Tied(nn.Module):
    """A table that is looked up twice before the layers, used once by each, and is the head; and a layer that is
    computed with three times."""

    def __init__(self, dtype, checkpoints):
        super().__init__()
        self.table, self.checkpoints, self.drop = nn.Embedding(16, 16, dtype=dtype), checkpoints, nn.Dropout(0.1)
        self.layers = nn.ModuleList([nn.Linear(16, 16, dtype=dtype) for _ in range(3)])

    def through(self, layer, x):
        return x + self.drop(F.silu(layer(x) @ self.table.weight))

    def forward(self, ids):
        x = self.table(ids) + self.table(ids.flip(0)) * 0.5
        for place, layer in enumerate([*self.layers, self.layers[1], self.layers[1]]):
            x = checkpoint(self.through, layer, x, use_reentrant=False) if self.checkpoints else self.through(layer, x)
            x.register_hook(lambda g, place=place: CAME.put((torch._C._current_graph_task_id(), place, g.shape[1])))
        return F.cross_entropy(F.linear(x, self.table.weight).float().flatten(0, 1), ids.flatten())


def trained(model, tmp_path, name, monkeypatch, together, hook=None):
    """The digest and losses of three steps, and what came in the last one."""
    losses, order = [], []
    with engine_for(model, tmp_path, name, slots=1, monkeypatch=monkeypatch) as engine:
        engine.train()
        engine.accumulate = len(LENGTHS)
        if hook is not None:
            model.table.weight.register_hook(hook)
        for step in range(3):
            batches = [torch.randint(16, (2, n), generator=torch.Generator().manual_seed(step + n)) for n in LENGTHS]
            if together:
                losses.append(engine.train_batch(batches, lambda loss, batch: loss).loss)
            else:
                for batch in batches:
                    engine.backward(engine(batch))
                losses.append(engine.step().loss)
            order = [CAME.get() for _ in range(CAME.qsize())]
        return engine.digest(), losses, order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["plain", "checkpoints"])
def test_a_parameter_of_several_turns(dtype, checkpoints, tmp_path, seed, monkeypatch):
    told = []
    for together in (False, True):
        torch.manual_seed(seed)
        told.append(trained(Tied(dtype, checkpoints), tmp_path, f"run{together}", monkeypatch, together))
    assert told[0][0] == told[1][0] and told[0][1] == pytest.approx(told[1][1])
    order = told[1][2]
    assert len({task for task, _, _ in order}) == 1
    assert [(place, n) for _, place, n in order] == [(place, n) for place in range(4, -1, -1) for n in LENGTHS]


def test_a_hook_of_a_parameter_of_several_turns(tmp_path, seed, monkeypatch):
    """It sees the gradient of a micro-batch, not its parts."""
    told, seen = [], []
    for together in (False, True):
        torch.manual_seed(seed)
        seen.append([])
        told.append(
            trained(
                Tied(torch.float32, False),
                tmp_path,
                f"run{together}",
                monkeypatch,
                together,
                lambda g: seen[-1].append(g.clone()) or g * 2,
            )
        )
    assert told[0][0] == told[1][0] and told[0][1] == pytest.approx(told[1][1])
    assert len(seen[0]) == 9 and all(map(torch.equal, *seen))
