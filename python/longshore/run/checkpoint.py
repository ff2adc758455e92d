"""Checkpoints: a snapshot of the run, and a small directory that names it.

They cost what the file system needs to share blocks, and the directory may be moved. It stays loadable after later
steps and after kills, as long as the run is there; a checkpoint that is deleted by shutil.rmtree(), as trainers delete
theirs, takes its snapshot with it.
"""

import contextlib
import fcntl
import functools
import json
import logging
import os
import re
import stat
import sys
import tempfile
import uuid
import warnings
import weakref

from .. import native
from ..errors import BusyError, LongshoreError, MissingError
from ..native import lib
from . import commit_blob, lifecycle
from .state import State, rollback

FILE = "longshore.json"
README = "README.txt"
# snapshots that would be nobody's: of a checkpoint that is being saved, replaced or deleted
OTHERS = "longshore.others.json"
_FICLONE = 0x40049409
_said: set[str] = set()  # runs whose checkpoints' disk is known
_said_weights: set[str] = set()  # runs of which it is said that checkpoints have no weights
_engines: weakref.WeakSet = weakref.WeakSet()  # that have saved here


def read(directory):
    """What a checkpoint's directory says. MissingError: it is none."""
    path = os.path.join(directory, FILE)
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        stopped = (", since its saving or deleting was stopped; it may be deleted, or saved again" if _others(directory)
                   else "")
        raise MissingError(f"{directory}: is no checkpoint of Longshore: it has no {FILE}{stopped}") from None
    except ValueError:
        raise LongshoreError(f"{path}: is damaged: not JSON") from None


def save(engine, directory, extra=None):
    """Keeps the committed state as a snapshot, and names it in a directory, which is made. extra: what load() gives
    back, plain values. An older checkpoint in the directory goes, once this one stands."""
    directory = os.fspath(directory)
    os.makedirs(directory, exist_ok=True)
    state = engine.state
    if state is None:
        raise LongshoreError("a checkpoint: the engine is closed")
    tag = re.sub(r"[^A-Za-z0-9_-]", "-", os.path.basename(os.path.abspath(directory))).lstrip("-")[:40]
    name = f"{tag or 'checkpoint'}-{uuid.uuid4().hex[:8]}"
    before = [old for run, old in snapshots_of(directory) if run == state.path]
    _say_disk(state)
    engine.settle()
    said = {
        "format": 1,
        "run": state.path,
        "snapshot": name,
        "step": state.step,
        "groups": engine.optimizer.numbers(),
        "extra": commit_blob.plain(extra, "the state of a checkpoint"),
    }
    # whenever this is killed, one of the two files names each snapshot
    _write(directory, OTHERS, {"run": state.path, "snapshots": [name, *before]})
    engine.snapshot(name)
    _write(directory, FILE, said)
    _remove(state, before)
    os.unlink(os.path.join(directory, OTHERS))
    _engines.add(engine)
    _hear_of_deletions()
    return name


def say_weights(engine, directory, tag, ways):
    """Writes into a directory beside a checkpoint what puts weights there, so that from_pretrained() loads it; where
    there are none yet. tag: of the checkpoint; "." for the directory's own. ways: what writes them into those that
    come."""
    there, path = os.listdir(directory), os.path.join(directory, README)
    if any(name.endswith(".safetensors") or re.match(r"(pytorch|adapter)_model.*\.bin", name) for name in there):
        return
    first = "The weights of this checkpoint are not files of this directory"
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as f:
        if not f.read().startswith(first):
            return  # a user's own
    loads, out = (("here, so that from_pretrained() loads the directory", ".") if "config.json" in there
                  else ("into another directory", "OUT"))
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"""{first}: they lie in a snapshot of the run
{engine.state.path}, which {FILE} names.

This puts them {loads}:

    python -m longshore.deepspeed.zero_to_fp32 . {out} --tag {tag} --safe_serialization

{ways}
""")
    if engine.state.path not in _said_weights:
        _said_weights.add(engine.state.path)
        logging.getLogger("longshore").info("%s: has no weights, but a snapshot of the run: %s there says what loads "
                                            "them", directory, README)


