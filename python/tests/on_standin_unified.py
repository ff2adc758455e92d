"""Trainings on the device of standin.py with the host's memory for its own, in a process of their own. python
on_standin_unified.py DIRECTORY; writes JSON: {name: what came of it}."""

import functools  # noqa: I001
import itertools
import json
import os
import pathlib
import sys
from unittest import mock

import torch

import on_standin  # makes the device before longshore is imported
import longshore
import standin
from longshore.model import activations, cuda, device, unified
from longshore.run.engine_surface import core_of
from on_standin import MODELS, ON_DRIVES, SIX, computed, made, of_model
from test_dtypes import BF16, FP32, Mixed

MIXED = functools.partial(Mixed, FP32, BF16)
LOOP, TOGETHER = {"together": False}, {"together": True}
FEW, TWO, MANY = ({"slots": n, "pages": n} for n in (1, 2, 9))
WAYS = {
    **{f"{name}, few, loop": (MODELS[name], {**LOOP, **FEW}) for name in ("gpt2", "lora", "moe")},
    **{f"{name}, two, together": (MODELS[name], {**TOGETHER, **TWO}) for name in ("gpt2", "lora", "moe")},
    **{f"{name}, many, loop": (MODELS[name], {**LOOP, **MANY}) for name in ("gpt2", "lora", "cnn")},
    "several sizes": (on_standin.Mixed, {**LOOP, **TWO}),
    "dtypes, few": (MIXED, {**LOOP, **FEW}),
    "dtypes, many": (MIXED, {**TOGETHER, **MANY}),
    "dtypes, widened": (MIXED, {**TOGETHER, **TWO, "storage": "bf16", "stream": True}),
    "widened, few": (SIX, {**LOOP, **FEW, "storage": "bf16"}),
    "widened, two": (SIX, {**TOGETHER, **TWO, "storage": "bf16"}),
    "widened, many": (SIX, {**LOOP, **MANY, "storage": "bf16"}),
    "activations on drives": (SIX, {**LOOP, **TWO, **ON_DRIVES}),
    "activations on drives, together": (SIX, {**TOGETHER, **TWO, **ON_DRIVES}),
    "activations on the host": (SIX, {**LOOP, **TWO, "activations": "host"}),
    "own stream": (SIX, {**LOOP, **TWO, "stream": True}),
    "own stream, together": (SIX, {**TOGETHER, **MANY, "stream": True}),
    "compressed": (SIX, {**LOOP, **TWO, "compress": 0.05}),
}


def batch(where, n):
    return {key: value.to(where) for key, value in on_standin.models.tokens(4)[n].items()}


def goes_on(where, path, **how):
    """Steps, sleep, a frozen model beside, writes of a script, close, reopen, a resumed run."""
    os.mkdir(f"{path}-drive")
    out = []

    def steps(engine, *numbers):
        for n in numbers:
            engine.backward(computed(engine, batch(where, n)))
            out.append(engine.step().loss)

    torch.manual_seed(7)
    kept = standin.pinned()
    with longshore.wrap(
        made(SIX), run=path, drives=[f"{path}-drive"], lr=1e-2, clip=0.5, memory="1GiB", device=where, **how
    ) as engine:
        steps(engine, 0)
        engine.sleep()
        out.append(max(0, standin.pinned() - kept))
        engine.wake()
        steps(engine, 1)
        with longshore.wrap(made(SIX), trains=False) as frozen, torch.no_grad():
            out.append(computed(frozen, batch(where, 2)).item())
            out.append(computed(frozen, batch(where, 3)).item())
        weight = next(engine.module.parameters())
        with longshore.resident(weight, write=True), torch.no_grad():
            weight.mul_(1.25)
        steps(engine, 2)
        out.append(weight.sum().item())
        engine.close()
        engine.reopen(path)
        steps(engine, 3)
        out.append(engine.digest())
    with longshore.resume(path, made(SIX), device=where) as engine:
        steps(engine, 0)
        out.append(engine.digest())
    with longshore.resume(path, made(SIX), device="cpu") as engine:
        engine.backward(computed(engine, batch("cpu", 1)))
        out.append([engine.step().loss, engine.digest()])
    return out


def updated_at_once(where, path):
    """Steps whose updates reach pages that stay before anybody has waited for a loss."""
    os.mkdir(f"{path}-drive")
    torch.manual_seed(7)
    with longshore.wrap(
        made(SIX), run=path, drives=[f"{path}-drive"], lr=1e-2, memory="1GiB", device=where, storage="fp32"
    ) as engine:
        for n in range(3):
            computed(engine, batch(where, n)).backward()
            engine.optimizer.step()
            engine.optimizer.zero_grad()
        return engine.digest()


