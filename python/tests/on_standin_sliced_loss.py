"""Losses in slices of tokens, on the CPU and on the device of standin.py, in a process of their own.
python on_standin_sliced_loss.py DIRECTORY; writes JSON: {way: [digest on the CPU, on the device, of whole logits]}."""

import json
import pathlib
import sys

import torch

import models
from on_standin import moved
from on_standin_frozen import eager
from on_standin_streams import PLACES, in_a_loop, together, wrapped

COUNT, STEPS = 3, 2


def digest_of(where, path, way, fused_loss):
    torch.manual_seed(0)
    with wrapped(eager(models.gpt2(layers=2)).to(where), path, slots=1, fused_loss=fused_loss) as engine:
        for step in range(STEPS):
            way(engine, [moved(batch, where) for batch in models.tokens(COUNT, seed=step)])
        return engine.digest()


def main(directory):
    told = {}
    for way in together, in_a_loop:
        path = directory / way.__name__
        told[way.__name__] = [digest_of(where, f"{path}-{where}", way, True) for where in PLACES]
        told[way.__name__].append(digest_of("cpu", f"{path}-whole", way, False))
    (directory / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
