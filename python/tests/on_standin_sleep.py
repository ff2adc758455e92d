"""Engines that sleep on the device of standin.py, in a process of their own. python on_standin_sleep.py DIRECTORY;
writes JSON: {name: what came of it}."""

import gc
import json
import os
import pathlib
import sys

import torch

import models
import standin

standin.make()

import longshore  # noqa: E402
from longshore.model import activations  # noqa: E402
from longshore.run.engine_surface import core_of  # noqa: E402
from on_standin import MODELS, ON_DRIVES, SIX, batches_of, computed, made, moved, said_of, sizes  # noqa: E402

STEPS = 3
WAYS = {
    **{name: (MODELS[name], {"slots": 2, "pages": 3}) for name in ("llama", "t5", "cnn", "moe", "lora")},
    "one slot": (SIX, {"slots": 1, "pages": 2}),
    "all slots": (SIX, {"slots": 9, "pages": 9}),
    "activations": (SIX, {"slots": 2, "pages": 3, **ON_DRIVES}),
    "bf16": (SIX, {"slots": 2, "pages": 6, "storage": "bf16"}),
    "compressed": (SIX, {"slots": 2, "pages": 6, "compress": "top5%"}),
}


def wrapped(model, path, slots=2, pages=3, **how):
    os.mkdir(f"{path}-drive")
    how["device"] = next(model.parameters()).device
    with sizes(slots, pages):
        return longshore.wrap(model, run=path, drives=[f"{path}-drive"], lr=1e-2, clip=0.5, memory="1GiB", **how)


def stepped(engine, batches):
    engine.accumulate = len(batches)
    losses = []
    for batch in batches:
        loss = computed(engine, batch)
        engine.backward(loss)
        losses.append(loss.item())
    return [*losses, engine.step().grad_norm]


def trained(make, where, path, sleeps, **how):
    """Some steps. Where the engine sleeps: what it then holds, and what is other than it was before."""
    torch.manual_seed(7)
    model = made(make).to(where)
    objects = {name: id(t) for name, t in (*model.named_parameters(), *model.named_buffers())}
    out = {"numbers": [], "held": [], "other": []}
    with wrapped(model, path, **how) as engine:
        batches = [moved(batch, where) for batch in batches_of(model)]
        others = standin.live() if where == "cpu" else sum(-(-t.nbytes // 4096) * 4096 for t in leaves(batches))
        for n in range(STEPS):
            out["numbers"].append(stepped(engine, batches))
            if not sleeps:
                continue
            if n == 1:
                engine.optimizer.zero_grad()
            before = {name: t.detach().cpu().clone() for name, t in engine.state_dict().items()}
            engine.sleep()
            gc.collect()
            out["held"].append([standin.live() - others, standin.pinned()])
            now = dict(engine.weights())
            same = all(torch.equal(now[name], before[name]) and now[name].dtype == before[name].dtype for name in now)
            places = {b.device.type for b in model.buffers()} | {t.device.type for t in now.values()}
            there = {p.device.type for p in model.parameters()}
            out["other"] += [] if same and places == {"cpu"} and there == {where} else [[n, same, places, there]]
            engine.wake()
            after = {name: t.detach().cpu() for name, t in engine.state_dict().items()}
            places = {t.device.type for t in (*model.parameters(), *model.buffers())}
            same = all(torch.equal(after[name], before[name]) for name in before) and places == {where}
            now = {name: id(t) for name, t in (*model.named_parameters(), *model.named_buffers())}
            out["other"] += [] if same and now == objects else [[n, "awake", same, now == objects]]
        out["digest"] = engine.digest()
    return out


def leaves(batches):
    return [t for batch in batches for t in ([batch] if torch.is_tensor(batch) else batch.values())]


def short(path):
    """What is said where memory is short as it wakes, and the digest of the step that it then makes."""
    torch.manual_seed(7)
    model = models.Cnn().to(standin.NAME)
    engine = wrapped(model, path)
    batches = [moved(batch, standin.NAME) for batch in batches_of(model)]
    stepped(engine, batches)
    engine.sleep()
    gc.collect()
    out, held = {"said": []}, [standin.live(), standin.pinned()]
    slots = core_of(engine).streams.tier.nbytes
    for limits in ({"nbytes": held[0]}, {"pinned": 0}, {"pinned": 64}, {"nbytes": held[0] + slots + 3 * 4096}):
        standin.limit(**limits)
        out["said"].append(said_of(engine.wake))
        out["asleep"] = said_of(engine.step)
        gc.collect()
        standin.limit()
        out["held"] = [standin.live() - held[0], standin.pinned() - held[1]]
        out["weights"] = len(dict(engine.weights()))
        if any(out["held"]):
            return out
    engine.wake()
    stepped(engine, batches)
    out["digest"] = engine.digest()
    engine.close()
    return out


def unslept(path):
    torch.manual_seed(7)
    model = models.Cnn().to(standin.NAME)
    with wrapped(model, path) as engine:
        batches = [moved(batch, standin.NAME) for batch in batches_of(model)]
        stepped(engine, batches)
        stepped(engine, batches)
        return engine.digest()


def graph(path):
    """What is said of the graph of a loss that was kept while the engine slept, whose activations are on the drives."""
    torch.manual_seed(7)
    model = made(SIX).to(standin.NAME)
    with wrapped(model, path, **ON_DRIVES) as engine:
        batch = moved(batches_of(model)[0], standin.NAME)
        loss = computed(engine, batch)
        engine.sleep()
        held = standin.pinned()
        engine.wake()
        return {"pinned": held, "said": said_of(lambda: engine.backward(loss))}


def reopened(path):
    """The devices of buffers of an engine that was closed in its sleep, and opened again."""
    torch.manual_seed(7)
    model = models.Cnn().to(standin.NAME)
    engine = wrapped(model, path)
    engine.sleep()
    engine.close()
    closed = said_of(lambda: engine.weights())
    engine.reopen(path)
    stepped(engine, [moved(batch, standin.NAME) for batch in batches_of(model)])
    engine.close()
    return {"closed": closed, "places": sorted({t.device.type for t in (*model.parameters(), *model.buffers())})}


def lost(path):
    """What is said of an engine that goes to sleep on a device that does not go on, and what is committed."""
    torch.manual_seed(7)
    model = made(SIX).to(standin.NAME)
    engine = wrapped(model, path, device_timeout=0.2)
    stepped(engine, [moved(batch, standin.NAME) for batch in batches_of(model)])
    digest = engine.digest()
    standin.hang()
    here = torch.empty(4, pin_memory=True)
    here.copy_(torch.empty(4, device=standin.NAME), non_blocking=True)
    out = {"said": said_of(engine.sleep), "close": said_of(engine.close)}
    standin.hang(False)
    with longshore.resume(path, made(SIX)) as engine:
        out["same"] = engine.digest() == digest
    return out


def main(directory):
    out = {}
    activations.LEAST_BYTES = 16
    for number, (name, (make, how)) in enumerate(WAYS.items()):
        out[name] = [
            trained(make, where, f"{directory}/{number}-{where}-{sleeps}", sleeps, **how)
            for where, sleeps in (("cpu", False), (standin.NAME, True))
        ]
    out["short"], out["unslept"] = short(f"{directory}/short"), unslept(f"{directory}/unslept")
    out["graph"], out["reopened"] = graph(f"{directory}/graph"), reopened(f"{directory}/reopened")
    out["lost"] = lost(f"{directory}/lost")
    pathlib.Path(directory, "told.json").write_text(json.dumps(out, default=sorted))


if __name__ == "__main__":
    main(sys.argv[1])
