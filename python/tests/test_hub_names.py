"""save_pretrained() writes the names, shapes and values that transformers' own writes, for models that it converts."""

import json

import pytest
import torch
from safetensors.torch import load_file

import longshore
from test_loop import engine_for

transformers = pytest.importorskip("transformers")
SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def experts(name, **more):
    config = getattr(transformers, f"{name}Config")(**SMALL, **more)
    return getattr(transformers, f"{name}ForCausalLM")(config)


def llava():
    text = transformers.LlamaConfig(**SMALL)
    return transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**VISION), text_config=text, image_token_id=5
        )
    )


def qwen2_vl():
    text = {**SMALL, "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}
    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}
    return transformers.Qwen2VLForConditionalGeneration(
        transformers.Qwen2VLConfig(text_config=text, vision_config=vision)
    )


MODELS = {
    "mixtral": lambda: experts("Mixtral", num_local_experts=3),
    "qwen2_moe": lambda: experts("Qwen2Moe", num_experts=3, moe_intermediate_size=8, shared_expert_intermediate_size=8),
    "qwen3_moe": lambda: experts("Qwen3Moe", num_experts=3, moe_intermediate_size=8, head_dim=8),
    "olmoe": lambda: experts("Olmoe", num_experts=3),
    "llava": llava,
    "qwen2_vl": qwen2_vl,
}


def files(directory):
    return {name: value for path in sorted(directory.glob("*.safetensors")) for name, value in load_file(path).items()}


@pytest.mark.parametrize("name", list(MODELS))
def test_the_names_are_those_of_the_hub(name, tmp_path, seed):
    torch.manual_seed(seed)
    made = MODELS[name]()
    made.save_pretrained(tmp_path / "plain")
    expected = files(tmp_path / "plain")
    if int(transformers.__version__.split(".")[0]) >= 5 or name in ("llava", "qwen2_vl"):
        assert expected.keys() != made.state_dict().keys()  # there is something to convert
    with engine_for(made, tmp_path) as engine:
        engine.save_pretrained(tmp_path / "ours")
        engine.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
        engine.save_pretrained(tmp_path / "half", dtype="bf16")
    for directory in ("ours", "shards"):
        ours = files(tmp_path / directory)
        assert ours.keys() == expected.keys()
        assert all(torch.equal(ours[key], expected[key]) for key in expected)
    assert json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())["weight_map"].keys() == (
        expected.keys()
    )
    half = files(tmp_path / "half")
    assert half.keys() == expected.keys()
    assert all(torch.equal(half[key], expected[key].to(half[key].dtype)) for key in expected)
    again = type(made).from_pretrained(tmp_path / "ours").state_dict()
    theirs = type(made).from_pretrained(tmp_path / "plain").state_dict()
    assert again.keys() == theirs.keys() and all(torch.equal(again[key], theirs[key]) for key in theirs)


def test_loaded_in_init_and_resumed(tmp_path, seed):
    torch.manual_seed(seed)
    MODELS["mixtral"]().save_pretrained(tmp_path / "plain")
    with longshore.init(tmp_path / "run"):
        made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    longshore.wrap(made).close()
    with longshore.resume(tmp_path / "run") as engine:
        engine.save_pretrained(tmp_path / "ours")
    expected, ours = files(tmp_path / "plain"), files(tmp_path / "ours")
    assert ours.keys() == expected.keys() and all(torch.equal(ours[key], expected[key]) for key in expected)


def test_what_cannot_be_reverted_is_refused_by_name(tmp_path, seed, monkeypatch):
    from longshore.run import hub_names

    def fails(tensors):
        raise ValueError("no such layer")

    with engine_for(MODELS["mixtral"](), tmp_path) as engine:
        monkeypatch.setattr(hub_names, "reverting", lambda model: fails)
        with pytest.raises(longshore.LongshoreError, match="MixtralForCausalLM the names of the Hub .no such layer"):
            engine.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()
