"""A run that several ranks have: each opens a part of it, fetches the rest from the others, and commits with them."""

import json
import os

import torch
from torch import nn

import longshore
from rank_processes import results
from test_program import needs_program, program

MEMORY = "64MiB"
RANK = int(os.environ.get("RANK", 0))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(250, 300), nn.Linear(300, 250)

    def forward(self, x):
        return x + self.b(self.a(x).tanh())


class Model(nn.Module):
    """Its layers have three segments each, of which two ranks have two and one."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(250, 10)
        self.register_buffer("seen", torch.full((3,), float(seed)))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def all_of(engine):
    """What says that the state is the same: digest, step, outputs, weights and buffers."""
    with torch.no_grad():
        out = engine(torch.linspace(-1, 1, 500).view(2, 250))
    return engine.digest(), engine.step_number, bits(out), {name: bits(t) for name, t in engine.weights()}


def made(run, storage="fp32"):
    """Each rank draws other weights, and takes rank 0's."""
    engine = longshore.wrap(Model(RANK), run=run, memory=MEMORY, lr=1e-2, storage=storage, sum_groups=6)
    out = all_of(engine)
    engine.close()
    return out


def resumed(run, change=None):
    engine = longshore.resume(run, Model(7 + RANK), memory=MEMORY)
    if change is not None:
        change(engine)
    out = all_of(engine)
    engine.close()
    return out


def write(engine):
    """Ranks write other values; rank 0's count."""
    layer = engine.module.layers[1]
    with longshore.resident(layer, write=True), torch.no_grad():
        layer.a.weight += 1 + RANK


def load(engine):
    values = Model(40 + RANK).state_dict()
    engine.module.load_state_dict({**values, "seen": torch.arange(3.0)})


def a_life(directory):
    """Makes a run of each storage, goes on with it, writes into it, and goes on with that."""
    out = []
    for storage in ("fp32", "bf16"):
        run = os.path.join(directory, storage)
        out.append(made(run, storage))
        assert resumed(run) == out[-1]
        out += [resumed(run, write), resumed(run, load)]
        assert resumed(run) == out[-1]
    return out


@needs_program
def test_two_ranks_have_one_run(tmp_path):
    alone = a_life(tmp_path / "alone")
    assert [said[1] for said in alone] == [0, 1, 2] * 2
    for said in results(2, a_life, tmp_path / "two"):
        assert said == alone
    for storage, last in (("fp32", alone[2]), ("bf16", alone[5])):
        run = tmp_path / "two" / storage
        assert last[0] in program("inspect", run, "--digest")
        assert len(json.loads(program("inspect", run, "--json"))["volumes"]) == 2
        assert resumed(run) == last  # one process goes on with what two have made


def test_more_ranks_than_volumes(tmp_path):
    """One of three ranks has no volume."""
    alone = made(tmp_path / "run"), resumed(tmp_path / "run", write)
    two = made(tmp_path / "other"), *results(2, resumed, tmp_path / "other", write)
    assert two == (alone[0], alone[1], alone[1])
    for said in results(3, resumed, tmp_path / "run"):
        assert said == alone[1]
