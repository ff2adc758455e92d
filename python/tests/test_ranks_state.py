"""A run that several ranks have: each opens a part of it, fetches the rest from the others, and commits with them."""

import json
import os

import pytest
import torch
from torch import nn

import longshore
from longshore.run import checkpoint
from rank_processes import results
from test_program import needs_program, program

MEMORY = "64MiB"


def rank():
    return int(os.environ.get("RANK", 0))


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
    engine = longshore.wrap(Model(rank()), run=run, memory=MEMORY, lr=1e-2, storage=storage, sum_groups=6)
    out = all_of(engine)
    engine.close()
    return out


def resumed(run, change=None):
    engine = longshore.resume(run, Model(7 + rank()), memory=MEMORY)
    if change is not None:
        change(engine)
    out = all_of(engine)
    engine.close()
    return out


def write(engine):
    """Ranks write other values; rank 0's count."""
    layer = engine.module.layers[1]
    with longshore.resident(layer, write=True), torch.no_grad():
        layer.a.weight += 1 + rank()


def load(engine):
    values = Model(40 + rank()).state_dict()
    engine.module.load_state_dict({**values, "seen": torch.arange(3.0)})


def a_life(directory):
    """Makes a run of each storage, goes on with it, writes into it, and goes on with that."""
    out = []
    for storage in ("fp32", "bf16"):
        run = os.path.join(directory, storage)
        out.append(made(run, storage))
        drawn = torch.rand(3)
        assert resumed(run) == out[-1] and torch.equal(torch.rand(3), drawn)  # each rank has random numbers of its own
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


class Kept:
    """What each rank follows: its own number."""

    def __init__(self, number):
        self.number = number

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


def step(engine, number):
    """One step of four micro-batches, of which each rank has its share."""
    generator = torch.Generator().manual_seed(number)
    batches = torch.randn(4, 2, 250, generator=generator).split(1)
    size = int(os.environ.get("WORLD_SIZE", 1))
    mine = batches[rank() * 4 // size : (rank() + 1) * 4 // size]
    return engine.train_batch([b[0] for b in mine], lambda out, _: out.square().mean())


def trained(directory):
    """Steps, with what goes with them: a write that becomes a part of a step, a snapshot, a checkpoint, saved files."""
    run = os.path.join(directory, "run")
    engine = longshore.wrap(Model(rank()), run=run, memory=MEMORY, lr=1e-2, sum_groups=2)
    engine.follow("kept", Kept(rank()))
    out = [step(engine, 1).loss]
    layer = engine.module.layers[1]
    with longshore.resident(layer, write=True), torch.no_grad():
        layer.a.weight.mul_(0.5 + rank())
    assert engine.step_number == 1
    out += [engine.digest(), step(engine, 2).grad_norm]
    engine.snapshot("two")
    with pytest.raises(longshore.ExistsError):
        engine.snapshot("two")
    after = engine.digest(), step(engine, 3).loss, engine.digest()
    checkpoint.save(engine, os.path.join(directory, "checkpoint"), {"rank": 0})
    engine.save_pretrained(os.path.join(directory, "saved"), moments=True)
    with pytest.raises(longshore.ExistsError):
        engine.save_pretrained(os.path.join(directory, "saved"))
    engine.reopen(run, "two")
    assert (engine.digest(), step(engine, 3).loss, engine.digest()) == after
    step(engine, 4)
    assert checkpoint.load(engine, os.path.join(directory, "checkpoint")) == {"rank": 0}
    assert engine.digest() == after[2]
    step(engine, 4)
    drawn = bits(torch.rand(3))
    engine.close()
    engine = longshore.resume(run, Model(3), memory=MEMORY)
    kept = engine.follow("kept", Kept(9)).number
    assert (kept, drawn) == (rank(), bits(torch.rand(3)))
    out += [*after, engine.digest()]
    engine.close()
    other = longshore.wrap(Model(4), run=os.path.join(directory, "b"), moments_from=os.path.join(directory, "saved"))
    out.append(other.digest())
    other.close()
    return out


def test_steps_and_what_goes_with_them(tmp_path):
    alone = trained(tmp_path / "alone")
    assert results(2, trained, tmp_path / "two") == [alone, alone]
    for file in (tmp_path / "alone" / "saved").rglob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "two" / file.relative_to(tmp_path / "alone")).read_bytes()


def kept_by(run, size):
    """What a run that goes on has kept, before a step and after it."""
    torch.manual_seed(rank())
    if os.path.exists(os.path.join(run, "run.json")):
        engine = longshore.resume(run, Model(3), memory=MEMORY)
    else:
        engine = longshore.wrap(Model(3), run=run, memory=MEMORY, lr=1e-2, sum_groups=4)
        engine.optimizer.param_groups[0]["lr"] = 0.5
    kept = engine.follow("kept", Kept(None))
    before = kept.number, engine.optimizer.param_groups[0]["lr"], bits(torch.rand(3))
    kept.number = f"rank {rank()} of {size}"
    step(engine, size)
    drawn = bits(torch.rand(3))
    engine.close()
    return before, drawn


def test_ranks_without_a_drive_go_on_with_rank_0s(tmp_path):
    """The optimizer's numbers, too, are in what commits with a step."""
    run, number = tmp_path / "run", "rank 0 of 1"
    ((_, drawn),) = results(1, kept_by, run, 1)
    for size in (4, 4, 2, 1):
        of = results(size, kept_by, run, size)
        assert [before for before, _ in of] == [(number, 0.5, drawn)] * size
        number, drawn = f"rank 0 of {size}", of[0][1]
