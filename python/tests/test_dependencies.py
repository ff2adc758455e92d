"""The package with what its metadata asks for and nothing else: what other tests import hides what is missing."""

import os
import re
import subprocess
import sys
from importlib import metadata

import pytest

from models import HANGS_SECONDS

NOTHING_ELSE = """
import sys
allowed = set(sys.argv[2].split(","))

class Only:
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if path is None and first not in allowed | sys.stdlib_module_names and not first.startswith("_sysconfigdata"):
            return None
        return next((spec for finder in self.finders if (spec := finder.find_spec(name, path, target))), None)

sys.meta_path[:] = [Only(sys.meta_path[:])]
"""
TRAINING = """
import torch, longshore
run = sys.argv[1]

def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5),
                               torch.nn.Linear(8, 4))

def step(engine):
    engine.backward(engine(torch.ones(4, 8)).square().mean())
    engine.step()

with longshore.init(run):
    made = model()
engine = longshore.wrap(made, lr=torch.tensor(1e-2))
engine.follow("scheduler", torch.optim.lr_scheduler.StepLR(engine.optimizer, 2))
step(engine)
engine.train_batch([torch.ones(4, 8)] * 2, lambda out, batch: out.square().mean())
engine.close()
with longshore.resume(run, model) as engine:
    step(engine)
    assert engine.step_number == 3
    with longshore.resident(engine.module, write=True):
        next(engine.module.parameters()).data.mul_(2)
    if "safetensors" in allowed:
        engine.save_pretrained(run + "-saved", moments=True)
        longshore.wrap(model(), run=run + "-moments", moments_from=run + "-saved").close()
longshore.verify(run)
assert not {"transformers", "accelerate", "peft"} & set(sys.modules)
"""


def closure(name, found):
    """The names of modules that a distribution brings, and all those that it requires."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return  # of another system
    if distribution.name.lower() in found:
        return
    top = (distribution.read_text("top_level.txt") or "").split()
    found[distribution.name.lower()] = {
        *top,
        *(
            part.partition(".")[0]
            for f in distribution.files or ()
            if (part := f.parts[0]) and f.suffix in (".py", ".so")
        ),
    }
    for required in distribution.requires or ():
        if "extra ==" not in required:
            closure(re.match(r"[\w.-]+", required)[0], found)


@pytest.mark.parametrize("without", [(), ("numpy", "safetensors")])
def test_trains_with_what_is_required_alone(without, tmp_path):
    """without: the engine itself needs neither; NumPy's random numbers are kept where a script has imported it."""
    found = {}
    closure("longshore", found)
    assert {"torch", "cffi", "numpy", "safetensors"} <= found.keys() and "transformers" not in found
    allowed = set().union(*found.values()).difference(without)
    script = tmp_path / "script.py"
    script.write_text(NOTHING_ELSE + TRAINING)
    path = os.pathsep.join(p for p in sys.path if p)
    out = subprocess.run(
        [sys.executable, script, tmp_path / "run", ",".join(sorted(allowed))],
        capture_output=True,
        text=True,
        timeout=HANGS_SECONDS,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert out.returncode == 0, out.stderr
