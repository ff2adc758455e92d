"""The ranks of this process: found in the script's process group, or made from what torchrun and Slurm say."""

from __future__ import annotations

import atexit
import datetime
import os
import re
import socket
import sys
import threading
import time
from multiprocessing import util

import torch
from torch import distributed as dist

from .. import progress, torch_internals
from ..errors import LongshoreError, RankError
from .ranks import Ranks

_DEFAULT_TIMEOUT = 1800.0  # seconds; PyTorch's of a gloo group
_once = threading.Lock()
_made: Ranks | None = None
_failure: RankError | None = None


def ranks(timeout: float | None = None) -> Ranks:
    """The ranks of this process, made at the first call, which every rank makes.

    Args:
        timeout: Seconds that one rank waits for another, from now on. Default: the process group's.
    """
    global _made, _failure
    with _once:
        if _failure is not None:
            raise RankError(str(_failure))
        there = dist.is_available() and dist.is_initialized()
        if _made is None:
            try:
                _made = _make(there, timeout)
            except RankError as error:
                _failure = error
                raise
        elif there and (dist.get_rank(), dist.get_world_size()) != (_made.rank, _made.size):
            raise LongshoreError(
                f"this process was rank {_made.rank} of {_made.size} when it used its first run, and its process group "
                f"says rank {dist.get_rank()} of {dist.get_world_size()}: call init_process_group() before"
            )
        if timeout is not None:
            _made.timeout = timeout
        progress.rank = _made.rank
        return _made


def local_rank() -> int | None:
    """The number of this process on its host, as torchrun or Slurm says; None: neither does."""
    said = os.environ.get("LOCAL_RANK") or (os.environ.get("SLURM_LOCALID") if _of_slurm() else None)
    return int(said) if said else None


def ranks_here() -> int:
    """How many ranks there are on this host. Where the launcher does not say, all of them may be here."""
    said = os.environ
    if said.get("LOCAL_WORLD_SIZE"):
        return int(said["LOCAL_WORLD_SIZE"])
    if _of_slurm():
        numbers = re.findall(r"(?:^|,)(\d+)", said.get("SLURM_STEP_TASKS_PER_NODE") or said["SLURM_STEP_NUM_TASKS"])
        return max(map(int, numbers))  # of "8(x2),4": 8
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(said.get("WORLD_SIZE") or 1)


def _tell_failure(made):
    """Runs as the process ends: the other ranks hear what its script failed by."""
    failure = getattr(sys, "last_value", None)
    if failure is not None:
        made.fail(failure)


# ---- who is there


def _of_slurm():
    """Whether srun started this process as one of several. A batch script has SLURM_NTASKS, too, and is one process."""
    return int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1


def _launched():
    """(rank, number of ranks, address, port) that the launcher says, or None for one process."""
    said = os.environ
    if int(said.get("WORLD_SIZE") or 1) > 1:
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not said.get(name)]
        if missing:
            raise LongshoreError(
                f"WORLD_SIZE={said['WORLD_SIZE']} says that there are several ranks, and {missing[0]} is not set: "
                "start the script by torchrun or srun, or call init_process_group() before"
            )
        return int(said["RANK"]), int(said["WORLD_SIZE"]), said["MASTER_ADDR"], int(said["MASTER_PORT"])
    if "WORLD_SIZE" not in said and _of_slurm():
        hosts = said.get("SLURM_STEP_NODELIST") or "localhost"
        name, number = re.match(r"([^,\[]*)(?:\[(\w+))?", hosts).groups()  # gpu[07-09,12],cpu1: gpu07
        address = said.get("MASTER_ADDR") or name + (number or "")
        step = int(said.get("SLURM_JOB_ID") or 0) * 10 + int(said.get("SLURM_STEP_ID") or 0)
        port = int(said.get("MASTER_PORT") or 20000 + step % 10000)
        return int(said["SLURM_PROCID"]), int(said["SLURM_STEP_NUM_TASKS"]), address, port
    return None


