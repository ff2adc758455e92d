"""`--adapter` merges what PEFT's merge_and_unload() merges, and refuses what it cannot by name."""

import json
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from models import gpt2, llama
from test_program import PROGRAM, needs_program, program

peft = pytest.importorskip("peft")
pytestmark = [needs_program, pytest.mark.usefixtures("one_thread")]

LINEAR = ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"]
CASES = {
    "llama": (llama, {"target_modules": LINEAR}),
    "rslora": (llama, {"target_modules": LINEAR, "use_rslora": True, "lora_alpha": 3}),
    "dora": (llama, {"target_modules": "all-linear", "use_dora": True}),
    "patterns": (
        llama,
        {
            "target_modules": r".*\.(q_proj|down_proj)",
            "rank_pattern": {"layers.1.self_attn.q_proj": 5, r"^model\.layers\.\d\.mlp.down_proj": 2},
            "alpha_pattern": {"down_proj": 7},
            "exclude_modules": ["layers.2.mlp.down_proj"],
        },
    ),
    "parts of names": (
        llama,
        {
            "target_modules": r"(?:.*?(?:text|image).*?q_proj)|(?:\bmodel\.layers\.[\d]{1,}(?!.*k_).*?(?P<last>_proj))",
            "rank_pattern": {r"\w+_attn.*": 3},
            "alpha_pattern": {r"layers\.(?!0)\d+\.mlp\..*": 7},
        },
    ),
    "layers": (llama, {"target_modules": ["v_proj"], "layers_to_transform": [0, 2], "layers_pattern": "layers"}),
    "saved": (
        llama,
        {"target_modules": ["embed_tokens", "gate_proj"], "modules_to_save": ["lm_head", "input_layernorm"]},
    ),
    "dora_embedding": (llama, {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}),
    "gpt2": (gpt2, {"target_modules": ["c_attn", "c_proj", "c_fc", "wpe"], "fan_in_fan_out": True}),
    "gpt2_bias": (gpt2, {"target_modules": ["c_attn"], "bias": "all", "use_dora": True}),
}


def adapted(tmp_path, model, how, dtype=torch.float32, start=False):
    """A base and an adapter for it, every tensor of which says something; and the model that PEFT makes of both."""
    model.to(dtype).save_pretrained(tmp_path / "base")
    how = {"init_lora_weights": start, **how}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **{"r": 4, "lora_alpha": 6, **how}))
    with torch.no_grad():
        for p in wrapped.parameters():
            if p.requires_grad:
                p += 0.05 * torch.randn(p.shape)
    wrapped.save_pretrained(tmp_path / "adapter")
    base = type(model).from_pretrained(tmp_path / "base", dtype=dtype)
    return peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()


def imported(tmp_path, dtype="fp32"):
    (tmp_path / "drive").mkdir()
    how = ["--adapter", tmp_path / "adapter", "--tokenizer", "bytes", "--memory", "64MiB", "--quiet"]
    program("import", tmp_path / "base", *how, "--drive", tmp_path / "drive", "--out", tmp_path / "run")
    program("export", tmp_path / "run", "--out", tmp_path / "out", "--dtype", dtype)
    return load_file(tmp_path / "out" / "model.safetensors")


def refused(tmp_path):
    what = ["eval", tmp_path / "base", "--adapter", tmp_path / "adapter", "--tokenizer", "bytes"]
    (tmp_path / "text").write_text("every ship waits")
    out = subprocess.run([PROGRAM, *map(str, what), "--data", tmp_path / "text"], capture_output=True, text=True)
    assert out.returncode == 2, out.stderr
    return out.stderr


@pytest.mark.parametrize("case", CASES)
def test_it_is_merged_as_peft_merges(tmp_path, seed, case):
    make, how = CASES[case]
    model = make(tie_word_embeddings=False) if make is llama else make()
    expected = adapted(tmp_path, model, how).state_dict()
    plain = load_file(tmp_path / "base" / "model.safetensors")
    got = imported(tmp_path)
    changed = 0
    for name, value in got.items():
        off = (value - expected[name]).abs().max()
        assert off <= 1e-6 * expected[name].abs().max(), name
        changed += not torch.equal(value, plain[name])
    assert changed == sum(not torch.equal(expected[name], plain[name]) for name in got) > 0
    said = json.loads(program("inspect", tmp_path / "run", "--json"))
    assert said["settings"]["adapter"] == str(tmp_path / "adapter")


@pytest.mark.parametrize("dora", [False, True])
def test_a_model_in_bf16_gets_what_peft_rounds(tmp_path, seed, dora):
    expected = adapted(tmp_path, llama(), {"target_modules": LINEAR, "use_dora": dora}, torch.bfloat16).state_dict()
    got = imported(tmp_path, "bf16")
    for name, value in got.items():
        theirs = expected[name].float()
        differs = value != expected[name]
        assert differs.sum() <= 1 + 1e-3 * differs.numel(), name  # beside a tie of the rounding
        limit = theirs.abs() * 2**-7 + theirs.abs().max() * 1e-6
        assert ((value.float() - theirs).abs() <= limit).all(), name


def test_all_linear_may_be_written_in_capitals(tmp_path, plain):
    shutil.copytree(plain, tmp_path, dirs_exist_ok=True)
    change(tmp_path / "adapter", named("target_modules", "All-Linear"))
    assert imported(tmp_path)


def without(key):
    return lambda config, tensors: tensors.pop(next(k for k in tensors if key in k))


def named(key, value):
    return lambda config, tensors: config.update({key: value})


