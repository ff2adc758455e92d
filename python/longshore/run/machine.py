"""Descriptions of machines: this one's as it is kept, one of a file, and what `python -m longshore machine` adds to the
program's measurement: how fast PyTorch multiplies here, and the accelerator.

docs/outputs.md ("machine") has the format. A plan of the package counts with "torch" of "compute", the program's with
"products".
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time

import torch
from torch.nn import functional

from .. import native
from ..errors import MissingError
from ..model import placement
from ..model.pinned import Pinned
from ..native import ffi, lib
from . import doctor, shared_budget
from .device_memory import memory

ROWS = 256, 1024, 4096  # of the products that are measured
WIDTH = 1024
HEADS, HEAD_WIDTH, LENGTH = 16, 64, 512  # of attention
SECONDS = 0.15  # for each product
MIB = 1 << 20


class Machine:
    """A machine as a plan sees it. described: its description; {}: none, so rates are assumed. said: where it is from,
    for people. named: it was asked for, so that its memory and its drives count, and not this machine's."""

    def __init__(self, described, said, named=False):
        self.described, self.said, self.named = described, said, named

    @property
    def drives(self):
        return self.described.get("drives", [])

    def size(self, part, key):
        """A capacity in bytes; None: it is not given."""
        found = self.described.get(part, {}).get(key)
        return None if found is None else native.size(found, key)

    def changed(self, change):
        """This machine after change(described)."""
        described = copy.deepcopy(self.described)
        change(described)
        return Machine(described, self.said, self.named)

    def handle(self, device=None):
        """struct shore_machine * for a plan on a device (None: the CPU); NULL: assumed."""
        if not self.described:
            return ffi.NULL
        described = copy.deepcopy(self.described)
        compute = described.get("compute", {})
        torchs = compute.pop("torch", None)
        if torchs is not None and (device is not None or "gpu" not in described):
            compute["products"] = torchs
        return parsed(described, self.said)


def parsed(described, name="machine"):
    """The struct shore_machine * of a description. Raises LongshoreError for what is none."""
    text = json.dumps(described).encode()
    made = native.made("struct shore_machine *", lib.shore_machine_parse, text, len(text), str(name).encode())
    return ffi.gc(made, lib.shore_machine_free)


def described(machine):
    """The description of a struct shore_machine *."""
    text = ffi.gc(lib.shore_machine_json(machine), lib.free)
    return json.loads(native.text(text))


def of(asked):
    """The Machine that was asked for: a file, the name of a description that comes with the library, or a description;
    None: this machine, as it is kept."""
    if isinstance(asked, dict):
        parsed(asked)
        return Machine(asked, f"rates of {asked.get('name', 'a description')}", named=True)
    if asked is not None:
        made = native.made("struct shore_machine *", lib.shore_machine_read, os.fspath(asked).encode())
        return Machine(described(ffi.gc(made, lib.shore_machine_free)), f"rates of {asked}", named=True)
    try:
        made = native.made("struct shore_machine *", lib.shore_machine_kept)
    except MissingError as why:
        return Machine({}, f"assumed rates: {why}; 'python -m longshore machine --drive PATH' measures them")
    found = described(ffi.gc(made, lib.shore_machine_free))
    said = "rates as measured on this machine" if "measured" in found else f"rates of {found['name']}"
    if "measured" in found and "torch" not in found.get("compute", {}):
        said += ", but not with PyTorch: 'python -m longshore machine' does that"
    return Machine(found, said)


# ---- measuring -------------------------------------------------------------------------------------------------------


