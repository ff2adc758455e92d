"""What becomes of activations is the plan's: their rows in the step's program, and the fates that it gives them."""

import random

import pytest
import torch

import longshore
import models
from longshore.drives.layout import Layout
from longshore.model import blocks as tree, trace as tracing
from longshore.model.activations import LEAST_BYTES
from longshore.model.fates import Fate
from longshore.run.activation_plan import Activations, Way
from longshore.run.step_program import StepProgram, sums_of
from test_memory_plan import FLEET

SLOW, FAST = "20MiB", "40GiB"


def machine(rate, drive):
    kinds = "product product_input product_weight attention attention_backward".split()
    return {
        "host": {"memory": "64GiB", "cores": 2},
        "drives": [{"read": drive, "write": drive}],
        "compute": {"products": {kind: {"fp32": rate} for kind in kinds}},
    }


@pytest.mark.parametrize("rate, drive, wins", [(1e12, SLOW, "recomputed"), (1e9, FAST, "offloaded")])
def test_what_takes_less_time_becomes_of_them(rate, drive, wins):
    import transformers

    with torch.device("meta"):
        config = transformers.GPT2Config(vocab_size=8000, n_embd=384, n_layer=6, n_head=6, n_positions=256)
        model = transformers.GPT2LMHeadModel(config).train()
    how = {"memory_of": "process", "machine": machine(rate, drive)}
    least = longshore.plan(model, (8, 256), **how)["minimum_bytes"]
    told = longshore.plan(model, (8, 256), memory=least * 3 // 2, **how)["activations"]
    assert [name for name in ("recomputed", "offloaded") if told[name]] == [wins]
    assert longshore.plan(model, (8, 256), memory=least * 8, **how)["activations"][wins] == 0


def peak(activations, way, of):
    """The most that is there at once, unit by unit. of: {name of a layer: its Fate}."""
    held, most = 0, 0
    for unit in activations.trace.units:
        needs = activations._needs(unit, of.get(unit.name, Fate.KEEP), way)
        most = max(most, held + needs.forward, held + needs.backward)
        held += needs.held
    return most + activations.trace.logits_bytes + way.pool_bytes


@pytest.mark.parametrize("fate, pool", [(Fate.AGAIN, 0), (Fate.AGAIN, 4 * LEAST_BYTES), (Fate.MOVE, 10 * LEAST_BYTES)])
def test_a_plan_counts_what_is_there_at_once(fate, pool, seed):
    """Whatever stays: sums of the plan are those of its fates, unit by unit, and no budget is exceeded."""
    chance = random.Random(seed)
    model = models.gpt2(layers=6)
    layout, trace = Layout(tree.partition(model)), tracing.trace(model, models.tokens(1, 64, 32)[0])
    for unit in trace.units:
        unit.saved_sizes = [LEAST_BYTES * chance.randint(1, 5)] * 16
        unit.saved_bytes, unit.boundary_bytes = sum(unit.saved_sizes), LEAST_BYTES
        for name in ("forward", "backward"):
            more = chance.randrange(4 * LEAST_BYTES)
            setattr(unit, f"{name}_temporary_bytes", more)
            setattr(unit, f"{name}_most_bytes", more + unit.saved_bytes)
    way = Way(fate, pool)
    needs = Activations(trace, {unit.name: chance.randrange(1 << 20) for unit in trace.units}, chance.randint(1, 3))
    program = StepProgram(layout, layout.nbytes, FLEET, True, trace)
    needs.describe(program, way)
    made, _, _ = program.plan(0)
    least = sums_of(made).minimum_bytes
    kinds = set()
    for more in (0, 1 << 24, 1 << 26, 1 << 28, 1 << 32):
        made, code, _ = program.plan(least + more)
        chosen, counted = needs.chosen(made, way), sums_of(made).placed_bytes
        assert code == 0 and counted <= least + more
        kinds.update(chosen.of.values())
        there = peak(needs, way, chosen.of)
        assert there <= counted <= there + 4096 * 8 * len(trace.units), (there, counted)
    assert kinds == {Fate.KEEP, fate}
    assert program.plan(least - (1 << 20))[1] != 0
