"""python -m longshore doctor: what this machine has for an accelerator, then what the program says of the rest."""

import json
import os
import platform
import resource
import subprocess
import time

import torch

from .. import native
from ..errors import LongshoreError
from ..model import cuda, placement
from ..model.pinned import Pinned
from ..torch_internals import accelerator
from . import shared_budget
from .device_memory import memory

RATE_BYTES = 256 << 20  # of one copy that is measured
RATE_SECONDS = 0.5  # for which copies of one way are repeated
PINNED_SECONDS = 3.0  # after which no more pinned memory is asked for
PINNED_BYTES = 64 << 20  # asked for first; the least that is asked for is a quarter of that
PINNED_MOST = 1 << 30  # asked for at once
SLOW_BYTES = 6 << 30  # a second: half of what 16 lanes of PCIe 3 carry
_WORDS = {"ok": "OK", "warn": "WARN", "fail": "FAIL"}


class Report:
    """Checks, in the form of the program's."""

    def __init__(self, prints):
        self.checks, self.prints = [], prints

    def add(self, check, text, advice=None, status=None, **facts):
        """status: that of a check that has advice is "warn"."""
        status = status or ("warn" if advice else "ok")
        found = {"check": check, "status": status, "text": text, **facts}
        self.checks.append({**found, "advice": advice} if advice else found)
        if self.prints:
            print(f"{_WORDS[status]:5} {check}: {text}{f'; {advice}' if advice else ''}", flush=True)

    @property
    def broken(self):
        return [check["check"] for check in self.checks if check["status"] == "fail"]


def is_wsl():
    return "microsoft" in platform.release().lower()


def _software(report):
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    built = f"built for {built}" if torch.version.cuda or torch.version.hip else "built without CUDA and ROCm"
    old = accelerator().type != "cpu" and not placement.has_streams()
    report.add(
        "PyTorch", f"{torch.__version__}, {built}", "computing on an accelerator needs 2.7 or newer" if old else None
    )
    report.add(
        "system",
        f"{platform.system()} {platform.release()}, {'WSL2' if is_wsl() else 'not WSL2'}",
        "it shows half of Windows' memory and pins little: raise memory= in .wslconfig, and keep drives in Linux' own "
        "file system, not under /mnt"
        if is_wsl()
        else None,
    )
    return not old


def _devices(report):
    """Reports the accelerators. Returns the one that would be used, or None."""
    where = accelerator()
    if where.type == "cpu":
        why = cuda.why_none()
        report.add(
            "accelerator",
            f"PyTorch sees none, so models train on the CPU{f' ({why})' if why else ''}",
            "install the PyTorch for this GPU, and its driver, or give the container the GPU (--gpus all)"
            if why
            else None,
        )
        return None
    if where.type == "cuda":
        report.add("driver", cuda.driver())
    for n in range(torch.accelerator.device_count()):
        _device(report, torch.device(where.type, n))
    return torch.device(where.type, torch.accelerator.current_device_index())


def _device(report, device):
    found, users = memory(device), cuda.users(device)
    facts = {} if found is None else {"available_bytes": found[0], "memory_bytes": found[1]}
    free, every = found or (1, 1)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    said = f"{name}, " + (
        "which does not tell its memory"
        if found is None
        else f"{native.readable(every)}, of which {native.readable(free)} are free"
    )
    others = {process: size for process, size in users.items() if process != os.getpid()}
    if others:
        said += "; " + ", ".join(f"process {n} uses {native.readable(size)}" for n, size in others.items())
    said += ", the host's memory as well: parameters are not copied" if cuda.is_unified(device) else ""
    advice = "others use it: end what you do not need (nvidia-smi lists it), or give a gpu_memory= that is free"
    report.add(
        str(device), said, advice if every - free > every // 4 else None, unified=cuda.is_unified(device), **facts
    )


