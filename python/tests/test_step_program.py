"""The program of a traced step: its units in order, with the blocks that they compute with."""

import torch

import models
from longshore.drives.layout import Layout
from longshore.model import blocks as tree, trace as tracing
from longshore.run import memory_plan
from longshore.run.step_program import StepProgram
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
