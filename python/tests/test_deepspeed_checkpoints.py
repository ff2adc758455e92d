"""Checkpoints of DeepSpeed's surface that go into a run of another engine, whole or in part."""

import pytest
import torch

import longshore
import longshore.deepspeed as deepspeed
from models import tokens
from test_deepspeed import loop, made


def masters(engine):
    return [deepspeed.utils.safe_get_full_fp32_param(p) for p in engine.module.parameters()]


def moments(engine):
    some = list(engine.module.parameters())[::3]
    return [deepspeed.utils.safe_get_full_optimizer_state(p, k) for p in some for k in ("exp_avg", "exp_avg_sq")]


def same(a, b):
    return all(map(torch.equal, a, b))


def test_a_checkpoint_of_a_run_that_another_engine_works_on(tmp_path, seed):
    """Is copied into the engine's own run, and goes on there with the same bits."""
    batches = tokens(12)
    engine = made(tmp_path, seed)
    loop(engine, batches[:4])
    engine.save_checkpoint(tmp_path / "out", client_state={"epoch": 3})
    other = made(tmp_path, seed + 1)
    loop(other, batches[6:])
    own = other.engine.state.path
    _, client = other.load_checkpoint(tmp_path / "out")
    assert client == {"epoch": 3} and other.engine.state.path == own and other.engine.step_number == 4 and other.global_steps == 2
    assert loop(other, batches[4:8]) == loop(engine, batches[4:8])
    assert same(masters(engine), masters(other)) and same(moments(engine), moments(other))
    other.destroy()
    other = made(tmp_path, seed, longshore={"run": own, "resume": True})
    assert other.engine.step_number == 6 and other.global_steps == 4
    assert loop(other, batches[8:]) == loop(engine, batches[8:])
    another = made(tmp_path, seed, longshore={"moments": "8bit"})
    with pytest.raises(longshore.LongshoreError, match="another optimizer or other moments.*close that one"):
        another.load_checkpoint(tmp_path / "out")
    loop(another, batches[:2])
    assert another.global_steps == 1
    for e in (engine, other, another):
        e.destroy()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("how", [{"load_optimizer_states": False}, {"load_module_only": True}])
def test_parameters_of_a_checkpoint_alone(tmp_path, seed, how, own):
    batches = tokens(8)
    engine = made(tmp_path, seed)
    loop(engine, batches[:4])
    engine.save_checkpoint(tmp_path / "out", client_state={"epoch": 3})
    expected = masters(engine)
    if own:
        other = engine
    else:
        engine.destroy()
        other = made(tmp_path, seed + 1, optimizer={"type": "AdamW", "params": {"lr": 1e-2}})
    loop(other, batches[4:6])
    before, steps, run = moments(other), other.engine.step_number, other.engine.state.path
    path, client = other.load_checkpoint(tmp_path / "out", **how)
    assert path.endswith("global_step2") and client == {"epoch": 3} and other.engine.state.path == run
    assert same(masters(other), expected) and same(moments(other), before) and other.engine.step_number == steps + 1
    after = {"load_optimizer_states": 2, "load_module_only": 3 if own else 1}[next(iter(how))]
    assert other.global_steps == after and other.lr_scheduler.last_batch_iteration == after - 1
    loop(other, batches[6:])
    assert other.global_steps == after + 1
    other.destroy()
