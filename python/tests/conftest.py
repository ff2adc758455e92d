import fcntl
import json
import os
import pathlib
import subprocess
import sys

# before torch is imported, and for the processes that tests start, so that all of them have the same bits
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LONGSHORE_MACHINE", "none")  # whatever is kept of this machine

import pytest
import torch

import longshore
import standin
from models import HANGS_SECONDS


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


@pytest.fixture(scope="module")
def told(request, tmp_path_factory):
    """What on_standin_NAME.py says, for test_device_NAME.py: it runs on the device of standin.py, in a process of its
    own, once for all of pytest's workers. Skips where that cannot be built."""
    if standin.why_not() is not None:
        pytest.skip(f"the stand-in for a device is not built: {standin.why_not()}")
    script = request.path.with_name(request.path.name.replace("test_device", "on_standin"))
    shared = tmp_path_factory.getbasetemp()
    directory = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / script.stem
    with open(f"{directory}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            directory.mkdir()
            command = [sys.executable, str(script), str(directory)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_SECONDS, check=False)
            assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((directory / "told.json").read_text())
