"""Golden trainings of the package: what a case of a grid of models, budgets, drives and ways comes to, in one line
each.

    golden.py [--native FILE] DIRECTORY CASE...    cases as "stack-least-local-plain"; DIRECTORY: where they are made
    golden.py --until N DIRECTORY CASE...          stops at a step, and leaves the runs there
    golden.py --resume DIRECTORY CASE...           goes on with them to the end
    golden.py --list [--all]                       cases that two builds are compared in

--budgets FILE: lines of an earlier training, whose budgets (memory=) are those of these cases, whatever the least is
now.

The gradients of the models in EXACT are whole numbers times a power of two, which are functions of the batch alone: no
kernel, no version of PyTorch and no order of a sum decides a bit. What they come to is committed; that of REAL is
compared between two builds. native: an extension that says what it hands over to drives (tests/tools/trace.c), in the
place of the package's. Only public names of the package are used, so that one file drives the packages of two commits.
"""

import argparse
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

EXACT, REAL = ("stack", "tied", "untied", "frozen"), ("gpt2", "llama", "t5", "cnn")
BUDGETS, DRIVES, WAYS = ("least", "middle", "all"), ("local", "ram", "ssh"), ("plain", "topk", "8bit", "clip")
STEPS = 4
PLANNED = (
    "ring_bytes",
    "slots",
    "gradient_bytes",
    "pool_bytes",
    "room_bytes",
    "aside_bytes",
    "spare_bytes",
    "compression_bytes",
    "total_bytes",
)


def pairs(models):
    """Cases in which each two values of two axes meet."""
    return [
        f"{models[i]}-{BUDGETS[(i + j) % 3]}-{DRIVES[(i + 2 * j) % 3]}-{WAYS[j]}" for i in range(4) for j in range(4)
    ]


def grid(models):
    return [f"{m}-{b}-{d}-{w}" for m in models for d in DRIVES for w in WAYS for b in BUDGETS]


def take(native):
    """The package's extension is this one."""
    loader = importlib.machinery.ExtensionFileLoader("longshore._native", native)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("longshore._native", loader))
    sys.modules["longshore._native"] = module
    loader.exec_module(module)


def numbers(shape, salt):
    """Multiples of 2^-12 in [-1/8, 1/8)."""
    import torch

    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 2654435761 + salt * 40503) % 65521 % 1024 - 512).reshape(shape) / 4096


