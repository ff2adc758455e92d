"""Slots on a device that PyTorch has and the machine has not (standin.py): the bits are the CPU's, and nobody waits for
it but who has to decide."""

import pytest
from torch import nn

import longshore
import standin


def test_a_device_that_does_not_go_on(told):
    """In the middle of a step, and at every call after it: nothing hangs."""
    lost = told["lost"]
    for said in (lost["said"], lost["again"]):
        assert "the device is lost" in said and "0.2 seconds" in said and "device_timeout=" in said
    assert "there was no backward pass" in lost["none"] and lost["same"]
    assert lost["after"] == [0, 1, 2]


def test_a_device_that_does_not_go_on_at_the_commit(told):
    hangs = told["hangs at the commit"]
    assert "the device is lost" in hangs["said"] and hangs["step"] == 0


def test_no_other_thread_enters_the_step(told):
    threads = [tuple(thread) for thread in told["threads"]]
    assert {comm for _, comm in threads} > {"pt_autograd_0"}
    for name, comm in threads:
        assert name == "MainThread" or "longshore-micro-batch" in name or comm.startswith("pt_autograd"), (name, comm)


def test_pinned_memory_is_what_was_planned(told):
    """A step takes none, but for the small buffers of a model at its commit, and a page for the loss."""
    for name, _, there in ways(told):
        assert there["more_pinned"] <= 0, name


@pytest.mark.parametrize(
    "name",
    [
        "together",
        "loop",
        "one slot",
        "one slot, loop",
        "checkpoints",
        "checkpoints, one slot",
        "checkpoints, one slot, loop",
        "bf16 on the drives",
    ],
)
def test_bits_are_those_of_the_cpu(name, told):
    here, there = told[f"{name} cpu"], told[f"{name} {standin.NAME}"]
    assert here["digest"] == there["digest"] and here["loss"] == there["loss"] and here["norm"] == there["norm"]
    assert sum(here["waits"]) == 0 and told["late"] > 0


@pytest.mark.parametrize(
    "name", ["together", "one slot", "checkpoints", "bf16 on the drives", "loop", "one slot, loop"]
)
def test_the_loss_alone_is_waited_for(name, told):
    """Once a step, however many passes it has, beside the wait for its last gradients."""
    assert max(told[f"{name} {standin.NAME}"]["waits"]) <= 2


def ways(told):
    found = [name.removesuffix(" cpu") for name, of in told.items() if name.endswith(" cpu") and "kept" in of]
    assert len(found) == 25
    return [(name, told[f"{name} cpu"], told[f"{name} {standin.NAME}"]) for name in found]


def test_models_have_the_bits_of_the_cpu(told):
    """Also with other numbers of slots than of pages, with activations on the drives, in bf16 on the drives, and on a
    stream of the script's own."""
    for name, here, there in ways(told):
        assert [here[key] for key in ("digest", "loss", "norm")] == [
            there[key] for key in ("digest", "loss", "norm")
        ], name


def test_memory_of_the_device_comes_back(told):
    """All but one value, whose shape the parameters of a closed engine have."""
    for name, _, there in ways(told):
        assert there["kept"] <= 4096, name


def test_the_host_waits_as_pytorch_does(told):
    """At most 4 beyond PyTorch, where waits on the device's watch count as one until it is asked for other events."""
    for name, _, there in ways(told):
        assert max(there["waits"]) <= there["pytorch"] + 4, name


def test_what_is_refused_on_a_device(told):
    said = told["refused"]
    assert "pinned memory" in said["pinned"] and "ulimit -l" in said["pinned"] and "memory=" in said["pinned"]
    assert "(nine tenths of what is free) is too little for this model: minimum 0.3 MiB" in said["slots"]
    assert said["close"] is None and "are refused on" in said["reopen"] and said["step"] == 0
    places = f"cpu (table.weight), {standin.NAME}:0 (layers.2.3.bias)"
    assert (
        said["two places"]
        == f"the model lies on {places}, and computes on one device: model.to() moves all of it to one"
    )


def test_a_device_that_fails(told):
    failed = told["failed"]
    for said in failed["said"]:
        assert "cannot be put on the device" in said and said.endswith(
            "(an illegal access); the committed state is good: continue with longshore.resume()"
        )
    assert failed["close"] is None and failed["same"]


def test_first_blocks_are_sent_before_the_last_gradient_lands(told):
    sent = told["sent early"]
    *of_gradients, _ = sent  # the last one is of the pass's end
    assert len(of_gradients) == 19 and not of_gradients[0] and of_gradients[-1]


def test_what_a_stream_reads_while_the_engine_is_closed(told):
    here, value = told["read late"]
    assert here == value


def test_an_engine_that_is_dropped(told):
    assert told["dropped"] == 1


@pytest.mark.parametrize("value", [0, -1, "5 s", True, float("nan")])
def test_a_timeout_that_is_no_time(value, tmp_path):
    said = pytest.raises(ValueError, match="device_timeout must be a number of seconds, more than 0, and is")
    with said:
        longshore.wrap(nn.Linear(2, 2), run=tmp_path / "a", device_timeout=value)
    with said:
        longshore.resume(tmp_path / "a", device_timeout=value)
    assert not (tmp_path / "a").exists()


def test_what_scripts_do_beside_the_step(told):
    here, there = told["by a script"]
    assert here == there


def test_random_states_of_a_device(told):
    """What the model draws follows from the step; beside it goes on, also in a run that is resumed."""
    found = [run for run in told.values() if isinstance(run, dict) and "random" in run]
    assert len(found) == 20
    for run in found:
        assert run["random"] == [list(range(8))] * 3


def test_autocast_of_a_device(told):
    one, together, without = (
        told[f"{name} {standin.NAME}"]["digest"] for name in ("autocast, loop", "autocast", "together")
    )
    assert one == together != without
