"""transformers' Trainer on two ranks: transformers' numbers, evaluation, checkpoints, and going on."""

import os

import numpy
import pytest

from rank_processes import results
from test_trainer import Sentences, arguments, losses, model

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
RANKS = 2


class Ends(transformers.TrainerCallback):
    """Ends the training after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == self.step


def trainer(directory, seed, ours=True, saves=False, best=False):
    """A Trainer on 30 sentences, that evaluates every 2 steps. ours: or transformers' own, with DDP."""
    from longshore.transformers import Trainer, TrainingArguments

    if ours:
        own = {"run": str(directory / "run"), "memory": "64MiB", "rank_timeout": 120}
        args, kind = arguments(TrainingArguments, directory, **own), Trainer
    else:
        args, kind = arguments(transformers.TrainingArguments, directory, use_cpu=True), transformers.Trainer
    args.max_steps, args.gradient_accumulation_steps, args.eval_steps = 6, 2, 2
    args.eval_strategy = transformers.trainer_utils.IntervalStrategy("steps")
    if saves:
        args.save_strategy, args.save_steps, args.save_total_limit = (
            transformers.trainer_utils.SaveStrategy("steps"),
            2,
            1,
        )
    if best:
        args.load_best_model_at_end, args.metric_for_best_model, args.greater_is_better = True, "loss", False
    return kind(model(seed, 0.0), args, train_dataset=Sentences(30), eval_dataset=Sentences(7, 4))


def trained(directory, seed, ours):
    made = trainer(directory, seed, ours)
    made.train()
    lines = [{k: v for k, v in line.items() if "loss" in k or "norm" in k} for line in made.state.log_history]
    digest = made.engine.digest() if ours else None
    values = made.engine.weights() if ours else made.model.state_dict().items()
    values = {name: value.detach().numpy().copy() for name, value in values}
    if ours:
        made.engine.close()
    return lines, digest, values


def test_the_numbers_are_those_of_transformers(tmp_path, seed):
    plain = results(RANKS, trained, tmp_path / "plain", seed, False)
    ours = results(RANKS, trained, tmp_path / "ours", seed, True)
    assert ours[0][1] == ours[1][1]
    for (lines, _, weights), (expected, _, there) in zip(ours, plain):
        assert len(lines) == len(expected) > 8
        for line, one in zip(lines, expected):
            assert line == pytest.approx(one, rel=1e-4)
        for name, value in weights.items():
            numpy.testing.assert_allclose(value, there[name], rtol=1e-4, atol=1e-5)


def saved(directory, seed, steps, resume, best):
    made = trainer(directory, seed, True, True, best)
    made.add_callback(Ends(steps))
    made.train(resume_from_checkpoint=resume)
    made.save_model()
    out, run = directory / "out", directory / "run" / "snapshots"
    there = sorted(path.name for path in out.glob("checkpoint-*")), len(list(run.glob("*.json")))
    return losses(made), made.engine.digest(), there


def test_checkpoints_and_going_on(tmp_path, seed):
    whole = results(RANKS, saved, tmp_path / "whole", seed, 6, False, False)
    assert whole[0][1:] == whole[1][1:] and whole[0][2][0] == ["checkpoint-6"]
    assert os.path.exists(tmp_path / "whole" / "out" / "model.safetensors")
    first = results(RANKS, saved, tmp_path / "parts", seed, 3, False, False)
    assert first[0][2] == (["checkpoint-2"], 1)
    # from a checkpoint, after which the run has made a step, and from the run's last step
    checkpoint = str(tmp_path / "parts" / "out" / "checkpoint-2")
    results(RANKS, saved, tmp_path / "parts", seed + 1, 5, checkpoint, False)
    last = results(RANKS, saved, tmp_path / "parts", seed + 2, 6, True, False)
    for rest, all_ in zip(last, whole):
        assert rest[:2] == all_[:2]


def test_the_best_model_is_loaded_at_the_end(tmp_path, seed):
    assert len({said[1] for said in results(RANKS, saved, tmp_path, seed, 4, False, True)}) == 1
