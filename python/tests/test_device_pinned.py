"""A device with little pinned memory (standin.py): the bits are the CPU's, and the promise holds."""

from longshore import native

MIB, LOSSES = 1 << 20, 4096  # PyTorch's pinned memory, through which a step's losses are read


def same(here, there):
    names = ("digest", "again", "loss", "norm")
    return here["norm"] > 0 and [here[name] for name in names] == [there[name] for name in names]


def test_bits_are_those_of_the_cpu(told):
    for run in told["grid"]:
        assert same(told["cpu"][run["name"]], run), run
    assert same(told["bf16"], told["short"]) and same(told["bf16"], told["very short"])


def test_pinned_memory_stays_within_its_budget(told):
    for run in told["grid"]:
        assert 0 < run["most"] <= run["pinned_memory"] + LOSSES, run
        assert run["after_close"] == run["kept"] == 0, run
    assert 0 < told["short"]["most"] <= 4 * MIB
    assert any(run["most"] > 0.9 * run["pinned_memory"] for run in told["grid"])


def test_the_least_works_and_is_named(told):
    for run in told["grid"]:
        assert run["least"].startswith("pinned_memory=64.00 KiB is too little for this model: minimum ")
        assert run["below"] is not None and "pinned_memory=" in run["below"] and "minimum" in run["below"]
        if not run["more"]:
            assert run["pinned_pages"] == 0 and run["landing"] < MIB < run["pages"]
        if run["more"] == 3:
            assert 0 < run["pinned_pages"] < run["pages"]
        if run["more"] == 64:
            assert run["pinned_pages"] == run["pages"]


def test_what_it_costs_is_said_once(told):
    for run in (*told["grid"], told["short"], told["very short"]):
        if run["pinned_pages"] == run["pages"]:
            assert run["logged"] == []
            continue
        of_parameters = [said for said in run["logged"] if "for parameters" in said]
        assert len(of_parameters) == 2, run  # of the first engine, and of the one that goes on
        for said in of_parameters:
            assert "through a ring of 100.00 KiB of pinned memory" in said and "copies them once more" in said
            assert ("pinned_memory= leaves" in said) == ("pinned_memory" in run), said
    assert "cannot be pinned" in told["short"]["logged"][0] and "doctor" in told["short"]["logged"][-1]
    assert told["short"]["pinned_pages"] > told["very short"]["pinned_pages"] == 0
    assert told["very short"]["landing"] < told["short"]["landing"]


def test_a_pool_of_activations_takes_what_can_be_had(told):
    run = told["few activations"]
    assert same(told["cpu"]["drives"], run) and 0 < run["most"] <= 4 * MIB
    assert any("for activations are pinned" in said for said in run["logged"])


def test_where_no_pinned_memory_can_be_had(told):
    said, kept = told["refused"]
    assert "are refused" in said and "cannot be pinned" in said and "python -m longshore doctor" in said
    assert kept == 0
    assert told["without"] == [0, 1, 2, 3]  # what a commit copies to the host comes through ordinary memory


def test_memory_of_an_engine_that_is_dropped(told):
    """It is unregistered, but never by a forked process."""
    assert told["dropped"]["held"] > 4 * MIB and told["dropped"]["kept"] == 0
    assert told["dropped"]["child"] == 0


def test_a_frozen_model_takes_what_the_other_leaves(told):
    beside = told["beside"]
    assert 12 * MIB < beside["both"] <= beside["given"]
    assert "which the engine beside it leaves, is too little for this model: minimum" in beside["short"]


def test_memory_is_counted(told):
    for run in told["grid"]:
        held = run["memory"].partition("of which ")[2].partition(" are held")[0]
        assert native.size(held) < native.size("1GiB") and "drives" in run["memory"]
