"""Families with experts in the program against transformers: losses with the one that balances experts and without,
gradients and weights, for runs in memory and with the least; an expert that no token went to; what is exported, as
transformers' own files have it; greedy tokens."""

import re
import shutil
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from test_families import (
    IN_MEMORY,
    RUN,
    command,
    compare,
    digest_in,
    follows_in_bf16,
    generated,
    greedy,
    least_memory,
    make_expected,
    tokens_in,
    train,
)
from test_program import PROGRAM, needs_program, program

pytestmark = needs_program

SMALL = dict(
    vocab_size=128,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
)
QWEN = dict(intermediate_size=40, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=2)
CASES = {
    "qwen3_moe": ("Qwen3Moe", dict(QWEN, norm_topk_prob=True)),
    "qwen3_moe_plain": ("Qwen3Moe", dict(QWEN, norm_topk_prob=False, head_dim=16)),
    "gpt_oss": (
        "GptOss",
        dict(intermediate_size=24, head_dim=16, num_local_experts=8, num_experts_per_tok=2, sliding_window=16),
    ),
    "olmoe": ("Olmoe", dict(intermediate_size=24, num_experts=8, num_experts_per_tok=2)),
}
BALANCED = dict(output_router_logits=True, router_aux_loss_coef=0.5)
MANY = {"num_experts": 24, "num_local_experts": 24}


def model_of(case, directory, **more):
    """A random model of the case, saved as transformers saves it, in bf16."""
    name, values = CASES[case]
    values = {**values, **{k: v for k, v in more.items() if k in values or k in BALANCED}}
    model = make_expected.random_model(getattr(transformers, f"{name}Config")(**SMALL, **values), seed=1)
    model.to(torch.bfloat16).save_pretrained(directory)
    return model.to(torch.float32)


def each_expert(model):
    """(parameter, its gradient) of what is trained of the model, each expert apart, as files have them: PyTorch then
    neither updates nor decays those of an expert that no token went to."""
    apart = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if ".experts." in name and p.dim() == 3 or name.endswith("_proj_bias"):
            of = [lambda p=p, e=e: None if p.grad is None else p.grad[e] for e in range(len(p))]
            apart += zip(map(torch.nn.Parameter, p.data), of)
        else:
            apart.append((p, lambda p=p: p.grad))
    return apart


