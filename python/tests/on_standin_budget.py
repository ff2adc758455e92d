"""Trainings within gpu_memory= on the device of standin.py, in a process of their own. python on_standin_budget.py
DIRECTORY; writes JSON: {name: what came of it}."""

import contextlib
import functools
import gc
import json
import os
import pathlib
import re
import sys
from unittest import mock

import torch

import longshore
import on_standin
import standin
from longshore import native
from longshore.run.engine_surface import core_of
from on_standin import MODELS, ON_DRIVES, SIX, computed, made, moved, said_of

MIB = 1 << 20
NAME = standin.NAME
GRID = {
    **{f"{name}, loop": (MODELS[name], {}) for name in ("gpt2", "bert", "cnn", "lora")},
    **{f"{name}, together": (MODELS[name], {"together": True}) for name in ("llama", "t5", "moe")},
    "checkpoints": (SIX, {"checkpoints": True, "times": 16}),
    "activations": (SIX, ON_DRIVES),
    "bf16": (SIX, {"storage": "bf16", "together": True}),
    "one large batch": (MODELS["llama"], {"times": 24}),
}


def times_of(batch, times):
    """A batch so many times as large."""
    if torch.is_tensor(batch):
        return batch.repeat(times, *[1] * (batch.dim() - 1))
    return {key: times_of(value, times) for key, value in batch.items()}


@contextlib.contextmanager
def peak():
    """Yields a list that has the most memory that was allocated in the context, beyond what was before."""
    counts, out = torch.accelerator, []
    gc.collect()
    before, seen, reset = counts.memory_allocated(), [], counts.reset_peak_memory_stats

    def noted(*args):
        seen.append(counts.max_memory_allocated())
        reset(*args)

    reset()
    with mock.patch.object(counts, "reset_peak_memory_stats", noted):
        yield out
    out.append(max([*seen, counts.max_memory_allocated()]) - before)


@contextlib.contextmanager
def engine_of(make, path, where=NAME, checkpoints=False, **how):
    torch.manual_seed(7)
    os.makedirs(f"{path}/drive")
    model = made(make)
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    how = {"memory": "1GiB", "lr": 1e-2, "clip": 0.5, "device": where, **how}
    with longshore.wrap(model, run=f"{path}/run", drives=[f"{path}/drive"], **how) as engine:
        del model
        yield engine


def step(engine, batches, together=False):
    if together:
        return engine.train_batch(batches, on_standin.loss_of)
    engine.accumulate = len(batches)
    for batch in batches:
        engine.backward(computed(engine, batch))
    return engine.step()


def batches_for(make, times=8, where=NAME):
    return [moved(times_of(batch, times), where) for batch in on_standin.batches_of(make())]


_numbers = iter(range(10**6))


def trained(directory, make, gpu_memory=None, together=False, times=8, where=NAME, steps=2, **how):
    """Of steps, with an evaluation after each."""
    path = f"{directory}/{next(_numbers)}"
    if gpu_memory is not None:
        how["gpu_memory"] = gpu_memory
    with peak() as most:
        batches = batches_for(make, times, where)
        with engine_of(make, path, where, **how) as engine:
            slots = []
            for _ in range(steps):
                step(engine, batches, together)
                slots.append(core_of(engine).streams.slots)
                with torch.no_grad():
                    computed(engine, batches[0])
            out = {"digest": engine.digest(), "slots": slots, "memory": vars(engine.memory())}
        del batches
    return {**out, "most": most[0]}


def minimum_of(call, asked="64KiB"):
    """(the least size that is printed and works, sentences before it, what came of it). call(size): a training."""
    said = []
    while True:
        try:
            return asked, said, call(asked)
        except longshore.BudgetError as failure:
            said.append(str(failure))
            asked = re.fullmatch(r"gpu_memory=.* is too little for this \w+: minimum (\S+ \wiB)", said[-1])[1]
            assert len(said) < 4, said


