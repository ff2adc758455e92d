"""Top-k compression: the largest elements of each block's gradients, exactly; the rest waits; the same bits whatever is
kept."""

import json

import pytest
import torch
from torch import nn

import longshore
import longshore.deepspeed as deepspeed
from longshore.drives.buffer import Buffer
from longshore.native import lib
from longshore.step import parameter_state
from longshore.step.gradients import Gradients
from models import gpt2, tokens
from test_loop import engine_for
from test_program import needs_program, program, steps


def fetched(engine, number, kind, dtype):
    buffer = Buffer(engine._core.layout.elems(number) * dtype.itemsize)
    engine._core.state.fetch(number, kind, buffer.pointer).result()
    return buffer.view(dtype).clone()


def state_of(engine, number):
    return (
        fetched(engine, number, lib.SHORE_FETCH_MASTER, torch.float32),
        fetched(engine, number, lib.SHORE_FETCH_R, torch.bfloat16),
    )


def expected(engine, number, before, coefficient, share):
    """What SGD with lr 1 makes of a block's masters and residual, in PyTorch's words."""
    master, residual = before
    had, sums = torch.zeros(master.shape, dtype=torch.bool), torch.zeros(master.shape)
    for p, handle in engine._core.streams.blocks[number].parameters:
        gradient = parameter_state.gradient(p)
        if gradient is not None:
            at = engine._core.layout.offsets[number][handle.index]
            had[at : at + p.numel()], sums[at : at + p.numel()] = True, gradient.reshape(-1)
    sums = torch.where(had, sums + residual.float(), 0)
    most = min(lib.shore_sparse_count(share, int(had.sum())), int((sums != 0).sum()))
    sent = torch.zeros(master.shape)
    largest = sums.abs().argsort(descending=True, stable=True)[:most]
    sent[largest] = sums[largest].bfloat16().float()
    energy = torch.stack([x.double().square().sum() for x in (sums, sums[largest])])
    return master - sent * torch.tensor(coefficient), torch.where(had, (sums - sent).bfloat16(), residual), most, energy


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_what_is_sent_and_what_waits(tmp_path, seed, clip):
    with engine_for(gpt2(), tmp_path, optimizer="sgd", lr=1.0, weight_decay=0.0, clip=clip, compress="top5%") as engine:
        for batch in tokens(3):
            blocks = range(len(engine._core.streams.blocks))
            before = [state_of(engine, number) for number in blocks]
            engine.backward(engine(**batch).loss)
            norm, coefficient = engine.grad_norm(), engine._core.cycle.decide()[0].coefficient
            assert abs(coefficient - (min(1.0, clip / (norm + 1e-6)) if clip else 1.0)) <= 1e-6
            wanted = [expected(engine, number, before[number], coefficient, 0.05) for number in blocks]
            engine.step()
            engine.settle()
            for number in blocks:
                master, residual = state_of(engine, number)
                assert torch.equal(master, wanted[number][0]) and torch.equal(residual, wanted[number][1])
                assert 0 < int((master != before[number][0]).sum()) <= wanted[number][2]
            energy, sent = sum(block[3] for block in wanted).tolist()
            line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
            assert 0.01 < line["dropped_energy"] < 1 and abs(line["dropped_energy"] - (1 - sent / energy)) < 1e-6


def run(tmp_path, name, seed, monkeypatch, how, slots=None, gradients=None, early=True, resumes=()):
    torch.manual_seed(seed)
    monkeypatch.setattr(Gradients, "speculate", lib.SHORE_SPECULATE_ON if early else lib.SHORE_SPECULATE_OFF)
    engine = engine_for(
        gpt2(dropout=0.1, layers=2),
        tmp_path,
        name,
        slots,
        gradients,
        monkeypatch,
        clip=0.5,
        compress=0.05,
        compress_after=1,
        moments="8bit",
    )
    batches = tokens(8)
    for step in range(4):
        if step in resumes:
            engine.close()
            engine = longshore.resume(tmp_path / name)
        engine.train()
        engine.accumulate = 2
        if how == "together":
            engine.train_batch(batches[2 * step : 2 * step + 2])
            continue
        for batch in batches[2 * step : 2 * step + 2]:
            engine.backward(engine(**batch).loss, last=None if how == "loop" else True)
        engine.step()
    with engine:
        digest = engine.digest()
        assert longshore.verify(engine) == digest
    return digest


