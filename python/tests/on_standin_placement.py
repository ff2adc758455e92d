"""Where a model computes, on the CPU and on the device of standin.py, in a process of their own.
python on_standin_placement.py DIRECTORY; writes JSON: {name: what came of it}."""

import copy
import json
import os
import pathlib
import sys
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import models
import standin

standin.make()

import longshore  # noqa: E402
from longshore.run.engine_surface import core_of  # noqa: E402

THERE = standin.NAME
IDS = torch.arange(8).view(2, 4)


class Net(nn.Module):
    """Tied weights, statistics that are wide enough to lie on the drives, and buffers of several kinds."""

    def __init__(self, wide=8):
        super().__init__()
        self.table, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.table.weight
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, wide), nn.BatchNorm1d(wide), nn.Linear(wide, 8)) for _ in range(3)]
        )
        self.register_buffer("scale", torch.full((1,), 0.5, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("waves", torch.linspace(0, 1, 8, dtype=torch.float64), persistent=False)
        self.layers[0].register_buffer("same", self.waves, persistent=False)
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, ids):
        x = self.table(ids.flatten()) * self.waves.float()
        for layer in self.layers:
            x = x + layer(x) * self.scale.float()
        self.seen += 1
        return F.cross_entropy(self.head(x), ids.flatten())


def wrapped(model, path, **how):
    os.mkdir(f"{path}-drive")
    return longshore.wrap(model, run=path, drives=[f"{path}-drive"], memory="1GiB", **how)


def said_of(call):
    """What an exception says; None: there was none."""
    try:
        call()
    except (longshore.LongshoreError, ValueError) as failure:
        return f"{type(failure).__name__}: {failure}"
    return None


def step(engine):
    engine.backward(engine(IDS.to(engine.device)))
    return engine.step().loss


def moves(path, where, lies="cpu"):
    """What the script keeps of a model that wrap() moves, and what comes of two steps."""
    torch.manual_seed(7)
    model = Net().to(lies)
    parameters, buffers, seen = list(model.parameters()), dict(model.named_buffers()), []
    weight, first = model.table.weight, model.layers[0][0].weight
    weight.register_hook(lambda g: seen.append(g.device.type))
    first.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.device.type))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(IDS.to(lies)).backward()
    optimizer.step()  # its moments go on
    with wrapped(model, path, optimizer=optimizer, device=where) as engine:
        grads = {p.grad.device.type for p in parameters if p.grad is not None}
        del seen[:]
        losses = [step(engine) for _ in range(2)]
        kept = dict(model.named_buffers())
        out = {
            "digest": engine.digest(),
            "losses": losses,
            "same parameters": all(p is q for p, q in zip(parameters, model.parameters())),
            "same groups": all(p is q for p, q in zip(parameters, optimizer.param_groups[0]["params"])),
            "tied": model.head.weight is weight and model.table.weight is weight,
            "hooks": sorted(set(seen)),
            "hooks ran": len(seen),
            "gradients before": sorted(grads),
            "same buffers": all(kept[name] is b for name, b in buffers.items()),
            "shared": model.layers[0].same is model.waves,
            "places": sorted({t.device.type for t in (*parameters, *kept.values())}),
            "dtypes": [str(b.dtype) for b in kept.values()],
            "values": [b.tolist() for b in kept.values()],
            "engine": str(engine.device),
        }
    out["closed"] = sorted({p.device.type for p in parameters})
    return out


