"""A training with all that commits with a step, in processes that can be killed at any instant."""

import multiprocessing
import os
import shutil
import sys
from unittest import mock

import torch

import longshore
from longshore.run import checkpoint, memory_plan
from models import gpt2, tokens

PER_STEP = 2  # micro-batches


class Loader:
    """Batches in a random order, without an end; it can say where it is."""

    def __init__(self, seed):
        self.batches, self.order = tokens(5, length=6, seed=seed), []
        self.random = torch.Generator().manual_seed(seed)

    def draw(self):
        if not self.order:
            self.order = torch.randperm(len(self.batches), generator=self.random).tolist()
        return self.batches[self.order.pop()]

    def state_dict(self):
        return {"order": list(self.order), "random": self.random.get_state()}

    def load_state_dict(self, state):
        self.order = list(state["order"])
        self.random.set_state(state["random"])


def kept(slots):
    """Engines that are made within have so many slots, and keep no gradients in memory then; None: all of both."""
    plan = memory_plan.plan

    def smaller(*args, **how):
        chosen = plan(*args, **how)
        if slots is not None:
            chosen.pages, chosen.gradient_bytes = slots, 0
        return chosen

    return mock.patch.object(memory_plan, "plan", smaller)


def make(run, drives, seed, **how):
    torch.manual_seed(seed)
    return longshore.wrap(
        gpt2(dropout=0.1, layers=2), run=run, drives=drives, lr=1e-2, weight_decay=0.1, clip=0.5, **how
    )


def make_or_resume(run, drives, seed):
    try:
        return longshore.resume(run)
    except longshore.MissingError:
        return make(run, drives, seed)


def train(engine, steps, seed, together=False, after=lambda engine: None):
    """On to a step, with dropout and a scheduler. after(engine): called behind each step. Returns the digest."""
    engine.train()
    engine.accumulate = PER_STEP
    scheduler = engine.follow("scheduler", torch.optim.lr_scheduler.StepLR(engine.optimizer, 3, 0.9))
    loader = engine.follow("loader", Loader(seed))
    while engine.step_number < steps:
        batches = [loader.draw() for _ in range(PER_STEP)]
        if together:
            engine.train_batch(batches)
        else:
            for batch in batches:
                engine.backward(engine(**batch).loss)
            engine.step()
        scheduler.step()
        after(engine)
    return engine.digest()


def save(engine, directory, keeps=3):
    """A checkpoint that knows the digest of what it is of; older ones go."""
    checkpoint.save(engine, os.path.join(directory, f"step-{engine.step_number:06}"), {"digest": engine.digest()})
    for old in sorted(os.listdir(directory))[:-keeps]:
        shutil.rmtree(os.path.join(directory, old))


def _live(environment, run, drives, seed, slots, together, checkpoints):
    os.environ.update(environment)
    torch.set_num_threads(1)
    with kept(slots):
        engine = make_or_resume(run, drives, seed)
    after = {} if checkpoints is None else {"after": lambda engine: save(engine, checkpoints)}
    train(engine, sys.maxsize, seed, together, **after)


def killed(random, run, drives, seed, checkpoints=None):
    """A process that makes or resumes a run, keeps and computes it in another way each time, and is killed at some
    instant of its first second. checkpoints: a directory for one of each step. Torch is imported once, in a server that
    forks such processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lives", "transformers.models.gpt2.modeling_gpt2"])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)):
        life = str(run), drives, seed, random.choice([None, 1]), random.choice([False, True]), checkpoints
        process = context.Process(
            target=_live, args=({k: v for k, v in os.environ.items() if k.startswith("LONGSHORE")}, *life)
        )
        process.start()
    process.join(random.uniform(0, 1))
    assert process.exitcode is None, "it has ended by itself"
    process.kill()
    process.join()
