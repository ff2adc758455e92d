"""Chooses and makes the directories of a job's state in a DeepSpeed configuration's nvme_path."""

import contextlib
import itertools
import os
import sys
import time

from ..ranks.launch import ranks
from ..run.engine_surface import core_of
from .deepspeed_config import ConfigError, logger, say_once

_ours: set = set()  # directories that this process made


def _cannot(path, e):
    return ConfigError(f"nvme_path: {path}: a directory of this job cannot be made there: {e.strerror}")


def make(path):
    """Makes a directory of nvme_path, as DeepSpeed does. Logs its file system, because a drive may not be mounted."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    try:
        os.makedirs(path)
    except OSError as e:
        if os.path.isdir(path):
            return  # another rank has made it meanwhile
        raise _cannot(path, e) from None
    mount = path
    while not os.path.ismount(mount):
        mount = os.path.dirname(mount)
    logger.warning(f"nvme_path: made {path} on the file system of {mount}")


def named(config):
    """Every nvme_path of a configuration."""
    zero = config.get("zero_optimization") or {}
    paths = [(zero.get(which) or {}).get("nvme_path") for which in ("offload_optimizer", "offload_param")]
    return [os.fspath(path) for path in dict.fromkeys(paths) if path]


def of_others(engine):
    """Directories for a model whose configuration names none, such as a reference model without an optimizer.

    They are those of the open engine that was made last (engine, or None), or of transformers' configuration.
    """
    if engine is not None and core_of(engine).state is not None:
        return engine.settings.nvme_paths
    transformers = sys.modules.get("transformers.integrations.deepspeed")
    return named(transformers and transformers.deepspeed_config() or {})


def of_job(nvme_paths):
    """Makes a new directory for this job in each nvme_path and returns them. Warns about runs of earlier jobs."""
    for path in nvme_paths:
        make(path)
    jobs = [os.path.join(p, d) for p in nvme_paths for d in sorted(os.listdir(p)) if d.startswith("longshore-")]
    runs = [job for job in jobs if os.path.exists(os.path.join(job, "run.json"))]
    earlier = [run for run in runs if os.path.realpath(run) not in _ours]
    if earlier:
        say_once(
            f"there are runs of earlier jobs: {', '.join(earlier)}; `longshore remove RUN` frees the space of a run "
            "to which no checkpoint belongs"
        )
    with ranks().together():
        made = _new(nvme_paths) if ranks().rank == 0 else None
        made = ranks().meet("deepspeed.initialize()", made)[0]
        for place in made:  # of another host
            os.makedirs(place, exist_ok=True)
    _ours.update(map(os.path.realpath, made))
    return made


def _new(nvme_paths):
    name = time.strftime(f"longshore-%Y%m%d-%H%M%S-{os.getpid()}")
    for number in itertools.count():
        made = [os.path.join(path, name + (f"-{number}" if number else "")) for path in nvme_paths]
        try:
            for place in made:
                os.makedirs(place)
        except FileExistsError:
            continue
        except OSError as e:
            raise _cannot(os.path.dirname(place), e) from None
        return made


def leave(places):
    """Removes the empty directories of a job that did not begin."""
    for place in places:
        with contextlib.suppress(OSError):
            os.rmdir(place)
