"""Models that are not trained: wrap(trains=False) for the reference of DPO, a teacher, or a reward model."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import inspect
import itertools
import json
import os
import shutil

from .. import native
from ..drives.layout import PIECE
from ..drives.parts import by_rank_0
from ..drives.state import State, remove
from ..errors import BudgetError, BusyError, LongshoreError, RankError
from ..model import blocks as tree
from ..ranks.launch import ranks
from ..step.param_groups import NUMBERS
from . import init, open_engines, shared_budget
from .engine import Engine
from .options import BUDGETS

_OF_TRAINING = (
    *NUMBERS,
    *"clip optimizer groups moments on_nonfinite compress compress_after moments_from sum_groups trace".split(),
    "max_writes_per_day",
)


class FrozenEngine(Engine):
    """The engine of a model that was wrapped with trains=False: fetches its parameters for forward, and for a backward
    pass that goes through it. It is called like the model. What makes a step, or changes the run, is refused."""


def _refused(name):
    method = getattr(Engine, name)

    @functools.wraps(method)
    def refuse(self, *args, **kwargs):
        self._core.refuse_frozen(f"engine.{name}")

    return refuse


for _name in "backward step grad_norm train_batch backward_together drop_gradients follow snapshot reopen".split():
    setattr(FrozenEngine, _name, _refused(_name))
for _name in ("accumulate", "lr_scheduler", "optimizer"):
    _refuse = functools.partial(lambda name, self, *value: self._core.refuse_frozen(f"engine.{name}"), _name)
    setattr(FrozenEngine, _name, property(_refuse, _refuse))


def refuse_options(options, wrap):
    """Raises ValueError for an option of training."""
    if not isinstance(options.trains, bool):
        raise ValueError(f"wrap: trains must be True or False, and is {options.trains!r}")
    for name in () if options.trains else _OF_TRAINING:
        if getattr(options, name) != inspect.signature(wrap).parameters[name].default:
            raise ValueError(f"wrap: {name}= is for a model that trains, and this one has trains=False: leave it out")


@contextlib.contextmanager
def wrapping(model, options):
    """The context in which a model is wrapped. If it is frozen, its parameters get no gradient from here on, and what
    the options leave open is taken from the engine that trains beside it: drives, memory, a place in its run."""
    trained = () if options.trains else [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        with _taking_from_another(model, options):
            yield
    except BaseException:
        for p in trained:
            p.requires_grad_(True)
        raise


def _taking_from_another(model, options):
    if options.trains:
        return contextlib.nullcontext()
    options.optimizer = "sgd"  # which has no moments
    if len(open_engines.training()) > 1:
        gc.collect()  # which closes dropped engines
    cores = open_engines.training()
    options.beside = options.run is None and init.of(model) is None
    lends = options.memory is None and shared_budget.left() is None
    if len(cores) > 1 and (options.beside or lends):
        runs, asked = ", ".join(core.state.path for core in cores), "run=" if options.beside else "memory="
        raise LongshoreError(
            f"wrap: trains=False: several engines are open that train ({runs}): give {asked} of its own, so that it "
            "takes none of theirs"
        )
    if options.beside and not cores:
        raise LongshoreError(
            "wrap: trains=False: no engine is open that trains, in whose run this model could lie: wrap that one "
            "first, or give run=DIRECTORY"
        )
    if options.beside:
        options.run = _free_name(model, cores[0].state)
        options.drives = _drives_of(cores[0].state) if options.drives is None else options.drives
    if cores and options.device is None and all(p.device.type == "cpu" for p in model.parameters()):
        there = cores[-1].streams.device
        options.device = "cpu" if there is None else there.device
    if lends and cores:
        return shared_budget.lent(cores[0], f"the engine of {cores[0].state.path}")
    return contextlib.nullcontext()


def _free_name(model, state):
    """A directory in a run that no open engine has."""
    held = {os.path.realpath(other.path) for _, other in open_engines.states()}
    first = os.path.join(state.path, f"frozen-{type(model).__name__}")
    names = itertools.chain([first], (f"{first}-{n}" for n in itertools.count(2)))
    return next(name for name in names if os.path.realpath(name) not in held)


def _drives_of(state):
    """The directories of a run's volumes; None: the run's directory itself, or they are no files of this machine."""
    if not all(os.path.isfile(drive) for drive in state.own_drives):
        return None
    out = [os.path.dirname(drive) for drive in state.own_drives]
    return None if os.path.realpath(state.path) in map(os.path.realpath, out) else out


def again(model, run, drives, how, options, spool):
    """The engine of a run that holds this model already; None: there is none. Removes a run beside the engine that
    holds another one."""
    how["contents"] = ranks().meet("longshore.wrap()", _contents_of(model, drives, how, spool))[0]
    if not init.is_run(run):
        return None
    with contextlib.closing(State.open(run, read_only=True, without_drives=True)) as record:
        made = (record.program or {}).get("engine", {})
    if made.get("contents") == how["contents"]:
        from .resume import resume  # which imports wrap.py, and that this module

        own = {name: getattr(options, name) for name in ("memory", *BUDGETS, "device_timeout")}
        try:
            return resume(run, model, device=how["device"], **own)
        except (BusyError, BudgetError, RankError):
            raise
        except LongshoreError:  # its volume is gone or damaged
            if not options.beside or any(hasattr(p, "longshore") for p in model.parameters()):
                raise
    if options.beside and not made.get("trains", True):
        by_rank_0(ranks(), "longshore.wrap()", lambda: _remove(run))
    return None


def _remove(run):
    try:
        remove(run)
    except BusyError:
        raise
    except LongshoreError:  # a copy: the volumes are another directory's
        shutil.rmtree(run)


def _contents_of(model, drives, how, spool):
    """A digest of all that a frozen model's run is made of."""
    made = {name: value for name, value in how.items() if name not in ("seed", "default_memory", "device", *BUDGETS)}
    out = hashlib.sha256(json.dumps([made, [os.path.realpath(drive) for drive in drives]]).encode())
    for name, value in (*model.named_parameters(), *tree.persistent_buffers(model).items()):
        out.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        for part in value.detach().reshape(-1).split(PIECE * native.SEGMENT):
            part = part.cpu().contiguous()
            out.update(ctypes.string_at(part.data_ptr(), part.nbytes))
            if spool is not None:
                spool.relieve(part.nbytes)
    return out.hexdigest()
