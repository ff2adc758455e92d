"""What is said of memory, and what is given back to the system."""

import logging
import random
import re

import pytest
import torch
from torch import nn

import longshore
from longshore import native
from longshore.model import init_on_disk
from longshore.run import allocator, memory
from models import gpt2, tokens
from test_loop import engine_for

needs_glibc = pytest.mark.skipif(allocator.held() == (0, 0), reason="this allocator does not say what it holds")


class Wide(nn.Module):
    """Little state, and 96 MiB of what autograd saves for backward."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x):
        x = self.layers(x).repeat(1, 1 << 20)
        for _ in range(6):
            x = x.sigmoid()
        return x.mean()


def bytes_of(text, pattern):
    return native.size(re.search(pattern, text)[1])


@needs_glibc
def test_memory_has_what_the_allocator_holds(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        before = engine.memory()
        more = torch.ones(16 << 20)
        after = engine.memory()
        assert after.allocated - before.allocated >= more.nbytes
        text = str(after)
        assert (
            repr(after) == text
            and f"{native.readable(after.allocated)} for PyTorch's tensors" in text
            and f"{native.readable(after.kept)} kept" in text
        )


@needs_glibc
def test_what_is_kept_is_given_back(monkeypatch):
    many = [bytearray(60_000) for _ in range(4000)]
    del many[1::2], many[-1:]
    last = bytearray(60_000)  # what is free lies below it
    keeper, walks = allocator.Keeper(), []
    monkeypatch.setattr(
        allocator, "give_back", lambda give_back=allocator.give_back: walks.append(give_back()) or walks[-1]
    )
    monkeypatch.setattr(allocator, "LEAST_BYTES", 64 << 20)
    assert allocator.held()[1] >= 64 << 20
    keeper.rest()
    keeper.rest()  # not at once again
    assert len(walks) == 1 and walks[0] > 50 << 20 and len(many) + len(last) > 2000
    assert allocator.held()[1] < 16 << 20  # what was given back is not kept


@needs_glibc
def test_memory_gives_back_what_is_kept(tmp_path, seed):
    """Whatever sizes are freed, and in which order: the number is what the process keeps, and that is little."""
    rnd = random.Random(seed)
    with engine_for(gpt2(), tmp_path) as engine:
        before = engine.memory()
        for _ in range(2):
            many = [torch.ones(int(2 ** rnd.uniform(8, 22))) for _ in range(400)]
            rnd.shuffle(many)
            kept = many[::9]
            del many
            said = engine.memory()
            assert said.kept < allocator.LEAST_BYTES
            grown, used = said.process_now - before.process_now, sum(t.nbytes for t in kept)
            assert grown < used + allocator.LEAST_BYTES + (32 << 20)


@pytest.mark.parametrize("budget, advises", [("16MiB", True), ("4GiB", False)])
def test_the_first_step_is_said(budget, advises, tmp_path, seed, caplog):
    caplog.set_level(logging.INFO, "longshore")
    engine = longshore.wrap(Wide(), run=tmp_path / "run", memory=budget)
    for _ in range(2):
        engine.backward(engine(torch.randn(1, 4)))
        engine.step()
    (said,) = [line for line in caplog.messages if "at its peak beyond its imports" in line]
    assert said.startswith("step 1: the process took ")
    assert bytes_of(said, r"forward brought ([0-9.]+ \w+) of") >= 90 << 20
    assert bytes_of(said, r"the process took ([0-9.]+ \w+) at") >= 90 << 20
    assert ("That is more than memory= and a quarter" in said) is advises
    ways = 'wrap(activations="drives") saves up to', "gradient checkpointing saves", "half the size save"
    assert all(way in said for way in ways) is advises
    engine.close()
    spoken = []
    with longshore.resume(tmp_path / "run", Wide) as engine:
        engine._core.meter.say_by(spoken.append)
        engine.backward(engine(torch.randn(1, 4)))
        engine.step()
    assert len(spoken) == 1 and spoken[0].startswith("step 3: the process took ")


def layers():
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])  # 32 MiB


@needs_glibc
@pytest.mark.parametrize("where", ["memory", "files", "files that were read"])
def test_the_imports_are_the_same_wherever_the_model_is_made(where, tmp_path, seed, monkeypatch):
    """The pages of a model that are in memory are no part of them, and no others."""
    monkeypatch.setattr(init_on_disk, "RESIDENT_BYTES", 1)
    allocator.give_back()
    before = allocator.process_bytes()
    if where == "memory":
        engine = longshore.wrap(layers(), run=tmp_path / "run")
    else:
        with longshore.init(tmp_path / "run"):
            model = layers()
        assert where == "files" or sum(p.sum().item() for p in model.parameters())
        engine = longshore.wrap(model)
    engine.close()
    assert abs(memory.imports_bytes() - before) < 12 << 20


def test_what_is_not_measured_is_left_out(tmp_path, seed, monkeypatch):
    """What the system does not tell, and a first step that was not watched from its beginning; nothing has 0 bytes."""
    monkeypatch.setattr(memory, "_resident_bytes", lambda tensors: open("/proc/self/nothing"))
    said, engine = [], longshore.wrap(gpt2(layers=2).eval(), run=tmp_path / "run", memory="32MiB")
    engine._core.meter.say_by(said.append)
    monkeypatch.setattr(engine._core.meter, "start", lambda state, start=engine._core.meter.start: None)
    engine(**tokens(1)[0]).loss.backward()
    monkeypatch.undo()
    engine.step()
    assert not said
    for _ in range(2):
        engine(**tokens(1)[0]).loss.backward()
        engine.step()
    assert len(said) == 1 and re.match(r"step 2: the process took [0-9.]+ \w+ at its peak: the engine holds ", said[0])
    assert not re.search(r"\b0B|imports|-\d", said[0])
    engine.close()


def test_the_trainer_says_it(tmp_path, seed, capsys):
    pytest.importorskip("transformers")
    from longshore.transformers import Trainer, TrainingArguments

    args = TrainingArguments(
        str(tmp_path / "out"), run=str(tmp_path / "run"), memory="64MiB", max_steps=2, report_to=[], save_strategy="no"
    )
    trainer = Trainer(gpt2(), args, train_dataset=[{key: value[0] for key, value in tokens(1)[0].items()}] * 4)
    trainer.train()
    trainer.engine.close()
    assert capsys.readouterr().err.count("at its peak beyond its imports") == 1
