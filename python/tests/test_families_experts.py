"""Families with experts in the program against transformers: losses with the one that balances experts and without,
gradients and weights, for runs in memory and with the least; an expert that no token went to; what is exported, as
transformers' own files have it; greedy tokens."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "numeric"))
import make_expected

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="the program is not installed")

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
# T tokens a sequence, B sequences a step: one full unit and a short one.
RUN = dict(make_expected.ADAMW, T=70, B=20, steps=4, tokens=3001)
PROMPT = "The crew carries crates over the quay, and"

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


def run(*arguments):
    out = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=100)
    assert out.returncode == 0, (arguments, out.stderr)
    return out


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
        for group in optimizer.param_groups:
            group["lr"] = make_expected.learning_rate(config, k + 1)
        optimizer.step()
        steps.append((loss.item(), norm.item()))
    return model, steps


def train_ours(place, *more):
    for name in "run", "drive":
        shutil.rmtree(place / name, ignore_errors=True)
    (place / "drive").mkdir()
    said = run(*command(place), "--out", place / "run", *more).stdout
    lines = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    return [(float(line["loss"]), float(line["grad_norm"])) for line in lines], digest_in(said)


def digest_in(said):
    return re.search(r"^step \d+ digest (\w+)", said, re.M).group(1)


def command(place):
    flags = make_expected.flags(RUN).split()
    data = ["--model", place / "model", "--tokenizer", "bytes", "--data", place / "data.bin"]
    return ["train", *data, *flags, "--drive", place / "drive"]


def greedy(model, count):
    ids = torch.tensor([list(PROMPT.encode())])
    model.config.output_router_logits = False  # transformers 4 cannot generate with it
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
    return bytes(out[0, ids.shape[1] :].tolist()).decode()


def prepared(case, place, **more):
    initial = model_of(case, place / "model", **more)
    tokens = make_expected.token_stream(RUN["tokens"], SMALL["vocab_size"], seed=1)
    make_expected.write_bin(place / "data.bin", tokens)
    return initial, tokens


def compare(place, theirs, trained, *more):
    """Trains, compares with transformers, and returns the steps, the digest, and the exported model."""
    steps, digest = train_ours(place, "--precision", "fp32", "--memory", "1GiB", *more)
    for (loss, norm), (their_loss, their_norm) in zip(steps, theirs, strict=True):
        assert abs(loss - their_loss) <= 2e-6 * their_loss and abs(norm - their_norm) <= 2e-5 * their_norm, (
            steps,
            theirs,
        )
    run("export", place / "run", "--out", place / "out", "--dtype", "fp32", "--memory", "1GiB")
    exported = AutoModelForCausalLM.from_pretrained(
        place / "out", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ours, wanted = exported.state_dict(), trained.state_dict()
    assert ours.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (ours[name] - value).abs().max() <= 3e-5, name
    return steps, digest, exported


@pytest.mark.parametrize("balanced", [False, True], ids=["", "balanced"])
@pytest.mark.parametrize("case", CASES)
def test_as_transformers(case, balanced, tmp_path):
    if balanced and case == "gpt_oss" and int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("transformers 4 balances gpt-oss by the weights of chosen experts, in place of logits")
    initial, tokens = prepared(case, tmp_path, **(BALANCED if balanced else {}))
    trained, theirs = train_theirs(initial, tokens, RUN)
    steps, digest, exported = compare(tmp_path, theirs, trained)
    said = run("generate", tmp_path / "run", "--prompt", PROMPT, "--temperature", 0, "--max-tokens", 40, "--json")
    assert json.loads(said.stdout)["text"] == greedy(exported, 40)
    names = {p: set(load_file(tmp_path / p / "model.safetensors")) for p in ("model", "out")}
    assert names["model"] == names["out"]  # an expert's tensors have names of their own

    dry = run(*command(tmp_path), "--precision", "fp32", "--out", tmp_path / "dry", "--dry-run")
    least = re.search(r"minimum ([\d.]+) MiB", dry.stderr + dry.stdout).group(1)
    (other := tmp_path / "other").mkdir()
    for more in (
        ("--memory", f"{least}MiB"),
        ("--memory", "1GiB", "--update", "host"),
        ("--memory", "1GiB", "--drive", other),
    ):
        assert train_ours(tmp_path, "--precision", "fp32", *more) == (steps, digest)
    rounded, _ = train_ours(tmp_path, "--precision", "bf16", "--memory", "1GiB")
    for (loss, _), (their_loss, _) in zip(rounded, steps, strict=True):
        assert abs(loss - their_loss) <= 1e-2 * their_loss, (rounded, steps)


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
    compare(tmp_path, theirs, trained)
    before, after = (of_expert_5(load_file(tmp_path / p / "model.safetensors")) for p in ("model", "out"))
    assert before and any((before[name].float() == after[name]).all() for name in before)


def of_expert_5(tensors):
    stacked = {name: value[5] for name, value in tensors.items() if re.search(r"experts\.\D", name)}
    return stacked or {name: value for name, value in tensors.items() if "experts.5." in name}


@pytest.mark.parametrize("case", ["qwen3_moe", "gpt_oss"])
def test_experts_that_are_frozen(case, tmp_path):
    initial, tokens = prepared(case, tmp_path)
    trained, theirs = train_theirs(initial, tokens, RUN, frozen=["*.experts.*"])
    compare(tmp_path, theirs, trained, "--freeze", "mlp.experts.*")
    if case == "gpt_oss":
        return  # its experts have one name
    out = subprocess.run(
        [PROGRAM, *map(str, command(tmp_path)), "--out", tmp_path / "part", "--freeze", "experts.3.*"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert out.returncode == 2 and "freeze all experts of a layer" in out.stderr


@pytest.mark.parametrize("case", CASES)
def test_goes_on_after_a_stop(case, tmp_path):
    prepared(case, tmp_path, **BALANCED)
    whole = train_ours(tmp_path, "--precision", "fp32", "--memory", "1GiB")
    shutil.rmtree(tmp_path / "run"), shutil.rmtree(tmp_path / "drive")
    (tmp_path / "drive").mkdir()
    run(*command(tmp_path), "--out", tmp_path / "run", "--precision", "fp32", "--memory", "1GiB", "--stop-at", 2)
    assert digest_in(run("train", "--resume", tmp_path / "run").stdout) == whole[1]
