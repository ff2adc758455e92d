"""Where the time of a step goes on a device, whose part of backward runs in a thread of autograd's: see
on_standin_charges.py."""

import pytest


def test_all_of_a_step_is_charged(told):
    for line in (*told["run"], *told["gpt2"]):
        assert min(line["charges"].values()) >= 0
        assert sum(line["charges"].values()) == pytest.approx(line["step_seconds"], rel=1e-6)


def test_backward_in_a_thread_of_its_own_counts(told):
    assert told["elsewhere"] and len(told["run"]) == 4
    for line in told["run"]:
        assert line["charges"]["forward"] >= 0.05 and line["charges"]["backward"] >= 0.06
