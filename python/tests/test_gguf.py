"""`export --format gguf`: an export as llama.cpp wants it, with the tokenizer. transformers reads it."""

import json
import struct
import subprocess

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from models import llama
from test_program import PROGRAM, needs_program, program

pytestmark = [needs_program, pytest.mark.usefixtures("one_thread")]

TEXT = "Every ship waits, and meets 12 pilots: the harbour's 345 lamps burn.\n\n  It isn't far.  "
ENDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = rf"{ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


def byte_level(pattern=None, ignore_merges=False, bos=None):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = pattern and pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level]) if split else level
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|begin|>"]
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT] * 3, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=letters)
    )
    level = processors.ByteLevel(trim_offsets=False)
    if bos:
        single = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 1)])
        tokenizer.post_processor = processors.Sequence([level, single])
    else:
        tokenizer.post_processor = level
    return tokenizer, {"eos_token": "<|endoftext|>", "bos_token": "<|begin|>"}


def sentencepiece():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    tokenizer.train_from_iterator([TEXT] * 3, trainers.BpeTrainer(vocab_size=340, special_tokens=special))
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    data["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    roles = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    return Tokenizer.from_str(json.dumps(data)), roles


def qwen2(**changes):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    usual = {"vocab_size": 310, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return Qwen2ForCausalLM(Qwen2Config(**usual, **heads, **changes))


WINDOW = 40  # which llama.cpp does not have in this family


def mistral():
    from transformers import MistralConfig, MistralForCausalLM

    usual = {"vocab_size": 350, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 64, "head_dim": 16}
    return MistralForCausalLM(MistralConfig(**usual, **heads, sliding_window=WINDOW))


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32, "rope_theta": 500.0}


def llama3():
    return llama(vocab_size=310, rope_parameters=LLAMA3, tie_word_embeddings=True)


def gpt2_of_usual_size():
    """transformers' reader takes the numbers of tokens and positions that GPT-2 has."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=48, n_layer=2, n_head=4))


def tiny(family, **changes):
    """A model of a family, by its name in transformers."""
    import transformers

    usual = {"vocab_size": 310, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**{**usual, **heads, **changes})
    name = family.removesuffix("Text")
    return getattr(transformers, f"{name}ForCausalLM")(config)


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "partial_rotary_factor": 0.5,
}
LONGROPE |= {"long_factor": [2.0, 2.5, 3.0, 4.0], "original_max_position_embeddings": 512}


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 768, "num_hidden_layers": 2}


def plain_bpe():
    return byte_level(CL100K % "")


CASES = {
    "qwen3": (lambda: tiny("Qwen3", head_dim=128), plain_bpe),
    "qwen3moe": (lambda: tiny("Qwen3Moe", **EXPERTS, norm_topk_prob=True), plain_bpe),
    "olmoe": (lambda: tiny("Olmoe", **EXPERTS, num_key_value_heads=4), plain_bpe),
    "smollm3": (lambda: tiny("SmolLM3", tie_word_embeddings=True), plain_bpe),
    "phi3": (lambda: tiny("Phi3", rope_parameters=LONGROPE, max_position_embeddings=1024), plain_bpe),
    "olmo2": (lambda: tiny("Olmo2"), plain_bpe),
    "olmo3": (lambda: tiny("Olmo3", sliding_window=8), plain_bpe),
    "gemma2": (lambda: tiny("Gemma2", sliding_window=8), plain_bpe),
    "gemma3": (lambda: tiny("Gemma3Text", sliding_window=8), plain_bpe),
    "gpt2": (gpt2_of_usual_size, byte_level),
    "llama": (lambda: llama(vocab_size=350), sentencepiece),
    "llama3": (llama3, lambda: byte_level(CL100K % "{1,3}", ignore_merges=True, bos="<|begin|>")),
    "mistral": (mistral, sentencepiece),
    "qwen2": (qwen2, lambda: byte_level(CL100K % "")),
}
ARCHITECTURE = {"llama3": "llama", "mistral": "llama", "olmo3": "olmo2"}
UNKNOWN_TO_TRANSFORMERS = {"olmo2", "olmo3", "olmoe", "smollm3", "phi3"}  # of Phi-3 it takes the usual padding token
DIVISION = dict.fromkeys(CASES, "qwen2") | {
    "gpt2": "gpt-2",
    "llama": "default",
    "llama3": "llama-bpe",
    "mistral": "default",
    "qwen2": "qwen2",
}


class Gguf:
    """Reads the format by its specification alone."""

    NUMBERS = {4: "<I", 5: "<i", 6: "<f", 7: "<?"}

    def __init__(self, path):
        self.data = path.read_bytes()
        assert self.data[:4] == b"GGUF"
        self.at = 4
        assert self.number("<I") == 3
        tensors, keys = self.number("<Q"), self.number("<Q")
        self.meta = {self.text(): self.value(self.number("<I")) for _ in range(keys)}
        told = [(self.text(), self.shape(), self.number("<I"), self.number("<Q")) for _ in range(tensors)]
        start = (self.at + 31) // 32 * 32
        self.tensors = {name: self.tensor(shape, kind, start + offset) for name, shape, kind, offset in told}
        assert all(offset % 32 == 0 for *_, offset in told)

    def number(self, form):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        n = self.number("<Q")
        self.at += n
        return self.data[self.at - n : self.at].decode()

    def shape(self):
        return [self.number("<Q") for _ in range(self.number("<I"))][::-1]

    def value(self, kind):
        if kind == 9:
            of, n = self.number("<I"), self.number("<Q")
            return [self.value(of) for _ in range(n)]
        return self.text() if kind == 8 else self.number(self.NUMBERS[kind])

    def tensor(self, shape, kind, offset):
        dtype = {0: np.float32, 1: np.float16, 30: np.int16}[kind]
        array = np.frombuffer(self.data, dtype, int(np.prod(shape)), offset).reshape(shape)
        value = torch.from_numpy(array.copy())
        return value.view(torch.bfloat16) if kind == 30 else value


def moved(weight, heads):
    """What llama.cpp's converter does with queries and keys."""
    parts = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return parts.swapaxes(1, 2).reshape(weight.shape)


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def expected(name, value, config):
    """Its name in GGUF, and its value there."""
    module, _, end = name.rpartition(".")
    if module in NAMES:
        new = NAMES[module]
    else:
        layer, part = module.split(".", 3)[2:]
        new = f"blk.{layer}.{PARTS[part]}"
    if ".c_" in name and value.ndim == 2:
        value = value.T
    if config["model_type"][:5] in ("olmo2", "olmo3", "gemma"):
        new = new.replace("ffn_norm", "post_attention_norm") if "post_attention" in name else new
    if config["model_type"][:5] == "gemma" and "norm" in name:
        value = value.float() + 1
    if config["model_type"] in ("llama", "mistral", "smollm3") and ("q_proj" in name or "k_proj" in name):
        value = moved(value, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
    fp32 = value.ndim == 1 or new == "position_embd" or "gate_inp" in new
    return f"{new}.{end}", value.float() if fp32 else value


@pytest.fixture(scope="module", params=CASES)
def exported(request, tmp_path_factory):
    """A model and its tokenizer, as a run, a directory and a file of each dtype."""
    make, tokenizer = CASES[request.param]
    place = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(3)
    model = make()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape)
    model.generation_config.eos_token_id = model.generation_config.bos_token_id = None
    model.save_pretrained(place / "base")
    tokenizer, roles = tokenizer()
    tokenizer.save(str(place / "base" / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, **roles}
    (place / "base" / "tokenizer_config.json").write_text(json.dumps(told))
    (place / "drive").mkdir()
    how = ["--drive", place / "drive", "--memory", "64MiB", "--quiet"]
    program("import", place / "base", *how, "--out", place / "run")
    for dtype in ("fp32", "bf16", "fp16"):
        program("export", place / "run", "--out", place / dtype, "--dtype", dtype)
        program("export", place / "run", "--out", place / f"{dtype}.gguf", "--dtype", dtype, "--format", "gguf")
    return request.param, place


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_each_tensor_is_that_of_the_directory(exported, dtype):
    _, place = exported
    file, config = Gguf(place / f"{dtype}.gguf"), json.loads((place / dtype / "config.json").read_text())
    stored = load_file(place / dtype / "model.safetensors")
    for name in [name for name in stored if ".experts.0." in name]:
        each = [stored.pop(name.replace(".experts.0.", f".experts.{i}.")) for i in range(EXPERTS["num_experts"])]
        stored[name.replace(".experts.0.", ".experts.")] = torch.stack(each)
    theirs = dict(expected(n, v, config) for n, v in stored.items())
    positions = WINDOW if config["model_type"] == "mistral" else config.get("max_position_embeddings", 1024)
    assert file.meta[f"{file.meta['general.architecture']}.context_length"] == positions
    assert file.meta["general.file_type"] == {"fp32": 0, "fp16": 1, "bf16": 32}[dtype]
    frequencies = file.tensors.pop("rope_freqs.weight", None)
    for kind in ("short", "long"):
        factors = file.tensors.pop(f"rope_factors_{kind}.weight", None)
        assert (factors is not None) == (config["model_type"] == "phi3")
        assert factors is None or torch.allclose(factors, torch.tensor(LONGROPE[f"{kind}_factor"]))
    assert (frequencies is not None) == ("llama3" in json.dumps(config))
    if frequencies is not None:
        scaled = AutoModelForCausalLM.from_pretrained(place / "fp32").model.rotary_emb.inv_freq
        plain = 1 / LLAMA3["rope_theta"] ** (torch.arange(0, 2 * len(scaled), 2) / (2 * len(scaled)))
        assert torch.allclose(frequencies, plain / scaled, rtol=1e-5) and frequencies.max() > 2
    assert file.tensors.keys() == theirs.keys()
    for name, value in file.tensors.items():
        assert value.dtype == theirs[name].dtype and torch.equal(value, theirs[name]), name


def test_the_tokenizer_is_there(exported):
    case, place = exported
    meta = Gguf(place / "fp32.gguf").meta
    tokenizer = json.loads((place / "base" / "tokenizer.json").read_text())
    vocab = {token: i for token, i in tokenizer["model"]["vocab"].items()}
    vocab |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    size = json.loads((place / "base" / "config.json").read_text())["vocab_size"]
    by_id = {i: token for token, i in vocab.items()}
    assert meta["tokenizer.ggml.tokens"] == [by_id.get(i, f"[PAD{i}]") for i in range(size)]
    assert meta["tokenizer.ggml.model"] == ("llama" if DIVISION[case] == "default" else "gpt2")
    assert meta["tokenizer.ggml.pre"] == DIVISION[case]
    types = meta["tokenizer.ggml.token_type"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    assert {i for i, kind in enumerate(types) if kind in (2, 3)} == special
    assert [i for i, kind in enumerate(types) if kind == 5] == [i for i in range(size) if i not in by_id]
    if DIVISION[case] == "default":
        assert sum(kind == 6 for kind in types) == 256 and types[0] == 2
        scores, merges = meta["tokenizer.ggml.scores"], tokenizer["model"]["merges"]
        merged = ["".join(m) for m in merges]
        ordered = sorted(set(merged), key=lambda token: -scores[vocab[token]])
        assert ordered == list(dict.fromkeys(merged))
    else:
        assert meta["tokenizer.ggml.merges"] == [" ".join(m) for m in tokenizer["model"]["merges"]]
    told = json.loads((place / "base" / "tokenizer_config.json").read_text())
    assert meta["tokenizer.ggml.bos_token_id"] == vocab[told["bos_token"]]
    assert meta["tokenizer.ggml.eos_token_id"] == vocab[told["eos_token"]]
    assert meta["tokenizer.ggml.add_bos_token"] == (case in ("llama", "llama3", "mistral"))
    assert meta["tokenizer.chat_template"] == TEMPLATE
    assert meta["general.architecture"] == ARCHITECTURE.get(case, case)


def test_transformers_loads_it_and_generates_the_same(exported):
    case, place = exported
    ours = AutoModelForCausalLM.from_pretrained(place / "fp32", dtype=torch.float32)
    if case in UNKNOWN_TO_TRANSFORMERS:
        pytest.skip("transformers' reader does not know this architecture")
    try:
        theirs = AutoModelForCausalLM.from_pretrained(place, gguf_file="fp32.gguf", dtype=torch.float32)
    except ImportError as error:
        pytest.skip(str(error))
    if case == "llama3":  # whose scaling that reader leaves out
        theirs.model.rotary_emb = ours.model.rotary_emb
    tokens = torch.tensor([[5, 9, 7, 30]])
    assert torch.allclose(ours(tokens).logits, theirs(tokens).logits, atol=1e-5)
    how = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": None}
    assert torch.equal(ours.generate(tokens, **how), theirs.generate(tokens, **how))
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file="fp32.gguf")
    assert tokenizer(TEXT)["input_ids"] == AutoTokenizer.from_pretrained(place / "base")(TEXT)["input_ids"]


def test_llama_cpp_loads_it_and_generates_the_same(exported):
    """By its binding, where that is installed: the same tokens of a text, and of the model."""
    llama_cpp = pytest.importorskip("llama_cpp")
    _, place = exported
    theirs = llama_cpp.Llama(str(place / "fp32.gguf"), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    ours = AutoModelForCausalLM.from_pretrained(place / "fp32", dtype=torch.float32)
    assert (
        theirs.tokenize(TEXT.encode(), add_bos=True) == AutoTokenizer.from_pretrained(place / "base")(TEXT)["input_ids"]
    )
    tokens = [5, 9, 7, 30, 11]
    how = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": None}
    expected = ours.generate(torch.tensor([tokens]), **how)[0].tolist()
    theirs.eval(tokens)
    while len(tokens) < len(expected):
        tokens.append(int(np.argmax(theirs.scores[len(tokens) - 1])))
        theirs.eval(tokens[-1:])
    assert tokens == expected


def test_runs_of_spaces_among_added_tokens_are_printed_as_spaces(tmp_path, seed):
    """As Gemma has them: of a token of a user's, llama.cpp prints the mark that stands for a space."""
    tokenizer, roles = sentencepiece()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("▁▁", "<table>")])
    llama(vocab_size=350).save_pretrained(tmp_path / "base")
    tokenizer.save(str(tmp_path / "base" / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
    (tmp_path / "base" / "tokenizer_config.json").write_text(json.dumps(told))
    (tmp_path / "drive").mkdir()
    program("import", tmp_path / "base", "--drive", tmp_path / "drive", "--out", tmp_path / "run", "--quiet")
    program("export", tmp_path / "run", "--out", tmp_path / "a.gguf", "--format", "gguf")
    meta = Gguf(tmp_path / "a.gguf").meta
    spaces, table = (meta["tokenizer.ggml.tokens"].index(text) for text in ("▁▁", "<table>"))
    types = meta["tokenizer.ggml.token_type"]
    assert types[spaces] == 1 and types[table] == 4


def refused(place, *what, limit="unlimited"):
    how = ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "-", PROGRAM, "export", *map(str, what)]
    out = subprocess.run(how, capture_output=True, text=True)
    assert out.returncode != 0 and not list(place.glob("*.partial")), out.stderr
    return out.stderr


def test_what_cannot_be_written_is_refused(tmp_path, seed):
    (tmp_path / "text").write_text(TEXT * 3)
    how = ["--drive", tmp_path / "drive", "--tokenizer", "bytes", "--seq-len", 8, "--batch", 1, "--steps", 1, "--quiet"]
    (tmp_path / "drive").mkdir()
    program("train", "--init", "llama-tiny", "--data", tmp_path / "text", *how, "--out", tmp_path / "run")
    (tmp_path / "there").write_text("mine")
    gguf = ["--format", "gguf", "--out"]
    assert "exists already" in refused(tmp_path, tmp_path / "run", *gguf, tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    assert "leave out --moments" in refused(tmp_path, tmp_path / "run", *gguf, tmp_path / "a", "--moments")
    assert "its directory is not there" in refused(tmp_path, tmp_path / "run", *gguf, tmp_path / "none" / "a")
    assert "cannot make it" in refused(tmp_path, tmp_path / "run", *gguf, tmp_path / "a.gguf", limit=100)
    assert not [name for name in tmp_path.iterdir() if "a.gguf" in name.name]
    program("export", tmp_path / "run", *gguf, tmp_path / "a.gguf")
    assert Gguf(tmp_path / "a.gguf").meta["tokenizer.ggml.eos_token_id"] == 256
    thetas = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}}
    thetas = {"rope_theta": None, "rope_scaling": None, "rope_parameters": thetas}
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    configs = {
        "another activation": llama(vocab_size=260, hidden_act="gelu").config.to_dict(),
        "olmo2 with another tie_word_embeddings": tiny("Olmo2", tie_word_embeddings=True).config.to_dict(),
        "gemma2 with another tie_word_embeddings": tiny("Gemma2", tie_word_embeddings=False).config.to_dict(),
        "another attention_bias": tiny("Qwen3", attention_bias=True).config.to_dict(),
        "another mlp_bias": tiny("SmolLM3", mlp_bias=True).config.to_dict(),
        "query_pre_attn_scalar": tiny("Gemma2", query_pre_attn_scalar=100).config.to_dict(),
        "(final_logit_softcapping)": tiny("Gemma2", final_logit_softcapping=None).config.to_dict(),
        "scaled as this model's": llama(vocab_size=260, rope_parameters={**yarn, "beta_fast": 16.0}).config.to_dict(),
        "rotations in layers of olmo2": {**tiny("Olmo3").config.to_dict(), **thetas},
        "rotations in layers of smollm3": tiny("SmolLM3", no_rope_layer_interval=3).config.to_dict(),
    }
    for i, (why, config) in enumerate(configs.items()):
        (tmp_path / "config.json").write_text(json.dumps(config))
        run = tmp_path / f"run{i}"
        program("train", "--init", tmp_path / "config.json", "--data", tmp_path / "text", *how, "--out", run)
        assert why in refused(tmp_path, run, *gguf, tmp_path / "b")