def test_same_bits_whatever_is_kept(tmp_path, seed, monkeypatch):
    ways = [
        ("loop",),
        ("loop", 1, 0),
        ("loop", 2, None, False),
        ("together", 1),
        ("stale", 2, 0),
        ("loop", None, None, True, (1, 3)),
    ]
    assert len({run(tmp_path, f"run{n}", seed, monkeypatch, *way) for n, way in enumerate(ways)}) == 1


class Some(nn.Module):
    """Of whose last layer not every step uses all."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        self.one, self.other = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x, other):
        return (self.other if other else self.one)(self.layers(x))


def test_frozen_unused_and_refused(tmp_path, seed):
    model = Some()
    model.layers[0].weight.requires_grad_(False)
    with engine_for(model, tmp_path, on_nonfinite="skip", compress="top10%") as engine:

        def step(x, other=False):
            engine.backward(engine(x, other).square().mean())
            return engine.step()

        def unused():
            engine.settle()
            for streamed in engine._core.streams.blocks:
                for p, handle in streamed.parameters:
                    if handle.name in ("other.weight", "layers.0.weight"):
                        at = engine._core.layout.offsets[streamed.number][handle.index]
                        yield [x[at : at + p.numel()] for x in state_of(engine, streamed.number)]

        frozen = model.layers[0].weight.detach().clone()
        step(torch.randn(4, 32), True)
        before = list(unused())
        assert any(residual.any() for _, residual in before)
        step(torch.randn(4, 32))
        assert all(torch.equal(a, b) for x, y in zip(before, unused()) for a, b in zip(x, y))
        assert step(torch.full((4, 32), float("inf"))).skipped
        assert all(torch.equal(a, b) for x, y in zip(before, unused()) for a, b in zip(x, y))
        step(torch.randn(4, 32), True)
        assert not all(torch.equal(a, b) for x, y in zip(before, unused()) for a, b in zip(x, y))
        assert torch.equal(model.layers[0].weight.detach() * 1, frozen)


@needs_program
def test_the_program_knows_it(tmp_path, seed):
    with engine_for(gpt2(), tmp_path, compress="top5%", memory="64MiB") as engine:
        steps(engine, 1)
        engine.snapshot("one")
        held = engine.memory()
        assert held.held <= held.budget and held.gradients >= engine._core.compression.sums.nbytes
        steps(engine, 1, 1)
        digest = engine.digest()
    (tmp_path / "more").mkdir()
    assert digest in program("inspect", tmp_path / "run", "--digest")
    program("drive", "add", tmp_path / "run", tmp_path / "more")
    program("export", tmp_path / "run", "--out", tmp_path / "out")
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.digest() == digest
    program("rollback", tmp_path / "run", "one")
    with longshore.resume(tmp_path / "run") as engine:
        steps(engine, 1, 1)
        assert engine.digest() == digest


def test_from_deepspeed_and_what_is_no_share(tmp_path, seed):
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "longshore": {"run": str(tmp_path / "run"), "compress": "top1%", "compress_after": 2},
    }
    engine = deepspeed.initialize(model=gpt2(), config=config)[0]
    assert engine.engine._core.compression.share == 0.01 and engine.engine._core.compression.after == 2
    engine.destroy()
    for compress in ("topk", "top0.01", 0, 1.5, "101%", True):
        with pytest.raises(ValueError, match="compress=.*top1%"):
            longshore.wrap(gpt2(), run=tmp_path / "other", compress=compress)
    for after in (-1, 3, 0.5):
        with pytest.raises(ValueError, match="compress_after( must be|=3 has no effect)"):
            longshore.wrap(gpt2(), run=tmp_path / "other", compress_after=after)
