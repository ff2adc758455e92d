"""Each key of a config.json counts for the program as for transformers, or is refused by its name."""

import copy
import json
import os
import shutil
import subprocess

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="the program is not installed")

TEXT = b"The ship comes in at dawn, and the crew carries crates over the quay."
SMALL = dict(vocab_size=260, initializer_range=0.2, bos_token_id=1, eos_token_id=2)
GPT2 = dict(SMALL, n_embd=32, n_layer=2, n_head=4, n_positions=128)
ROTARY = dict(
    SMALL,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
)
TINY_PAD = dict(ROTARY, pad_token_id=3)
WINDOWS = dict(sliding_window=32, layer_types=["full_attention", "sliding_attention"])
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128, rope_theta=1e4)
FIVE = int(transformers.__version__.split(".")[0]) >= 5
ANGLES = dict(rope_parameters=YARN) if FIVE else dict(rope_scaling=YARN, rope_theta=1e4)
CLASSES = {
    "gpt2": ("GPT2Config", GPT2),
    "llama": ("LlamaConfig", ROTARY),
    "mistral": ("MistralConfig", ROTARY),
    "qwen2": ("Qwen2Config", ROTARY),
    "qwen3": ("Qwen3Config", dict(ROTARY, head_dim=8)),
    "gemma2": ("Gemma2Config", dict(TINY_PAD, head_dim=8, query_pre_attn_scalar=8, sliding_window=32)),
    "gemma3_text": ("Gemma3TextConfig", dict({**TINY_PAD, **WINDOWS}, head_dim=8, query_pre_attn_scalar=8)),
    "smollm3": ("SmolLM3Config", dict(TINY_PAD, no_rope_layer_interval=2)),
    "ministral": ("MinistralConfig", dict(ROTARY, head_dim=8)),
    "ministral3": (
        "Ministral3Config",
        dict(TINY_PAD, head_dim=8, rope_parameters=dict(YARN, llama_4_scaling_beta=0.1)),
    ),
    "olmo2": ("Olmo2Config", TINY_PAD),
    "olmo3": ("Olmo3Config", dict({**TINY_PAD, **WINDOWS}, rope_theta=5e5)),
    "phi3": ("Phi3Config", TINY_PAD),
    "qwen3_moe": ("Qwen3MoeConfig", dict(ROTARY, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)),
    "olmoe": ("OlmoeConfig", dict(TINY_PAD, num_experts=6, num_experts_per_tok=2)),
    "gpt_oss": ("GptOssConfig", dict(TINY_PAD, head_dim=8, num_local_experts=6, num_experts_per_tok=2, **ANGLES)),
}

# What no class lists, but transformers reads from whatever it is given.
BESIDE = {
    "is_causal": False,
    "per_layer_config": {"0": {"intermediate_size": 32}},
    "transformers_weights": "other",
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "attn_implementation": "eager",
    "partial_rotary_factor": 0.5,
    "gradient_checkpointing": True,
    "is_decoder": True,
    "num_labels": 3,
    "rope_theta": 50.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "auto_map": {},
}
UNKNOWN = {"attention_chunk_size": 4, "logit_scale": 2.0, "final_logit_softcapping": 1.0}
OF_GEMMA = {"final_logit_softcapping"}
# Other values than a flag turned round, or a number made larger.
OTHERS = {
    "activation_function": "relu",
    "hidden_act": "gelu",
    "n_embd": 48,
    "hidden_size": 48,
    "n_head": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "n_inner": 40,
    "vocab_size": 300,
    "layer_norm_epsilon": 0.1,
    "rms_norm_eps": 0.1,
    "sliding_window": 5,
    "dtype": "float32",
    "id2label": {"0": "a"},
    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0},
    "pad_token_id": 32,
    "layer_types": ["sliding_attention", "full_attention"],
    "pruned_heads": {"0": [1]},
    "label2id": {"a": 0},
    "architectures": ["GPT2ForSequenceClassification"],
    "max_window_layers": 1,
    "n_positions": 96,
    "max_position_embeddings": 96,
    "summary_type": "mean",
    "problem_type": "regression",
    "initializer_range": 0.3,
}


def changed(key, value):
    if key in OTHERS or key in BESIDE:
        return OTHERS.get(key, BESIDE.get(key))
    if "drop" in key:
        return 0.5
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, (int, float)) else value and {"a": 1} or 1


def loss_of(directory):
    """transformers' own, or None if it refuses such a configuration."""
    try:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        ids = torch.tensor([list(TEXT)])
        with torch.no_grad():
            logits = model(ids).logits
        return torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:]).item()
    except Exception as why:  # whatever transformers makes of it is its refusal
        print(type(why).__name__, str(why)[:120])
        return None


