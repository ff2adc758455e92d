"""What monitors write is what was trained: read back from CSV and TensorBoard's files."""

import csv
import importlib.util

import pytest
import torch

import longshore.deepspeed as deepspeed
from models import tokens
from test_deepspeed import loop, made

LABELS = "Train/Samples/train_loss", "Train/Samples/lr"


def in_csv(directory):
    told = {}
    for label in LABELS:
        with open(directory / (label.replace("/", "_") + ".csv"), newline="", encoding="utf-8") as f:
            head, *rows = csv.reader(f)
        assert head == ["step", label.rpartition("/")[2]]
        told[label] = [(int(step), float(value)) for step, value in rows]
    return told


def in_tensorboard(directory):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory)).Reload()
    return {label: [(e.step, e.value) for e in events.Scalars(label)] for label in events.Tags()["scalars"]}


@pytest.mark.parametrize("kind, read", [("csv_monitor", in_csv), ("tensorboard", in_tensorboard)])
def test_monitors(kind, read, tmp_path, seed, monkeypatch):
    if kind == "tensorboard":
        pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)  # where they write by default
    rates = []
    engine = made(tmp_path, seed, **{kind: {"enabled": True}})
    losses = loop(engine, tokens(4))
    engine.save_checkpoint(tmp_path / "out")
    engine.destroy()
    engine = made(tmp_path, seed, **{kind: {"enabled": True}})
    engine.load_checkpoint(tmp_path / "out")
    losses += loop(engine, tokens(6)[4:])
    rates = [engine.get_lr()[0]]
    engine.destroy()
    told = read(tmp_path / "DeepSpeedJobName")
    expected = [(4 * n + 4, sum(losses[2 * n : 2 * n + 2]) / 2) for n in range(3)]  # by samples
    assert [step for step, _ in told[LABELS[0]]] == [step for step, _ in told[LABELS[1]]] == [4, 8, 12]
    assert [value for _, value in told[LABELS[0]]] == pytest.approx([value for _, value in expected], rel=1e-6)
    assert told[LABELS[1]][-1][1] == pytest.approx(rates[0], rel=1e-6)
    assert told[LABELS[1]][0][1] < told[LABELS[1]][1][1] < told[LABELS[1]][2][1]  # warmup


def test_what_is_not_installed_is_said(tmp_path, seed):
    for kind in ("wandb", "tensorboard"):
        if importlib.util.find_spec(kind) is None:
            with pytest.raises(deepspeed.ConfigError, match=f"{kind}.enabled: {kind} is not installed"):
                made(tmp_path, seed, **{kind: {"enabled": True}})


def test_the_trainer_in_tensorboard(tmp_path, seed):
    pytest.importorskip("tensorboard")
    pytest.importorskip("accelerate")
    from longshore.transformers import Trainer, TrainingArguments
    from test_trainer import Sentences, arguments, model

    torch.manual_seed(seed)
    args = arguments(TrainingArguments, tmp_path, run=str(tmp_path / "run"), eval_strategy="steps", eval_steps=3)
    args.report_to = ["tensorboard"]
    trainer = Trainer(model(seed), args, train_dataset=Sentences(40), eval_dataset=Sentences(6, 4))
    trainer.train()
    trainer.engine.close()
    written = next(tmp_path.rglob("events.out.tfevents.*"))  # transformers 5 and 4 have other directories
    told = in_tensorboard(written.parent)
    names = {**{f"train/{key}": key for key in ("loss", "grad_norm", "learning_rate")}, "eval/loss": "eval_loss"}
    for name, key in names.items():
        expected = [(line["step"], line[key]) for line in trainer.state.log_history if key in line]
        assert len(expected) == (2 if name == "eval/loss" else 6)
        assert [step for step, _ in told[name]] == [step for step, _ in expected]
        assert [value for _, value in told[name]] == pytest.approx([value for _, value in expected], rel=1e-6)
