"""Memory that loading a model of 1.5 billion parameters takes, by from_pretrained within longshore.init() and wrap();
prints one line of JSON.

    python bench/pytorch_load.py --directory /mnt/nvme/load

Writes random weights of GPT-2's largest shape there (bf16, in shards, 3.1 GB; kept for the next time), and a run beside
them (44 GB of disk, 27 GB with --moments 8bit; removed at the end). peak_mib: the largest resident size above what
importing torch, transformers and longshore takes.
"""

import argparse
import json
import os
import shutil
import time

import torch
import transformers
from safetensors.torch import save_file

import longshore
from longshore.run.engine_surface import core_of


def resident_mib(key):
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(key + ":")) / 1024


def write(config, directory):
    """What save_pretrained() would, a shard at a time."""
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    os.makedirs(directory)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(directory)
    shards, shard, nbytes, where = 0, {}, 0, {}
    names = [(n, p) for n, p in model.state_dict().items() if n != "lm_head.weight"]
    for i, (name, p) in enumerate(names):
        shard[name] = torch.randn(p.shape, dtype=torch.bfloat16) * 0.02
        nbytes += shard[name].nbytes
        if nbytes > 500 << 20 or i + 1 == len(names):
            shards += 1
            file = f"model-{shards:05d}.safetensors"
            save_file(shard, os.path.join(directory, file), {"format": "pt"})
            where.update({n: file for n in shard})
            shard, nbytes = {}, 0
    with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": where}, f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--directory", required=True)
    p.add_argument("--memory", default="1GiB")
    p.add_argument("--moments", choices=["fp32", "8bit"], default="fp32")
    p.add_argument(
        "--write", action="store_true", help="the weights, and no more: memory that it takes is not measured"
    )
    a = p.parse_args()
    weights, run = os.path.join(a.directory, "weights"), os.path.join(a.directory, "run")
    config = transformers.GPT2Config(n_layer=48, n_embd=1600, n_head=25)
    if a.write:
        shutil.rmtree(weights, ignore_errors=True)
        write(config, weights)
        return
    if not os.path.exists(os.path.join(weights, "model.safetensors.index.json")):
        raise SystemExit(f"{weights}: is not there; --write first")
    shutil.rmtree(run, ignore_errors=True)
    before, start = resident_mib("VmRSS"), time.perf_counter()
    with longshore.init(run, memory=a.memory):
        model = transformers.AutoModelForCausalLM.from_pretrained(weights, dtype=torch.bfloat16)
    loaded, loaded_mib = time.perf_counter(), resident_mib("VmHWM") - before
    engine = longshore.wrap(model, lr=1e-4, moments=a.moments)
    out = {
        "parameters": sum(q.numel() for q in model.parameters()),
        "memory": a.memory,
        "load_s": round(loaded - start, 1),
        "load_peak_mib": round(loaded_mib),
        "wrap_s": round(time.perf_counter() - loaded, 1),
        "peak_mib": round(resident_mib("VmHWM") - before),
        "slots": core_of(engine).streams.slots,
        "torch": torch.__version__,
    }
    engine.close()
    shutil.rmtree(run)
    print(json.dumps(out), flush=True)


main()
