"""Scripts whose last step cannot be committed when they end: said, and seen in the status that job schedulers look
at."""

import os
import subprocess
import sys

import pytest

import longshore
from models import HANGS_SECONDS

BEGINNING = """
import atexit, sys
atexit.register(lambda: print("an earlier handler"))
import torch, longshore
atexit.register(lambda: print("a later handler", file=sys.stderr, flush=True))

def trained(lr):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    engine = longshore.wrap(model, run=sys.argv[1], lr=lr, weight_decay=0.0)
    torch.manual_seed(0)
    engine.backward(engine(torch.randn(4, 8)).square().sum())
    engine.step()
    return engine

"""
DEEPSPEED = """
import sys
import torch, deepspeed
run, lr = sys.argv[1], float(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": lr}}, "longshore": {"run": run}})
engine.backward(engine(torch.randn(4, 8)).square().sum())
engine.step()
"""


def ended(tmp_path, text, *arguments, launcher=()):
    script = tmp_path / "script.py"
    script.write_text(text)
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, *launcher, script, *arguments],
        capture_output=True,
        text=True,
        timeout=HANGS_SECONDS,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize(
    "end, status",
    [
        ("engine = trained(1e38)", 120),  # an update that is not finite
        ("trained(1e38)", 120),
        ("engine = trained(1e38); sys.exit(3)", 120),
        ("engine = trained(1e-3)", 0),
        ("engine = trained(1e-3); sys.exit(3)", 3),
        ("engine = trained(1e38); sys.stderr = None", 120),
    ],
)
def test_a_plain_script(end, status, tmp_path):
    run = tmp_path / "run"
    out = ended(tmp_path, BEGINNING + end, run)
    assert out.returncode == status
    assert "an earlier handler" in out.stdout
    if "None" not in end:
        assert "a later handler" in out.stderr and "Traceback" not in out.stderr
        assert ("has not committed its last step" in out.stderr and f"resume('{run}')" in out.stderr) == (status == 120)
    longshore.verify(run)


AT_ONCE = """
import os, sys
import torch, longshore
from longshore import openmp_wait
torch.set_num_threads(2)
openmp_wait._PARALLEL = 1 << 23  # as on a busy machine: its thread computes for longer than the script lives
ends = []
for n in range(10):
    pid = os.fork()
    if not pid:
        break
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
else:
    sys.exit(str(ends) if any(ends) else 0)
engine = longshore.wrap(torch.nn.Linear(4, 4), run=f"{sys.argv[1]}{n}")
if n % 2:
    engine.close()
"""


def test_scripts_that_end_at_once(tmp_path, monkeypatch):
    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    out = ended(tmp_path, AT_ONCE, tmp_path / "run")
    assert out.returncode == 0, out.stderr


IN_INIT = """
import sys
import torch, longshore
inside = longshore.init(sys.argv[1])
inside.__enter__()  # as a notebook's cell may
model = torch.nn.Linear(512, 512)
"""


def test_a_script_that_ends_inside_init(tmp_path):
    out = ended(tmp_path, IN_INIT, tmp_path / "run")
    assert out.returncode == 0 and "Traceback" not in out.stderr, out.stderr


@pytest.mark.parametrize("lr, status", [("1e38", 120), ("1e-3", 0)])
def test_the_launcher(lr, status, tmp_path):
    out = ended(tmp_path, DEEPSPEED, tmp_path / "run", lr, launcher=("-m", "longshore.deepspeed"))
    assert out.returncode == status, out.stderr
    assert ("has not committed its last step" in out.stderr) == (status == 120)
