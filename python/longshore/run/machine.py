"""Descriptions of machines: this one's as it is kept, one of a file, and what `python -m longshore machine` adds to the
program's measurement: how fast PyTorch multiplies here, and the accelerator.

docs/outputs.md ("machine") has the format. A plan of the package counts with "torch" of "compute", the program's with
"products".
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from .. import native
from ..errors import MissingError
from ..model import placement
from ..model.pinned import Pinned
from ..model.trace import NEW_BYTES, OF_ENGINE, ROW_BYTES, trace
from ..native import ffi, lib
from . import doctor, shared_budget
from .device_memory import memory

ROWS = 256, 1024, 4096  # of the products that are measured
WIDTH = 1024
HEADS, HEAD_WIDTH, LENGTHS = 16, 64, (128, 512, 2048)  # of attention
MOVED_BYTES = 64 << 20  # that row operations go through, so that they read memory and not caches
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


def _rate(run, work, device, before=lambda: None):
    """Units of work a second of several runs, by their lower quartile. before: runs before each, and is not timed."""
    run()  # makes what the others need
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    took, until = [], time.monotonic() + SECONDS
    while not took or time.monotonic() < until:
        before()
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
            made = torch.mm(a, b)  # new memory counts for itself
            rate = _rate(lambda a=a, b=b, to=made: torch.mm(a, b, out=to), 2 * rows * weight.numel(), device)
            out[kind].append([rows, rate])
    return out


def _attention(device, dtype):
    out = {"attention": [], "attention_backward": []}
    for length in LENGTHS:
        forward, backward = _attention_rates(device, dtype, length)
        out["attention"].append([length, forward])
        out["attention_backward"].append([length, backward])
    return out


def _attention_rates(device, dtype, length):
    shape = max(1, LENGTHS[-1] // length // 2), HEADS, length, HEAD_WIDTH
    q, k, v = (torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    work = 2 * shape[0] * HEADS * length * length * HEAD_WIDTH  # half of it is masked
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = torch.randn_like(out)

    def forward():
        with torch.no_grad():
            functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def backward():
        torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    return _rate(forward, work, device), _rate(backward, work * 5 // 2, device)


def _row_rates(device):
    """Rates of operations that go over rows: bytes a second of a sum, by rows, and of tanh; operations a second."""
    sums = []
    for n in ROWS:
        given = itertools.cycle(torch.randn(max(2, MOVED_BYTES // (4 * n * WIDTH)), n, WIDTH, device=device))
        sums.append([n, _rate(lambda t=given: next(t) + next(t), 12 * n * WIDTH, device)])
    rows = torch.randn(ROWS[0], WIDTH, device=device)
    out = {"functions": _rate(lambda: torch.tanh(rows), 2 * rows.nbytes, device)}
    if device.type == "cpu":
        large = 8 * NEW_BYTES  # more than what the allocator has free
        new = _rate(lambda: torch.empty(large, dtype=torch.uint8).fill_(0), large, device)
        sums.append([NEW_BYTES // ROW_BYTES, new])
        out["calls"] = _calls(device)
    return {"rows": sums, **out}


def _calls(device):
    """Operations that PyTorch begins in a second, in a step that computes next to nothing."""
    layer = nn.TransformerEncoderLayer(8, 1, 8, dropout=0.0, norm_first=True)
    given = torch.zeros(1, 1, 8)
    works = [w for unit in trace(layer, given).units for w in unit.forward + unit.backward]
    caches = torch.zeros(MOVED_BYTES, dtype=torch.uint8)  # between two operations of a step, others fill them
    calls = sum(w.work for w in works if w.kind == "calls" and w.rows != OF_ENGINE)
    return _rate(lambda: layer(given).sum().backward(), calls, device, before=lambda: caches.add_(1))


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
    return {**out, **{kind: {"fp32": rate} for kind, rate in _row_rates(device).items()}}


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
    to = _out(arguments)
    if to is not None:
        with open(to, "w") as file:
            print(json.dumps(whole, indent=2), file=file)
    print(json.dumps(whole, indent=2) if as_json else _said(whole, device))
    return 0


def _out(arguments):
    """The file that --out names, where the program writes what it has measured; None: there is none."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--out")
    return parser.parse_known_args(arguments)[0].out


def operations(rate):
    """Operations a second for people, as the program writes them."""
    return f"{rate / 1e9:.4g} Gop/s" if rate < 1e12 else f"{rate / 1e12:.4g} Top/s"


def _said(described, device):
    rates, bus, gpu = described["compute"]["torch"], described.get("bus", {}), described.get("gpu", {})
    lines = [f"PyTorch on {device}:"]
    for kind, of in rates.items():
        fastest = {p: max(r for _, r in rate) if isinstance(rate, list) else rate for p, rate in of.items()}
        told = {
            p: f"{native.readable(r)}/s" if kind in ("rows", "functions") else operations(r) for p, r in fastest.items()
        }
        lines.append(f"  {kind:20}" + "".join(f"  {p} {text}" for p, text in told.items()))
    lines += [f"  memory {native.readable(gpu['memory'])}"] if "memory" in gpu else []
    lines += [f"  pinned memory {native.readable(gpu['pinned'])}"] if "pinned" in gpu else []
    lines += [f"  bus {way} {native.readable(rate)}/s" for way, rate in bus.items()]
    return "\n".join(lines)
