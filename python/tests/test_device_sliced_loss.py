"""The loss of a head in slices of tokens, on a device (on_standin_sliced_loss.py): its bits are the CPU's."""


def test_bits_are_those_of_the_cpu(told):
    for here, there, whole in told.values():
        assert here == there != whole
    assert len({digests[0] for digests in told.values()}) == 1  # together, and one after the other
