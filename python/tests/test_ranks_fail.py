"""Ranks that fail, end, stop or do not come: every other one raises, names them, and can end."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import longshore
from longshore.errors import RankError
from longshore.ranks.launch import ranks
from models import HANGS_SECONDS
from rank_processes import free_port, processes, results

ENDED = "rank 1 has ended, or its connection is lost"
SOON = 200  # seconds that are far from the limit of 600, also on a busy machine


def says(call):
    """What a RankError says, and that the next call says the same."""
    try:
        call()
    except RankError as error:
        with pytest.raises(RankError) as again:
            ranks().meet("again")
        assert str(again.value) == str(error)
        return str(error)


def one_is_killed(waits, signum):
    r = ranks(600)
    if r.rank == 1:
        r.meet("both are here")
        os.kill(os.getpid(), signum) if signum else os._exit(0)
    done, out = queue.SimpleQueue(), torch.empty(1 << 20, dtype=torch.uint8)
    r.meet("both are here")
    r.timeout = 2 if signum == signal.SIGSTOP else 600
    began = time.monotonic()
    r.ask(1, "segments", (), out, done.put)
    if waits == "ask":
        told = str(done.get(timeout=SOON))
        assert says(lambda: r.meet("engine.step()")) == told
    else:
        told = says(lambda: getattr(r, waits)("engine.step()"))
        assert str(done.get(timeout=SOON)) == told
    return told, time.monotonic() - began


@pytest.mark.parametrize(
    "waits, signum", [("ask", signal.SIGKILL), ("meet", signal.SIGKILL), ("come", signal.SIGTERM), ("meet", 0)]
)
def test_a_killed_rank_is_named_at_once(waits, signum):
    with processes(2, one_is_killed, waits, signum) as all_:
        assert all_.said(0)[1][0] == ENDED
        assert all_.end() == [0, -signum]


@pytest.mark.parametrize("waits", ["ask", "meet", "come"])
def test_a_stopped_rank_is_named_after_the_limit(waits):
    with processes(2, one_is_killed, waits, signal.SIGSTOP) as all_:
        said, seconds = all_.said(0)[1]
        stuck = "rank 1 has not answered rank 0 within 2 s: it may be stopped or stuck; rank_timeout= says"
        late = stuck if waits == "ask" else "rank 1 has not come to engine.step() within 2 s: every rank must call it"
        assert said.startswith((stuck, late))
        assert 1.9 < seconds < SOON
        all_.processes[0].join(SOON)
        assert all_.processes[0].exitcode == 0  # though the other is there still, and hears nothing


def comes():
    return says(lambda: ranks(6))


def test_a_rank_that_does_not_come_is_named():
    wanted = "ranks 1, 3 have not come within 6 s, of 4 ranks: every rank must make or open the run"
    assert results(4, comes, ranks=(0, 2)) == [wanted] * 2
    (said,) = results(2, comes, ranks=(1,))
    assert said.startswith("rank 0 has not come within 6 s: nothing answers rank 1 at 127.0.0.1, port ")


def test_a_rank_that_comes_twice_is_named():
    wanted = "rank 1 has come twice: two processes have this number (RANK, or SLURM_PROCID)"
    assert results(3, comes, ranks=(0, 1, 1)) == [wanted] * 3
    said = results(3, comes, ranks=(0, 0))
    assert sum("rank 0 cannot use port" in one and "such as another rank 0" in one for one in said) == 1
    assert sum(one.startswith("ranks 1, 2 have not come") for one in said) == 1


def fails_at_rank_1(how):
    r = ranks(600)
    try:
        if r.rank == 1 and how == "handler":
            r.serve("bytes", lambda *_: 1 // 0)
        elif r.rank == 1:
            r.serve("bytes", lambda *_: b"12")
        else:
            done = queue.SimpleQueue()
            r.ask(1, "bytes", (), torch.zeros(4), done.put)
            raise done.get()
        r.meet("after")
    except RankError as error:
        return str(error)


def test_a_handler_that_fails_fails_all():
    assert (
        results(2, fails_at_rank_1, "handler")
        == ["rank 1 failed: ZeroDivisionError: integer division or modulo by zero"] * 2
    )
    assert (
        results(2, fails_at_rank_1, "size") == ["rank 0 failed: rank 1 gives 2 bytes of bytes, and 16 are needed"] * 2
    )


def interrupted():
    r = ranks(600)
    if r.rank == 0:
        return says(lambda: [r.come("a forward pass") or time.sleep(0.01) for _ in range(SOON * 100)])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        r.meet("engine.step()")
    return says(lambda: r.meet("engine.close()"))


def test_ctrl_c_in_a_wait_ends_all():
    """Rank 1 waits in a meet, and rank 0 makes forward passes."""
    assert results(2, interrupted) == ["rank 1 failed: KeyboardInterrupt"] * 2


SCRIPT = """
import os, signal, sys, time
from longshore.ranks.launch import ranks
r = ranks(600)
r.meet("both are here")
if r.rank == 1:
    {how}
try:
    r.meet("engine.step()")
except RuntimeError as error:
    print(error)
"""


def scripts(how, size=2):
    """(exit code, output, errors) of each rank of a script, whose rank 1 does `how`."""
    port, started = str(free_port()), []
    for rank in range(size):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT.format(how=how)],
                env={**environment, "MASTER_PORT": port},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [process.communicate(timeout=HANGS_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(started, said)]


@pytest.mark.parametrize(
    "how, code, others",
    [
        ("raise ValueError('no batch')", 1, "rank 1 failed: ValueError: no batch"),
        ("os.fork() or sys.exit(5); os.wait(); sys.exit(6)", 6, "rank 1 has ended, and rank 0"),
    ],
)
def test_a_script_that_ends_is_named(how, code, others):
    (code_0, said_0, wrong_0), (code_1, said_1, wrong_1) = scripts(how)
    assert (code_0, code_1) == (0, code), wrong_0 + wrong_1
    assert said_0.startswith(others) and not said_1
    assert "terminate" not in wrong_0 + wrong_1


def trains(run, how):
    """Both ranks make a step; then one, or both, or none raises."""

    def model():
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))

    said = None
    try:
        with longshore.wrap(model(), run=run, memory="64MiB", rank_timeout=600) as engine:
            for step in range(2):
                loss = engine(torch.ones(2, 64)).square().mean()
                engine.backward(loss)
                if step == 1 and (how == "both" or how == "one" and ranks().rank == 1):
                    raise ValueError("no batch")
                engine.step()
    except (ValueError, RankError) as error:
        said = f"{type(error).__name__}: {error}"
    if how == "one":
        return said
    with longshore.resume(run, model()) as engine:
        return said, engine.step_number


def test_an_exception_that_ends_with_engine_is_named(tmp_path):
    first, second = results(2, trains, str(tmp_path / "one"), "one")
    assert second == "ValueError: no batch"
    assert first.startswith("RankError: rank") and "engine.close() after ValueError: no batch" in first
    assert "the norm of step 2" in first
    assert results(2, trains, str(tmp_path / "both"), "both") == [("ValueError: no batch", 1)] * 2  # committed
    assert results(2, trains, str(tmp_path / "none"), "none") == [(None, 2)] * 2
