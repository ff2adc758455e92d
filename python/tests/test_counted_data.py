"""Prompts with completions, and conversations: the program's tokens and what counts of them are TRL's, and its losses
are those of a PyTorch loop that takes the mean over what counts."""

import importlib.util
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import time

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config

from test_tokenizer_class import byte_level, sentencepiece

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="the program is not installed")
needs_trl = pytest.mark.skipif(
    not (importlib.util.find_spec("trl") and importlib.util.find_spec("datasets")), reason="TRL is not installed"
)
new_classes = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="classes make rules from transformers 5 on"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|im_end|>{% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% elif m.role == 'assistant' %}"
    "{% generation %} {{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
WORDS = ["ship", " The", "dawn,", "\n", "1234", " é", "e\u0301", "🚢", "\n\n", " ", "'ll", "crew's", "  "]


def model_in(directory, kind, template, begins=False):
    """A small model with a tokenizer and a template. begins: a text begins with a token of its own."""
    tokenizer, config, _, _ = kind()
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": config["eos_token"],
        "chat_template": template,
    }
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    if begins:
        tokens = [("<|im_end|>", tokenizer.token_to_id("<|im_end|>"))]
        before = processors.TemplateProcessing(single="<|im_end|> $A", special_tokens=tokens)
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), before])
    torch.manual_seed(1)
    family = {byte_level: Qwen2Config, sentencepiece: LlamaConfig}[kind]  # of which the class makes no other rules
    model = AutoModelForCausalLM.from_config(
        family(
            vocab_size=512,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=512,
            bos_token_id=None,
            eos_token_id=tokenizer.token_to_id(config["eos_token"]),
        )
    )
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def program(*arguments):
    out = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    return out.stderr


def train(directory, rows, run, seq_len, *more):
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--model", directory, "--data", directory / "rows.jsonl", "--seq-len", seq_len, "--precision", "fp32"]
    return program("train", *given, "--memory", "256MiB", "--drive", "ram:", "--overwrite", "--out", run, *more)


