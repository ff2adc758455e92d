"""Drives that compute on an OpenCL device: the bits of other drives, and a run that goes on there."""

import ctypes
import os

import pytest
import torch

import longshore
from models import gpt2, tokens


@pytest.fixture(autouse=True)
def platform(tmp_path_factory, monkeypatch):
    """PoCL, on Debian. CI has it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    count = ctypes.c_uint(0)
    try:
        ctypes.CDLL("libOpenCL.so.1").clGetPlatformIDs(0, None, ctypes.byref(count))
    except OSError:
        pass
    if not count.value and os.environ.get("CI") != "true":
        pytest.skip("no OpenCL platform is here")


def three_steps(engine):
    for batch in tokens(3):
        engine.backward(engine(**batch).loss)
        engine.step()
    return engine.digest()


@pytest.mark.parametrize("how", [{}, {"moments": "8bit", "compress": 0.02}, {"optimizer": "sgd", "momentum": 0.9}])
def test_the_same_bits(how, tmp_path, seed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digests = []
    for name, kind in ("here", ""), ("device", "opencl:"):
        drives = [kind + name, f"{name}-too.volume"]
        (tmp_path / name).mkdir()
        torch.manual_seed(seed)
        with longshore.wrap(gpt2(layers=2), run=f"run-{name}", drives=drives, lr=1e-2, memory="1GiB", **how) as engine:
            digests.append(three_steps(engine))
    assert digests[0] == digests[1]
    digests = []
    for name in "here", "device":
        with longshore.resume(f"run-{name}", gpt2(layers=2)) as engine:
            digests.append(three_steps(engine))
    assert digests[0] == digests[1]


def test_a_device_that_is_not_there(tmp_path, seed, monkeypatch):
    monkeypatch.setenv("LONGSHORE_OPENCL", "device=absent")
    with pytest.raises(longshore.LongshoreError, match="device=absent: there is no such device; there are: 0 "):
        longshore.wrap(gpt2(layers=2), run=tmp_path / "run", drives=[f"opencl:{tmp_path}"], lr=1e-2, memory="1GiB")
    assert not list(tmp_path.iterdir())
