#!/usr/bin/env python3
"""Distills a causal language model into a smaller one on a text, in an ordinary loop. The weights of both lie on
drives, and both share one memory budget.

    python examples/python/distill.py STUDENT TEACHER TEXT out --run runs/student --drive /mnt/nvme0 --memory 8GiB
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import longshore


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("student", help="a directory, or a name of the Hub")
    parser.add_argument("teacher", help="a directory, or a name of the Hub, with the same tokens")
    parser.add_argument("text", help="a file of UTF-8 text")
    parser.add_argument("out", help="directory for the student")
    parser.add_argument("--run", required=True, help="the run's directory")
    parser.add_argument("--drive", nargs="+", help="directories for the state; by default the run's directory")
    parser.add_argument("--memory", default="8GiB", help="what Longshore may hold for both: 8GiB")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seq-len", type=int, default=256)
    args = parser.parse_args()

    with open(args.text, encoding="utf-8") as f:
        ids = AutoTokenizer.from_pretrained(args.student)(f.read(), return_tensors="pt").input_ids[0]
    with longshore.budget(args.memory):
        with longshore.init(args.run, drives=args.drive):
            student = AutoModelForCausalLM.from_pretrained(args.student, dtype=torch.float32)
        engine = longshore.wrap(student, lr=1e-4, clip=1.0)
        with longshore.init(f"{args.run}-teacher", drives=args.drive):  # never in memory as a whole
            teacher = AutoModelForCausalLM.from_pretrained(args.teacher)
        teacher = longshore.wrap(teacher, trains=False)

    with engine, teacher:
        engine.train()
        teacher.eval()
        while engine.step_number < args.steps:
            generator = torch.Generator().manual_seed(engine.step_number)
            at = torch.randint(0, len(ids) - args.seq_len, (4,), generator=generator)
            x = torch.stack([ids[i : i + args.seq_len] for i in at]).to(engine.device)
            with torch.no_grad():
                wanted = teacher(input_ids=x).logits.float().log_softmax(-1).flatten(0, 1)
            said = engine(input_ids=x).logits.log_softmax(-1).flatten(0, 1)
            engine.backward(torch.nn.functional.kl_div(said, wanted, log_target=True, reduction="batchmean"))
            result = engine.step()
            print(f"step {result.step} divergence {result.loss:.4f}", flush=True)
        engine.save_pretrained(args.out)


if __name__ == "__main__":
    main()
