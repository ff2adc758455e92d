"""Options of wrap(): checks their values and says what a run records.

SECTION and ARGUMENTS list the options that DeepSpeed's "longshore" section and TrainingArguments have in common.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from .. import native, progress
from ..drives.state import MOMENTS
from ..model.activations import KINDS
from ..model.blocks import NAME_OF
from ..model.compiled import told
from ..model.device import refuse_timeout
from ..native import lib
from ..ranks.launch import ranks
from ..step.commit_blob import plain
from ..step.compression import share_of
from ..step.param_groups import NUMBERS, refuse_numbers
from ..step.sum_groups import groups_of
from . import endurance, open_engines, process_memory
from .init import as_given

# in DeepSpeed's configuration, under "longshore"
SECTION = """run drives memory memory_of gpu_memory pinned_memory max_writes_per_day storage moments overwrite
    activations activation_room compress compress_after moments_from sum_groups fused_loss rank_timeout trace""".split()
# in TrainingArguments, whose optim and overwrite_run stand for the other two
ARGUMENTS = [option for option in SECTION if option not in ("moments", "overwrite")]
# options of the start alone: a run that continues may be given others
BUDGETS = ("gpu_memory", "pinned_memory")  # those that a run remembers if they were given, beside memory
OF_START = ("memory", "memory_of", *BUDGETS, endurance.NAME, "rank_timeout")  # what a resumed run may be given anew
_START_ONLY = {"run", "drives", *OF_START, "overwrite", "moments_from", "device", "device_timeout", "trace"}
# what runs have that were made before the option was there, or without it
_BEFORE = {"activations": "memory", "compress": 0.0, "compress_after": 0, "sum_groups": 1, "fused_loss": False}
DTYPE_OF = {name: dtype for dtype, name in NAME_OF.items()}


class Options(SimpleNamespace):
    """The arguments of wrap(), which explains them: run, drives, memory, memory_of, gpu_memory, pinned_memory,
    max_writes_per_day, lr, betas, eps, weight_decay, momentum, clip, optimizer, groups, storage, moments, on_nonfinite,
    layers, overwrite, activations, activation_room, compress, compress_after, moments_from, compile, sum_groups,
    fused_loss, device, device_timeout, rank_timeout, trace, trains."""

    def numbers(self):
        """torch.optim's numbers as they were given; None where one was not."""
        return {key: getattr(self, key) for key in NUMBERS}

    def take(self, numbers):
        """Takes the optimizer's name and the dtype of its moments from what optimizers.told() returned."""
        self.optimizer = numbers["optimizer"]
        moments = numbers.pop("moments", "fp32")
        self.moments = moments if self.moments is None else self.moments

    def check(self, numbers):
        """Raises ValueError for an impossible value. compress becomes a share."""
        after = self.compress_after
        self.memory_of = self.memory_of or "engine"
        if self.activations is None:
            self.activations = "auto" if self.memory_of == "process" else "memory"
        if self.moments not in MOMENTS:
            raise ValueError(f'wrap: moments must be "fp32" or "8bit", and is {self.moments!r}')
        if self.activations not in KINDS:
            raise ValueError(f"wrap: activations must be one of {', '.join(KINDS)}, and is {self.activations!r}")
        if self.activation_room is not None and self.activations == "memory":
            progress.warn(
                f'wrap: activation_room={self.activation_room!r} is for activations="drives", "auto" or "host"; '
                "activations stay in memory, so no room is reserved",
                stacklevel=5,
            )
        if self.on_nonfinite not in ("stop", "skip"):
            raise ValueError(f'wrap: on_nonfinite must be "stop" or "skip", and is {self.on_nonfinite!r}')
        if isinstance(after, bool) or after != int(after) or after < 0:
            raise ValueError(f"wrap: compress_after must be a number of steps, and is {after!r}")
        if after and self.compress is None:
            raise ValueError(
                f"wrap: compress_after={after!r} has no effect without compress; give compress, or leave it out"
            )
        groups = self.sum_groups = ranks().size if self.sum_groups is None else self.sum_groups
        if type(groups) is not int or groups < 1:
            raise ValueError(f"wrap: sum_groups must be a whole number, 1 or more, and is {groups!r}")
        refuse_timeout("wrap", self.device_timeout)
        refuse_trace("wrap", self.trace)
        endurance.sizes(self.max_writes_per_day)
        refuse_numbers({**numbers, "clip": self.clip}, "wrap: ")
        self.compress = share_of(self.compress)
        refuse_ranks("wrap", {"sum_groups": groups, "compress": self.compress})

    def check_place(self, device, opens=True):
        """device: what the model computes on; None: the CPU. opens: an engine is about to be opened in this process."""
        beside = process_memory.beside(vars(self), as_given(self.drives))
        process_memory.refuse("wrap", self.memory_of, device, beside, opens)
        if device is None and self.activations == "host":
            raise ValueError(
                'wrap: activations="host" brings activations from an accelerator to host memory, and this model '
                'computes on the CPU, where they are in host memory: leave it out, or give activations="drives"'
            )

    def check_storage(self, compute):
        """Sets storage to its default, the parameters' dtype `compute`, or checks it."""
        if self.storage is None:
            self.storage = NAME_OF[compute]
        if self.storage not in DTYPE_OF or (compute == torch.bfloat16 and self.storage == "fp32"):
            raise ValueError(
                f'wrap: storage must be "bf16", or "fp32" for float32 parameters; it is {self.storage!r}, '
                f"and the parameters are {compute}"
            )

    def record(self, numbers, compute):
        """The options as the run records them."""
        given = ("clip", "storage", "moments", "on_nonfinite", "activations", "compress", "sum_groups")
        made = {"compute": NAME_OF[compute], "seed": open_engines.seed_of_run(), "groups": None}
        made.update({**budgets(self.gpu_memory, self.pinned_memory), **endurance.recorded(self.max_writes_per_day)})
        made.update({} if self.memory_of == "engine" else {"memory_of": self.memory_of})
        out = {**recorded(numbers), **{option: getattr(self, option) for option in given}, **made}
        out.update({} if self.trains else {"trains": False})
        return {**out, "compress_after": int(self.compress_after), "compile": told(self.compile)}


