"""Trainings on the device of standin.py with little pinned memory, in a process of their own. python
on_standin_pinned.py DIRECTORY; writes JSON: {name: what came of it}."""

import gc
import itertools
import json
import logging
import os
import pathlib
import re
import sys
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import standin

standin.make()

import longshore  # noqa: E402
from longshore import native  # noqa: E402
from longshore.model import activations, cuda  # noqa: E402
from longshore.model.device import to_host  # noqa: E402
from longshore.run import memory_plan, pinned_parts  # noqa: E402
from longshore.run.engine_surface import core_of  # noqa: E402
from on_standin import said_of  # noqa: E402

MIB = 1 << 20
logged = []


class Wide(nn.Module):
    """A table that is the head, too, and layers, whose gradients are larger than the least room for landing."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(700, 256)
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256)) for _ in range(4)]
        )

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(F.linear(x[:, :-1], self.table.weight).flatten(0, 1), ids[:, 1:].flatten())


def wrapped(where, path, **how):
    torch.manual_seed(7)
    os.mkdir(f"{path}-drive")
    how["device"] = where
    return longshore.wrap(Wide(), run=path, drives=[f"{path}-drive"], lr=1e-2, clip=0.5, memory="1GiB", **how)


def trained(where, path, together=True, **how):
    """What came of two steps, and of two more of a second engine."""
    del logged[:]
    gc.collect()
    before = standin.pinned()
    standin.pinned_most()

    def steps(engine, first):
        for n in range(first, first + 2):
            batches = [
                torch.randint(700, (2, 5), generator=torch.Generator().manual_seed(2 * n + i)).to(where)
                for i in range(2)
            ]
            if together:
                result = engine.train_batch(batches, lambda loss, batch: loss)
            else:
                engine.accumulate = 2
                for batch in batches:
                    engine.backward(engine(batch))
                result = engine.step()
        return result

    with wrapped(where, path, **how) as engine:
        steps(engine, 0)
    after_close = standin.pinned() - before
    with longshore.resume(path, Wide(), device=where) as engine:
        result = steps(engine, 2)
        tier, said = core_of(engine).streams.tier, str(engine.memory())
        out = {"digest": engine.digest(), "loss": result.loss, "norm": result.grad_norm, "memory": said}
        if where != "cpu":
            out["pinned_pages"], out["pages"] = tier.host.cut, tier.pages_bytes
            out["landing"] = tier.host.landing.nbytes
        engine.close()
        engine.reopen(path)
        out["again"] = engine.digest()
    out.update(most=standin.pinned_most() - before, after_close=after_close, logged=[*logged])
    gc.collect()
    out["kept"] = standin.pinned() - before
    return out


def least_of(path, **how):
    """The least pinned memory, as the error names it."""
    said = said_of(lambda: wrapped(standin.NAME, path, pinned_memory="64KiB", **how))
    return native.size(re.search(r"minimum ([0-9.]+ \w+)", said).group(1)), said


def dropped(path):
    """Pinned bytes that stay of an engine that nobody closes, and whether a forked process would unregister any."""
    gc.collect()
    before = standin.pinned()
    engine = wrapped(standin.NAME, path)
    memory = core_of(engine).streams.tier.host.landing
    child = os.fork()
    if not child:
        os._exit(int(memory._unregister.alive))
    alive = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    held = standin.pinned() - before
    del engine, memory
    gc.collect()
    return {"held": held, "kept": standin.pinned() - before, "child": alive}


def beside(path):
    """Pinned bytes of two engines in one pinned_memory=, and what is said where it leaves too little for the second."""
    gc.collect()
    before, out = standin.pinned(), {"given": 16 * MIB}
    with wrapped(standin.NAME, path, pinned_memory=out["given"]), longshore.wrap(Wide(), trains=False) as frozen:
        with torch.no_grad():
            frozen(torch.arange(8).view(1, 8).to(standin.NAME))
        out["both"] = standin.pinned() - before
    with wrapped(standin.NAME, f"{path}-short", pinned_memory=300 << 10):
        out["short"] = said_of(lambda: longshore.wrap(Wide(), trains=False))
    return out


def main(directory):
    out, names = {"grid": []}, (f"{directory}/{n}" for n in itertools.count())
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("longshore").addHandler(handler)
    activations.LEAST_BYTES = 16
    on_drives = {"activations": "drives", "activation_room": "64MiB"}
    small = (
        mock.patch.object(pinned_parts, "RING_BYTES", 100 << 10),
        mock.patch.object(pinned_parts, "LANDING_BYTES", 200 << 10),
        mock.patch.object(memory_plan, "PINNED_POOL_BYTES", (MIB, 1 << 40)),
    )
    out["cpu"] = {name: trained("cpu", next(names), **how) for name, how in (("", {}), ("drives", on_drives))}
    with small[0], small[1], small[2]:
        for name, how, registers, grid in (
            ("", {}, True, (0, 3, 64)),
            ("drives", on_drives, True, (0, 2, 64)),
            ("", {}, False, (0, 3)),
        ):
            cuda.registers = lambda device, registers=registers: registers
            cuda.register, cuda.unregister = standin.pin, standin.unpin
            least, said = least_of(next(names), **how)
            below = least - MIB if least > MIB else least - 1
            refused = said_of(lambda: wrapped(standin.NAME, next(names), pinned_memory=below, **how))
            for more in grid:
                given = {"pinned_memory": least + more * MIB, "together": more != 2}
                done = trained(standin.NAME, next(names), **given, **how)
                out["grid"].append({"name": name, "more": more, "least": said, "below": refused, **given, **done})
        cuda.registers = lambda device: True
        for name, there in (("short", 4 * MIB), ("very short", 400 << 10)):
            standin.limit(pinned=standin.pinned() + there)
            out[name] = trained(standin.NAME, next(names), storage="bf16")
        standin.limit(pinned=standin.pinned() + 4 * MIB)
        out["few activations"] = trained(standin.NAME, next(names), **on_drives)
        standin.limit(pinned=standin.pinned() + (100 << 10))
        before = standin.pinned()
        out["refused"] = said_of(lambda: wrapped(standin.NAME, next(names))), standin.pinned() - before
        standin.limit(pinned=standin.pinned())
        there = torch.arange(4).to(standin.NAME)
        out["without"] = to_host({"a": there})["a"].tolist()
        standin.limit()
        out["dropped"], out["beside"] = dropped(next(names)), beside(next(names))
    out["bf16"] = trained("cpu", next(names), storage="bf16")
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
