#!/usr/bin/env python3
"""Fine-tunes a causal language model of Hugging Face on a text, in an ordinary loop, with weights and optimizer state
on drives.

    python examples/python/plain_loop.py MODEL TEXT --run runs/tuned --drive /mnt/nvme0 /mnt/nvme1 --memory 8GiB
    python examples/python/plain_loop.py --run runs/tuned          # goes on after a kill, at the last committed step
"""

import argparse
import os

import torch

import longshore


def batches(ids, batch, length, step):
    """Sequences of a long text: a function of the step, so that a resumed run goes on where it was."""
    generator = torch.Generator().manual_seed(step)
    at = torch.randint(0, len(ids) - length, (batch,), generator=generator)
    x = torch.stack([ids[i : i + length] for i in at])
    return {"input_ids": x, "labels": x}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a directory, or a name of the Hub")
    parser.add_argument("text", nargs="?", help="a file of UTF-8 text")
    parser.add_argument("--run", required=True, help="the run's directory")
    parser.add_argument(
        "--drive", nargs="+", help="directories, files or devices for the state; by default the run's directory"
    )
    parser.add_argument("--memory", help="what Longshore may hold: 8GiB")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=2, help="gradients of so many batches make a step")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--export", help="directory for the result, as save_pretrained() writes it")
    args = parser.parse_args()

    from transformers import AutoModelForCausalLM, AutoTokenizer

    if os.path.exists(os.path.join(args.run, "run.json")):
        engine = longshore.resume(args.run, memory=args.memory)
        notes = open(os.path.join(args.run, "example.txt"), encoding="utf-8").read().splitlines()
        args.model, args.text = notes
    elif not args.model or not args.text:
        parser.error("a new run needs MODEL and TEXT")
    else:
        with longshore.init(args.run, drives=args.drive, memory=args.memory):
            model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        engine = longshore.wrap(model, lr=args.lr, weight_decay=0.1, clip=1.0, storage="bf16")
        with open(os.path.join(args.run, "example.txt"), "w", encoding="utf-8") as f:
            f.write(f"{args.model}\n{args.text}\n")

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    with open(args.text, encoding="utf-8") as f:
        ids = tokenizer(f.read(), return_tensors="pt").input_ids[0].to(engine.device)
    with engine:
        engine.train()
        while engine.step_number < args.steps:
            first = engine.step_number * args.micro_batches
            result = engine.train_batch(
                [batches(ids, args.batch, args.seq_len, first + i) for i in range(args.micro_batches)]
            )
            print(f"step {result.step} loss {result.loss:.4f} norm {result.grad_norm:.3f}", flush=True)
        if args.export:
            engine.save_pretrained(args.export)
        print("digest", engine.digest())


if __name__ == "__main__":
    main()
