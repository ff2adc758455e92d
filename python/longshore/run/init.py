"""longshore.init(): makes a model without holding all of it in memory, and remembers the run that it is for."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import re
import stat
import weakref
from collections.abc import Iterable, Iterator

from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import native
from ..drives.rank_drives import filled
from ..drives.state import fleet_options
from ..errors import ExistsError, LongshoreError
from ..model.init_on_disk import spooling
from ..native import lib
from ..other_names import answered
from ..ranks.launch import ranks
from ..step.optimizer_table import OPTIMIZERS
from ..torch_internals import parameters_of
from . import endurance, open_engines, shared_budget

Drives = str | os.PathLike | Iterable[str | os.PathLike] | None
_log = logging.getLogger("longshore")
_current = None
_unwrapped: list = []  # a _Watch of each model that no engine has yet, oldest first


class InitContext:
    """The arguments of an init(), and the Spool of the model that was made in it."""

    def __init__(self, run, asked, memory, memory_of, overwrite, max_writes_per_day):
        """asked: the drives, as as_given() returns them."""
        self.run, self.asked, self.memory, self.memory_of, self.overwrite = run, asked, memory, memory_of, overwrite
        self.max_writes_per_day = max_writes_per_day
        self.spool = None

    @property
    def drives(self):
        return drives_of(self.asked)


def _ended_in_time(make):
    """A script may end inside of the context: it is left then, before Python takes names away."""

    @functools.wraps(make)
    def made(*args, **kwargs):
        context = make(*args, **kwargs)
        atexit.register(context.gen.close)
        return context

    return made


@answered
@_ended_in_time
@contextlib.contextmanager
def init(
    run: str | os.PathLike,
    drives: Drives = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    memory_of: str = "engine",
    max_writes_per_day: int | str | Iterable | None = None,
) -> Iterator[object]:
    """A context in which a model is made or loaded without ever being in memory as a whole. wrap() then makes its run.

    Args:
        run: the directory to make, which ``longshore inspect`` and the other commands take.
        drives: directories, files, block devices, ``opencl:PATH`` or ``ssh://HOST/PATH``; by default run itself.
        memory: how much memory Longshore may hold ("8GiB"); by default half of the machine's, or as much as is useful,
            if that is less.
        overwrite: whether to replace an existing run.
        resume: whether to accept an existing run, for a Trainer that continues it with
            train(resume_from_checkpoint=True).
        memory_of: "process" makes memory a promise about the whole process, as wrap() says.
        max_writes_per_day: as for wrap().

    Nothing is made before wrap(). The context checks its arguments before a model is loaded.

    Raises: ExistsError if the run exists; MissingError if a drive does not; ValueError if memory is no size;
    BudgetError if it is more than the machine has.
    """
    global _current
    ranks()  # all of them are connected from here on
    if _current is not None:
        raise LongshoreError("longshore.init: another longshore.init() is open; leave it first")
    making = InitContext(
        _named(run, "longshore.init"), as_given(drives), memory, memory_of, overwrite, max_writes_per_day
    )
    limits = endurance.sizes(max_writes_per_day, "longshore.init")
    endurance.refuse_others(limits, len(making.drives or [run]), "longshore.init")
    if memory is not None:
        shared_budget.within(native.size(memory))
    if not (resume and is_run(making.run)):
        more = "; for a Trainer that resumes: longshore.init(..., resume=True)"
        check(making.run, making.drives or [making.run], overwrite, more)
    _current = making
    try:
        with spooling(places(making.run, making.drives), "longshore.init(..., drives=[...])") as making.spool:
            yield making
    finally:
        _current = None
    what = f"longshore.init({making.run!r}): the model that was made in it"
    instead = "longshore.wrap(model) makes an engine, and longshore.transformers.Trainer has one"
    watch(making.spool, what, instead, making)


def _named(run, caller):
    """Returns a run's directory as a string. caller: begins the message if it is empty."""
    run = os.fspath(run)
    if not run:
        raise ValueError(f"{caller}: run='' is not a directory; name one, or '.' for the working directory")
    return run


def as_given(drives):
    """Returns the drives as a list of strings, as they were given; None if they were not."""
    if drives is None:
        return None
    return [os.fspath(d) for d in ([drives] if isinstance(drives, (str, os.PathLike)) else drives)]


def drives_of(drives):
    """The same with {rank} and {host} filled in."""
    return None if drives is None else filled(as_given(drives), ranks().rank)


def is_run(path):
    return os.path.exists(os.path.join(path, "run.json"))


def check(run, drives, overwrite, more=""):
    """Raises if a run cannot be made there, as far as that is known before there is a model. more: ends the message if
    a run exists."""
    refuse_run(run, overwrite, f"longshore.resume({run!r})", "overwrite=True", more)
    others = [d for d in drives if os.path.realpath(d) != os.path.realpath(run)]
    # the run's own directory is made with the run
    fleet, named = fleet_options(
        others or [nearest_directory(run)], OPTIMIZERS["adamw"].number, "fp32", True, overwrite=overwrite
    )
    native.call(
        lib.shore_run_check, native.path_bytes(os.path.abspath(run)), native.new("struct shore_run_making", fleet=fleet)
    )


