"""Trainings on the CPU and on the device of standin.py, in a process of their own. python on_standin.py DIRECTORY;
writes JSON: {name: what came of it}."""

import json
import os
import pathlib
import sys
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import standin

standin.make()

import longshore  # noqa: E402
from longshore.model import activations  # noqa: E402
from longshore.run import memory_plan  # noqa: E402

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
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x))
        return F.cross_entropy(F.linear(x, self.table.weight).flatten(0, 1), ids.flatten())


def sizes(slots, pages):
    """Layers on the device, and pages of layers on the host; a CPU computes in its pages."""
    plan = memory_plan.plan

    def chosen(*args, **how):
        out = plan(*args, **how)
        out.pages, out.slots = pages, slots if out.slots else 0
        return out

    return mock.patch.object(memory_plan, "plan", chosen)


def step(engine, batches, together):
    if together:
        return engine.train_batch(batches, lambda loss, batch: loss)
    engine.accumulate = len(batches)
    for batch in batches:
        engine.backward(engine(batch))
    return engine.step()


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
            before = standin.waits()
            with torch.autocast(where, torch.bfloat16, enabled=cast, cache_enabled=False):
                result = step(engine, batches, together)
            waits.append(standin.waits() - before)
        random.append(torch.mtia.get_rng_state().tolist())
        return result

    with sizes(slots, pages):
        with longshore.wrap(
            Net(checkpoints).to(where), run=path, drives=[f"{path}-drive"], lr=1e-2, clip=0.5, memory="1GiB", **how
        ) as engine:
            torch.mtia.set_rng_state(torch.arange(8, dtype=torch.uint8))
            steps(engine, 0)
        torch.mtia.manual_seed_all(1)
        with longshore.resume(path, Net(checkpoints).to(where)) as engine:
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
        Net(False).to(where),
        run=path,
        drives=[f"{path}-drive"],
        memory="1GiB",
        activations="drives",
        activation_room="64MiB",
        compress="top5%",
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
        return {
            "digest": engine.digest(),
            "norm": result.grad_norm,
            "seen": seen,
            "head": net.table.weight.sum().item(),
        }


RUNS = {
    "together": {},
    "loop": {"together": False},
    "one slot": {"slots": 1, "pages": 1},
    "one slot, loop": {"slots": 1, "pages": 1, "together": False},
    "checkpoints": {"checkpoints": True},
    "bf16 on the drives": {"storage": "bf16", "slots": 2, "pages": 2},
    "autocast": {"cast": True},
    "autocast, loop": {"cast": True, "together": False},
}


def main(directory):
    out = {}
    for name, how in RUNS.items():
        for where in ("cpu", standin.NAME):
            out[f"{name} {where}"] = trained(where, f"{directory}/{name}-{where}", **how)
    activations.LEAST_BYTES = 16
    out["by a script"] = [by_a_script(where, f"{directory}/script-{where}") for where in ("cpu", standin.NAME)]
    out["late"] = standin.late()
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
