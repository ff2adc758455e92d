"""Families of the program against transformers: loss and gradients of each step, the weights after them, in a run that
keeps everything in memory and in one with the least memory; what is exported, loaded by transformers; greedy tokens."""

import json
import pathlib
import re
import shutil
import sys

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from test_program import needs_program, program

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "numeric"))
import make_expected

pytestmark = needs_program

SIZES = dict(vocab_size=128, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4)
SMALL = dict(SIZES, num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2)
# T tokens a sequence, B sequences a step: one full unit and a short one. A window is shorter than a sequence.
RUN = dict(make_expected.ADAMW, T=70, B=20, steps=4, tokens=3001)
IN_MEMORY = ["--precision", "fp32", "--memory", "1GiB"]
PROMPT = "The crew carries crates over the quay, and"

TEXT = dict(SMALL, head_dim=12, pad_token_id=3)
# What reads images: its weights stay as they are.
IMAGES = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
)
GEMMA3_TOKENS = dict(mm_tokens_per_image=4, image_token_index=5, boi_token_index=6, eoi_token_index=7)

CASES = {
    "gemma3_images": ("Gemma3", dict(GEMMA3_TOKENS, vision_config=IMAGES, text_config=dict(TEXT, sliding_window=33))),
    "mistral3_images": (
        "Mistral3",
        dict(
            tie_word_embeddings=False,
            image_token_index=5,
            vision_config=dict(IMAGES, model_type="pixtral"),
            text_config=dict(TEXT, model_type="mistral", tie_word_embeddings=False),
        ),
    ),
    "gemma2": (
        "Gemma2",
        dict(
            SMALL,
            head_dim=12,
            sliding_window=33,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
    ),
    "gemma3": (
        "Gemma3Text",
        dict(
            SMALL,
            head_dim=12,
            sliding_window=33,
            query_pre_attn_scalar=20,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
    ),
    "smollm3": ("SmolLM3", dict(SMALL, no_rope_layer_interval=2, pad_token_id=3)),
    "ministral": (
        "Ministral",
        dict(
            SMALL,
            head_dim=12,
            sliding_window=33,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "ministral3": (
        "Ministral3",
        dict(
            SMALL,
            head_dim=12,
            sliding_window=None,
            pad_token_id=3,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        ),
    ),
    "olmo2": ("Olmo2", dict(SMALL, attention_bias=True)),
    "olmo3": (
        "Olmo3",
        dict(
            SMALL,
            sliding_window=33,
            rope_theta=500000.0,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "phi3": ("Phi3", dict(SMALL, pad_token_id=3, partial_rotary_factor=0.75, sliding_window=50)),
    "phi3_longrope": (
        "Phi3",
        dict(
            SMALL,
            pad_token_id=3,
            original_max_position_embeddings=64,
            rope_scaling={
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [1.0, 2.0, 3.0, 4.0],
            },
        ),
    ),
    "qwen3": ("Qwen3", dict(SMALL, head_dim=12, tie_word_embeddings=True)),
}


def model_of(case, directory):
    """A random model of the case, in a directory, and its configuration's class; skips where transformers has none."""
    name, values = CASES[case]
    if not hasattr(transformers, f"{name}Config"):
        pytest.skip(f"this transformers has no {name}")
    model = make_expected.random_model(getattr(transformers, f"{name}Config")(**values), seed=1)
    make_expected.write_model(directory, model, {})
    return model


def auto_of(case):
    return AutoModelForImageTextToText if "images" in case else AutoModelForCausalLM


def tokens_in(place):
    """Tokens for a model, also in a file."""
    tokens = make_expected.token_stream(RUN["tokens"], SIZES["vocab_size"], seed=1)
    make_expected.write_bin(place / "data.bin", tokens)
    return tokens


def prepared(case, place, monkeypatch):
    """The class that loads the case's models, one in a directory, and tokens."""
    monkeypatch.setattr(make_expected, "AutoModelForCausalLM", auto_of(case))
    return auto_of(case), model_of(case, place / "model"), tokens_in(place)


def command(place, config=RUN):
    data = ["--model", place / "model", "--tokenizer", "bytes", "--data", place / "data.bin"]
    return ["train", *data, *make_expected.flags(config).split(), "--drive", place / "drive"]


def train(place, *more, config=RUN):
    """The run's steps, as (loss, norm of gradients), and its last digest."""
    for name in "run", "drive":
        shutil.rmtree(place / name, ignore_errors=True)
    (place / "drive").mkdir()
    said = program(*command(place, config), "--out", place / "run", *more)
    lines = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    return [(line["loss"], line["grad_norm"]) for line in lines], digest_in(said)


def digest_in(said):
    return re.search(r"^step \d+ digest (\w+)", said, re.M).group(1)


def agree(steps, theirs):
    for (loss, norm), (_, their_loss, their_norm, _) in zip(steps, theirs, strict=True):
        assert abs(loss - their_loss) <= 2e-6 * their_loss, (steps, theirs)
        assert abs(norm - their_norm) <= 2e-5 * their_norm, (steps, theirs)


def same_weights(ours, wanted):
    assert ours.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (ours[name] - value).abs().max() <= 3e-5, name


def compare(place, auto, theirs, trained, *more):
    """Trains, compares with transformers, and returns the steps, the digest, and the exported model."""
    steps, digest = train(place, *IN_MEMORY, *more)
    agree(steps, theirs)
    program("export", place / "run", "--out", place / "out", "--dtype", "fp32", "--memory", "1GiB")
    exported = auto.from_pretrained(place / "out", dtype=torch.float32, attn_implementation="eager").eval()
    same_weights(exported.state_dict(), trained.state_dict())
    return steps, digest, exported


def generated(place):
    said = program("generate", place / "run", "--prompt", PROMPT, "--temperature", 0, "--max-tokens", 40, "--json")
    return json.loads(said)["text"]


def greedy(model, count):
    ids = torch.tensor([list(PROMPT.encode())])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
    return bytes(out[0, ids.shape[1] :].tolist()).decode().partition("\2")[0]  # the end of a text


def least_memory(place):
    said = program(*command(place), "--precision", "fp32", "--out", place / "dry", "--dry-run")
    return re.search(r"minimum ([\d.]+) MiB", said).group(1) + "MiB"


def follows_in_bf16(place, steps):
    rounded, _ = train(place, "--precision", "bf16", "--memory", "1GiB")
    for (loss, _), (their_loss, _) in zip(rounded, steps, strict=True):
        assert abs(loss - their_loss) <= 1e-2 * their_loss, (rounded, steps)


@pytest.mark.parametrize("case", CASES)
def test_family(case, tmp_path, monkeypatch):
    auto, initial, tokens = prepared(case, tmp_path, monkeypatch)
    trained, theirs = make_expected.train(RUN, initial, tokens, torch.float32)
    steps, digest, exported = compare(tmp_path, auto, theirs, trained)
    # beyond 64 positions, other factors of longrope would count
    assert generated(tmp_path) == greedy(exported, 22 if case == "phi3_longrope" else 40)
    assert train(tmp_path, "--precision", "fp32", "--memory", least_memory(tmp_path)) == (steps, digest)
    follows_in_bf16(tmp_path, steps)
