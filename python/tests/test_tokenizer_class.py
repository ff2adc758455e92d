"""The program's tokens are AutoTokenizer's, whatever tokenizer_config.json says beside a tokenizer.json."""

import json
import os
import random
import shutil
import struct
import subprocess

import pytest
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")
pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="the program is not installed"),
    pytest.mark.skipif(
        int(transformers.__version__.split(".")[0]) < 5, reason="classes make their own rules from transformers 5 on"
    ),
]

TEXT = "The ship comes in at dawn 1234 5678, and the crew's crates are carried o'er the quay. I'LL go."
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MODEL = {
    "vocab_size": 500,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 2,
}
CLASSES = [
    None,
    "GPT2Tokenizer",
    "GPT2TokenizerFast",
    "Qwen2Tokenizer",
    "Qwen2TokenizerFast",
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
    "LlamaTokenizer",
    "LlamaTokenizerFast",
]
FLAGS = ["single_word", "lstrip", "rstrip", "normalized", "special"]
ADDED = ["<|im_start|>", "</s>", "[INST]", " [INST]", "ship", "ABC", "e\u0301x"]
PIECES = ["a", "ship ", " ", "The", "1", "23", "\n", "_", ".", "I'LL ", "o'er", " \n\n "]


def byte_level():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator(
        [TEXT] * 3,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    prefix = random.random() < 0.5
    t.normalizer = random.choice([normalizers.Sequence([]), normalizers.NFC(), normalizers.Lowercase()])
    split = pre_tokenizers.Split(Regex(QWEN2), "isolated")
    t.pre_tokenizer = random.choice(
        [
            pre_tokenizers.ByteLevel(prefix),
            pre_tokenizers.ByteLevel(prefix, use_regex=False),
            pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(prefix)]),
            pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(prefix, use_regex=False)]),
        ]
    )
    return t, {"eos_token": "<|endoftext|>"}, CLASSES, ["gpt2", "llama", "mistral", "qwen2"]


def sentencepiece():
    names = ["<unk>", "<s>", "</s>"]
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.train_from_iterator(
        [TEXT] * 3,
        trainers.BpeTrainer(
            vocab_size=320, show_progress=False, special_tokens=names + [f"<0x{i:02X}>" for i in range(256)]
        ),
    )
    t = Tokenizer.from_str(json.dumps({**json.loads(t.to_str()), "added_tokens": []}))
    t.add_special_tokens([AddedToken(name, special=True) for name in names])
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    scheme, split = random.choice(["always", "first", "never"]), random.random() < 0.5
    t.normalizer, t.pre_tokenizer = random.choice(
        [
            (prepend, pre_tokenizers.Sequence([])),
            (normalizers.Sequence([]), pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)),
        ]
    )
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    classes = [None, "LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"]
    return t, {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}, classes, ["llama", "mistral"]


def program(*arguments):
    out = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    return out.stdout


def ids_of(run):
    raw = (run / "tokens.bin").read_bytes()[64:]
    return list(struct.unpack(f"<{len(raw) // 2}H", raw))


def write(directory, tokenizer, config, model):
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps(model))


def train(directory, text, run, *more):
    return program(
        "train",
        "--init",
        directory,
        "--data",
        text,
        "--seq-len",
        2,
        "--batch",
        1,
        "--steps",
        1,
        "--memory",
        "256MiB",
        "--out",
        run,
        *more,
    )


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_the_class_counts_as_in_transformers(kind, tmp_path, seed):
    random.seed(seed)
    by_class = 0
    for number in range(30):
        tokenizer, config, classes, families = kind()
        for name in random.sample(ADDED, random.randint(0, 4)):
            tokenizer.add_tokens([AddedToken(name, **{flag: random.random() < 0.4 for flag in FLAGS})])
        for key, values in (("add_prefix_space", [True, False]), ("legacy", [True, False, None])):
            if random.random() < 0.6:
                config[key] = random.choice(values)
        if random.random() < 0.5:
            extra = random.choice(["extra_special_tokens", "additional_special_tokens"])
            config[extra] = random.sample(ADDED, random.randint(0, 2))
        named, family = random.choice(classes), random.choice(families)
        where = random.choice([config, model := {"model_type": family, **MODEL}])
        if named:
            where["tokenizer_class"] = named
        write(tmp_path / "model", tokenizer, config, model)
        text = random.choice(["", " ", "  "]) + "".join(random.choices(ADDED + PIECES, k=60)) + "end"
        (tmp_path / "text").write_text(text)
        loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
        loaded.split_special_tokens = True
        wanted = loaded(text, add_special_tokens=False)["input_ids"]
        train(tmp_path / "model", tmp_path / "text", tmp_path / "run", "--drive", "ram:", "--overwrite", "--quiet")
        assert ids_of(tmp_path / "run")[: len(wanted)] == wanted, (number, family, config, model, text)
        by_class += "Tokenizer" in json.loads((tmp_path / "run" / "run.json").read_text())["tokenizer"]
    assert 0 < by_class < 30


def test_runs_keep_their_rules(tmp_path, seed):
    """A run goes on with the class it began with; one made before classes counted goes on with tokenizer.json alone."""
    tokenizer = byte_level()[0]
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Sequence([]), pre_tokenizers.ByteLevel(False)
    write(
        tmp_path / "model",
        tokenizer,
        {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True},
        {"model_type": "gpt2", **MODEL},
    )
    (tmp_path / "text").write_text("ship comes in at dawn")
    (tmp_path / "drive").mkdir()
    train(tmp_path / "model", tmp_path / "text", tmp_path / "run", "--drive", tmp_path / "drive")
    first = ids_of(tmp_path / "run")
    assert tokenizer.decode(first[:1]) == " ship"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["tokenizer"].endswith("-GPT2Tokenizer")
    (tmp_path / "run" / "config.json").unlink()
    program("train", "--resume", tmp_path / "run", "--steps", 2)
    assert ids_of(tmp_path / "run") == first
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend"}))
    train(tmp_path / "model", tmp_path / "text", tmp_path / "old", "--drive", tmp_path / "drive")
    shutil.copy(tmp_path / "run" / "tokenizer_config.json", tmp_path / "old")
    program("train", "--resume", tmp_path / "old", "--steps", 2)
    assert tokenizer.decode(ids_of(tmp_path / "old")[:1])[0] == "s" and ids_of(tmp_path / "old") != first


@pytest.mark.parametrize("flags", [(), ("lstrip",), ("rstrip",), ("lstrip", "rstrip"), ("single_word",), ("special",)])
def test_an_added_token_that_a_normalizer_empties(flags, tmp_path):
    """The tokenizers library finds it between all characters: it divides the text, and takes blanks with it."""
    tokenizer = byte_level()[0]
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Strip(), pre_tokenizers.ByteLevel(False)
    tokenizer.add_tokens([AddedToken("  ", normalized=True, **{flag: True for flag in flags})])
    write(tmp_path / "model", tokenizer, {"tokenizer_class": "TokenizersBackend"}, {"model_type": "llama", **MODEL})
    text = "ship a  b crew"
    (tmp_path / "text").write_text(text)
    tokenizer.encode_special_tokens = True
    wanted = tokenizer.encode(text, add_special_tokens=False).ids
    train(tmp_path / "model", tmp_path / "text", tmp_path / "run", "--drive", "ram:", "--quiet")
    assert ids_of(tmp_path / "run")[: len(wanted)] == wanted
