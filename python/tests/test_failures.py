"""Whatever fails between Python and the drives, at any call: the step can be made again, and nothing is lost."""

import copy
import json

import pytest
import torch

import longshore
from longshore import native
from longshore.run import checkpoint
from models import gpt2, tokens
from test_in_between import Layers
from test_loop import engine_for


class Planned(longshore.LongshoreError):
    pass


def was_planned(failure):
    """It came as itself, or in the sentence that names the step: of a commit that was durable by then."""
    return str(failure).startswith("planned: ")


def failing_at(monkeypatch, planned):
    """Lets the call of C, or the request, that planned["left"] counts down to fail."""

    def before(name):
        if planned["left"] is not None:
            planned["left"] -= 1
            if planned["left"] < 0:
                planned["left"] = None
                raise Planned(f"planned: {name}")

    call, begin, end = native.call, native.Wait.__init__, native.Wait.result
    monkeypatch.setattr(
        native, "call", lambda function, *args, **how: (before(str(function)), call(function, *args, **how))[1]
    )

    def init(self, *args, **how):
        self._wait = None
        before("a request")
        begin(self, *args, **how)

    def result(self):
        try:
            before("a result")
        except Planned:
            self.settle()
            raise
        end(self)

    monkeypatch.setattr(native.Wait, "__init__", init)
    monkeypatch.setattr(native.Wait, "result", result)


@pytest.mark.parametrize("slots, together", [(1, False), (1, True), (2, False)])
def test_failures_of_any_call(slots, together, tmp_path, seed, monkeypatch):
    """Each in turn: the step is made again, and has the same bits."""
    digests, batches = [], tokens(2, length=4)
    planned, came = {"left": None}, []
    failing_at(monkeypatch, planned)
    for disturbed in (False, True):
        torch.manual_seed(seed)
        with engine_for(
            gpt2(dropout=0.1, layers=2),
            tmp_path,
            f"run{disturbed}",
            slots=slots,
            gradient_bytes=0 if slots == 1 else None,
            monkeypatch=monkeypatch,
            clip=0.5 if slots == 1 else 0,
        ) as engine:
            engine.train()
            at = 0
            while engine.step_number < len(batches):
                batch = batches[engine.step_number]
                planned["left"] = at if disturbed else None
                try:
                    if together:
                        engine.train_batch([batch, batch])
                    else:
                        engine.backward(engine(**batch).loss)
                        engine.step()
                    at = 0
                except longshore.LongshoreError as failure:
                    assert was_planned(failure)
                    came.append(str(failure))
                    at += 1 if slots == 2 else 2
            planned["left"] = None
            digests.append(engine.digest())
    assert digests[0] == digests[1]
    assert len(came) > 9


def test_a_line_of_metrics_that_cannot_be_written(tmp_path, seed):
    """Its step is committed, and the engine is at it: once there is room again, the line is written and the next step
    follows."""
    digests, batches = [], tokens(4, length=4)
    for disturbed in (False, True):
        torch.manual_seed(seed)
        with engine_for(gpt2(layers=2), tmp_path, f"run{disturbed}") as engine:
            engine._core.plan.again = None  # which would open the run anew
            metrics, failed, kept = tmp_path / f"run{disturbed}" / "metrics.jsonl", 0, b""
            while engine.step_number < len(batches):
                try:
                    engine.backward(engine(**batches[engine.step_number]).loss)
                    engine.step()
                except longshore.LongshoreError as failure:
                    assert "metrics.jsonl: " in str(failure)
                    failed += 1
                    # the third is made, and is committed by the next that needs it
                    assert engine.step_number == 1 + failed
                    if failed == 1:
                        metrics.mkdir()  # not for the next one either
                    else:
                        metrics.rmdir()
                        metrics.write_bytes(kept)
                if disturbed and engine.step_number == 2 and not failed:
                    kept = metrics.read_bytes()
                    metrics.unlink()  # nothing can be written to it now, as on a file system that is full
            assert failed == (2 if disturbed else 0)
            digests.append(engine.digest())
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        assert [line["step"] for line in lines] == [1, 2, 3, 4]
        assert not any("lost" in line for line in lines)
    assert digests[0] == digests[1]


def test_failures_while_a_run_is_made_or_gone_back_to(tmp_path, seed, monkeypatch):
    """The model has its values, or its run has."""
    planned = {"left": None}
    failing_at(monkeypatch, planned)
    plain, x = Layers(2), torch.randn(4, 16)
    expected = plain(x).sum().item()
    at, ends = 0, False
    while not ends:
        model = copy.deepcopy(plain)
        planned["left"] = at
        try:
            engine = engine_for(model, tmp_path, f"made{at}")
            ends = True
        except longshore.LongshoreError as failure:
            assert was_planned(failure)
            planned["left"] = None
            if (tmp_path / f"made{at}" / "run.json").exists():
                engine = longshore.resume(tmp_path / f"made{at}", Layers(2))
            else:
                assert model(x).sum().item() == expected
                engine = None
        if engine is not None:
            planned["left"] = None
            assert engine(x).sum().item() == expected
            engine.close()
        at += 1
    assert at > 5
    at, ends = 0, False
    engine = engine_for(copy.deepcopy(plain), tmp_path)
    checkpoint.save(engine, tmp_path / "saved")
    while not ends:
        engine.backward(engine(x).square().mean())
        engine.step()
        planned["left"] = at
        try:
            checkpoint.load(engine, tmp_path / "saved")
            ends = planned["left"] is not None
        except longshore.LongshoreError as failure:
            assert was_planned(failure)
            planned["left"] = None
            # it stays open where the other run cannot be looked at
            for p in engine.module.parameters() if engine._core.state is None else ():
                with pytest.raises(longshore.LongshoreError, match="the engine is closed"):
                    p.detach()
            engine.close()
            engine = longshore.resume(tmp_path / "run", Layers(2))
        planned["left"] = None
        assert engine.step_number in (0, 1)
        checkpoint.load(engine, tmp_path / "saved")
        assert engine(x).sum().item() == expected
        at += 1
    assert at > 3
    engine.close()


def test_a_drive_that_nothing_can_be_written_to():
    """That blocks cannot be shared there is not what a checkpoint fails with."""
    assert not checkpoint.shares_blocks("/proc/self")
