"""Disk, memory and time that models of Llama's shapes take from PyTorch: computed by the planner, nothing is made or
measured.

    python bench/pytorch_sizes.py [--rate 3e9]

disk: of the run. memory: the least budget. step: bytes of state that a step reads and writes, at --rate bytes a second
of all drives together; forward and backward compute beside it. Parameters are bf16, the optimizer is AdamW. Prints rows
of a Markdown table.
"""

import argparse
import re
import tempfile

import torch
import transformers

from longshore import native
from longshore.drives.layout import Layout
from longshore.drives.state import fleet_options
from longshore.errors import BudgetError
from longshore.model import blocks
from longshore.native import lib
from longshore.run import memory_plan
from longshore.step.optimizer_table import OPTIMIZERS

SHAPES = {
    "1B (Llama 3.2)": dict(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=True,
    ),
    "7B (Llama 2)": dict(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000
    ),
    "70B (Llama 2)": dict(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=32000,
    ),
}
MOVED = {"fp32": 24.01, "8bit": 12.33}  # bytes that UPDATE reads and writes a parameter: docs/measurements.md
FETCHED = 4  # bytes a parameter: bf16, in forward and in backward


def sizes(shape, moments, drive):
    """(parameters, disk, least memory) of a model, in bytes."""
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).to(torch.bfloat16)
    how = {"storage": "bf16", "optimizer": "adamw", "moments": moments}
    layout = Layout(blocks.partition(model, None))
    options, _kept = fleet_options([drive], OPTIMIZERS["adamw"].number, moments, False)
    try:
        memory_plan.plan(layout, [drive], 1 << 20, how)
    except BudgetError as refused:
        least = native.size(re.search(r"minimum ([0-9.]+ \w+)", str(refused)).group(1))
    return sum(p.numel() for p in model.parameters()), lib.shore_fleet_disk_bytes(layout.c, options), least


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", type=float, default=3e9)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as drive:
        for name, shape in SHAPES.items():
            for moments in MOVED:
                parameters, disk, least = sizes(shape, moments, drive)
                seconds = parameters * (MOVED[moments] + FETCHED) / a.rate
                print(
                    f"| {name} | {parameters / 1e9:.2f} billion | {moments} | {disk / 1e9:,.0f} GB | "
                    f"{native.readable(least)} | {seconds:,.0f} s |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