def grid(directory):
    out = {}
    for name, (make, how) in GRID.items():
        call = functools.partial(trained, directory, make, **how)
        least, said, at_least = minimum_of(call)
        size = native.size(least)
        runs = {size: at_least, size * 5 // 2: call(size * 5 // 2)}
        out[name] = {
            "said": said,
            "less": said_of(lambda: call(size - MIB, steps=1)) if size > MIB else None,
            "runs": [(nbytes, run["most"], run["slots"]) for nbytes, run in runs.items()],
            "digests": [run["digest"] for run in runs.values()] + [call(where="cpu")["digest"]],
        }
    return out


def grows(directory):
    """Two steps with a batch, then others with a larger one and with the first: the most, the limit, slots after each,
    digests there and on the CPU, and whether parameters stayed where they were."""
    small, large = batches_for(SIX, 1), batches_for(SIX, 4)
    digests, places, limit = [], [], 7 * MIB
    for where in (NAME, "cpu"):
        slots = []
        how = {"gpu_memory": limit} if where == NAME else {}
        with peak() as most, engine_of(SIX, f"{directory}/grows-{where}", where, **how) as engine:
            for batches in (small, small, large, small, large, small):
                step(engine, [moved(batch, where) for batch in batches])
                slots.append(core_of(engine).streams.slots)
                if where == NAME:
                    places.append([h.view.data_ptr() for s in core_of(engine).streams.blocks for _, h in s.parameters])
            digests.append(engine.digest())
        if where == NAME:
            out = most[0], limit, slots
    same = [before == after for before, after in zip(places[:-1], places[1:])]
    return {"most": out[0], "limit": out[1], "slots": out[2], "digests": digests, "same places": same}


def too_large(directory):
    """What a batch that is too large is told, by a pass with gradients, several together, a script's own and one
    without; and what came of the run nevertheless."""
    small, large = batches_for(SIX, 1), batches_for(SIX, 16)
    said, digests = [], []

    def own(engine):
        computed(engine, large[0]).backward()
        engine.step()

    def without(engine):
        with torch.no_grad():
            computed(engine, times_of(large[0], 6))

    ways = [lambda engine: step(engine, large), lambda engine: step(engine, large, True), own, without]
    for name, tries in (("tried", ways), ("not tried", ())):
        with engine_of(SIX, f"{directory}/{name}", gpu_memory="6MiB") as engine:
            step(engine, small)
            for attempt in tries:
                said.append((said_of(lambda a=attempt: a(engine)), engine.step_number))
            step(engine, small)
            digests.append(engine.digest())
    return {"said": said, "digests": digests}


def generates(directory):
    """The most that a training with generation between its steps takes, and the least that it is told to need."""
    path = iter(range(100))

    def call(size):
        prompt = torch.arange(1, 9).repeat(8, 1).to(NAME)
        with peak() as most, engine_of(SIX, f"{directory}/generates-{next(path)}", gpu_memory=size) as engine:
            for _ in range(3):
                engine.eval()
                tokens = engine.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
                engine.train()
                step(engine, batches_for(SIX, 2))
        return most[0], tokens.tolist()

    least, _, (most, tokens) = minimum_of(call)
    return {"most": most, "limit": native.size(least), "same": call("64MiB")[1] == tokens}


def remembers(directory):
    """gpu_memory of an engine, and of those that go on with its run: by default, with another, on the CPU."""
    with engine_of(SIX, f"{directory}/remembers", gpu_memory="20MiB") as engine:
        out = [engine.memory().gpu_memory]
    for how in ({}, {"gpu_memory": "30MiB"}, {"device": "cpu"}):
        with longshore.resume(f"{directory}/remembers/run", made(SIX), **how) as engine:
            out.append(engine.memory().gpu_memory)
    return out


def refused(directory):
    """What is said where others use the device, and where there is none."""

    def wrapped(name, **how):
        with engine_of(SIX, f"{directory}/refused-{name}", **how) as engine:
            return engine.memory().gpu_memory

    standin.limit(standin.live() + 40 * MIB)
    out = {"default": wrapped("default"), "free": 40 * MIB}
    out["more"] = said_of(lambda: wrapped("more", gpu_memory="41MiB"))
    standin.limit()
    try:
        wrapped("cpu", where="cpu", gpu_memory="41MiB")
    except ValueError as failure:
        out["cpu"] = str(failure)
    return out


def taken_by_others(directory):
    """Slots after steps where others take the memory that there was for more, and the steps."""
    batches = batches_for(SIX, 2)
    with engine_of(SIX, f"{directory}/taken", gpu_memory="30MiB") as engine:
        slots = []
        for _ in range(3):
            step(engine, batches)
            slots.append(core_of(engine).streams.slots)
            standin.limit(engine.memory().gpu_most + MIB // 4)
        standin.limit()
        return slots, engine.step_number


def whole_model(directory):
    """What a script reads of all parameters together before the first step, and the slots from then on."""
    batches, slots = batches_for(SIX, 2), []
    with engine_of(SIX, f"{directory}/whole", gpu_memory="30MiB") as engine:
        with longshore.resident(engine.module):
            read = [p.sum().item() for p in engine.parameters()]
        for _ in range(2):
            slots.append(core_of(engine).streams.slots)
            step(engine, batches)
    torch.manual_seed(7)
    return {"same": read == [p.sum().item() for p in made(SIX).to(NAME).parameters()], "slots": slots}


def beside_a_frozen(directory):
    """The most that a distillation takes, whose teacher shares the budget, and the limit."""
    limit, batches = 9 * MIB, batches_for(SIX, 4)
    with peak() as most, engine_of(SIX, f"{directory}/beside", gpu_memory=limit, memory="64MiB") as engine:
        for n in range(4):
            if n == 1:
                frozen = longshore.wrap(made(SIX), trains=False, device=NAME)
            for batch in batches:
                with torch.no_grad():
                    taught = frozen(**batch).logits if n else 0
                engine.backward((engine(**batch).logits - taught).square().mean())
            engine.step()
        slots = [core_of(each).streams.slots for each in (engine, frozen)]
        frozen.close()
    return {"most": most[0], "limit": limit, "slots": slots}


def main(directory):
    on_standin.activations.LEAST_BYTES = 4096
    out = {"grid": grid(directory)}
    for what in (grows, too_large, generates, remembers, refused, taken_by_others, whole_model, beside_a_frozen):
        out[what.__name__] = what(directory)
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
