"""A device whose memory is the host's (standin.py): it computes in the pages, with the CPU's bits and no copy."""

import pytest

import standin


def ways(told):
    found = [name.removesuffix(" cpu") for name in told if name.endswith(" cpu")]
    assert len(found) == 22
    return [(name, told[f"{name} cpu"], told[f"{name} {standin.NAME}"]) for name in found]


def test_bits_are_those_of_the_cpu(told):
    for name, here, there in ways(told):
        for key in ("digest", "loss", "norm"):
            assert here[key] == there[key], name
    here, there = told["by a script"]
    assert here == there
    for here, there in told["checkpoints"]:
        assert here == there


def test_no_parameter_is_copied(told):
    for name, _, there in ways(told):
        assert there["seen"] > 100 and (there["copied"] > 0) == ("activations" in name), name


def test_memory_comes_back(told):
    for name, _, there in ways(told):
        assert there["kept"] <= 4096 and there["more_pinned"] <= 0, name


def test_pages_keep_their_values_until_streams_have_passed(told):
    """An operation on the stand-in may read as late as somebody waits for its stream. Without the tier's waits it reads
    what was fetched, widened or updated meanwhile."""
    for name, _, there in ways(told):
        assert there["overwritten"] == 0, name
    here, there, overwritten = told["at once"]
    assert here == there and overwritten == told["overwritten"] == 0
    assert len(told["without waits"]) == 3
    for name, overwritten in told["without waits"].items():
        assert overwritten > 0, name


def test_pages_are_prefetched_where_streams_have_passed(told):
    for here, there, overwritten in told["seen to have passed"]:
        assert here == there and overwritten == 0


@pytest.mark.parametrize("name", ["goes on", "goes on, widened"])
def test_runs_go_on_as_with_two_tiers(name, told):
    """Through sleep, with a frozen model beside, after a script's write, opened again, and on the CPU."""
    two, one, overwritten = told[name]
    assert two == one and overwritten == 0
    assert one[1] == 0  # pinned bytes of a sleeping engine


def test_what_ends_early(told):
    here, value = told["read late"]
    assert here == value and told["dropped"] == 1
    lost = told["lost"]
    assert "the device is lost" in lost["said"] and lost["same"] and lost["after"] == [0, 1, 2]


def test_budgets_share_what_is_free(told):
    budgets = told["budgets"]
    for name in ("default", "gpu", "little", "memory"):
        of = budgets[name]
        assert 0 < of["held"] <= of["memory"] and of["memory"] + of["gpu_memory"] <= of["free"], name
        assert 0 < of["most"] <= of["gpu_memory"], name
    assert budgets["default"]["gpu_memory"] > budgets["default"]["free"] * 8 // 10
    assert budgets["said"].startswith("pinned_memory= is for an accelerator with memory of its own, and mtia:0 ")
