"""Runs whose volumes lie in one directory, and snapshots that share what never changes."""

import os
import re
import shutil
import subprocess

import pytest
import torch
from torch import nn

import longshore
from longshore import native
from longshore.run import checkpoint

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")


def made(path, drive, seed, **how):
    torch.manual_seed(seed)
    engine = longshore.wrap(
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), run=path, drives=[drive], memory="64MiB", **how
    )
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
    with pytest.raises(
        longshore.ExistsError,
        match=f"{of_b.name}: holds the state of the run {tmp_path / 'b'}, at step 1; name another path",
    ):
        made(tmp_path / "c", of_b, seed, overwrite=True)
    assert not (tmp_path / "c").exists()
    assert longshore.verify(tmp_path / "b") == digest


def test_snapshots_share_what_is_frozen(tmp_path, seed, caplog):
    """The second takes a fraction of the base, wherever blocks of files cannot be shared; each is whole when the others
    are gone."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    drive = tmp_path / "drive"
    drive.mkdir()
    config = transformers.GPT2Config(
        vocab_size=96, n_embd=192, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    model = peft.get_peft_model(
        transformers.GPT2LMHeadModel(config), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    base = 4 * sum(p.numel() for p in model.parameters() if not p.requires_grad)
    inputs = torch.arange(32).view(1, 32)

    def taken():
        return sum(os.stat(f).st_blocks * 512 for f in drive.iterdir())

    def step(engine):
        engine.backward(engine(input_ids=inputs, labels=inputs).loss)
        engine.step()
        return engine.digest()

    with longshore.wrap(model, run=tmp_path / "run", drives=[drive], lr=1e-2) as engine:
        digests, rooms = {}, [taken()]
        for name in ("one", "two", "three"):
            digests[name] = step(engine)
            engine.snapshot(name)
            rooms.append(taken())
        first, second, third = (b - a for a, b in zip(rooms, rooms[1:]))
        assert second < base / 5 and third < base / 5
        checkpoint.save(engine, tmp_path / "saved")
        if not checkpoint.shares_blocks(drive):
            assert first > base
            each, once = re.search(
                r"takes up to ([0-9.]+ \w+) of disk, and the first ([0-9.]+ \w+) more", caplog.text
            ).groups()
            each, once = (native.size(text) for text in (each, once))
            assert second < each and once - base / 10 < first - second < once + base / 10
        last = step(engine)
    for name, digest in digests.items():
        assert longshore.verify(tmp_path / "run", snapshot=name) == digest
    # stopped while it was made: nothing of it is left, and nothing of the others is touched
    [part] = drive.glob("*.snapshot-three")
    part.rename(f"{part}.partial")
    (tmp_path / "run" / "snapshots" / "three.json").rename(tmp_path / "run" / "snapshots" / "three.partial")
    longshore.resume(tmp_path / "run").close()
    assert not list(drive.glob("*three*"))
    for name in ("one", "two"):
        assert longshore.verify(tmp_path / "run", snapshot=name) == digests[name]
    subprocess.run([PROGRAM, "snapshot", tmp_path / "run", "one", "--remove"], check=True)
    assert longshore.verify(tmp_path / "run", snapshot="two") == digests["two"]
    subprocess.run([PROGRAM, "rollback", tmp_path / "run", "two"], check=True)
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.digest() == digests["two"]
        assert step(engine) == digests["three"] and step(engine) == last
    subprocess.run([PROGRAM, "remove", tmp_path / "run"], check=True)
    assert not list(drive.iterdir())