def _rate(run, work, device):
    """Units of work a second of several runs, by their lower quartile."""
    run()  # makes what the others need
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    took, until = [], time.monotonic() + SECONDS
    while not took or time.monotonic() < until:
        start = time.perf_counter()
        run()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        took.append(time.perf_counter() - start)
    return work / sorted(took)[len(took) // 4]  # what else runs here makes some of them slower


def _products(device, dtype):
    """{kind: [[rows, operations a second]...]} of a dtype."""
    out = {kind: [] for kind in ("product", "product_input", "product_weight")}
    weight = torch.randn(4 * WIDTH, WIDTH, dtype=dtype, device=device)
    for rows in ROWS:
        given = torch.randn(rows, WIDTH, dtype=dtype, device=device)
        gradient = torch.randn(rows, 4 * WIDTH, dtype=dtype, device=device)
        runs = (given, weight.t()), (gradient, weight), (gradient.t(), given)
        for kind, (a, b) in zip(out, runs):
            rate = _rate(lambda a=a, b=b: torch.mm(a, b), 2 * rows * weight.numel(), device)
            out[kind].append([rows, rate])
    return out


def _attention(device, dtype):
    shape = 2, HEADS, LENGTH, HEAD_WIDTH
    q, k, v = (torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    work = 2 * shape[0] * HEADS * LENGTH * LENGTH * HEAD_WIDTH  # half of it is masked
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = torch.randn_like(out)

    def forward():
        with torch.no_grad():
            functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def backward():
        torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    return {"attention": _rate(forward, work, device), "attention_backward": _rate(backward, work * 5 // 2, device)}


def _row_bytes(device):
    """[[rows, bytes a second]...] of operations that go over rows: a norm, a product, a function and a sum."""

    def run(rows):
        return torch.tanh(functional.layer_norm(rows, (WIDTH,)) * rows) + rows

    given = {n: torch.randn(n, WIDTH, device=device) for n in ROWS}
    return [[n, _rate(lambda t=t: run(t), 10 * t.nbytes, device)] for n, t in given.items()]


def torch_rates(device):
    """What PyTorch reaches on a device, as "torch" of a description has it."""
    dtypes = {"fp32": torch.float32}
    if device.type != "cpu" or lib.shore_multiplies_bf16():
        dtypes["bf16"] = torch.bfloat16
    if device.type != "cpu":
        dtypes["fp16"] = torch.float16
        dtypes = {"tf32" if name == "fp32" and tf32(device) else name: dtype for name, dtype in dtypes.items()}
    out = {}
    for precision, dtype in dtypes.items():
        for kind, rate in {**_products(device, dtype), **_attention(device, dtype)}.items():
            out.setdefault(kind, {})[precision] = rate
    out["rows"] = {"fp32": _row_bytes(device)}
    return out


def tf32(device):
    """Whether products of float32 are computed in TF32 there."""
    return device.type != "cpu" and torch.get_float32_matmul_precision() != "highest"


def _both(device, nbytes):
    """Bytes a second of copies both ways at once."""
    here, back = (Pinned(nbytes, device) for _ in range(2))
    there, from_there = (torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    ways = [(torch.Stream(device), there, here.bytes), (torch.Stream(device), back.bytes, from_there)]

    def run():
        for stream, to, source in ways:
            with stream:
                to.copy_(source, non_blocking=True)

    try:
        return _rate(run, 2 * nbytes, device)
    finally:
        torch.accelerator.synchronize(device)
        here.release()
        back.release()


def add_device(described, device):
    """Adds the accelerator to a description: its memory, its bus, and pinned memory that can be had."""
    found, most = memory(device), shared_budget.within() // 2
    pinned, _ = doctor.pinned_bytes(device, most)
    described["gpu"] = {"pinned": pinned, **({"memory": found[1]} if found else {})}
    nbytes = min(doctor.RATE_BYTES, pinned // 4, found[0] // 4 if found else doctor.RATE_BYTES) // 4096 * 4096
    if nbytes >= MIB:
        to, back = doctor.rates(device, nbytes)
        described["bus"] = {"in": to, "out": back, "both": _both(device, nbytes)}


def main(program, arguments):
    """Measures this machine: the program what it has, then PyTorch here and the accelerator. Keeps all of it. Returns
    the exit status."""
    if program is None:
        print("python -m longshore machine: the program `longshore` is not installed, or not on PATH", file=sys.stderr)
        return 1
    as_json = "--json" in arguments
    began = int(time.time())
    done = subprocess.run([program, "machine", *arguments], check=False, stdout=subprocess.PIPE if as_json else None)
    try:
        whole = json.loads(done.stdout) if as_json else of(None).described
    except ValueError:  # help, or a list
        whole = {}
    if done.returncode or whole.get("measured", 0) < began:  # it told of a machine, and measured none
        print(done.stdout.decode() if as_json else "", end="")
        return done.returncode
    device = placement.usable_accelerator() or torch.device("cpu")
    whole.setdefault("compute", {})["torch"] = torch_rates(device)
    if device.type != "cpu":
        add_device(whole, device)
    native.call(lib.shore_machine_keep, parsed(whole))
    print(json.dumps(whole, indent=2) if as_json else _said(whole, device))
    return 0


def operations(rate):
    """Operations a second for people, as the program writes them."""
    return f"{rate / 1e9:.4g} Gop/s" if rate < 1e12 else f"{rate / 1e12:.4g} Top/s"


def _said(described, device):
    rates, bus, gpu = described["compute"]["torch"], described.get("bus", {}), described.get("gpu", {})
    lines = [f"PyTorch on {device}:"]
    for kind, of in rates.items():
        fastest = {p: max(r for _, r in rate) if isinstance(rate, list) else rate for p, rate in of.items()}
        told = {p: f"{native.readable(r)}/s" if kind == "rows" else operations(r) for p, r in fastest.items()}
        lines.append(f"  {kind:20}" + "".join(f"  {p} {text}" for p, text in told.items()))
    lines += [f"  memory {native.readable(gpu['memory'])}"] if "memory" in gpu else []
    lines += [f"  pinned memory {native.readable(gpu['pinned'])}"] if "pinned" in gpu else []
    lines += [f"  bus {way} {native.readable(rate)}/s" for way, rate in bus.items()]
    return "\n".join(lines)
