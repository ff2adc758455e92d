"""Quantised weights: the program widens them to the very numbers that transformers does, or refuses them by name."""

import json
import os
import shutil
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="the program is not installed")
FIVE = int(transformers.__version__.split(".")[0]) >= 5

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
CONFIG = dict(
    vocab_size=260,
    hidden_size=256,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
)
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
EIGHT_BITS = {"quant_method": "bitsandbytes", "load_in_8bit": True}


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def is_linear(name):
    return "_proj." in name


def make(directory, quantise, config, dtype="bfloat16"):
    """A random model, whose linear layers are stored as quantise(name, weight) says. Returns its weights."""
    model = AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG)).to(DTYPES[dtype])
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stored = {}
    for name, tensor in weights.items():
        stored.update(quantise(name, tensor) if is_linear(name) else {name: tensor})
    model.save_pretrained(directory)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, directory / "model.safetensors")
    said = json.loads((directory / "config.json").read_text())
    said.pop("dtype", None)
    said.pop("torch_dtype", None)
    said.update({"quantization_config": config, "dtype" if FIVE and dtype != "float16" else "torch_dtype": dtype})
    (directory / "config.json").write_text(json.dumps(said))
    return weights


def widened(directory, place, *more):
    """What the program makes of the files, from import to export; its configuration too."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "drive").mkdir(parents=True)
    new = ["--tokenizer", "bytes", "--drive", place / "drive", "--out", place / "run", *more]
    for arguments in (
        ["import", directory, *new],
        ["export", place / "run", "--out", place / "out", "--dtype", "fp32"],
    ):
        done = run(*arguments, "--quiet")
        assert done.returncode == 0, done.stderr
    return load_file(place / "out" / "model.safetensors"), json.loads((place / "out" / "config.json").read_text())


def check(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name].view(torch.int32), tensor.float().view(torch.int32)), name


# ---- fp8


def to_fp8(weight, block, scale_dtype):
    """Codes and scales of blocks of this size, as transformers' own Fp8Quantize makes them."""
    (rows, cols), (down, across) = weight.shape, block or weight.shape
    parts = weight.float().reshape(rows // down, down, cols // across, across)
    scales = parts.abs().amax((1, 3)) / 448
    if scale_dtype is torch.uint8:  # exponents
        exponents = scales.log2().ceil().add(127)
        scales, stored = (exponents - 127).exp2(), exponents.to(torch.uint8)
    else:
        stored = scales.to(scale_dtype)
        scales = stored.float()
    codes = (parts / scales[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn).reshape(rows, cols)
    return codes, stored if block else stored.reshape(())


FP8_CASES = {
    "blocks": ((128, 128), torch.float32, "bfloat16"),
    "bf16 scales": ((128, 128), torch.bfloat16, "bfloat16"),
    "powers of two": ((128, 128), getattr(torch, "float8_e8m0fnu", None), "bfloat16"),
    "mxfp8": ((1, 32), torch.uint8, "bfloat16"),
    "a tensor": (None, torch.float32, "bfloat16"),
    "one scale for a row": ((1, None), torch.float32, "bfloat16"),
    "fp32": ((128, 128), torch.float32, "float32"),
    "fp16": ((128, 128), torch.float32, "float16"),
}


@pytest.mark.parametrize("case", FP8_CASES)
def test_fp8_is_widened_as_transformers_does(case, tmp_path, seed):
    block, scale_dtype, dtype = FP8_CASES[case]
    if scale_dtype is None:
        pytest.skip("this PyTorch has no float8_e8m0fnu")

    def quantise(name, weight):
        size = block and (block[0], block[1] or weight.shape[1])
        codes, scales = to_fp8(weight, size, scale_dtype)
        beside = {name.replace("weight", "activation_scale"): torch.tensor(0.5)} if block is None else {}
        return {name: codes, name + "_scale_inv": scales, **beside}

    method = "mxfp8" if case == "mxfp8" else "fp8"
    blocks = None if case == "one scale for a row" else block
    config = {**FP8, "quant_method": method, "weight_block_size": blocks, "modules_to_not_convert": ["lm_head"]}
    make(tmp_path / "model", quantise, config, dtype)
    ours, said = widened(tmp_path / "model", tmp_path / "place")
    assert "quantization_config" not in said
    stored = load_file(tmp_path / "model" / "model.safetensors")
    codes = [name for name in stored if stored[name].dtype == torch.float8_e4m3fn]
    assert len(codes) == 14 and all(torch.isfinite(ours[name]).all() for name in codes)
    if not FIVE:
        pytest.skip("transformers 4.57 does not widen fp8")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", quantization_config=transformers.FineGrainedFP8Config(dequantize=True)
    )
    assert theirs.dtype == DTYPES[dtype]
    check(ours, theirs.state_dict())
    check(ours, AutoModelForCausalLM.from_pretrained(tmp_path / "place" / "out").state_dict())


# ---- compressed-tensors


def packless(kind, bits_type, strategy, block=None):
    weights = {"num_bits": 8, "type": bits_type, "strategy": strategy, "symmetric": True, "block_structure": block}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    config = {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups, "ignore": ["lm_head"]}
    return {**config, "quantization_status": "compressed", "kv_cache_scheme": None}


DENSE = {"sparsity_config": {"format": "dense", "global_sparsity": 0.14, "targets": [], "ignore": []}}
SCALES = (
    ("weight", "input_scale"),
    ("weight", "output_scale"),
    ("k_proj.weight", "k_scale"),
    ("v_proj.weight", "v_scale"),
)
CACHE = {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}}

