"""wrap(trains=False) beside a model that trains, on a device that the machine has not (standin.py): bits of the CPU."""

import pytest

import standin


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("slots", [1, 9])
def test_bits_are_those_of_the_cpu(slots, together, told):
    here, there = (told[f"{where} {slots} {together}"] for where in ("cpu", standin.NAME))
    assert here["digest"] == there["digest"] and here["losses"] == there["losses"] and len(set(here["losses"])) == 4
    assert here["devices"] == ["cpu"] and there["devices"] == [standin.NAME]
    assert here["gradients"] == there["gradients"] == 0
    assert max(here["held"], there["held"]) <= 64 << 20


def test_the_way_back_through_it(told):
    here, there = told["prompt cpu"], told[f"prompt {standin.NAME}"]
    assert here["gradient"] == there["gradient"] and here["same"] and there["same"]


def test_an_engine_gives_memory_between_two_steps(told):
    for full in (told["full cpu"], told[f"full {standin.NAME}"]):
        assert full["full"] and full["held"] <= full["memory"] and full["digest 0"] == full["digest 1"]
    assert told[f"full {standin.NAME}"]["less"] > 0
    assert told["full cpu"]["digest 0"] == told[f"full {standin.NAME}"]["digest 0"]


def test_both_count_against_one_gpu_memory(told):
    """Also where the frozen model is found again."""
    for first, second in told["device budgets"]:
        assert first == second and first[0] == 64 << 20


def test_nothing_of_it_stays_there(told):
    assert told[f"live {standin.NAME}"] == 0
