"""Gradients without room in memory leave it while the next block's come, within the budget for both."""

import pytest
import torch

import longshore
import models
from longshore.native import lib
from longshore.run.engine_surface import core_of
from longshore.step.gradients import Gradients


def trained(run, memory, steps=3):
    """(the digest after these steps, its core, what shore_step_wait_for_room() was told in each pass)."""
    torch.manual_seed(3)
    engine = longshore.wrap(models.gpt2(), run=run, memory=memory, lr=1e-3)
    core = core_of(engine)
    for batch in models.tokens(steps):
        engine.backward(engine(**batch).loss)
        engine.step()
    digest = engine.digest()
    engine.close()
    return digest, core


@pytest.fixture
def told(monkeypatch):
    """[(room, bytes in memory beside the C step's, the coming block)] of each wait for room."""
    found, make_room = [], Gradients._make_room

    def recorded(self, coming=None):
        tell, asked = self.step.tell, []
        self.step.tell = lambda function, *given: (
            asked.append(given) if function is lib.shore_step_wait_for_room else None,
            tell(function, *given),
        )[1]
        try:
            make_room(self, coming)
        finally:
            self.step.tell = tell
        held = sum(block.nbytes for block in self.blocks)
        ((more, room),) = asked
        found.append((coming, room, more, held))

    monkeypatch.setattr(Gradients, "_make_room", recorded)
    return found


def test_gradients_leave_while_the_next_ones_come_within_their_memory(tmp_path, told):
    with pytest.raises(longshore.BudgetError) as least:
        longshore.wrap(models.gpt2(), run=tmp_path / "none", memory="1MiB")
    least = str(least.value).rsplit("minimum ", 1)[1]
    digest, core = trained(tmp_path / "tight", least)
    room, aside, elems = core.plan.gradient_bytes, core.plan.aside_bytes, core.streams.layout.elems
    coming = [of for of in told if of[0] is not None]
    assert coming and all(most == room + aside for _, most, *_ in coming)
    assert all(more >= 4 * elems(block) for block, _, more, _ in coming)  # all of it counts before it has come
    assert all(held + 4 * elems(block) <= room + aside for block, _, _, held in coming)
    ends = [of for of in told if of[0] is None]
    assert ends and all(most == room and held <= room for _, most, _, held in ends)
    told.clear()
    assert trained(tmp_path / "plenty", "1GiB")[0] == digest and not told