def shares_blocks(directory):
    """Whether the file system of a directory lets two files share what they have in common."""
    try:
        with tempfile.TemporaryFile(dir=directory) as a, tempfile.TemporaryFile(dir=directory) as b:
            a.write(b"\0" * 4096)
            a.flush()
            fcntl.ioctl(b.fileno(), _FICLONE, a.fileno())
            return True
    except OSError:  # or nothing can be written there, which the snapshot says
        return False


def _bytes_of(state):
    """What a snapshot takes where blocks cannot be shared, and what only the first one takes: blocks that rest are the
    same in each."""
    layout, info = lib.shore_run_layout(state.run), native.new("struct shore_run_info")
    lib.shore_run_info(state.run, info)
    frozen = sum(block.segments
                 for block in layout.blocks[0:layout.nblocks] if block.tensors[0].group == lib.SHORE_GROUP_RESTS)
    bytes_kept = 4 if info.moments == lib.SHORE_MOMENTS_FP32 else 5  # of an element: the master, and a code of m's zero
    return (layout.segments - frozen) * lib.shore_fleet_state_bytes(state.fleet), frozen * native.SEGMENT * bytes_kept


def _say_disk(state):
    """Once a run: what a checkpoint takes where blocks cannot be shared."""
    if state.path in _said:
        return
    _said.add(state.path)
    places = {d if os.path.isdir(d) else os.path.dirname(d) for d in state.drives if os.path.exists(d)
              and not stat.S_ISBLK(os.stat(d).st_mode)}
    whole = sorted(place for place in places if not shares_blocks(place))
    if whole:
        each, frozen = _bytes_of(state)
        once = f", and the first {native.readable(frozen)} more, which all share, of what is frozen" if frozen else ""
        warnings.warn(f"each checkpoint takes up to {native.readable(each)} of disk{once}: {', '.join(whole)} cannot "
                      "share blocks between files, as XFS and btrfs can; keep few of them (save_total_limit)",
                      stacklevel=3)


def same_optimizer(run, wanted):
    """Refuses a run whose UPDATE would be given another optimizer's numbers."""
    with contextlib.closing(State.open(run, read_only=True, without_drives=True)) as record:
        made = (record.program or {}).get("engine", {}).get("optimizer", wanted)
    if made != wanted:
        raise LongshoreError(f"{run}: its optimizer is {made}, and {wanted} is asked for: ask for {made}, or make "
                             "another run and take the parameters alone")


def load(engine, directory, weights_only=False, followed=(), any_optimizer=False):
    """Puts the engine where it was when the checkpoint was saved, in the run that the checkpoint is of; where another
    engine works on that one, in its own run, as a step of its own. weights_only: the parameters and buffers, with what
    is named in followed, always so; moments, counts and random states stay as they are. any_optimizer: no step is to be
    made. Returns what save() was given as extra."""
    said = read(directory)
    run = said["run"]
    if not os.path.exists(os.path.join(run, "run.json")):
        if engine.state is None or not os.path.exists(os.path.join(engine.state.path, "run.json")):
            raise MissingError(f"{directory}: is a snapshot of the run {run}, which is not there; moved? Write its "
                               f"place into {FILE}")
        run = engine.state.path  # moved: it says itself whether it has the snapshot
    if weights_only:
        step = _take_over(engine, run, said["snapshot"], followed)
    else:
        if not any_optimizer:
            same_optimizer(run, engine.how["optimizer"])
        try:
            if engine.state is None or run != engine.state.path:
                lifecycle.refuse_second(run)  # at once, where drives would wait for it
            engine.reopen(run, said["snapshot"])
            step = engine.state.step
        except BusyError:
            if engine.state is None:
                raise
            step = _take_over(engine, run, said["snapshot"])
    if step != said["step"]:
        raise LongshoreError(f"{directory}: is of step {said['step']}, and the snapshot {said['snapshot']} of {run} "
                             f"of {step}")
    if not weights_only:
        commit_blob.restore_groups(said, engine)
    _engines.add(engine)
    return commit_blob.back(said["extra"])


