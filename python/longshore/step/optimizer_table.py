"""The table of supported optimizers: one row each, as near/hyper.c has for the program. The package needs no other
line for an optimizer."""

from typing import NamedTuple, Optional

import torch

from ..native import lib
from .optimizer_classes import AdamW8bit, EmptyAdagrad

_ADAM = {"exp_avg": "m", "exp_avg_sq": "v"}


class Known(NamedTuple):
    """An optimizer that the engine supports."""

    number: int  # of enum shore_optimizer
    torchs: type  # its class in torch.optim, or in optimizer_classes.py; it has the numbers and their defaults
    states: dict  # {torch.optim's name of a state of a parameter: the plane that holds it}
    optims: dict  # {its name in TrainingArguments' optim: the class; None: the one that transformers gives}
    deepspeeds: tuple  # its names in DeepSpeed's configuration
    deepspeed_classes: tuple = ()  # DeepSpeed's classes that take torch.optim's arguments
    takes_momentum: bool = False  # it has state only with momentum, and no count of updates
    empty: Optional[type] = None  # where torch.optim has its state before the first step: the class that makes none


OPTIMIZERS = {  # by wrap()'s name; a subclass before its base class
    "adamw": Known(
        lib.SHORE_ADAMW,
        torch.optim.AdamW,
        _ADAM,
        {
            **dict.fromkeys("adamw_torch adamw_torch_fused".split()),
            **dict.fromkeys("adamw_hf paged_adamw paged_adamw_32bit".split(), torch.optim.AdamW),
            **dict.fromkeys("adamw_8bit adamw_bnb_8bit paged_adamw_8bit".split(), AdamW8bit),
        },
        ("adam", "adamw", "fusedadam", "deepspeedcpuadam"),
    ),
    # DeepSpeed's "adam" is AdamW, unless adam_w_mode is false
    "adam": Known(lib.SHORE_ADAM, torch.optim.Adam, _ADAM, {}, ()),
    "sgd": Known(
        lib.SHORE_SGD, torch.optim.SGD, {"momentum_buffer": "m"}, {"sgd": None}, ("sgd",), takes_momentum=True
    ),
    "adagrad": Known(
        lib.SHORE_ADAGRAD,
        torch.optim.Adagrad,
        {"sum": "v"},
        {"adagrad": None},
        ("adagrad",),
        ("DeepSpeedCPUAdagrad",),
        empty=EmptyAdagrad,
    ),
}
_NAMES = [known.torchs.__name__ for known in OPTIMIZERS.values()]
NAMES = f"{', '.join(_NAMES[:-1])} and {_NAMES[-1]}"


def without_state(kind):
    """An optimizer's class, or the one that makes no state if torch.optim's makes it before the first step."""
    return next((known.empty for known in OPTIMIZERS.values() if known.torchs is kind and known.empty), kind)
