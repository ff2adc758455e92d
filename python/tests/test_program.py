"""RUN is a run as the program knows it, and what is saved is what others load."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import time

import pytest
import torch

import longshore
from longshore.run import memory_plan
from models import HANGS_SECONDS, Cnn, bert, gpt2, llama, tokens
from test_loop import engine_for

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")
needs_program = pytest.mark.skipif(not PROGRAM, reason="the program is not installed")


def program(*arguments):
    out = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=HANGS_SECONDS)
    assert out.returncode == 0, out.stderr
    return out.stdout


@needs_program
@pytest.mark.parametrize("of, means", [("engine", "of the engine"), ("process", "beside imports")])
def test_top_does_not_measure_the_process_against_the_engines_budget(tmp_path, of, means):
    """memory= says nothing of what Python has imported, which is more than the budget here."""
    with engine_for(gpt2(), tmp_path, memory="128MiB", memory_of=of) as engine:
        steps(engine, 2)
    text = program("top", "--once", tmp_path / "run")
    assert re.search(rf"^memory +\S+ [MG]iB, with imports\nbudget +128\.00 MiB, {means}$", text, re.M), text
    assert not re.search("^memory.*%", text, re.M)


def steps(engine, n, first=0):
    for batch in tokens(first + n)[first:]:
        engine.backward(engine(**batch).loss)
        engine.step()


@needs_program
def test_a_run_in_use_is_looked_at(tmp_path, seed):
    """While its engine is open: what it made last, and who works on it."""
    with engine_for(gpt2(), tmp_path) as engine:
        steps(engine, 2)
        engine.settle()
        said = json.loads(program("inspect", tmp_path / "run", "--json"))
        text = program("inspect", tmp_path / "run")
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert said["in_use"] and said["worker"]["pid"] == os.getpid() and said["worker"]["host"] == os.uname().nodename
    assert time.time() - 600 < said["worker"]["since"] <= time.time()
    assert abs(said["last_loss"] - line["loss"]) < 1e-6 and said["step_seconds"] > 0 and "remaining_seconds" not in said
    assert f"last steps: loss {line['loss']:.4f}, " in text and f"in use: by process {os.getpid()} (" in text
    said = json.loads(program("inspect", tmp_path / "run", "--json"))
    assert not said["in_use"] and "worker" not in said and said["last_loss"] > 0


@needs_program
def test_metrics_have_the_programs_keys(tmp_path, seed, monkeypatch):
    plan = memory_plan.plan  # without state in memory, whose updates wait for the norm
    monkeypatch.setattr(memory_plan, "plan", lambda *a, **k: dataclasses.replace(plan(*a, **k), spare_bytes=0))
    with engine_for(gpt2(), tmp_path, clip=0.0) as engine:
        engine.train_batch(tokens(1))
    (tmp_path / "text").write_text("every ship waits and meets a pilot. " * 50)
    how = "--drive ram: --tokenizer bytes --seq-len 16 --batch 1 --steps 1 --quiet".split()
    program("train", "--init", "gpt2-tiny", "--data", tmp_path / "text", "--out", tmp_path / "theirs", *how)
    ours, theirs = (json.loads((tmp_path / run / "metrics.jsonl").read_text()) for run in ("run", "theirs"))
    assert ours.keys() == theirs.keys() | {"time"}
    assert ours["speculated"]


@needs_program
def test_commands_know_it(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        steps(engine, 2)
        digest = engine.digest()
        engine.snapshot("two")
        steps(engine, 1, 2)
        third = engine.digest()
    run = tmp_path / "run"
    assert digest != third and third in program("inspect", run, "--digest")
    (tmp_path / "more").mkdir()
    program("drive", "add", run, tmp_path / "more")
    with longshore.resume(run) as engine:
        assert engine.step_number == 3 and engine.digest() == third
    program("rollback", run, "two")
    with longshore.resume(run) as engine:
        engine.train()
        assert engine.step_number == 2 and engine.digest() == digest
        steps(engine, 1, 2)
        assert engine.digest() == third
    program("remove", run)
    assert not run.exists() and not list((tmp_path / "more").iterdir())


@pytest.mark.parametrize("kind", [gpt2, llama, bert])
def test_transformers_loads_what_is_saved(kind, tmp_path, seed):
    with engine_for(kind(), tmp_path) as engine:
        steps(engine, 2)
        engine.save_pretrained(tmp_path / "out", max_shard_size="50KiB")
        loaded = type(engine.module).from_pretrained(tmp_path / "out")
        for (name, p), (_, q) in zip(engine.module.named_parameters(), loaded.named_parameters()):
            assert torch.equal(p.detach() * 1, q), name


def test_buffers_are_saved_too(tmp_path, seed):
    from safetensors.torch import load_file

    with engine_for(Cnn(), tmp_path) as engine:
        engine.train()
        engine.backward(engine(torch.randn(4, 1, 8, 8)).square().mean())
        engine.step()
        engine.save_pretrained(tmp_path / "out")
        saved = {}
        for file in (tmp_path / "out").glob("*.safetensors"):
            saved.update(load_file(file))
        state = engine.module.state_dict()
        assert saved.keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(saved[name], value * 1 if value.is_floating_point() else value), name


@pytest.mark.parametrize("shards", [None, "8KiB"])
def test_transformers_loads_buffers(shards, tmp_path, seed):
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    )
    with engine_for(model, tmp_path) as engine:
        engine.train()
        engine.backward(engine(torch.randn(2, 3, 16, 16)).logits.square().mean())
        engine.step()
        engine.save_pretrained(tmp_path / "out", max_shard_size=shards)
        loaded = type(model).from_pretrained(tmp_path / "out").state_dict()
        for name, value in model.state_dict().items():
            assert torch.equal(value * 1, loaded[name]), name


@needs_program
def test_runs_of_the_program_and_back(tmp_path, seed):
    """Each says how its weights go over: moments and the place in the data are its own."""
    model = gpt2()
    model.save_pretrained(tmp_path / "hf")
    for name in ("drive", "back"):
        (tmp_path / name).mkdir()
    program(
        "import",
        tmp_path / "hf",
        "--drive",
        tmp_path / "drive",
        "--out",
        tmp_path / "theirs",
        "--precision",
        "fp32",
        "--tokenizer",
        "bytes",
    )
    with pytest.raises(
        longshore.LongshoreError, match="theirs: was made by longshore train: .*longshore export .*from_pretrained"
    ):
        longshore.resume(tmp_path / "theirs")
    program("export", tmp_path / "theirs", "--dtype", "fp32", "--out", tmp_path / "exported")
    loaded = type(model).from_pretrained(tmp_path / "exported")
    with engine_for(loaded, tmp_path, "ours") as engine:
        for (name, p), q in zip(engine.module.named_parameters(), model.parameters()):
            assert torch.equal(p.detach() * 1, q), name
        steps(engine, 1)
        engine.save_pretrained(tmp_path / "saved")
        expected = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
    said = subprocess.run([PROGRAM, "train", "--resume", str(tmp_path / "ours")], capture_output=True, text=True)
    assert said.returncode and "ours: was made by longshore.torch: continue it there, or save it there" in said.stderr
    program(
        "import",
        tmp_path / "saved",
        "--drive",
        tmp_path / "back",
        "--out",
        tmp_path / "again",
        "--precision",
        "fp32",
        "--tokenizer",
        "bytes",
    )
    program("export", tmp_path / "again", "--dtype", "fp32", "--out", tmp_path / "end")
    for name, p in type(model).from_pretrained(tmp_path / "end").named_parameters():
        assert torch.equal(p, expected[name]), name
