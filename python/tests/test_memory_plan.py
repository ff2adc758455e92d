"""The memory of an engine's step: what a budget of each place holds."""

import random
import re

import pytest
import torch

from longshore import native
from longshore.drives.layout import Block, Layout, Tensor
from longshore.drives.state import fleet_options
from longshore.errors import BudgetError
from longshore.run import memory_plan
from longshore.run.device_memory import DeviceBudget
from longshore.run.step_program import StepProgram
from longshore.step.optimizer_table import OPTIMIZERS

FLEET, _named = fleet_options(["ram:"] * 2, OPTIMIZERS["adamw"].number, "fp32", fp32=True)
CUDA = torch.device("cuda")  # of which a plan knows only that it is there


def layout_of(chance, dtype):
    def block(n):
        tensors = [
            Tensor(f"{n}.{i}", (chance.randint(1, 400), chance.randint(1, 400)), dtype, trains)
            for trains in (chance.random() < 0.8,)
            for i in range(chance.randint(1, 4))
        ]
        return Block(f"b{n}", tensors, layer=0 < n < 7, trains=tensors[0].trains, module=f"m{n}")

    return Layout([block(n) for n in range(8)])


def plan(layout, memory, device=CUDA, storage="bf16", activations="memory", gpu_memory=None, **more):
    if gpu_memory is not None:
        more["gpu_memory"] = DeviceBudget(gpu_memory)
    how = {"compute": "fp32", "storage": storage, "activations": activations, "optimizer": "adamw", "moments": "fp32"}
    return memory_plan.plan(layout, ["ram:"] * 2, memory, how, device=device, **more)


def refused(layout, memory, **how):
    """(place, minimum) of each budget that is too little."""
    with pytest.raises(BudgetError) as said:
        plan(layout, memory, **how)
    found = re.findall(
        r"((?:pinned )?memory|gpu_memory)(?:=\S+ \w+)? is too little for this model: minimum ([0-9.]+ \w+)",
        str(said.value),
    )
    return {place: native.size(size) for place, size in found}


def test_slots_and_pages_have_numbers_of_their_own(seed):
    chance = random.Random(seed)
    layout = layout_of(chance, torch.float32)
    everything = plan(layout, 1 << 30)
    assert (everything.slots, everything.pages) == (6, 6)
    few_slots = plan(layout, 1 << 30, gpu_memory=layout.memory_bytes(2))
    assert (few_slots.slots, few_slots.pages) == (2, 6)
    # a device's memory is beside the budget, and pages have the size in which they are fetched
    assert few_slots.total_bytes == everything.total_bytes
    assert plan(layout, 1 << 30, device=None).slots == 0
    widened = plan(layout, 1 << 30, storage="fp32")
    assert widened.least_bytes > everything.least_bytes


def test_a_place_that_is_short_is_named_with_its_minimum(seed):
    chance = random.Random(seed)
    for activations in ("memory", "drives"):
        layout, how = layout_of(chance, torch.float32), {"activations": activations}
        least = plan(layout, 1 << 30, **how).least_bytes
        device = layout.memory_bytes(1)
        assert plan(layout, 1 << 30, gpu_memory=device, **how).slots == 1
        said = refused(layout, 1 << 30, gpu_memory=device - 1, **how)
        assert list(said) == ["gpu_memory"] and device <= said["gpu_memory"] < device + (1 << 20)
        chosen = plan(layout, least, **how)
        assert (chosen.slots, chosen.pages) == (6, 1)
        assert list(refused(layout, least - 1, **how)) == ["memory"]


def test_pinned_memory_is_a_part_of_memory(seed):
    """Its least is named and works; it decides what of the host's memory is pinned, not how much of that there is."""
    chance = random.Random(seed)
    for activations in ("memory", "drives"):
        layout, how = layout_of(chance, torch.float32), {"activations": activations}
        with pytest.raises(BudgetError) as said:
            plan(layout, 1 << 30, pinned_memory=1, **how)
        told = re.search(r"pinned_memory=1 B is too little for this model: minimum ([0-9.]+ \w+)", str(said.value))
        least, free = native.size(told.group(1)), plan(layout, 1 << 30, **how)
        for given in (least, least + chance.randint(1, 64 << 20), 1 << 30):
            chosen = plan(layout, 1 << 30, pinned_memory=given, **how)
            parts = chosen.pinned
            pool = parts["pool"][0] if parts["pool"] else 0
            fixed = parts["ring"] + parts["landing"][0] + pool
            assert parts["pages"] >= 0 and fixed + parts["pages"] == given
            assert (chosen.pages, chosen.slots) == (free.pages, free.slots) and chosen.total_bytes <= 1 << 30
            assert chosen.staging_bytes == parts["ring"] and chosen.pool_bytes == pool
            assert parts["landing"][1] <= parts["landing"][0] == chosen.landing_bytes
        with pytest.raises(BudgetError, match="pinned_memory="):
            plan(layout, 1 << 30, pinned_memory=max(least - (1 << 20), 1), **how)


@pytest.mark.parametrize("name", ["gpu_memory", "pinned_memory"])
def test_budgets_of_an_accelerator_are_refused_on_a_cpu(name, seed):
    layout = layout_of(random.Random(seed), torch.float32)
    with pytest.raises(ValueError, match=f"{name}= is for a model that computes on an accelerator.*on the CPU"):
        plan(layout, 1 << 30, device=None, **{name: 1 << 30})


def test_rows_live_as_long_as_operations_use_them(seed):
    """A gradient's row is there in backward alone, and a layer is read in both passes."""
    layout = layout_of(random.Random(seed), torch.float32)
    program = StepProgram(layout, layout.nbytes, FLEET, True)
    backward = [operation for operation, _ in program.backward]
    row = program.add("gradients", 4096, by=backward, stays=False)
    made, code, _ = program.plan(1 << 30)
    fate = memory_plan.fate_of(made, row)
    assert code == 0 and (fate.first, fate.last) == (len(layout.blocks), 2 * len(layout.blocks) - 1)
    assert program.of({3}) == [3, 2 * len(layout.blocks) - 1 - 3]
    assert [blocks for _, blocks in program.forward] == [{b} for b in range(len(layout.blocks))]
