#!/usr/bin/env python3
"""Expected values for the numeric tests: small random models, trained a few steps by PyTorch.

    pip install torch transformers safetensors numpy      # 4.57 made most, 5.24 llama_yarn
    python3 tests/numeric/make_expected.py [CASE...]      # rewrites tests/data/numeric/

Each case directory holds
    model/                      a Hugging Face directory: the initial weights (bf16 values, so that they stay small)
    data.bin                    a token stream in llm.c's 16-bit format
    args                        the flags of `longshore train`, one line
    losses                      "step loss grad_norm" a line, fp32
    expected/model.safetensors  the weights after the last step, fp32
    expected.json               all of it with versions, and how far a float64 run of the same is from it
A case may use the model of another: model_of names it. freeze: names of what is not trained, as --freeze takes them.
"""
import argparse
import fnmatch
import json
import math
import pathlib
import shutil
import struct
import zlib

import numpy
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

ROOT = pathlib.Path(__file__).resolve().parent.parent / "data" / "numeric"
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=200)
ADAMW = dict(optimizer="adamw", lr=2e-3, min_lr=2e-4, warmup=2, schedule="cosine", beta1=0.9, beta2=0.95, eps=1e-6,
             weight_decay=0.1, clip=0.25)


def gpt2(**other):
    return GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=256, eos_token_id=256, **other)


def llama(kind=LlamaConfig, pad_token_id=None, **other):
    return kind(bos_token_id=256, eos_token_id=256, pad_token_id=pad_token_id, **other)


# T tokens a sequence, B sequences a step. A unit is max(1, 1024 // T) sequences, so that every case but two has several
# units, most with a short last one.
CASES = {
    # 16 + 16 + 3 sequences
    "gpt2": dict(T=64, B=35, steps=6, tokens=5003, config=gpt2(
        vocab_size=260, n_positions=64, n_embd=40, n_layer=2, n_head=4, n_inner=72), **ADAMW),
    # 10 + 2
    "llama": dict(T=96, B=12, steps=6, tokens=4001, config=llama(
        vocab_size=257, hidden_size=36, intermediate_size=60, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=1600, rope_theta=10000.0, rope_scaling=LLAMA3_ROPE,
        rms_norm_eps=1e-5, tie_word_embeddings=False), **ADAMW),
    # a vocabulary of two slices (2,048 rows each at this width); its final embedding is left out for its size
    "gpt2_slices": dict(T=64, B=20, steps=6, tokens=5003, left_out="transformer.wte.weight", config=gpt2(
        vocab_size=2300, n_positions=64, n_embd=32, n_layer=1, n_head=2, n_inner=64), **ADAMW),
    # scaling that makes queries and keys longer, also on their way back
    "llama_yarn": dict(T=96, B=3, steps=4, tokens=1001, config=llama(
        vocab_size=257, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, max_position_embeddings=96, tie_word_embeddings=False, rope_parameters=dict(
            rope_type="yarn", rope_theta=50000.0, factor=3.0, original_max_position_embeddings=32, beta_fast=4.0,
            mscale=2.0, mscale_all_dim=0.5)), **ADAMW),
    # 1 + 1 + 1
    "llama_tied": dict(T=700, B=3, steps=5, tokens=3001, config=llama(
        vocab_size=300, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=700, rope_theta=500000.0, rms_norm_eps=1e-6,
        tie_word_embeddings=True), **ADAMW),
    # sequences longer than a unit's 1,024 tokens
    "llama_long": dict(T=1500, B=2, steps=5, tokens=4001, fp32_model=True, config=llama(
        vocab_size=257, hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048, rope_theta=10000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True), **ADAMW),
    # 6 + 2; a window smaller than the sequence; heads * head_dim (36) is not the width (24)
    "mistral": dict(T=160, B=8, steps=6, tokens=4001, config=llama(
        MistralConfig, vocab_size=257, hidden_size=24, intermediate_size=56, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=12, sliding_window=48, max_position_embeddings=512,
        rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=False), **ADAMW),
    # 31 + 1; bias of q, k and v; three query heads to one key head
    "qwen2": dict(T=33, B=32, steps=6, tokens=4001, config=llama(
        Qwen2Config, vocab_size=270, hidden_size=24, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=256, rope_theta=1000000.0,
        rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False), **ADAMW),
    # 21 + 4; lookups leave the padding's row without a gradient, which a tied head still gives it
    "llama_padding": dict(T=48, B=25, steps=5, tokens=4001, config=llama(
        vocab_size=67, hidden_size=16, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=False, pad_token_id=5), **ADAMW),
    "qwen2_padding": dict(T=48, B=25, steps=5, tokens=4001, config=llama(
        Qwen2Config, vocab_size=67, hidden_size=16, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True, pad_token_id=-2), **ADAMW),
    # the names and the mask buffers that the published GPT-2 has; one short unit only
    "gpt2_adam": dict(T=24, B=5, steps=5, tokens=1001, hub_names=True, config=gpt2(
        vocab_size=257, n_positions=32, n_embd=16, n_layer=1, n_head=2), **{
            **ADAMW, "optimizer": "adam", "schedule": "linear"}),
    "gpt2_sgd": dict(T=24, B=5, steps=5, tokens=1001, model_of="gpt2_adam", **{
        **ADAMW, "optimizer": "sgd", "momentum": 0.9, "lr": 0.1, "min_lr": 0.1, "schedule": "constant"}),
    "gpt2_adagrad": dict(T=24, B=5, steps=5, tokens=1001, model_of="gpt2_adam", **{
        **ADAMW, "optimizer": "adagrad", "lr": 5e-3, "min_lr": 1e-3}),
    # parts of layers, a whole layer at the bottom, a table or what lies beside it
    "gpt2_frozen": dict(T=64, B=35, steps=4, tokens=5003, model_of="gpt2", freeze=(
        "wpe*", "*.ln_1.weight", "*.1.mlp.c_fc.*", "ln_f.bias"), **ADAMW),
    "gpt2_frozen_table": dict(T=64, B=35, steps=4, tokens=5003, model_of="gpt2", freeze=("lm_head*", "h.0.*"), **ADAMW),
    "llama_frozen": dict(T=96, B=12, steps=4, tokens=4001, model_of="llama", freeze=(
        "embed_tokens*", "model.layers.[0-0].*", "*.1.mlp.down_proj.*", "lm_head*"), **ADAMW),
    # 50 steps, whose fp32 losses a bf16 run must follow
    "gpt2_50": dict(T=64, B=8, steps=50, tokens=5003, model_of="gpt2", losses_only=True, **ADAMW),
    "llama_50": dict(T=96, B=8, steps=50, tokens=4001, model_of="llama", losses_only=True, **ADAMW),
}


