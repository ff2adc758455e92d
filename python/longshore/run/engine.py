"""The Engine: runs an ordinary PyTorch training loop on a model whose weights and optimizer state lie on drives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from ..drives import recovery
from ..interrupts import whole
from ..model import hooks, placement
from ..native import lib
from ..progress import Progress
from ..step import commit_blob, param_groups
from ..step.loss_graph import refuse_other
from ..step.step_cycle import Phase, StepResult
from ..step.sum_groups import parts_of
from ..torch_internals import outside_inference_mode, profiled
from . import checkpoint, export, memory, open_engines, report, sleep, weights
from .core import Core
from .engine_surface import Face, with_signature


def _of_core(name):
    """An attribute that a script reads and sets, and that the core has."""
    return property(lambda self: getattr(self._core, name), lambda self, value: setattr(self._core, name, value))


class Engine(Face):
    """Trains a model whose state lies on drives. longshore.wrap() and longshore.resume() return one.

    Call the engine as you call the model; then call backward() and step().

    module: the model. optimizer: its torch.optim.Optimizer, with the parameter groups and the state. accumulate: how
    many backward() calls make a step; 1 by default. reconnect_timeout: how many seconds the engine waits for a lost
    drive of another host; 300 by default."""

    accumulate = _of_core("accumulate")
    lr_scheduler = _of_core("lr_scheduler")
    optimizer = _of_core("optimizer")
    reconnect_timeout = _of_core("reconnect_timeout")

    def __init__(self, model, streams, state, how, groups, plan):
        """The arguments are those of Core."""
        super().__init__()
        self.module = model
        self.__dict__["forward"] = with_signature(self.forward, model.forward)
        self._core = Core(self, model, streams, state, how, groups, plan)

    # ---- forward and backward

    @property
    def device(self) -> torch.device:
        """The device that forward and backward compute on. Batches belong there."""
        return self._core.streams.places.device

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model, with the hooks of its modules. Call the engine itself, which also runs the engine's hooks."""
        try:
            return self.module(*args, **kwargs)
        except BaseException as failure:
            self._core.leave_forward()
            recovery.say_closed(self._core, failure, "forward")
            mixed = placement.explained(failure, self.module, self.device, args, kwargs)
            if mixed is not None:
                raise mixed from failure
            raise

    @property
    def step_number(self) -> int:
        """The number of the last step, durable or not."""
        return self._core.cycle.open_state("step_number").step

    @property
    def fetched_bytes(self) -> int:
        """How many bytes of parameters the engine has fetched from the drives since it opened the run."""
        return self._core.cycle.open_state("fetched_bytes").ledger().link_out_params

    def follow(self, name: str, thing: Any) -> Any:
        """Commits thing.state_dict() with every step, and restores it now if this engine was resumed and has made no
        step since.

        Args:
            name: the name under which the run keeps the state; use the same one when you resume.
            thing: an object with state_dict() and load_state_dict(): a scheduler, or a loader that knows its position.

        Returns: thing.
        """
        if getattr(thing, "state", None) is self.optimizer.state:
            return thing  # an optimizer with this state: the engine commits it anyway
        self._core.followed[name] = thing
        commit_blob.restore_followed(self._core.cycle.position, name, thing)
        commit_blob.restore_groups(self._core.cycle.position, self.optimizer)  # a new scheduler writes into them
        return thing

    def backward(self, loss: torch.Tensor, *, last: bool | None = None, divide: bool = True) -> None:
        """Adds the gradients of a loss to those of the step.

        Args:
            loss: a tensor of one element.
            last: whether step() follows this pass; by default, true for every ``accumulate``-th call. A wrong value
                costs time, and changes no result; under several ranks a pass after the last one changes bits.
            divide: whether to divide the loss by ``accumulate`` first. Under several ranks it is divided by their
                number, too, so that gradients are of the mean, as under DistributedDataParallel.

        Raises: ValueError if the loss is not a tensor of one element; LongshoreError if the engine is closed, or if no
        parameter of the engine is in the loss's graph. After any other exception the engine drops the step's gradients,
        and is as it was after the last step.
        """
        core, cycle = self._core, self._core.cycle
        cycle.open_state("backward")
        refuse_other(loss, core.streams, "engine.backward(loss)")
        parts = (parts_of(self.accumulate) if divide else 1) * core.ranks.size
        try:
            cycle.flush()
            core.leave_forward()
            cycle.expect(cycle.backwards + 1 == self.accumulate if last is None else last)
            cycle.begin_pass()
            value = loss.detach().clone()  # as it is now, on its device
            core.streams.clock.turn()
            with core.streams.inside.differentiating(), core.gradients.own_pass():
                (loss / parts if parts != 1 else loss).backward()
            with whole:
                core.gradients.end_of_backward()
                core.device_memory.after_pass(True)
                cycle.end_pass([value], parts)
                core.state.charges.turn(lib.SHORE_CHARGE_BETWEEN)
        except BaseException as failure:
            with core.undoing(failure):
                core.drop_gradients()
            recovery.say_closed(core, failure, "backward")
            raise

    def drop_gradients(self) -> None:
        """Drops the gradients that backward() has gathered since the last step. The next step() needs a backward()."""
        self._core.drop_gradients()

    # ---- the step

    @whole
    def step(self) -> StepResult:
        """Updates the parameters with the gradients that backward() has gathered.

        The drives commit the step while the loop goes on. It is durable at the latest when the next step is made, or
        when settle(), snapshot(), digest() or close() returns.

        Returns: a StepResult.

        Raises: LongshoreError if no backward pass has run since the last step; NotFiniteError if a gradient is not
        finite (with on_nonfinite="skip" the step counts instead, and the state stays as it was).
        """
        core = self._core
        charges = core.cycle.open_state("step").charges
        hooks.before_step(core.streams, "engine.step")
        self.optimizer.group_of = param_groups.read(self.optimizer)
        core.leave_forward()
        try:
            charges.turn(lib.SHORE_CHARGE_UPDATE)
            with profiled("update"):
                while (result := recovery.persist(core, core.cycle.make)) is None:
                    pass
            charges.turn(lib.SHORE_CHARGE_BETWEEN)
            return result
        except BaseException as failure:
            with core.undoing(failure):
                if core.cycle.phase is not Phase.MADE:
                    core.leave_forward()
                    core.cycle.discard()
                    core.streams.hide_unused()
            raise

    @whole
    def grad_norm(self) -> float:
        """Returns the norm, before clipping, of all gradients that backward() has gathered: the one that step() will
        return."""
        clipping, _ = recovery.persist(self._core, self._core.cycle.decide)
        return clipping.norm

    def flush(self) -> None:
        """Begins to commit the last step. You need not call it: the next use of the engine does. Until then you can
        step a scheduler, whose state then commits with that step."""
        self._core.cycle.flush()

    def settle(self) -> None:
        """Waits until the last step is durable.

        Raises: NotFiniteError if the update made a parameter that is not finite. If the step cannot be committed, the
        engine is at the step before it.
        """
        self._core.cycle.settle()

    def train_batch(
        self, micro_batches: Iterable, loss_fn: Callable[[Any, Any], torch.Tensor] | None = None
    ) -> StepResult:
        """Makes one step with the mean loss of several micro-batches, fetching each block once for all of them. Under
        several ranks, all call it, each with its own micro-batches, which may be none; the mean is over all of them.

        The result has the same bits as backward() for each micro-batch, then step(). All micro-batches go through a
        layer before the next layer begins, so memory holds the activations of all of them.

        Longshore sees what a pass changes in modules (attributes, tensors in place, adapters, hooks, requires_grad,
        train and eval) and in globals and closures of the model's code. It then computes the micro-batches one after
        the other, or raises LongshoreError if others have begun with the old value. It does not see what loss_fn keeps.

        Args:
            micro_batches: dicts (keyword arguments of the model), tuples or lists (positional ones), or single
                arguments.
            loss_fn: computes the loss as loss_fn(output, micro_batch); by default output.loss.

        Returns: a StepResult.

        Raises: ValueError if there is no micro-batch, or a loss is not a tensor of one element; LongshoreError if
        backward() has begun a step, or if no parameter of the engine is in the graph of a loss; and what step() raises.
        """
        hooks.before_step(self._core.streams, "engine.train_batch")
        micro_batches = list(micro_batches)

        def loss_of(batch):
            by_name, several = isinstance(batch, Mapping), isinstance(batch, (tuple, list))
            output = self(**batch) if by_name else self(*batch) if several else self(batch)
            return loss_fn(output, batch) if loss_fn else output.loss

        self.backward_together(micro_batches, loss_of)
        return self.step()

    def backward_together(
        self, micro_batches: list, loss_of: Callable[[Any], torch.Tensor], divide: bool = True
    ) -> list[float]:
        """Runs the backward passes of a whole step, fetching each block once for all micro-batches. Call step() next.

        Args:
            micro_batches: one argument of loss_of each.
            loss_of: runs the model on a micro-batch and returns its loss. It runs in a thread of its own for each
                micro-batch, one thread at a time. train_batch() says which of its changes Longshore sees. Random
                numbers that it draws outside of the model come in the order of these turns.
            divide: whether to divide each loss by the number of micro-batches.

        Returns: the losses, as numbers.

        Raises: LongshoreError if backward() has begun a step, or as train_batch() says.
        """
        return self._core.together.backward(micro_batches, loss_of, divide)

    def save_pretrained(
        self,
        directory: str | os.PathLike,
        dtype: str | None = None,
        max_shard_size: int | str | None = None,
        moments: bool = False,
        overwrite: bool = False,
        **others: Any,
    ) -> None:
        """Writes the model, streamed, into a directory that is complete or absent afterwards.

        It writes what from_pretrained() loads; for a peft model, the adapters; for any other model, model.safetensors.

        Args:
            directory: where to write.
            dtype: "fp32", "bf16" or "fp16"; by default that of the parameters.
            max_shard_size: the largest size of a file, such as "5GB".
            moments: whether to write the optimizer's moments too, for wrap(moments_from=) and `longshore import`.
            overwrite: whether to replace weights, and moments of them, that the directory holds already.

        Raises: ExistsError if the directory holds weights already; ValueError for an unknown dtype, or an option that
        this kind of model cannot have.
        """
        if others:
            raise TypeError(
                f"engine.save_pretrained: takes no {next(iter(others))}=; engine.module.save_pretrained() "
                "takes what transformers' takes"
            )
        core = self._core
        recovery.persist(
            core, lambda: export.save(core, directory, dtype, max_shard_size, moments, overwrite=overwrite)
        )

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Uploads the model to the Hub, as its own push_to_hub() does, with the files of save_pretrained()."""
        with export.streamed(self._core):
            return self._core.state.by_rank_0("engine.push_to_hub()", lambda: self.module.push_to_hub(*args, **kwargs))

    def weights(self, dtype: str | torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields (name, tensor) of the last step, with the names and the order of state_dict(), for a sampler.

        Tied tensors come once, under their first name. Each tensor lies on the host in memory of its own. It is read
        when it is asked for, also while the engine sleeps.

        Args:
            dtype: "fp32", "bf16", "fp16" or a dtype of PyTorch, for all floating-point tensors, as save_pretrained()
                rounds them; by default each has its own dtype and the value of state_dict().

        Raises: ValueError for another dtype; LongshoreError if the engine has made a step since, or is closed.
        """
        return weights.weights(self._core, dtype)

    # ---- what goes with it

    @whole
    def snapshot(self, name: str | None = None, keep: int = 0) -> None:
        """Keeps the committed state under a name, as `longshore snapshot` does.

        Args:
            name: of the snapshot; by default the step's, such as step-000100.
            keep: how many snapshots named after steps stay, the newest ones; 0: all.

        Raises: ExistsError if there is a snapshot of this name.
        """
        self.settle()
        with Progress(f"snapshot {name or 'of the step'}"):
            recovery.persist(self._core, lambda: self._core.state.snapshot(name, keep))

    @whole
    def digest(self) -> str:
        """Returns the digest of the committed state, as `longshore inspect --digest` prints it."""
        self.settle()
        return recovery.persist(self._core, self._core.state.digest)

    def memory(self) -> memory.Memory:
        """Returns a Memory: the budget, how much of it is in use, and what the process takes beside it."""
        self._core.cycle.open_state("memory")
        return memory.measure(self._core)

    def report(self, *others: str | os.PathLike, tbw: int | str | None = None) -> report.Report:
        """Returns the page that `longshore report` writes of this run: loss, throughput, where a step's time goes,
        memory, bytes and wear, plan against truth, what to buy. A notebook shows it.

        The last step is on it once it is committed: settle() before waits for that. It works after close(), too.

        Args:
            others: directories of other runs, to compare with.
            tbw: bytes that a drive may write in its life, such as "600TB", to say how many days that is.

        Returns: a Report; its save(path) writes the page.
        """
        core = self._core
        run = core.state.path if core.state is not None else (core.closed_at or [""])[0]
        return report.report([run, *others], tbw)

    @whole
    @outside_inference_mode
    def sleep(self) -> None:
        """Settles, and gives memory of the device, pinned memory and slots back, for a sampler or another engine.

        The model's buffers go to the host. The run stays open, with the buffers of its drives. Step a scheduler
        before: its state commits with the last step, as with settle(). A sleeping engine can
        be woken, closed and asked for weights(), or to save_pretrained(); everything else raises LongshoreError.

        Raises: LongshoreError between backward() and step(), within a pass, or while resident() holds parameters.
        """
        sleep.sleep(self._core)

    @whole
    @outside_inference_mode
    def wake(self) -> None:
        """Takes the memory again that sleep() gave back. Training goes on with the same bits.

        Raises: LongshoreError if there is too little memory; the engine then still sleeps.
        """
        sleep.wake(self._core)

    @whole
    def close(self) -> None:
        """Waits for requests under way, and releases the run. The parameters cannot be used afterwards."""
        core = self._core
        if core.state is None:
            return
        core.together.stop()
        core.outlook.ended()
        try:
            if not core.gone and core.streams.asleep is None:
                core.cycle.drop()
                core.cycle.settle()
        finally:
            open_engines.discard(self)
            core.let_go()

    def __del__(self):
        if "_core" in self.__dict__:
            open_engines.end(self)

    @whole
    @outside_inference_mode
    def reopen(self, run: str | os.PathLike, snapshot: str | None = None) -> None:
        """Closes the engine's run, and continues another run of the same model, with everything as it was then.

        Args:
            run: the run's directory.
            snapshot: rolls the run back to this snapshot; by default the run continues from its last step.

        Raises: BusyError if another engine works on that run; this engine then stays as it is.
        """
        checkpoint.reopen(self, run, snapshot)
