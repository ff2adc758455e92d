"""The program of a traced step: its units in order, with the blocks that they compute with."""

from dataclasses import replace

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import models
from longshore import native
from longshore.drives.layout import Layout
from longshore.model import blocks as tree, trace as tracing
from longshore.native import lib
from longshore.run import machine, memory_plan
from longshore.run.step_program import Held, StepProgram, update_bytes
from test_memory_plan import FLEET, plan


def traced(model, batch=None):
    return Layout(tree.partition(model)), tracing.trace(model, batch or models.tokens(1)[0])


def test_operations_come_as_they_run_with_the_blocks_that_they_read():
    layout, trace = traced(models.gpt2())
    program = StepProgram(layout, layout.nbytes, FLEET, True, trace)
    names = [[layout.blocks[b].name for b in blocks] for _, blocks in program.forward]
    layers = [[f"transformer.h.{n}"] for n in range(3)]
    # the head is tied to the embedding
    assert names == [["transformer.wte"], ["transformer.wpe"], *layers, ["transformer.ln_f"], ["transformer.wte"]]
    assert [blocks for _, blocks in program.backward] == [blocks for _, blocks in program.forward[::-1]]
    assert program.all == list(range(14))
    of = {block.name: n for n, block in enumerate(layout.blocks)}
    assert program.of({of["transformer.wte"]}) == [0, 6, 7, 13]


def test_blocks_that_no_unit_computes_with_are_there_all_the_same():
    model = models.gpt2()
    model.unused = torch.nn.Linear(8, 8)
    layout, trace = traced(model)
    program = StepProgram(layout, layout.nbytes, FLEET, True, trace)
    named = {layout.blocks[b].name for _, blocks in program.forward for b in blocks}
    assert named == {block.name for block in layout.blocks} and "unused" in named


def test_a_trace_changes_no_minimum():
    layout, trace = traced(models.llama())
    for device in (None, torch.device("cuda")):
        without, known = plan(layout, 1 << 30, device=device), plan(layout, 1 << 30, device=device, trace=trace)
        assert known.least_bytes == without.least_bytes
        assert plan(layout, known.least_bytes, device=device, trace=trace).pages == 1
    assert memory_plan.StepProgram is StepProgram


MACHINE = {"name": "slow drives", "drives": [{"read": 1e6, "write": 1e6}] * 2}


def times(held, layout, trace):
    program = StepProgram(layout, layout.nbytes, FLEET, True, trace, held=held)
    program.parameters(layout.nbytes, layout.nbytes, lib.SHORE_PLACE_PLAIN, "pages")
    made, code, _ = program.plan(1 << 30, machine=machine.parsed(MACHINE))
    assert code == 0
    return native.filled("struct shore_plan_times", lib.shore_plan_times, made)


def test_what_is_held_says_which_gradients_leave_and_whose_state_stays():
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_positions=64, n_embd=256, n_layer=3, n_head=4))
    layout, trace = traced(model, {"input_ids": torch.zeros(1, 8, dtype=torch.long)})
    everything = 4 * sum(layout.elems(b) for b in range(len(layout.blocks)))
    last = next(b for b, block in enumerate(layout.blocks) if block.name == "transformer.wte")
    read, _ = update_bytes(layout, FLEET, last)
    aside = Held(0, 0, max(4 * layout.elems(b) for b in range(len(layout.blocks))), False)
    none = times(aside, layout, trace)
    fits = times(replace(aside, gradients=everything), layout, trace)
    assert none.drive_write_bytes == fits.drive_write_bytes + everything
    assert none.step_seconds > fits.step_seconds
    unheld = times(replace(aside, gradients=everything, state=None, pages_stay=True), layout, trace)
    held = times(replace(aside, gradients=everything, state=16 * everything), layout, trace)
    assert unheld.drive_read_bytes - held.drive_read_bytes == read  # other blocks with pages of their own are too small
    assert held.drive_read_bytes < fits.drive_read_bytes < unheld.drive_read_bytes  # which has room beside gradients
    stay = times(replace(aside, gradients=everything, state=16 * everything, pages_stay=True), layout, trace)
    assert stay.drive_read_bytes < held.drive_read_bytes


def test_a_step_waits_for_the_update_of_what_it_reads_first():
    layout, trace = traced(models.gpt2())
    block = max(range(len(layout.blocks)), key=layout.elems)
    of_all = times(Held(1 << 30, None, 1 << 20, True), layout, trace)
    assert of_all.step_seconds > sum(update_bytes(layout, FLEET, block)) / 2 / 1e6


def wide_layers(layers=8):
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=256, n_layer=layers, n_head=4))
    layout, trace = traced(model, {"input_ids": torch.zeros(1, 8, dtype=torch.long)})
    how = {"compute": "fp32", "storage": "fp32", "optimizer": "adamw", "moments": "fp32"}
    return memory_plan.Needs(layout, ["ram:"] * 2, 1 << 30, how, None, None, False, trace)


def test_a_division_is_never_longer_than_by_the_order_of_thumb_and_shorter_on_slow_drives():
    needs, slow = wide_layers(), machine.parsed({"drives": [{"mixed": 50e6}] * 2, "name": "slow drives"})
    order, gains = needs.divisions()[:1], []
    for parts in range(8, 40):
        memory = needs.least() * parts // 8
        thumb, found = (needs.planned(memory, memory_plan.ALL_BYTES, slow, of) for of in (order, None))
        assert found.code == 0 and found.times.step_seconds <= thumb.times.step_seconds
        assert found.fates["rings"].bytes == thumb.fates["rings"].bytes  # which no open run changes
        gains.append(1 - found.times.step_seconds / thumb.times.step_seconds)
    assert max(gains) > 0.05


def test_pages_of_all_layers_stay_and_are_not_fetched():
    needs, slow = wide_layers(), machine.parsed({"drives": [{"mixed": 50e6}] * 2, "name": "slow drives"})
    plenty, read = 64 * needs.least(), {}
    for pages in (8, 7):
        fixed = {"pages of layers": pages, "state": 0}
        found = needs.planned(plenty, memory_plan.ALL_BYTES, slow, [(lib.SHORE_POLICY_ORDER, fixed)])
        read[found.fates["pages"].count] = found.times.drive_read_bytes
    assert read[7] - read[8] > 8 * needs.layout.nbytes(1)  # in forward and in backward


def test_no_forward_waits_for_state_from_memory_on_its_way_to_the_drives():
    needs = wide_layers()

    def planned(drive):
        rates = machine.parsed({"drives": [drive] * 2, "compute": {"products": {"fp32": 1e9}}, "name": "slow"})
        found = needs.planned(64 * needs.least(), memory_plan.ALL_BYTES, rates, needs.divisions()[:1])
        assert found.fates["spare"].bytes >= needs.state
        return found.times

    alone = planned({"read": 1e12, "write": 1e12})
    writes = alone.step_seconds / 5  # forward takes longer
    beside = planned({"read": 1e12, "write": alone.drive_write_bytes / 2 / writes})
    assert beside.lane_seconds[lib.SHORE_LANE_DRIVE_WRITE] > 0.9 * writes
    assert beside.step_seconds < alone.step_seconds + writes / 4
