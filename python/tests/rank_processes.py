"""Processes that are ranks of each other, for tests: each runs a function of a test file."""

import contextlib
import multiprocessing
import os
import socket
import traceback

from models import HANGS_SECONDS

_context = multiprocessing.get_context("forkserver")  # which has imported everything, and forks in milliseconds
_context.set_forkserver_preload(["torch", "longshore", "models", "longshore.ranks.launch"])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _runs(function, environment, to, arguments):
    os.environ.update(environment)
    try:
        to.send((True, function(*arguments)))
    except BaseException as error:
        to.send((False, f"{type(error).__name__}: {error}"))
        traceback.print_exc()
        raise


class Processes:
    """function(*arguments) as so many ranks, or as those that `ranks` names: "00" is two that say they are rank 0."""

    def __init__(self, size, function, *arguments, ranks=None, **environment):
        port = str(free_port())
        self.processes, self._said = [], []
        for rank in range(size) if ranks is None else ranks:
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
            here, there = _context.Pipe(duplex=False)
            all_of = (function, {**of_rank, "MASTER_PORT": port, **environment}, there, arguments)
            self.processes.append(_context.Process(target=_runs, args=all_of))
            self._said.append(here)
            self.processes[-1].start()
            there.close()

    def said(self, rank, seconds=HANGS_SECONDS):
        """What the next send() of a rank says: (whether it returned, what)."""
        assert self._said[rank].poll(seconds), f"rank {rank} hangs"
        return self._said[rank].recv()

    def end(self, seconds=HANGS_SECONDS):
        """[exit code of each]."""
        for process in self.processes:
            process.join(seconds)
        return [process.exitcode for process in self.processes]


@contextlib.contextmanager
def processes(size, function, *arguments, **how):
    """Processes, of which none is left at the end."""
    all_ = Processes(size, function, *arguments, **how)
    try:
        yield all_
    finally:
        for process in all_.processes:
            process.kill()
            process.join()


def results(size, function, *arguments, **how):
    """What function(*arguments) returns in each of so many ranks, all of which end well."""
    with processes(size, function, *arguments, **how) as all_:
        said = [all_.said(i) for i in range(len(all_.processes))]
        assert all_.end() == [0] * len(said), said
    assert all(well for well, _ in said), said
    return [what for _, what in said]
