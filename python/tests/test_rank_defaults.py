"""What a rank has where nothing is named: its device, and its part of the host's memory."""

import warnings

import pytest
import torch
from torch import nn

import longshore
from longshore.model import placement
from longshore.run import shared_budget
from rank_processes import results

MODEL = nn.Linear(2, 2)


@pytest.fixture
def devices(monkeypatch):
    """Lets PyTorch have so many devices of the kind "meta", which makes tensors everywhere."""

    def have(count, current=0):
        there = torch.device("meta")
        monkeypatch.setattr(placement, "usable_accelerator", lambda: there)
        of = {"device_count": lambda: count, "current_device_index": lambda: current}
        monkeypatch.setattr(torch, "accelerator", type("accelerator", (), of), raising=False)
        made = []
        monkeypatch.setattr(torch, "empty", lambda *size, device: made.append(device) or torch.zeros(0, device="cpu"))
        return made

    return have


@pytest.mark.parametrize(
    "rank, count, current, asked, found",
    [
        ("1", 2, 0, None, "meta:1"),
        ("1", 2, 0, "meta", "meta:1"),
        ("1", 2, 0, "meta:0", "meta:0"),  # it is named
        ("0", 2, 0, None, "meta:0"),
        ("1", 2, 1, None, "meta"),  # the script has chosen one: PyTorch's own
        ("1", 1, 0, None, "meta"),  # the launcher shows this rank its device alone
        ("", 2, 0, None, "meta"),
    ],
)
def test_the_device_of_a_rank(monkeypatch, devices, rank, count, current, asked, found):
    monkeypatch.setenv("LOCAL_RANK", rank)
    made = devices(count, current)
    placement.of(MODEL, asked, "wrap")
    assert made == [torch.device(found)]


def test_a_rank_beyond_the_devices_is_refused(monkeypatch, devices):
    monkeypatch.setenv("LOCAL_RANK", "2")
    devices(2)
    with pytest.raises(placement.LongshoreError, match="wrap: there is no meta:2; this machine has meta:0, meta:1"):
        placement.of(MODEL, "meta", "wrap")


@pytest.mark.parametrize("value", [0, -1, True, "60", float("inf")])
def test_a_rank_timeout_is_a_time(value, tmp_path):
    said = pytest.raises(ValueError, match="rank_timeout must be a number of seconds, more than 0, and is")
    with said:
        longshore.wrap(nn.Linear(2, 2), run=tmp_path / "a", rank_timeout=value)
    with said:
        longshore.resume(tmp_path / "a", rank_timeout=value)


def test_wrap_says_what_does_not_follow_from_the_groups(tmp_path):
    def warned(model, groups):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            longshore.wrap(model, run=tmp_path / "run", overwrite=True, memory="64MiB", sum_groups=groups).close()
        return [str(w.message) for w in said if "statistics" in str(w.message)]

    (said,) = warned(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), 2)
    assert said.startswith("wrap: 1: its statistics are rank 0's, as under DDP")
    assert not warned(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), 1)
    assert not warned(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)), 2)


def goes_on_with(made, run):
    engine = longshore.wrap(nn.Linear(2, 2), run=run, memory="64MiB")
    try:
        engine.reopen(made)
    except ValueError as failure:
        return str(failure)
    return None


def test_ranks_that_cannot_share_out_the_groups_of_a_run_are_told(tmp_path):
    longshore.wrap(nn.Linear(2, 2), run=tmp_path / "made", memory="64MiB").close()
    for said in results(2, goes_on_with, tmp_path / "made", tmp_path / "run"):
        assert "made: sum_groups=1 cannot be shared out among 2 ranks" in said


def test_ranks_of_a_host_share_half_of_its_memory(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    half = shared_budget.within()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert shared_budget.within() == half // 4
    assert shared_budget.within(least=half // 2) == half // 2  # what the model needs
    assert shared_budget.within(1 << 30) == 1 << 30  # given, for each rank
