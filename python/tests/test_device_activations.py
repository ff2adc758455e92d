"""Activations that leave a device (standin.py): the bits are those of the CPU, and neither the host nor more of the
device's memory than is planned waits for them."""

import pytest
from torch import nn

import longshore

MIB = 1 << 20


def away(told):
    """(name, where activations stay in PyTorch's memory, where they leave the device)"""
    for name, of in told.items():
        if isinstance(of, dict) and "taken" in of:
            yield name, told[f"{name.rpartition(', ')[0]}, here"], of


def test_same_bits_wherever_they_wait(told):
    """In both loops, with either checkpoint, dropout, bf16, autocast, a stream of the script's, and little memory."""
    assert len(list(away(told))) == 52
    for name, here, there in away(told):
        assert (there["digest"], there["losses"]) == (here["digest"], here["losses"]), name
        assert there["taken"] > 0, name


def test_host_memory_is_used_before_the_drives(told):
    for name, _, there in away(told):
        if name.endswith(" host") or name == "loop, host and drives":
            assert there["written"] == 0, name
    both, alone = told["small pool, host and drives"], told["small pool, host"]
    assert both["written"] > 0 and both["taken"] > alone["taken"]


def test_memory_comes_back(told):
    for name, _, there in away(told):
        assert there["left"] == 0 and there["more_pinned"] <= 4096, name  # the loss that a step returns
    assert told["graphs"][1] <= 0 and told["graphs"][2] == 0
    assert told["by hand"]["left"] == [0, 0, 0, 0]


def test_what_is_on_its_way_is_forwarded(told):
    """From the device, and from pinned memory that the device still writes: nobody waits."""
    by_hand = told["by hand"]
    assert by_hand["same memory"] and by_hand["let go"] and by_hand["on its way"] and by_hand["waits"] == 0


def test_backward_prefetches_to_the_device(told):
    ahead, most, left = told["prefetched"]
    assert ahead == 9 and 2 <= most <= 3 and left == 0


@pytest.mark.parametrize("layers", [12, 24])
@pytest.mark.parametrize("kind", ["host", "drives"])
def test_the_host_waits_as_pytorch_does(kind, layers, told):
    steps, pytorch = told[f"waits {kind} {layers}"]
    assert max(steps) <= pytorch + 4


@pytest.mark.parametrize("kind", ["host", "drives"])
def test_inputs_of_checkpoints_take_no_memory_of_the_device(kind, told):
    """Its peak does not grow with the number of layers, as it does where they stay."""
    stays = told["peak memory 24"][0] - told["peak memory 6"][0]
    few, few_left = told[f"peak {kind} 6"]
    many, many_left = told[f"peak {kind} 24"]
    assert stays > 17 * MIB and many - few < MIB
    assert (few_left, many_left) == ([6, 6 * MIB], [24, 24 * MIB])


def test_inputs_of_checkpoints_are_counted_apart(told):
    for name, _, there in away(told):
        layers = 4 * (2 if "together" in name else 1) if "reentrant" in name else 0
        number, nbytes = there["boundaries"]
        if name.endswith("auto"):
            assert number <= layers, name
        else:
            assert number == layers and (nbytes > 0) == (layers > 0), name
    for here, there in (told["transformers False"], told["transformers True"]):
        assert here[:2] == there[:2] and there[2] >= 4


def test_a_change_after_it_was_saved_is_told_as_pytorch_does(told):
    pytorch, ours = told["in place"]
    for said in (pytorch, ours):
        assert "modified by an inplace operation" in said and "is at version 1; expected version 0" in said


def test_graphs_that_are_used_again(told):
    """retain_graph, create_graph"""
    here, there = told["graphs"][0]
    assert here == there and here[0] == here[1]


def test_a_step_that_is_broken_off_is_made_again(told):
    """In forward, in backward, and by a lack of the device's memory in both."""
    digests, said, grown = told["interrupted"]
    assert digests[0] == digests[1] and grown <= 0
    assert said.count("'broken off'") == 2 and sum("out of memory" in text for text in said) >= 3


def test_less_leaves_where_computing_stands_for_copies(told):
    """With "auto": each wait is said to take a thousand seconds from the second step on, whatever the machine does."""
    (first, *then), waited = told["stands"]
    assert first > 0 and min(then) == 0 and waited >= 1000


def test_a_device_that_does_not_go_on(told):
    said, step = told["lost"]
    assert "the device is lost" in said[0] and step == 1


def test_a_run_that_goes_on_on_a_cpu(told):
    assert told["resumed"] == [2, 0]


def test_host_memory_is_where_activations_of_a_cpu_are(tmp_path):
    with pytest.raises(ValueError, match='activations="host" .* this model computes on the CPU, .*leave it out'):
        longshore.wrap(nn.Linear(2, 2), run=tmp_path / "a", activations="host")
    assert not (tmp_path / "a").exists()
