"""The same bits: however it is computed, whatever is kept, wherever the drives are, and after kills."""

import os
import random
import shutil

import pytest

import longshore
from lives import kept, killed, make, make_or_resume, save, train
from longshore.run import checkpoint
from longshore.step import commit_blob

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")
KILLS = int(os.environ.get("LONGSHORE_KILLS", "3"))
STEPS = 4
SSH = pytest.param("ssh", marks=pytest.mark.skipif(not PROGRAM, reason="the program is not installed"))


def drives_of(kind, place, monkeypatch):
    """Of one kind, in a directory that is made. A shell stands in for ssh."""
    place.mkdir()
    if kind == "memory":
        return ["ram:"]
    if kind == "ssh":
        rsh = place / "rsh"
        rsh.write_text(f"#!/bin/sh\nshift\nexec '{PROGRAM}' drive serve --stdio\n")
        rsh.chmod(0o755)
        monkeypatch.setenv("LONGSHORE_RSH", str(rsh))
    names = {"file": ["a.volume"], "two directories": ["a", "b"]}.get(kind, ["a"])
    for name in names:
        if kind != "file":
            (place / name).mkdir()
    return [f"{'ssh://far' if kind == 'ssh' else ''}{place / name}" for name in names]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """expected(moments, seed): the digest of the ordinary loop, with everything in memory, on one directory."""
    known = {}

    def of(moments, seed):
        if moments not in known:
            place = tmp_path_factory.mktemp(moments)
            with make(place / "run", [str(place)], seed, moments=moments) as engine:
                known[moments] = train(engine, STEPS, seed)
        return known[moments]

    return of


@pytest.mark.parametrize("moments", ["fp32", "8bit"])
@pytest.mark.parametrize("drives", ["directory", "two directories", "file", "memory", SSH])
@pytest.mark.parametrize("slots, together", [(None, False), (None, True), (1, False), (1, True)], ids=str)
def test_same_bits(slots, together, drives, moments, expected, tmp_path, seed, monkeypatch):
    with (
        kept(slots),
        make(tmp_path / "run", drives_of(drives, tmp_path / "drives", monkeypatch), seed, moments=moments) as engine,
    ):
        assert train(engine, STEPS, seed, together) == expected(moments, seed)


@pytest.mark.usefixtures("one_thread")  # as the processes have, which are killed
@pytest.mark.parametrize("drives", ["directory", SSH])
def test_kills(drives, tmp_path, seed, monkeypatch):
    """Of processes that train, at any instant, LONGSHORE_KILLS of them."""
    places, instants = drives_of(drives, tmp_path / "drives", monkeypatch), random.Random(seed)
    for _ in range(KILLS):
        killed(instants, tmp_path / "run", places, seed)
    with make_or_resume(tmp_path / "run", places, seed) as engine:
        steps = engine.step_number + 2
        print(f"{KILLS} kills, {steps} steps")
        digest = train(engine, steps, seed)
    with make(tmp_path / "whole", drives_of("directory", tmp_path / "other", monkeypatch), seed) as engine:
        assert train(engine, steps, seed) == digest


@pytest.mark.usefixtures("one_thread")
def test_kills_while_checkpoints_are_saved(tmp_path, seed, monkeypatch):
    """Each is there whole, with what it said that it is of, or not at all; of the run nothing is lost, and no snapshot
    is left over."""
    places, instants = drives_of("directory", tmp_path / "drives", monkeypatch), random.Random(seed)
    run, saved = tmp_path / "run", tmp_path / "checkpoints"
    saved.mkdir()
    with make(run, places, seed) as engine:
        train(engine, 1, seed, after=lambda engine: save(engine, saved))
    for _ in range(KILLS):
        killed(instants, run, places, seed, str(saved))
        whole = []
        for directory in sorted(saved.iterdir()):
            if (directory / checkpoint.FILE).exists():
                whole.append(directory)
                said = checkpoint.read(directory)
                assert longshore.verify(run, said["snapshot"]) == commit_blob.back(said["extra"])["digest"]
            else:
                with pytest.raises(longshore.MissingError, match="is not a checkpoint"):
                    checkpoint.read(directory)
    with longshore.resume(run) as engine:
        steps = engine.step_number + 1
        print(f"{KILLS} kills, {steps} steps, {len(whole)} of {len(list(saved.iterdir()))} checkpoints")
        checkpoint.load(engine, whole[0])
        assert f"step-{engine.step_number:06}" == whole[0].name and engine.step_number < steps
        digest = train(engine, steps, seed, after=lambda engine: save(engine, saved))
        for directory in saved.iterdir():
            shutil.rmtree(directory)
    assert not list((run / "snapshots").iterdir())
    with make(tmp_path / "whole", drives_of("directory", tmp_path / "other", monkeypatch), seed) as engine:
        assert train(engine, steps, seed) == digest