def exact(kind):
    """A model whose gradients are c^T a of whole numbers a and c of the batch, whatever its weights are."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner, self.gain = nn.Linear(width, width), nn.Parameter(torch.zeros(width))

        def forward(self, h, a):
            return h + self.inner(a) + self.gain * a

    class Exact(nn.Module):
        def __init__(self, width=192, layers=4, rows=700):
            super().__init__()
            self.table = nn.Embedding(rows, width) if kind != "stack" else None
            self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
            self.head = nn.Linear(width, rows, bias=False) if kind in ("untied", "frozen") else None

        def forward(self, ids, a, c, d):
            h = self.table(ids) if self.table is not None else torch.zeros_like(a)
            for layer in self.layers:
                h = layer(h, a)
            loss = (h * c).sum()
            if kind != "stack":
                weight = (self.head or self.table).weight
                loss = loss + (functional.linear(a, weight) * d).sum()
            return loss

    model = Exact()
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p.copy_(numbers(p.shape, n))
    if kind == "frozen":
        model.layers[1].requires_grad_(False)
        model.table.weight.requires_grad_(False)
    return model


def exact_batch(step, number, scale=(1.0, 0.5, 4.0, 0.25)):
    import torch

    g = torch.Generator().manual_seed(97 * step + number)

    def whole(*shape):
        return torch.randint(-3, 4, shape, generator=g).float()

    ids = torch.randint(0, 700, (2, 6), generator=g) * torch.randint(0, 2, (2, 6), generator=g)
    return {
        "ids": ids,
        "a": whole(2, 6, 192),
        "c": whole(2, 6, 192) * scale[step % 4] / 64,
        "d": whole(2, 6, 700) * scale[step % 4] / 64,
    }


def made(kind):
    """The model, what gives its batches, and a clip that some of their norms are above."""
    import torch

    import models

    if kind in EXACT:
        return exact(kind), exact_batch, 60.0
    torch.manual_seed(11)
    if kind == "cnn":
        g = torch.Generator().manual_seed(3)
        batches = [{"x": torch.randn(4, 1, 8, 8, generator=g)} for _ in range(2 * STEPS + 4)]
        return models.Cnn(), lambda step, number: batches[2 * step + number], 0.65
    batches = models.tokens(2 * STEPS + 4)
    return models.LANGUAGE[kind](), lambda step, number: batches[2 * step + number], 2.0 if kind == "llama" else 1.3


def loss_of(out):
    loss = getattr(out, "loss", out)
    return loss if loss.dim() == 0 else loss.square().mean()


def train(engine, batch, until):
    engine.train()
    engine.accumulate = 2
    while engine.step_number < until:
        step = engine.step_number
        for number in range(2):
            engine.backward(loss_of(engine(**batch(step, number))))
        engine.step()
    return engine.digest()


def drives_of(kind, place, far):
    for name in "ab":
        (place / name).mkdir(parents=True)
    if kind == "ram":
        return ["ram:"]
    if kind == "local":
        return [str(place / "a"), str(place / "b")]
    rsh = place / "rsh"
    rsh.write_text(f"#!/bin/sh\nunset LONGSHORE_TRACE\nshift\nexec '{far}' drive serve --stdio\n")
    rsh.chmod(0o755)
    os.environ["LONGSHORE_RSH"] = str(rsh)
    return [f"ssh://far{place}/a"]


def hashed(lines):
    return hashlib.md5("\n".join(lines).encode()).hexdigest()[:16]


def options(kind, way, clip):
    how = {"lr": 1e-2, "weight_decay": 0.1, "clip": clip if way == "clip" else 0.0}
    if kind in ("stack", "untied", "llama"):
        how["storage"] = "bf16"
    return how | {"topk": {"compress": 0.05, "compress_after": 1}, "8bit": {"moments": "8bit"}}.get(way, {})


def budget_of(kind, budget, drives, place, how):
    """Bytes: the least that is asked for, that and half of the parameters, or what has room for all."""
    import longshore

    if budget == "all":
        return 256 << 20
    try:
        longshore.wrap(made(kind)[0], run=place / "none", drives=drives, memory=1 << 10, **how)
    except longshore.BudgetError as refused:
        size, unit = re.search(r"minimum ([\d.]+) ?([KM])iB", str(refused)).groups()
        least = int(float(size) * (1 << (20 if unit == "M" else 10)))
    model = made(kind)[0]
    return least + (budget == "middle") * sum(p.nbytes for p in model.parameters()) // 2


def plan_of(engine):
    """How the engine uses its memory. Older packages have it as an attribute, and call pages slots."""
    try:
        from longshore.run.engine_surface import core_of

        chosen = vars(core_of(engine).plan)
    except ImportError:
        chosen = vars(engine.plan)
    return {**chosen, "slots": chosen.get("pages", chosen["slots"])}


def keep_division(engine):
    """Lets memory stay divided as it is: packages divide it anew by how long steps take here, which no file can say."""
    try:
        from longshore.run.engine_surface import core_of

        core_of(engine).plan.again = None
    except ImportError:
        pass


def run(case, directory, far, until, memory=None):
    """What the case comes to, in words that are compared one by one. memory: bytes; None: as this package plans."""
    import longshore

    kind, budget, drives, way = case.split("-")
    place = directory / case
    drives = drives_of(drives, place, far)
    model, batch, clip = made(kind)
    how = options(kind, way, clip)
    memory = memory or budget_of(kind, budget, drives, place, how)
    trace = os.environ["LONGSHORE_TRACE"] = str(place / "trace")
    with longshore.wrap(model, run=place / "run", drives=drives, memory=memory, **how) as engine:
        keep_division(engine)
        digest = train(engine, batch, until)
        chosen = plan_of(engine)
        plan = [f"{key} {chosen.get(key)}" for key in PLANNED]
    said = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    sends = pathlib.Path(trace).read_text().splitlines() if os.path.exists(trace) else []
    moved = sum(int(line.split()[1]) for line in sends if line.startswith("moved "))
    sends = [line for line in sends if not line.startswith("moved ")]
    keys = ("grad_norm", "dropped_energy") if kind in EXACT else ("loss", "grad_norm", "dropped_energy")
    return {
        "memory": memory,
        "digest": digest,
        "numbers": hashed([str(line.get(k)) for line in said for k in keys]),
        "plan": hashed(plan),
        "sends": hashed(sends) if sends else "unknown",
        "bytes": "any" if "discard" in sends else str(moved),
    }


def resume(case, directory):
    """The rest of a run that was stopped."""
    import longshore

    kind, _, drives, _ = case.split("-")
    if drives == "ssh":
        os.environ["LONGSHORE_RSH"] = str(directory / case / "rsh")
    batch = made(kind)[1]
    with longshore.resume(directory / case / "run", lambda: made(kind)[0]) as engine:
        return {"digest": train(engine, batch, STEPS)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--native")
    parser.add_argument("--until", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--budgets", type=pathlib.Path)
    parser.add_argument("directory", nargs="?", type=pathlib.Path)
    parser.add_argument("cases", nargs="*")
    asked = parser.parse_args()
    if asked.list:
        print(*(case for models in (REAL, EXACT) for case in (grid if asked.all else pairs)(models)), sep="\n")
        return
    if asked.native:
        take(asked.native)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    far = os.environ.get("LONGSHORE") or shutil.which("longshore")
    if not far:
        sys.exit("golden.py: no program stands for the far side of ssh: LONGSHORE or PATH names it")
    asked.directory = asked.directory.resolve()
    budgets = (
        {line.split()[0]: int(re.search(r" memory=(\d+)", line)[1]) for line in asked.budgets.read_text().splitlines()}
        if asked.budgets
        else {}
    )
    for case in asked.cases:
        if asked.resume:
            said = resume(case, asked.directory)
        else:
            said = run(case, asked.directory, far, asked.until or STEPS, budgets.get(case))
        print(case, *(f"{k}={v}" for k, v in said.items()), flush=True)
        if not asked.until:
            shutil.rmtree(asked.directory / case)


if __name__ == "__main__":
    main()
