"""What crosses between the CPU and a device in a step (on_standin_streams.py), and what is waited for: the bits are the
CPU's."""

import json
import pathlib
import subprocess
import sys

import pytest

import standin
from models import HANGS_SECONDS

pytestmark = pytest.mark.skipif(
    standin.why_not() is not None, reason=f"the stand-in for a device is not built: {standin.why_not()}"
)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What came of each run: [on the CPU, there]."""
    directory = tmp_path_factory.mktemp("standin")
    script = pathlib.Path(__file__).with_name("on_standin_streams.py")
    done = subprocess.run(
        [sys.executable, str(script), str(directory)],
        capture_output=True,
        text=True,
        timeout=HANGS_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((directory / "told.json").read_text())


def test_bits_are_those_of_the_cpu(told):
    for name, runs in told.items():
        if isinstance(runs, list):
            here, there = runs
            assert here["digest"] == there["digest"], name


@pytest.mark.parametrize("pages", [9, 2])
def test_what_does_not_change_is_put_once(pages, told):
    """Where the device has room for all layers. A step that is skipped changes none of them."""
    here, there = told[f"frozen, 9 over {pages}"]
    trained, frozen = there["trained"], there["frozen"]
    assert there["put"] == [trained + frozen, trained, trained, 0, trained] and frozen
    assert here["put"] == [0] * 5


def test_in_few_slots_the_last_layers_are_put_once_for_two_passes(told):
    """The first pass of a step finds none of them, and of the others each finds the two with which one before ended."""
    _, there = told["frozen, 2 over 9"]
    assert there["put"][0] == (there["trained"] + there["frozen"]) / 4 * (4 + 3 * 2)


def test_the_host_waits_as_pytorch_does(told):
    """At most 4 times more in a step of 4 micro-batches, whose losses a script reads."""
    assert len(told["waits"]) == 10
    for name, found in told["waits"].items():
        assert found["pytorch"] == 4 and min(found["waits"][1:]) <= found["pytorch"] + 4, name
