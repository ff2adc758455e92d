"""python -m longshore doctor, with and without an accelerator, and what the package asks CUDA."""

import contextlib
import gc
import json
import os
import subprocess
import sys
from unittest import mock

import pytest
import torch

import standin
from longshore.errors import LongshoreError
from longshore.model import cuda
from longshore.model.pinned import Pinned
from longshore.run import device_memory, doctor
from models import HANGS_SECONDS

MIB = 1 << 20
CUDA = torch.device("cuda", 0)


def run(*words, path=None):
    env = dict(os.environ, CUDA_VISIBLE_DEVICES="", **({} if path is None else {"PATH": path}))
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=HANGS_SECONDS, check=False, env=env
    )


def test_without_an_accelerator():
    done = run("-m", "longshore", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    names = [check["check"] for check in out["checks"]]
    assert out["ok"] and names[:3] == ["PyTorch", "system", "accelerator"]
    assert torch.__version__ in out["checks"][0]["text"] and "models train on the CPU" in out["checks"][2]["text"]
    said = run("-m", "longshore", "doctor").stdout.splitlines()
    assert [line.split(":")[0].split(maxsplit=1)[1] for line in said[:3]] == names[:3]


def test_without_the_program():
    """It may be installed beside Python, where PATH does not count."""
    call = "import sys; from longshore.run import doctor; sys.exit(doctor.main(None, sys.argv[1:]))"
    done = run("-c", call, "--json")
    out = json.loads(done.stdout)
    assert done.returncode == 0 and out["checks"][-1]["check"] == "program" and "make install" in done.stdout
    assert "make install" in run("-c", call).stdout


ON_STANDIN = """
import json, platform, sys
from unittest import mock
import standin
standin.make()
from longshore.run import doctor, shared_budget
doctor.RATE_BYTES, doctor.PINNED_BYTES = 4 << 20, 1 << 20
out = {}
def look(name, pinned=-1, memory=-1):
    standin.limit(memory, pinned)
    report = doctor.Report(False)
    doctor.examine(report)
    out[name] = {check["check"]: check for check in report.checks}, report.broken, standin.pinned()
with mock.patch.object(shared_budget, "within", lambda: 64 << 20):
    look("plenty")
    look("short", pinned=5 << 20)
    look("none", pinned=0)
    look("full", memory=standin.live() + (1 << 20))
    with mock.patch.object(platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2"):
        look("wsl", pinned=5 << 20)
print(json.dumps(out))
"""


@pytest.mark.skipif(standin.why_not() is not None, reason=f"the stand-in is not built: {standin.why_not()}")
def test_with_an_accelerator():
    done = run("-c", ON_STANDIN)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    for checks, _, kept in told.values():
        assert kept == 0 and "mtia" in checks["mtia:0"]["text"]
    checks, broken, _ = told["plenty"]
    assert checks["pinned memory"]["pinned_bytes"] == 32 * MIB and not broken  # a quarter of the memory
    assert checks["pinned memory"]["status"] == "ok" and "at least 32.00 MiB" in checks["pinned memory"]["text"]
    assert checks["bus"]["to_bytes_per_second"] > 0 and checks["bus"]["from_bytes_per_second"] > 0
    assert checks["mtia:0"]["available_bytes"] <= checks["mtia:0"]["memory_bytes"] == 8 << 30
    short = told["short"][0]["pinned memory"]
    assert 4 * MIB <= short["pinned_bytes"] <= 5 * MIB and short["status"] == "warn"
    assert "cannot be pinned" in short["text"] and "pinned_memory=" in short["advice"]
    checks, broken, _ = told["none"]
    assert checks["pinned memory"]["status"] == "fail" and broken == ["pinned memory"]
    assert "not measured" in checks["bus"]["text"]
    assert "not measured" in told["full"][0]["bus"]["text"]
    wsl = told["wsl"][0]["system"]
    assert "WSL2" in wsl["text"] and ".wslconfig" in wsl["advice"] and "not WSL2" in told["short"][0]["system"]["text"]


def test_the_limit_of_locked_memory_does_not_hold_for_who_may_lock(tmp_path):
    """Root, but not root in a container, which lacks the capability."""
    for number, (capabilities, may) in enumerate([("000001ffffffffff", True), ("00000000a80425fb", False)]):
        status = tmp_path / str(number)
        status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
        assert doctor.locks_without_limit(status) is may


class Cudart:
    """What torch.cuda.cudart() gives, of a machine that pins `most` bytes."""

    def __init__(self, most):
        self.most, self.held, self.ended = most, {}, []

    def cudaHostRegister(self, address, nbytes, flags):
        if nbytes > self.most:
            return 2
        self.held[address] = nbytes
        return 0

    def cudaHostUnregister(self, address):
        self.ended.append((address, self.held.pop(address)))
        return 0

    def cudaGetErrorString(self, code):
        return f"out of memory ({code})"


def test_cuda_registers_what_was_mapped():
    cudart = Cudart(MIB)
    with (
        mock.patch.object(torch.cuda, "cudart", lambda: cudart),
        mock.patch.object(torch.cuda, "device", contextlib.nullcontext),
        mock.patch.object(torch, "ones") as looks,
    ):
        pinned = Pinned(5000, CUDA)
        held = {pinned.address: 5000}
        assert cudart.held == held and pinned.address % 4096 == 0 and pinned.bytes.numel() == 5000
        pinned.release()
        pinned.release()
        assert cudart.held == {} and len(cudart.ended) == 1
        dropped = Pinned(5000, CUDA)
        del dropped
        gc.collect()
        assert cudart.held == {} and len(cudart.ended) == 2
        looks.assert_not_called()
        with pytest.raises(LongshoreError, match=r"2.00 MiB of pinned memory.*out of memory \(2\).*ulimit -l"):
            Pinned(2 * MIB, CUDA)
        looks.assert_called_once()  # an operation that takes the error which CUDA remembers
        assert cudart.held == {}


def test_what_cuda_says_of_a_gpu():
    said = (
        "GPU:0\nprocess       4711 uses     2048.000 MB GPU memory\nprocess         12 uses        0.500 MB GPU memory"
    )
    with mock.patch.object(torch.cuda, "list_gpu_processes", lambda device: said):
        assert cuda.users(CUDA) == {4711: 2 << 30, 12: MIB // 2}
    with mock.patch.object(torch.cuda, "list_gpu_processes", side_effect=ModuleNotFoundError):
        assert cuda.users(CUDA) == {}
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "get_device_properties", lambda device: mock.Mock(is_integrated=1)),
    ):
        assert cuda.is_unified(CUDA)
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(cuda, "cuda_of_driver", lambda: 13020),
        mock.patch.object(torch.version, "hip", None),
    ):
        assert "for CUDA up to 13.2" in cuda.driver()
    for device in (torch.device("cpu"), torch.device("mtia")):
        assert not cuda.registers(device) and not cuda.is_unified(device) and cuda.users(device) == {}


def test_memory_of_a_gpu_where_torch_accelerator_does_not_tell_it():
    """As in PyTorch 2.9, which counts what was allocated there. doctor and gpu_memory= ask in one way."""
    counts = mock.Mock(spec=["memory_allocated", "memory_reserved"])
    counts.memory_allocated.return_value, counts.memory_reserved.return_value = 3 * MIB, 5 * MIB
    with (
        mock.patch.object(torch, "accelerator", counts),
        mock.patch.object(torch.cuda, "mem_get_info", lambda device: (MIB, 8 * MIB)),
    ):
        assert device_memory.memory(CUDA) == (MIB, 8 * MIB) and device_memory.free_bytes(CUDA) == 3 * MIB
