#!/usr/bin/env python3
"""How well longshore.plan() predicts: a step and the peak of memory of modules of the package, against what they take,
over a grid of models, batches and budgets. Rates are measured in the same run.

Usage: bench/predict_torch.py DIRECTORY [quick]    DIRECTORY: on the drive to use
"""

import gc
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import longshore
from longshore.run import machine, memory

STEPS = 4  # the first one warms up; the best of the others counts
GPT2 = {"resid_pdrop": 0, "attn_pdrop": 0, "embd_pdrop": 0, "n_positions": 1024}
MODELS = {
    "GPT-2 6M": lambda: GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=8192, **GPT2)),
    "GPT-2 37M": lambda: GPT2LMHeadModel(GPT2Config(n_layer=8, n_embd=512, n_head=8, vocab_size=16384, **GPT2)),
    "Llama 60M": lambda: LlamaForCausalLM(
        LlamaConfig(
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=8,
            vocab_size=32000,
            max_position_embeddings=1024,
        )
    ),
    "GPT-2 124M": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
}
BATCHES = (1, 256), (4, 256), (4, 1024)
BUDGETS = {"tight": 1.25, "plenty": 8}  # of the least


def reset_peak():
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak_bytes():
    text = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmHWM"))


def measured(make, batch, budget, run):
    """(seconds of the best step, bytes at the peak beyond what the process takes without a model)."""
    shutil.rmtree(run, ignore_errors=True)
    reset_peak()
    torch.manual_seed(1)
    engine = longshore.wrap(make(), run=run, memory=budget, lr=1e-4, overwrite=True)
    before = memory.imports_bytes()
    ids = torch.randint(0, 8192, batch)
    for _ in range(STEPS):
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
        if not _:
            reset_peak()
    most = peak_bytes()
    engine.close()
    lines = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(run)
    return min(line["step_seconds"] for line in lines[1:]), most - before


def rates(directory):
    program = shutil.which("longshore")
    done = subprocess.run(
        [program, "machine", "--drive", directory, "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    described = json.loads(done.stdout)
    described["compute"]["torch"] = machine.torch_rates(torch.device("cpu"))
    return described


def main():
    directory, quick = sys.argv[1], sys.argv[2:] == ["quick"]
    described, steps, peaks = rates(directory), [], []
    print(f"{'model':12}{'tokens':>8}{'budget':>8}{'planned':>10}{'took':>10}{'ratio':>7}{'peak':>8}")
    for name, make in list(MODELS.items())[: 2 if quick else None]:
        for batch in BATCHES[: 2 if quick else None]:
            with torch.device("meta"):
                model = make()
            least = longshore.plan(model, batch, machine=described)["minimum_bytes"]
            for budget, times in BUDGETS.items():
                found = longshore.plan(model, batch, machine=described, memory=int(least * times))
                took, peak = measured(make, batch, int(least * times), os.path.join(directory, "predicted"))
                steps.append(found["step_seconds"] / took)
                peaks.append(found["peak_bytes"] / peak)
                print(
                    f"{name:12}{found['tokens']:8}{budget:>8}{found['step_seconds']:10.3f}{took:10.3f}{steps[-1]:7.2f}"
                    f"{peaks[-1]:8.3f}",
                    flush=True,
                )
    for what, ratios in (("step", steps), ("peak", peaks)):
        off = sorted(abs(ratio - 1) for ratio in ratios)
        print(f"predicted / measured {what}: off by {statistics.median(off):.1%} (median), {off[-1]:.1%} (worst)")


if __name__ == "__main__":
    main()
