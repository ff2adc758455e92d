"""Runs and checkpoints that another configuration goes on with."""

import pytest
import torch

import longshore
import longshore.deepspeed as deepspeed
from models import gpt2, tokens


def made(tmp_path, seed, run, kind="AdamW", **more):
    torch.manual_seed(seed)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": kind, "params": {"lr": 1e-2}},
        "longshore": {"run": str(tmp_path / run), "memory": "1GiB", **more.pop("longshore", {})},
        **more,
    }
    if kind is None:
        del config["optimizer"]
    return deepspeed.initialize(model=gpt2(), config=config)[0]


def step(engine, n=1):
    for batch in tokens(n):
        engine.backward(engine(**batch).loss)
        engine.step()


def test_another_optimizer_is_refused(tmp_path, seed):
    engine = made(tmp_path, seed, "a")
    step(engine, 2)
    engine.save_checkpoint(tmp_path / "out")
    engine.destroy()
    for kind in ("Adagrad", "SGD"):
        with pytest.raises(longshore.LongshoreError, match=f"its optimizer is adamw, and not {kind.lower()}"):
            made(tmp_path, seed, "a", kind)
        other = made(tmp_path, seed, f"of-{kind}", kind)
        step(other)
        before = other.engine.digest()
        with pytest.raises(longshore.LongshoreError, match=f"its optimizer is adamw, and not {kind.lower()}"):
            other.load_checkpoint(tmp_path / "out")
        assert other.engine.digest() == before
        other.load_checkpoint(tmp_path / "out", load_optimizer_states=False)  # the parameters alone
        assert other.global_steps == 2
        step(other)
        other.destroy()
    again = made(tmp_path, seed, "a", None)  # to evaluate with
    again.load_checkpoint(tmp_path / "out")
    assert again(**tokens(1)[0]).loss.item() > 0
    again.destroy()
    again = made(tmp_path, seed, "a")
    again.load_checkpoint(tmp_path / "out")
    step(again)
    again.destroy()


@pytest.mark.parametrize("by_name", [False, True])
def test_what_a_run_keeps_is_said(tmp_path, seed, by_name, caplog):
    engine = made(tmp_path, seed, "a")
    step(engine, 2)
    engine.save_checkpoint(tmp_path / "out")
    engine.destroy()
    assert "continues as it was made" not in caplog.text
    other = (
        {"longshore": {"moments": "8bit"}, "bf16": {"enabled": True, "auto_cast": True}}
        if by_name
        else {"longshore": {"moments": "8bit"}}
    )
    engine = made(tmp_path, seed, "a" if by_name else "b", **other)
    engine.load_checkpoint(tmp_path / "out")
    step(engine)
    assert engine.bfloat16_enabled() is False
    engine.destroy()
    assert "continues as it was made: moments fp32, and not 8bit" in caplog.text
    assert ("computed in fp32, and not bf16" in caplog.text) is by_name