def evaluate(directory, text):
    out = subprocess.run(
        [
            PROGRAM,
            "eval",
            directory,
            "--data",
            text,
            "--tokenizer",
            "bytes",
            "--precision",
            "fp32",
            "--seq-len",
            str(len(TEXT) - 1),
            "--memory",
            "256MiB",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return out.returncode, json.loads(out.stdout)["loss"] if out.returncode == 0 else None, out.stderr


def make(directory, config):
    """A random model of the configuration, as far as transformers makes one, with exactly this config.json."""
    torch.manual_seed(0)
    try:
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config))).save_pretrained(directory)
    except Exception as why:
        print(type(why).__name__, str(why)[:120])
        torch.manual_seed(0)
        kind = config["model_type"]
        plain = copy.deepcopy(CLASSES[kind][1])
        AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **plain)).save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps(config))


def keys_of(kind):
    name, small = CLASSES[kind]
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    cls = getattr(transformers, name)
    config = json.loads(cls(**small).to_json_string(use_diff=False))
    left_out = {"model_type", "transformers_version"}
    return {**BESIDE, **UNKNOWN, **{key: changed(key, value) for key, value in config.items() if key not in left_out}}


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind != "gpt2"])
def test_an_absent_size_is_that_of_transformers(kind, tmp_path):
    """As text_config of published Gemma 3 has no vocabulary and no heads."""
    name, small = CLASSES[kind]
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    config = {key: small[key] for key in ("rope_parameters", "rope_scaling", "rope_theta") if key in small}
    if kind == "ministral":
        config["head_dim"] = 128  # which transformers needs
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **config}))
    how = "--machine gpu-80gb --seq-len 64 --json".split()
    out = subprocess.run(
        [PROGRAM, "plan", "--init", tmp_path / "config.json", *how], capture_output=True, text=True, timeout=60
    )
    assert out.returncode in (0, 2) and out.stdout, out.stderr
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(getattr(transformers, name)(**copy.deepcopy(config)))
    assert json.loads(out.stdout)["parameters"] == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("kind", CLASSES)
def test_each_key_changed(kind, tmp_path):
    small, keys = CLASSES[kind][1], keys_of(kind)
    text = tmp_path / "text"
    text.write_bytes(TEXT)
    make(tmp_path / "plain", {"model_type": kind, **small})
    code, plain, said = evaluate(tmp_path / "plain", text)
    assert code == 0 and "does not know" not in said and abs(plain - loss_of(tmp_path / "plain")) < 1e-4, said
    counted, refused, wrong = set(), set(), []
    for key, value in keys.items():
        directory = tmp_path / key
        make(directory, {"model_type": kind, **small, key: value})
        theirs = loss_of(directory)
        code, ours, said = evaluate(directory, text)
        shutil.rmtree(directory)
        unknown = (
            key in UNKNOWN
            and not (key in OF_GEMMA and "gemma" in kind)
            or kind == "gpt2"
            and key in BESIDE
            and ("rope" in key or "rotary" in key)
        )
        named = f'"{key}"' in said or (key == "num_hidden_layers" and '"layer_types"' in said)
        if code == 2 and named:
            refused.add(key)
        elif code or (f'does not know 1 key of the configuration, computes without it: "{key}"' in said) != unknown:
            wrong.append((key, value, said))
        elif theirs is not None and abs(ours - theirs) > 1e-4:
            wrong.append((key, value, ours, theirs))
        elif abs(ours - plain) > 1e-3:
            counted.add(key)
    assert not wrong, wrong
    some = {"n_head", "n_inner"} if kind == "gpt2" else {"num_attention_heads", "rope_theta", "rope_scaling"}
    assert counted | refused >= some and counted >= {"tie_word_embeddings", "vocab_size"}, (counted, refused)
    assert counted & some and "is_causal" in refused, (counted, refused)


def test_what_changes_nothing_is_kept(tmp_path):
    """Keys that no table knows are said once, when the run is made; an export has them, and all that change nothing."""
    beside = {
        "my_key": {"a": [1, None]},
        "other": 2.5,
        "attention_dropout": 0.25,
        "use_cache": False,
        "task_specific_params": {"x": 1},
        "is_causal": True,
    }
    make(tmp_path / "model", {"model_type": "llama", **ROTARY, **beside})
    (tmp_path / "drive").mkdir()
    (tmp_path / "text").write_bytes(TEXT)

    def run(*arguments):
        out = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60)
        assert out.returncode == 0, out.stderr
        return out.stderr

    said = run(
        "train",
        "--model",
        tmp_path / "model",
        "--tokenizer",
        "bytes",
        "--data",
        tmp_path / "text",
        "--steps",
        1,
        "--seq-len",
        8,
        "--batch",
        1,
        "--drive",
        tmp_path / "drive",
        "--out",
        tmp_path / "run",
    )
    assert said.count("does not know 2 keys of the configuration") == 1 and '"my_key", "other"' in said
    assert "does not know" not in run("train", "--resume", tmp_path / "run", "--steps", 2)
    run("export", tmp_path / "run", "--out", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert beside.items() <= config.items() and config["num_key_value_heads"] == 2
