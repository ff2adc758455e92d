"""What goes wrong with a run of several ranks: all say it, and start again where all were."""

import os
import shutil
import signal

import pytest
import torch

import longshore
from longshore.drives.parts import Part
from longshore.errors import LongshoreError
from longshore.ranks.ranks import Ranks
from rank_processes import processes, results
from test_ranks_state import MEMORY, Model, made, resumed

STEPS = 3


ANSWER = "an answer"


def kill_at(rank, call, number=1):
    """A rank is killed as it comes to a call for the n-th time, before the others hear of it; or as it is asked for
    segments."""
    meet, answer, left = Ranks.meet, Part._answer, [number]

    def count(own, what):
        if own == rank and what.startswith(call):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    def meets(self, what, value=None):
        count(self.rank, what)
        return meet(self, what, value)

    def answers(self, *asked):
        count(self.ranks.rank, ANSWER)
        return answer(self, *asked)

    Ranks.meet, Part._answer = meets, answers


def trains(run, *kill):
    """Makes the run, or goes on with it, up to a step."""
    if kill:
        kill_at(*kill)
    how = {"memory": MEMORY, "rank_timeout": 60}
    if os.path.exists(os.path.join(run, "run.json")):
        engine = longshore.resume(run, Model(5), **how)
    else:
        engine = longshore.wrap(Model(1), run=run, sum_groups=2, **how)
    layer = engine.module.layers[0]
    while engine.step_number < STEPS:
        with longshore.resident(layer, write=True), torch.no_grad():
            layer.a.weight.mul_(0.9)
    out = engine.digest(), engine.step_number
    engine.close()
    return out


def test_a_rank_that_is_killed_is_named_and_all_go_on(tmp_path):
    alone = trains(tmp_path / "alone")
    run = tmp_path / "run"
    for kill in [
        (1, f"making {run}"),
        (0, "the first state of a block", 3),
        (1, "the seal of the run"),
        (0, ANSWER),
        (1, "the commit of step 1"),
        (0, f"opening {run}"),
        (0, "the commit of step"),
        (1, "the commit of step 3"),
        (1, "engine.close()"),
    ]:
        with processes(2, trains, run, *kill) as both:
            other = 1 - kill[0]
            well, said = both.said(other)
            assert not well and said.startswith(f"RankError: rank {kill[0]} has ended"), (kill, said)
            codes = both.end()
            assert codes[kill[0]] == -signal.SIGKILL and codes[other] == 1
    assert results(2, trains, run) == [alone, alone] and trains(run) == alone


def fails(run):
    with pytest.raises(LongshoreError) as failure:
        resumed(run)
    return str(failure.value)


def test_a_volume_that_no_rank_sees(tmp_path):
    run = tmp_path / "run"
    alone = results(2, made, run)[0]
    (volume,) = run.glob("*.rank1.volume")
    shutil.move(volume, tmp_path)
    for said in results(2, fails, run):
        assert str(volume) in said and "no rank finds this volume" in said
    shutil.move(tmp_path / volume.name, run)
    assert resumed(run) == alone


def test_a_run_that_another_process_has(tmp_path):
    run = tmp_path / "run"
    results(2, made, run)
    engine = longshore.resume(run, Model(0), memory=MEMORY)
    for said in results(2, fails, run):
        assert "another process" in said
    engine.close()
