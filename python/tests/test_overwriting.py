"""A run that is overwritten stays until the new one is made, and one that was put back goes on when told to."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import longshore

FAIL_IO = pathlib.Path(__file__).parents[2] / "tests" / "tools" / "fail_io.c"


def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))


def made(place, seed, net=None, **how):
    (place / "drive").mkdir(exist_ok=True)
    return longshore.wrap(net or model(seed), run=place / "run", drives=[place / "drive"], memory="64MiB", **how)


def step(engine):
    engine.backward(engine(torch.ones(1, 8)).sum())
    engine.step()


def files(place):
    return sorted((str(path), path.stat().st_ino) for path in place.rglob("*"))


def each_call_fails(place, seed, log):
    """Overwrites a run again and again; each time another call that touches the run or its drive fails, once: every
    EVERY-th, from one on that the seed gives. Returns how many there are."""
    every = int(os.environ.get("EVERY", "8"))
    made(place, seed).close()
    was, listed, n = longshore.verify(place / "run"), files(place), seed % every
    while True:
        log.unlink(missing_ok=True)
        os.environ["FAIL_IO"], why = f"any {n} 5 {place}", None
        try:
            made(place, seed + 1 + n, overwrite=True).close()
        except (longshore.LongshoreError, OSError) as error:
            why = error
        os.environ["FAIL_IO"] = ""
        if not log.exists():
            assert why is None, why
            return n
        said = f"call {n}, {log.read_text().strip()}: {why}"
        now = longshore.verify(place / "run")
        if now == was:
            assert why is not None and files(place) == listed, said
        else:
            longshore.resume(place / "run", model(0)).close()
            volumes = sorted((place / "drive").iterdir(), key=lambda path: path.stat().st_mtime)
            if why is None and re.match("(open|read|unlink) ", said.split(", ")[1]):
                for stray in volumes[:-1]:  # it could not be read, or removed, and a warning says so
                    stray.unlink()
            else:
                assert len(volumes) == 1, said
            was, listed = now, files(place)
        n += every


def test_each_call_fails_once(tmp_path, seed):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    library, log = tmp_path / "fail_io.so", tmp_path / "failed"
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, FAIL_IO, "-ldl"], check=True)
    (tmp_path / "over").mkdir()
    done = subprocess.run(
        [sys.executable, __file__, tmp_path / "over", str(seed), log],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(library), "FAIL_IO_LOG": str(log)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) > 50


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_cannot_be_stored(bad, tmp_path, seed):
    with made(tmp_path, seed) as engine:
        step(engine)
    was, listed = longshore.verify(tmp_path / "run"), files(tmp_path)
    broken = model(seed)
    broken[1].bias.data[1] = bad
    with pytest.raises(longshore.NotFiniteError, match="1.bias: holds a value that is not finite, so no run was made"):
        made(tmp_path, seed, broken, overwrite=True)
    assert longshore.verify(tmp_path / "run") == was and files(tmp_path) == listed


@pytest.mark.parametrize("kind, name", [(torch.optim.AdamW, "exp_avg_sq"), (torch.optim.Adagrad, "sum")])
def test_negative_second_moments_are_refused(kind, name, tmp_path, seed):
    """Wherever moments are read: from an optimizer, a directory and a state dict."""
    net = model(seed)
    optimizer = kind(net.parameters(), lr=1e-3)
    net(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    right = {**optimizer.state[net[1].weight]}
    optimizer.state[net[1].weight][name] = -right[name].abs() - 1e-3
    refused = pytest.raises(longshore.LongshoreError, match="1.weight: holds a negative second moment")
    with refused:
        made(tmp_path, seed, net, optimizer=optimizer)
    assert not (tmp_path / "run").exists()
    wrong = optimizer.state_dict()
    optimizer.state[net[1].weight] = right
    with made(tmp_path, seed, net, optimizer=optimizer) as engine:
        before = engine.digest()
        with refused:
            engine.optimizer.load_state_dict(wrong)
        assert engine.digest() == before
        engine.save_pretrained(tmp_path / "saved", moments=True)
    from safetensors.torch import load_file, save_file

    [file] = (tmp_path / "saved" / "optimizer" / name).glob("*.safetensors")
    moments = load_file(file)
    moments["1.weight"][0, 0] = -1e-30
    save_file(moments, file)
    with refused:
        longshore.wrap(
            model(seed),
            run=tmp_path / "other",
            memory="64MiB",
            moments_from=tmp_path / "saved",
            optimizer=kind.__name__.lower(),
        )
    assert not (tmp_path / "other").exists()


def test_accept_step(tmp_path, seed):
    digests = []
    with made(tmp_path, seed) as engine:
        for _ in range(2):
            step(engine)
            digests.append(engine.digest())
    [volume] = (tmp_path / "drive").iterdir()
    shutil.copy(volume, tmp_path / "old")
    with longshore.resume(tmp_path / "run", model(0)) as engine:
        step(engine)
    shutil.copy(tmp_path / "old", volume)
    with pytest.raises(longshore.LongshoreError, match="at step 2 but step 3 was committed"):
        longshore.resume(tmp_path / "run", model(0))
    for wrong in (True, -1, 2.0, "2"):
        with pytest.raises(ValueError, match="resume: accept_step="):
            longshore.resume(tmp_path / "run", model(0), accept_step=wrong)
    with longshore.resume(tmp_path / "run", model(0), accept_step=2) as engine:
        assert engine.digest() == digests[1]
        step(engine)
    longshore.resume(tmp_path / "run", model(0)).close()


if __name__ == "__main__":
    print(each_call_fails(pathlib.Path(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])))
