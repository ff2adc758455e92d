"""Directories in nvme_path."""

import contextlib
import itertools
import os
import sys
import time

from .deepspeed_config import ConfigError, logger, say_once

_ours: set = set()  # directories that this process has made


def _cannot(path, e):
    return ConfigError(f"nvme_path: {path}: a directory of this job cannot be made there: {e.strerror}")


def make(path):
    """A directory that a configuration names, as DeepSpeed makes it: a drive that is not mounted is said, and not
    noticed otherwise."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    try:
        os.makedirs(path)
    except OSError as e:
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
    """Where a model lies whose configuration does not say it, as that of a reference model, which has no optimizer:
    where the one of an open engine does, or where transformers' configuration says. engine: the one that was made last,
    or None."""
    if engine is not None and engine.engine.state is not None:
        return engine.settings.nvme_paths
    transformers = sys.modules.get("transformers.integrations.deepspeed")
    return named(transformers and transformers.deepspeed_config() or {})


def of_job(nvme_paths):
    """A directory of this job in each nvme_path."""
    for path in nvme_paths:
        make(path)
    earlier = [
        os.path.join(p, d)
        for p in nvme_paths
        for d in sorted(os.listdir(p))
        if d.startswith("longshore-") and os.path.realpath(os.path.join(p, d)) not in _ours
        and os.path.exists(os.path.join(p, d, "run.json"))
    ]
    if earlier:
        say_once(
            f"there are runs of earlier jobs: {', '.join(earlier)}; `longshore remove RUN` frees their space where no "
            "checkpoint is of it"
        )
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
        _ours.update(map(os.path.realpath, made))
        return made


def leave(places):
    """Of a job that has not begun."""
    for place in places:
        with contextlib.suppress(OSError):
            os.rmdir(place)
