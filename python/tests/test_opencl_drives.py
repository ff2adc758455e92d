"""Drives that compute on an OpenCL device: the bits of any other drive, moves, and what is refused."""

import pytest
import torch

import longshore
from lives import make, train

STEPS = 3


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """A place to keep them. PoCL looks for its own once in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def cache(tmp_path, kernels):
    """Skips where no OpenCL platform is."""
    (tmp_path / "probe").mkdir()
    try:
        make(tmp_path / "none", [f"opencl:{tmp_path / 'probe'}"], 1).close()
    except longshore.LongshoreError as why:
        if "no platform here has a device" not in str(why) and "no libOpenCL.so.1 here" not in str(why):
            raise
        pytest.skip(str(why))


def places(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
    return [str(tmp_path / name) for name in "abc"]


@pytest.mark.parametrize("how", [{}, {"moments": "8bit", "compress": "5%"}], ids=str)
def test_the_bits_are_those_of_any_other_drive(tmp_path, cache, how):
    a, b, c = places(tmp_path)
    with make(tmp_path / "whole", [a], 7, **how) as engine:
        wanted = train(engine, STEPS, 7)
    with make(tmp_path / "run", [f"opencl:{b}", c], 7, **how) as engine:
        train(engine, STEPS - 1, 7)
    with longshore.resume(tmp_path / "run") as engine:
        assert train(engine, STEPS, 7) == wanted


def test_what_is_wrong_is_said_before_anything_is_made(tmp_path, cache, monkeypatch):
    a, _, _ = places(tmp_path)
    for options, sentence in (
        ("device=warp drive", "there is no such device"),
        ("colour=red", "takes device=NAME|INDEX, memory=SIZE and binary=FILE"),
        ("memory=1MiB", "is too little: at least"),
    ):
        monkeypatch.setenv("LONGSHORE_OPENCL", options)
        with pytest.raises(longshore.LongshoreError) as raised:
            make(tmp_path / "run", [f"opencl:{a}"], 7)
        assert sentence in str(raised.value)
        assert not (tmp_path / "run").exists() and not list((tmp_path / "a").iterdir())
    with pytest.raises(ValueError, match="opencl:.* has memory that cannot be foreseen"):
        make(tmp_path / "run", [f"opencl:{a}"], 7, memory="1GiB", memory_of="process")
    with pytest.raises(ValueError, match="opencl:.* has memory that cannot be foreseen"):
        longshore.plan(torch.nn.Linear(8, 8), torch.zeros(2, 8), drives=[f"opencl:{a}"], memory_of="process")
