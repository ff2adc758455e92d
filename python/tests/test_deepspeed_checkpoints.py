"""Checkpoints of DeepSpeed's surface that go into a run of another engine, whole or in part."""

import os
import runpy
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

import longshore
import longshore.deepspeed as deepspeed
from longshore.deepspeed import zero_to_fp32
from longshore.run import checkpoint
from models import gpt2, tokens
from test_deepspeed import loop, made
from test_ending import ended
from test_loop import engine_for


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
    own = other.engine._core.state.path
    _, client = other.load_checkpoint(tmp_path / "out")
    assert (
        client == {"epoch": 3}
        and other.engine._core.state.path == own
        and other.engine.step_number == 4
        and other.global_steps == 2
    )
    assert loop(other, batches[4:8]) == loop(engine, batches[4:8])
    assert same(masters(engine), masters(other)) and same(moments(engine), moments(other))
    other.destroy()
    other = made(tmp_path, seed, longshore={"run": own, "resume": True})
    assert other.engine.step_number == 6 and other.global_steps == 4
    assert loop(other, batches[8:]) == loop(engine, batches[8:])
    another = made(tmp_path, seed, longshore={"moments": "8bit"})
    with pytest.raises(longshore.LongshoreError, match="another optimizer or other moments.*close that engine"):
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
    before, steps, run = moments(other), other.engine.step_number, other.engine._core.state.path
    path, client = other.load_checkpoint(tmp_path / "out", **how)
    assert path.endswith("global_step2") and client == {"epoch": 3} and other.engine._core.state.path == run
    assert same(masters(other), expected) and same(moments(other), before) and other.engine.step_number == steps + 1
    after = {"load_optimizer_states": 2, "load_module_only": 3 if own else 1}[next(iter(how))]
    assert other.global_steps == after and other.lr_scheduler.last_batch_iteration == after - 1
    loop(other, batches[6:])
    assert other.global_steps == after + 1
    other.destroy()


@pytest.mark.parametrize("trainer", [True, False])
def test_what_loads_a_checkpoint_is_in_it(trainer, tmp_path, seed, monkeypatch, caplog):
    """from_pretrained() of what a Trainer, or a script, has saved, once it is done what a file there says."""
    caplog.set_level("INFO", "longshore")
    out = tmp_path / "out"
    if trainer:
        from longshore.transformers import Trainer, TrainingArguments

        args = TrainingArguments(
            str(out),
            run=str(tmp_path / "run"),
            memory="64MiB",
            max_steps=3,
            save_steps=1,
            report_to=[],
            disable_tqdm=True,
        )
        rows = [{key: value[0] for key, value in tokens(1)[0].items()}] * 4
        of = Trainer(gpt2(), args, train_dataset=rows)
        of.train()
        engine, out = of.engine, out / "checkpoint-3"
        assert len([line for line in caplog.messages if "README.txt there says what loads them" in line]) == 1
    else:
        engine = made(tmp_path, seed)
        loop(engine, tokens(2))
        engine.module.config.save_pretrained(out)
        (out / "README.txt").write_text("mine")
        engine.save_checkpoint(out, "one")
        assert (out / "README.txt").read_text() == "mine"
        (out / "README.txt").unlink()
        engine.save_checkpoint(out, "two")
    expected = {name: p.detach() * 1 for name, p in engine.module.named_parameters()}
    (engine if trainer else engine.engine).close()
    monkeypatch.chdir(out)
    with pytest.raises(OSError, match="model.safetensors"):
        AutoModelForCausalLM.from_pretrained(".")
    (command,) = [
        line.split() for line in (out / "README.txt").read_text().splitlines() if line.startswith("    python -m ")
    ]
    monkeypatch.setattr(sys, "argv", command[2:])
    if trainer:
        zero_to_fp32.main()
    else:
        runpy.run_path("zero_to_fp32.py")
    loaded = AutoModelForCausalLM.from_pretrained(".")
    assert all(torch.equal(p, expected[name]) for name, p in loaded.named_parameters())


DELETES = """
import shutil, sys
import torch, longshore
from longshore.run import checkpoint
run, directory = sys.argv[1:]
with longshore.resume(run, torch.nn.Linear(8, 8)) as engine:
    checkpoint.load(engine, directory)
    shutil.rmtree(directory)
"""


def test_a_checkpoint_that_another_process_deletes(tmp_path, seed):
    """A process that has loaded it, and saved none yet."""
    with engine_for(torch.nn.Linear(8, 8), tmp_path) as engine:
        name = checkpoint.save(engine, tmp_path / "out")
    snapshots = tmp_path / "run" / "snapshots"
    assert f"{name}.json" in os.listdir(snapshots)
    process = ended(tmp_path, DELETES, tmp_path / "run", tmp_path / "out")
    assert process.returncode == 0, process.stderr
    assert f"{name}.json" not in os.listdir(snapshots)
