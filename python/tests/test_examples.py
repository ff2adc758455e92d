"""The examples run as a reader would run them."""

import os
import pathlib
import subprocess
import sys

import pytest

from models import gpt2

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def run(*arguments):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    out = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=280)
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_any_module(tmp_path):
    said = run(EXAMPLES / "any_module.py", tmp_path / "run")
    assert int(said.split("right: ")[1].split("%")[0]) > 70, said


def test_plain_loop_goes_on(tmp_path, seed):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    directory, text = tmp_path / "model", tmp_path / "text"
    gpt2().save_pretrained(directory)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, **{chr(97 + i): i + 1 for i in range(26)}}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(directory)
    text.write_text("the quick brown fox jumps over the lazy dog " * 20)
    how = ["--batch", 2, "--seq-len", 16, "--lr", 1e-3]
    whole = run(EXAMPLES / "plain_loop.py", directory, text, "--run", tmp_path / "whole", "--steps", 4, *how)
    run(EXAMPLES / "plain_loop.py", directory, text, "--run", tmp_path / "parts", "--steps", 2, *how)
    rest = run(EXAMPLES / "plain_loop.py", "--run", tmp_path / "parts", "--steps", 4, "--export", tmp_path / "out", *how)
    assert whole.splitlines()[-1] == rest.splitlines()[-1] and whole.splitlines()[-1].startswith("digest ")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.n_layer == 3
