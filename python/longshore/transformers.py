"""transformers' Trainer on a Longshore run. Change one import: `from longshore.transformers import Trainer`.

The model's weights and the optimizer's state lie on drives, as TrainingArguments' run, drives and memory say.
Checkpoints are snapshots of the run. The micro-batches of a step go through each layer together. Everything else is as
in transformers.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import send_to_device
from transformers.trainer_utils import HubStrategy

from . import progress
from .errors import LongshoreError
from .integrations import hub, trainer_steps
from .integrations.trainer_position import TrainerPosition
from .model import adapters, blocks, placement, precision
from .ranks.launch import ranks
from .run import checkpoint, init, retrain
from .run.engine_surface import core_of, refuse_engine
from .run.options import ARGUMENTS, DTYPE_OF, NAME_OF, OF_START, refuse_rank_timeout, that_stay
from .run.resume import resume
from .run.wrap import wrap
from .step import trusted_code
from .step.optimizer_table import OPTIMIZERS, without_state
from .step.optimizers import arguments_of, rebind, refuse_other_groups, share

_log = logging.getLogger("longshore")
_OPTIMIZERS = {name: kind for known in OPTIMIZERS.values() for name, kind in known.optims.items()}

_WEIGHTS = """TrainingArguments(checkpoint_weights=True) writes them into each later checkpoint, beside the snapshot;
save_only_model=True writes them instead of it. trainer.save_model(DIR) writes the present step's weights."""


def _option(text: str, default: Any = None) -> Any:
    """An argument of TrainingArguments with its help. Without a default, wrap() decides."""
    return field(default=default, metadata={"help": text})


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    """transformers' TrainingArguments with Longshore's options.

    Example::

        TrainingArguments(output_dir="out", run="runs/a", drives=["/mnt/nvme0", "/mnt/nvme1"], memory="8GiB")

    With bf16=True, forward and backward run in bfloat16, and masters are fp32. The Trainer also takes transformers' own
    TrainingArguments, and then uses the defaults here.

    Args:
        run: Directory of the run. Default: output_dir/run.
        drives: Directories, files, block devices, ``opencl:PATH`` or ``ssh://HOST/PATH``. Default: the run's directory.
        memory: Most bytes that Longshore holds, such as "8GiB". Default: half of the machine's memory.
        memory_of: "process" makes memory a promise about the whole process, as longshore.wrap() says.
        max_writes_per_day: As longshore.wrap() takes it, such as "2TB".
        gpu_memory, pinned_memory: As longshore.wrap() takes them. The device is transformers' own: the first
            accelerator, or with use_cpu=True the CPU.
        storage, activations, activation_room, compress, compress_after, moments_from, sum_groups, fused_loss,
            rank_timeout, trace: As longshore.wrap() takes them.
        overwrite_run: True replaces an existing run.
        layer_major: True fetches each layer once for all micro-batches of a step; False computes them one after the
            other. Default: True if only transformers' own code runs between micro-batches.
        checkpoint_weights: True writes model.safetensors into each checkpoint, beside its snapshot.
    """

    run: str = _option("directory of the run; by default OUTPUT_DIR/run")
    drives: list[str] = _option("directories, files, block devices, ssh://HOST/PATH; by default the run's directory")
    memory: str = _option("what Longshore may hold, as 8GiB; by default half of the machine's")
    memory_of: str = _option("engine or process: what memory is a promise about")
    gpu_memory: str = _option("what the run may take on the accelerator, as 20GiB; by default what is useful")
    pinned_memory: str = _option("the part of memory that may be pinned, as 4GiB; by default what can be had")
    max_writes_per_day: str = _option("what the drives may write in a day, together (2TB) or each (2TB,1TB)")
    storage: str = _option("bf16 or fp32: dtype on the drives that is fetched; by default the parameters' dtype")
    activations: str = _option("memory, host, drives or auto: where activations wait for backward")
    activation_room: str = _option("on the drives for activations, as 64GiB")
    compress: str = _option("such as top1%%: the share of each block's gradients that is sent to the drives")
    compress_after: int = _option("steps with whole gradients before compress")
    sum_groups: int = _option("in how many groups a step's gradients are added; by default 1, or the number of ranks")
    fused_loss: bool = _option("compute the loss of logits in slices of tokens, so that whole logits never exist")
    moments_from: str = _option("directory of save_pretrained(moments=True) with whose moments the optimizer goes on")
    rank_timeout: float = _option("seconds that one rank waits for another; by default the process group's timeout")
    trace: int = _option("how many of the last steps 'longshore trace' can show; by default none")
    overwrite_run: bool = _option("replace an existing run", False)
    layer_major: bool = _option(
        "fetch each layer once for all micro-batches of a step; by default if only transformers' own code runs between"
    )
    checkpoint_weights: bool = _option("write model.safetensors into each checkpoint, beside its snapshot", False)

    read_by_longshore = False  # whether a Trainer of this module has them

    def __post_init__(self):
        self.computes_in_bf16 = bool(getattr(self, "bf16", False))
        if self.fp16:
            raise LongshoreError("fp16: is not supported: use bf16=True, whose range needs no loss scale")
        if self.deepspeed:
            raise LongshoreError(
                "deepspeed: longshore.transformers needs none; `python -m longshore.deepspeed` runs transformers' own "
                "Trainer with it"
            )
        self.bf16 = False  # the model itself becomes bfloat16, without autocast
        refuse_rank_timeout("TrainingArguments", self.rank_timeout)
        # before Accelerate, whose process group may find addresses of ended ranks, and which sees no ranks on CPUs else
        if ranks(self.rank_timeout or self.ddp_timeout).size > 1 and placement.usable_accelerator() is None:
            self.use_cpu = True
        super().__post_init__()

    @property
    def place_model_on_device(self) -> bool:
        """Always False: the engine holds the parameters."""
        return False

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """As transformers'. Every Trainer asks for it before it trains.

        Raises: LongshoreError in transformers' own Trainer, which reads none of Longshore's options.
        """
        if not self.read_by_longshore:
            raise LongshoreError(
                "TrainingArguments: they are longshore.transformers', and transformers' own Trainer would read neither "
                "run= nor memory= nor bf16= from them: import both, Trainer and TrainingArguments, from the same module"
            )
        return super().get_warmup_steps(num_training_steps)


