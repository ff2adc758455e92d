"""Steps are measured as they run, and the budget is divided again for what they compute. No bit changes."""

import dataclasses
import logging

import pytest
import torch

import longshore
import models
from longshore.model import trace as tracing
from longshore.run import outlook, room
from longshore.run.engine_surface import core_of


@pytest.fixture(autouse=True)
def informed(caplog):
    caplog.set_level(logging.INFO, "longshore")


def trained(directory, batches, memory="64MiB", again=None, **how):
    """(the digest after a step with each batch, its core)."""
    torch.manual_seed(3)
    engine = longshore.wrap(models.gpt2(), run=directory, memory=memory, lr=1e-3, **how)
    core = core_of(engine)
    if again is not None:
        core.plan.again = again
    for batch in batches:
        engine.backward(engine(**batch).loss)
        engine.step()
    digest = engine.digest()
    engine.close()
    return digest, core


def said(caplog, what):
    return [r.getMessage() for r in caplog.records if what in r.getMessage()]


def test_the_second_step_is_measured_and_the_plan_held_against_the_truth(tmp_path, caplog):
    _, core = trained(tmp_path / "run", models.tokens(5))
    (text,) = said(caplog, "takes about")
    assert text.startswith("a step of 24 tokens takes about ") and "bound by" in text and "gpu" not in text
    assert core.outlook.planned > 0 and len(core.outlook.took) == 3
    (truth,) = said(caplog, "by plan")
    assert truth.startswith("a step took ") and "(median of 3)" in truth


def test_a_larger_batch_is_planned_for_and_said(tmp_path, caplog):
    trained(tmp_path / "run", [*models.tokens(3), *models.tokens(3, length=24), *models.tokens(3)])
    texts = said(caplog, "takes about")
    assert [text.split(" takes")[0] for text in texts] == ["a step of 24 tokens", "a step of 48 tokens"]
    assert "planned again" not in texts[0] and "planned again" in texts[1]


def test_the_plan_of_the_whole_process_is_said_and_held_against_the_truth(tmp_path, caplog):
    batches = [*models.tokens(3), *models.tokens(3, length=24)]
    trained(tmp_path / "run", batches, "400MiB", memory_of="process")
    texts = said(caplog, "takes about")
    assert [text.split(" takes")[0] for text in texts] == ["a step of 24 tokens", "a step of 48 tokens"]
    assert "planned again" not in texts[0] and "planned again" in texts[1]
    (truth,) = said(caplog, "by plan")
    assert truth.startswith("a step took ") and "(median of 2)" in truth


def test_what_is_measured_is_a_trace_of_the_step(tmp_path):
    traces = []

    def again(trace, slots, rates):
        traces.append(trace)
        raise longshore.LongshoreError("enough")

    batch = models.tokens(1)[0]
    trained(tmp_path / "run", [batch] * 2, again=again)
    (trace,) = traces
    expected = tracing.trace(models.gpt2(), batch)
    assert [(u.name, u.layer) for u in trace.units] == [(u.name, u.layer) for u in expected.units]
    assert all(unit.seconds["forward"] > 0 for unit in trace.units)
    assert all(unit.seconds["backward"] > 0 for unit in trace.units if unit.layer or unit.name == "lm_head")
    for found, unit in zip(trace.units, expected.units):
        # the engine keeps the places of parameters, and PyTorch the batch's
        assert found.saved_bytes == pytest.approx(unit.saved_bytes, abs=1024), unit.name


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_another_division_changes_no_bit(tmp_path, monkeypatch, pages):
    batches, applied = models.tokens(4), []

    def again(trace, slots, rates):
        now, other = own(trace, slots, rates)
        other.times.step_seconds = 0.0
        other = dataclasses.replace(other, pages=pages, gradient_bytes=4096 * pages, spare_bytes=0)
        applied.append(other)
        return now, other

    torch.manual_seed(3)
    engine = longshore.wrap(models.gpt2(), run=tmp_path / "a", memory="64MiB", lr=1e-3)
    core = core_of(engine)
    own, core.plan.again = core.plan.again, again
    for batch in batches:
        engine.backward(engine(**batch).loss)
        engine.step()
    assert (core.streams.slots, core.gradients.room, core.plan.spare_bytes) == (pages, 4096 * pages, 0)
    assert len(applied) == 1
    digest = engine.digest()
    engine.close()
    assert digest == trained(tmp_path / "b", batches)[0]


