import os
import pathlib

# before torch is imported, and for the processes that tests start, so that all of them have the same bits
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

import longshore


def pytest_sessionstart(session):
    """Stops where what is imported is not the tree: an edit would seem to change nothing."""
    tree, installed = pathlib.Path(__file__).parents[1] / "longshore", pathlib.Path(longshore.__file__).parent
    other = [
        f
        for f in sorted(tree.rglob("*.py"))
        if not (there := installed / f.relative_to(tree)).exists() or there.read_bytes() != f.read_bytes()
    ]
    if other:
        pytest.exit(
            f"{other[0]} is not what {installed} has: scripts/python-test installs the tree and runs its tests",
            returncode=4,
        )


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def seed(request):
    """Of everything random in a test: printed, so that a failure can be repeated by LONGSHORE_SEED."""
    number = int(os.environ.get("LONGSHORE_SEED", "20261127"))
    print(f"SEED={number}")
    torch.manual_seed(number)
    return number