COMPRESSED_CASES = {
    "fp8 of rows": (packless("float-quantized", "float", "channel") | DENSE, torch.bfloat16, "bfloat16"),
    "fp8 of tensors": (packless("float-quantized", "float", "tensor") | CACHE, torch.float32, "bfloat16"),
    "bf16 scales in fp32": (packless("float-quantized", "float", "channel"), torch.bfloat16, "float32"),
    "integers": (packless("int-quantized", "int", "channel"), torch.bfloat16, "bfloat16"),
    "blocks with a rest": (packless("naive-quantized", "float", "block", [100, 128]), torch.bfloat16, "bfloat16"),
}


@pytest.mark.parametrize("case", COMPRESSED_CASES)
def test_compressed_tensors_are_widened_as_transformers_does(case, tmp_path, seed):
    config, scale_dtype, dtype = COMPRESSED_CASES[case]
    strategy, block = (config["config_groups"]["group_0"]["weights"][key] for key in ("strategy", "block_structure"))
    largest, codes_of = (127, torch.int8) if case == "integers" else (448, torch.float8_e4m3fn)
    numbers = {}

    def quantise(name, weight):
        down, across = block or (1, weight.shape[1])
        parts = [part.abs().amax() for row in weight.split(down) for part in row.split(across, 1)]
        scales = (torch.stack(parts).float() / largest).reshape(-(-len(weight) // down), -1).to(scale_dtype)
        if strategy == "tensor":
            scales = scales.amax().reshape(1)
        by_row = scales.repeat_interleave(down, 0)[: len(weight)] if strategy != "tensor" else scales
        each = by_row.repeat_interleave(across, 1)[:, : weight.shape[1]] if strategy == "block" else by_row
        codes = (weight.float() / each.float()).clamp(-largest, largest)
        codes = codes.round().to(codes_of) if codes_of is torch.int8 else codes.to(codes_of)
        numbers[name] = (codes.to(scale_dtype) * each).to(weight.dtype)
        beside = {name.replace(of, scale): torch.ones(1) for of, scale in SCALES if strategy == "tensor" and of in name}
        return {name: codes, name + "_scale": scales, **beside}

    weights = make(tmp_path / "model", quantise, config, dtype)
    ours, said = widened(tmp_path / "model", tmp_path / "place")
    assert "quantization_config" not in said and len(numbers) == 14
    check(ours, {**weights, **numbers})
    pytest.importorskip("compressed_tensors")
    if not FIVE:
        pytest.skip("transformers 4.57 does not widen compressed-tensors as it loads them")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", quantization_config=transformers.CompressedTensorsConfig(dequantize=True)
    )
    check(ours, theirs.state_dict())


# ---- bitsandbytes

# The numbers that bitsandbytes' create_normal_map and its tree of fp4 give.
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
NF4 += [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
NF4 += [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
FP4 = [0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25]
FP4 += [-number for number in FP4]


def to_4bit(weight, kind, nested, storage=torch.uint8, block=64):
    """What bitsandbytes stores of a weight, by the ends of names, and the numbers to which it widens that."""
    code = torch.tensor(NF4 if kind == "nf4" else FP4)
    flat = weight.float().reshape(-1, block)
    absmax = flat.abs().amax(1)
    indices = (flat / absmax[:, None] - code[:, None, None]).abs().argmin(0)
    pairs = indices.reshape(-1, 2).to(torch.uint8)
    state = {"quant_type": kind, "blocksize": block, "dtype": str(weight.dtype)[6:], "shape": list(weight.shape)}
    parts = {"absmax": absmax, "quant_map": code}
    if nested:
        offset = absmax.mean()
        ladder = torch.linspace(-1, 1, 256).pow(3)
        padded = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).reshape(-1, 256)
        scales = padded.abs().amax(1)
        codes = (padded / scales[:, None])[..., None].sub(ladder).abs().argmin(-1).reshape(-1)[: len(absmax)]
        absmax = ladder[codes] * scales.repeat_interleave(256)[: len(absmax)] + offset
        parts.update(absmax=codes.to(torch.uint8), nested_absmax=scales, nested_quant_map=ladder)
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=offset.item())
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    stored = {"": (pairs[:, :1] << 4 | pairs[:, 1:]).reshape(-1).view(storage).reshape(-1, 1)}
    stored.update({f".{name}": part for name, part in parts.items()}, **{f".quant_state.bitsandbytes__{kind}": text})
    return stored, (code[indices] * absmax[:, None]).to(weight.dtype).reshape(weight.shape)


def dequantized(directory):
    """transformers' weights, in the model's own dtype: version 4 leaves those of 8 bits in fp32."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    return model.dequantize().to(model.config.dtype).state_dict()


FOUR_BIT_CASES = {
    "nf4": ("nf4", False, "bfloat16", {}),
    "nf4 twice": ("nf4", True, "bfloat16", {}),
    "fp4 twice": ("fp4", True, "bfloat16", {}),
    "fp4": ("fp4", False, "float32", {}),
    "other blocks": ("nf4", True, "float16", {"block": 128}),
    "in bf16": ("nf4", True, "bfloat16", {"storage": torch.bfloat16}),
    "across rows": ("nf4", True, "bfloat16", {"block": 256}),
}


@pytest.mark.parametrize("case", FOUR_BIT_CASES)
def test_4_bits_are_widened_as_bitsandbytes_does(case, tmp_path, seed):
    kind, nested, dtype, more = FOUR_BIT_CASES[case]
    numbers = {}

    def quantise(name, weight):
        stored, numbers[name] = to_4bit(weight, kind, nested, **more)
        return {name + end: part for end, part in stored.items()}

    storage = str(more.get("storage", torch.uint8))[6:]
    config = {**FOUR_BITS, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    weights = make(tmp_path / "model", quantise, {**config, "bnb_4bit_quant_storage": storage}, dtype)
    ours, said = widened(tmp_path / "model", tmp_path / "place")
    assert "quantization_config" not in said and len(numbers) == 14
    check(ours, {**weights, **numbers})
    pytest.importorskip("bitsandbytes")
    if case != "across rows":  # where its kernel for CPUs takes other scales than it stored
        check(ours, dequantized(tmp_path / "model"))


def test_8_bits_are_widened_as_bitsandbytes_does(tmp_path, seed):
    numbers = {}

    def quantise(name, weight):
        scales = weight.float().abs().amax(1)
        codes = (weight.float() / scales[:, None] * 127).round().to(torch.int8)
        numbers[name] = (codes * scales[:, None] * 7.874015718698502e-3).bfloat16()
        stem = name.removesuffix("weight")
        return {name: codes, stem + "SCB": scales, stem + "weight_format": torch.tensor(0, dtype=torch.uint8)}

    weights = make(tmp_path / "model", quantise, EIGHT_BITS)
    ours, _ = widened(tmp_path / "model", tmp_path / "place")
    check(ours, {**weights, **numbers})
    pytest.importorskip("bitsandbytes")
    check(ours, dequantized(tmp_path / "model"))


# ---- what is refused

LAYER = "model.layers.1.mlp.up_proj.weight"
METHODS = "gptq awq hqq aqlm torchao fbgemm_fp8 quanto auto-round higgs modelopt".split()


def stored_as(config):
    def of_fp8(name, weight):
        codes, scales = to_fp8(weight, (128, 128), torch.float32)
        return {name: codes, name + "_scale_inv": scales}

    def of_4bit(name, weight):
        return {name + end: part for end, part in to_4bit(weight, "nf4", True)[0].items()}

    def of_8bit(name, weight):
        return {name: weight.to(torch.int8), name.replace("weight", "SCB"): torch.ones(len(weight))}

    return of_fp8 if config is FP8 else of_4bit if config is FOUR_BITS else of_8bit


def without(end):
    return lambda tensors: tensors.pop(LAYER.removesuffix("weight") + end)


def put(end, change):
    def of(tensors):
        name = LAYER.removesuffix("weight") + end
        tensors[name] = change(tensors[name])

    return of


def text(words):
    return torch.tensor(list(words.encode()), dtype=torch.uint8)


STATE = "weight.quant_state.bitsandbytes__nf4"
FAULTS = {
    "no scale": (FP8, without("weight_scale_inv"), LAYER, "_scale_inv"),
    "too few scales": (FP8, put("weight_scale_inv", lambda t: t[:1]), LAYER, "does not divide"),
    "scales of another rank": (FP8, put("weight_scale_inv", lambda t: t.reshape(-1)), LAYER, "does not fit"),
    "scales of integers": (FP8, put("weight_scale_inv", lambda t: t.to(torch.int64)), LAYER, "does not fit"),
    "codes of another type": (FP8, put("weight", lambda t: t.to(torch.float8_e5m2)), LAYER, "F8_E4M3"),
    "blocks of two sizes": (FP8, put("weight", lambda t: t[:300]), LAYER, "whole blocks"),
    "a scale that is no number": (FP8, put("weight_scale_inv", lambda t: t * float("nan")), LAYER, "NaN"),
    "no state": (FOUR_BITS, without(STATE), LAYER, "quant_state"),
    "no absmax": (FOUR_BITS, without("weight.absmax"), LAYER, ".absmax"),
    "no map": (FOUR_BITS, without("weight.nested_quant_map"), LAYER, ".nested_quant_map"),
    "another map": (FOUR_BITS, put("weight.quant_map", lambda t: t / 2), LAYER, "quant_map"),
    "too few codes": (FOUR_BITS, put("weight", lambda t: t[:-1]), LAYER, "[384, 256]"),
    "too many scales": (FOUR_BITS, put("weight.absmax", lambda t: t.repeat(2)), LAYER, "absmax"),
    "no JSON": (FOUR_BITS, put(STATE, lambda t: t[:-1]), LAYER, STATE),
    "another kind": (FOUR_BITS, put(STATE, lambda t: text('{"quant_type": "fp4"}')), LAYER, "quant_type"),
    "blocks of 63": (
        FOUR_BITS,
        put(STATE, lambda t: text(bytes(t.tolist()).decode().replace('"blocksize": 64', '"blocksize": 63'))),
        LAYER,
        "blocksize",
    ),
    "no row scales": (EIGHT_BITS, without("SCB"), LAYER, "SCB"),
    "too few row scales": (EIGHT_BITS, put("SCB", lambda t: t[1:]), "mlp.up_proj.SCB", "[383]"),
    "another order": (
        EIGHT_BITS,
        lambda tensors: tensors.update({LAYER.replace("weight", "weight_format"): torch.tensor([2]).to(torch.uint8)}),
        "weight_format",
        "order",
    ),
}


def refusal(directory, place):
    place.mkdir(exist_ok=True)
    done = run("import", directory, "--tokenizer", "bytes", "--drive", place, "--out", place / "run", "--quiet")
    assert done.returncode == 2 and not (place / "run").exists(), done
    return done.stderr


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_tensor(fault, tmp_path, seed):
    config, change, *words = FAULTS[fault]
    make(tmp_path / "model", stored_as(config), config)
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    said = refusal(tmp_path / "model", tmp_path / "place")
    assert all(word in said for word in words) and said.count("\n") == 1, said


def test_other_methods_are_refused_by_name(tmp_path, seed):
    make(tmp_path / "model", lambda name, weight: {name: weight}, FP8)
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    for method in METHODS:
        config["quantization_config"] = {"quant_method": method}
        file.write_text(json.dumps(config))
        said = refusal(tmp_path / "model", tmp_path / "place")
        assert f'"quant_method" is "{method}"' in said and "only fp8, mxfp4, bitsandbytes" in said, said
    packed = packless("pack-quantized", "int", "group")
    config["quantization_config"] = packed
    file.write_text(json.dumps(config))
    assert '"format" is "pack-quantized": only float-quantized' in refusal(tmp_path / "model", tmp_path / "place")
    for key, value in (("weight_block_size", [128]), ("modules_to_not_convert", "lm_head")):
        config["quantization_config"] = {**FP8, key: value}
        file.write_text(json.dumps(config))
        assert f'"quantization_config": "{key}"' in refusal(tmp_path / "model", tmp_path / "place")


def test_every_command_reads_them(tmp_path, seed):
    """The loss of codes is that of the weights that they stand for; a run on them trains, and goes on."""
    make(tmp_path / "model", stored_as(FOUR_BITS), FOUR_BITS)
    widened(tmp_path / "model", tmp_path / "place")
    (tmp_path / "text").write_text("The ship comes in at dawn, and the crew carries crates over the quay. " * 20)
    losses = []
    for directory in (tmp_path / "model", tmp_path / "place" / "out"):
        done = run("eval", directory, "--data", tmp_path / "text", "--tokenizer", "bytes", "--seq-len", 32, "--json")
        assert done.returncode == 0, done.stderr
        losses.append(json.loads(done.stdout)["loss"])
    assert losses[0] == losses[1]
    train = ["train", "--model", tmp_path / "model", "--tokenizer", "bytes", "--data", tmp_path / "text", "--batch", 2]
    for arguments in (
        ["generate", tmp_path / "model", "--tokenizer", "bytes", "--prompt", "The", "--max-tokens", 2],
        ["plan", *train[1:], "--seq-len", 32],
        [*train, "--seq-len", 32, "--steps", 1, "--drive", "ram:", "--out", tmp_path / "run", "--quiet"],
    ):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr


def test_an_adapter_is_merged_into_what_was_widened(tmp_path, seed):
    peft = pytest.importorskip("peft")
    make(tmp_path / "model", stored_as(FOUR_BITS), FOUR_BITS)
    base, _ = widened(tmp_path / "model", tmp_path / "base")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base" / "out", dtype=torch.float32)
    adapted = peft.get_peft_model(
        plain, peft.LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    )
    adapted.save_pretrained(tmp_path / "adapter")
    shutil.copytree(tmp_path / "base" / "out", tmp_path / "plain")
    ours, _ = widened(tmp_path / "model", tmp_path / "place", "--adapter", tmp_path / "adapter")
    theirs, _ = widened(tmp_path / "plain", tmp_path / "place", "--adapter", tmp_path / "adapter")
    check(ours, theirs)
    assert not torch.equal(ours[LAYER.replace("up", "down")], base[LAYER.replace("up", "down")])
