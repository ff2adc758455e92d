"""What crosses between the CPU and the device of standin.py in a step, and what is waited for, in a process of their
own. python on_standin_streams.py DIRECTORY; writes JSON: {name: what came of it}."""

import contextlib
import copy
import functools
import gc
import json
import os
import pathlib
import sys
import time
from unittest import mock

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import longshore
import models
import standin
from longshore.model import activations, device
from longshore.model.slots import change as change_slots
from longshore.run.engine_surface import core_of
from longshore.step.gradient_step import Step
from on_standin import ON_DRIVES, computed, loss_of, made, moved, sizes, waits_of_pytorch

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


# ---- what leaves it


def left(path, dtype):
    """Bytes of gradients that leave the device in a step of two micro-batches, and of the parameters."""
    torch.manual_seed(7)
    left, land_at = [], Step.land_at

    def noting(step, nbytes):
        left.append(nbytes)
        return land_at(step, nbytes)

    model = made(models.gpt2).to(standin.NAME, dtype)
    with mock.patch.object(Step, "land_at", noting), wrapped(model, path) as engine:
        nbytes = sum(p.nbytes for p in model.parameters())
        in_a_loop(engine, batches_of(model, standin.NAME, 2))
        return sum(left), nbytes


# ---- waits


def waits_of_a_step(path, step, **how):
    """Of each of three steps. What waits for room comes and goes with other programs on the machine; what a step waits
    for by itself, each one does."""
    torch.manual_seed(7)
    model, waits = made(functools.partial(models.gpt2, layers=12)).to(standin.NAME), []
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
    f"{name}, {step.__name__}": (step, how)
    for name, how in (
        ("all", {}),
        ("few slots", {"slots": 2, "pages": 5, "clip": 0.5, "compress": "top5%"}),
        ("activations in memory", {"slots": 3, "pages": 1, "activations": "memory"}),
        ("bf16", {"slots": 2, "pages": 5, "clip": 0.5, "storage": "bf16"}),
        ("activations on drives", {"slots": 2, "pages": 5, "clip": 0.5, **ON_DRIVES}),
    )
    for step in (in_a_loop, together)
}


# ---- what scripts do


