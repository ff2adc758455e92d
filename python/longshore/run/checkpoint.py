"""Saves and loads checkpoints: a small directory with longshore.json, which names a snapshot of the run.

Where the file system shares blocks between files, a snapshot takes almost no disk. The directory may be moved. It stays
loadable after later steps and after kills, as long as the run exists. If a trainer deletes the directory with
shutil.rmtree(), the snapshot is deleted too.
"""

import base64
import contextlib
import fcntl
import functools
import logging
import os
import re
import stat
import sys
import tempfile
import uuid

from .. import native
from ..drives.parts import by_rank_0
from ..drives.state import State, rollback
from ..errors import BusyError, LongshoreError, MissingError
from ..native import lib
from ..step import commit_blob, param_groups
from . import open_engines, weights_files
from .engine_surface import core_of

FILE = "longshore.json"
README = "README.txt"
# names snapshots that no checkpoint names while one is saved, replaced or deleted, so that a kill leaves none behind
OTHERS = "longshore.others.json"
_FICLONE = 0x40049409
_disk_told: set[str] = set()  # runs whose user was told what checkpoints take on disk
_weights_told: set[str] = set()  # runs whose user was told that checkpoints hold no weights


def read(directory):
    """The contents of a checkpoint's longshore.json, as a dict. Raises MissingError if the directory has none."""
    path = os.path.join(directory, FILE)
    try:
        return weights_files.read(path)
    except FileNotFoundError:
        why = ", because a save or delete was interrupted; delete it, or save it again" if _others(directory) else ""
        raise MissingError(f"{directory}: is not a checkpoint of Longshore: it has no {FILE}{why}") from None
    except ValueError:
        raise LongshoreError(f"{path}: is damaged: not JSON") from None


def save(engine, directory, extra=None):
    """Takes a snapshot of the committed state, and makes a directory that names it.

    extra: plain values that load() returns. An older checkpoint in the directory is deleted once this one is complete.
    """
    directory = os.fspath(directory)
    os.makedirs(directory, exist_ok=True)
    state = core_of(engine).cycle.open_state("save_checkpoint")
    tag = re.sub(r"[^A-Za-z0-9_-]", "-", os.path.basename(os.path.abspath(directory))).lstrip("-")[:40]
    what, keeps = "engine.save_checkpoint()", state.rank == 0
    name = state.meet(what, f"{tag or 'checkpoint'}-{uuid.uuid4().hex[:8]}")[0]
    before = [old for run, old in snapshots_of(directory) if run == state.path]
    _warn_of_disk(state)
    engine.settle()
    said = {"format": 1, "run": state.path, "snapshot": name, "step": state.step}
    said["groups"] = param_groups.saved(engine.optimizer)
    said["extra"] = commit_blob.plain(extra, "the state of a checkpoint")
    said["ranks"] = [base64.b64encode(blob).decode() for blob in state.meet(what, state.blob())]
    # at every moment one of the two files names each snapshot, also if the process is killed
    if keeps:
        weights_files.write_json(os.path.join(directory, OTHERS), {"run": state.path, "snapshots": [name, *before]})
    engine.snapshot(name)
    if keeps:
        weights_files.write_json(os.path.join(directory, FILE), said)
    _remove(state, before)
    if keeps:
        os.unlink(os.path.join(directory, OTHERS))
    state.meet(what)
    _watch_deletions()
    return name


def say_weights(engine, directory, tag, ways):
    """Writes README.txt beside a checkpoint without weights: the command that adds weights for from_pretrained().

    tag: the checkpoint's, or "." for the directory itself. ways: text about settings that write weights from now on.
    """
    there, path = os.listdir(directory), os.path.join(directory, README)
    if any(name.endswith(".safetensors") or re.match(r"(pytorch|adapter)_model.*\.bin", name) for name in there):
        return
    first = "The weights of this checkpoint are not files of this directory"
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as f:
        if not f.read().startswith(first):
            return  # the user's own README
    run = core_of(engine).state.path
    loads, out = "into another directory", "OUT"
    if "config.json" in there:
        loads, out = "here, so that from_pretrained() loads the directory", "."
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"""{first}: they lie in a snapshot of the run
{run}, which {FILE} names.

This puts them {loads}:

    python -m longshore.deepspeed.zero_to_fp32 . {out} --tag {tag} --safe_serialization

{ways}
""")
    if run not in _weights_told:
        _weights_told.add(run)
        logging.getLogger("longshore").info(
            "%s: has no weights, but a snapshot of the run: %s there says what loads them", directory, README
        )


