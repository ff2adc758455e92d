#!/usr/bin/env python3
"""Measures memory_of="process": the peak of a process beyond its imports, and its time against one without a bound.

    bench/process_memory.py [--only 124m|0.5b] [--memory 2GiB] [--steps 3] [--turns 3] [--dir DIR]

The peak is the system's, of a child process: its largest resident memory, less that of a child that has only imported
PyTorch, transformers and Longshore. Times are medians of steps after the first two, in turn with a child without a
bound (memory_of="engine", and memory for all). The model is made inside longshore.init(), which the peak counts, too.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

MODELS = {  # name: (class, its configuration's class and arguments, batch, tokens)
    "124m": ("GPT2LMHeadModel", "GPT2Config", {}, 4, 1024),
    "0.5b": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        2,
        512,
    ),
}


def train(name, run, memory, steps):
    """In the child: makes steps, and prints their seconds."""
    import torch
    import transformers

    import longshore

    if name == "imports":
        return
    model, config, arguments, batch, length = MODELS[name]
    of = {"memory": memory, "memory_of": "process"} if memory else {"memory": None}
    torch.manual_seed(0)
    with longshore.init(run, **of):
        made = getattr(transformers, model)(getattr(transformers, config)(**arguments)).train()
    ids = torch.randint(0, made.config.vocab_size, (batch, length))
    with longshore.wrap(made, lr=1e-4) as engine:
        for _ in range(steps):
            began = time.perf_counter()
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            result = engine.step()
            print(json.dumps({"seconds": time.perf_counter() - began, "loss": result.loss}), flush=True)


def child(name, where, memory, steps):
    """(its largest resident memory in bytes, the seconds of its steps, its losses)."""
    run = tempfile.mkdtemp(dir=where)
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(into, 1)
        os.execv(sys.executable, [sys.executable, __file__, "--child", name, run + "/run", memory or "", str(steps)])
    os.close(into)
    with os.fdopen(out) as lines:
        said = [json.loads(line) for line in lines if line.startswith("{")]
    _, status, used = os.wait4(pid, 0)
    shutil.rmtree(run)
    if status:
        sys.exit(f"{name}, memory {memory}: the child failed")
    return used.ru_maxrss << 10, [line["seconds"] for line in said], [line["loss"] for line in said]


def measure(name, options):
    imports, _, _ = child("imports", options.dir, "", 0)
    limit = int(options.memory.removesuffix("GiB")) << 30
    peaks, bounded, free = [], [], []
    for _ in range(options.turns):
        peak, seconds, losses = child(name, options.dir, options.memory, options.steps)
        peaks.append(peak - imports)
        bounded += seconds[2:] or seconds[-1:]
        without, seconds, other = child(name, options.dir, "", options.steps) if options.turns else (0, [1], [])
        free += seconds[2:] or seconds[-1:]
        most = max(abs(a - b) for a, b in zip(losses, other))
        print(
            f"{name}: losses differ by {most:.2g} at most (the loss is computed in slices); without a bound "
            f"{(without - imports) / 2**30:.2f} GiB beyond the imports ({imports / 2**30:.2f} GiB)",
            flush=True,
        )
    ratio = statistics.median(bounded) / statistics.median(free)
    print(
        f"{name}: peak beyond imports / memory {max(peaks) / limit:.3f}; a step {statistics.median(bounded):.1f} s, "
        f"without a bound {statistics.median(free):.1f} s: {ratio:.3f}",
        flush=True,
    )


def main():
    if sys.argv[1:2] == ["--child"]:
        name, run, memory, steps = sys.argv[2:]
        return train(name, run, memory, int(steps))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dir", default=None)
    options = parser.parse_args()
    for name in [options.only] if options.only else MODELS:
        measure(name, options)


if __name__ == "__main__":
    main()
