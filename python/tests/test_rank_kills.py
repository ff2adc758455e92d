"""Two ranks of a training that are killed, stopped or left alone: the committed step is good, and the others say who.

python test_rank_kills.py KILLS [SEED]: kills ranks of a GPT-2 that often, at random instants."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import pytest
import torch
from torch import nn

import longshore
from longshore.errors import LongshoreError
from models import HANGS_SECONDS
from rank_processes import processes
from test_program import needs_program, program

HERE = pathlib.Path(__file__).parent
SCRIPT = str(HERE / "rank_training.py")
RANKS = 2


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **more}


def alone(directory, steps, kind="net"):
    """The digest of the same training by one process, and its seconds."""
    began = time.monotonic()
    subprocess.run([sys.executable, SCRIPT, directory, str(steps), kind], env=environment(), check=True)
    return (directory / "digest").read_text(), time.monotonic() - began


class Launched:
    """torchrun with the script."""

    def __init__(self, directory, steps, kind="net", restarts=0):
        self.directory, self.before = directory, set()
        how = ["--standalone", f"--nproc-per-node={RANKS}", f"--max-restarts={restarts}", "--monitor-interval=0.1"]
        command = [sys.executable, "-m", "torch.distributed.run", *how, SCRIPT, directory, str(steps), kind]
        self.process = subprocess.Popen(list(map(str, command)), env=environment(), start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in (self.process.pid, *self.before, *self.workers()):
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        self.process.wait()

    def workers(self):
        """The processes of the ranks, as far as they have begun."""
        found = [self.directory / f"process.{rank}" for rank in range(RANKS)]
        return [int(path.read_text()) for path in found if path.exists()]

    def fresh(self):
        """The processes of all ranks, once they have begun anew; None: torchrun has ended."""
        deadline = time.monotonic() + HANGS_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            workers = self.workers()
            if len(workers) == RANKS and self.before.isdisjoint(workers):
                self.before.update(workers)
                return workers
            time.sleep(0.01)
        return None

    def end(self):
        return self.process.wait(HANGS_SECONDS)


def killed(directory, steps, kind, kills, seconds, drawn):
    """Kills one rank at a time, so many times at most; each lives up to so many seconds. Returns how many."""
    done = 0
    with Launched(directory, steps, kind, kills) as launched:
        while done < kills and (workers := launched.fresh()) is not None:
            time.sleep(drawn.uniform(0, seconds))
            try:
                os.kill(drawn.choice(workers), signal.SIGKILL)
            except ProcessLookupError:
                break  # the training has ended
            done += 1
        assert launched.end() == 0
    return done


def same_after_kills(directory, steps, kind, kills, seed, most=HANGS_SECONDS):
    """Trains undisturbed and with kills. most: seconds that ranks live. Returns how often one was killed."""
    print("seed", seed)
    for name in ("alone", "ranks"):
        (directory / name).mkdir()
    digest, seconds = alone(directory / "alone", steps, kind)
    done = killed(directory / "ranks", steps, kind, kills, min(seconds, most), random.Random(seed))
    print("killed", done)
    assert (directory / "ranks" / "digest").read_text() == digest
    return done


def test_killed_ranks_go_on_with_the_same_bits(tmp_path):
    assert same_after_kills(tmp_path, 60, "net", 3, random.randrange(2**32)) > 0


@needs_program
def test_an_interrupt_ends_all_ranks_and_leaves_the_committed_step(tmp_path):
    for name in ("alone", "ranks"):
        (tmp_path / name).mkdir()
    run = tmp_path / "ranks" / "run"
    with Launched(tmp_path / "ranks", 100000) as launched:
        workers, committed = launched.fresh(), run / "committed"
        while launched.process.poll() is None and not (committed.exists() and int(committed.read_text()) > 3):
            time.sleep(0.01)
        for pid in (launched.process.pid, *workers):  # as a terminal does
            os.kill(pid, signal.SIGINT)
        assert launched.end() != 0
        for pid in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    step = int((run / "committed").read_text())
    digest, _ = alone(tmp_path / "alone", step)
    assert digest in program("inspect", run, "--digest")


# ---- a rank that does not come


def net():
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Linear(32, 32) for _ in range(3)])


def loss(output, batch):
    return output.square().mean()


def one_never_comes(run, directory, opens):
    if os.environ["RANK"] == "1":
        if opens:
            with longshore.init(run):  # the ranks are connected from here on
                pass
        return wait_for(directory / "ended")
    return said_by(lambda: longshore.wrap(net(), run=run, memory="64MiB", rank_timeout=2))


def one_evaluates_alone(run, directory):
    engine = longshore.wrap(net(), run=run, memory="64MiB", rank_timeout=2)
    engine.train_batch([torch.ones(2, 32)], loss)
    if os.environ["RANK"] == "1":
        return said_by(lambda: engine.train_batch([torch.ones(2, 32)], loss))

    def evaluate():
        with torch.no_grad():
            while True:
                engine(torch.ones(2, 32))

    return said_by(evaluate)


def one_stops(run, directory):
    engine = longshore.wrap(net(), run=run, memory="64MiB", rank_timeout=3)

    def train():
        while True:
            engine.train_batch([torch.ones(2, 32)], loss)
            if engine.step_number == 3:
                (directory / f"trains.{os.environ['RANK']}").touch()

    return said_by(train)


def said_by(call):
    try:
        call()
    except LongshoreError as failure:
        return str(failure)
    return None


def wait_for(path):
    deadline = time.monotonic() + HANGS_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("opens", [False, True], ids=["not at all", "to init() alone"])
def test_a_rank_that_never_comes_is_named(tmp_path, opens):
    with processes(2, one_never_comes, tmp_path / "run", tmp_path, opens) as all_:
        print(text := all_.said(0)[1])
        (tmp_path / "ended").touch()
    expected = "rank 1 has not come to longshore.wrap() within 2 s" if opens else "rank 1 has not come within 2 s, of 2"
    assert text.startswith(expected)
    assert not (tmp_path / "run").exists()


@needs_program
def test_an_evaluation_by_rank_0_alone_is_named(tmp_path):
    with processes(2, one_evaluates_alone, tmp_path / "run", tmp_path) as all_:
        for rank in (0, 1):
            print(text := all_.said(rank)[1])
            assert text.startswith("rank 0 has not come to ") and "as in an evaluation" in text
    program("inspect", tmp_path / "run", "--digest")


@needs_program
def test_a_rank_that_stops_is_named_and_the_committed_step_is_good(tmp_path):
    with processes(2, one_stops, tmp_path / "run", tmp_path) as all_:
        wait_for(tmp_path / "trains.1")
        os.kill(all_.processes[1].pid, signal.SIGSTOP)
        print(text := all_.said(0)[1])
        assert text.startswith("rank 1 has not ") and "within 3 s" in text
    program("inspect", tmp_path / "run", "--digest")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
        same_after_kills(pathlib.Path(directory), 150 * int(sys.argv[1]), "gpt2", int(sys.argv[1]), seed, most=15)
