"""max_writes_per_day= is a cost of the plan, and a limit that holds: steps wait. It changes no bit."""

import json
import logging
import os
import signal
import threading
import time

import pytest
import torch

import longshore
import models
from longshore.errors import BudgetError
from longshore.run import endurance, planning
from longshore.run.engine_surface import core_of

DAY_SECONDS = 86400
STEP_SECONDS = 0.4


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def trained(engine, steps=4):
    for batch in models.tokens(steps):
        engine.backward(engine(**batch).loss)
        engine.step()
    digest = engine.digest()
    engine.close()
    return digest


def made(run, **options):
    torch.manual_seed(3)
    return longshore.wrap(models.gpt2(), run=run, memory="64MiB", lr=1e-3, **options)


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """(digest, bytes that a step writes) without a limit."""
    run = tmp_path_factory.mktemp("free") / "run"
    digest = trained(made(run))
    assert not any("paced_seconds" in line for line in lines(run))
    return digest, longshore.plan(models.gpt2(), models.tokens(1)[0], memory="64MiB")["drive_write_bytes"]


def limit(written):
    """Bytes a day, so that a step takes STEP_SECONDS."""
    return int(written * DAY_SECONDS / STEP_SECONDS)


def check_held(run, written, first=1):
    """No more is written than the limit's share of the time, from one step's end to the next."""
    found = lines(run)[first:]
    paced = [line for line in found if "paced_seconds" in line]  # others took so long by themselves
    assert paced
    took = sum(line["step_seconds"] for line in found)
    assert sum(line["drive_write_bytes"] for line in found) <= 1.05 * written * took / STEP_SECONDS
    assert all(line["charges"]["before_forward"] >= line["paced_seconds"] * 0.9 for line in paced)


def test_steps_wait_and_no_bit_changes(tmp_path, free, caplog):
    caplog.set_level(logging.INFO, "longshore")
    digest, written = free
    assert trained(made(tmp_path / "run", max_writes_per_day=limit(written))) == digest
    check_held(tmp_path / "run", written)
    (said,) = [r.getMessage() for r in caplog.records if "steps wait" in r.getMessage()]
    assert said.startswith("steps wait for max_writes_per_day: the next one begins in ")


