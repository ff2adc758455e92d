"""What a person sees while something takes long: nothing for two seconds, then a bar in a terminal, records
elsewhere."""

import io
import logging
import warnings

import pytest
import torch
from torch import nn

import longshore
from longshore import progress
from longshore.native import ffi, lib
from longshore.run import metrics
from longshore.step.step_cycle import StepResult
from models import gpt2, tokens
from test_loop import engine_for


class Clock:
    def __init__(self, monkeypatch, seconds):
        """seconds: that pass between two looks."""
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr(progress, "clock", self)

    def __call__(self):
        self.now += self.seconds
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def records(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "longshore"]


def run_of(tmp_path, name="run"):
    (tmp_path / f"{name}-drive").mkdir()
    return {"run": tmp_path / name, "drives": [tmp_path / f"{name}-drive"]}


def test_short_work_is_silent(tmp_path, monkeypatch, caplog, capsys):
    caplog.set_level(logging.INFO, "longshore")
    Clock(monkeypatch, 0)  # by which it is short on a busy machine, too
    with longshore.init(**run_of(tmp_path)):
        model = nn.Linear(300, 300)
    with longshore.wrap(model) as engine:
        engine.save_pretrained(tmp_path / "out")
        engine.snapshot("one")
    longshore.resume(tmp_path / "run", nn.Linear(300, 300)).close()
    assert not [text for text in records(caplog) if "longshore" in text or "saving" in text]
    assert "saving" not in capsys.readouterr().err


def test_records_where_nobody_looks(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "longshore")
    clock = Clock(monkeypatch, 0)
    with progress.Progress("copying", 100 << 20, head="a model, on a drive", ticks=False) as shown:
        for second in range(1, 26):
            clock.now = second
            shown.add(4 << 20)
    assert records(caplog) == [
        "a model, on a drive",
        "copying: 8.00 MiB of 100.00 MiB (8%), 4.00 MiB/s, 23 s to go",
        "copying: 48.00 MiB of 100.00 MiB (48%), 4.00 MiB/s, 13 s to go",
        "copying: 88.00 MiB of 100.00 MiB (88%), 4.00 MiB/s, 3 s to go",
        "copying: done, 100.00 MiB in 25 s",
    ]


def test_work_that_waits_is_shown_too(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "longshore")
    clock = Clock(monkeypatch, 0)
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.01)
    with progress.Progress("waiting") as shown:
        clock.now = 3
        while not records(caplog):  # the thread that looks at the clock
            shown.ended.wait(0.01)
    assert records(caplog)[0] == "waiting: 3 s"


def test_a_bar_in_a_terminal(monkeypatch, caplog):
    pytest.importorskip("tqdm")
    caplog.set_level(logging.INFO, "longshore")
    clock, terminal = Clock(monkeypatch, 0), Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress.Progress("copying", 100 << 20, head="a model, on a drive", ticks=False) as shown:
        for second in range(1, 26):
            clock.now = second
            shown.add(4 << 20)
    said = terminal.getvalue()
    assert (
        said.startswith("longshore: a model, on a drive\n")
        and "longshore: copying: 100%" in said
        and "100M/100M" in said
    )
    assert not records(caplog)
    assert progress._bar_class() is not None  # which is nobody's now


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_said_beside_a_bar_has_a_line_of_its_own(terminal, monkeypatch):
    tqdm = pytest.importorskip("tqdm").tqdm
    shown = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    handler, log = logging.StreamHandler(shown), logging.getLogger("longshore")
    monkeypatch.setattr(log, "level", logging.INFO)
    log.addHandler(handler)
    try:
        with tqdm(total=60, file=shown):
            log.info("logged")
            progress.write("written")
        log.info("alone")
    finally:
        log.removeHandler(handler)
    lines = shown.getvalue().replace("\r", "\n").split("\n")  # a terminal writes over what was cleared
    assert {"logged", "written", "alone"} <= {line.strip() for line in lines}
    assert ("\nlogged\n" in shown.getvalue()) is not terminal


