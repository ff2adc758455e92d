"""A training that several ranks share, as a script for torchrun: python rank_training.py DIRECTORY STEPS [gpt2].

It writes the process of each rank into DIRECTORY/process.RANK as it begins, and the digest into DIRECTORY/digest."""

import os
import sys

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
MICRO_BATCHES, GROUPS, SEED = 4, 2, 5


def note(directory, name, text):
    with open(f"{directory}/{name}.partial", "w") as file:
        file.write(str(text))
    os.replace(f"{directory}/{name}.partial", f"{directory}/{name}")


def model_of(kind):
    import torch
    from torch import nn

    if kind == "gpt2":
        from models import gpt2

        return gpt2(dropout=0.1, layers=2), None
    layers = [nn.Sequential(nn.Linear(96, 96), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3)]
    return nn.Sequential(*layers), lambda output, batch: (output - torch.roll(batch, 1)).square().mean()


def batches_of(kind, step):
    """The micro-batches of this rank."""
    import torch

    from models import tokens

    own = slice(RANK * MICRO_BATCHES // RANKS, (RANK + 1) * MICRO_BATCHES // RANKS)
    if kind == "gpt2":
        return tokens(MICRO_BATCHES, length=6, seed=step)[own]
    drawn = torch.randn(MICRO_BATCHES, 2, 96, generator=torch.Generator().manual_seed(step))
    return list(drawn)[own]


def train(directory, steps, kind="net"):
    note(directory, f"process.{RANK}", os.getpid())
    import torch

    import longshore

    torch.manual_seed(SEED)
    run, (model, loss) = f"{directory}/run", model_of(kind)
    if os.path.exists(f"{run}/run.json"):
        engine = longshore.resume(run, model)
    else:
        engine = longshore.wrap(model, run=run, memory="64MiB", lr=1e-2, clip=0.5, sum_groups=GROUPS)
    while engine.step_number < steps:
        engine.train_batch(batches_of(kind, engine.step_number), loss)
    digest = engine.digest()
    engine.close()
    if RANK == 0:
        note(directory, "digest", digest)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
