"""A Trainer that was stopped goes on from the step that the run has committed, with the numbers of one that was not."""

import os
import random
import signal
import subprocess
import sys

import pytest
import torch

import longshore
from test_trainer import Sentences, by_length, model

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
TIMES = (
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "eval_runtime",
    "train_loss",
    "eval_samples_per_second",
    "eval_steps_per_second",
    "total_flos",
    "eval_model_preparation_time",
)


class Masks:
    """A collator that draws random numbers, as that of masked language models does."""

    def __call__(self, samples):
        ids = torch.stack([s["input_ids"] for s in samples])
        labels = torch.stack([s["labels"] for s in samples])
        return {"input_ids": torch.where(torch.rand(ids.shape) < 0.3, 5, ids), "labels": labels}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        rows = Sentences(40)
        return (rows[i % 40] for i in range(200))


class Plateau(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):
    """A callback with a state of its own, which the learning rate follows."""

    def __init__(self):
        self.seen = 0

    def state(self):
        return {"args": {}, "attributes": {"seen": self.seen}}

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        self.seen += 1
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.01 * self.seen


class Stops(transformers.TrainerCallback):
    """Stops a training where a given event comes for the n-th time."""

    def __init__(self, event, at, how):
        self.left = at

        def stop(args, state, control, **kwargs):
            self.left -= 1
            if self.left == 0:
                how()

        setattr(self, event, stop)


def interrupt():
    raise KeyboardInterrupt


CASES = {
    "steps": {},
    "epochs": {
        "num_train_epochs": 3,
        "max_steps": -1,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
    },
    "accumulation": {"gradient_accumulation_steps": 3, "logging_steps": 3},
    "lengths": {**by_length(), "num_train_epochs": 2, "max_steps": -1},
    "best": {
        "load_best_model_at_end": True,
        "learning_rate": 0.05,
        "metric_for_best_model": "loss",
        "greater_is_better": False,
    },
    "plateau": {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "learning_rate": 0.05,
        "lr_scheduler_kwargs": {"patience": 0},
    },
    "cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 2, "eval_on_start": True},
    "stream": {"gradient_accumulation_steps": 2},
    "masks": {"gradient_accumulation_steps": 1},
    "masks together": {"gradient_accumulation_steps": 2},
}


def trainer(name, place, seed, how=None, event="on_step_end", at=1, **more):
    from longshore.transformers import Trainer, TrainingArguments

    given = {
        "output_dir": str(place / "out"),
        "run": str(place / "run"),
        "memory": "64MiB",
        "max_steps": 9,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
        "logging_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_strategy": "steps",
        "save_steps": 3,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 11,
        "save_total_limit": 2,
        **CASES[name],
        **more,
    }
    callbacks = [Plateau()] + ([transformers.EarlyStoppingCallback(2)] if name == "best" else [])
    if how is not None:
        callbacks.append(Stops(event, at, how))
    return Trainer(
        model(seed),
        TrainingArguments(**given),
        callbacks=callbacks,
        eval_dataset=Sentences(6, 4),
        train_dataset=Stream() if name == "stream" else Sentences(24),
        data_collator=Masks() if name.startswith("masks") else None,
    )


def seen(trained):
    lines = [{k: v for k, v in line.items() if k not in TIMES} for line in trained.state.log_history]
    return lines, trained.state.global_step, trained.state.total_flos, trained.engine.digest()


def whole(name, place, seed, *callback):
    trained = trainer(name, place, seed, *callback)
    trained.train()
    told = seen(trained)
    trained.engine.close()
    return told


STOPS = [
    ("on_step_end", 1),
    ("on_step_begin", 3),
    ("on_step_end", 5),
    ("on_evaluate", 1),
    ("on_evaluate", 2),
    ("on_save", 1),
    ("on_log", 2),
    ("on_prediction_step", 2),
    ("on_epoch_end", 1),
    ("on_epoch_begin", 2),
    ("on_substep_end", 3),
    ("on_optimizer_step", 4),
    ("on_train_end", 1),
]