def budgets(path):
    """What two budgets come to by default, and what is said of one that has no meaning."""
    names = (f"{path}-{n}" for n in itertools.count())

    def planned(**how):
        run = next(names)
        os.mkdir(f"{run}-drive")
        free = standin.free()
        with longshore.wrap(
            SIX(), run=run, drives=[f"{run}-drive"], device=standin.NAME, overwrite=True, **how
        ) as engine:
            plan = core_of(engine).plan
            for n in range(3):
                engine.backward(computed(engine, batch(standin.NAME, n)))
                engine.step()
            told = engine.memory()
            limit = plan.gpu_memory.limit
            return {
                "free": free,
                "memory": plan.most_bytes,
                "held": plan.total_bytes,
                "gpu_memory": limit,
                "planned": told.gpu_planned,
                "most": told.gpu_most,
            }

    out = {"default": planned(), "memory": planned(memory="512MiB"), "gpu": planned(gpu_memory="64MiB")}
    standin.limit(standin.live() + (48 << 20))
    out["little"] = planned()
    standin.limit()
    try:
        planned(pinned_memory="1GiB", memory="1GiB")
    except ValueError as failure:
        out["said"] = str(failure)
    return out


def main(directory):
    out, names = {}, (f"{directory}/{n}" for n in itertools.count())
    activations.LEAST_BYTES = 16
    for name, (make, how) in WAYS.items():
        here = {key: value for key, value in how.items() if value != "host"}
        out[f"{name} cpu"] = of_model(make, "cpu", next(names), **here)
    cuda.registers, cuda.register, cuda.unregister = (lambda device: True), standin.pin, standin.unpin
    cuda.is_unified, cuda.seen_by = (lambda device: device.type == standin.NAME), standin.see
    for name, (make, how) in WAYS.items():
        standin.overwritten()
        before = standin.copied(), standin.seen()
        there = out[f"{name} {standin.NAME}"] = of_model(make, standin.NAME, next(names), **how)
        there.update(overwritten=standin.overwritten(), copied=standin.copied() - before[0])
        there.update(seen=standin.seen() - before[1])
    standin.overwritten()
    for name, how in (("goes on", {}), ("goes on, widened", {"storage": "bf16"})):
        there = goes_on(standin.NAME, next(names), **how)
        with mock.patch.object(cuda, "is_unified", lambda device: False):
            out[name] = goes_on(standin.NAME, next(names), **how), there, standin.overwritten()
    out["budgets"] = budgets(next(names))
    out["by a script"] = [on_standin.by_a_script(where, next(names)) for where in ("cpu", standin.NAME)]
    out["read late"], out["dropped"] = on_standin.read_late(next(names)), on_standin.dropped(next(names))
    out["overwritten"] = standin.overwritten()
    out["checkpoints"] = [
        [
            on_standin.trained(where, next(names), checkpoints=True, together=together, **FEW)["digest"]
            for where in ("cpu", standin.NAME)
        ]
        for together in (False, True)
    ]
    out["seen to have passed"] = []
    standin.tell()
    for name in ("gpt2, two, together", "widened, two", "dtypes, few"):
        there = of_model(WAYS[name][0], standin.NAME, next(names), **WAYS[name][1])
        out["seen to have passed"].append([out[f"{name} cpu"]["digest"], there["digest"], standin.overwritten()])
    standin.tell(False)
    out["without waits"] = {}
    without = mock.patch.object(unified.Unified, "_free", lambda tier, slot: tier._release(slot))
    for name in ("gpt2, few, loop", "widened, two"):
        with without:
            of_model(WAYS[name][0], standin.NAME, next(names), **WAYS[name][1])
        out["without waits"][name] = standin.overwritten()
    out["at once"] = [updated_at_once("cpu", next(names)), updated_at_once(standin.NAME, next(names))]
    out["at once"].append(standin.overwritten())
    # the clock's wait for what a copy follows would stand for the tier's
    unsplit = mock.patch.object(
        device.Device, "wait", lambda self, event: (there := self.event_of(event)) and there.synchronize()
    )
    with without, unsplit:
        updated_at_once(standin.NAME, next(names))
    out["without waits"]["at once"] = standin.overwritten()
    out["lost"] = on_standin.lost(next(names))
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