def refuse_run(run, overwrite, resuming, overwriting, more=""):
    """Raises ExistsError if a run exists. resuming, overwriting: what a user writes instead."""
    open_engines.refuse_second(run)
    if is_run(run) and not overwrite:
        raise ExistsError(
            f"{run}: holds a run: {resuming} continues it, {overwriting} begins anew{more}", lib.SHORE_EEXISTS
        )


def places(run, drives):
    """Returns directories in the drives' file systems, for the weights of a model that is being made."""
    here = [d for d in drives or [run] if not re.match(r"(ssh|unix|ram|null):", d) and not _is_device(d)]
    if not here:
        here = [run]
        _log.warning(
            f"{run}: no drive of the run is a file system of this machine, so weights that are loaded lie in files of "
            f"{nearest_directory(run)} until they are on the drives"
        )
    return list(dict.fromkeys(map(nearest_directory, here)))


def _is_device(path):
    with contextlib.suppress(OSError):
        return stat.S_ISBLK(os.stat(path).st_mode)
    return False


def nearest_directory(path):
    """Returns the path itself, or the nearest directory above it that exists."""
    path = os.path.realpath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def place(making, run, drives, memory, overwrite):
    """Returns (run, drives, memory, overwrite) for a model: wrap()'s arguments first, then those of its init().
    making: the InitContext; None: the model was made outside of init()."""
    if making is None:
        if run is None:
            raise ValueError(
                "wrap: where is the state to live? Give run=DIRECTORY, or make the model inside "
                "longshore.init(DIRECTORY)"
            )
        run = _named(run, "wrap")
        return run, drives_of(drives) or [run], memory, bool(overwrite)
    other = run is not None and os.path.realpath(run) != os.path.realpath(making.run)
    if other:
        said = "of the longshore.init() that the model was made in"
        _log.warning("wrap: run=%r counts, and not %r %s", os.fspath(run), making.run, said)
    if overwrite is None:
        overwrite = making.overwrite and not other
    run = _named(run, "wrap") if run is not None else making.run
    memory = making.memory if memory is None else memory
    return run, drives_of(drives) or making.drives or [run], memory, bool(overwrite)


# ---- the init() and the engine of a model ----------------------------------------------------------------------------


def of(model):
    """Returns the InitContext in which a model, or a part of it, was made, or None."""
    found = [w.making for w in _unwrapped if w.making is not None and any(m in w.modules for m in model.modules())]
    if len(found) > 1:
        raise LongshoreError(
            f"wrap: the model has parts of longshore.init({found[0].run!r}) and of "
            f"longshore.init({found[1].run!r}); make all of it in one"
        )
    return found[0] if found else None


def take(model):
    """Notes that an engine has the model from here on."""
    for watched in _unwrapped[:]:
        watched.leave(model.modules())


# ---- models that nobody wraps ----------------------------------------------------------------------------------------


def watch(spool, what, instead, making=None):
    """Watches the modules made with a spool, to warn if a script trains them without an engine. what: names the model;
    instead: how to make an engine."""
    for old in _unwrapped[:]:
        old.leave(())
    _unwrapped.append(_Watch(spool.modules, what, instead, making))


class _Watch:
    """Warns once if a script trains a model that no engine has."""

    def __init__(self, modules, what, instead, making):
        self.what, self.instead, self.making, self.trained = what, instead, making, False
        self.modules: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # {module: hooks of its parameters}
        for module in modules:
            self.modules[module] = [
                p.register_post_accumulate_grad_hook(self._say)
                for p in parameters_of(module).values()
                if p is not None and not is_lazy(p) and p.requires_grad and p.is_leaf
            ]
        self._steps = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer, args, kwargs):
        """Catches optimizers of adapters, too, that were added to the model."""
        steps = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for p in self._parameters():
            if id(p) in steps:
                self._say(p)

    def _parameters(self):
        for module in list(self.modules):
            yield from parameters_of(module).values()
            for child in module.children():
                if child is not None and child not in self.modules:
                    yield from child.parameters()

    def _say(self, p):
        if not self.trained and getattr(p, "longshore", None) is None:  # an engine has a tied one
            self.trained = True
            self._unhook(list(self.modules))
            self._steps.remove()
            why = "is trained by PyTorch alone: no engine has it, and nothing is kept when the process ends"
            _log.warning(f"{self.what} {why}; {self.instead}")

    def _unhook(self, modules):
        for module in modules:
            hooks, self.modules[module] = self.modules[module], []
            for hook in hooks:
                hook.remove()

    def leave(self, modules):
        """Stops watching these modules; an engine has them. Ends with the last one."""
        mine = [m for m in modules if m in self.modules]
        self._unhook(mine)
        for module in mine:
            del self.modules[module]
        if not self.modules:
            self._steps.remove()
            if mine or not self.trained:
                _unwrapped.remove(self)


@atexit.register
def _say_what_is_gone():
    for watched in _unwrapped:
        if watched.trained:
            _log.warning(
                f"{watched.what} was trained, but was never an engine's: no run was made, and what was trained is gone "
                "unless the script has saved it"
            )