def shares_blocks(directory):
    """Whether the file system of a directory lets two files share blocks, as XFS and btrfs do."""
    try:
        with tempfile.TemporaryFile(dir=directory) as a, tempfile.TemporaryFile(dir=directory) as b:
            a.write(b"\0" * 4096)
            a.flush()
            fcntl.ioctl(b.fileno(), _FICLONE, a.fileno())
            return True
    except OSError:  # also if the directory cannot be written; then the snapshot fails and says so
        return False


def _bytes_of(state):
    """(bytes of each snapshot, further bytes of the first one) where files cannot share blocks.

    Frozen blocks are the same in every snapshot, so only the first one stores them.
    """
    layout = lib.shore_run_layout(state.run)
    frozen = sum(
        block.segments for block in layout.blocks[0 : layout.nblocks] if block.tensors[0].group == lib.SHORE_GROUP_RESTS
    )
    # bytes of a frozen element: its master, and with 8-bit moments the code of m's zero
    bytes_kept = 4 if state.made.moments == lib.SHORE_MOMENTS_FP32 else 5
    return (layout.segments - frozen) * lib.shore_fleet_state_bytes(state.fleet), frozen * native.SEGMENT * bytes_kept


def _warn_of_disk(state):
    """Warns once a run how much disk a checkpoint takes, if files cannot share blocks."""
    if state.path in _disk_told:
        return
    _disk_told.add(state.path)
    files = [d for d in state.drives if os.path.exists(d) and not stat.S_ISBLK(os.stat(d).st_mode)]
    places = {d if os.path.isdir(d) else os.path.dirname(d) for d in files}
    whole = sorted(place for place in places if not shares_blocks(place))
    if whole:
        each, frozen = _bytes_of(state)
        once = f", and the first {native.readable(frozen)} more for frozen parameters, shared by all" if frozen else ""
        logging.getLogger("longshore").warning(
            f"each checkpoint takes up to {native.readable(each)} of disk{once}: {', '.join(whole)} cannot share "
            "blocks between files, as XFS and btrfs can; keep few of them (save_total_limit)"
        )


def made_with(run):
    """The options of wrap() that a run records."""
    with contextlib.closing(State.open(run, read_only=True, without_drives=True)) as record:
        return (record.program or {}).get("engine", {})


def same_optimizer(run, wanted):
    """Raises LongshoreError if a run was made with another optimizer than `wanted`."""
    made = made_with(run).get("optimizer", wanted)
    if made != wanted:
        raise LongshoreError(
            f"{run}: its optimizer is {made}, and not {wanted}: use {made}, or make another run "
            "with its parameters alone"
        )


def load(engine, directory, weights_only=False, followed=(), any_optimizer=False):
    """Returns the engine to the state in which the checkpoint was saved. Returns the `extra` that save() got.

    The engine rolls back the checkpoint's run and continues there. If another engine uses that run, the state is copied
    into this engine's own run, as a new step.

    weights_only: copies only parameters, buffers and the objects named in followed, always into the engine's own run.
        Moments, step counts and random states stay as they are.
    any_optimizer: skips the check of the optimizer, for an engine that makes no steps.
    """
    said, core = read(directory), core_of(engine)
    run = said["run"]
    if not os.path.exists(os.path.join(run, "run.json")):
        if core.state is None or not os.path.exists(os.path.join(core.state.path, "run.json")):
            raise MissingError(
                f"{directory}: is a snapshot of the run {run}, which does not exist; if it was moved, "
                f"write its new path into {FILE}"
            )
        run = core.state.path  # perhaps the moved run; reopen() fails if it does not have the snapshot
    if weights_only:
        step = _take_over(core, run, said["snapshot"], followed)
    else:
        if not any_optimizer:
            same_optimizer(run, core.how["optimizer"])
        try:
            if core.state is None or run != core.state.path:
                open_engines.refuse_second(run)  # fails at once; opening the drives would wait for the other engine
            engine.reopen(run, said["snapshot"])
            step = core.state.step
        except BusyError:
            if core.state is None:
                raise
            step = _take_over(core, run, said["snapshot"])
    if step != said["step"]:
        raise LongshoreError(
            f"{directory}: is of step {said['step']}, but the snapshot {said['snapshot']} of {run} is of step {step}"
        )
    if not weights_only:
        commit_blob.restore_groups(said, engine.optimizer)
        blobs = said.get("ranks", ())
        if core.trains and core.ranks.rank and len(blobs) == core.ranks.size and blobs[core.ranks.rank]:
            commit_blob.take_own(core, base64.b64decode(blobs[core.ranks.rank]))  # a rollback gives all rank 0's
    _watch_deletions()
    return commit_blob.back(said["extra"])


