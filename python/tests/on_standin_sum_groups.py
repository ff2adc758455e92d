"""Gradients that are added in groups, on the CPU and on the device of standin.py, in a process of their own.
python on_standin_sum_groups.py DIRECTORY; writes JSON: {way: [digest on the CPU, on the device, of one group]}."""

import json
import pathlib
import sys

import torch

import models
from on_standin import moved
from on_standin_frozen import eager
from on_standin_streams import PLACES, in_a_loop, together, wrapped

STEPS = 2


def digest_of(where, path, way, count, **how):
    torch.manual_seed(0)
    with wrapped(eager(models.gpt2(layers=2)).to(where), path, slots=1, **how) as engine:
        for step in range(STEPS):
            way(engine, [moved(batch, where) for batch in models.tokens(count, seed=step)])
        return engine.digest()


def tell(directory, count, option, value, other):
    """Writes the digests of steps of so many micro-batches with an option of wrap(), and on the CPU with another value
    of it."""
    told = {}
    for way in together, in_a_loop:
        path = directory / way.__name__
        told[way.__name__] = [digest_of(where, f"{path}-{where}", way, count, **{option: value}) for where in PLACES]
        told[way.__name__].append(digest_of("cpu", f"{path}-other", way, count, **{option: other}))
    (directory / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    tell(pathlib.Path(sys.argv[1]), 6, "sum_groups", 2, 1)
