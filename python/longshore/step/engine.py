"""The engine: an ordinary PyTorch loop whose weights and optimizer state lie on drives."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .. import forks, native
from ..interrupts import whole
from ..model import hooks
from ..model.forward_scope import Hook
from ..progress import Progress
from ..run import checkpoint, commit_blob, export, lifecycle, memory
from ..torch_internals import in_backward
from . import layer_major, recovery
from .compression import Compression
from .engine_surface import Face
from .gradients import Gradients, parts_of
from .metrics import Meter
from .optimizers import Optimizer
from .step_cycle import Phase, StepCycle, StepResult


def optimizer_of(engine, how, groups):
    """engine.optimizer. how: what wrap() was told, as the run records it; groups: as torch.optim takes them."""
    defaults = {**{k: commit_blob.back(how[k]) for k in ("lr", "eps", "weight_decay", "momentum")},
                "betas": tuple(how["betas"])}
    return Optimizer(engine, groups, defaults)


class Engine(Face):
    """What longshore.wrap() and longshore.resume() return. Call it as the model is called; then backward() and step().

    reconnect_timeout: seconds for which drives of other hosts that are lost are waited for, 300 at first."""

    state: Any = None
    _closed_at: Any = None  # (the run, its last step) of one that is closed
    position: dict = {}  # what a run that was opened is at

    def __init__(self, model, streams, state, how, groups, room_bytes):
        """how: what wrap() was told, as the run records it. groups: as torch.optim takes them."""
        self.module, self.streams, streams.engine = model, streams, weakref.ref(self)
        self.layout, self.how = state.layout, how
        self.accumulate, self.lr_scheduler = 1, None
        self.optimizer = optimizer_of(self, how, groups)
        self.cycle, self.followed = StepCycle(self, state), {}  # what has a state that commits with every step, by name
        self.together = layer_major.Together(self)
        self.gradients = streams.gradients = Gradients(streams, room_bytes)
        self.compression = (Compression(self.gradients, how["compress"], how["compress_after"]) if how.get("compress")
                            else None)
        self.reconnect_timeout = native.lib.SHORE_PATIENCE_SECONDS
        # with drives that are lost; why they did not come back
        self.patience, self.gone = native.new("struct shore_patience"), None
        forks.leave_in_children(self.cycle)
        # of random numbers and counts: a seed, and steps that came before the run's own
        self.lineage = [how["seed"], 0]
        self.plan = None  # of memory: what the budget was planned to
        self.process_at_wrap_bytes = memory.process_bytes()
        self.own_random, self.meter = commit_blob.OwnRandom(), Meter()
        self.cycle.begin()
        model.register_forward_pre_hook(Hook(self._before_forward), prepend=True, with_kwargs=True)
        model.register_forward_hook(Hook(self._after_forward), always_call=True)
        self.gradients.hook()
        self.state = state

    # ---- forward and backward

    def __call__(self, *args, **kwargs):
        try:
            return self.module(*args, **kwargs)
        except BaseException as failure:
            self._leave_forward()
            recovery.say_closed(self, failure, "forward")
            raise

    @whole
    def _leave_forward(self):
        """Of this thread, one that was broken off."""
        self.streams.inside.break_off()
        self.own_random.end()

    def _before_forward(self, module, args, kwargs):
        """Random numbers in training follow from the run's seed, the step and the micro-batch, however these are
        run."""
        self.cycle.open_state("forward")
        self.flush()
        self.gradients.hide()
        if module.training and torch.is_grad_enabled() and not in_backward():
            self.own_random.begin(self, self.cycle.forwards)
            self.meter.forward(self.state, args, kwargs)
            self.streams.progress.begin(self.state.step + 1, len(self.streams.layers), self.accumulate,
                                        self.gradients.passes)

    def _after_forward(self, module, args, output):
        if not in_backward():
            if self.own_random.end() and output is not None:
                self.cycle.forwards += 1
                self.meter.forward_ended(output)
            if not torch.is_grad_enabled() and self.together.turns is None:
                self.gradients.show()

    def train(self, mode: bool = True) -> Engine:
        """As the module's. Returns the engine."""
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        """As the module's: train(False)."""
        return self.train(False)

    @property
    def step_number(self) -> int:
        """The last step that was made."""
        return self.cycle.open_state("step_number").step

    @property
    def fetched_bytes(self) -> int:
        """Of parameters, from the drives, since the run was opened."""
        return self.cycle.open_state("fetched_bytes").ledger().link_out_params

    def follow(self, name: str, thing: Any) -> Any:
        """Commits thing.state_dict() (a scheduler, a loader that can say where it is) with every step, and puts it back
        now if this engine was resumed, and has made no step since."""
        if getattr(thing, "state", None) is self.optimizer.state:
            return thing  # which commits anyway
        self.followed[name] = thing
        commit_blob.restore_followed(self.position, name, thing)
        commit_blob.restore_groups(self.position, self)  # which a scheduler that is made writes into
        return thing

    def backward(self, loss: torch.Tensor, *, last: bool | None = None, divide: bool = True) -> None:
        """Adds the gradients of a loss, divided by ``accumulate`` (divide=False: as it is), to those of the step.

        last: step() follows; by default after ``accumulate`` calls. It may be wrong, and costs time then. After an
        exception the gradients of the step are dropped, and the engine is as it was after the last step.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ValueError("engine.backward(loss): the loss is a tensor of one element")
        self.cycle.open_state("backward")
        parts = parts_of(self.accumulate) if divide else 1
        try:
            self.flush()
            self._leave_forward()
            self.cycle.last = self.cycle.backwards + 1 == self.accumulate if last is None else last
            self.cycle.begin_pass()
            with self.streams.inside.differentiating(), self.gradients.own_pass():
                (loss / parts if parts != 1 else loss).backward()
            with whole:
                self.gradients.end_of_backward()
                self.cycle.losses += float(loss.detach()) / parts
                self.cycle.backwards += 1
        except BaseException as failure:
            self.drop_gradients()
            recovery.say_closed(self, failure, "backward")
            raise

    @whole
    def drop_gradients(self) -> None:
        """Forgets what backward() has gathered since the last step."""
        self._leave_forward()
        self.cycle.drop()
        self.streams.rest()

    # ---- the step

    @whole
    def step(self) -> StepResult:
        """Makes a step of what backward() has gathered. Returns a StepResult.

        It is committed beside what comes next: durable at the latest when the next step is made, or on return of
        settle(), snapshot(), digest() or close(). Raises LongshoreError where no backward pass has come, and
        NotFiniteError where a gradient is not finite (with on_nonfinite="skip" the step counts, and the state stays).
        """
        self.cycle.open_state("step")
        hooks.before_step(self.streams, "engine.step")
        self._leave_forward()
        try:
            while (result := recovery.persist(self, self.cycle.make)) is None:
                pass
            return result
        except BaseException:
            if self.cycle.phase is not Phase.MADE:
                self._leave_forward()
                self.cycle.discard()
                self.streams.rest()
                self.gradients.came = False
            raise

    @whole
    def grad_norm(self) -> float:
        """Of all gradients together that backward() has gathered, before clipping: what step() will return."""
        try:
            return recovery.persist(self, self.cycle.decide).norm
        finally:
            self.gradients.show()

    @whole
    def flush(self) -> None:
        """Begins to commit the step that was made last. Whatever uses the engine next does so; until then a scheduler
        may be stepped, which belongs to the step."""
        self.cycle.flush()

    @whole
    def settle(self) -> None:
        """Waits until the last step is durable. Where it cannot be committed (NotFiniteError: an update made a
        parameter that is not finite), the engine is at the step before it."""
        self.cycle.settle()

    def train_batch(self, micro_batches: Iterable,
                    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None) -> StepResult:
        """Makes one step with the mean loss of the micro-batches (a list of dicts, tuples, or what the model takes),
        each block fetched once for all of them. loss_fn(output, micro_batch); by default output.loss. Returns a
        StepResult. The bits are those of backward() for each and step(). All are in one layer at a time: their
        activations are held together. What a pass changes of modules (attributes, tensors in place, adapters, hooks,
        requires_grad, train and eval), and of globals and closures of the model's code, is seen: they go on one after
        the other then, or LongshoreError names it, where they have begun with what it was before. What a loss keeps is
        not seen.
        """
        hooks.before_step(self.streams, "engine.train_batch")
        micro_batches = list(micro_batches)
        if not micro_batches:
            raise ValueError("train_batch: no micro-batches")

        def loss_of(batch):
            by_name, several = isinstance(batch, Mapping), isinstance(batch, (tuple, list))
            output = self.module(**batch) if by_name else self.module(*batch) if several else self.module(batch)
            return loss_fn(output, batch) if loss_fn else output.loss

        self.backward_together(micro_batches, loss_of)
        return self.step()

    def backward_together(self, micro_batches: list, loss_of: Callable[[Any], torch.Tensor],
                          divide: bool = True) -> list[float]:
        """The backward passes of a whole step: adds the gradients of loss_of(micro_batch) of each, divided by how many
        there are unless divide=False, each block fetched once for all of them. step() follows. Returns the losses, as
        numbers.

        loss_of runs the model, in a thread of its own for each micro-batch, one at a time. What it changes is seen, or
        not, as train_batch() says. Random numbers that it draws beside the model come in the order of the turns.
        """
        return self.together.backward(micro_batches, loss_of, divide)

    def save_pretrained(self, directory: str | os.PathLike, dtype: str | None = None,
                        max_shard_size: int | str | None = None,
                        moments: bool = False) -> None:
        """Writes what from_pretrained() loads, else model.safetensors, streamed; of a peft model the adapters. dtype:
        "fp32", "bf16", "fp16", by default the parameters'. moments: also the optimizer's, for wrap(moments_from=) and
        `longshore import`. The directory is whole or not there."""
        recovery.persist(self, lambda: export.save(self, directory, dtype, max_shard_size, moments))

    # ---- what goes with it

    @whole
    def snapshot(self, name: str | None = None, keep: int = 0) -> None:
        """Keeps the committed state under a name (by default after the step): see `longshore snapshot`."""
        self.settle()
        with Progress(f"snapshot {name or 'of the step'}"):
            recovery.persist(self, lambda: self.state.snapshot(name, keep))

    @whole
    def digest(self) -> str:
        """Of the committed state, as `longshore inspect --digest` prints it."""
        self.settle()
        return recovery.persist(self, self.state.digest)

    def memory(self) -> memory.Memory:
        """A Memory: the budget, what is held of it, and what the process takes beside it."""
        self.cycle.open_state("memory")
        return memory.measure(self)

    @whole
    def close(self) -> None:
        """Waits for what is under way, and gives the run free. The parameters are not there any more afterwards."""
        if self.state is None:
            return
        self.together.stop()
        try:
            if not self.gone:
                self.cycle.drop()
                self.cycle.settle()
        finally:
            state, self.state = self.state, None
            self._closed_at = state.path, state.step
            lifecycle.discard(self)
            self.streams.end()
            self.cycle.begin()
            state.close()

    def __del__(self):
        lifecycle.end(self)

    @whole
    def reopen(self, run: str | os.PathLike, snapshot: str | None = None) -> None:
        """Goes on with a run of the same model in place of its own, which is closed: at its last step, or rolled back
        to a snapshot of it, with everything as it was then. BusyError: another engine works on that run, and this one
        stays as it is."""
        checkpoint.reopen(self, run, snapshot)