class Trainer(transformers.Trainer):
    """transformers.Trainer whose model lies on drives from train() on. ``engine`` is the longshore.Engine."""

    def __init__(self, *args, **kwargs):
        self.engine: Any = None
        self._clips_to, self._resumes, self._saves_weights = 0.0, False, True
        instead = (
            "give the model itself: the Trainer wraps it (TrainingArguments(run=, drives=, memory=)), or continues "
        )
        model = kwargs.get("model", args[0] if args else None)
        refuse_engine(model, "Trainer", f"{instead}its run (train(resume_from_checkpoint=))")
        super().__init__(*args, **kwargs)
        self.args.read_by_longshore = True
        if self.args.world_size != ranks().size:
            raise LongshoreError(
                f"Trainer: there are {ranks().size} ranks, and Accelerate has found {self.args.world_size}, so that "
                "each would take the batches of all: give TrainingArguments(use_cpu=True) if they compute on CPUs"
            )
        self.args._n_gpu = min(self.args.n_gpu, 1)  # noqa: SLF001 - transformers would copy the model to all of them
        # the engine holds parameters, gradients and the optimizer's state, so Accelerate must not move or clip them
        prepare = self.accelerator.prepare_optimizer
        self.accelerator.prepare_model = lambda model, *args, **kwargs: model
        self.accelerator.prepare_optimizer = lambda optimizer, *args, **kwargs: prepare(optimizer, False)
        self.accelerator.clip_grad_norm_ = self._clip
        self.accelerator.backward = self._backward
        self.longshore_position = TrainerPosition(self)
        self.callback_handler.callbacks.insert(0, self.longshore_position)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> transformers.trainer_utils.TrainOutput:
        """Trains as transformers' train() does.

        resume_from_checkpoint=True continues from the run's last step, or from the last checkpoint if that is of a
        later step. A path continues from that checkpoint. Either way, the bits are those of an uninterrupted training.
        """
        self._resumes = bool(resume_from_checkpoint)
        self.args.read_by_longshore = True  # also those that a script has given since
        position = self.longshore_position
        if resume_from_checkpoint is True:
            resume_from_checkpoint = position.take_over(self._place(init.of(self.model)), self.engine)
        with position.checkpoint() if position.saved else contextlib.nullcontext(resume_from_checkpoint) as checkpoint:
            return super().train(checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """transformers' own. It draws what an uninterrupted training would draw."""
        return self.longshore_position.collates(super().get_train_dataloader())

    # ---- moving the model to the drives

    def _place(self, made_in):
        """The run's directory."""
        run = getattr(self.args, "run", None)
        if run is not None:
            return run
        return os.path.join(self.args.output_dir, "run") if made_in is None else made_in.run

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: transformers.TrainingArguments, model: torch.nn.Module | None = None
    ) -> tuple:
        """The optimizer's class and arguments as transformers gives them, for optimizers that the engine supports.

        Names of other libraries' optimizers, such as adamw_8bit, work without those libraries.
        """
        name = str(getattr(args.optim, "value", args.optim))
        if name not in _OPTIMIZERS:
            raise LongshoreError(f"optim: {name} is not supported; use one of {', '.join(_OPTIMIZERS)}")
        if getattr(args, "optim_target_modules", None):
            raise LongshoreError(
                "optim_target_modules: is for GaLore and similar optimizers, which are not supported; take it out"
            )
        kind = _OPTIMIZERS[name]
        if kind is None:
            kind, kwargs = transformers.Trainer.get_optimizer_cls_and_kwargs(args, model)
        else:
            kwargs = {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
        for key in [word.partition("=")[0].strip() for word in (args.optim_args or "").split(",") if word.strip()]:
            if key not in kwargs:
                raise LongshoreError(
                    f"optim_args: {key} has no effect with optim={name}; take it out, or give "
                    "optimizer_cls_and_kwargs=(torch.optim.SGD, {...}) to the Trainer"
                )
        return without_state(kind), kwargs

    def _wrap_model(self, model, training=True, *args, **kwargs):
        """Moves the model to the drives here, because transformers has the optimizer by now, whoever made it."""
        if self.engine is None and not training:
            self._cast(init.of(self.model), {})  # evaluate() before train()
        if training and (self.engine is None or _bare(self.optimizer) is not self.engine.optimizer):
            self._put_on_drives(_bare(self.optimizer))
        return super()._wrap_model(model, training, *args, **kwargs)

    def _put_on_drives(self, given):
        """Resumes the run, makes it, or makes another one for a model that an engine has already trained."""
        args = self.args
        # wrap() decides the options that are left out
        said = {option: value for option in ARGUMENTS if (value := getattr(args, option, None)) is not None}
        made_in = init.of(self.model)
        run, place = said.pop("run", None), self._place(made_in)
        if made_in is None:
            run = place
        resumes = self._resumes and os.path.exists(os.path.join(place, "run.json"))
        other = self._cast(made_in, checkpoint.made_with(place) if resumes else {})
        if resumes:
            asked = arguments_of(given)[0]
            checkpoint.same_optimizer(place, asked["optimizer"])
            budgets: dict = {key: said.get(key) for key in OF_START}
            engine = resume(place, self.model, device=args.device, trace=said.get("trace", 0), **budgets)
            try:
                refuse_other_groups(given, engine.optimizer, place)
            except LongshoreError:
                engine.close()
                raise
            other += that_stay(core_of(engine).state, {**said, "moments": asked.get("moments", "fp32")})
            if other:
                _log.warning("%s: continues as it was made: %s", place, "; ".join(other))
            core_of(engine).change(clip=args.max_grad_norm or 0.0)
            share(given, engine.optimizer)
        else:
            overwrite = True if getattr(args, "overwrite_run", False) else None
            engine = retrain.engine_of(self.model)
            how = {**said, "clip": args.max_grad_norm or 0.0, "optimizer": given, "overwrite": overwrite}
            if engine is None:
                instead = "train(resume_from_checkpoint=True)", "TrainingArguments(overwrite_run=True)"
                init.refuse_run(place, overwrite or getattr(made_in, "overwrite", False), *instead)
                kind = args.torch_compile and {"backend": args.torch_compile_backend, "mode": args.torch_compile_mode}
                engine = wrap(self.model, run=run, compile=kind, device=args.device, **how)
            else:
                engine = retrain.again(engine, place, **how)
        if bool(args.torch_compile) != bool(core_of(engine).how.get("compile")):
            _log.warning(
                "torch_compile: the run was made %s it, and continues so", "without" if args.torch_compile else "with"
            )
        self.engine, self.optimizer = engine, engine.optimizer
        self.optimizer.register_step_pre_hook(self._before_step)
        if self.lr_scheduler is not None:
            rebind(self.lr_scheduler, self.optimizer)
        engine.follow("trainer", self.longshore_position)
        if not args.disable_tqdm:
            progress.write(str(engine.memory()))
            core_of(engine).meter.say_by(progress.write)

    def _cast(self, made_in, recorded):
        """Converts the model to the dtype that the arguments ask for, or to that of a run that goes on.

        recorded: the options of that run. Returns what it keeps, as phrases.
        """
        dtype = torch.bfloat16 if getattr(self.args, "computes_in_bf16", False) else None
        asked, other = NAME_OF[dtype or blocks.dtype_of(self.model)], []
        if recorded and recorded["compute"] != asked:
            dtype = DTYPE_OF[recorded["compute"]]
            other = [f"computes in {recorded['compute']}, and not {asked}"]
        if dtype is not None:
            precision.cast(self.model, dtype, spool=getattr(made_in, "spool", None))
        return other

    def _prepare_inputs(self, inputs):
        """Moves a batch to where the model computes: before train() that is where it lies."""
        inputs = super()._prepare_inputs(inputs)
        here = next((p.device for p in self.model.parameters()), self.args.device)
        return inputs if self.engine is not None else send_to_device(inputs, here)

    # ---- a step

    def _backward(self, loss, **kwargs):
        self.engine.backward(loss, last=self.accelerator.sync_gradients, divide=False)

    def _clip(self, parameters, max_norm, norm_type=2):
        """Lets step() clip while it updates. If a callback may read gradients around the step, clips them now."""
        if self.longshore_position.replaying:
            norm = self.longshore_position.saved["norm"]
            return torch.tensor(math.nan if norm is None else norm)
        norm = self._clipped(parameters, max_norm, norm_type)
        self.longshore_position.norm = float(norm)
        return norm

    def _clipped(self, parameters, max_norm, norm_type):
        if norm_type == 2 and all(
            trusted_code.is_known(getattr(callback, name))
            for callback in self.callback_handler.callbacks
            for name in ("on_pre_optimizer_step", "on_optimizer_step")
        ):
            # clipping to infinity only asks for the norm
            self._clips_to = float(max_norm) if max_norm < float("inf") else self._clips_to
            return torch.tensor(self.engine.grad_norm())
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def _before_step(self, *args):
        core_of(self.engine).change(clip=self._clips_to)
        self._clips_to = 0.0
        self.longshore_position.note()

    def _maybe_log_save_evaluate(self, tr_loss, *args, **kwargs):
        with self.longshore_position.ending(tr_loss):
            super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    # ---- checkpoints

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes the whole model as safetensors, streamed.

        Checkpoints are snapshots of the run and need none, unless they are pushed to the Hub.
        """
        args = self.args
        pushes = output_dir is None or args.push_to_hub and args.hub_strategy != HubStrategy.END
        self._saves_weights = (
            not _internal_call or pushes or args.save_only_model or getattr(args, "checkpoint_weights", False)
        )
        try:
            if self.engine is not None and not args.should_save:
                self._save_together(output_dir or args.output_dir)  # what rank 0 does in _save()
            super().save_model(output_dir, _internal_call)
        finally:
            self._saves_weights = True

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' own. Writes the present step's weights, streamed, and uploads nothing of the run."""
        with hub.without_run(self._place(init.of(self.model)), self.args.output_dir):
            return super().push_to_hub(*args, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder):
        with hub.without_run(core_of(self.engine).state.path, self.args.output_dir):
            super()._push_from_checkpoint(checkpoint_folder)

    def _save(self, output_dir=None, state_dict=None):
        output_dir = output_dir if output_dir is not None else self.args.output_dir
        if self.engine is None:
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            self._save_together(output_dir)

    def _save_together(self, output_dir):
        state = core_of(self.engine).cycle.open_state("save_model")
        self.engine.settle()
        state.by_rank_0("trainer.save_model()", lambda: self._write(output_dir))

    def _write(self, output_dir):
        """Writes the files of save_model(): rank 0 does."""
        os.makedirs(output_dir, exist_ok=True)
        if adapters.saved_alone(self.model):
            adapters.save(self.model, output_dir)
        elif self._saves_weights:
            self._export(output_dir)
        elif hasattr(getattr(self.model, "config", None), "save_pretrained"):
            self.model.config.save_pretrained(output_dir)
        processing = getattr(self, "processing_class", None) or getattr(self.data_collator, "tokenizer", None)
        if processing is not None:
            processing.save_pretrained(output_dir)
        torch.save(self.args, os.path.join(output_dir, "training_args.bin"))

    def _export(self, output_dir):
        scratch = tempfile.mkdtemp(prefix=".longshore-", dir=output_dir)
        try:
            written = os.path.join(scratch, "model")
            self.engine.save_pretrained(written)
            for name in os.listdir(output_dir):
                if re.fullmatch(r"(diffusion_pytorch_)?model(-.*)?\.safetensors(\.index\.json)?", name):
                    os.remove(os.path.join(output_dir, name))
            for name in os.listdir(written):
                if os.path.isdir(os.path.join(output_dir, name)):
                    shutil.rmtree(os.path.join(output_dir, name))
                os.replace(os.path.join(written, name), os.path.join(output_dir, name))
        finally:
            shutil.rmtree(scratch)

    def _save_optimizer_and_scheduler(self, output_dir):
        checkpoint.save(self.engine, output_dir)
        if self.args.should_save:
            checkpoint.say_weights(self.engine, output_dir, ".", _WEIGHTS)
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, "scheduler.pt"))

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        """Only checks the checkpoint. _load_optimizer_and_scheduler() loads it once the engine exists."""
        if self.longshore_position.saved is None:
            checkpoint.read(resume_from_checkpoint)

    def _load_rng_state(self, checkpoint):
        if self.longshore_position.saved is None:
            super()._load_rng_state(checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint_directory):
        if checkpoint_directory is None:
            return
        if self.longshore_position.saved is not None:
            self.longshore_position.load_schedule()
            return
        checkpoint.load(self.engine, checkpoint_directory)
        self.lr_scheduler.load_state_dict(
            torch.load(os.path.join(checkpoint_directory, "scheduler.pt"), weights_only=True)
        )

    def _load_best_model(self):
        checkpoint.load(self.engine, self.state.best_model_checkpoint)


def _bare(optimizer):
    """The optimizer inside Accelerate's wrapper."""
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer


trainer_steps.extend(Trainer, lambda self: self.engine)
