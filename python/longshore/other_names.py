"""Answers names of other libraries with Longshore's own, as the program does (src/cli/other_names.c)."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable)

_ANSWERS = {  # {names in torch.optim, transformers, TRL, Accelerate, DeepSpeed and Lightning: what to write here}
    "learning_rate max_lr peak_lr base_lr init_lr": "here it is lr",
    "beta1 beta2 b1 b2 adam_beta1 adam_beta2 adam_betas": "here it is betas=(BETA1, BETA2)",
    "epsilon adam_epsilon adam_eps": "here it is eps",
    "wd l2 decay adam_weight_decay": "here it is weight_decay",
    "sgd_momentum": "here it is momentum",
    "max_grad_norm max_norm grad_clip clip_grad clip_grad_norm gradient_clipping gradient_clip_val grad_norm "
    "clip_norm": "here it is clip, the largest norm of all gradients together",
    "optim optimizer_type optimizer_name optim_type opt optimizer_cls": "here it is optimizer",
    "optim_bits optimizer_bits use_8bit_adam use_8bit_optimizer adam8bit": 'here it is moments="8bit"',
    "optim_args optimizer_kwargs optimizer_params": (
        "the optimizer's numbers are lr, betas, eps, weight_decay and momentum"
    ),
    "params parameters param_groups model_parameters": "here it is groups",
    "amsgrad maximize nesterov dampening lr_decay foreach fused capturable": "leave it out",
    "output_dir out_dir out save_dir run_dir run_name path directory checkpoint_dir default_root_dir": "here it is run",
    "drive disk disks nvme_path nvme offload_dir offload_folder swap_dir storage_path": "here it is drives",
    "max_memory memory_limit memory_budget mem ram budget": "here it is memory",
    "overwrite_output_dir force exist_ok": "here it is overwrite",
    "resume_from resume_from_checkpoint resume_from_path ckpt_path": "longshore.resume(RUN) continues a run",
    "dtype torch_dtype precision mixed_precision bf16 fp16 autocast": (
        "forward and backward use the model's dtype, which from_pretrained() and model.to() take; storage= is "
        "the dtype on the drives"
    ),
    "gradient_accumulation_steps grad_accum accumulate accumulate_grad_batches accumulation_steps": (
        "set engine.accumulate = N afterwards"
    ),
    "gradient_checkpointing activation_checkpointing use_gradient_checkpointing": (
        'call model.gradient_checkpointing_enable() before; activations="drives" moves activations to the drives'
    ),
    "torch_compile compile_model": "here it is compile",
    "seed random_seed manual_seed": "call torch.manual_seed(SEED) before; the run keeps it",
    "lr_scheduler scheduler lr_scheduler_type warmup warmup_steps warmup_ratio num_warmup_steps": (
        "make a scheduler of torch.optim.lr_scheduler with engine.optimizer, and give it to engine.follow()"
    ),
    "device device_map": "the engine computes where the model is: model.to(DEVICE) before",
    "deepspeed zero_stage stage offload_optimizer offload_param cpu_offload fsdp": (
        "state lies on the drives of drives= and takes the memory of memory=, so leave it out"
    ),
}
_OPTIMIZERS = {  # {names of optimizers, without - and _: what to write here}
    "adamw8bit adam8bit pagedadamw8bit pagedadam8bit adamwbnb8bit": 'write optimizer="adamw", moments="8bit"',
    "adamwtorch adamwtorchfused adamwhf fusedadam fusedadamw deepspeedcpuadam pagedadamw pagedadamw32bit adamwapex": (
        'write optimizer="adamw"'
    ),
}


def _answer(name, table):
    return next((answer for names, answer in table.items() if name.lower() in names.split()), None)


def _near(name, known):
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else None


def refuse_optimizer(name: str, known: Any) -> None:
    """Raises ValueError for the name of an optimizer that is not known."""
    answer = _answer(name.replace("-", "").replace("_", ""), _OPTIMIZERS) or _near(name.lower(), known)
    raise ValueError(f"wrap: optimizer={name!r} is not supported: {answer or 'it is one of ' + ', '.join(known)}")


def answered(function: _Function) -> _Function:
    """A function whose error for an unknown argument says what the argument is called here."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args, **kwargs):
        for name in kwargs.keys() - known.keys():
            answer = _answer(name, _ANSWERS) or _near(name, known) or f"help(longshore.{function.__name__}) has all"
            raise TypeError(f"{function.__name__}: there is no argument {name}: {answer}")
        return function(*args, **kwargs)

    return cast(_Function, call)
