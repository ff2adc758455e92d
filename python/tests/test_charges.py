"""Where the time of a step goes: each line of metrics.jsonl charges all of it."""

import json
import os
import time

import pytest
import torch
from torch import nn

import longshore
import models
from longshore import native
from longshore.native import lib, text
from longshore.ranks.launch import ranks
from rank_processes import results

UPDATE = "longshore: update"
NAMES = [text(lib.shore_charge_name(charge)) for charge in range(lib.SHORE_CHARGES)]


def lines(run, name="metrics.jsonl"):
    with open(run / name, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read(path):
    return json.loads(path.read_text())


def checked(run):
    """The charges of each step, which add up to its seconds."""
    out = []
    for line in lines(run):
        charges = line["charges"]
        assert list(charges) == NAMES
        assert min(charges.values()) >= 0
        assert sum(charges.values()) == pytest.approx(line["step_seconds"], rel=1e-6)
        out.append(charges)
    return out


def engine_of(run, model=None, **options):
    torch.manual_seed(3)
    options = {"memory": "64MiB", "lr": 1e-3, **options}
    engine = longshore.wrap(models.gpt2() if model is None else model, run=run, **options)
    engine._core.plan.again = None  # what came before memory is divided anew belongs to no step
    return engine


class Slow(nn.Module):
    """A layer whose passes take at least so long."""

    def __init__(self, forward, backward):
        super().__init__()
        self.inner, self.forward_seconds, self.backward_seconds = nn.Linear(8, 8), forward, backward

    def forward(self, x):
        time.sleep(self.forward_seconds)
        out = self.inner(x)
        if out.requires_grad:
            out.register_hook(lambda gradient: time.sleep(self.backward_seconds))
        return out


def slow(forward, backward=0.0):
    return nn.Sequential(Slow(forward, backward), nn.Linear(8, 8))


X = torch.ones(2, 8)


def own_backward(engine, loss):
    engine.backward(loss)
    engine.step()


def scripts_backward(engine, loss):
    loss.backward()
    engine.optimizer.step()
    engine.optimizer.zero_grad()


def in_turns(engine, loss):
    engine.train_batch([X, X], lambda output, batch: output.sum())


@pytest.mark.parametrize("loop", [own_backward, scripts_backward])
def test_each_part_of_a_step_is_charged_to_its_name(tmp_path, loop):
    with engine_of(tmp_path / "run", slow(0.05, 0.06)) as engine:
        for _ in range(3):
            time.sleep(0.04)
            loop(engine, engine(X).sum())
            engine.settle()
            with torch.no_grad():
                engine(X)  # an evaluation
    for charges in checked(tmp_path / "run")[1:]:  # the first step begins with its forward pass
        assert charges["before_forward"] >= 0.09 and charges["forward"] >= 0.05 and charges["backward"] >= 0.06
        assert charges["update"] > 0 and charges["again"] == charges["bus"] == charges["link"] == 0


def test_micro_batches_in_turns(tmp_path):
    with engine_of(tmp_path / "run", slow(0.05, 0.06)) as engine:
        for _ in range(3):
            time.sleep(0.04)
            in_turns(engine, None)
    for charges in checked(tmp_path / "run")[1:]:
        assert charges["before_forward"] >= 0.04 and charges["forward"] >= 0.1 and charges["backward"] >= 0.12


def test_hooks_of_the_optimizers_step_are_a_part_of_it(tmp_path):
    def wait(*_):
        time.sleep(0.05)

    def closure():
        time.sleep(0.04)
        loss = engine(X).sum()
        loss.backward()
        return loss

    with engine_of(tmp_path / "run", slow(0.05)) as engine:
        engine.optimizer.register_step_pre_hook(wait)
        engine.optimizer.register_step_post_hook(wait)
        for way in (None, closure, None):
            if way is None:
                engine(X).sum().backward()
            engine.optimizer.step(way)
            engine.optimizer.zero_grad()
            engine.settle()
    first, second, third = checked(tmp_path / "run")
    assert first["update"] >= 0.05  # what follows the step counts to the next one
    assert second["update"] >= 0.1 and third["update"] >= 0.1 and second["before_forward"] >= 0.04


def test_accumulated_passes_and_a_skipped_step(tmp_path):
    with engine_of(tmp_path / "run", slow(0.03), on_nonfinite="skip") as engine:
        engine.accumulate = 2
        for step in range(3):
            for _ in range(2):
                time.sleep(0.02)
                engine.backward(engine(X).sum() * (float("inf") if step == 1 else 1.0))
            assert engine.step().skipped == (step == 1)
    charges = checked(tmp_path / "run")
    assert len(charges) == 3
    for of_step in charges:
        assert of_step["before_forward"] >= 0.02 and of_step["forward"] >= 0.06


def test_a_forward_pass_that_fails_ends(tmp_path):
    with engine_of(tmp_path / "run", slow(0.0)) as engine:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="shapes"):
                engine(torch.ones(2, 7))
            time.sleep(0.3)
            own_backward(engine, engine(X).sum())
    for charges in checked(tmp_path / "run"):
        assert charges["before_forward"] >= 0.3 > charges["forward"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again(tmp_path, reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.slow = nn.Linear(8, 8), slow(0.05)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.slow, self.first(x), use_reentrant=reentrant)

    with engine_of(tmp_path / "run", Checkpointed()) as engine:
        for _ in range(2):
            own_backward(engine, engine(X).sum())
            scripts_backward(engine, engine(X).sum())
    for charges in checked(tmp_path / "run"):
        assert charges["again"] >= 0.05 and charges["forward"] >= 0.05 and charges["backward"] > 0


def test_a_gradient_that_a_script_asks_for_ends(tmp_path):
    with engine_of(tmp_path / "run", slow(0.0, 0.03)) as engine:
        for _ in range(2):
            x = X.clone().requires_grad_()
            loss = engine(x).square().sum()
            (g,) = torch.autograd.grad(loss, x, create_graph=True)
            time.sleep(0.05)  # what the script does between forward and backward
            own_backward(engine, loss + g.sum())
    for charges in checked(tmp_path / "run"):
        assert charges["forward"] >= 0.05 and charges["backward"] >= 0.06


def test_two_engines_do_not_charge_each_other(tmp_path):
    with engine_of(tmp_path / "a", slow(0.0)) as a, engine_of(tmp_path / "b", slow(0.05, 0.05)) as b:
        for _ in range(3):
            own_backward(a, a(X).sum())
            own_backward(b, b(X).sum())
    for charges in checked(tmp_path / "a")[1:]:
        assert charges["before_forward"] >= 0.1
    for charges in checked(tmp_path / "b"):
        assert charges["forward"] >= 0.05 and charges["backward"] >= 0.05


def test_a_run_that_goes_on(tmp_path):
    with engine_of(tmp_path / "run", slow(0.0)) as engine:
        own_backward(engine, engine(X).sum())
        engine.reopen(tmp_path / "run")
        own_backward(engine, engine(X).sum())
        engine.sleep()
        engine.wake()
        own_backward(engine, engine(X).sum())
    with longshore.resume(tmp_path / "run", slow(0.0)) as engine:
        own_backward(engine, engine(X).sum())
    assert len(checked(tmp_path / "run")) == 4


def test_what_each_drive_did(tmp_path):
    for drive in "ab":
        (tmp_path / drive).mkdir()
    with engine_of(tmp_path / "run", drives=[tmp_path / "a", tmp_path / "b"]) as engine:
        for batch in models.tokens(3):
            own_backward(engine, engine(**batch).loss)
            with longshore.resident(engine.module.transformer.ln_f.weight, write=True), torch.no_grad():
                engine.module.transformer.ln_f.weight.mul_(2)  # in the step, or one by hand
            engine.settle()
            with longshore.resident(engine.module.transformer.ln_f.weight, write=True), torch.no_grad():
                engine.module.transformer.ln_f.weight.mul_(2)
    by_step = {line["step"]: line for line in lines(tmp_path / "run") if "charges" in line}
    of_drives = lines(tmp_path / "run", "drives.jsonl")
    assert [line["step"] for line in of_drives] == list(by_step) and len(by_step) == 3
    for line in of_drives:
        assert [drive["drive"] for drive in line["drives"]] == [0, 1]
        for key in "read_bytes", "write_bytes":
            assert sum(drive[key] for drive in line["drives"]) == by_step[line["step"]][f"drive_{key}"]


def test_torch_profiler_shows_what_the_engine_does(tmp_path):
    batches = models.tokens(3)
    with engine_of(tmp_path / "run", memory="5MiB") as engine:
        own_backward(engine, engine(**batches[0]).loss)
        with torch.profiler.profile() as profile:
            own_backward(engine, engine(**batches[1]).loss)
        own_backward(engine, engine(**batches[2]).loss)
    shown = {event.name for event in profile.events() if event.name.startswith("longshore: ")}
    layers = [f"transformer.h.{n}" for n in range(3)]
    assert {f"longshore: {what} {layer}" for what in ("fetch", "gradients of") for layer in layers} <= shown
    assert UPDATE in shown and "longshore: wait for the commit" in shown


def test_the_plan_of_the_steps_is_kept(tmp_path):
    """Once the second step is measured, and again for a larger batch."""
    plan, batches = tmp_path / "run" / "plan.json", [*models.tokens(3), *models.tokens(2, length=24)]
    with longshore.wrap(models.gpt2(), run=tmp_path / "run", memory="64MiB", lr=1e-3) as engine:
        own_backward(engine, engine(**batches[0]).loss)
        assert not plan.exists()
        for batch in batches[1:3]:
            own_backward(engine, engine(**batch).loss)
        first = json.loads(plan.read_text())
        for batch in batches[3:]:
            own_backward(engine, engine(**batch).loss)
    kept = json.loads(plan.read_text())
    assert (first["tokens"], kept["tokens"]) == (24, 48) and not list(tmp_path.glob("run/plan.json.*"))
    assert sum(kept["memory"].values()) == kept["peak_bytes"] and kept["what_if"] and kept["step_seconds"] > 0
    assert set(kept) == set(longshore.plan(models.gpt2(), batches[0], memory="64MiB")) - {"process_minimum_bytes"}


def trace_of(run, tmp_path):
    written = native.new("struct shore_trace_written")
    native.call(lib.shore_trace_export, os.fsencode(run), os.fsencode(tmp_path / "trace.json"), written)
    return read(tmp_path / "trace.json")


def test_a_trace_of_the_last_steps(tmp_path):
    """Also of a run that goes on, with memory that the plan has for it."""
    least = [longshore.plan(models.gpt2(), models.tokens(1)[0], trace=n)["minimum_bytes"] for n in (0, 2)]
    assert least[1] - least[0] == lib.shore_trace_memory_bytes(1) < 3 << 20
    with engine_of(tmp_path / "run", trace=2) as engine:
        for batch in models.tokens(4):
            own_backward(engine, engine(**batch).loss)
    with longshore.resume(tmp_path / "run", models.gpt2()) as engine:  # which records nothing
        own_backward(engine, engine(**batch).loss)
    events = [event for event in trace_of(tmp_path / "run", tmp_path)["traceEvents"] if event["ph"] == "X"]
    seconds = {line["step"]: line for line in lines(tmp_path / "run")}
    steps = [event for event in events if event["name"].startswith("step ")]
    assert [event["name"] for event in steps] == ["step 3", "step 4"]
    for number, step in zip((3, 4), steps):
        assert step["dur"] / 1e6 == pytest.approx(seconds[number]["step_seconds"], rel=1e-3)
        inside = [
            event
            for event in events
            if event is not step
            and event["tid"] == step["tid"]
            and step["ts"] <= event["ts"] < step["ts"] + step["dur"]
        ]
        assert {"forward", "backward", "update"} <= {event["name"] for event in inside} <= set(NAMES)
        assert sum(event["dur"] for event in inside) >= 0.95 * step["dur"]
    assert {"drive_read", "drive_write"} & {event["name"] for event in events}
    with longshore.resume(tmp_path / "run", models.gpt2(), trace=1) as engine:
        for _ in range(2):
            own_backward(engine, engine(**batch).loss)
    names = {event["name"] for event in trace_of(tmp_path / "run", tmp_path)["traceEvents"]}
    assert "step 7" in names and "step 6" not in names


def test_a_trace_has_the_clock_of_torch_profilers(tmp_path):
    with engine_of(tmp_path / "run", slow(0.05), trace=1) as engine:
        own_backward(engine, engine(X).sum())
        with torch.profiler.profile() as profile:
            own_backward(engine, engine(X).sum())
    profile.export_chrome_trace(str(tmp_path / "torch.json"))
    found = []
    for file, name in ((trace_of(tmp_path / "run", tmp_path), "forward"), (read(tmp_path / "torch.json"), UPDATE)):
        begins = [event["ts"] for event in file["traceEvents"] if event["name"] == name and event["ph"] == "X"]
        found.append(file["baseTimeNanoseconds"] / 1e9 + max(begins) / 1e6)
    assert 0.05 <= found[1] - found[0] < 600  # forward takes as long, and then comes the update


@pytest.mark.parametrize("value", [-1, 1001, True, "10", 1.5])
def test_a_trace_is_of_a_number_of_steps(tmp_path, value):
    with pytest.raises(ValueError, match="^wrap: trace must be a number of steps, at most 1000, and is "):
        engine_of(tmp_path / "run", slow(0.0), trace=value)
    with pytest.raises(ValueError, match="^resume: trace must be "):
        longshore.resume(tmp_path / "run", trace=value)
    with pytest.raises(ValueError, match="trace= is for a model that trains"):
        engine_of(tmp_path / "run", slow(0.0), trace=1, trains=False, lr=None)


def trains_with_a_slow_rank(run):
    with engine_of(run, slow(0.0)) as engine:
        for _ in range(4):
            time.sleep(0.4 * ranks().rank)
            own_backward(engine, engine(X).sum())


def test_waits_for_other_ranks_are_the_links(tmp_path):
    results(2, trains_with_a_slow_rank, tmp_path / "run")
    charges = checked(tmp_path / "run")  # rank 0's
    assert len(charges) == 4 and max(of_step["link"] for of_step in charges[1:]) >= 0.2
