import os

import pytest
import torch

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
torch.set_num_threads(2)


@pytest.fixture
def seed(request):
    """Of everything random in a test: printed, so that a failure can be repeated by LONGSHORE_SEED."""
    number = int(os.environ.get("LONGSHORE_SEED", "20261127"))
    print(f"SEED={number}")
    torch.manual_seed(number)
    return number