@pytest.mark.parametrize("name", list(CASES))
def test_the_numbers_are_those_without_the_stop(name, tmp_path, seed):
    # where a callback looks at clipped gradients they are clipped as such, with other last bits than in an update
    looks = lambda: None, "on_optimizer_step"
    expected = {how: whole(name, tmp_path / f"whole{len(how)}", seed, *how) for how in ((), looks)}
    few = random.Random(f"{seed}{name}").sample(STOPS, 2) if "EVERY_STOP" not in os.environ else STOPS
    for number, (event, at) in enumerate(few):
        place = tmp_path / str(number)
        stopped = trainer(name, place, seed, interrupt, event, at)
        try:
            stopped.train()
        except KeyboardInterrupt:
            pass
        stopped.engine.close()
        how = looks if event == looks[1] else ()
        again = trainer(name, place, seed, *how)
        again.train(resume_from_checkpoint=True)
        told = seen(again)
        again.engine.close()
        assert told == expected[how], (event, at)


def test_the_newest_of_checkpoint_and_run(tmp_path, seed):
    expected = whole("steps", tmp_path / "whole", seed)
    with pytest.raises(ValueError, match="No valid checkpoint"):
        trainer("steps", tmp_path / "none", seed).train(resume_from_checkpoint=True)
    place = tmp_path / "here"
    stopped = trainer("steps", place, seed, interrupt, "on_step_begin", 6)
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    assert stopped.engine.step_number == 5 and (place / "out" / "checkpoint-3").is_dir()
    stopped.engine.close()
    with pytest.raises(longshore.ExistsError, match=r"a run: train\(resume_from_checkpoint=True\) continues it"):
        trainer("steps", place, seed).train()

    made = []
    again = trainer("steps", place, seed + 1)
    again.add_callback(Counts(made))
    again.train(resume_from_checkpoint=True)
    assert seen(again) == expected and made == [6, 7, 8, 9]  # none is made twice
    assert again.train(resume_from_checkpoint=True).global_step == 9 and seen(again) == expected  # there is no step 10
    again.engine.close()
    again = trainer("steps", place, seed + 1, restore_callback_states_from_checkpoint=True)
    again.train(resume_from_checkpoint=str(place / "out" / "checkpoint-6"))
    assert seen(again)[1:] == expected[1:]
    again.engine.close()


class Counts(transformers.TrainerCallback):
    """Notes the steps that are computed."""

    def __init__(self, made):
        self.made = made

    def on_step_begin(self, args, state, control, **kwargs):
        self.made.append(state.global_step + 1)


def test_in_the_same_process_and_without_a_state(tmp_path, seed):
    expected = whole("cosine", tmp_path / "whole", seed)
    stopped = trainer("cosine", tmp_path / "here", seed, interrupt, "on_step_begin", 5)
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    stopped.train(resume_from_checkpoint=True)
    assert seen(stopped) == expected
    stopped.engine.close()
    own = longshore.wrap(model(seed), run=str(tmp_path / "own" / "run"))
    own.backward(own(input_ids=Sentences(2).rows, labels=Sentences(2).rows).loss)
    own.step()
    own.close()
    with pytest.raises(longshore.LongshoreError, match=r"is at step 1, and has no state of a Trainer.*\.resume"):
        trainer("steps", tmp_path / "own", seed).train(resume_from_checkpoint=True)