def chosen(path):
    """Where the engine computes, by what wrap() is given."""
    out = {}
    for name, lies, how in (
        ("default", "cpu", {}),
        ("lies there", THERE, {}),
        ("cpu", "cpu", {"device": "cpu"}),
        ("back to the cpu", THERE, {"device": torch.device("cpu")}),
        ("by name", "cpu", {"device": THERE}),
        ("by number", "cpu", {"device": f"{THERE}:0"}),
    ):
        with wrapped(Net().to(lies), f"{path}-{name}", **how) as engine:
            places = {t.device for t in (*engine.module.parameters(), *engine.module.buffers())}
            out[name] = [str(engine.device), sorted(map(str, places)), core_of(engine).how["device"]]
            step(engine)
            if "cpu" in name:
                with longshore.wrap(models.gpt2(), trains=False) as beside:
                    out[f"beside {name}"] = str(beside.device)
    with longshore.init(f"{path}-init", memory="1GiB"):
        model = models.gpt2()
    with longshore.wrap(model) as engine:
        out["init"] = [
            str(engine.device),
            sorted({str(p.device) for p in model.parameters()}),
            core_of(engine).how["device"],
        ]
        engine.backward(engine(**{key: value.to(engine.device) for key, value in models.tokens(1)[0].items()}).loss)
        engine.step()
    return out


def recorded(path, kind):
    """Makes a run say that it was made on another kind of device; None: that it is of before."""
    file = pathlib.Path(path, "run.json")
    said = json.loads(file.read_text())
    said.pop("checksum", None)
    engine = said["program"]["engine"]
    was = engine.pop("device", None)
    if kind is not None:
        engine["device"] = kind
    file.write_text(json.dumps(said))
    return was


def goes_on(path, kinds):
    """A run of one kind of device after the other: the loss of each step, and the digest in the end."""
    torch.manual_seed(7)
    with wrapped(Net(), path, device=kinds[0], lr=1e-2) as engine:
        losses = [step(engine)]
    for kind in kinds[1:]:
        with longshore.resume(path, Net, device=kind) as engine:
            losses.append(step(engine))
            digest = engine.digest()
    return losses, digest, engine.device.type


def resumed(path):
    out = {
        "by kinds": [
            goes_on(f"{path}-{n}", kinds)
            for n, kinds in enumerate(
                (
                    ["cpu", "cpu", "cpu"],
                    [THERE, "cpu", THERE],
                    ["cpu", THERE, "cpu"],
                    [THERE, "cpu", None],
                    ["cpu", THERE, None],
                )
            )
        ]
    }
    there = f"{path}-there"
    with wrapped(Net(), there, device=THERE) as engine:
        step(engine)
    out["wide"] = []
    for where in ("cpu", THERE):  # buffers that lie on the drives
        torch.manual_seed(7)
        with wrapped(Net(wide=4096), f"{path}-wide-{where}", device=where) as engine:
            step(engine)
        with longshore.resume(f"{path}-wide-{where}", lambda: Net(wide=4096)) as engine:
            loss = step(engine)
            out["wide"].append([engine.digest(), loss, engine.module.layers[0][1].running_mean.tolist()])
    out["record"] = recorded(there, "xpu")
    out["lacks"] = said_of(lambda: longshore.resume(there, Net()))
    with longshore.resume(there, Net(), device="cpu") as engine:
        out["lacked, on the cpu"] = [engine.step_number, engine.device.type]
    recorded(there, None)
    out["of before"] = []
    for model in (Net(), Net().to(THERE)):
        with longshore.resume(there, model) as engine:
            out["of before"].append(engine.device.type)
    out["named"] = said_of(lambda: longshore.resume(there, Net(), device="cuda"))
    out["module"] = said_of(lambda: longshore.resume(there, Net(), device="nowhere"))
    return out


