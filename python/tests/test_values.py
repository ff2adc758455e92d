"""Masters, moments and gradients of a parameter; checkpoints as fp32; all bytes of a run; what memory is held."""

import copy
import os
import re
import subprocess
import sys

import pytest
import torch

import longshore
import longshore.deepspeed as deepspeed
from longshore.deepspeed import utils, zero_to_fp32
from longshore.drives.buffer import Buffer
from longshore.native import lib
from models import gpt2, tokens


def wrapped(tmp_path, seed, **how):
    torch.manual_seed(seed)
    return longshore.wrap(gpt2(), run=tmp_path / "run", **{"lr": 1e-2, "weight_decay": 0.1, **how}).train()


def train(engine, n=1, seed=7):
    for batch in tokens(n, seed=seed):
        engine.backward(engine(**batch).loss)
        result = engine.step()
    return result


def test_moments_are_those_of_pytorch(tmp_path, seed):
    torch.manual_seed(seed)
    plain = gpt2()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    for batch in tokens(2):
        optimizer.zero_grad()
        plain(**batch).loss.backward()
        optimizer.step()
    with wrapped(tmp_path, seed) as engine:
        train(engine, 2)
        theirs = dict(plain.named_parameters())
        for name, p in engine.module.named_parameters():
            assert torch.equal(utils.safe_get_full_fp32_param(p), p.detach())
            for key in ("exp_avg", "exp_avg_sq"):
                ours = utils.safe_get_full_optimizer_state(p, key)
                assert torch.allclose(ours, optimizer.state[theirs[name]][key], rtol=1e-3, atol=1e-7), (name, key)
        with pytest.raises(longshore.LongshoreError, match="exp_avg_sqr.*exp_avg, exp_avg_sq"):
            utils.safe_get_full_optimizer_state(p, "exp_avg_sqr")


@pytest.mark.parametrize("moments", ["fp32", "8bit"])
@pytest.mark.parametrize("storage", ["fp32", "bf16"])
def test_what_is_written_stays(tmp_path, seed, moments, storage):
    with wrapped(tmp_path, seed, moments=moments, storage=storage) as engine:
        train(engine)
        p = engine.module.transformer.h[1].mlp.c_fc.weight
        other = engine.module.transformer.h[1].mlp.c_fc.bias
        before = [utils.safe_get_full_fp32_param(other), utils.safe_get_full_optimizer_state(other, "exp_avg")]
        utils.safe_set_full_fp32_param(p, torch.full(p.shape, 1.00001))  # which bf16 does not have
        utils.safe_set_full_optimizer_state(p, torch.full(p.shape, 0.25), "exp_avg")
        utils.safe_set_full_optimizer_state(p, 0.5, "exp_avg_sq")
        assert engine.step_number == 4
        assert torch.equal(utils.safe_get_full_fp32_param(p), torch.full(p.shape, 1.00001))
        assert torch.equal(utils.safe_get_full_optimizer_state(p, "exp_avg"), torch.full(p.shape, 0.25))
        assert torch.equal(utils.safe_get_full_optimizer_state(p, "exp_avg_sq"), torch.full(p.shape, 0.5))
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                before, [utils.safe_get_full_fp32_param(other), utils.safe_get_full_optimizer_state(other, "exp_avg")]
            )
        )
        assert torch.equal(
            p.detach(), torch.full(p.shape, 1.00001).to(torch.float32 if storage == "fp32" else torch.bfloat16).float()
        )
        digest = engine.digest()
        with pytest.raises(longshore.LongshoreError, match="c_fc.weight: holds a negative second moment"):
            utils.safe_set_full_optimizer_state(p, -0.5, "exp_avg_sq")
        with pytest.raises(longshore.NotFiniteError, match="c_fc.weight"):
            utils.safe_set_full_fp32_param(p, float("nan"))
        engine.backward(engine(**tokens(1)[0]).loss)
        with pytest.raises(longshore.LongshoreError, match="c_fc.weight.*after step"):
            utils.safe_set_full_fp32_param(p, 0)
        engine.drop_gradients()
        assert engine.digest() == digest
    with longshore.resume(tmp_path / "run") as again:
        assert again.digest() == digest
        train(again)


@pytest.mark.parametrize("memory", [None, "least"])
def test_gradients_that_are_changed(tmp_path, seed, memory):
    digests = []
    for n in range(2):
        with wrapped(tmp_path / str(n), seed) as engine:
            if memory:
                engine._core.gradients.room = 0  # they go to the drives
                engine._core.gradients.open(engine._core.state)
            batch = tokens(1)[0]
            engine.backward(engine(**batch).loss * (2 if n else 1))  # of which blocks are updated at once
            if not n:
                parameters = [p for p in engine.module.parameters()]
                utils.safe_update_full_grad_vectorized(parameters, lambda gradient, p: gradient * 2)
            norm = engine.step().grad_norm
            digests.append((engine.digest(), norm))
            with pytest.raises(longshore.LongshoreError, match="call backward"):
                utils.safe_set_full_grad(engine.module.transformer.wte.weight, 0)
    assert digests[0] == digests[1]


