"""Models of two dtypes on a device that PyTorch has and the machine has not (standin.py): the bits are the CPU's."""

import standin


def test_bits_are_those_of_the_cpu(told):
    """Slots that pages of both dtypes are put into, some of which the device widens."""
    names = {name.rpartition(" ")[0] for name in told} - {""}
    assert len(names) == 9
    for name in names:
        cpu, there = told[f"{name} cpu"], told[f"{name} {standin.NAME}"]
        assert {key: cpu[key] for key in ("digest", "loss", "norm")} == {
            key: there[key] for key in ("digest", "loss", "norm")
        }, name
        assert there["more_pinned"] <= 0, name


def test_the_least_memory_works_and_less_is_refused(told):
    for said, (memory, held, loss) in told["least"]:
        assert "is too little for this model: minimum" in said
        assert held <= memory and 3 < loss < 6
