"""Trainings on the CPU and on the device of standin.py, in a process of their own. python on_standin.py DIRECTORY;
writes JSON: {name: what came of it}."""

import contextlib
import functools
import gc
import json
import os
import pathlib
import sys
import threading
import time
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import models
import standin

standin.make()

import longshore  # noqa: E402
from longshore.model import activations  # noqa: E402
from longshore.native import lib  # noqa: E402
from longshore.run import memory_plan  # noqa: E402
from longshore.run.engine_surface import core_of  # noqa: E402
from longshore.step.gradient_step import Step  # noqa: E402
from longshore.step.gradients import Gradients  # noqa: E402

PARTS = 3


class Net(nn.Module):
    """A table that is the head, too, norms, dropout, layers."""

    def __init__(self, checkpoints):
        super().__init__()
        self.table, self.checkpoints = nn.Embedding(16, 16), checkpoints
        self.layers = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Dropout(0.1))
                for _ in range(3)
            ]
        )

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = x + (
                checkpoint(lambda x, layer=layer: x * layer(x), x, use_reentrant=False)
                if self.checkpoints
                else layer(x)
            )
        return F.cross_entropy(F.linear(x, self.table.weight).flatten(0, 1), ids.flatten())


def sizes(slots, pages):
    """Layers on the device, whatever its memory, and pages of layers on the host; a CPU computes in its pages."""
    plan = memory_plan.plan

    def chosen(*args, **how):
        out = plan(*args, **how)
        out.pages, out.slots, out.gpu_memory = pages, slots if out.slots else 0, None
        return out

    return mock.patch.object(memory_plan, "plan", chosen)


def step(engine, batches, together):
    if together:
        return engine.train_batch(batches, lambda loss, batch: loss)
    engine.accumulate = len(batches)
    for batch in batches:
        engine.backward(engine(batch))
    return engine.step()


def waits_of(engine):
    """How often the script's threads have waited so far: for the device, and for its watch."""
    device = core_of(engine).streams.device
    return standin.waits() + (device.c.waits if device else 0)


def trained(where, path, slots=9, pages=9, together=True, checkpoints=False, cast=False, **how):
    """Of four steps, the last two of which a second engine makes."""
    torch.manual_seed(7)
    os.mkdir(f"{path}-drive")
    waits, random = [], []

    def steps(engine, first):
        engine.train()
        for n in range(first, first + 2):
            batches = [
                torch.randint(16, (2, 5), generator=torch.Generator().manual_seed(PARTS * n + i)).to(where)
                for i in range(PARTS)
            ]
            before = waits_of(engine)
            with torch.autocast(where, torch.bfloat16, enabled=cast, cache_enabled=False):
                result = step(engine, batches, together)
            waits.append(waits_of(engine) - before)
        random.append(torch.mtia.get_rng_state().tolist())
        return result

    with sizes(slots, pages):
        with longshore.wrap(
            Net(checkpoints), run=path, drives=[f"{path}-drive"], lr=1e-2, clip=0.5, memory="1GiB", device=where, **how
        ) as engine:
            torch.mtia.set_rng_state(torch.arange(8, dtype=torch.uint8))
            steps(engine, 0)
        torch.mtia.manual_seed_all(1)
        with longshore.resume(path, Net(checkpoints)) as engine:
            random.append(torch.mtia.get_rng_state().tolist())
            result = steps(engine, 2)
            return {
                "digest": engine.digest(),
                "loss": result.loss,
                "norm": result.grad_norm,
                "waits": waits,
                "random": random,
            }


def by_a_script(where, path):
    """What reaches parameters and gradients beside the engine's own step; activations go to the drives, and gradients
    are compressed."""
    torch.manual_seed(7)
    os.mkdir(f"{path}-drive")
    with longshore.wrap(
        Net(False), run=path, drives=[f"{path}-drive"], memory="1GiB", device=where, **ON_DRIVES, compress="top5%"
    ) as engine:
        net = engine.module
        with longshore.resident(net.layers[0], write=True), torch.no_grad():
            net.layers[0][1].weight.mul_(2)
        handle = net.table.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad * 2))
        for n in range(2):
            engine.backward(engine(torch.arange(n, n + 8).view(2, 4).to(where)))
        handle.remove()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        net.layers[1][1].bias.grad = torch.ones(32, device=where)
        result = engine.step()
        with longshore.resident(net.layers[1]):
            seen = net.layers[1][1].weight.sum().item()
        digests = []
        for closes in (False, True):
            engine.snapshot(f"here-{closes}")
            for _ in range(2):
                engine.backward(engine(torch.arange(8).view(2, 4).to(where)))
                engine.step()
            if closes:
                engine.close()
            engine.reopen(path, f"here-{closes}")
            digests.append(engine.digest())
            engine.backward(engine(torch.arange(8).view(2, 4).to(where)))
            engine.step()
            digests.append(engine.digest())
        return {
            "digest": engine.digest(),
            "digests": digests,
            "norm": result.grad_norm,
            "seen": seen,
            "memory of the drives": engine.memory().drives,
            "head": net.table.weight.sum().item(),
        }


