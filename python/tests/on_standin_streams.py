"""What crosses between the CPU and the device of standin.py in a step, and what is waited for, in a process of their
own. python on_standin_streams.py DIRECTORY; writes JSON: {name: what came of it}."""

import contextlib
import copy
import functools
import json
import os
import pathlib
import sys
from unittest import mock

import torch
from torch import nn

import longshore
import models
import standin
from longshore.model import activations, device
from longshore.run.engine_surface import core_of
from on_standin import ON_DRIVES, computed, loss_of, made, moved, sizes

PLACES = "cpu", standin.NAME
ACCUMULATED = 4


@contextlib.contextmanager
def wrapped(model, path, slots=99, pages=99, **how):
    """An engine with that many layers on the device, and pages of layers on the host."""
    os.mkdir(f"{path}-drive")
    with sizes(slots, pages):
        how = {"lr": 1e-2, "memory": "1GiB", "device": next(model.parameters()).device, **how}
        with longshore.wrap(model, run=path, drives=[f"{path}-drive"], **how) as engine:
            yield engine


def batches_of(model, where, n):
    if isinstance(model, Frozen):
        return [torch.randn(2, 64, generator=torch.Generator().manual_seed(i)).to(where) for i in range(n)]
    return [moved(batch, where) for batch in models.tokens(n)]


def in_a_loop(engine, batches):
    engine.accumulate = len(batches)
    for batch in batches:
        loss = computed(engine, batch)
        engine.backward(loss)
        loss.item()
    return engine.step()


def together(engine, batches):
    return engine.train_batch(batches, loss_of)


# ---- what is put on the device


class Frozen(nn.Module):
    """Layers that are frozen, but for a bias."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])
        for layer in self.layers:
            layer.weight.requires_grad_(False)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def of_frozen(where, path, slots, pages):
    """Bytes that are put on the device in each of five steps, the third of which changes nothing."""
    torch.manual_seed(7)
    put, out, copies = [], [], device._copy

    def noting(there, stream, to, source, nbytes):
        put.append(nbytes)
        return copies(there, stream, to, source, nbytes)

    with (
        mock.patch.object(device, "_copy", noting),
        wrapped(Frozen().to(where), path, slots, pages, on_nonfinite="skip") as engine,
    ):
        for n in range(5):
            batches = batches_of(engine.module, where, 2)
            if n == 2:
                batches[0][0] = float("inf")
            in_a_loop(engine, batches)
            out.append(sum(put))
            put.clear()
        layout = core_of(engine).layout
        sizes = [sum(layout.nbytes(n) for n, b in enumerate(layout.blocks) if b.trains == it) for it in (True, False)]
        return {"put": out, "trained": sizes[0], "frozen": sizes[1], "digest": engine.digest()}


# ---- waits


def waits_of_pytorch(model, batches):
    """How often PyTorch waits in the same passes, whose losses a script reads."""
    before = standin.waits()
    for batch in batches:
        loss = computed(model, batch)
        loss.backward()
        loss.item()
    return standin.waits() - before


def waits_of_a_step(path, layers, step, **how):
    """Of each of three steps. What waits for room comes and goes with other programs on the machine; what a step waits
    for by itself, each one does."""
    torch.manual_seed(7)
    model, waits = made(functools.partial(models.gpt2, layers=layers)).to(standin.NAME), []
    batches = batches_of(model, standin.NAME, ACCUMULATED)
    pytorch = waits_of_pytorch(copy.deepcopy(model), batches)
    with wrapped(model, path, **how) as engine:
        there = core_of(engine).streams.device
        for _ in range(3):
            before = standin.waits() + there.c.waits
            step(engine, batches)
            waits.append(standin.waits() + there.c.waits - before)
        return {"waits": waits, "pytorch": pytorch}


WAITS = {
    f"{layers}, {name}, {step.__name__}": (layers, step, how)
    for layers, name, how in (
        (12, "all", {}),
        (12, "few slots", {"slots": 2, "pages": 5, "clip": 0.5, "compress": "top5%"}),
        (12, "activations in memory", {"slots": 3, "pages": 1, "activations": "memory"}),
        (24, "few slots", {"slots": 2, "pages": 5, "clip": 0.5, "storage": "bf16"}),
        (24, "activations on drives", {"slots": 2, "pages": 5, "clip": 0.5, **ON_DRIVES}),
    )
    for step in (in_a_loop, together)
}


# ---- all of them

RUNS = {
    **{f"frozen, {n} over {m}": functools.partial(of_frozen, slots=n, pages=m) for n, m in ((9, 9), (9, 2), (2, 9))}
}


def main(directory):
    activations.LEAST_BYTES = 16
    out = {
        name: [run(where, f"{directory}/{n}-{where}") for where in PLACES] for n, (name, run) in enumerate(RUNS.items())
    }
    out["waits"] = {
        name: waits_of_a_step(f"{directory}/waits-{n}", layers, step, **how)
        for n, (name, (layers, step, how)) in enumerate(WAITS.items())
    }
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