def _take_over(core, run, snapshot, followed=None):
    """Commits another run's snapshot as a new step of the engine's own run. Returns the snapshot's step number.

    followed: if given, copies only parameters, buffers, and the states of the followed objects with these names.
    """
    core.cycle.open_state("load_checkpoint")
    core.drop_gradients()
    core.cycle.settle()
    with contextlib.closing(State.open(run, read_only=True, snapshot=snapshot)) as other:
        other.layout.continue_as(core.layout, run)
        if followed is None and other.kinds != core.state.kinds:
            raise LongshoreError(
                f"{run}: another engine works on it, and it has another optimizer or other moments "
                f"than {core.state.path}, so it cannot be copied there; close that engine, or ask "
                "for the same optimizer"
            )
        with core.cycle.changing():
            for number, block in enumerate(core.layout.blocks):
                if not block.buffers:  # restore_buffers() sets buffers, and the step stores them
                    core.state.copy(other, number, masters=followed is not None)
            saved = commit_blob.of(other)
            if followed is None:
                commit_blob.restore(core, saved, other, core.state.step + 1)
            else:
                commit_blob.restore_buffers(core, saved, other)
                for name in followed:
                    commit_blob.restore_followed(saved, name, core.followed[name])
            core.cycle.close({"loaded": f"{snapshot} of {run}"}, range(len(core.streams.blocks)))
            core.cycle.settle()
        return other.step


def _others(directory):
    """[(run, name)] of the snapshots in a directory's OTHERS file."""
    try:
        said = weights_files.read(os.path.join(directory, OTHERS))
        return [(said["run"], name) for name in said["snapshots"]]
    except (OSError, ValueError, KeyError):
        return []


def snapshots_of(directory):
    """[(run, name)] of the snapshots that a directory names, its checkpoint's first. Some may be gone already."""
    found = []
    with contextlib.suppress(LongshoreError, KeyError, OSError):
        said = read(directory)
        found.append((said["run"], said["snapshot"]))
    return found + [other for other in _others(directory) if other not in found]


def _remove(state, names):
    """Removes those of the named snapshots that still exist."""
    for name in names:
        if os.path.exists(os.path.join(state.path, "snapshots", f"{name}.json")):
            state.remove_snapshot(name)


@functools.cache
def _watch_deletions():
    """Lets Python's audit hooks call _remove_with() before each shutil.rmtree()."""
    sys.addaudithook(lambda event, args: _remove_with(args[0]) if event == "shutil.rmtree" else None)


def _remove_with(path):
    """Removes the snapshots of the checkpoints in a directory that is about to be deleted."""
    inner = []
    if isinstance(path, (str, os.PathLike)) and open_engines.any_open():
        inner = [path, *(os.path.join(path, d) for d in (os.listdir(path) if os.path.isdir(path) else []))]
    for directory in inner:
        found = snapshots_of(directory)
        for engine, state in open_engines.states():
            names = [name for run, name in found if run == state.path]
            if names:
                if core_of(engine).streams.asleep is None:
                    engine.settle()
                weights_files.write_json(os.path.join(directory, OTHERS), {"run": state.path, "snapshots": names})
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, FILE))  # the directory stops being a checkpoint
                _remove(state, names)


def reopen(engine, run, snapshot=None):
    """Closes the engine and opens a run in its place, rolled back to a snapshot if one is named: Engine.reopen()."""
    core = core_of(engine)
    if core.streams.asleep is not None:
        core.cycle.open_state("reopen")  # raises
    if snapshot is not None:
        if core.state is not None and os.path.realpath(run) == os.path.realpath(core.state.path):
            engine.close()
        by_rank_0(core.ranks, "engine.reopen()", lambda: rollback(run, snapshot))
    engine.close()
    core.go_on(State.open(run, ranks=core.ranks, ring_bytes=core.plan.ring_bytes), run)