def _make(there, timeout):
    """Ranks. there: whether the script has made a process group."""
    launched = None if there else _launched()
    if launched and not dist.is_available():
        raise LongshoreError("several ranks need torch.distributed, which this PyTorch is built without")
    if launched:
        rank, size, *_ = launched
    else:
        rank, size = (dist.get_rank(), dist.get_world_size()) if there else (0, 1)
    if size == 1:
        return Ranks()
    timeout = timeout or (there and torch_internals.group_timeout()) or _DEFAULT_TIMEOUT
    limit = datetime.timedelta(seconds=timeout)
    store = _store(*launched, timeout) if launched else torch_internals.group_store()
    # a restarted rank would find what the ended one said
    store = dist.PrefixStore(f"longshore/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    try:
        _see_all(store, rank, size, timeout)
        if launched:
            dist.init_process_group(_backend(), store=store, rank=rank, world_size=size, timeout=limit)
        # not dist.new_group(): its keys are in the script's store, where torchrun leaves those of ended processes
        group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, limit)
    except RankError:
        raise
    except RuntimeError as error:
        raise RankError(
            f"rank {rank} cannot be connected with the others by gloo: {error}; GLOO_SOCKET_IFNAME names the network "
            "interface to use"
        ) from None
    made = Ranks(group, rank, size, timeout)
    atexit.register(_tell_failure, made)  # before engines are closed, which would wait for the others
    util.Finalize(None, made.close, exitpriority=0)  # after that, and also in processes of multiprocessing
    return made


def _backend():
    """What the script uses for its own tensors. Longshore itself uses gloo."""
    accelerator = getattr(torch, "accelerator", None)  # PyTorch 2.6
    if accelerator is not None and accelerator.is_available():
        kind = accelerator.current_accelerator().type
        other = dist.Backend.default_device_backend_map.get(kind)
        if other is not None and (other != "nccl" or dist.is_nccl_available()):
            return f"cpu:gloo,{kind}:{other}"
    return "gloo"


def _store(rank, size, address, port, timeout):
    """Through which the ranks find each other: torchrun's, or one that rank 0 makes."""
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    until = time.monotonic() + timeout
    while not serves:  # a store that waited by itself would hold up a Ctrl-C
        try:
            socket.create_connection((address, port), timeout=1.0).close()
            break
        except OSError as error:
            if time.monotonic() > until:
                raise RankError(
                    f"rank 0 has not come within {timeout:g} s: nothing answers rank {rank} at {address}, port {port} "
                    f"({error})"
                ) from None
            time.sleep(0.2)
    limit = datetime.timedelta(seconds=timeout)
    try:
        return dist.TCPStore(address, port, size, serves, limit, wait_for_workers=False, multi_tenant=True)
    except RuntimeError as error:
        raise RankError(
            f"rank {rank} cannot use port {port} of {address}, which perhaps another process does, such as another "
            f"rank 0: {error}; MASTER_PORT names another port"
        ) from None


def _see_all(store, rank, size, timeout):
    """Waits until every rank has said in the store that it is there."""
    if store.add(f"rank {rank}", 1) > 1:
        _give_up(store, f"rank {rank} has come twice: two processes have this number (RANK, or SLURM_PROCID)")
    left, wait = timeout, 0.01
    while missing := [r for r in range(size) if not store.add(f"rank {r}", 0)]:
        if store.add("given up", 0):
            _give_up(store, store.get("why").decode())
        if left <= 0:
            names = ", ".join(map(str, missing))
            said = f"rank {names} has" if len(missing) == 1 else f"ranks {names} have"
            _give_up(
                store, f"{said} not come within {timeout:g} s, of {size} ranks: every rank must make or open the run"
            )
        time.sleep(wait)
        left, wait = left - wait, min(2 * wait, 0.2)


def _give_up(store, why):
    store.set("why", why)
    store.add("given up", 1)
    time.sleep(1.0)  # the store may end with this process, and all others look for a reason until then
    raise RankError(why)