def _take_over(engine, run, snapshot, followed=None):
    """Commits what a run keeps as a step of the engine's own: all is as it was there, but the step's number. Returns
    that which it had there. followed: only parameters, buffers, and what is followed under these names."""
    if engine.state is None:
        raise LongshoreError("a checkpoint: the engine is closed")
    engine.drop_gradients()
    engine.settle()
    before_all = engine.lineage, engine.cycle.counts
    other = State.open(run, read_only=True, snapshot=snapshot)
    try:
        other.layout.continue_as(engine.layout, run)
        if followed is None and other.kinds != engine.state.kinds:
            raise LongshoreError(f"{run}: has another optimizer or other moments than {engine.state.path}, into which "
                                 "its state is to be copied, since another engine works on it; close that one, or ask "
                                 "for the same optimizer")
        for number, block in enumerate(engine.layout.blocks):
            if not block.buffers:  # which are stored with the step
                engine.state.copy(other, number, masters=followed is not None)
        engine.cycle.counts_before = engine.cycle.counts
        engine.cycle.counts = [list(counts) for counts in engine.cycle.counts]
        saved = commit_blob.of(other)
        if followed is None:
            commit_blob.restore(engine, saved, other)
            seed, before = engine.lineage
            engine.lineage = [seed, before + other.step - (engine.state.step + 1)]
        else:
            commit_blob.restore_buffers(engine, saved, other)
            for name in followed:
                commit_blob.restore_followed(saved, name, engine.followed[name])
        engine.cycle.close({"loaded": f"{snapshot} of {run}"}, range(len(engine.streams.blocks)))
        engine.settle()
        return other.step
    except BaseException:
        engine.cycle.discard()
        engine.lineage, engine.cycle.counts = before_all
        raise
    finally:
        other.close()


def _write(directory, name, said):
    path = os.path.join(directory, name)
    with open(path + ".partial", "w", encoding="utf-8") as f:
        json.dump(said, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".partial", path)


def _others(directory):
    """(run, name) of what OTHERS names."""
    try:
        with open(os.path.join(directory, OTHERS), encoding="utf-8") as f:
            said = json.load(f)
        return [(said["run"], name) for name in said["snapshots"]]
    except (OSError, ValueError, KeyError):
        return []


def snapshots_of(directory):
    """(run, name) of the snapshots that a directory names, its checkpoint's first. Of others some may not be there any
    more."""
    found = []
    with contextlib.suppress(LongshoreError, KeyError, OSError):
        said = read(directory)
        found.append((said["run"], said["snapshot"]))
    return found + [other for other in _others(directory) if other not in found]


def _remove(state, names):
    """Removes snapshots, those that are still there."""
    for name in names:
        if os.path.exists(os.path.join(state.path, "snapshots", f"{name}.json")):
            state.remove_snapshot(name)


@functools.cache
def _hear_of_deletions():
    """From here on Python tells of each shutil.rmtree() before it begins."""
    sys.addaudithook(lambda event, args: _remove_with(args[0]) if event == "shutil.rmtree" else None)


def _remove_with(path):
    """A directory is to be deleted: the snapshots of checkpoints in it go before."""
    inner = []
    if isinstance(path, (str, os.PathLike)) and _engines:
        inner = [path, *(os.path.join(path, d) for d in (os.listdir(path) if os.path.isdir(path) else []))]
    for directory in inner:
        found = snapshots_of(directory)
        for engine in list(_engines):
            state = engine.state
            names = [name for run, name in found if state is not None and run == state.path]
            if names:
                engine.settle()
                _write(directory, OTHERS, {"run": state.path, "snapshots": names})
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, FILE))  # it is none from here on
                _remove(state, names)


def reopen(engine, run, snapshot=None):
    """As Engine.reopen()."""
    if snapshot is not None:
        if engine.state is not None and os.path.realpath(run) == os.path.realpath(engine.state.path):
            engine.close()
        rollback(run, snapshot)
    engine.close()
    state = State.open(run, ring_bytes=engine.plan.ring_bytes)
    try:
        state.layout.continue_as(engine.layout, run)
        if engine.compression and not state.made.residual:
            raise LongshoreError(f"{run}: has no room for what compression leaves out; go on without compress, or "
                                 "make it anew")
        engine.state = state
        engine.layout = engine.streams.layout = state.layout
        engine.streams.open(state)
        commit_blob.restore(engine, commit_blob.of(state), state)
        lifecycle.add(engine)
    except BaseException:
        engine.state = None
        engine.streams.end()
        state.close()
        raise
