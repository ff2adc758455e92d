"""Runs whose volumes lie in one directory."""

import pytest
import torch
from torch import nn

import longshore


def made(path, drive, seed, **how):
    torch.manual_seed(seed)
    engine = longshore.wrap(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), run=path, drives=[drive], memory="64MiB", **how)
    engine.backward(engine(torch.ones(1, 8)).sum())
    engine.step()
    return engine


def test_runs_share_a_directory(tmp_path, seed):
    drive = tmp_path / "drive"
    drive.mkdir()
    with made(tmp_path / "b", drive, seed) as engine:
        digest = engine.digest()
    [of_b] = drive.iterdir()
    for path in (tmp_path / "a", tmp_path / "other" / "b"):
        with made(path, drive, seed + 1) as engine:
            first = engine.digest()
        with pytest.raises(longshore.ExistsError):
            made(path, drive, seed)
        with made(path, drive, seed + 2, overwrite=True) as engine:
            assert engine.digest() != first
    assert len(list(drive.iterdir())) == 3
    with pytest.raises(longshore.ExistsError, match=f"{of_b.name}: holds the state of the run {tmp_path / 'b'}, at step 1; name another path"):
        made(tmp_path / "c", of_b, seed, overwrite=True)
    assert not (tmp_path / "c").exists()
    assert longshore.verify(tmp_path / "b") == digest
