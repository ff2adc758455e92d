"""TRL's SFT runs unchanged under the launcher, whole models and LoRA."""

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from models import HANGS_SECONDS

pytest.importorskip("trl")
pytest.importorskip("peft")

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, HfArgumentParser, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
from models import gpt2, tokens
args, = HfArgumentParser(SFTConfig).parse_args_into_dataclasses()
words = Tokenizer(models.WordLevel({{f"t{{i}}": i for i in range(96)}}, unk_token="t0"))
words = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t0", pad_token="t0")
torch.manual_seed(0)
model, peft = AutoModelForCausalLM.from_config(gpt2().config), None
if args.output_dir == "lora":
    from peft import LoraConfig
    peft = LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM")
data = Dataset.from_list([{{"input_ids": b["input_ids"][0].tolist()}} for b in tokens(24, batch=1)])
trainer = SFTTrainer(model=model, args=args, train_dataset=data, processing_class=words, peft_config=peft)
trainer.train()
assert trainer.deepspeed.global_steps == 3 and not hasattr(trainer, "_longshore_losses")  # its loss counts in self
trainer.save_model()
"""


@pytest.mark.parametrize("kind, written", [("whole", "model.safetensors"), ("lora", "adapter_model.safetensors")])
def test_sft(tmp_path, kind, written):
    ds = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "warmup_min_lr": "auto",
                "warmup_max_lr": "auto",
                "warmup_num_steps": "auto",
                "total_num_steps": "auto",
            },
        },
        "zero_optimization": {
            "stage": 3,
            "stage3_gather_16bit_weights_on_model_save": True,
            "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path / "nvme")},
        },
    }
    (tmp_path / "ds.json").write_text(json.dumps(ds))
    (tmp_path / "sft.py").write_text(SCRIPT.format(tests=os.path.dirname(__file__)))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "longshore.deepspeed",
            "sft.py",
            "--deepspeed",
            "ds.json",
            "--output_dir",
            kind,
            "--max_steps",
            "3",
            "--per_device_train_batch_size",
            "2",
            "--gradient_accumulation_steps",
            "2",
            "--report_to",
            "none",
            "--bf16",
            "False",
            "--gradient_checkpointing",
            "False",
            "--save_strategy",
            "no",
            "--warmup_steps",
            "1",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    saved = load_file(tmp_path / kind / written)
    assert len(saved) >= {"lora": 6, "whole": 40}[kind] and all(
        value.any() for name, value in saved.items() if "lora_B" in name
    )


GENERATES = """
import json, sys
sys.path.insert(0, {tests!r})
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, HfArgumentParser, PreTrainedTokenizerFast
from trl import {kind}Config, {kind}Trainer
from models import gpt2, tokens
args, = HfArgumentParser({kind}Config).parse_args_into_dataclasses()
words = Tokenizer(models.WordLevel({{f"t{{i}}": i for i in range(96)}}, unk_token="t0"))
words = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t0", pad_token="t0", padding_side="left")
torch.manual_seed(0)
gpt2().save_pretrained(args.output_dir + "/model")
model = AutoModelForCausalLM.from_pretrained(args.output_dir + "/model")
data = Dataset.from_list([{{"prompt": words.decode(b["input_ids"][0])}} for b in tokens(8, batch=1, length=4)])
def odd(completion_ids, **more): return [float(sum(i % 2 for i in ids)) for ids in completion_ids]
trainer = {kind}Trainer(model=model, reward_funcs=odd, args=args, train_dataset=data, processing_class=words)
trainer.train()
print("LOG", json.dumps([[line["reward"], line["grad_norm"]] for line in trainer.state.log_history
                          if "reward" in line]))
"""


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_generates_while_it_trains(tmp_path, kind):
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path / "nvme")}}
    (tmp_path / "ds.json").write_text(
        json.dumps({"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto", "zero_optimization": zero})
    )
    (tmp_path / "train.py").write_text(GENERATES.format(tests=os.path.dirname(__file__), kind=kind))
    env, found = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}, []
    for how in (["-m", "longshore.deepspeed", "train.py", "--deepspeed", "ds.json"], ["train.py", "--use_cpu"]):
        done = subprocess.run(
            [
                sys.executable,
                *how,
                *"--output_dir out --max_steps 2 --per_device_train_batch_size 4 --num_generations 2 "
                "--max_completion_length 4 "
                "--learning_rate 1e-2 --logging_steps 1 --report_to none --save_strategy no "
                "--bf16 False --beta 0.1".split(),
            ],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=HANGS_SECONDS,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("LOG"))[4:]))
    for ours, theirs in zip(*found):
        assert ours == pytest.approx(theirs, rel=1e-3)