def test_a_division_that_is_little_faster_is_left(tmp_path):
    calls = []

    def again(trace, slots, rates):
        now, other = own(trace, slots, rates)
        other.times.step_seconds = now.times.step_seconds * (outlook.FASTER + 0.01)
        calls.append(other)
        return now, dataclasses.replace(other, pages=1)

    engine = longshore.wrap(models.gpt2(), run=tmp_path / "run", memory="64MiB", lr=1e-3)
    core = core_of(engine)
    own, core.plan.again = core.plan.again, again
    for batch in models.tokens(3):
        engine.backward(engine(**batch).loss)
        engine.step()
    assert len(calls) == 1 and core.streams.slots == 3
    engine.close()


def faster_by(own, times):
    """What stands for Plan.again(): another division with one slot, by these times faster than the one of now."""

    def again(trace, slots, rates):
        now, other = own(trace, slots, rates)
        other.times.step_seconds = now.times.step_seconds / times.pop(0)
        return now, dataclasses.replace(other, pages=1, spare_bytes=0)

    return again


def test_memory_that_another_engine_got_meanwhile_is_not_divided(tmp_path):
    engine = longshore.wrap(models.gpt2(), run=tmp_path / "run", memory="64MiB", lr=1e-3)
    core = core_of(engine)
    core.plan.again = faster_by(core.plan.again, [2.0])
    for n, batch in enumerate(models.tokens(3)):
        if n == 2:
            other = longshore.wrap(models.gpt2(), run=tmp_path / "other", trains=False)
            had = core.streams.slots, core.plan.total_bytes, core.plan.spare_bytes
            assert core.outlook.better is not None and core.plan.taken_bytes > 0 and had[0] == 3
        engine.backward(engine(**batch).loss)
        engine.step()
    assert core.outlook.better is None
    assert (core.streams.slots, core.plan.total_bytes, core.plan.spare_bytes) == had
    other.close()
    engine.close()


def test_a_division_is_forgotten_where_a_later_plan_is_no_faster(tmp_path):
    engine = longshore.wrap(models.gpt2(), run=tmp_path / "run", memory="64MiB", lr=1e-3)
    core = core_of(engine)
    core.plan.again = faster_by(core.plan.again, [2.0, 1.0])
    for n, batch in enumerate([*models.tokens(2), *models.tokens(3, length=24)]):
        if n == 4:
            engine.optimizer.zero_grad()
        loss = engine(**batch).loss
        loss.backward()
        engine.optimizer.step()  # without zero_grad(): gradients stay, and memory is not divided
        assert (core.outlook.better is not None) == (n in (1, 2)) and core.streams.slots == 3
    engine.close()


def test_memory_is_not_divided_where_a_script_has_computed_with_parameters(tmp_path):
    engine = longshore.wrap(models.gpt2(), run=tmp_path / "run", memory="64MiB", lr=1e-3)
    core = core_of(engine)
    core.plan.again = faster_by(core.plan.again, [2.0])
    for n, batch in enumerate(models.tokens(4)):
        penalty = sum(p.square().sum() for p in engine.parameters()) if n == 2 else 0
        engine.backward(engine(**batch).loss + 1e-3 * penalty)
        engine.step()
        assert (core.outlook.better is not None) == (n in (1, 2)) and core.streams.slots == (3 if n < 3 else 1)
    engine.close()


def test_a_division_that_finds_no_memory_is_undone(tmp_path, monkeypatch):
    def wake(core):
        raise longshore.LongshoreError("no memory")

    engine = longshore.wrap(models.gpt2(), run=tmp_path / "a", memory="64MiB", lr=1e-3)
    core, batches = core_of(engine), models.tokens(3)
    core.plan.again = faster_by(core.plan.again, [2.0])
    monkeypatch.setattr(room, "wake", wake)
    had = core.streams.slots, core.gradients.room, core.plan.total_bytes, core.plan.spare_bytes
    for batch in batches:
        engine.backward(engine(**batch).loss)
        engine.step()
    assert core.outlook.better is None and core.outlook.planned
    assert (core.streams.slots, core.gradients.room, core.plan.total_bytes, core.plan.spare_bytes) == had
    engine.close()
