"""From a model to a run: what is refused, and models that never are in memory."""

import json
import math
import pathlib
import time

import pytest
import torch

import longshore
from longshore.model import init_on_disk
from models import Cnn, gpt2, tokens
from test_loop import engine_for


def test_made_inside_init_with_the_same_numbers(tmp_path, seed):
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        (tmp_path / f"drive{n}").mkdir()
        if n:
            with longshore.init(tmp_path / "run1", drives=tmp_path / "drive1"):
                model = gpt2()
            engine = longshore.wrap(model, lr=1e-3)
        else:
            engine = longshore.wrap(gpt2(), lr=1e-3, run=tmp_path / "run0", drives=tmp_path / "drive0")
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        digests.append(engine.digest())
        engine.close()
    assert digests[0] == digests[1]


def test_bad_input(tmp_path, seed):
    with pytest.raises(ValueError, match="where is the state to live"):
        longshore.wrap(gpt2())
    with pytest.raises(longshore.BudgetError, match="minimum [0-9.]+ MiB"):
        longshore.wrap(gpt2(), run=tmp_path / "a", memory="1MiB")
    with pytest.raises(ValueError, match="not a size"):
        longshore.wrap(gpt2(), run=tmp_path / "a", memory="lots")
    with pytest.raises(ValueError, match="adamw, adam, sgd, adagrad"):
        longshore.wrap(gpt2(), run=tmp_path / "a", optimizer="unheardof")
    with pytest.raises(longshore.LongshoreError, match="one dtype.*lm_head|one dtype.*wte|one dtype"):
        mixed = gpt2()
        mixed.transformer.h[0].half()
        longshore.wrap(mixed, run=tmp_path / "a")
    assert not (tmp_path / "a").exists() or not (tmp_path / "a" / "run.json").exists()
    engine = engine_for(gpt2(), tmp_path)
    with pytest.raises(longshore.LongshoreError, match="another engine's"):
        longshore.wrap(engine.module, run=tmp_path / "b")
    with pytest.raises(longshore.BusyError, match="an engine of this process"):
        longshore.wrap(gpt2(), run=tmp_path / "run")
    engine.close()
    with pytest.raises(longshore.ExistsError, match="holds a run"):
        longshore.wrap(gpt2(), run=tmp_path / "run", drives=tmp_path / "run-drive")


@pytest.mark.parametrize(
    "how, said",
    [
        ({"lr": -1}, "wrap: lr must be 0 or more, and is -1"),
        ({"lr": float("nan")}, "lr must be 0 or more, and is nan"),
        ({"lr": "1e-3"}, "lr must be 0 or more, and is '1e-3'"),
        ({"eps": "1e-8"}, "eps .* is '1e-8'"),
        ({"weight_decay": True}, "weight_decay .* is True"),
        ({"clip": None}, "clip .* is None"),
        ({"betas": (0.9, 1.5)}, "betas must be two numbers from 0 to below 1, and is .0.9, 1.5."),
        ({"betas": 0.9}, "betas .* is 0.9"),
        ({"groups": [{"params": [], "lr": -1}]}, "wrap: groups.0..lr must be 0 or more, and is -1"),
        ({"groups": []}, "wrap: groups: is empty"),
        ({"groups": [{"lr": 1}]}, "wrap: groups.0.: has no .params"),
    ],
)
def test_numbers_and_groups_that_no_optimizer_takes_are_named(how, said, tmp_path, seed):
    model = gpt2(layers=1)
    with pytest.raises(ValueError, match=said):
        longshore.wrap(model, run=tmp_path / "a", **how)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "optimizer, key",
    [("adamw", "amsgrad"), ("adam", "maximize"), ("sgd", "nesterov"), ("sgd", "dampening"), ("adagrad", "lr_decay")],
)
def test_what_the_engine_does_not_do_is_refused_in_groups(optimizer, key, tmp_path, seed):
    model = gpt2(layers=1)
    with pytest.raises(longshore.LongshoreError, match=f"wrap: groups.0..{key}=1 is not supported"):
        longshore.wrap(
            model, run=tmp_path / "a", optimizer=optimizer, groups=[{"params": list(model.parameters()), key: 1}]
        )
    engine_for(model, tmp_path, optimizer=optimizer, groups=[{"params": list(model.parameters()), key: 0}]).close()


def scripted():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.jit.script(torch.nn.Linear(4, 4)))


def tied_by_memory():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = torch.nn.Parameter(model[0].weight)
    return model


def views_of_one():
    model, whole = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), torch.randn(6, 4)
    model[0].weight, model[1].weight = torch.nn.Parameter(whole[:4]), torch.nn.Parameter(whole[2:])
    return model


