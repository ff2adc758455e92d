"""DeepSpeedEngine: DeepSpeed's engine on a Longshore run, with forward, backward(), step() and checkpoints."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..drives.state import remove
from ..errors import ExistsError, LongshoreError, MissingError
from ..integrations.deepspeed_config import logger, say_once
from ..integrations.deepspeed_counters import Counters, counter
from ..integrations.deepspeed_hooks import Divide, ParameterOffload, cast_inputs, is_half
from ..integrations.deepspeed_resume import latest, say_weights, say_what_stays
from ..model.compiled import compile_blocks
from ..run import checkpoint, weights_files
from ..run.engine_surface import core_of
from ..step.optimizer_table import OPTIMIZERS
from ..torch_internals import parse_to
from . import comm
from .comm import always
from .whole_weights import WholeWeights
from .zero import ZeroParamStatus


def _checkpoint_in(load_dir, tag):
    """The directory of the checkpoint that load_checkpoint() loads; None, and a warning, if there is none."""
    tag = latest(load_dir) if tag is None else tag
    directory = None if tag is None else os.path.join(load_dir, str(tag))
    if directory is None or not os.path.isdir(directory):
        why = f"{load_dir}: has no file `latest`" if directory is None else f"{directory}: does not exist"
        logger.warning(f"{why}, so no checkpoint is loaded")
        return None
    if not os.path.exists(os.path.join(directory, checkpoint.FILE)):
        raise MissingError(
            f"{directory}: is not a checkpoint of Longshore; DeepSpeed's zero_to_fp32.py turns its own into weights"
        )
    return directory


def _setting(name):
    """A method of DeepSpeedEngine that returns a value of its configuration."""
    return lambda self: getattr(self.settings, name)


class DeepSpeedEngine(WholeWeights, nn.Module):
    """The engine that initialize() returns: call it, then backward() and step().

    ``engine`` is the longshore.Engine, ``module`` the model. DeepSpeed's methods that return a value of the
    configuration, such as gradient_accumulation_steps(), are here, too.
    """

    def __init__(self, engine, settings, config, monitor, *, undecided=False, fresh=False, trains=True):
        """engine: the longshore.Engine. fresh: this job made the run. undecided: the run existed before, and the script
        has not yet said whether to continue it."""
        super().__init__()
        self.module, self.engine, self.settings, self.config = engine.module, engine, settings, config
        self._core = core_of(engine)
        self._core.accumulate = settings.accumulate
        offload = engine.optimizer.parameter_offload = ParameterOffload(engine.module)
        self._trains = trains
        # without an optimizer, stage 3 has the offload here, as in DeepSpeed; TRL asks for it
        self.optimizer: Any = engine.optimizer if trains else offload if settings.stage == 3 else None
        self.counters = engine.follow("deepspeed", Counters())
        self.training_dataloader = None
        # modules whose gradients go to other processes as sparse tensors: none
        self.sparse_tensor_module_names = set()
        self.device = engine.device
        self.local_rank, self.global_rank = comm.get_local_rank(), comm.get_rank()
        self.world_size, self.mp_world_size = comm.get_world_size(), 1
        self.dp_world_size = self.world_size
        self.monitor = monitor
        self._undecided, self._fresh = undecided, fresh
        self._boundary = None
        self._micro_batches = 0  # of the present step so far
        self._steps_scheduler = engine.lr_scheduler is not None
        if isinstance(engine.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            say_once(
                "lr_scheduler: ReduceLROnPlateau needs a metric: give it to step() as lr_kwargs, or step the "
                "scheduler in the script"
            )
            self._steps_scheduler = False
        self._norm = None
        self._applied = False  # whether the last step() changed the parameters
        self._said_memory = False
        self._seconds = {"forward": 0.0, "backward": 0.0, "step": 0.0}
        optimizer = engine.optimizer
        optimizer.overflow, optimizer.loss_scale, optimizer.cur_scale = False, 1.0, 1.0
        if settings.casts or settings.casts_all:
            cast = functools.partial(cast_inputs, torch.is_floating_point if settings.casts_all else is_half)
            engine.module.register_forward_pre_hook(cast, with_kwargs=True, prepend=True)
        # DeepSpeed's optimizers take the norm of their groups only; without one, it is the whole model's
        if settings.stage or settings.dtype != "fp32":
            self._core.gradients.drop_of(
                [p for p in engine.module.parameters() if p.requires_grad and id(p) not in engine.optimizer.group_of]
            )
        divide = Divide(self)
        for p in engine.module.parameters():
            if p.requires_grad:
                p.register_hook(divide)
            p.ds_active_sub_modules, p.ds_status = set(), ZeroParamStatus.NOT_AVAILABLE

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("module", "counters") or name.startswith("__"):
                raise
        try:
            return getattr(self.module, name)
        except AttributeError:
            what = f"neither the engine nor its model, a {type(self.module).__name__}, has {name}"
            raise AttributeError(f"DeepSpeedEngine: {what}", name=name) from None

    global_steps, global_samples = counter("global_steps"), counter("global_samples")
    micro_steps, skipped_steps = counter("micro_steps"), counter("skipped_steps")

    @property
    def lr_scheduler(self) -> Any:
        return self.engine.lr_scheduler

    # ---- a step

    def _decide(self):
        """Raises ExistsError if the run existed before and the script has not said whether to continue it."""
        if self._undecided:
            raise ExistsError(
                f"{self._core.state.path}: holds a run already, of step {self.engine.step_number}: load_checkpoint() "
                "continues from one of its "
                'checkpoints, "longshore": {"resume": true} from its last step, and "overwrite": true begins anew'
            )

    @contextlib.contextmanager
    def _timed(self, what):
        began = time.perf_counter()
        yield
        self._seconds[what] += time.perf_counter() - began

    @contextlib.contextmanager
    def _or_anew(self):
        """If forward, backward or step fails, its gradients are dropped, so the next step begins from zero."""
        try:
            yield
        except BaseException:
            self._micro_batches = 0
            raise

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model's forward."""
        self._decide()
        with self._timed("forward"):
            return self.engine.forward(*args, **kwargs)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Adds a loss's gradients, divided by gradient_accumulation_steps unless scale_wrt_gas=False. Returns the loss,
        divided alike."""
        self._decide()
        if retain_graph:
            raise LongshoreError(
                "backward: retain_graph=True is not supported: add the losses, and call backward() once"
            )
        parts = self.settings.accumulate if scale_wrt_gas else 1
        loss = loss / parts if parts != 1 else loss
        with self._timed("backward"), self._or_anew():
            last = self.settings.managed and self.is_gradient_accumulation_boundary()
            self.engine.backward(loss, last=last, divide=False)
        return loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss unchanged, for a script that calls loss.backward() itself: Longshore needs no scale."""
        return loss

    def backward_together(self, micro_batches: list, loss_of: Callable, divide: bool = True) -> list[float]:
        """As longshore.Engine.backward_together(). Call step_together() next."""
        self._decide()
        with self._timed("backward"), self._or_anew():
            return self.engine.backward_together(micro_batches, loss_of, divide)

    def step_together(self) -> None:
        """Makes the step after backward_together()."""
        self._make_step(self.engine.step)

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the present micro-batch is the last of its step."""
        if self._boundary is not None:
            return self._boundary
        return self._micro_batches + 1 >= self.settings.accumulate

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Sets whether the present micro-batch is the last of its step. None leaves it to the configuration."""
        if not self.settings.managed:
            raise LongshoreError(
                "set_gradient_accumulation_boundary: managed_gradient_accumulation is false: step() is the boundary"
            )
        self._boundary = is_boundary

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward() adds gradients and step() does nothing yet."""
        before, self._boundary = self._boundary, False
        try:
            yield
        finally:
            self._boundary = before

    def step(self, lr_kwargs: dict | None = None) -> None:
        """Call it after each backward(); every gradient_accumulation_steps-th call makes the step. With
        managed_gradient_accumulation: false, call it only after the last backward(). lr_kwargs: passed to the
        scheduler's step()."""
        self._decide()
        if not self._trains:
            raise LongshoreError("step: initialize() was given no optimizer, and the configuration has none")
        boundary = not self.settings.managed or self.is_gradient_accumulation_boundary()
        self._applied = False
        self.counters.micro_steps += 1
        self._micro_batches += 1
        if not boundary:
            return
        if 0 < self._core.cycle.backwards < self._micro_batches:
            say_once(
                "zero_grad() between the micro-batches of a step drops the gradients of the earlier ones: call it "
                "after the step, if at all"
            )
        self._make_step(self.engine.step, lr_kwargs)

    def _make_step(self, step, lr_kwargs=None):
        parts = self.settings.accumulate if self.settings.managed else self._core.cycle.backwards
        with self._timed("step"), self._or_anew():
            result = step()
        self._micro_batches = 0
        counters = self.counters
        counters.global_steps += 1
        counters.global_samples += self.settings.micro_batch * parts * self.world_size
        counters.skipped_steps += result.skipped
        self._applied = not result.skipped
        if result.skipped:
            logger.warning(f"step {counters.global_steps}: is skipped: its gradients are not finite")
        elif self._steps_scheduler or lr_kwargs:
            self.lr_scheduler.step(**(lr_kwargs or {}))
        self._norm, self.optimizer.overflow = result.grad_norm, result.skipped
        self._report(result.loss)
        return result

    def train_batch(self, data_iter: Iterable, loss_fn: Callable | None = None) -> torch.Tensor:
        """Makes a step of gradient_accumulation_steps micro-batches from an iterator or list. Fetches each layer once
        for all of them. loss_fn(output, micro_batch): default output.loss. Returns their mean loss."""
        self._decide()
        iterator = iter(data_iter)
        batches = [next(iterator) for _ in range(self.settings.accumulate)]
        self.train()
        loss = self._make_step(lambda: self.engine.train_batch(batches, loss_fn)).loss
        self.counters.micro_steps += len(batches)
        return torch.tensor(loss)

    def _report(self, loss):
        steps, every = self.counters.global_steps, self.settings.steps_per_print
        if self.settings.monitors:
            values = [("Train/Samples/train_loss", loss), ("Train/Samples/lr", self.get_lr()[0])]
            self.monitor.write(values, self.counters.global_samples)
        if every and every != float("inf") and steps % every == 0:
            times = [f", {k} {1000 * v / every:.0f} ms" for k, v in self._seconds.items() if self.settings.breakdown]
            logger.info(
                f"step={steps}, skipped={self.counters.skipped_steps}, loss={loss:.6g}, lr={self.get_lr()}, "
                f"mom={self.get_mom()}, norm={self._norm:.6g}" + "".join(times)
            )
            if not self._said_memory:
                self._said_memory = True
                logger.info(str(self.engine.memory()))
            self._seconds = dict.fromkeys(self._seconds, 0.0)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step."""
        self.engine.drop_gradients()

    def get_global_grad_norm(self) -> float | None:
        """The last step's gradient norm before clipping; None before the first step."""
        return self._norm

    def was_step_applied(self) -> bool:
        """Whether the last step() changed the parameters: False for calls that only accumulate, and for a skipped
        step."""
        return self._applied

    # ---- checkpoints

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike,
        tag: str | None = None,
        client_state: dict | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Takes a snapshot of the run. Writes save_dir/tag, which names it, and save_dir/latest, which names tag
        (default: global_step<N>)."""
        self._decide()
        tag = f"global_step{self.counters.global_steps}" if tag is None else str(tag)
        counters = self.counters.state_dict()
        if self._micro_batches:
            say_once("save_checkpoint() between the micro-batches of a step: loading it begins with a whole step")
            counters["micro_steps"] -= self._micro_batches
        checkpoint.save(
            self.engine, os.path.join(save_dir, tag), {"client_state": client_state or {}, "counters": counters}
        )
        if save_latest and self.global_rank == 0:
            weights_files.write(os.path.join(save_dir, "latest"), tag)
        if self.global_rank == 0:
            say_weights(self.engine, save_dir, tag)
        return True

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: None = None,
    ) -> tuple:
        """Continues from a checkpoint with the same bits: in the checkpoint's run, or in this engine's own if another
        engine uses that one. load_optimizer_states=False keeps this engine's moments; load_module_only=True also its
        counters and scheduler; both commit a step of its own run. Returns (directory, client_state), or (None, None)
        if there is no checkpoint."""
        if custom_load_fn is not None:
            raise LongshoreError(
                "load_checkpoint: custom_load_fn is not supported: a checkpoint has no state_dict for it"
            )
        whole = load_optimizer_states and not load_module_only
        if not whole:
            self._decide()
        directory = _checkpoint_in(load_dir, tag)
        if directory is None:
            return None, None
        scheduled = self.lr_scheduler is not None
        scheduler = self.lr_scheduler.state_dict() if scheduled and not load_lr_scheduler_states else None
        before = self._core.state.path
        unused = self._fresh and self.engine.step_number == 0
        followed = [] if load_module_only else ["deepspeed", *(["lr_scheduler"] if scheduled else [])]
        extra = checkpoint.load(
            self.engine, directory, weights_only=not whole, followed=followed, any_optimizer=not self._trains
        )
        self._micro_batches = 0
        if load_module_only:
            return directory, extra["client_state"]
        if unused and self._core.state.path != before:
            remove(before)
        if whole:
            say_what_stays(self.engine, self.settings)
        self._undecided = self._fresh = False
        self.counters.load_state_dict(extra["counters"])
        if scheduler is not None:
            self.lr_scheduler.load_state_dict(scheduler)
        return directory, extra["client_state"]

    def save_pretrained(
        self, directory: str | os.PathLike, dtype: str | None = None, max_shard_size: int | str | None = None
    ) -> None:
        """Streams the model into safetensors files: longshore.Engine.save_pretrained()."""
        self.engine.save_pretrained(directory, dtype, max_shard_size)

    # ---- settings

    def get_lr(self) -> list[float]:
        return [float(g["lr"]) for g in self.engine.optimizer.param_groups]

    def get_mom(self) -> list:
        """The betas, or SGD's momentum, of each group."""
        key = "momentum" if OPTIMIZERS[self._core.how["optimizer"]].takes_momentum else "betas"
        return [g.get(key, 0.0) for g in self.engine.optimizer.param_groups]

    def train_batch_size(self) -> int:
        return self.settings.micro_batch * self.settings.accumulate * self.world_size

    def get_batch_info(self) -> tuple[int, int, int]:
        return self.train_batch_size(), self.settings.micro_batch, self.settings.accumulate

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Changes gradient_accumulation_steps from the next step on. Call it only after a whole step."""
        if self._micro_batches:
            why = "the gradients of this step are divided by the old number"
            raise LongshoreError(f"set_train_batch_size: call it after a whole step: {why}")
        micro = self.settings.micro_batch * self.world_size
        if train_batch_size % micro:
            raise ValueError(
                f"set_train_batch_size: {train_batch_size} is not a multiple of the ranks' micro-batches, {micro}"
            )
        self.settings.accumulate = self._core.accumulate = train_batch_size // micro

    def zero_optimization_partition_weights(self) -> bool:
        return self.settings.stage == 3

    def bfloat16_enabled(self) -> bool:
        return self.settings.dtype == "bf16"

    train_micro_batch_size_per_gpu, gradient_accumulation_steps = _setting("micro_batch"), _setting("accumulate")
    managed_gradient_accumulation, gradient_clipping = _setting("managed"), _setting("clip")
    steps_per_print, wall_clock_breakdown = _setting("steps_per_print"), _setting("breakdown")
    zero_optimization_stage, zero_gather_16bit_weights_on_model_save = _setting("stage"), _setting("gathers")
    zero_optimization, loss_scale = always(True), always(1.0)
    fp16_enabled = dynamic_loss_scale = always(False)

    # ---- the rest

    def to(self, *args: Any, **kwargs: Any) -> DeepSpeedEngine:
        """Returns the engine itself. Raises LongshoreError for another dtype than the configuration's."""
        device, dtype = parse_to(*args, **kwargs)
        if dtype is not None and dtype != self._core.streams.compute:
            self._apply(None)
        return self

    def _apply(self, fn, recurse=True):
        raise LongshoreError(
            "the parameters lie on drives in the dtype that the configuration gives: set bf16.enabled there"
        )

    def half(self) -> DeepSpeedEngine:
        return self.to(torch.float16)

    def bfloat16(self) -> DeepSpeedEngine:
        return self.to(torch.bfloat16)

    def float(self) -> DeepSpeedEngine:
        return self.to(torch.float32)

    def compile(
        self, backend: str = "inductor", compile_kwargs: dict | None = None, schedule: None = None, **kwargs: Any
    ) -> None:
        """Compiles each layer with torch.compile, or the whole model if it has no repeated layers."""
        layers = [name for name in self._core.how["layers"] if name]
        if layers:
            how = {"backend": backend, **(compile_kwargs or {})}
            self._core.streams.progress.compiles(compile_blocks(self.module, layers, how))
        else:
            self.module.compile(backend=backend, **(compile_kwargs or {}))

    def empty_partition_cache(self) -> None:
        """Does nothing: Longshore evicts parameters by itself."""

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the state is always on drives."""
        say_once("offload_states(): the state is always on drives")

    reload_states = offload_states

    def destroy(self) -> None:
        """Closes the run."""
        self.monitor.close()
        self._core.streams.why = (
            "the engine is closed, for example by a second train() of its Trainer; call "
            "save_model(DIR) before, and give the next Trainer from_pretrained(DIR); "
            "longshore.resume() opens the run again"
        )
        self.engine.close()
