"""Gradients are clipped as the Trainer's arguments say when the step is made, and a callback before the step finds them
clipped."""

import functools

import pytest
import torch

from test_trainer_apart import told

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


class Keeps(transformers.TrainerCallback):
    """weights: as they are at the end."""

    def on_train_end(self, args, state, control, model=None, **kwargs):
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}


class Changes(transformers.TrainerCallback):
    def __init__(self, norms):
        self.norms = norms

    def on_step_begin(self, args, state, control, **kwargs):
        args.max_grad_norm = self.norms[state.global_step]


class Halves(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for p in model.parameters():
            p.grad.mul_(0.5)


class Clips(transformers.TrainerCallback):
    """By itself; and the Trainer clips nothing."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)


@pytest.mark.parametrize(
    "callback, norm",
    [
        (Changes([1e9, 0.05, 1e9]), 1.0),
        (Changes([0.05, 0.0, 0.05]), 1.0),
        (Changes([0.0, 0.05, 0.0]), 0.0),
        (Halves(), 0.5),
        (Clips(), 0.0),
    ],
    ids=["more", "none", "from none", "halves", "by itself"],
)
def test_clipped_as_transformers_does(callback, norm, tmp_path, seed):
    from longshore.transformers import Trainer, TrainingArguments

    keeps = [Keeps(), Keeps()]
    more = {"max_grad_norm": norm, "optim": "sgd"}
    how = [functools.partial(functools.partial, callbacks=[callback, keep]) for keep in keeps]
    expected, _ = told(
        how[0], transformers.Trainer, transformers.TrainingArguments, tmp_path / "plain", seed, use_cpu=True, **more
    )
    got, _ = told(how[1], Trainer, TrainingArguments, tmp_path, seed, run=str(tmp_path / "run"), memory="1GiB", **more)
    assert sum(got, []) == pytest.approx(sum(expected, []), rel=1e-4)
    for name, w in keeps[0].weights.items():
        torch.testing.assert_close(keeps[1].weights[name], w, rtol=1e-4, atol=1e-6, msg=name)
