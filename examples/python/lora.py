#!/usr/bin/env python3
"""LoRA on a base whose weights stay on a drive: only the adapters are trained, in an ordinary loop. Needs peft.

python examples/python/lora.py MODEL TEXT out --run runs/lora --drive /mnt/nvme0 --memory 2GiB
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import longshore


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory, or a name of the Hub")
    parser.add_argument("text", help="a file of UTF-8 text")
    parser.add_argument("out", help="directory for the adapters")
    parser.add_argument("--run", required=True, help="the run's directory")
    parser.add_argument(
        "--drive", nargs="+", help="directories, files or devices for the state; by default the run's directory"
    )
    parser.add_argument("--memory", help="what Longshore may hold: 2GiB")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seq-len", type=int, default=256)
    args = parser.parse_args()

    with longshore.init(args.run, drives=args.drive, memory=args.memory):
        base = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    with open(args.text, encoding="utf-8") as f:
        ids = AutoTokenizer.from_pretrained(args.model)(f.read(), return_tensors="pt").input_ids[0]

    # the frozen base has no moments, and no update
    with longshore.wrap(model, lr=1e-3, clip=1.0, storage="bf16") as engine:
        engine.train()
        while engine.step_number < args.steps:
            generator = torch.Generator().manual_seed(engine.step_number)
            at = torch.randint(0, len(ids) - args.seq_len, (4,), generator=generator)
            x = torch.stack([ids[i : i + args.seq_len] for i in at]).to(engine.device)
            engine.backward(engine(input_ids=x, labels=x).loss)
            result = engine.step()
            print(f"step {result.step} loss {result.loss:.4f}", flush=True)
        engine.save_pretrained(args.out)  # the adapters alone
        print("digest", engine.digest())


if __name__ == "__main__":
    main()
