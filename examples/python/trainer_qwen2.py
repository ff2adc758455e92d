#!/usr/bin/env python3
"""Fine-tunes Qwen2 (or another causal language model) on a text with transformers' Trainer: one changed import, and
where the state is to live.

    python examples/python/trainer_qwen2.py Qwen/Qwen2.5-0.5B TEXT out --drives /mnt/nvme0 /mnt/nvme1 --memory 4GiB
    python examples/python/trainer_qwen2.py Qwen/Qwen2.5-0.5B TEXT out --resume  # after a kill
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import longshore
from longshore.transformers import Trainer, TrainingArguments


def sequences(tokenizer, path, length):
    with open(path, encoding="utf-8") as f:
        ids = tokenizer(f.read(), return_tensors="pt").input_ids[0]
    return [
        {"input_ids": ids[i : i + length], "labels": ids[i : i + length]}
        for i in range(0, len(ids) - length + 1, length)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory, or a name of the Hub")
    parser.add_argument("text", help="a file of UTF-8 text")
    parser.add_argument("out", help="directory for checkpoints and the result")
    parser.add_argument("--drives", nargs="+", help="directories, files or devices for the state; by default OUT/run")
    parser.add_argument("--memory", help="what Longshore may hold: 4GiB")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    args = parser.parse_args()

    run = f"{args.out}/run"
    data = sequences(AutoTokenizer.from_pretrained(args.model), args.text, args.seq_len)
    held_out = max(1, len(data) // 20)
    how = TrainingArguments(
        args.out,
        run=run,
        drives=args.drives,
        memory=args.memory,
        max_steps=args.steps,
        learning_rate=args.lr,
        weight_decay=0.1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=max(1, args.steps // 2),
        save_steps=max(1, args.steps // 2),
        save_total_limit=2,
        report_to=[],
    )
    with longshore.init(run, drives=args.drives, memory=args.memory, resume=args.resume):  # never in memory as a whole
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    trainer = Trainer(model, how, train_dataset=data[held_out:], eval_dataset=data[:held_out])
    trainer.train(resume_from_checkpoint=args.resume or None)
    print(f"perplexity of what was held out: {2.718281828 ** trainer.evaluate()['eval_loss']:.2f}")
    print(trainer.engine.memory())
    trainer.save_model()
    print("digest", trainer.engine.digest())


if __name__ == "__main__":
    main()