def scaled(where, path):
    """A loop with a GradScaler, one step of which overflows."""
    torch.manual_seed(7)
    scales, finite = [], []
    with wrapped(made(models.gpt2).to(where), path) as engine:
        scaler = torch.amp.GradScaler(where, init_scale=1024.0)
        for n, batch in enumerate(batches_of(engine.module, where, 4)):
            loss = computed(engine, batch) * (float("inf") if n == 1 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(engine.optimizer)
            torch.nn.utils.clip_grad_norm_(engine.parameters(), 0.5)
            scaler.step(engine.optimizer)
            scaler.update()
            engine.optimizer.zero_grad()
            scales.append(scaler.get_scale())
            finite.append(engine.step_number)
        return {"digest": engine.digest(), "scales": scales, "steps": finite}


def edited(where, path):
    """A loop that reads, changes and assigns p.grad, with hooks."""
    torch.manual_seed(7)
    with wrapped(made(models.gpt2).to(where), path, slots=1, pages=2) as engine:
        seen, named = [], dict(engine.module.named_parameters())
        first, second = list(named.values())[2:4]
        first.register_hook(lambda g: g * 2)
        second.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
        for n, batch in enumerate(batches_of(engine.module, where, 6)):
            computed(engine, batch).backward()
            if n % 2:
                for p in named.values():
                    p.grad.mul_(0.5)
                seen.append(torch.nn.utils.clip_grad_norm_(engine.parameters(), 0.1).item())
                first.grad = torch.ones_like(first.grad)
                seen.append([str(p.grad.device.type) for p in named.values()] == [where] * len(named))
                engine.optimizer.step()
                engine.optimizer.zero_grad(set_to_none=n < 3)
        return {"digest": engine.digest(), "seen": seen}


def cast(path):
    """Losses and gradients of PyTorch's and ours under the device's autocast, in one loop."""
    torch.manual_seed(7)
    plain = made(models.gpt2).to(standin.NAME)
    with wrapped(copy.deepcopy(plain), path, slots=1, pages=2) as engine:
        for batch in batches_of(plain, standin.NAME, 2):
            losses = []
            for model in (plain, engine):
                with torch.autocast(standin.NAME, torch.bfloat16):
                    losses.append(computed(model, batch))
                losses[-1].backward()
        pairs = zip(engine.module.parameters(), plain.parameters())
        return {
            "losses": [loss.item() for loss in losses],
            "dtypes": [str(loss.dtype) for loss in losses],
            "same": all(torch.equal(p.grad, q.grad) for p, q in pairs),
        }


class Random(nn.Module):
    """Dropout, also from a generator that is the script's own."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3)) for _ in range(3)])
        self.reentrant, self.own = reentrant, None

    def forward(self, x):
        if self.own is not None:
            x = x * torch.bernoulli(torch.full_like(x, 0.5), generator=self.own)
        for layer in self.layers:
            x = x + (layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant))
        return x


def random(where, path, step, reentrant=None, resumes=False, own=False, trains=True):
    torch.manual_seed(7)
    model = Random(reentrant).to(where)
    batches = [torch.ones(2, 16, device=where).requires_grad_() for _ in range(2)]
    with wrapped(model, path, slots=1, pages=2) as engine:
        engine.train(trains)
        if own:
            engine.module.own = torch.Generator(device=where).manual_seed(3)
        for n in range(3):
            if n == 2 and resumes:
                engine.close()
                engine = longshore.resume(path, Random(reentrant).to(where), device=where)
                engine.train()
            step(engine, batches)
        digest = engine.digest()
        engine.close()
    drawn = [] if not own else torch.rand(2, device=where, generator=model.own).tolist()
    return {"digest": digest, "own": drawn}


RANDOM = {
    "loop": {"step": in_a_loop},
    "together": {"step": together},
    "reentrant": {"step": in_a_loop, "reentrant": True},
    "not reentrant": {"step": in_a_loop, "reentrant": False},
    "together, not reentrant": {"step": together, "reentrant": False},
    "resumed": {"step": in_a_loop, "resumes": True},
    "own": {"step": in_a_loop, "own": True},
    "nothing": {"step": in_a_loop, "trains": False},
}


# ---- compiled blocks


def compiled(path, by, slots):
    """Losses, and how many graphs there are after each of four steps of two micro-batches. There are more slots after
    the second one."""
    torch.manual_seed(7)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, losses, graphs = made(models.gpt2).to(standin.NAME), [], []
    if by == "before":
        for layer in model.transformer.h:
            layer.compile(backend="aot_eager")
    how = {"compile": "aot_eager"} if by == "wrap" else {}
    with wrapped(model, path, slots, slots, **how) as engine:
        if by == "model":
            engine.module.compile(backend="aot_eager")
        for n in range(4):
            if n == 2:
                assert change_slots(core_of(engine).streams, 3)
            losses.append(in_a_loop(engine, batches_of(model, standin.NAME, 2)).loss)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        return {"losses": losses, "graphs": graphs, "digest": engine.digest()}


# ---- too little memory in mid-step


def returned(before):
    """Whether memory is what it was, once threads have let go of theirs."""
    late = time.monotonic() + models.HANGS_SECONDS
    while standin.live() != before and time.monotonic() < late:
        gc.collect()
        time.sleep(0.001)
    return standin.live() == before


def short_of_memory(path, step, fails, **how):
    """Three steps; the second one is tried with more and more memory."""
    torch.manual_seed(7)
    model, refused, kept = made(models.gpt2).to(standin.NAME), 0, 0
    with wrapped(model, path, **how) as engine:
        batches = batches_of(model, standin.NAME, 2)
        step(engine, batches)
        engine.settle()
        gc.collect()
        before = standin.live()
        for more in range(0, 1 << 22, 1 << 16) if fails else ():
            standin.limit(before + more)
            try:
                step(engine, batches)
                break
            except torch.OutOfMemoryError:
                refused += 1
                engine.drop_gradients()  # of the micro-batch before, if forward has failed
            finally:
                standin.limit()
            kept += not returned(before)
        if not fails:
            step(engine, batches)
        step(engine, batches)
        return {"digest": engine.digest(), "refused": refused, "kept": kept, "steps": engine.step_number}


SHORT = {
    "loop": {"step": in_a_loop, "slots": 2, "pages": 2, "clip": 0.5},
    "together": {"step": together},
    "activations": {"step": together, "slots": 2, "pages": 3, **ON_DRIVES},
    "activations, loop": {"step": in_a_loop, "slots": 2, "pages": 3, **ON_DRIVES},
    "compress": {"step": in_a_loop, "compress": "top5%", "storage": "bf16"},
}


# ---- all of them

RUNS = {
    **{f"frozen, {n} over {m}": functools.partial(of_frozen, slots=n, pages=m) for n, m in ((9, 9), (9, 2), (2, 9))},
    "scaled": scaled,
    "edited": edited,
    **{f"random, {name}": functools.partial(random, **how) for name, how in RANDOM.items()},
}


def main(directory):
    activations.LEAST_BYTES = 16
    out = {
        name: [run(where, f"{directory}/{n}-{where}") for where in PLACES] for n, (name, run) in enumerate(RUNS.items())
    }
    out["left"] = [left(f"{directory}/{dtype}", dtype) for dtype in (torch.float32, torch.bfloat16)]
    out["cast"] = cast(f"{directory}/cast")
    out["compiled"] = {
        f"{by}, {slots}": compiled(f"{directory}/compiled-{by}-{slots}", by, slots)
        for by, slots in (("nobody", 1), ("wrap", 1), ("wrap", 9), ("before", 2), ("before", 9), ("model", 2))
    }
    out["short"] = {
        name: [short_of_memory(f"{directory}/short-{n}-{fails}", fails=fails, **how) for fails in (False, True)]
        for n, (name, how) in enumerate(SHORT.items())
    }
    out["waits"] = {
        name: waits_of_a_step(f"{directory}/waits-{n}", step, **how)
        for n, (name, (step, how)) in enumerate(WAITS.items())
    }
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
