"""transformers' Trainer, DeepSpeed's API and the examples on a device that PyTorch has and the machine has not
(standin.py): nothing of theirs is changed for it."""

import pytest

import standin

pytest.importorskip("accelerate")
THERE = f"{standin.NAME}:0"


def test_a_trainer(told):
    """It trains, evaluates before and in between, saves and goes on, with the bits of the CPU."""
    here, there = told["trainer here"], told["trainer there"]
    assert (here.pop("device"), there.pop("device")) == ("cpu", THERE)
    assert (here.pop("gpu_memory"), there.pop("gpu_memory")) == (None, 1 << 30)
    assert here == there and len(here["losses"]) == 10 and len(here["evaluated"]) == 4


def test_deepspeed(told):
    here, there = told["deepspeed here"], told["deepspeed there"]
    assert (here.pop("device"), there.pop("device")) == ("cpu", THERE)
    assert (here.pop("name"), there.pop("name")) == ("cpu", standin.NAME)
    logs = here.pop("log"), there.pop("log")
    assert "forward brought" in logs[0] and " of gpu_memory " not in logs[0]
    assert "forward brought" not in logs[1] and f"on {THERE} it took" in logs[1] and " of gpu_memory " in logs[1]
    assert "computes on cpu>" in here.pop("shown") and f"computes on {THERE}>" in there.pop("shown")
    assert here.pop("lost") is None and "the batch lies elsewhere" in there.pop("lost")
    assert here == there


def test_examples(told):
    assert int(told["any module"][-1].split("right: ")[1].split("%")[0]) > 70
    assert told["plain loop"][-2].startswith("step 3 ") and told["plain loop goes on"][-2].startswith("step 5 ")
    for name in ("lora", "distill"):
        assert any(line.startswith("step 2 ") for line in told[name]), name


def test_figures_of_a_gpu(told):
    """bench/gpu.py measures: losses are PyTorch's, and the device's memory is counted."""
    figures = {row: lines[-1] for row, lines in told["bench"].items()}
    assert figures["losses"]["value"] <= 2e-6
    assert 0 < figures["memory-3b"]["value"] < 1 and 0 < figures["long-1b"]["value"] < 1
