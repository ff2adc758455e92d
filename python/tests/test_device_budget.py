"""gpu_memory=: what a process adds to a device's memory stays within it, and what is too little says the least that is
enough. On the device of standin.py."""

import re

from longshore import native

TOO_LITTLE = r"gpu_memory=\S+ \wiB is too little for this (model|batch): minimum (\S+ MiB)"


def test_the_peak_stays_within(told):
    """Also at the least that was printed. The bits are the CPU's with any number of slots."""
    for name, of in told["grid"].items():
        for limit, most, slots in of["runs"]:
            assert most <= limit, (name, slots)
        assert len(set(of["digests"])) == 1, name
    slots = {number for of in told["grid"].values() for _, _, each in of["runs"] for number in each}
    assert {0, 1} < slots and len(slots) > 3


def test_a_mebibyte_less_is_refused(told):
    asked = 0
    for name, of in told["grid"].items():
        assert [re.fullmatch(TOO_LITTLE, said)[1] for said in of["said"]] in (["model"], ["model", "batch"]), name
        if of["less"] is not None:
            assert re.fullmatch(TOO_LITTLE, of["less"]), name
            asked += "this batch" in of["less"]
    assert asked >= 5


def test_a_larger_batch_is_measured_before_it_counts(told):
    grows = told["grows"]
    assert grows["most"] <= grows["limit"] and len(set(grows["digests"])) == 1
    least, small, measured, large, *later = grows["slots"]
    assert least == measured < large < small and set(later) == {large}
    assert grows["same places"] == [False, False, False, True, True]


def test_a_batch_that_is_too_large_ends_its_pass(told):
    too_large = told["too_large"]
    assert len(too_large["said"]) == 4
    for said, at_step in too_large["said"]:
        assert re.fullmatch(TOO_LITTLE, said)[1] == "batch" and at_step == 1
    assert too_large["digests"][0] == too_large["digests"][1]


def test_generation_stays_within(told):
    generates = told["generates"]
    assert generates["most"] <= generates["limit"] and generates["same"]


def test_a_run_remembers_its_budget(told):
    assert told["remembers"] == [20 << 20, 20 << 20, 30 << 20, 0]


def test_what_is_said_of_a_device_that_others_use(told):
    refused = told["refused"]
    assert refused["default"] == refused["free"] * 9 // 10
    assert re.fullmatch(
        r"gpu_memory=41.00 MiB is more than what is free on mtia:0, 4\d.\d\d MiB: give less, or end what uses .*",
        refused["more"],
    ), refused["more"]
    assert "gpu_memory= is for a model that computes on an accelerator" in refused["cpu"]


def test_memory_that_others_have_taken_meanwhile(told):
    slots, step = told["taken_by_others"]
    assert len(set(slots)) == 1 and step == 3


def test_a_script_that_reads_all_parameters_together(told):
    whole = told["whole_model"]
    assert whole["same"] and whole["slots"][0] == 6 > whole["slots"][1]


def test_a_frozen_model_shares_the_budget(told):
    beside = told["beside_a_frozen"]
    assert beside["most"] <= beside["limit"], beside


def test_sizes_that_are_printed_are_enough():
    from longshore.run.device_memory import said

    for nbytes in (1, 104857, 104858, (1 << 20) - 1, 1 << 20, (12 << 20) + 419431, (1 << 30) + 1):
        assert nbytes <= native.size(said(nbytes)) < nbytes + max(104859, nbytes // 64)