def test_ignored_data_begins_anew_as_from_a_checkpoint(tmp_path, seed):
    told = []
    for name in ("run", "checkpoint"):
        stopped = trainer("cosine", tmp_path / name, seed, interrupt, "on_step_begin", 4)
        with pytest.raises(KeyboardInterrupt):
            stopped.train()
        stopped.engine.close()
        again = trainer(
            "cosine", tmp_path / name, seed, ignore_data_skip=True, restore_callback_states_from_checkpoint=True
        )
        again.train(resume_from_checkpoint=True if name == "run" else str(tmp_path / name / "out" / "checkpoint-3"))
        told.append([line["loss"] for line in again.state.log_history if "loss" in line and line["step"] > 4])
        told.append(again.engine.digest())
        again.engine.close()
    assert told[:2] == told[2:]


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_trainer_goes_on import trainer
trainer({name!r}, Path({place!r}), {seed}, lambda: os.kill(os.getpid(), {signal}), {event!r}, {at}).train(
    resume_from_checkpoint={resumes})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_again_and_again(number, tmp_path, seed):
    draw = random.Random(f"{seed}{number}")
    name = draw.choice(list(CASES))
    expected = whole(name, tmp_path / "whole", seed)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for kills in range(3):
        event = draw.choice(["on_step_end", "on_step_begin", "on_save", "on_evaluate", "on_prediction_step"])
        at = draw.randint(1, 3)
        script = KILLED.format(
            tests=os.path.dirname(__file__),
            name=name,
            place=str(tmp_path / "killed"),
            seed=seed,
            signal=int(number),
            event=event,
            at=at,
            resumes=kills > 0,
        )
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
        assert done.returncode in (-number, 0), done.stderr[-2000:]
    again = trainer(name, tmp_path / "killed", seed)
    again.train(resume_from_checkpoint=True)
    assert seen(again) == expected, (name, event, at)
    again.engine.close()


def test_a_run_keeps_its_precision_and_moments(tmp_path, seed, caplog):
    for number, (first, then, said) in enumerate(
        (
            ({}, {"bf16": True}, "computes in fp32, and not bf16"),
            ({"bf16": True}, {}, "computes in bf16, and not fp32"),
            ({"optim": "adamw_8bit"}, {}, "moments 8bit, and not fp32"),
        )
    ):
        expected = whole("steps", tmp_path / "whole", seed) if not number else None
        stopped = trainer("steps", tmp_path / str(number), seed, interrupt, "on_step_begin", 4, **first)
        with pytest.raises(KeyboardInterrupt):
            stopped.train()
        kept = stopped.engine._core.how["compute"], stopped.engine._core.how["moments"]
        stopped.engine.close()
        again = trainer("steps", tmp_path / str(number), seed, **then)
        again.train(resume_from_checkpoint=True)
        assert said in caplog.text and caplog.text.count("continues as it was made") == 1
        assert (again.engine._core.how["compute"], again.engine._core.how["moments"]) == kept
        assert number or seen(again) == expected
        again.engine.close()
        caplog.clear()


def test_evaluated_before_it_trains(tmp_path, seed):
    for bf16 in (False, True):
        told = []
        for first in (False, True):
            trained = trainer("steps", tmp_path / f"{bf16}{first}", seed, bf16=bf16, eval_on_start=not first)
            before = trained.evaluate()["eval_loss"] if first else None
            trained.train()
            evaluated = [line["eval_loss"] for line in trained.state.log_history if "eval_loss" in line]
            told.append(([before] if first else []) + evaluated)
            trained.engine.close()
        assert told[0] == pytest.approx(told[1], rel=1e-3 if bf16 else 1e-6)


def test_a_wrapped_model_is_not_sent_to_the_meta_device(tmp_path, seed):
    made = model(seed)
    before = made.transformer.wte.weight.detach().clone()
    with longshore.wrap(made, run=str(tmp_path / "run")) as engine:
        for send in (
            lambda: made.to("meta"),
            lambda: engine.to("meta"),
            lambda: made.transformer.to_empty(device="meta"),
        ):
            with pytest.raises(longshore.LongshoreError, match=r"module\.to\(.meta.\) would lose it"):
                send()
        assert torch.equal(made.transformer.wte.weight.detach() + 0, before)