def train_theirs(initial, tokens, config, frozen=()):
    model = AutoModelForCausalLM.from_config(initial.config, attn_implementation="eager", dtype=torch.float32).eval()
    model.load_state_dict(initial.state_dict())
    make_expected.freeze(model, frozen)
    apart = each_expert(model)
    groups = [
        dict(params=[p for p, _ in apart if p.dim() >= 2], weight_decay=config["weight_decay"]),
        dict(params=[p for p, _ in apart if p.dim() < 2], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=1, betas=(config["beta1"], config["beta2"]), eps=config["eps"])
    stream, (T, B), steps = torch.from_numpy(tokens.astype("int64")), (config["T"], config["B"]), []
    for k in range(config["steps"]):
        at = (k * B + torch.arange(B))[:, None] * T + torch.arange(T + 1)[None, :]
        ids = stream[at % len(stream)]
        out = model(input_ids=ids[:, :-1], use_cache=False)
        loss = torch.nn.functional.cross_entropy(out.logits.reshape(B * T, -1), ids[:, 1:].reshape(-1))
        if model.config.output_router_logits:
            loss = loss + model.config.router_aux_loss_coef * out.aux_loss
        model.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
        for p, gradient in apart:
            g = gradient()
            p.grad = g if g is not None and g.abs().max() > 0 else None
        lr = make_expected.learning_rate(config, k + 1)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        steps.append((k + 1, loss.item(), norm.item(), lr))
    return model, steps


def prepared(case, place, **more):
    return model_of(case, place / "model", **more), tokens_in(place)


@pytest.mark.parametrize("balanced", [False, True], ids=["", "balanced"])
@pytest.mark.parametrize("case", CASES)
def test_as_transformers(case, balanced, tmp_path):
    if balanced and case == "gpt_oss" and int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("transformers 4 balances gpt-oss by the weights of chosen experts, in place of logits")
    initial, tokens = prepared(case, tmp_path, **(BALANCED if balanced else {}))
    trained, theirs = train_theirs(initial, tokens, RUN)
    steps, digest, exported = compare(tmp_path, AutoModelForCausalLM, theirs, trained)
    exported.config.output_router_logits = False  # transformers 4 cannot generate with it
    assert generated(tmp_path) == greedy(exported, 40)
    names = {p: set(load_file(tmp_path / p / "model.safetensors")) for p in ("model", "out")}
    assert names["model"] == names["out"]  # an expert's tensors have names of their own

    (other := tmp_path / "other").mkdir()
    for more in (
        ("--memory", least_memory(tmp_path)),
        ("--memory", "1GiB", "--update", "host"),
        ("--memory", "1GiB", "--drive", other),
    ):
        assert train(tmp_path, "--precision", "fp32", *more) == (steps, digest)
    follows_in_bf16(tmp_path, steps)


@pytest.mark.parametrize("case", CASES)
def test_an_expert_without_tokens_is_carried(case, tmp_path):
    """It keeps its weights, and the steps that it misses do not count in its moments' corrections."""
    initial, tokens = prepared(case, tmp_path, **MANY)
    with torch.no_grad():
        for name, p in initial.named_parameters():
            if name.endswith(("gate.weight", "router.weight")):
                p[5] = 0  # its logit is rarely among the largest, and never at first
            if name.endswith("router.bias"):
                p[5] = -9
    initial.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    initial.to(torch.float32)
    trained, theirs = train_theirs(initial, tokens, RUN)
    compare(tmp_path, AutoModelForCausalLM, theirs, trained)
    before, after = (of_expert_5(load_file(tmp_path / p / "model.safetensors")) for p in ("model", "out"))
    assert before and any((before[name].float() == after[name]).all() for name in before)


def of_expert_5(tensors):
    stacked = {name: value[5] for name, value in tensors.items() if re.search(r"experts\.\D", name)}
    return stacked or {name: value for name, value in tensors.items() if "experts.5." in name}


@pytest.mark.parametrize("case", ["qwen3_moe", "gpt_oss"])
def test_experts_that_are_frozen(case, tmp_path):
    initial, tokens = prepared(case, tmp_path)
    trained, theirs = train_theirs(initial, tokens, RUN, frozen=["*.experts.*"])
    compare(tmp_path, AutoModelForCausalLM, theirs, trained, "--freeze", "mlp.experts.*")
    if case == "gpt_oss":
        return  # its experts have one name
    out = subprocess.run(
        [PROGRAM, *map(str, command(tmp_path)), "--out", tmp_path / "part", "--freeze", "experts.3.*"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert out.returncode == 2 and "freeze all experts of a layer" in out.stderr


@pytest.mark.parametrize("case", ["qwen3_moe", "olmoe"])
def test_experts_in_one_tensor(case, tmp_path):
    """As transformers 5 has them in memory, and saves them if it is asked to."""
    model, _ = prepared(case, tmp_path)
    one_by_one = train(tmp_path, *IN_MEMORY)
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("this transformers has experts one by one")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "model", save_original_format=False)
    names = load_file(tmp_path / "model" / "model.safetensors").keys()
    assert "model.layers.1.mlp.experts.gate_up_proj" in names and not any("experts.0" in name for name in names)
    assert train(tmp_path, *IN_MEMORY) == one_by_one


@pytest.mark.parametrize("case", CASES)
def test_goes_on_after_a_stop(case, tmp_path):
    prepared(case, tmp_path, **BALANCED)
    whole = train(tmp_path, *IN_MEMORY)
    shutil.rmtree(tmp_path / "run"), shutil.rmtree(tmp_path / "drive")
    (tmp_path / "drive").mkdir()
    program(*command(tmp_path), "--out", tmp_path / "run", *IN_MEMORY, "--stop-at", 2)
    assert digest_in(program("train", "--resume", tmp_path / "run")) == whole[1]
