"""Each family with parts that rest, against transformers, and with adapters, against peft: losses, norms of
gradients, and what was trained."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import test_families_experts as experts
from test_families import CASES, IN_MEMORY, RUN, agree, make_expected, prepared, same_weights, train
from test_program import needs_program, program

pytestmark = needs_program
FROZEN = [("*norm*", "layers.1.mlp.*"), ("*embed_tokens*", "layers.0.*", "*_proj.weight")]


@pytest.mark.parametrize("case", CASES)
def test_frozen(case, tmp_path, monkeypatch):
    patterns = FROZEN[list(CASES).index(case) % len(FROZEN)]
    auto, initial, tokens = prepared(case, tmp_path, monkeypatch)
    how = dict(RUN, freeze=patterns)
    trained, theirs = make_expected.train(how, initial, tokens, torch.float32)
    agree(train(tmp_path, *IN_MEMORY, config=how)[0], theirs)
    program("export", tmp_path / "run", "--out", tmp_path / "out", "--dtype", "fp32")
    ours = auto.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict()
    moved = 0
    for name, p in trained.named_parameters():
        assert (ours[name] - p).abs().max() <= 3e-5, name
        moved += (ours[name] != initial.state_dict()[name]).any()
        assert p.requires_grad or torch.equal(ours[name], initial.state_dict()[name]), name
    assert moved


@pytest.mark.parametrize("case", [*CASES, *experts.CASES])
def test_adapters(case, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    load_file = pytest.importorskip("safetensors.torch").load_file
    if case in experts.CASES:
        auto, (initial, tokens) = AutoModelForCausalLM, experts.prepared(case, tmp_path)
    else:
        auto, initial, tokens = prepared(case, tmp_path, monkeypatch)
    lora = ["--lora", "r=3,alpha=9" + (",target=q_proj,v_proj,o_proj" if case in experts.CASES else "")]
    train(tmp_path, *IN_MEMORY, *lora, config=dict(RUN, steps=1, lr=0.0, min_lr=0.0))
    program("export", tmp_path / "run", "--out", tmp_path / "first")

    def adapted(config, attn_implementation):
        base = auto.from_pretrained(tmp_path / "model", dtype=torch.float32, attn_implementation=attn_implementation)
        model = peft.PeftModel.from_pretrained(base, tmp_path / "first", is_trainable=True)
        model.load_state_dict = lambda state: None  # it has its weights
        return model

    monkeypatch.setattr(make_expected.AutoModelForCausalLM, "from_config", adapted)
    trained, theirs = make_expected.train(RUN, initial, tokens, torch.float32)
    agree(train(tmp_path, *IN_MEMORY, *lora)[0], theirs)
    program("export", tmp_path / "run", "--out", tmp_path / "out")
    own, merged = (
        json.loads(program("eval", *what, "--data", tmp_path / "data.bin", "--precision", "fp32", "--json"))["loss"]
        for what in ([tmp_path / "run"], [tmp_path / "model", "--adapter", tmp_path / "out", "--seq-len", RUN["T"]])
    )
    assert abs(own - merged) <= 2e-6 * own
    ours = load_file(tmp_path / "out" / "adapter_model.safetensors")
    same_weights(ours, peft.get_peft_model_state_dict(trained))


@pytest.mark.parametrize("how", ["--freeze {}layers.1.mlp.*", "--lora r=2,target={}layers.1.mlp.up_proj,q_proj"])
def test_a_text_beside_images_has_the_names_of_new_and_of_old_files(how, tmp_path, monkeypatch):
    auto, *_ = prepared("gemma3_images", tmp_path, monkeypatch)
    new, old = (how.format(name).split() for name in ("model.language_model.", "language_model.model."))
    assert train(tmp_path, *IN_MEMORY, *new) == train(tmp_path, *IN_MEMORY, *old)
    if "--lora" in how:  # peft finds the modules by what the export says of them
        peft = pytest.importorskip("peft")
        program("export", tmp_path / "run", "--out", tmp_path / "out")
        model = peft.PeftModel.from_pretrained(auto.from_pretrained(tmp_path / "model"), tmp_path / "out")
        written = pytest.importorskip("safetensors.torch").load_file(tmp_path / "out" / "adapter_model.safetensors")
        assert peft.get_peft_model_state_dict(model).keys() == written.keys() and len(written) == 8
        config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
        config["target_modules"] = [k.removeprefix("base_model.model.").rpartition(".lora_")[0] for k in written]
        (tmp_path / "out" / "adapter_config.json").write_text(json.dumps(config))
        program("eval", tmp_path / "model", "--adapter", tmp_path / "out", "--data", tmp_path / "data.bin")


def test_an_adapter_for_the_head_beside_images_is_merged(tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    auto, *_ = prepared("mistral3_images", tmp_path, monkeypatch)
    how = peft.LoraConfig(r=2, target_modules="lm_head|.*language_model.*q_proj", init_lora_weights=False)
    model = peft.get_peft_model(auto.from_pretrained(tmp_path / "model", dtype=torch.float32), how)
    model.save_pretrained(tmp_path / "adapter")
    (tmp_path / "drive").mkdir()
    where = ["--tokenizer", "bytes", "--drive", tmp_path / "drive", "--out", tmp_path / "run"]
    program("import", tmp_path / "model", "--adapter", tmp_path / "adapter", *where)
    program("export", tmp_path / "run", "--out", tmp_path / "out", "--dtype", "fp32")
    ours = auto.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict()
    for name, value in model.merge_and_unload().state_dict().items():
        assert (ours[name] - value).abs().max() <= 1e-6 * value.abs().max(), name


@pytest.mark.parametrize("patterns", [["*.experts.*"], ["*self_attn*", "*embed_tokens*"]], ids=["experts", "others"])
@pytest.mark.parametrize("case", experts.CASES)
def test_frozen_experts_and_what_lies_beside_them(case, patterns, tmp_path):
    if len(patterns) > 1:
        patterns = [*patterns, "*.router.*" if case == "gpt_oss" else "*.gate.weight"]
    initial, tokens = experts.prepared(case, tmp_path)
    _, theirs = experts.train_theirs(initial, tokens, RUN, patterns)
    made = train(tmp_path, *IN_MEMORY, "--freeze", *patterns)
    agree(made[0], theirs)
    assert train(tmp_path, "--precision", "fp32", "--memory", "64MiB", "--freeze", *patterns) == made


@pytest.mark.parametrize("target", ["all-linear", "gate"])
def test_experts_and_their_router_take_no_adapters(target, tmp_path):
    experts.prepared("olmoe", tmp_path)
    with pytest.raises(AssertionError, match="is no plain product .*: those are q_proj, k_proj, v_proj, o_proj"):
        train(tmp_path, "--lora", f"target={target}")
