"""Slots on a device that PyTorch has and the machine has not (standin.py): the bits are the CPU's, and nobody waits for
it but who has to decide."""

import json
import pathlib
import subprocess
import sys
from concurrent.futures import Future

import pytest

import longshore
import standin
from longshore.model import device
from models import HANGS_SECONDS

pytestmark = pytest.mark.skipif(
    standin.why_not() is not None, reason=f"the stand-in for a device is not built: {standin.why_not()}"
)
PARTS = 3  # micro-batches of a step


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What came of trainings on the CPU and there."""
    directory = tmp_path_factory.mktemp("standin")
    script = pathlib.Path(__file__).with_name("on_standin.py")
    done = subprocess.run(
        [sys.executable, str(script), str(directory)],
        capture_output=True,
        text=True,
        timeout=HANGS_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((directory / "told.json").read_text())


def test_a_device_that_does_not_go_on(monkeypatch):
    monkeypatch.setattr(device, "TIMEOUT_SECONDS", 0.02)
    failure = device._landed(Future())
    assert (
        isinstance(failure, longshore.LongshoreError)
        and "device_timeout" in str(failure)
        and "longshore.resume" in str(failure)
    )


@pytest.mark.parametrize(
    "name", ["together", "loop", "one slot", "one slot, loop", "checkpoints", "bf16 on the drives"]
)
def test_bits_are_those_of_the_cpu(name, told):
    here, there = told[f"{name} cpu"], told[f"{name} {standin.NAME}"]
    assert here["digest"] == there["digest"] and here["loss"] == there["loss"] and here["norm"] == there["norm"]
    assert sum(here["waits"]) == 0 and told["late"] > 0


@pytest.mark.parametrize(
    "name", ["together", "one slot", "checkpoints", "bf16 on the drives", "loop", "one slot, loop"]
)
def test_the_loss_alone_is_waited_for(name, told):
    """The norm is known when gradients have crossed, which keeps nobody from computing."""
    assert told[f"{name} {standin.NAME}"]["waits"] == [PARTS if "loop" in name else 1] * 4


def test_what_scripts_do_beside_the_step(told):
    here, there = told["by a script"]
    assert here == there


def test_random_states_of_a_device(told):
    """What the model draws follows from the step; beside it goes on, also in a run that is resumed."""
    for run in (run for run in told.values() if isinstance(run, dict)):
        assert run["random"] == [list(range(8))] * 3


def test_autocast_of_a_device(told):
    one, together, without = (
        told[f"{name} {standin.NAME}"]["digest"] for name in ("autocast, loop", "autocast", "together")
    )
    assert one == together != without