def test_each_drive_has_its_own_limit(tmp_path, free):
    digest, written = free
    drives = [tmp_path / "a", tmp_path / "b"]
    for drive in drives:
        drive.mkdir()
    with longshore.init(tmp_path / "run", drives, "64MiB", max_writes_per_day=["500TB", limit(written) // 2]):
        torch.manual_seed(3)
        model = models.gpt2()
    assert trained(longshore.wrap(model, lr=1e-3)) == digest
    paced = [line.get("paced_seconds", 0) for line in lines(tmp_path / "run")]
    assert paced[0] == 0 and sum(paced) > STEP_SECONDS / 2


def test_a_resumed_run_keeps_the_limit_and_counts_its_last_step(tmp_path, free):
    _, written = free
    run = tmp_path / "run"
    trained(made(run, max_writes_per_day=f"{limit(written) // 8}"), 1)
    began = time.monotonic()
    trained(longshore.resume(run, models.gpt2()), 1)
    assert lines(run)[1]["paced_seconds"] > 1
    assert time.monotonic() - began > 6 * STEP_SECONDS  # whole seconds are counted since the last step
    trained(longshore.resume(run, models.gpt2(), max_writes_per_day="none"), 2)
    trained(longshore.resume(run, models.gpt2()), 1)  # which is kept
    assert not any("paced_seconds" in line for line in lines(run)[-3:])


def test_parts_of_a_model_that_are_called_alone_wait_too(tmp_path, free):
    _, written = free
    engine = made(tmp_path / "run", max_writes_per_day=limit(written))
    for batch in models.tokens(3):
        engine.backward(engine.module.transformer(batch["input_ids"])[0].square().mean())
        engine.step()
    engine.close()
    check_held(tmp_path / "run", written)


def test_whoever_stops_a_step_that_waits_is_heard(tmp_path, free):
    _, written = free
    engine = made(tmp_path / "run", max_writes_per_day=int(written * 3 // 2))
    first, second = models.tokens(2)
    engine.backward(engine(**first).loss)
    engine.step()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        engine(**second)
    engine.close()
    assert len(lines(tmp_path / "run")) == 1


def test_a_plan_counts_the_limit(free):
    batch = models.tokens(1)[0]
    free_plan = longshore.plan(models.gpt2(), batch, memory="64MiB")
    most = free_plan["written_bytes_per_day"] // 3
    plan = longshore.plan(models.gpt2(), batch, memory="64MiB", max_writes_per_day=most)
    assert plan["written_bytes_per_day"] <= most and plan["bound"] == "max_writes_per_day"
    assert plan["step_seconds"] > 2.9 * free_plan["step_seconds"]
    assert "bound by the limit of writes a day" in str(plan)
    two = {"drives": 2, "max_writes_per_day": [most // 2, most]}
    each = longshore.plan(models.gpt2(), batch, memory="64MiB", **two)
    assert each["written_bytes_per_day"] <= most
    (more,) = (change for change in each["what_if"] if change["change"].startswith("one more drive"))
    assert more["step_seconds"] < each["step_seconds"]


def test_less_than_a_step_writes_is_one_sentence(tmp_path):
    message = "a step alone writes .*, and the drives may write 1.00 MiB a day: 8-bit moments write less"
    with pytest.raises(BudgetError, match=message):
        longshore.plan(models.gpt2(), models.tokens(1)[0], memory="64MiB", max_writes_per_day="1MiB")
    with pytest.raises(BudgetError, match=message):
        made(tmp_path / "run", max_writes_per_day="1MiB")
    assert not (tmp_path / "run").exists()
    least = longshore.plan(models.gpt2(), models.tokens(1)[0])["minimum_bytes"]
    with pytest.raises(BudgetError, match=message):
        longshore.plan(models.gpt2(), models.tokens(1)[0], memory=least, max_writes_per_day="1MiB")


def test_values_that_cannot_be(tmp_path):
    for value, message in (("much", "is not a size"), (0, "is not a size"), ([], "give a size such as '2TB'")):
        with pytest.raises(ValueError, match=f"max_writes_per_day={value!r}".replace("[", r"\[") + f".*{message}"):
            made(tmp_path / "run", max_writes_per_day=value)
    with pytest.raises(ValueError, match="has 2 sizes for 1 drive: give one for each, or one for all together"):
        made(tmp_path / "run", max_writes_per_day="1TB,2TB")
    with pytest.raises(ValueError, match="longshore.init: max_writes_per_day= has 2 sizes for 1 drive"):
        with longshore.init(tmp_path / "run", max_writes_per_day="1TB,2TB"):
            pass
    with pytest.raises(ValueError, match=r"max_writes_per_day= is for a model that trains"):
        longshore.wrap(models.gpt2(), run=tmp_path / "run", max_writes_per_day="1TB", trains=False)
    assert endurance.sizes("none") == endurance.sizes(None) == []


def test_the_command_takes_it(tmp_path, capsys):
    models.llama().config.save_pretrained(tmp_path)
    command = [str(tmp_path), "--batch", "1", "--seq-len", "8", "--max-writes-per-day"]
    assert planning.main([*command, "1GB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.9e9 < found["written_bytes_per_day"] <= 1e9
    assert planning.main([*command, "1TB,2TB"]) == 2
    assert "longshore plan: --max-writes-per-day has 2 sizes for 1 drive" in capsys.readouterr().err


def test_pauses_are_no_work_of_the_step(tmp_path, free):
    _, written = free
    engine = made(tmp_path / "run", max_writes_per_day=limit(written))
    began = time.monotonic()
    for batch in models.tokens(3):
        engine.backward(engine(**batch).loss)
        engine.step()
    took = time.monotonic() - began
    assert core_of(engine).pace.seconds == 0
    engine.close()
    assert took >= 1.5 * STEP_SECONDS
    assert all(line["compute_seconds"] < STEP_SECONDS for line in lines(tmp_path / "run"))