@pytest.mark.parametrize(
    "make, said",
    [
        (scripted, "wrap: 1 is TorchScript"),
        (lambda: torch.jit.trace(torch.nn.Linear(4, 4), torch.ones(4)), "wrap: .* is TorchScript"),
        (tied_by_memory, "wrap: 0.weight and 1.weight are two parameters that share memory"),
        (views_of_one, "wrap: 0.weight and 1.weight are two parameters that share memory"),
    ],
)
def test_models_that_cannot_be_streamed_are_left_as_they_are(make, said, tmp_path, seed):
    model = make()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(longshore.LongshoreError, match=said):
        longshore.wrap(model, run=tmp_path / "a")
    assert not (tmp_path / "a").exists() and all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_parameters_that_lie_side_by_side(tmp_path, seed):
    model, whole = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), torch.randn(8, 4)
    model[0].weight, model[1].weight = torch.nn.Parameter(whole[:4]), torch.nn.Parameter(whole[4:])
    with engine_for(model, tmp_path):
        assert torch.equal(model[1].weight.detach(), whole[4:])


def test_what_the_run_says(tmp_path, seed):
    """Under the names that docs/outputs.md has for the program's own runs."""
    began, batch = time.time(), tokens(1)[0]
    with engine_for(gpt2(), tmp_path, lr=0.25) as engine:
        elements = sum(p.numel() for p in engine.module.parameters())
        for n in range(3):
            with torch.no_grad():
                engine(**batch)
            engine.backward(engine(**batch).loss)
            engine.backward(
                engine(**batch).loss if n < 2 else engine(inputs_embeds=torch.ones(1, 2, 48)).logits.square().mean()
            )
            engine.step()
            engine.settle()
        took = time.time() - began
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3] and all(
        line["grad_norm"] > 0 and line["loss"] > 0 and line["lr"] == 0.25 for line in lines
    )
    assert [line.get("tokens") for line in lines] == [48, 48, None]
    assert 0 < sum(line["step_seconds"] for line in lines) < took and all(
        int(began) <= line["time"] <= began + took for line in lines
    )
    kinds = ("gradients", "compressed", "parameters", "activations", "state", "control")
    for line in lines:
        assert line["link_bytes"] == sum(line[f"link_{kind}"] for kind in kinds) and line["resident_bytes"] > 2**26
        spent = line["compute_seconds"] + line["wait_seconds"] + line["commit_seconds"]
        assert min(line["compute_seconds"], line["wait_seconds"]) >= 0 and abs(line["step_seconds"] - spent) < 1e-6
    assert lines[1]["commit_seconds"] > 0  # the script waited for the step before
    assert sum(line["link_gradients"] for line in lines) >= 2 * 4 * elements  # the last update may be under way yet
    assert sum(line["drive_write_bytes"] for line in lines) >= 2 * 12 * elements
    # a busy machine reads a step's state late: in which line it counts is not known
    assert sum(line["drive_read_bytes"] for line in lines) > 0
    page = (pathlib.Path(__file__).parents[2] / "docs" / "outputs.md").read_text()
    page = page.partition("## RUN/metrics.jsonl")[2].partition("\n## ")[0]
    assert all(f"`{key}`" in page for line in lines for key in line)


def test_what_the_run_says_of_a_step_that_is_skipped(tmp_path, seed):
    with engine_for(Cnn(), tmp_path, on_nonfinite="skip") as engine:
        engine.backward(engine(torch.ones(1, 1, 6, 6)).sum() * math.inf)
        engine.step()
        engine(torch.ones(1, 1, 6, 6)).sum().backward()
        engine.step()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["skipped"] and lines[0]["loss"] is None and lines[0]["grad_norm"] is None
    assert lines[1]["loss"] is None and lines[1]["grad_norm"] > 0 and not {"skipped", "tokens"} & {*lines[1]}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_dtype_that_is_not_kept_is_refused_by_name(dtype, tmp_path, seed):
    name = str(dtype).split(".")[1]
    with pytest.raises(
        longshore.LongshoreError, match=f"one dtype, float32 or bfloat16: transformer.wte.weight is {name}"
    ):
        longshore.wrap(gpt2(layers=2).to(dtype), run=tmp_path / "a")
    with pytest.raises(ValueError, match="storage must be .*the parameters are torch.bfloat16"):
        longshore.wrap(gpt2(layers=2).bfloat16(), run=tmp_path / "a", storage="fp32")
    assert not (tmp_path / "a").exists()


def test_mapped_weights_go_from_memory_but_not_what_is_changed_of_them(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(init_on_disk, "RESIDENT_BYTES", 1)
    values = torch.rand(1 << 20)
    path = tmp_path / "model.safetensors"
    path.write_bytes(values.numpy().tobytes())
    mapped = torch.from_file(str(path), shared=False, size=values.numel())
    mapped[1000] = 7

    def resident():
        with open("/proc/self/smaps", encoding="utf-8") as f:
            lines = iter(f)
            return next(
                int(next(line for line in lines if line.startswith("Rss:")).split()[1])
                for line in lines
                if str(path) in line
            )

    assert torch.equal(mapped[1001:], values[1001:])
    before = resident()
    init_on_disk.Spool([tmp_path], "").relieve(1)
    assert before >= 4096 and resident() <= before
    values[1000] = 7
    assert torch.equal(mapped, values)
