"""A machine that gets slower in mid-run: memory is planned again between two steps, said once, recorded. Bits stay."""

import dataclasses
import json
import logging

import pytest
import torch

import longshore
import models
from longshore import native
from longshore.native import lib
from longshore.run.engine_surface import core_of
from longshore.run.machine import described
from test_outlook import said, trained

FIRST, LATER = 8, 8  # steps: two warm up, four are what later ones are held against; four drift until it counts


@pytest.fixture(autouse=True)
def informed(caplog):
    caplog.set_level(logging.INFO, "longshore")


def seconds(core, computing):
    """Lets steps take so long, by their number. Drives do not matter to steps of a thousand seconds."""
    of_step = core.meter.of_step

    def told(*args):
        metrics, took = of_step(*args), computing(core.state.step + 1)
        charges = dict.fromkeys(metrics["charges"], 0.0)
        return {**metrics, "step_seconds": 1000.0 + took, "charges": {**charges, "backward": took}}

    core.meter.of_step = told


def triple(step):
    return 900.0 if step > FIRST else 300.0


def run(engine, batches):
    for batch in batches:
        engine.backward(engine(**batch).loss)
        engine.step()
    digest = engine.digest()
    engine.close()
    return digest


def changes(directory):
    found = json.loads((directory / "run.json").read_text()).get("changes", [])
    return [each for each in found if "planned again" in each["what"]]


def opened(directory, **how):
    torch.manual_seed(3)
    return longshore.wrap(models.gpt2(), run=directory, lr=1e-3, **{"memory": "64MiB", **how})


def test_another_division_takes_the_old_ones_place(tmp_path, caplog):
    batches, rates = models.tokens(FIRST + LATER), []
    engine = opened(tmp_path / "run")
    core = core_of(engine)

    def again(trace, slots, machine):
        now, other = own(trace, slots, machine)
        rates.append(described(machine)["compute"]["products"]["product"]["fp32"] if machine else None)
        other.times.step_seconds = now.times.step_seconds * (0.5 if len(rates) > 1 else 1)
        return now, dataclasses.replace(other, pages=1, gradient_bytes=4096, spare_bytes=0)

    own, core.plan.again = core.plan.again, again
    seconds(core, triple)
    digest = run(engine, batches)
    assert len(rates) == 2 and rates[0] is None  # assumed
    assert rates[1] == pytest.approx(400e9 / 3, rel=1e-3)
    (change,) = changes(tmp_path / "run")
    assert change["what"].startswith(
        "planned again, since computing takes 3 times as long: by simulation, a step takes"
    )
    assert FIRST + 4 < change["step"] <= FIRST + LATER
    (text,) = said(caplog, "planned again, since")
    assert text == change["what"]
    assert core.plan.pages == 1
    assert digest == trained(tmp_path / "plain", batches)[0]


def test_where_no_plan_is_better_it_is_said_once(tmp_path, caplog):
    engine = opened(tmp_path / "run")
    seconds(core_of(engine), triple)
    run(engine, models.tokens(FIRST + 3 * LATER))
    assert said(caplog, "planned again, since") == [
        "planned again, since computing takes 3 times as long: no other plan saves enough time"
    ]
    assert not changes(tmp_path / "run")


def test_a_machine_that_stays_as_it_is_is_not_planned_for_again(tmp_path, caplog):
    engine = opened(tmp_path / "run")
    seconds(core_of(engine), lambda step: 300.0 + 50.0 * (step % 2))
    run(engine, models.tokens(FIRST + LATER))
    assert not said(caplog, "planned again, since")


def test_steps_of_other_sizes_do_not_count(tmp_path, caplog):
    engine = opened(tmp_path / "run")
    seconds(core_of(engine), triple)
    run(engine, [*models.tokens(FIRST), *models.tokens(LATER, length=8)])
    assert not said(caplog, "planned again, since")


def test_the_whole_process_is_planned_for_again(tmp_path, caplog):
    engine = opened(tmp_path / "run", memory="1GiB", memory_of="process")
    core, rates = core_of(engine), []
    own = core.plan.process.replan

    def replan(**how):
        rates.append(how.get("rates"))
        return own(**how)

    core.plan.process.replan = replan
    seconds(core, triple)
    run(engine, models.tokens(FIRST + LATER))
    known = [described(machine)["compute"]["products"]["product"]["fp32"] for machine in rates if machine]
    assert known and known[-1] == pytest.approx(400e9 / 3, rel=1e-3)
    (text,) = said(caplog, "planned again, since")
    assert text == "planned again, since computing takes 3 times as long: no other plan saves enough time"


def test_a_change_without_its_size_is_refused(tmp_path):
    with opened(tmp_path / "run") as engine:
        drift = native.made("struct shore_drift *", lib.shore_drift_open, core_of(engine).state.fleet)
        with pytest.raises(longshore.LongshoreError):
            native.made(
                "struct shore_machine *",
                lib.shore_drift_take,
                drift,
                native.ffi.NULL,
                native.ffi.new("struct shore_drift_change *"),
            )
        lib.shore_drift_close(drift)
