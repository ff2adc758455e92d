"""What a step commits of transformers' Trainer, so that train(resume_from_checkpoint=True) goes on from any step.

A step commits the Trainer's state from just before optimizer.step(), with the step's losses and norm. What transformers
does after it (schedule, log line, evaluation, checkpoint, end of the epoch) may be cut off. So a resumed Trainer makes
the last step again without computing it: it draws the same batches, takes losses and norm from the run, and
transformers' own code does the rest.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import tempfile

import torch
import transformers
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

from ..drives.state import State
from ..errors import LongshoreError
from ..ranks.launch import ranks
from ..run.engine_surface import core_of
from ..step import commit_blob, param_groups

_log = logging.getLogger("longshore")
_NAME = "trainer"  # under which a run keeps it
_LOG_BYTES, _REST_BYTES = 32 << 10, 16 << 10  # of text, before it is packed; a step commits 64 KiB packed
_FIELDS = [field.name for field in dataclasses.fields(transformers.TrainerState) if field.name != "log_history"]
_PROGRESS = """epoch global_step num_input_tokens_seen total_flos log_history best_metric best_global_step
    best_model_checkpoint""".split()
# the Trainer's attributes for the mean of losses: the step of the last log line, the sum up to there, the first step
_LOGGED, _TOTAL, _FIRST = "_globalstep_last_logged", "_total_loss_scalar", "_initial_global_step"
_BEFORE_THE_STEP = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step")


class TrainerPosition(transformers.TrainerCallback):
    """Follows a Trainer's steps, and takes a resumed Trainer to the end of the step that the run has committed."""

    follows_the_step = False  # commit_blob.py takes state_dict() when the step is made

    def __init__(self, trainer):
        self.trainer = trainer
        self.saved = None  # of the run that train() goes on with
        self.replaying = False  # the step that the run has is being made again, without computing
        self._noted, self._said = {}, False
        self._lines: list = []  # log_history as text, as far as it was needed
        self.losses: list = []  # of the micro-batches of the step so far
        self.norm, self._loss, self._epoch, self._drawn = None, 0.0, {}, {}

    # ---- noting

    def drawing(self, batches):
        """Yields an epoch's batches. Notes the random states before each is drawn."""
        while True:
            self._drawn = commit_blob.random_states()
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    def note(self):
        """Notes what the step that is about to be made commits."""
        trainer = self.trainer
        try:
            state = {name: getattr(trainer.state, name) for name in _FIELDS}
            self._noted = {
                "state": {**state, "total_flos": trainer.state.total_flos + trainer.current_flos},
                "scheduler": trainer.lr_scheduler.state_dict(),
                "groups": param_groups.saved(trainer.engine.optimizer),
                "callbacks": [[type(c).__name__, c.state()] for c in self._exportable()],
                **{"losses": self.losses, "norm": self.norm, "loss": self._loss},
                **{"logged": vars(trainer)[_LOGGED], "total": vars(trainer)[_TOTAL]},
            }
            size = len(json.dumps(commit_blob.plain(self._noted, "the Trainer")))
            if size > _REST_BYTES:
                raise LongshoreError(
                    f"the states of scheduler and callbacks take {size} bytes, and {_REST_BYTES} is the most"
                )
        except LongshoreError as why:
            self._noted = {"not": str(why)}
            if not self._said:
                self._said = True
                _log.warning(
                    f"a step does not commit the Trainer's state: {why}; train(resume_from_checkpoint=True) goes on "
                    "from the last checkpoint"
                )
            return
        drawn = {kind: state for kind, state in self._drawn.items() if state != self._epoch.get(kind)}
        self._noted.update(log=self._last_lines(), epoch=self._epoch, drawn=drawn)

    def _exportable(self):
        every = [*self.trainer.callback_handler.callbacks, self.trainer.control]
        return [c for c in every if isinstance(c, ExportableState)]

    def _last_lines(self):
        """The newest lines of log_history that fit, as JSON."""
        history = self.trainer.state.log_history
        del self._lines[len(history) :]
        self._lines += [json.dumps(line, default=_number) for line in history[len(self._lines) :]]
        taken, size = [], 0
        for line in reversed(self._lines):
            size += len(line) + 1
            if size > _LOG_BYTES:
                break
            taken.append(line)
        return "[" + ",".join(reversed(taken)) + "]"

    def state_dict(self):
        """What a step commits: of the Trainer's last optimizer.step(), also if the script commits another step."""
        return self._noted

    def load_state_dict(self, state):
        """Nothing: train() has read it, before the Trainer had an engine."""

    # ---- going on

    def take_over(self, run, engine):
        """Decides what train(resume_from_checkpoint=True) goes on from. Returns the argument for transformers' train().

        run: the run's directory. engine: the Trainer's, if it is open already.
        """
        output = self.trainer.args.output_dir
        last = get_last_checkpoint(output) if os.path.isdir(output) else None
        if not os.path.exists(os.path.join(run, "run.json")):
            return True
        step, saved = _of(run, engine)
        at = saved["state"]["global_step"] + 1 if saved.get("state") else 0
        if last is not None and (int(last.rpartition("-")[2]) > at):
            return last
        if step and not at:
            why = f" ({saved['not']})" if saved else ""
            raise LongshoreError(
                f"{run}: is at step {step}, and has no state of a Trainer with it{why}, and there is no checkpoint in "
                f"{output}: longshore.resume() goes on with it in a loop of your own; "
                "TrainingArguments(overwrite_run=True) begins anew"
            )
        if not at:
            return None
        _log.info("%s: goes on from step %d", run, at)
        self.saved = saved
        return True

    @contextlib.contextmanager
    def checkpoint(self):
        """A directory that transformers takes for a checkpoint: it holds the Trainer's state."""
        saved = self.saved
        state = transformers.TrainerState(
            **{k: v for k, v in saved["state"].items() if k in _FIELDS}, log_history=json.loads(saved["log"])
        )
        if self.trainer.args.ignore_data_skip:
            state.global_step += 1
        with tempfile.TemporaryDirectory(prefix="longshore-") as directory:
            state.save_to_json(os.path.join(directory, "trainer_state.json"))
            try:
                yield directory
            finally:
                self._leave()
                self.saved = None

    def load_schedule(self):
        """Gives the scheduler and the groups their state from before the step."""
        trainer, saved = self.trainer, self.saved
        trainer.lr_scheduler.load_state_dict(saved["scheduler"])
        commit_blob.restore_groups(saved, trainer.engine.optimizer)
        if trainer.args.ignore_data_skip and not hasattr(trainer.lr_scheduler, "best"):
            trainer.lr_scheduler.step()

    def collates(self, loader):
        """Lets a loader without workers draw what follows the step's batches from the states in which it did."""
        if self.saved is None or getattr(loader, "num_workers", 1) or self.trainer.args.ignore_data_skip:
            return loader
        saved, collate, number = self.saved, loader.collate_fn, len(self.saved["losses"])
        if isinstance(loader.dataset, torch.utils.data.IterableDataset):  # the batches before are drawn, too
            number += saved["state"]["global_step"] * self.trainer.args.gradient_accumulation_steps

        calls = itertools.count(1)

        def collating(samples):
            batch = collate(samples)
            if next(calls) == number:
                commit_blob.set_random_states({**saved["epoch"], **saved["drawn"]})
            return batch

        loader.collate_fn = collating
        return loader

    def on_train_begin(self, args, state, control, **kwargs):
        self._loss, self.norm, self._noted = 0.0, None, {}
        self._lines.clear()
        if self.saved is None:
            return
        if args.ignore_data_skip:
            self._restore_callbacks()
            return
        self.replaying = True
        vars(self.trainer)[_LOGGED] = self.saved["logged"]
        for name in _BEFORE_THE_STEP:
            setattr(self.trainer.callback_handler, name, lambda args, state, control: control)
        self._step = self.trainer.engine.optimizer.step
        self.trainer.engine.optimizer.step = self._made

    def on_epoch_begin(self, args, state, control, **kwargs):
        if self.replaying:
            commit_blob.set_random_states(self.saved["epoch"])
        self._epoch = self._drawn = commit_blob.random_states()

    def next_loss(self):
        """The loss of the next micro-batch of the step that is made again."""
        losses, number = self.saved["losses"], len(self.losses)
        self.losses.append(0.0)
        return torch.tensor(losses[number] if number < len(losses) else 0.0, device=self.trainer.args.device)

    def _made(self, *args, **kwargs):
        """In place of optimizer.step(): everything is as it was after the step that the run has."""
        trainer, saved, engine = self.trainer, self.saved, self.trainer.engine
        self._leave()
        engine.drop_gradients()
        for name in _PROGRESS:
            setattr(trainer.state, name, json.loads(saved["log"]) if name == "log_history" else saved["state"][name])
        trainer.current_flos = 0
        self._lines.clear()
        self._restore_callbacks()
        self.losses, self.norm, self._loss = saved["losses"], saved["norm"], None
        self._noted = saved
        commit_blob.set_random_states(core_of(engine).cycle.position["random"])

    def on_step_end(self, args, state, control, **kwargs):
        # a schedule of another length begins with the step after the next, as from a checkpoint
        if self._loss is None and state.max_steps != self.saved["state"]["max_steps"]:
            engine = self.trainer.engine
            commit_blob.restore_groups(core_of(engine).cycle.position, engine.optimizer)

    def _restore_callbacks(self):
        there = self._exportable()
        for kind, said in self.saved["callbacks"]:
            found = next((c for c in there if type(c).__name__ == kind), None)
            if found is not None:
                there.remove(found)
                vars(found).update(said.get("attributes", {}))

    def _leave(self):
        """Ends the step that is made again."""
        if self.replaying:
            self.replaying = False
            self.trainer.engine.optimizer.step = self._step
            for name in _BEFORE_THE_STEP:
                vars(self.trainer.callback_handler).pop(name, None)

    @contextlib.contextmanager
    def ending(self, total):
        """What follows a step. total: the Trainer's sum of losses since its last log line."""
        if self._loss is None:  # the step was made again
            total.copy_(self._sum(self.saved["loss"]))
            self._count(float(total))
        yield
        self._loss = float(total)

    def _sum(self, before):
        """The sum of losses after the step, added as transformers adds them."""
        args, steps = self.trainer.args, self.trainer.state.global_step - 1 - self.saved["logged"]
        total = torch.tensor(before)
        for loss in map(torch.tensor, self.losses):
            finite = bool(torch.isfinite(loss)) or not args.logging_nan_inf_filter
            total = total + (loss if finite else total / (1 + steps))
        return total

    def _count(self, total):
        """Sets what the mean loss of train() counts: transformers 5 the steps of this call, earlier ones all."""
        counts = vars(self.trainer)
        if _FIRST in counts:
            counts[_FIRST], counts[_TOTAL] = self.trainer.state.global_step, -total
        else:
            counts[_TOTAL] = self.saved["total"]


def _number(value):
    """A value of a log line that JSON does not know: NumPy's numbers, tensors."""
    return value.item() if hasattr(value, "item") else str(value)


def _of(run, engine):
    """(a run's committed step, what it has committed of a Trainer)."""
    if engine is not None:
        engine.reopen(run)
        step, blob = engine.step_number, core_of(engine).cycle.position
    else:
        with contextlib.closing(State.open(run, ranks=ranks(), read_only=True)) as state:  # each has one of its own
            step, blob = state.step, commit_blob.of(state)
    saved = blob.get("followed", {}).get(_NAME)
    return step, commit_blob.back(saved) if saved is not None else {}