def renamed(old, new):
    def change(config, tensors):
        name = next(k for k in tensors if old in k)
        tensors[name.replace(old, new)] = tensors.pop(name)

    return change


def reshaped(config, tensors):
    name = next(k for k in tensors if "q_proj.lora_B" in k)
    tensors[name] = tensors[name][:-1].clone()


REFUSED = {
    "another kind": (named("peft_type", "LOHA"), '"peft_type" is LOHA, and Longshore merges LORA'),
    "a feature": (named("lora_bias", True), '"lora_bias" is in use'),
    "a newer feature": (named("use_what_comes_next", 3), '"use_what_comes_next" is in use'),
    "a changed base": (named("init_lora_weights", "pissa"), '"init_lora_weights" is pissa'),
    "another rank": (named("r", 8), "the rank 8, but its weights have the rank 4"),
    "a pattern's rank": (named("rank_pattern", {"layers.0.*": 8}), "the rank 8, but its weights have the rank 4"),
    "another target": (named("target_modules", ["v_proj"]), "PEFT would ignore them"),
    "a regular expression": (named("target_modules", "("), '"target_modules" holds a regular expression that'),
    "Python's own": (named("target_modules", ".*q_pro{,2}j"), "has {,n} or [:, which is not supported"),
    "mixed targets": (named("target_modules", ["q_proj", 1]), '"target_modules" is not as PEFT writes it'),
    "a text to save": (named("modules_to_save", "lm_head"), '"modules_to_save" is not as PEFT writes it: a list'),
    "layers": (named("layers_to_transform", [0]), "PEFT would ignore them"),
    "layers of text": (named("layers_to_transform", ["0"]), '"layers_to_transform" is not as PEFT writes it'),
    "what is saved as a whole": (named("modules_to_save", ["self_attn"]), "PEFT would ignore them"),
    "nothing": (lambda config, tensors: tensors.clear(), "holds no tensors"),
    "dora": (named("use_dora", True), "there is no lora_magnitude_vector beside it"),
    "no alpha": (named("lora_alpha", "4"), '"lora_alpha" holds no usable number'),
    "half": (without("lora_B"), "stands without its other half"),
    "no weight": (renamed("q_proj", "w_proj"), "which the model does not have"),
    "no prefix": (renamed("base_model.model.", ""), "is not named as PEFT names tensors"),
    "a shape": (reshaped, "which do not fit the weight's [48, 48]"),
    "what is not wrapped": (renamed("q_proj.lora_A", "q_proj.base_layer"), "that is not wrapped by the adapter"),
}


def change(directory, how):
    config = json.loads((directory / "adapter_config.json").read_text())
    tensors = load_file(directory / "adapter_model.safetensors")
    how(config, tensors)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    place = tmp_path_factory.mktemp("plain")
    adapted(place, llama(), {"target_modules": ["q_proj", "down_proj"]})
    return place


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_merged_is_refused_by_name(tmp_path, plain, case):
    how, says = REFUSED[case]
    shutil.copytree(plain, tmp_path, dirs_exist_ok=True)
    change(tmp_path / "adapter", how)
    assert says in refused(tmp_path)


def test_directories_are_told_apart(tmp_path, plain):
    shutil.copytree(plain, tmp_path, dirs_exist_ok=True)
    out = subprocess.run([PROGRAM, "eval", tmp_path / "adapter", "--data", "x"], capture_output=True, text=True)
    assert (
        "holds an adapter of PEFT" in out.stderr
        and "name the model's directory, and this one with --adapter" in out.stderr
    )
    (tmp_path / "adapter" / "adapter_model.safetensors").rename(tmp_path / "adapter" / "adapter_model.bin")
    assert "a pickle, which could run code" in refused(tmp_path)
    (tmp_path / "adapter" / "adapter_config.json").unlink()
    assert "is not an adapter's directory" in refused(tmp_path)


@pytest.mark.parametrize("target", ["wte", "lm_head"])
def test_a_tied_table_is_refused(tmp_path, seed, target):
    adapted(tmp_path, gpt2(), {"target_modules": [target]})
    assert "are one tensor in this model" in refused(tmp_path)


def test_eval_and_train_merge_it_too(tmp_path, seed):
    model = adapted(tmp_path, llama(vocab_size=260), {"target_modules": LINEAR})
    model.save_pretrained(tmp_path / "merged")
    (tmp_path / "text").write_text("every ship waits and meets a pilot. " * 9)
    how = ["--data", tmp_path / "text", "--tokenizer", "bytes", "--precision", "fp32"]
    ours = json.loads(program("eval", tmp_path / "base", "--adapter", tmp_path / "adapter", *how, "--json"))
    theirs = json.loads(program("eval", tmp_path / "merged", *how, "--json"))
    assert abs(ours["loss"] - theirs["loss"]) <= 2e-6 * theirs["loss"]
    losses = []
    for base, adapter in ((tmp_path / "base", ["--adapter", tmp_path / "adapter"]), (tmp_path / "merged", [])):
        length = ["--seq-len", 16, "--batch", 2, "--steps", 2, "--quiet", "--drive", "ram:"]
        program("train", "--model", base, *adapter, *how, *length, "--out", tmp_path / f"run-{base.name}")
        lines = (tmp_path / f"run-{base.name}" / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert all(abs(a - b) <= 2e-6 * b for a, b in zip(*losses))
    wrong = subprocess.run([PROGRAM, "plan", "--init", "llama-tiny", "--adapter", "x"], capture_output=True, text=True)
    assert "--adapter needs --model" in wrong.stderr