def refuse_ranks(who, how):
    """Raises ValueError if the ranks cannot share out a run's groups, or gradients that are compressed. how: options as
    the run records them."""
    groups, compress = groups_of(how), how.get("compress")
    if compress and ranks().size > 1:
        raise ValueError(
            f"{who}: compress={compress:g} works in one process, and several ranks send whole gradients: start one "
            "process, or make a run without compress"
        )
    if groups % ranks().size:
        raise ValueError(
            f"{who}: sum_groups={groups} cannot be shared out among {ranks().size} ranks, since their number does not "
            f"divide it: start another number of ranks, such as {' or '.join(map(str, sorted({1, groups})))}"
        )


def refuse_rank_timeout(who, value):
    """Raises ValueError for a rank_timeout that is no time; None is the process group's."""
    if value is not None:
        refuse_timeout(who, value, "rank_timeout")


def refuse_trace(who, value):
    """Raises ValueError for a trace that is no number of steps."""
    if type(value) is not int or not 0 <= value <= lib.SHORE_TRACE_STEPS_MOST:
        raise ValueError(
            f"{who}: trace must be a number of steps, at most {lib.SHORE_TRACE_STEPS_MOST}, and is {value!r}"
        )


def budgets(gpu_memory, pinned_memory):
    """{name: bytes} of the budgets that were given."""
    given = dict(zip(BUDGETS, (gpu_memory, pinned_memory)))
    return {name: native.size(size, name) for name, size in given.items() if size is not None}


def recorded(numbers):
    """An optimizer's numbers as run.json keeps them."""
    return {k: list(v) if k == "betas" else plain(v, k) for k, v in numbers.items()}


def that_stay(state, asked):
    """Options asked for that differ from those of an open run, each as a phrase. The run keeps its own."""
    how, other = ({**_BEFORE, **state.program["engine"]}, [])
    for option, value in asked.items():
        if option in _START_ONLY:
            continue
        if option == "activation_room":
            made, wanted = state.scratch_bytes, native.size(value, option)
        else:
            made, wanted = how[option], share_of(value) if option == "compress" else value
        # activation_room does not count in a run that has none on its drives
        if made != wanted and not (option == "activation_room" and not made):
            other.append(f"{option} {made}, and not {value}")
    return other
