"""The optimizers that there are: what the package has to know of each is a row here, as near/hyper.c has it for the
program."""

from typing import NamedTuple

import torch

from ..native import lib

_ADAM = {"exp_avg": "m", "exp_avg_sq": "v"}


class Known(NamedTuple):
    """An optimizer of the engine's."""

    number: int  # of enum shore_optimizer
    torchs: type
    states: dict  # torch.optim's name of what it keeps of a parameter: the plane that has it
    deepspeeds: tuple  # what DeepSpeed's configuration calls it
    takes_momentum: bool = False  # instead of betas; its state is there only with one, and has no count of updates
    starts_full: bool = False  # torch.optim has its state before the first step


OPTIMIZERS = {  # by wrap()'s name; a class before the class that it is derived from
    "adamw": Known(lib.SHORE_ADAMW, torch.optim.AdamW, _ADAM, ("adam", "adamw", "fusedadam", "deepspeedcpuadam")),
    # "adam" of DeepSpeed's is AdamW, unless adam_w_mode is false
    "adam": Known(lib.SHORE_ADAM, torch.optim.Adam, _ADAM, ()),
    "sgd": Known(lib.SHORE_SGD, torch.optim.SGD, {"momentum_buffer": "m"}, ("sgd",), takes_momentum=True),
    "adagrad": Known(lib.SHORE_ADAGRAD, torch.optim.Adagrad, {"sum": "v"}, ("adagrad",), starts_full=True),
}
_NAMES = [known.torchs.__name__ for known in OPTIMIZERS.values()]
NAMES = f"{', '.join(_NAMES[:-1])} and {_NAMES[-1]}"