@pytest.mark.parametrize("what", ["init", "wrap", "resume", "save_pretrained", "snapshot", "step"])
def test_what_takes_long_says_so(what, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "longshore")
    end = progress.Progress.__exit__
    # instead of its thread
    monkeypatch.setattr(progress.Progress, "__exit__", lambda shown, *error: (shown.look(), end(shown, *error))[1])
    how = run_of(tmp_path)
    Clock(monkeypatch, 3 if what == "init" else 0)
    with longshore.init(**how):
        model = nn.Sequential(*[nn.Linear(200, 200) for _ in range(3)])
    Clock(monkeypatch, 3 if what == "wrap" else 0)
    with longshore.wrap(model) as engine:
        Clock(monkeypatch, 3 if what == "step" else 0)
        engine.backward(engine(torch.ones(1, 200)).sum())
        engine.step()
        Clock(monkeypatch, 3 if what == "save_pretrained" else 0)
        engine.save_pretrained(tmp_path / "out")
        Clock(monkeypatch, 3 if what == "snapshot" else 0)
        engine.snapshot("one")
    Clock(monkeypatch, 3 if what == "resume" else 0)
    longshore.resume(how["run"], nn.Sequential(*[nn.Linear(200, 200) for _ in range(3)])).close()
    wanted = {
        "init": "making the model: ",
        "wrap": "writing the initial state: ",
        "resume": "opening ",
        "save_pretrained": "saving out: ",
        "snapshot": "snapshot one: ",
        "step": "step 1: 1 layers of 6 layers",
    }
    assert any(text.startswith(wanted[what]) for text in records(caplog)), records(caplog)
    if what == "wrap":
        head = next(text for text in records(caplog) if text.startswith("Sequential of 120600 parameters: "))
        assert "run-drive" in head and "memory" in head and "at least" in head


def test_steps_end_however_they_end(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "longshore")
    clock = Clock(monkeypatch, 0)
    with engine_for(gpt2(), tmp_path) as engine:
        step, batch = engine._core.streams.progress, tokens(1)[0]
        engine(**batch)
        assert step.progress is not None and step.progress.thread is None
        engine.drop_gradients()
        assert step.progress is None
        engine.backward(engine(**batch).loss)
        clock.now += 30
        engine.step()
        assert step.progress is None and step.seconds == 30
        engine.train_batch(tokens(2))  # of a long step, also what waits is shown
        assert step.progress is None
        engine.eval()
        engine(**batch)
        assert step.progress is None


def test_an_interrupt_while_something_is_saved(tmp_path, monkeypatch):
    with engine_for(gpt2(), tmp_path) as engine:

        def interrupt(self):
            raise KeyboardInterrupt

        monkeypatch.setattr(progress.Progress, "look", interrupt)
        monkeypatch.setattr(progress.Progress, "_tick", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            engine.save_pretrained(tmp_path / "out")
        assert not (tmp_path / "out").exists()
        monkeypatch.undo()
        engine.save_pretrained(tmp_path / "out")


class SlowDrive:
    """The library, whose meter says after each step that this drive is slow."""

    drive = ffi.NULL

    def __getattr__(self, name):
        return getattr(lib, name)

    def shore_meter_end(self, meter, report):
        code = lib.shore_meter_end(meter, report)
        report.slow_drive, report.slow_factor = self.drive, 2.54
        return code


def test_a_drive_that_holds_up_the_others_is_named_once(tmp_path, monkeypatch, caplog, seed):
    caplog.set_level(logging.INFO, "longshore")
    slow = SlowDrive()
    monkeypatch.setattr(metrics, "lib", slow)
    one, other = ffi.new("char[]", b"/mnt/one"), ffi.new("char[]", b"/mnt/other")
    with engine_for(nn.Linear(4, 4), tmp_path) as engine:
        for slow.drive in (ffi.NULL, one, one, other, ffi.NULL, other):
            engine.backward(engine(torch.ones(1, 4)).sum())
            engine.step()
    named = [text for text in records(caplog) if text.startswith("slow")]
    assert named == [f"slow: /mnt/{name} works 2.5 times as long as the others" for name in ("one", "other", "other")]


def test_a_step_reads_as_a_line():
    nan = float("nan")
    assert str(StepResult(1.002890944480896, 0.042162593545791965, 1)) == "step 1  loss 1.003  norm 0.04216"
    assert str(StepResult(nan, 2.0, 2)) == "step 2  norm 2"  # of loss.backward(), whose loss the engine is not told
    assert str(StepResult(nan, nan, 3, True)) == "step 3  skipped: not finite"
    assert repr(StepResult(1.0, 2.0, 4)) == "StepResult(loss=1.0, grad_norm=2.0, step=4, skipped=False)"


def test_of_several_ranks_the_first_one_speaks(tmp_path, monkeypatch, caplog, capsys):
    """The others say only what is their own, with their number."""
    log = logging.getLogger("longshore")
    caplog.set_level(logging.INFO, "longshore")
    for rank in (0, 1):
        caplog.clear()
        monkeypatch.setattr(progress, "rank", rank)
        clock = Clock(monkeypatch, 0)
        with progress.Progress("saving", 8, "layers", ticks=False) as shown:
            clock.now += 60
            shown.add()
        progress.write("a line")
        log.warning("of all: %s", 1)
        log.warning("of one: %s", 2, extra=progress.OWN)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            progress.warn("of all", stacklevel=1)
        if rank == 0:
            assert [r[:6] for r in records(caplog)] == ["saving", "saving", "of all", "of one"]
            assert capsys.readouterr().err == "a line\n" and warned[0].filename == __file__
        else:
            assert records(caplog) == ["rank 1: of one: 2"]
            assert not capsys.readouterr().err and not warned
