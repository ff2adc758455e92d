"""What crosses between the CPU and a device in a step (on_standin_streams.py), and what is waited for: the bits are the
CPU's."""

import pytest


def test_bits_are_those_of_the_cpu(told):
    for name, runs in told.items():
        if name.startswith(("frozen", "scaled", "edited", "random")):
            here, there = runs
            assert here["digest"] == there["digest"], name


@pytest.mark.parametrize("pages", [9, 2])
def test_what_does_not_change_is_put_once(pages, told):
    """Where the device has room for all layers. A step that is skipped changes none of them."""
    here, there = told[f"frozen, 9 over {pages}"]
    trained, frozen = there["trained"], there["frozen"]
    assert there["put"] == [trained + frozen, trained, trained, 0, trained] and frozen
    assert here["put"] == [0] * 5


def test_gradients_leave_as_autograd_makes_them(told):
    """Each micro-batch's in the dtype of the parameter: the sum becomes fp32 on the host."""
    wide, narrow = told["left"]
    assert wide[0] == 2 * wide[1] == 2 * narrow[0] and narrow[0] == 2 * narrow[1]


def test_in_few_slots_the_last_layers_are_put_once_for_two_passes(told):
    """The first pass of a step finds none of them, and of the others each finds the two with which one before ended."""
    _, there = told["frozen, 2 over 9"]
    assert there["put"][0] == (there["trained"] + there["frozen"]) / 4 * (4 + 3 * 2)


def test_a_gradient_scaler(told):
    here, there = told["scaled"]
    assert there == here and there["scales"] == [1024.0, 512.0, 512.0, 512.0] and there["steps"] == [1, 1, 2, 3]


def test_gradients_that_a_script_changes(told):
    here, there = told["edited"]
    assert there == here and True in there["seen"] and False not in there["seen"]


def test_autocast_has_the_bits_of_pytorch(told):
    cast = told["cast"]
    assert cast["same"] and len(set(cast["losses"])) == len(set(cast["dtypes"])) == 1


def test_random_numbers_follow_from_the_run(told):
    """In loop and train_batch(), where layers are computed again, and in a run that is resumed. A generator of the
    script's own draws what it draws on the CPU."""
    runs = {name: told[f"random, {name}"][1]["digest"] for name in ("loop", "together", "resumed")}
    again = [told[f"random, {name}"][1]["digest"] for name in ("reentrant", "not reentrant", "together, not reentrant")]
    assert len({*runs.values(), *again}) == 1 and told["random, nothing"][1]["digest"] not in again
    here, there = told["random, own"]
    assert there == here and there["digest"] not in runs.values() and there["own"]


def test_compiled_blocks_have_no_new_graphs(told):
    """After the second step, whoever compiles them. With aot_eager, the bits of those that are not compiled."""
    found = told["compiled"]
    for name, run in found.items():
        assert run["graphs"][1:] == [run["graphs"][1]] * 3 and bool(run["graphs"][1]) == (not name.startswith("nobody"))
        assert run["losses"] == pytest.approx(found["nobody, 1"]["losses"], rel=3e-6), name
    assert len({run["digest"] for run in found.values()}) == 1


def test_too_little_memory_in_mid_step(told):
    """The engine goes on once there is more, with the bits of one that had it from the start, and nothing is kept."""
    for name, (had, had_not) in told["short"].items():
        assert had_not["refused"] > 2 and had["refused"] == had_not["kept"] == 0, name
        assert had_not["digest"] == had["digest"] and had_not["steps"] == had["steps"] == 3, name


def test_the_host_waits_as_pytorch_does(told):
    """At most 4 times more in a step of 4 micro-batches, whose losses a script reads."""
    assert len(told["waits"]) == 10
    for name, found in told["waits"].items():
        assert found["pytorch"] == 4 and min(found["waits"][1:]) <= found["pytorch"] + 4, name
