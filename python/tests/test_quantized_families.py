"""Quantised weights of families whose tensors lie otherwise than those of Llama: fused, in experts, beside images."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import test_families_experts
from test_families import CASES, IN_MEMORY, RUN, SMALL, auto_of, make_expected, model_of, tokens_in, train
from test_program import program
from test_quantized import FIVE, FP8, PROGRAM, check, refusal, to_fp8, widened

pytestmark = pytest.mark.skipif(not (PROGRAM and FIVE), reason="no program, or a transformers that does not widen fp8")

# of sizes that groups of 32 codes divide
GPT_OSS = dict(
    SMALL,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    head_dim=32,
    num_local_experts=4,
    num_experts_per_tok=2,
    sliding_window=16,
    pad_token_id=3,
)


def rewrite(directory, tensors, config):
    """Replaces the weights by others, and says how they are quantised."""
    for file in directory.glob("*.safetensors*"):
        file.unlink()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    said = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**said, "dtype": "bfloat16", "quantization_config": config}))


def stored_by(directory):
    return {name: t for file in directory.glob("*.safetensors") for name, t in load_file(file).items()}


def quantised(case, directory, monkeypatch):
    """A random model whose text has fp8 codes and one scale for a tensor, as Ministral 3 ships."""
    monkeypatch.setattr(make_expected, "AutoModelForCausalLM", auto_of(case))
    (model_of if case in CASES else test_families_experts.model_of)(case, directory)
    tensors = {}
    for name, tensor in stored_by(directory).items():
        tensors[name] = tensor.bfloat16()
        if tensor.dim() == 2 and "_proj" in name and not any(word in name for word in ("vision", "multi_modal")):
            tensors[name], tensors[name + "_scale_inv"] = to_fp8(tensor, None, torch.bfloat16)
            tensors[name.replace("weight", "activation_scale")] = torch.tensor(0.5)
    skipped = ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
    rewrite(directory, tensors, {**FP8, "weight_block_size": None, "modules_to_not_convert": skipped})
    return sum(t.dtype == torch.float8_e4m3fn for t in tensors.values())


@pytest.mark.parametrize("case", ["qwen3", "qwen3_moe", "olmoe", "gemma3", "phi3", "mistral3_images"])
def test_fp8_of_other_families(case, tmp_path, seed, monkeypatch):
    assert quantised(case, tmp_path / "model", monkeypatch) >= 12
    theirs = auto_of(case).from_pretrained(
        tmp_path / "model", quantization_config=transformers.FineGrainedFP8Config(dequantize=True)
    )
    _, said = widened(tmp_path / "model", tmp_path / "place")
    assert "quantization_config" not in said
    ours = auto_of(case).from_pretrained(tmp_path / "place" / "out", dtype=torch.float32)
    check({name: t.float() for name, t in ours.state_dict().items()}, theirs.state_dict())


def test_codes_beside_the_text_are_refused(tmp_path, seed, monkeypatch):
    quantised("mistral3_images", tmp_path / "model", monkeypatch)
    tensors = stored_by(tmp_path / "model")
    name = next(name for name, t in tensors.items() if "vision" in name and t.dim() == 2 and "_proj" in name)
    tensors[name], tensors[name + "_scale_inv"] = to_fp8(tensors[name], None, torch.bfloat16)
    rewrite(tmp_path / "model", tensors, {**FP8, "weight_block_size": None})
    said = refusal(tmp_path / "model", tmp_path / "place")
    assert name in said and "quantised" in said, said


def test_experts_of_4_bits_are_widened_as_transformers_does(tmp_path, seed, monkeypatch):
    monkeypatch.setitem(CASES, "gpt_oss", ("GptOss", GPT_OSS))
    model_of("gpt_oss", tmp_path / "model")
    tensors = {}
    for name, tensor in stored_by(tmp_path / "model").items():
        tensors[name] = tensor.bfloat16()
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inner, outer = tensors.pop(name).shape
            groups = (experts, outer, inner // 32)
            tensors[name + "_blocks"] = torch.randint(0, 256, (*groups, 16), dtype=torch.uint8)
            tensors[name + "_scales"] = torch.randint(116, 124, groups, dtype=torch.uint8)
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    rewrite(tmp_path / "model", tensors, {"quant_method": "mxfp4", "modules_to_not_convert": skipped})
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", quantization_config=transformers.Mxfp4Config(dequantize=True)
    )
    ours, said = widened(tmp_path / "model", tmp_path / "place")
    assert "quantization_config" not in said
    check(ours, theirs.state_dict())


def test_adapters_train_beside_widened_weights(tmp_path, seed, monkeypatch):
    """The first loss is the model's own; then they learn, and what is merged into the codes' model is the run's."""
    quantised("qwen3", tmp_path / "model", monkeypatch)
    tokens_in(tmp_path)
    plain, _ = train(tmp_path, *IN_MEMORY)
    adapted, _ = train(tmp_path, *IN_MEMORY, "--lora", "r=4,alpha=64")
    assert adapted[0][0] == pytest.approx(plain[0][0], rel=1e-6)
    assert adapted[-1][0] < adapted[0][0]
    program("export", tmp_path / "run", "--out", tmp_path / "out")
    data = ["--data", tmp_path / "data.bin", "--seq-len", RUN["T"], "--json", "--precision", "fp32"]
    own = json.loads(program("eval", tmp_path / "run", *data))
    merged = json.loads(program("eval", tmp_path / "model", "--adapter", tmp_path / "out", *data))
    assert merged["loss"] == pytest.approx(own["loss"], rel=2e-6)
