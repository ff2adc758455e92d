"""Each family with parts that rest, against transformers, and with adapters, against peft: losses, norms of
gradients, and what was trained."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import test_families_experts as experts
from test_families import CASES, PROGRAM, RUN, SIZES, make_expected, model_of, run

pytestmark = pytest.mark.skipif(not PROGRAM, reason="the program is not installed")
FROZEN = [("*norm*", "layers.1.mlp.*"), ("*embed_tokens*", "layers.0.*", "*_proj.weight")]


def prepared(case, place, monkeypatch):
    auto = AutoModelForImageTextToText if "images" in case else AutoModelForCausalLM
    monkeypatch.setattr(make_expected, "AutoModelForCausalLM", auto)
    initial = model_of(case, place / "model")
    tokens = make_expected.token_stream(RUN["tokens"], SIZES["vocab_size"], seed=1)
    make_expected.write_bin(place / "data.bin", tokens)
    return auto, initial, tokens


def train(place, case, *more):
    """The run's steps, as (loss, norm of gradients)."""
    name = f"run{len(list(place.glob('run*')))}"
    (place / f"{name}-drive").mkdir()
    what = ["--model", place / "model", "--tokenizer", "bytes", "--data", place / "data.bin", "--precision", "fp32"]
    where = ["--drive", place / f"{name}-drive", "--out", place / name, "--memory", "1GiB", "--quiet"]
    run("train", *what, *make_expected.flags(case).split(), *where, *more)
    lines = [json.loads(line) for line in (place / name / "metrics.jsonl").read_text().splitlines()]
    return place / name, [(line["loss"], line["grad_norm"]) for line in lines]


def agree(steps, theirs):
    for (loss, norm), (_, their_loss, their_norm, _) in zip(steps, theirs, strict=True):
        assert abs(loss - their_loss) <= 2e-6 * their_loss, (steps, theirs)
        assert abs(norm - their_norm) <= 2e-5 * their_norm, (steps, theirs)


@pytest.mark.parametrize("case", CASES)
def test_frozen(case, tmp_path, monkeypatch):
    patterns = FROZEN[list(CASES).index(case) % len(FROZEN)]
    auto, initial, tokens = prepared(case, tmp_path, monkeypatch)
    how = dict(RUN, freeze=patterns)
    trained, theirs = make_expected.train(how, initial, tokens, torch.float32)
    path, steps = train(tmp_path, how)
    agree(steps, theirs)
    run("export", path, "--out", tmp_path / "out", "--dtype", "fp32")
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
        monkeypatch.setattr(make_expected, "AutoModelForCausalLM", auto)
    else:
        auto, initial, tokens = prepared(case, tmp_path, monkeypatch)
    lora = ["--lora", "r=3,alpha=9" + (",target=q_proj,v_proj,o_proj" if case in experts.CASES else "")]
    first, _ = train(tmp_path, dict(RUN, steps=1, lr=0.0, min_lr=0.0), *lora)
    run("export", first, "--out", tmp_path / "first")

    def adapted(config, attn_implementation):
        base = auto.from_pretrained(tmp_path / "model", dtype=torch.float32, attn_implementation=attn_implementation)
        model = peft.PeftModel.from_pretrained(base, tmp_path / "first", is_trainable=True)
        model.load_state_dict = lambda state: None  # it has its weights
        return model

    monkeypatch.setattr(make_expected.AutoModelForCausalLM, "from_config", adapted)
    trained, theirs = make_expected.train(RUN, initial, tokens, torch.float32)
    path, steps = train(tmp_path, RUN, *lora)
    agree(steps, theirs)
    run("export", path, "--out", tmp_path / "out")
    own, merged = (
        json.loads(run("eval", *what, "--data", tmp_path / "data.bin", "--precision", "fp32", "--json").stdout)["loss"]
        for what in ([path], [tmp_path / "model", "--adapter", tmp_path / "out", "--seq-len", RUN["T"]])
    )
    assert abs(own - merged) <= 2e-6 * own
    ours = load_file(tmp_path / "out" / "adapter_model.safetensors")
    wanted = peft.get_peft_model_state_dict(trained)
    assert ours.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (ours[name] - value).abs().max() <= 3e-5, name


@pytest.mark.parametrize("patterns", [["*.experts.*"], ["*self_attn*", "*embed_tokens*"]], ids=["experts", "others"])
@pytest.mark.parametrize("case", experts.CASES)
def test_frozen_experts_and_what_lies_beside_them(case, patterns, tmp_path):
    if len(patterns) > 1:
        patterns = [*patterns, "*.router.*" if case == "gpt_oss" else "*.gate.weight"]
    initial, tokens = experts.prepared(case, tmp_path)
    _, theirs = experts.train_theirs(initial, tokens, experts.RUN, patterns)
    steps, digest = experts.train_ours(tmp_path, "--precision", "fp32", "--memory", "1GiB", "--freeze", *patterns)
    agree(steps, [(0, *step, 0) for step in theirs])
    again, other = experts.train_ours(tmp_path, "--precision", "fp32", "--memory", "64MiB", "--freeze", *patterns)
    assert again == steps and other == digest and digest


@pytest.mark.parametrize("target", ["all-linear", "gate"])
def test_experts_and_their_router_take_no_adapters(target, tmp_path):
    experts.prepared("olmoe", tmp_path)
    with pytest.raises(AssertionError, match="is no plain product .*: those are q_proj, k_proj, v_proj, o_proj"):
        experts.train_ours(tmp_path, "--lora", f"target={target}")
