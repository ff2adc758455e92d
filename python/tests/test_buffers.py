"""Buffers that change their size in training, as observers of quantization and banks of features do: as in PyTorch, and
resumed so."""

import copy
import re

import peft
import pytest
import torch
from torch import nn
from torch.ao.quantization import get_default_qat_qconfig, prepare_qat

import longshore
from longshore.run import checkpoint
from models import gpt2, llama, tokens
from test_loop import engine_for


def observed():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).train()
    model.qconfig = get_default_qat_qconfig("fbgemm")
    return prepare_qat(model)


class Bank(nn.Module):
    """of features, which fills; a table that is made when it is first asked for, and one that gets another dtype."""

    def __init__(self, most=20, other=0):
        super().__init__()
        torch.manual_seed(4)
        self.layer, self.most = nn.Linear(16, 4), most
        self.register_buffer("bank", torch.zeros(other, 4))
        self.register_buffer("first", None)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.float32))
        self.twin = nn.Module()
        self.twin.register_buffer("seen", self.seen)

    def forward(self, x):
        y = self.layer(x)
        self.bank = torch.cat([self.bank, y.detach()])[-self.most :]
        if self.first is None:
            self.first = y.detach().mean(0)
        self.seen = self.seen.double() + 0.1
        return y - self.first + self.bank.mean()


def batches(n):
    return [torch.randn(8, 16, generator=torch.Generator().manual_seed(i)) for i in range(n)]


def train(model, optimizer, step, xs):
    out = []
    for x in xs:
        loss = model(x).square().mean()
        step(loss)
        out.append(loss.item())
    return out


def plain_step(optimizer):
    def step(loss):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def engine_step(engine):
    def step(loss):
        engine.backward(loss)
        engine.step()

    return step


@pytest.mark.parametrize("make", [observed, Bank])
def test_buffers_that_grow(make, tmp_path, seed):
    plain, xs = make(), batches(9)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    step = plain_step(optimizer)
    early = train(plain, optimizer, step, xs[:2])
    engine = engine_for(make(), tmp_path, weight_decay=0.01, clip=0.0)
    assert train(engine, None, engine_step(engine), xs[:2]) == pytest.approx(early, rel=1e-6)
    checkpoint.save(engine, tmp_path / "checkpoint")
    before = {name: b.clone() for name, b in plain.named_buffers()}
    expected = train(plain, optimizer, step, xs[2:6])
    assert train(engine, None, engine_step(engine), xs[2:6]) == pytest.approx(expected, rel=1e-6)
    engine.close()
    engine = longshore.resume(tmp_path / "run", make())
    again, buffers = (
        dict(engine.module.named_buffers(remove_duplicate=False)),
        dict(plain.named_buffers(remove_duplicate=False)),
    )
    assert again.keys() == buffers.keys()
    for name, b in buffers.items():
        assert b.dtype == again[name].dtype and torch.allclose(b, again[name], atol=1e-6), name
    expected = train(plain, optimizer, step, xs[6:])
    assert train(engine, None, engine_step(engine), xs[6:]) == pytest.approx(expected, rel=1e-6)
    checkpoint.load(engine, tmp_path / "checkpoint")  # into buffers that are larger by now
    for name, b in engine.module.named_buffers():
        assert b.shape == before[name].shape and torch.allclose(b, before[name], atol=1e-6), name
    engine.close()


def test_a_model_that_was_warmed_up_before(tmp_path, seed):
    """Observers had their size when the run was made: a new model's take it."""
    model = observed()
    model(batches(1)[0])
    shapes = {name: b.shape for name, b in model.named_buffers()}
    with engine_for(model, tmp_path):
        pass
    assert shapes != {name: b.shape for name, b in observed().named_buffers()}
    with longshore.resume(tmp_path / "run", observed()) as engine:
        assert {name: b.shape for name, b in engine.module.named_buffers()} == shapes


def test_what_does_not_fit_is_named(tmp_path, seed):
    with engine_for(Bank(), tmp_path) as engine:
        train(engine, None, engine_step(engine), batches(2))
    with pytest.raises(
        longshore.LongshoreError, match=re.escape("the model is not the run's: bank is [3, 4] and was [16, 4]")
    ):
        longshore.resume(tmp_path / "run", Bank(other=3))
    with longshore.resume(tmp_path / "run", Bank(other=16)) as engine:
        engine(batches(1)[0])
    without = Bank()
    del without.seen
    with pytest.raises(longshore.LongshoreError, match="seen is missing"):
        longshore.resume(tmp_path / "run", without)


def test_buffers_that_grow_too_large_are_named(tmp_path, seed):
    for model, said in (
        (Bank(20000), r"bank: this buffer was \[8200, 4\] torch.float32 at wrap\(\), is \[8208, 4\]"),
        (Bank(20000), r"65536 is the most: buffer bank \d{6}"),
    ):
        if "8200" in said:
            model.bank = torch.rand(8200, 4)
        name = f"run{len(said)}"
        with pytest.raises(longshore.LongshoreError, match=said), engine_for(model, tmp_path, name) as engine:
            x = batches(1)[0] if "8200" in said else torch.rand(10000, 16)
            train(engine, None, engine_step(engine), [x])
            engine.settle()


def test_what_a_user_has_rounded_stays_so(tmp_path, seed):
    """Buffers that no state_dict() has are made anew with the model, in the dtype that they had."""
    model = llama().bfloat16()
    assert model.model.rotary_emb.inv_freq.dtype == torch.bfloat16
    with engine_for(model, tmp_path) as engine:
        digests = []
        for batch in tokens(2):
            engine.backward(engine(**batch).loss)
            engine.step()
        engine.snapshot("two")
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        digests.append(engine.digest())
    longshore.drives.state.rollback(tmp_path / "run", "two")
    with longshore.resume(tmp_path / "run") as engine:
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        digests.append(engine.digest())
        assert engine.module.model.rotary_emb.inv_freq.dtype == torch.bfloat16
    assert digests[0] == digests[1]
    other = llama()
    with engine_for(copy.deepcopy(other), tmp_path, "other"):
        pass
    with pytest.raises(longshore.LongshoreError, match="rotary_emb.inv_freq is torch.bfloat16, and was torch.float32"):
        longshore.resume(tmp_path / "other", other.bfloat16())


def test_a_buffer_that_only_its_maker_knows(tmp_path, seed):
    """Projections that adapters do not save are made beside the base's weights, which a model without values does not
    have."""

    def adapted():
        torch.manual_seed(1)
        return peft.get_peft_model(llama(), peft.VeraConfig(r=4, target_modules=["q_proj"], save_projection=False))

    with engine_for(adapted(), tmp_path) as engine:
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        loss = engine(**tokens(1)[0]).loss
    with pytest.raises(
        longshore.LongshoreError,
        match="vera_A.* is a buffer that state_dict.. leaves out.* give resume.. the module itself",
    ):
        longshore.resume(tmp_path / "run")
    with longshore.resume(tmp_path / "run", adapted()) as engine:
        assert torch.equal(engine(**tokens(1)[0]).loss, loss)


def test_a_state_that_is_kept_leaves_tensors_as_they_are(tmp_path, seed):
    """Also of schedulers and whatever else is followed: their storages may change their size afterwards."""

    class Followed:
        seen = torch.zeros(2)

        def state_dict(self):
            return {"seen": self.seen}

    followed = Followed()
    with engine_for(gpt2(layers=2), tmp_path) as engine:
        engine.follow("seen", followed)
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        engine.settle()
    followed.seen.resize_(100)