def test_a_checkpoint_as_fp32(tmp_path, seed):
    ds = {
        "train_batch_size": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "bf16": {"enabled": True},
        "longshore": {"run": str(tmp_path / "run")},
    }
    torch.manual_seed(seed)
    model = gpt2()
    model.transformer.h[0].ln_1.requires_grad_(False)
    engine = deepspeed.initialize(model=model, config=ds)[0].train()
    train(engine)
    engine.save_checkpoint(tmp_path / "out")
    expected = {name: utils.safe_get_full_fp32_param(p) for name, p in model.named_parameters()}
    train(engine)
    engine.save_checkpoint(tmp_path / "out")
    train(engine)  # the run has gone on, and is open
    values = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "out", tag="global_step1")
    assert all(torch.equal(values[name], value) for name, value in expected.items())
    assert (
        torch.equal(values["lm_head.weight"], values["transformer.wte.weight"])
        and values["lm_head.weight"].dtype == torch.float32
    )
    trained = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "out", exclude_frozen_parameters=True)
    assert set(values) - set(trained) == {"transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias"}
    assert not torch.equal(trained["lm_head.weight"], values["lm_head.weight"])
    engine.destroy()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [
        sys.executable,
        "-m",
        "longshore.deepspeed.zero_to_fp32",
        tmp_path / "out",
        tmp_path / "whole",
        "-t",
        "global_step1",
        "--max_shard_size",
        "64KiB",
    ]
    assert subprocess.run(command, env=env).returncode == 0
    for change, why in (
        ({4: tmp_path / "new", 6: "none"}, "none: is not a checkpoint"),
        ({4: tmp_path / "new", 8: "lots"}, "'lots' is not a size"),
    ):
        wrong = subprocess.run(
            [change.get(n, word) for n, word in enumerate(command)], env=env, capture_output=True, text=True
        )
        assert wrong.returncode == 1 and why in wrong.stderr and "Traceback" not in wrong.stderr
    assert not (tmp_path / "new").exists()
    shards = sorted(p.name for p in (tmp_path / "whole").glob("*.bin"))
    assert len(shards) > 1
    again = {}
    for name in shards:
        again.update(torch.load(tmp_path / "whole" / name))
    assert all(torch.equal(again[name], value) for name, value in expected.items())
    fresh = zero_to_fp32.load_state_dict_from_zero_checkpoint(gpt2(), tmp_path / "out", tag="global_step1")
    assert torch.equal(fresh.transformer.wte.weight, expected["transformer.wte.weight"])
    with pytest.raises(longshore.ExistsError, match="pytorch_model"):
        zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(tmp_path / "out", tmp_path / "whole")
    with pytest.raises(longshore.MissingError, match="latest"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)


def test_a_damaged_byte_is_found(tmp_path, seed):
    with wrapped(tmp_path, seed) as engine:
        train(engine)
        engine.snapshot("kept")
        digest = engine.digest()
        assert longshore.verify(engine) == digest
        page = Buffer(engine._core.layout.elems(0) * 2)
        engine._core.state.fetch(0, lib.SHORE_FETCH_BF16, page.pointer).result()
        there = bytes(page.bytes[:64].tolist())
    assert longshore.verify(tmp_path / "run") == longshore.verify(tmp_path / "run", snapshot="kept") == digest
    [volume] = (tmp_path / "run").glob("longshore*.volume")
    data = bytearray(volume.read_bytes())
    data[data.index(there) + 5] ^= 1
    volume.write_bytes(data)
    with pytest.raises(longshore.LongshoreError, match=volume.name):
        longshore.verify(tmp_path / "run")
    assert longshore.verify(tmp_path / "run", snapshot="kept") == digest
    with pytest.raises(longshore.MissingError):
        longshore.verify(tmp_path / "none")


def test_memory_is_said(tmp_path, seed):
    with wrapped(tmp_path, seed, memory="64MiB") as engine:
        engine.backward(engine(**tokens(1)[0]).loss)
        memory = engine.memory()
        assert memory.budget == 64 << 20 and 0 < memory.held <= memory.budget
        assert 0 < memory.gradients <= memory.gradients_most and memory.parameters > 0
        assert memory.process_at_wrap > 10 << 20 and memory.process_now > 10 << 20
        assert "memory 64.00 MiB" in str(memory) and "the process takes" in str(memory)


def test_no_budget_is_exceeded(tmp_path, seed):
    """From the least on: gradients in memory or aside, state that stays where gradients leave room."""
    model = [torch.nn.Linear(800, 800) for _ in range(3)]
    least, kept = None, 0
    for more in range(0, 72, 6):
        net = torch.nn.Sequential(*map(copy.deepcopy, model))
        memory = "1MiB" if least is None else (least + more) << 20
        try:
            engine = longshore.wrap(net, run=tmp_path / f"run{more}", memory=memory)
        except longshore.BudgetError as why:
            least = int(re.search(r"minimum ([0-9.]+) MiB", str(why)).group(1).split(".")[0]) + 1
            engine = longshore.wrap(net, run=tmp_path / f"run{more}", memory=least << 20)
        with engine:
            for _ in range(3):
                for _ in range(2):
                    engine.backward(engine(torch.ones(2, 800)).square().mean())
                    said = engine.memory()
                    assert said.held <= said.budget, (more, str(said))
                engine.step()
                said = engine.memory()
                assert said.held <= said.budget, (more, str(said))
            kept = max(kept, said.state)
    assert kept
