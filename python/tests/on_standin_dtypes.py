"""Trainings of models of two dtypes on the CPU and on the device of standin.py, in a process of their own. python
on_standin_dtypes.py DIRECTORY; writes JSON: {name: what came of it}."""

import functools  # noqa: I001
import json
import os
import pathlib
import sys

import torch

import on_standin  # makes the device before longshore is imported
import longshore
import standin
from longshore.model import blocks
from models import tokens
from test_dtypes import BF16, FP32, Mixed, adapted, least, routed

CHECKPOINTED = functools.partial(Mixed, BF16, FP32, checkpoints=True)
WAYS = {
    "most bf16, loop": (functools.partial(Mixed, BF16, FP32), {"together": False, "slots": 1, "pages": 2}),
    "most bf16, together": (CHECKPOINTED, {"together": True, "slots": 2, "pages": 1}),
    "most fp32, loop": (functools.partial(Mixed, FP32, BF16), {"together": False, "slots": 2, "pages": 9}),
    "most fp32, widened": (
        functools.partial(Mixed, FP32, BF16),
        {"together": True, "slots": 1, "pages": 1, "storage": "bf16", "stream": True},
    ),
    "compressed": (functools.partial(Mixed, BF16, FP32), {"together": False, "slots": 2, "pages": 1, "compress": 0.05}),
    "activations": (CHECKPOINTED, {"together": False, "slots": 1, "pages": 1, **on_standin.ON_DRIVES}),
    "adapters": (adapted, {"together": False, "slots": 1, "pages": 1}),
    "adapters in plenty": (adapted, {"together": True, "slots": 2, "pages": 9}),
    "router": (routed, {"together": True, "slots": 1, "pages": 2}),
}


def at_the_least(most, few, storage, path):
    """A step in the least memory. Returns [what is said of a mebibyte less, (budget, bytes held, loss)]."""
    os.mkdir(f"{path}-drive")
    where = torch.device(standin.NAME)
    torch.manual_seed(7)
    model = Mixed(most, few).to(where)
    memory = least(model, device=where, storage=storage, compute=blocks.NAME_OF[most])
    wrapped = functools.partial(longshore.wrap, model, run=path, drives=[f"{path}-drive"], storage=storage)
    said = on_standin.said_of(lambda: wrapped(memory=memory - (1 << 20)))
    with wrapped(memory=memory) as engine:
        engine.backward(engine(**on_standin.moved(tokens(1)[0], where)).loss)
        return said, (memory, engine.memory().held, engine.step().loss)


def main(directory):
    out = {}
    for number, (name, (make, how)) in enumerate(WAYS.items()):
        for where in ("cpu", standin.NAME):
            out[f"{name} {where}"] = on_standin.of_model(make, where, f"{directory}/{number}-{where}", **how)
    out["least"] = [
        at_the_least(most, few, "bf16", f"{directory}/least-{most}") for most, few in ((BF16, FP32), (FP32, BF16))
    ]
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