class Mixed(nn.Module):
    """Layers of several sizes, every other of which is trained in part: half of them have one block, half have two."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(16, 8 + 8 * n), nn.Linear(8 + 8 * n, 16)) for n in range(5)]
        )
        for layer in self.layers[1::2]:
            layer[0].requires_grad_(False)

    def forward(self, x):
        x = x.reshape(-1, 16)
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def moe():
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=models.VOCAB,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=64,  # whole vectors: the device's activation of half a row has the bits of the CPU's
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    return Qwen3MoeForCausalLM(config)


def lora():
    import peft

    return peft.get_peft_model(models.llama(), peft.LoraConfig(r=4, task_type="CAUSAL_LM", lora_dropout=0.0))


def made(make):
    model = make()
    for fused in ("set_attn_implementation", "set_experts_implementation"):
        if hasattr(model, fused):
            getattr(model, fused)("eager")  # those that are fused have other bits on other devices
    return model


def batches_of(model):
    if isinstance(model, (models.Cnn, Mixed)):
        g = torch.Generator().manual_seed(3)
        return [torch.randn(4, 1, 6, 6, generator=g) for _ in range(2)]
    return models.tokens(2)


def loss_of(out, batch):
    return out.square().mean() if torch.is_tensor(batch) else out.loss


def computed(model, batch):
    return loss_of(model(batch) if torch.is_tensor(batch) else model(**batch), batch)


def moved(batch, where):
    return batch.to(where) if torch.is_tensor(batch) else {key: value.to(where) for key, value in batch.items()}


def waits_of_pytorch(model, batches):
    """How often PyTorch waits in the same passes, whose losses a script reads."""
    before = standin.waits()
    for batch in batches:
        loss = computed(model, batch)
        loss.backward()
        loss.item()
    return standin.waits() - before


def of_model(make, where, path, together, slots, pages, stream=False, **how):
    """Two steps of two batches. stream: on one of the script's own."""
    torch.manual_seed(7)
    os.mkdir(f"{path}-drive")
    model = made(make).to(where)
    batches = [moved(batch, where) for batch in batches_of(model)]
    waits, others = [], standin.live() - sum(-(-p.nbytes // 4096) * 4096 for p in model.parameters())
    with contextlib.ExitStack() as entered:
        if stream and where != "cpu":
            own = torch.Stream(where)
            own.wait_stream(torch.accelerator.current_stream())
            entered.enter_context(own)
        entered.enter_context(sizes(slots, pages))
        engine = entered.enter_context(
            longshore.wrap(
                model, run=path, drives=[f"{path}-drive"], lr=1e-2, clip=0.5, memory="1GiB", device=where, **how
            )
        )
        standin.pinned_most()
        pinned = standin.pinned_most() + 4096 + sum(8192 + b.nbytes for b in model.buffers())
        for _ in range(2):
            before = waits_of(engine)
            if together:
                result = engine.train_batch(batches, loss_of)
            else:
                engine.accumulate = len(batches)
                for batch in batches:
                    loss = computed(engine, batch)
                    engine.backward(loss)
                    loss.item()
                result = engine.step()
            waits.append(waits_of(engine) - before)
        out = {"digest": engine.digest(), "loss": result.loss, "norm": result.grad_norm}
    loss = None
    gc.collect()
    out["more_pinned"] = standin.pinned_most() - pinned
    out["waits"], out["kept"] = waits, standin.live() - others
    return out


ON_DRIVES = {"activations": "drives", "activation_room": "64MiB"}
SIX = functools.partial(models.gpt2, layers=6)
MODELS = {**models.LANGUAGE, "cnn": models.Cnn, "moe": moe, "lora": lora}
WAYS = {
    **{f"{name}, loop": (make, {"together": False, "slots": 2, "pages": 9}) for name, make in MODELS.items()},
    **{f"{name}, together": (make, {"together": True, "slots": 9, "pages": 2}) for name, make in MODELS.items()},
    "mixed, 2 over 3, loop": (Mixed, {"together": False, "slots": 2, "pages": 3}),
    "mixed, 4 over 1, together": (Mixed, {"together": True, "slots": 4, "pages": 1}),
    "2 over 6, together": (SIX, {"together": True, "slots": 2, "pages": 6}),
    "6 over 2, loop": (SIX, {"together": False, "slots": 6, "pages": 2}),
    "1 over 2, loop": (SIX, {"together": False, "slots": 1, "pages": 2}),
    "activations, loop": (SIX, {"together": False, "slots": 2, "pages": 3, **ON_DRIVES}),
    "activations, together": (SIX, {"together": True, "slots": 3, "pages": 2, **ON_DRIVES}),
    "own stream, loop": (SIX, {"together": False, "slots": 2, "pages": 6, "stream": True}),
    "own stream, together": (SIX, {"together": True, "slots": 6, "pages": 2, "stream": True}),
    "bf16, loop": (SIX, {"together": False, "slots": 2, "pages": 6, "storage": "bf16"}),
    "bf16, together": (SIX, {"together": True, "slots": 6, "pages": 2, "storage": "bf16", "stream": True}),
}


def said_of(call):
    try:
        call()
    except longshore.LongshoreError as failure:
        return str(failure)
    return None


def refused(path):
    """What is said of memory that the device does not give, and of a model that lies in two places."""

    def wrapped(model, name):
        os.mkdir(f"{path}-{name}-drive")
        return longshore.wrap(model, run=f"{path}-{name}", drives=[f"{path}-{name}-drive"], memory="1GiB")

    model, half = Net(False).to(standin.NAME), Net(False)
    half.layers.to(standin.NAME)
    out = {"two places": said_of(lambda: wrapped(half, "half"))}
    standin.limit(pinned=0)
    out["pinned"] = said_of(lambda: wrapped(model, "pinned"))
    standin.limit(nbytes=standin.live() + (16 << 10))
    out["slots"] = said_of(lambda: wrapped(model, "slots"))
    standin.limit()
    engine = wrapped(Net(False).to(standin.NAME), "full")
    standin.limit(nbytes=0)
    out["close"], out["reopen"] = said_of(engine.close), said_of(lambda: engine.reopen(f"{path}-full"))
    standin.limit()
    engine.reopen(f"{path}-full")
    with engine:
        out["step"] = engine.step_number
    return out


def dropped(path):
    """The step of a run whose script drops the engine, and closes nothing."""
    os.mkdir(f"{path}-drive")
    engine = longshore.wrap(Net(False).to(standin.NAME), run=path, drives=[f"{path}-drive"], memory="1GiB")
    engine.backward(engine(torch.arange(8).view(2, 4).to(standin.NAME)))
    engine.step()
    del engine
    gc.collect()
    with longshore.resume(path, Net(False)) as engine:
        return engine.step_number


def read_late(path):
    """A parameter as a stream of the script's own copies it, while the engine is closed; and as it was."""
    os.mkdir(f"{path}-drive")
    engine = longshore.wrap(Net(False).to(standin.NAME), run=path, drives=[f"{path}-drive"], memory="1GiB")
    own, layer = torch.Stream(standin.NAME), engine.module.layers[0]
    with own:
        longshore.resident(layer).__enter__()  # which nobody leaves: that would wait
        weight = layer[1].weight.detach()
        value = weight.tolist()
        here = torch.empty(weight.shape, pin_memory=True)
        here.copy_(weight, non_blocking=True)
    engine.close()
    return here.tolist(), value


def failed(path):
    """What is said of a device that fails in mid-step, at every call from there on, and what another goes on from."""
    torch.manual_seed(7)
    os.mkdir(f"{path}-drive")
    batch = torch.arange(8).view(2, 4).to(standin.NAME)
    with sizes(2, 2):
        engine = longshore.wrap(Net(False).to(standin.NAME), run=path, drives=[f"{path}-drive"], memory="1GiB")
    engine.backward(engine(batch))
    engine.step()
    digest = engine.digest()
    core_of(engine).streams.device.at = mock.Mock(side_effect=RuntimeError("an illegal access\nand more"))
    said = [said_of(lambda: engine.backward(engine(batch))) for _ in range(2)]
    out = {"said": said, "close": said_of(engine.close)}
    with longshore.resume(path, Net(False)) as engine:
        out["same"] = engine.digest() == digest
    return out


def lost(path):
    """What is said of a device that does not go on in mid-step, and what the CPU then goes on from."""
    os.mkdir(f"{path}-drive")
    torch.manual_seed(7)
    batches = [torch.arange(8).view(2, 4).to(standin.NAME)] * PARTS
    engine = longshore.wrap(
        Net(False).to(standin.NAME), run=path, drives=[f"{path}-drive"], memory="1GiB", device_timeout=0.2
    )
    for last in (False, True):
        if last:
            core_of(engine).cycle.settle()
            digest = engine.digest()
            arriving = Gradients.arriving

            def stops(gradients, p):
                standin.hang()
                arriving(gradients, p)

            Gradients.arriving = stops
        said = said_of(lambda: [engine.backward(engine(batch)) for batch in batches] and engine.step())
    none = said_of(engine.step)
    again = said_of(lambda: engine.backward(engine(batches[0])))
    said_of(engine.close)
    standin.hang(False)
    Gradients.arriving = arriving
    after = torch.arange(3).to(standin.NAME).cpu().tolist()  # once all that was to come has come
    with longshore.resume(path, Net(False)) as engine:
        return {"said": said, "again": again, "none": none, "same": engine.digest() == digest, "after": after}


def hangs_at_the_commit(path):
    """What is said of a device that does not go on when the step's buffers are read, and what was committed."""
    os.mkdir(f"{path}-drive")
    model = models.Cnn().to(standin.NAME)
    engine = longshore.wrap(model, run=path, drives=[f"{path}-drive"], memory="1GiB", device_timeout=0.2)
    batch = torch.ones(2, 1, 6, 6).to(standin.NAME)
    engine.backward(engine(batch).square().mean())
    standin.hang()
    said = said_of(engine.step)
    said_of(engine.close)
    standin.hang(False)
    with longshore.resume(path, models.Cnn()) as engine:
        return {"said": said, "step": engine.step_number}


def sent_early(path):
    """Before each gradient of a step began to land, and at its end: whether anything of the step was sent. The event
    of one has passed before the next begins, and nobody but the device's watch waits for it."""
    os.mkdir(f"{path}-drive")
    sent, land = [], Step.land

    def lands(step, number, tag, until):
        sent.append(step.tell(lib.shore_step_has_sent))
        land(step, number, tag, until)
        late = time.monotonic() + models.HANGS_SECONDS
        while not lib.shore_device_passed(step.streams.device.c, until):
            assert time.monotonic() < late, "an event does not pass"
            time.sleep(0.001)

    early = mock.patch.object(Gradients, "speculate", lib.SHORE_SPECULATE_ON)
    with early, mock.patch.object(Step, "land", lands):
        model = Net(False).to(standin.NAME)
        with longshore.wrap(model, run=path, drives=[f"{path}-drive"], memory="1GiB", clip=1e9) as engine:
            engine.backward(engine(torch.arange(8).view(2, 4).to(standin.NAME)))
            engine.step()
    return sent


def note_threads(entered):
    """Notes which threads enter the library's step: (Python's name, the system's)."""

    def noting(call):
        def noted(*args):
            with open(f"/proc/self/task/{threading.get_native_id()}/comm") as comm:
                entered.add((threading.current_thread().name, comm.read().strip()))
            return call(*args)

        return noted

    Step.call, Step.tell = noting(Step.call), noting(Step.tell)


RUNS = {
    "together": {},
    "loop": {"together": False},
    "one slot": {"slots": 1, "pages": 1},
    "one slot, loop": {"slots": 1, "pages": 1, "together": False},
    "checkpoints": {"checkpoints": True},
    "checkpoints, one slot": {"checkpoints": True, "slots": 1, "pages": 2},
    "checkpoints, one slot, loop": {"checkpoints": True, "slots": 1, "pages": 2, "together": False},
    "bf16 on the drives": {"storage": "bf16", "slots": 2, "pages": 2},
    "autocast": {"cast": True},
    "autocast, loop": {"cast": True, "together": False},
}


def main(directory):
    out, entered = {}, set()
    note_threads(entered)
    for name, how in RUNS.items():
        for where in ("cpu", standin.NAME):
            out[f"{name} {where}"] = trained(where, f"{directory}/{name}-{where}", **how)
    activations.LEAST_BYTES = 16
    for number, (name, (make, how)) in enumerate(WAYS.items()):
        for where in ("cpu", standin.NAME):
            out[f"{name} {where}"] = of_model(make, where, f"{directory}/{number}-{where}", **how)
        model = made(make).to(standin.NAME)
        out[f"{name} {standin.NAME}"]["pytorch"] = waits_of_pytorch(
            model, [moved(batch, standin.NAME) for batch in batches_of(model)]
        )
    out["by a script"] = [by_a_script(where, f"{directory}/script-{where}") for where in ("cpu", standin.NAME)]
    out["late"], out["refused"] = standin.late(), refused(f"{directory}/refused")
    out["failed"], out["dropped"] = failed(f"{directory}/failed"), dropped(f"{directory}/dropped")
    out["read late"] = read_late(f"{directory}/late")
    out["sent early"] = sent_early(f"{directory}/early")
    out["threads"], out["lost"] = sorted(entered), lost(f"{directory}/lost")
    out["hangs at the commit"] = hangs_at_the_commit(f"{directory}/commit")
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