def tokens_of(run):
    """All ids, and whether each counts."""
    raw = (run / "tokens.bin").read_bytes()
    version, width = struct.unpack_from("<II", raw, 8)
    (count,) = struct.unpack_from("<Q", raw, 16)
    ids = list(struct.unpack_from(f"<{count}{'H' if width == 2 else 'I'}", raw, 64))
    marks = raw[64 + count * width :]
    return ids, [version == 1 or bool(marks[i // 8] >> i % 8 & 1) for i in range(count)]


def losses_of(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def text(least=1):
    return "".join(random.choices(WORDS, k=random.randint(least, 12)))


def conversation():
    turns = []
    for _ in range(random.randint(1, 3)):
        turns += [{"role": "user", "content": text()}, {"role": "assistant", "content": text(0)}]
    return turns


def rows_of(kind):
    if kind == "texts":
        return [{"text": text()} for _ in range(40)]
    if kind == "strings":
        return [{"prompt": text(0) + ".", "completion": " " + text(0) + "x"} for _ in range(40)]
    if kind == "messages":
        return [{"messages": conversation()} for _ in range(40)]
    return [{"prompt": (turns := conversation())[:-1], "completion": turns[-1:]} for _ in range(40)]


@needs_trl
@pytest.mark.parametrize("kind", ["texts", "strings", "messages", "lists"])
@pytest.mark.parametrize("made, template", [(byte_level, CHATML), (sentencepiece, INST)])
def test_tokens_what_counts_and_the_loss_are_trls(kind, made, template, tmp_path, seed):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    random.seed(seed)
    length = 512
    model_in(tmp_path, made, template, begins=True)
    rows = rows_of(kind)
    args = SFTConfig(
        output_dir=str(tmp_path / "out"),
        max_length=length,
        assistant_only_loss=kind == "messages",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("x")["input_ids"][0] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32),
        args=args,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
    )
    wanted, batch = trainer.train_dataset, 4
    flags = ["--pack", "off", "--steps", 1, "--batch", batch, "--shuffle", "off"]
    said = train(tmp_path, rows, tmp_path / "run", length, *flags)
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, trainer.data_collator([wanted[i] for i in range(batch)])).item()
    assert abs(losses_of(tmp_path / "run")[0] - loss) <= 2e-6 * loss
    ids, counts = tokens_of(tmp_path / "run")
    assert "left out" not in said and len(ids) == length * len(rows)
    for i, (row, one) in enumerate(zip(rows, wanted)):
        n, at = len(one["input_ids"]), i * length
        assert ids[at : at + n] == one["input_ids"], row
        assert [not c for c in counts[at + 1 : at + n]] == [label == -100 for label in one["labels"][1:]], row
        assert not any(counts[at + n : at + length]) and not counts[at]


ANEW = (  # writes earlier answers anew
    "{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}{% else %}A{{ 'Hm.' if loop.last }}{{ m.content }}"
    "{{ eos_token }}{% endif %}{% endfor %}{{ 'A' if add_generation_prompt }}"
)
ELSE = "{% for m in messages %}{{ 'Now ' if loop.last }}{{ m.content }}{% endfor %}"  # so does its prompt


@needs_trl
@pytest.mark.parametrize("template", ["qwen3", ANEW, ELSE])
@pytest.mark.parametrize("kind", ["messages", "lists"])
def test_conversations_are_whole_where_all_counts(template, kind, tmp_path, seed):
    """As TRL has them by default: what counts need not be told, and nothing is there twice."""
    import trl

    random.seed(seed)
    if template == "qwen3":
        template = (pathlib.Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    model_in(tmp_path, byte_level, template)
    rows, length = rows_of(kind)[:20], 256
    rows.append({"messages": [{"role": "user", "content": "No answer"}]})
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    train(tmp_path, rows, tmp_path / "run", length, "--pack", "off", "--loss-on", "all", "--steps", 1, "--batch", 1)
    ids, counts = tokens_of(tmp_path / "run")
    assert len(ids) == length * len(rows)
    for i, row in enumerate(rows):
        messages = row.get("messages") or row["prompt"] + row["completion"]
        wanted = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"][:length]
        at, n = i * length, len(wanted)
        assert ids[at : at + n] == wanted
        assert counts[at : at + length] == [0 < k < n for k in range(length)]


SPACES = ["[user]{{ m.content }} [bot]", " {{ m.content }} "]  # about users' texts; in what counts
TIGHT = ["{{ m.content }}", "{{ m.content }}"]
FLAGS = ["lstrip", "rstrip", "special"]


@new_classes
@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_what_counts_is_transformers_mask(kind, tmp_path, seed):
    """Blanks go with added tokens, are put before texts, are left out of tokens' offsets, and are written as U+2581."""
    random.seed(seed)
    counted = 0
    for user, bot in [SPACES, TIGHT] * 5:
        turn = f"{{% if m.role == 'user' %}}{user}{{% else %}}{{% generation %}}{bot}{{% endgeneration %}}{{% endif %}}"
        model_in(tmp_path, kind, f"{{% for m in messages %}}{turn}{{% endfor %}}")
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        for name in "[user]", "[bot]", "<|a|>":
            rule = {flag: random.random() < 0.4 for flag in FLAGS}
            tokenizer.add_tokens([AddedToken(name, normalized=False, **rule)])
        if kind == byte_level and random.random() < 0.7:
            trims, prefix = random.random() < 0.7, random.random() < 0.5
            tokenizer.post_processor = processors.ByteLevel(trim_offsets=trims, add_prefix_space=prefix)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        pieces = ["ship", " ", "  ", "\n", "<|a|>", "\u3000", "\u2581", "e\u0301", "[bot]", "[user]", ""]
        rows = [
            {"messages": [{"role": r, "content": "".join(random.choices(pieces, k=6))} for r in ("user", "assistant")]}
            for _ in range(30)
        ]
        theirs, wanted = AutoTokenizer.from_pretrained(tmp_path), []
        for row in rows:
            kinds = dict(return_dict=True, return_assistant_tokens_mask=True)
            made = theirs.apply_chat_template(row["messages"], **kinds)
            if any(made["assistant_masks"][1:]):
                wanted.append((made["input_ids"], made["assistant_masks"]))
        train(tmp_path, rows, tmp_path / "run", 64, "--pack", "off", "--steps", 1, "--batch", 1, "--quiet")
        ids, counts = tokens_of(tmp_path / "run")
        assert len(ids) == 64 * len(wanted)
        for i, (right, mask) in enumerate(wanted):
            here = slice(64 * i + 1, 64 * i + len(right))
            assert (ids[here], counts[here]) == (right[1:], [bool(m) for m in mask[1:]])
            counted += sum(mask)
    assert counted > 100


@new_classes
def test_what_the_tokenizer_puts_behind_a_text_is_behind_the_end(tmp_path, seed):
    """TRL writes the end of text, and then the tokenizer its own."""
    random.seed(seed)
    for kind, class_name in (byte_level, "GPT2Tokenizer"), (sentencepiece, "LlamaTokenizerFast"):
        model_in(tmp_path, kind, CHATML)
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        end = config["eos_token"]
        around = dict(single=f"<|im_start|> $A {end}", special_tokens=[])
        around["special_tokens"] = [(name, tokenizer.token_to_id(name)) for name in ("<|im_start|>", end)]
        tokenizer.post_processor = processors.TemplateProcessing(**around)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": class_name}))
        wanted = AutoTokenizer.from_pretrained(tmp_path)("The ship comes" + end)["input_ids"]
        row = {"prompt": "The ship", "completion": " comes"}
        train(tmp_path, [row], tmp_path / "run", 4, "--steps", 1, "--batch", 1)
        assert tokens_of(tmp_path / "run")[0] == wanted and wanted[-1] == wanted[-2]


@needs_trl
def test_a_long_conversation_stays_within_memory(tmp_path):
    """By Qwen3's template each answer is a sequence with all before it: together far more than the row."""
    templates = pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    model_in(tmp_path, byte_level, (templates / "qwen3.jinja").read_text())
    turns = [{"role": role, "content": "ship"} for _ in range(400) for role in ("user", "assistant")]
    turns[0]["content"] = "The ship comes at dawn. " * 6000
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (tmp_path / "drive").mkdir()
    how = ["--seq-len", "32", "--batch", "1", "--threads", "1", "--steps", "1", "--memory", "64MiB"]
    where = ["--model", tmp_path, "--data", tmp_path / "rows.jsonl", "--drive", tmp_path / "drive"]
    process = subprocess.Popen([PROGRAM, "train", *where, *how, "--out", tmp_path / "run"])
    most = 0
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        most = max([most, *map(int, re.findall(r"VmHWM:\s+(\d+) kB", status))])
        time.sleep(0.01)
    assert process.returncode == 0 and 0 < most < 64 << 10


@new_classes
@pytest.mark.parametrize(
    "kind, prompt, completion", [(byte_level, "The ship co", "mes in"), (sentencepiece, "A ", "co")]
)
def test_a_token_never_reaches_from_the_prompt_into_the_completion(kind, prompt, completion, tmp_path, seed):
    """A space that the tokenizer puts before a text is not put between the two."""
    random.seed(seed)
    model_in(tmp_path, kind, CHATML)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)

    def ids_of(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    behind = ids_of("\n" + completion)[len(ids_of("\n")) :]
    assert ids_of(prompt + completion)[: len(ids_of(prompt))] != ids_of(prompt)
    train(tmp_path, [{"prompt": prompt, "completion": completion}], tmp_path / "run", 4, "--steps", 1, "--batch", 1)
    ids, counts = tokens_of(tmp_path / "run")
    assert ids == ids_of(prompt) + behind + [tokenizer.eos_token_id]
    assert tokenizer.decode(behind).lower() == completion
    assert counts == [i >= len(ids_of(prompt)) for i in range(len(ids))]


@pytest.mark.parametrize("pack", ["on", "off"])
def test_losses_are_those_of_a_loop(pack, tmp_path, seed):
    random.seed(seed)
    length, batch, steps, lr = 48, 6, 4, 1e-2
    model_in(tmp_path, byte_level, CHATML)
    rows = rows_of("strings")
    adamw = ["--lr", lr, "--warmup", 0, "--schedule", "constant", "--weight-decay", 0, "--clip", 0, "--beta2", 0.999]
    program_says = ["--steps", steps, "--batch", batch, "--shuffle", "off", "--pack", pack, *adamw]
    train(tmp_path, rows, tmp_path / "run", length, *program_says)
    losses = losses_of(tmp_path / "run")
    ids, counts = tokens_of(tmp_path / "run")
    labels = [token if count else -100 for token, count in zip(ids, counts)]
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0)
    for step, made in enumerate(losses):
        first = step * batch * length
        at = [[(first + i * length + k) % len(ids) for k in range(length + 1)] for i in range(batch)]
        x = torch.tensor([[ids[k] for k in line[:-1]] for line in at])
        y = torch.tensor([[labels[k] for k in line[1:]] for line in at])
        assert (y == -100).any() and (y != -100).any()
        logits = model(x).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert abs(made - loss.item()) <= 2e-6 * loss.item(), (step, made, loss.item())


def test_a_batch_in_which_nothing_counts(tmp_path, seed):
    """Its loss is 0, as TRL has it, and the step is made: the moments fade, and nothing is not a number."""
    random.seed(seed)
    model_in(tmp_path, byte_level, CHATML)
    rows = [{"prompt": " The ship" * 6, "completion": "."}]
    train(tmp_path, rows, tmp_path / "run", 8, "--steps", 12, "--batch", 1, "--shuffle", "off")
    losses = losses_of(tmp_path / "run")
    assert len(losses) == 12 and losses.count(0) > 0 and max(losses) > 0