def random_model(config, seed):
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = p.dim() == 1 and name.endswith("weight")
            values = 1 + 0.2 * torch.randn_like(p) if norm else torch.randn_like(p) * (0.05 if p.dim() == 1 else 0.12)
            p.copy_(values.bfloat16().float())
    return model


def token_stream(count, vocab, seed):
    """Tokens that can be learnt: a noisy walk through a random successor table; every id of the vocabulary occurs."""
    rng = numpy.random.default_rng(seed)
    successor = rng.permutation(vocab)
    tokens = [0]
    while len(tokens) < count:
        tokens.append(int(successor[tokens[-1]]) if rng.random() < 0.7 else int(rng.integers(vocab)))
    return numpy.array(tokens, dtype=numpy.uint16)


def write_bin(path, tokens):
    header = struct.pack("<256i", 20240520, 1, len(tokens), *([0] * 253))
    path.write_bytes(header + tokens.astype("<u2").tobytes())


def learning_rate(case, step):
    peak, least, warm, last = case["lr"], case["min_lr"], case["warmup"], case["steps"]
    if step <= warm:
        return peak * step / warm
    part = (step - warm) / (last - warm)
    if case["schedule"] == "constant":
        return peak
    if case["schedule"] == "linear":
        return peak + (least - peak) * part
    return least + (peak - least) * 0.5 * (1 + math.cos(math.pi * part))


def freeze(model, patterns):
    """Patterns match a name, or its end from one of its dots on."""
    for name, p in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")
        ends = [".".join(parts[i:]) for i in range(len(parts))]
        if any(fnmatch.fnmatchcase(end, pattern) for end in ends for pattern in patterns):
            p.requires_grad_(False)


def make_optimizer(case, model):
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [dict(params=[p for p in trained if p.dim() >= 2], weight_decay=case["weight_decay"]),
              dict(params=[p for p in trained if p.dim() < 2], weight_decay=0.0)]
    name, lr = case["optimizer"], case["lr"]
    betas = (case["beta1"], case["beta2"])
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=case["eps"], foreach=False)
    if name == "adam":
        return torch.optim.Adam(groups, lr=lr, betas=betas, eps=case["eps"], foreach=False)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=case["momentum"], foreach=False)
    return torch.optim.Adagrad(groups, lr=lr, eps=case["eps"], foreach=False)


def keep_double(model):
    """transformers computes norms and softmax in fp32 whatever the model's type; here they stay in float64."""
    def rms_norm(module):
        return lambda x: module.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon))
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = rms_norm(module)
    model.set_attn_implementation("sdpa")