def pinned_bytes(device, most):
    """(bytes of pinned memory that can be had, at most so many, or within a time; why not more). All is given back."""
    had, total, why, began, size = [], 0, None, time.monotonic(), PINNED_BYTES
    while total < most and size >= PINNED_BYTES // 4 and time.monotonic() - began < PINNED_SECONDS:
        try:
            had.append(Pinned(min(size, most - total), device))
            total += had[-1].nbytes
            size = size if why else min(total, PINNED_MOST)
        except LongshoreError as failure:
            why, size = native.first_line(failure.__cause__ or failure), size // 2
    for pinned in had:
        pinned.release()
    return total, why


def locks_without_limit(status="/proc/self/status"):
    """Whether this process may lock memory beyond its limit (CAP_IPC_LOCK), as root may, but not in most containers."""
    with open(status, encoding="ascii", errors="replace") as f:
        may = next((int(line.split()[1], 16) for line in f if line.startswith("CapEff:")), 0)
    return bool(may >> 14 & 1)


def _pinned(report, device):
    """Returns how much pinned memory there is."""
    most = shared_budget.within() // 2
    total, why = pinned_bytes(device, most)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    free = locked == resource.RLIM_INFINITY or locks_without_limit()
    said = f"{native.readable(total)} can be had" if why else f"at least {native.readable(total)} can be had"
    said += f" ({'no more was asked for' if not why else f'then: {why}'}); the limit of locked memory is "
    said += "none" if free else native.readable(locked)
    advice = None
    if why:
        advice = "raise that limit (ulimit -l unlimited; --ulimit memlock=-1 in a container)" if not free else ""
        advice += ", or " if advice else ""
        advice += "give pinned_memory= that much: more parameters then pass through a ring, which is slower"
    facts = {} if free else {"limit_bytes": locked}
    report.add("pinned memory", said, advice, "fail" if not total else None, pinned_bytes=total, **facts)
    return total


def rates(device, nbytes):
    """Bytes a second of copies to a device and from it, between pinned memory and its own."""
    here, out = Pinned(nbytes, device), []
    there = torch.empty(nbytes, dtype=torch.uint8, device=device)
    for to, source in ((there, here.bytes), (here.bytes, there)):
        to.copy_(source, non_blocking=True)  # the first one also makes what copies need
        torch.accelerator.synchronize(device)
        began, count = time.monotonic(), 0
        while count < 3 and time.monotonic() - began < RATE_SECONDS:
            to.copy_(source, non_blocking=True)
            torch.accelerator.synchronize(device)
            count += 1
        out.append(int(count * nbytes / (time.monotonic() - began)))
    here.release()
    return out


def _bus(report, device, pinned):
    free = (memory(device) or (RATE_BYTES, 0))[0]
    nbytes = min(RATE_BYTES, pinned, free // 2) // 4096 * 4096
    if nbytes < 1 << 20:
        report.add("bus", "not measured: memory is short", "end what uses the memory, and ask again")
        return
    to, back = rates(device, nbytes)
    slow = "that is little: look at the lanes of its slot (nvidia-smi -q shows the link), and at what else uses it"
    report.add(
        "bus",
        f"{native.readable(to)} a second to {device}, {native.readable(back)} a second back",
        slow if min(to, back) < SLOW_BYTES else None,
        to_bytes_per_second=to,
        from_bytes_per_second=back,
    )


def examine(report):
    new = _software(report)
    device = _devices(report) if new else None
    if device is not None:
        _bus(report, device, _pinned(report, device))


def main(program, arguments):
    """Prints the report, then the program's. Returns the exit status. program: its path, or None."""
    as_json = "--json" in arguments
    report = Report(not as_json)
    examine(report)
    command = [program, "doctor", *arguments]
    if program is None:
        report.add(
            "program", "`longshore` is not installed, or not on PATH", "`make install` in the sources installs it"
        )
    elif not as_json:
        status = subprocess.run(command, check=False).returncode
        if report.broken:
            print(f"does not work, and is needed on an accelerator: {', '.join(report.broken)}")
        return status or int(bool(report.broken))
    status, out = 0, {"ok": True, "checks": []}
    if program is not None:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if not done.stdout:
            return done.returncode
        status, out = done.returncode, json.loads(done.stdout)
    if as_json:
        out["ok"] = out["ok"] and not report.broken
        print(json.dumps({**out, "checks": report.checks + out["checks"]}))
    return status or int(bool(report.broken))
