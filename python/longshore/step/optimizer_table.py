"""The table of supported optimizers: one row each, as near/hyper.c has for the program."""

from typing import NamedTuple

import torch

from ..native import lib

_ADAM = {"exp_avg": "m", "exp_avg_sq": "v"}


class Known(NamedTuple):
    """An optimizer that the engine supports."""

    number: int  # of enum shore_optimizer
    torchs: type
    states: dict  # {torch.optim's name of a state of a parameter: the plane that holds it}
    deepspeeds: tuple  # its names in DeepSpeed's configuration
    takes_momentum: bool = False  # instead of betas; it has state only with momentum, and no count of updates
    starts_full: bool = False  # whether torch.optim has its state before the first step


OPTIMIZERS = {  # by wrap()'s name; a subclass before its base class
    "adamw": Known(lib.SHORE_ADAMW, torch.optim.AdamW, _ADAM, ("adam", "adamw", "fusedadam", "deepspeedcpuadam")),
    # DeepSpeed's "adam" is AdamW, unless adam_w_mode is false
    "adam": Known(lib.SHORE_ADAM, torch.optim.Adam, _ADAM, ()),
    "sgd": Known(lib.SHORE_SGD, torch.optim.SGD, {"momentum_buffer": "m"}, ("sgd",), takes_momentum=True),
    "adagrad": Known(lib.SHORE_ADAGRAD, torch.optim.Adagrad, {"sum": "v"}, ("adagrad",), starts_full=True),
}
_NAMES = [known.torchs.__name__ for known in OPTIMIZERS.values()]
NAMES = f"{', '.join(_NAMES[:-1])} and {_NAMES[-1]}"