def train(case, initial, tokens, dtype):
    model = AutoModelForCausalLM.from_config(initial.config, attn_implementation="eager").to(dtype).eval()
    model.load_state_dict({k: v.to(dtype) for k, v in initial.state_dict().items()})
    if dtype == torch.float64:
        keep_double(model)
    freeze(model, case.get("freeze", ()))
    optimizer = make_optimizer(case, model)
    T, B, lines = case["T"], case["B"], []
    stream = torch.from_numpy(tokens.astype(numpy.int64))
    for k in range(case["steps"]):
        start = (k * B + torch.arange(B))[:, None] * T + torch.arange(T)[None, :]
        x, y = stream[start % len(stream)], stream[(start + 1) % len(stream)]
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(B * T, -1), y.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        lr = learning_rate(case, k + 1)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        lines.append((k + 1, loss.item(), norm.item(), lr))
    return model, lines


def named_weights(model):
    tied = model.config.tie_word_embeddings
    return {k: v.detach().clone() for k, v in model.state_dict().items()
            if not (tied and k == "lm_head.weight") and not k.endswith((".attn.bias", ".masked_bias", "inv_freq"))}


def write_model(directory, model, case):
    directory.mkdir(parents=True)
    text = {k: v for k, v in json.loads(model.config.to_json_string(use_diff=True)).items()
            if k not in ("transformers_version", "_name_or_path")} | {"architectures": [type(model).__name__]}
    (directory / "config.json").write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")
    dtype = torch.float32 if case.get("fp32_model") else torch.bfloat16
    weights = {k: v.to(dtype).contiguous() for k, v in named_weights(model).items()}
    if case.get("hub_names"):
        positions = model.config.n_positions
        weights = {k.removeprefix("transformer."): v for k, v in weights.items()}
        for layer in range(model.config.n_layer):
            weights[f"h.{layer}.attn.bias"] = torch.ones(positions, positions).tril()[None, None]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def flags(case):
    names = ["optimizer", "lr", "min_lr", "warmup", "schedule", "beta1", "beta2", "eps", "momentum", "weight_decay",
             "clip"]
    pairs = [("steps", case["steps"]), ("batch", case["B"]), ("seq-len", case["T"])]
    pairs += [(n.replace("_", "-"), case[n]) for n in names if n in case]
    frozen = f" --freeze {' '.join(case['freeze'])}" if "freeze" in case else ""
    return "--shuffle off " + " ".join(f"--{n} {v:g}" if isinstance(v, float) else f"--{n} {v}" for n, v in pairs) + frozen


def make(name):
    case = CASES[name]
    source = case.get("model_of", name)
    config = CASES[source]["config"]
    seed = zlib.crc32(source.encode())  # stays when other cases come
    tokens = token_stream(case["tokens"], config.vocab_size, seed)
    initial = random_model(config, seed)
    model, lines = train(case, initial, tokens, torch.float32)
    exact, exact_lines = train(case, initial, tokens, torch.float64)
    weights, exact_weights = named_weights(model), named_weights(exact)
    weight_noise = max(float((weights[k].double() - exact_weights[k]).abs().max()) for k in weights)
    loss_noise = max(abs(a[1] - b[1]) / b[1] for a, b in zip(lines, exact_lines))
    moved = max(float((v - initial.state_dict()[k]).abs().max()) for k, v in weights.items())

    directory = ROOT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    if source == name:
        write_model(directory / "model", initial, case)
    else:
        (directory / "model_of").write_text(source + "\n")
    write_bin(directory / "data.bin", tokens)
    (directory / "args").write_text(flags(case) + "\n")
    (directory / "losses").write_text("".join(f"{s} {loss:.9g} {norm:.9g}\n" for s, loss, norm, _ in lines))
    if not case.get("losses_only"):
        (directory / "expected").mkdir()
        save_file({k: v.contiguous() for k, v in weights.items() if k != case.get("left_out")}, directory / "expected" / "model.safetensors",
                  metadata={"format": "pt"})
    (directory / "expected.json").write_text(json.dumps({
        "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "model": source,
        "args": flags(case), "lr": [line[3] for line in lines], "loss": [line[1] for line in lines],
        "grad_norm": [line[2] for line in lines],
        "largest_relative_loss_difference_to_float64": loss_noise,
        "largest_weight_difference_to_float64": weight_noise, "largest_weight_change": moved}, indent=1) + "\n")
    unclipped = [line[0] for line in lines if line[2] <= case["clip"]]
    print(f"{name}: {sum(v.numel() for v in weights.values())} parameters, loss {lines[0][1]:.5f} -> "
          f"{lines[-1][1]:.5f}, norm {lines[0][2]:.3f} .. {lines[-1][2]:.3f}, moved {moved:.2g}, "
          f"float64 differs: loss {loss_noise:.2g}, weights {weight_noise:.2g}"
          + (f"; NOT CLIPPED in steps {unclipped}" if unclipped else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=[])
    torch.set_num_threads(2)
    for name in parser.parse_args().cases or CASES:
        make(name)


if __name__ == "__main__":
    main()