class Changing(nn.Module):
    """Buffers whose size and dtype change, as an observer's."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.register_buffer("range", torch.zeros(1))
        self.register_buffer("kind", torch.zeros(2))

    def forward(self, x):
        if self.range.numel() == 1:
            self.range, self.kind = torch.ones(3, device=x.device), torch.ones(2, dtype=torch.float64, device=x.device)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def changing(path):
    with wrapped(Changing(), path) as engine:
        engine.backward(engine(torch.ones(2, 4, device=engine.device)))
        engine.step()
        engine.snapshot("one")
        engine.backward(engine(torch.ones(2, 4, device=engine.device)))
        engine.step()
        engine.reopen(path, "one")
        return [[str(b.device), str(b.dtype), b.tolist()] for b in engine.module.buffers()]


def by_a_script(path, where):
    """What a script loads, writes, reads and computes of a model that computes there."""
    torch.manual_seed(1)
    with wrapped(Net(), path, device=where, lr=1e-2) as engine:
        step(engine)
        torch.manual_seed(5)
        engine.load_state_dict(Net().state_dict())  # of the CPU
        engine.optimizer.load_state_dict(copy.deepcopy(engine.optimizer.state_dict()))
        first = engine.module.layers[0]
        with longshore.resident(first, write=True), torch.no_grad():
            first[0].weight.copy_(torch.ones(8, 8))
        for _ in range(2):
            engine(IDS.to(where)).backward()
            norm = torch.nn.utils.clip_grad_norm_(engine.parameters(), 1.0).item()
            engine.optimizer.step()
            engine.optimizer.zero_grad()
        loss = engine(IDS.to(where))
        given = torch.autograd.grad(loss, [p for p in engine.parameters() if p.numel()])
        places = {
            t.device.type for t in (*given, *engine.state_dict().values(), *copy.deepcopy(engine.module).parameters())
        }
        return [engine.digest(), norm, loss.item(), sum(g.sum().item() for g in given), sorted(places) == [where]]


def absent(path):
    """What an absent parameter says of its device, and what goes by it."""
    torch.manual_seed(7)
    model = models.llama()
    batch = {key: value.to(THERE) for key, value in models.tokens(1)[0].items()}
    plain = copy.deepcopy(model).to(THERE)
    with wrapped(model, path) as engine:
        p = model.get_input_embeddings().weight
        out = {
            "device": [str(p.device), p.get_device(), p.is_cpu, p.is_cuda, p.is_mtia],
            "all": sorted({str(p.device) for p in model.parameters()}),
            "model": [str(model.device), str(engine.device)],
            "like": str(torch.zeros_like(p).device),
            "generated": engine.generate(batch["input_ids"][:1, :4], max_new_tokens=3, do_sample=False).tolist(),
            "expected": plain.generate(batch["input_ids"][:1, :4], max_new_tokens=3, do_sample=False).tolist(),
            "moved": [model.to(place) is model for place in (THERE, f"{THERE}:0", torch.device(THERE))],
            "by its name": [model.mtia() is model, engine.mtia() is engine],
            "away": said_of(lambda: model.cpu()),
        }
        model.gradient_checkpointing_enable({"use_reentrant": True})
        loss = engine(**batch).loss
        loss.backward()
        out["grads"] = sorted({str(p.grad.device) for p in model.parameters()})
        out["a gradient"] = [str((p.grad * 1).device), str(p.grad.norm().device)]
        p.grad = torch.ones_like(p)
        out["assigned"] = str(p.grad.device)
        engine.step()
    out["closed"] = [str(p.device), str(model.device)]
    return out


def elsewhere(path):
    """What is said of tensors that lie elsewhere, and that the run goes on."""
    out = {}
    with wrapped(Net(), path) as engine:
        model, ids = engine.module, IDS.to(THERE)
        out["batch"] = said_of(lambda: engine(IDS))
        out["batch by name"] = said_of(lambda: engine(ids=IDS))
        out["together"] = said_of(lambda: engine.train_batch([IDS, IDS], lambda loss, batch: loss))
        model.waves = torch.ones(8)
        out["buffer"] = said_of(lambda: engine(ids))
        model.waves = torch.ones(8, device=THERE)
        forward = model.forward
        with mock.patch.object(
            model, "forward", lambda ids: forward(ids) + (torch.ones(2) * torch.ones(2, device=THERE)).sum()
        ):
            out["code"] = said_of(lambda: engine(ids))
        model.mask, model.forward = torch.ones(8), lambda ids: forward(ids) + (model.mask * model.waves).sum()
        out["tensor"] = said_of(lambda: engine(ids))
        model.forward = forward
        out["goes on"] = [step(engine) > 0, engine.step_number]
    with wrapped(Net(), f"{path}-cpu", device="cpu") as engine:
        out["there"] = said_of(lambda: engine(IDS.to(THERE)))
        step(engine)
    return out


def named(path):
    """What is said of devices that are none, or not there."""
    half, out = Net(), {}
    half.layers.to(THERE)
    asked = {"unknown": "gpu", "other": "cuda", "number": f"{THERE}:1", "kind": 0, "meta": "meta", "old": "xpu:1"}
    for name, device in asked.items():
        out[name] = said_of(lambda device=device: longshore.wrap(Net(), run=path, device=device))
    for device in (None, THERE, "cpu"):
        out[f"half {device}"] = said_of(lambda device=device: longshore.wrap(half, run=path, device=device))
    with mock.patch.object(torch.accelerator, "is_available", lambda: False):
        out["none"] = said_of(lambda: longshore.wrap(Net(), run=path, device=THERE))
        empty, model = torch.empty, Net()

        def too_old(*size, **how):
            if torch.device(how.get("device", "cpu")).type == "cuda":
                raise RuntimeError(
                    "The NVIDIA driver on your system is too old (found version 11040). Please update it\nnow"
                )
            return empty(*size, **how)

        with mock.patch.object(torch, "empty", too_old):
            out["driver"] = said_of(lambda: longshore.wrap(model, run=path, device="cuda"))
        with wrapped(model, f"{path}-none") as engine:
            out["without"] = engine.device.type
    full = Net()
    standin.limit(nbytes=standin.live() + 4096)
    out["memory"] = said_of(lambda: wrapped(full, f"{path}-full"))
    full.register_buffer("large", torch.zeros(16 << 20), persistent=False)
    standin.limit(nbytes=standin.live() + (48 << 20))
    out["buffers"] = said_of(lambda: wrapped(full, f"{path}-buffers"))
    standin.limit()
    out["stays"] = sorted({str(t.device) for t in (*full.parameters(), *full.buffers())})
    out["made"] = os.path.exists(path)
    return out


def losses(path):
    """Losses on the host, and how often the host waits for those that lie there; several passes make a step."""
    out = {}
    for where in ("cpu", THERE):
        torch.manual_seed(7)
        with wrapped(Net(), f"{path}-{where}", device=where) as engine:
            engine.accumulate, found, waits = 3, [], []
            for host in (False, True):
                for n in range(3):
                    loss = engine(IDS.to(where) + n)
                    loss = loss.cpu() if host else loss
                    before = standin.waits()
                    engine.backward(loss)
                    waits.append(standin.waits() - before)
                    with torch.no_grad():
                        loss.zero_()  # it counts as it was
                found.append(engine.step().loss)
            batches = [IDS.to(where) + n for n in range(3)]
            found.append(engine.train_batch(batches, lambda loss, batch: loss.cpu()).loss)
            out[where] = {"losses": found, "digest": engine.digest(), "waits": waits}
    return out


def checkpointed(path):
    """A loss whose graph leads to parameters only in the recomputation."""
    with wrapped(models.gpt2(), path) as engine:
        engine.module.requires_grad_(True)
        embedded = (
            engine.module.get_input_embeddings()(models.tokens(1)[0]["input_ids"].to(THERE)).detach().requires_grad_()
        )
        out = checkpoint(lambda x: engine(inputs_embeds=x).logits, embedded, use_reentrant=True)
        engine.backward(out.float().square().mean())
        return engine.step().grad_norm


def main(directory):
    out = {
        "moves": {where: moves(f"{directory}/moves-{where}", where) for where in ("cpu", THERE)},
        "moves back": moves(f"{directory}/back", "cpu", lies=THERE),
        "chosen": chosen(f"{directory}/chosen"),
        "resumed": resumed(f"{directory}/resumed"),
        "by a script": [by_a_script(f"{directory}/script-{where}", where) for where in ("cpu", THERE)],
        "changing": changing(f"{directory}/changing"),
        "absent": absent(f"{directory}/absent"),
        "elsewhere": elsewhere(f"{directory}/elsewhere"),
        "named": named(f"{directory}/named"),
        "losses": losses(f"{directory}/losses"),
        "checkpointed": checkpointed(f"{directory}/checkpointed"),
    }
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
