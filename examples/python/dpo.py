#!/usr/bin/env python3
"""DPO with TRL: the policy is trained from drives, and the reference is streamed from them. Needs trl.

    python examples/python/dpo.py MODEL PAIRS out --drives /mnt/nvme0 --memory 8GiB
    python examples/python/dpo.py MODEL PAIRS out --resume  # after a kill

PAIRS is a JSON file: a list of {"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}.
"""

import argparse
import json
from dataclasses import dataclass

import datasets
import torch
import trl
from transformers import AutoModelForCausalLM, AutoTokenizer

import longshore
import longshore.transformers


@dataclass
class DPOConfig(longshore.transformers.TrainingArguments, trl.DPOConfig):
    """TRL's arguments and Longshore's."""


class DPOTrainer(longshore.transformers.Trainer, trl.DPOTrainer):
    """TRL's trainer, whose policy lies on drives from train() on."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory, or a name of the Hub")
    parser.add_argument("pairs", help="a JSON file")
    parser.add_argument("out", help="directory for checkpoints and the result")
    parser.add_argument("--drives", nargs="+", help="directories, files or devices for the state; by default OUT")
    parser.add_argument("--memory", default="8GiB", help="what Longshore may hold for both: 8GiB")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--resume", action="store_true", help="go on from the last step")
    args = parser.parse_args()

    with open(args.pairs, encoding="utf-8") as f:
        pairs = datasets.Dataset.from_list(json.load(f))
    how = DPOConfig(
        args.out,
        run=f"{args.out}/policy",
        drives=args.drives,
        max_steps=args.steps,
        learning_rate=args.lr,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )
    with longshore.budget(args.memory):
        # made first: TRL prepares the reference before the policy is moved to the drives
        with longshore.init(f"{args.out}/reference", drives=args.drives, resume=args.resume):
            reference = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        reference = longshore.wrap(reference, trains=False)
        with longshore.init(f"{args.out}/policy", drives=args.drives, resume=args.resume):
            policy = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        trainer = DPOTrainer(policy, reference, how, train_dataset=pairs, processing_class=tokenizer)
        trainer.train(resume_from_checkpoint=args.resume or None)
    trainer.save_model()
    print("digest", trainer.engine.digest())


if __name__ == "__main__":
    main()
