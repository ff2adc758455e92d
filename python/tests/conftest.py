import os

# before torch is imported, and for the processes that tests start, so that all of them have the same bits
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


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
