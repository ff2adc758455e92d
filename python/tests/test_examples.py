"""The examples run as a reader would run them."""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from models import HANGS_SECONDS, gpt2

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def run(*arguments):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    out = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=HANGS_SECONDS
    )
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_any_module(tmp_path):
    said = run(EXAMPLES / "any_module.py", tmp_path / "run")
    assert int(said.split("right: ")[1].split("%")[0]) > 70, said


def test_public_functions_have_docstrings_and_hints():
    done = subprocess.run(
        [sys.executable, EXAMPLES.parents[1] / "scripts" / "python-reference", "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def prepared(tmp_path, model):
    """A directory with a model and a tokenizer of letters, and a text."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    directory, text = tmp_path / "model", tmp_path / "text"
    model.save_pretrained(directory)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, **{chr(97 + i): i + 1 for i in range(26)}}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(directory)
    text.write_text("the quick brown fox jumps over the lazy dog " * 20)
    return transformers, directory, text


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def test_trainer(tmp_path, seed):
    pytest.importorskip("accelerate")
    transformers, directory, text = prepared(tmp_path, qwen2())
    command = (
        EXAMPLES / "trainer_qwen2.py",
        directory,
        text,
        tmp_path / "out",
        "--steps",
        2,
        "--seq-len",
        16,
        "--memory",
        "64MiB",
    )
    said = run(*command)
    assert "perplexity" in said and "memory 64.00 MiB" in said and said.splitlines()[-1].startswith("digest ")
    shutil.rmtree(tmp_path / "out" / "checkpoint-2")
    assert run(*command, "--resume").splitlines()[-1] == said.splitlines()[-1]
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.model_type == "qwen2"


def test_lora(tmp_path, seed):
    peft = pytest.importorskip("peft")
    transformers, directory, text = prepared(tmp_path, qwen2())
    run(
        EXAMPLES / "lora.py",
        directory,
        text,
        tmp_path / "out",
        "--run",
        tmp_path / "run",
        "--steps",
        2,
        "--seq-len",
        16,
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(directory)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "out").state_dict()
    assert any(value.abs().sum() > 0 for name, value in adapted.items() if "lora_B" in name)
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_distill(tmp_path, seed):
    """The divergence from a teacher falls."""
    transformers, directory, text = prepared(tmp_path, qwen2())
    qwen2().save_pretrained(tmp_path / "teacher")
    said = run(
        EXAMPLES / "distill.py",
        *(directory, tmp_path / "teacher", text, tmp_path / "out", "--run", tmp_path / "run"),
        *("--steps", 4, "--seq-len", 16, "--memory", "64MiB"),
    )
    losses = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("step ")]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.model_type == "qwen2"


IN_MEMORY = """
import datasets, json, sys, torch, trl
from transformers import AutoModelForCausalLM, AutoTokenizer
directory, pairs, out = sys.argv[1:]
how = trl.DPOConfig(out, use_cpu=True, max_steps=2, learning_rate=1e-3, per_device_train_batch_size=2, report_to=[],
                    gradient_accumulation_steps=2, logging_steps=1, save_strategy="no", bf16=False)
policy, reference = (AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32) for _ in range(2))
data = datasets.Dataset.from_list(json.load(open(pairs)))
tokenizer = AutoTokenizer.from_pretrained(directory)
trl.DPOTrainer(policy, reference, how, train_dataset=data, processing_class=tokenizer).train()
"""


def test_dpo(tmp_path, seed):
    """The numbers are TRL's with both models in memory. Its first step finds the policy equal to the reference: a loss
    of log 2. It goes on with the same reference."""
    pytest.importorskip("trl")
    _, directory, _ = prepared(tmp_path, qwen2())
    texts = [{"prompt": "the quick ", "chosen": f"brown fox {c}", "rejected": "lazy dog"} for c in "abcdefgh"]
    (tmp_path / "pairs.json").write_text(json.dumps(texts))
    command = EXAMPLES / "dpo.py", directory, tmp_path / "pairs.json", tmp_path / "out", "--memory", "64MiB"
    said = run(*command, "--steps", 2, "--lr", 1e-3)
    logged = r"'(?:loss|grad_norm|logps/chosen|rewards/margins)': '?([-0-9.e]+)"
    plain = run("-c", IN_MEMORY, directory, tmp_path / "pairs.json", tmp_path / "plain")
    ours, theirs = ([float(number) for number in re.findall(logged, text)] for text in (said, plain))
    assert ours == pytest.approx(theirs, rel=2e-3, abs=1e-5) and len(ours) == 8
    losses = [float(loss) for loss in re.findall(r"'loss': '?([0-9.]+)", said)]
    assert abs(losses[0] - math.log(2)) < 1e-4 and losses[1] < losses[0]
    (volume,) = tmp_path.glob("out/reference/*.volume")
    before = volume.stat().st_ino
    again = run(*command, "--steps", 3, "--lr", 1e-3, "--resume")
    (volume,) = tmp_path.glob("out/reference/*.volume")
    assert volume.stat().st_ino == before and again.splitlines()[-1] != said.splitlines()[-1]


def test_plain_loop_goes_on(tmp_path, seed):
    transformers, directory, text = prepared(tmp_path, gpt2())
    how = ["--batch", 2, "--seq-len", 16, "--lr", 1e-3]
    whole = run(EXAMPLES / "plain_loop.py", directory, text, "--run", tmp_path / "whole", "--steps", 4, *how)
    run(EXAMPLES / "plain_loop.py", directory, text, "--run", tmp_path / "parts", "--steps", 2, *how)
    rest = run(
        EXAMPLES / "plain_loop.py", "--run", tmp_path / "parts", "--steps", 4, "--export", tmp_path / "out", *how
    )
    assert whole.splitlines()[-1] == rest.splitlines()[-1] and whole.splitlines()[-1].startswith("digest ")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.n_layer == 3
