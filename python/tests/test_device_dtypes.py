"""Models of two dtypes on a device that PyTorch has and the machine has not (standin.py): the bits are the CPU's."""

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
    """What came of trainings on the CPU and there."""
    directory = tmp_path_factory.mktemp("standin")
    script = pathlib.Path(__file__).with_name("on_standin_dtypes.py")
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
    """Slots that pages of both dtypes are put into, some of which the device widens."""
    names = {name.rpartition(" ")[0] for name in told} - {""}
    assert len(names) == 9
    for name in names:
        cpu, there = told[f"{name} cpu"], told[f"{name} {standin.NAME}"]
        assert {key: cpu[key] for key in ("digest", "loss", "norm")} == {
            key: there[key] for key in ("digest", "loss", "norm")
        }, name
        assert there["more_pinned"] <= 0, name


def test_the_least_memory_works_and_less_is_refused(told):
    for said, (memory, held, loss) in told["least"]:
        assert "is too little for this model: minimum" in said
        assert held <= memory and 3 < loss < 6
