"""Rows of messages by every template that TRL ships: the program writes and counts what transformers and TRL do."""

import importlib.util
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")
TRL = importlib.util.find_spec("trl")
pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="the program is not installed"),
    pytest.mark.skipif(not TRL, reason="TRL, which has the templates, is not installed"),
]
TEMPLATES = {}
if TRL:
    for file in sorted((pathlib.Path(TRL.origin).parent / "chat_templates").glob("*.jinja")):
        TEMPLATES[file.stem] = file.read_text()
PLAIN = re.compile(r"think|tool_call|tool_response|image|name|tag")  # no special tokens in the models' files
MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
IN_C = "qwen2_5", "qwen3", "qwen3_instruct_2507", "llama3", "llama3_1", "gemma", "gemma3", "phi3", "phi3_5"
BLANK = {"llava_next"}  # TRL leaves out the blank that the template writes behind an answer's end
ADDED = {"glm4moe": "<|user|>"}  # TRL's template ends the last answer by the marker of a next turn
NO_TOOLS = {"diffusion_gemma"}  # TRL tells a call from the turn around it, which the template's prompts do not


def user(text):
    return {"role": "user", "content": text}


def says(text, **more):
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "Be short."}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, "é"]}}}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds <two> numbers & more.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
    },
}
ROWS = [
    {"messages": [user("Hi."), says("Hello.")]},
    {"messages": [SYSTEM, user("Hi."), says("Hello.")]},
    {"messages": [user("One?"), says("Two."), user("Three?"), says("Four.")]},
    {"messages": [SYSTEM, user("One?"), says("Two."), user("Three?"), says("Four."), user("Five?")]},
    {"messages": [user("Grüße, 世界 🚢\u2028"), says(" ¡Olé! \U0001f680\n")]},
    {"messages": [user(""), says("")]},
    {"messages": [user("x"), says("a\n\nb"), user("y"), says("<b>c</b>")]},
    {
        "messages": [
            user("Why?"),
            says("<think>\nHm.\n</think>\n\nSo."),
            user("And?"),
            says("<think>\nOh.\n</think>\n\nNo."),
        ]
    },
    {
        "messages": [
            user("Why?"),
            says("So.", reasoning_content="Hm."),
            user("And?"),
            says("No.", reasoning_content="Oh."),
        ]
    },
    {"messages": [user("1 + 2?"), says("Three.")], "tools": [ADD]},
    {
        "messages": [
            user("1 + 2?"),
            says("", tool_calls=[CALL]),
            {"role": "tool", "name": "add", "content": "3"},
            says("3."),
        ],
        "tools": [ADD],
    },
    {"messages": [user("No answer.")]},
    {"messages": [user("Hi."), says("Hello.")], "chat_template_kwargs": {"enable_thinking": False}},
]

ROWS += [  # as parts
    {"messages": [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in row["messages"]]}
    for row in ROWS[:7]
]


@pytest.fixture(scope="module")
def tokenizer():
    """A token for each byte, and for each marker of the templates."""
    text = "".join(TEMPLATES.values()) + "<s></s>"
    found = set(re.findall(r"<[|｜][^<>{}'\n]{1,40}[|｜]>|<(?:start|end)_of_\w+>|<turn\||<turn\|>|</?s>", text))
    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(alphabet, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, normalized=False) for t in sorted(found) if not PLAIN.search(t)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def model_of(directory, tokenizer, template):
    tokenizer.chat_template = None
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(template)
    return directory


def program(directory, rows, path=None):
    """Runs the program; the tests' python3 stands for the system's."""
    file = directory / "rows.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    path = path or f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [PROGRAM, "render", directory, file, "--json"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})


def ours(directory, rows, path=None):
    """Returns the sequences of each row: their texts, and the spans that count, in characters."""
    done = program(directory, rows, path)
    assert done.returncode == 0, done.stderr
    found = [[] for _ in rows]
    for one in map(json.loads, filter(None, done.stdout.split("\n"))):
        text = one["text"].encode()
        spans = [tuple(len(text[:place].decode()) for place in span) for span in one["counts"]]
        found[one["row"] - 1].append((one["text"], spans))
    return found


def theirs(tokenizer, template, row, count=None, prompt=False):
    """Returns what apply_chat_template() makes of the first messages, and which characters its mask has."""
    given = dict(tools=row.get("tools"), chat_template=template, **row.get("chat_template_kwargs", {}))
    messages = row["messages"][:count]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **given)
    if prompt or not MARKED.search(template):
        return text, None
    kinds = dict(tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    out = tokenizer.apply_chat_template(messages, **kinds, **given)
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    mask = [False] * len(text)
    for (begin, end), counts in zip(offsets, out["assistant_masks"]):
        mask[begin:end] = [bool(counts)] * (end - begin)
    return text, mask


def good(tokenizer, template):
    """Returns the rows that transformers takes."""
    found = []
    for row in ROWS:
        try:
            theirs(tokenizer, template, row)
            found.append(row)
        except Exception:  # of many kinds
            pass
    return found


def answers(row):
    return [i for i, message in enumerate(row["messages"]) if message["role"] == "assistant"]


@pytest.mark.parametrize("name", [name for name in TEMPLATES if MARKED.search(TEMPLATES[name])])
def test_the_templates_own_marks_count(name, tokenizer, tmp_path):
    rows = good(tokenizer, TEMPLATES[name])
    assert len(rows) >= 4
    for row, found in zip(rows, ours(model_of(tmp_path, tokenizer, TEMPLATES[name]), rows)):
        text, mask = theirs(tokenizer, TEMPLATES[name], row)
        assert [one for one, _ in found] == [text]
        assert mask == [any(b <= i < e for b, e in found[0][1]) for i in range(len(text))], row


@pytest.mark.parametrize("name", [name for name in TEMPLATES if not MARKED.search(TEMPLATES[name])])
def test_answers_count_with_what_ends_them(name, tokenizer, tmp_path):
    template, counted = TEMPLATES[name], 0
    rows = good(tokenizer, template)
    assert len(rows) >= 4
    for row, found in zip(rows, ours(model_of(tmp_path, tokenizer, template), rows)):
        spans = [(text, *span) for text, counts in found for span in counts]
        assert len(spans) == len(answers(row)), row
        whole = theirs(tokenizer, template, row)[0]
        if len(found) == 1 and (not spans or spans[0][2] == len(whole)):
            assert found[0][0] == whole
        for i, (text, begin, _) in zip(answers(row), spans):
            assert text in (whole, theirs(tokenizer, template, row, i + 1)[0])
            lead = theirs(tokenizer, template, row, i, True)[0]
            assert lead.startswith(text[:begin]) and re.fullmatch(r"\s*(<think>\s*)?(</think>\s*)?", lead[begin:]), row
            counted += 1
    assert counted >= 8


@pytest.mark.parametrize("name", [name for name in TEMPLATES if f"{name}_training" in TEMPLATES])
def test_what_trl_counts_counts(name, tokenizer, tmp_path):
    """TRL's own templates may count the end of the prompt for an answer, too. Nothing else is different."""
    template, marked, compared = TEMPLATES[name], TEMPLATES[f"{name}_training"], 0
    both = [row for row in good(tokenizer, template) if row in good(tokenizer, marked)]
    rows = [row for row in both if name not in NO_TOOLS or "tools" not in row]
    for row, found in zip(rows, ours(model_of(tmp_path, tokenizer, template), rows)):
        for text, spans in found:
            for count in sorted({len(row["messages"]), *(i + 1 for i in answers(row))}):
                same, mask = theirs(tokenizer, marked, row, count)
                if same not in (text, text + ADDED.get(name, "")) or not spans:
                    continue
                prompts = [theirs(tokenizer, template, row, i, True)[0] for i in answers(row)]
                for begin, end in spans:
                    assert all(mask[begin : end - (name in BLANK)]), row
                    lead = begin
                    while mask[lead - 1]:
                        lead -= 1
                    assert any(prompt.startswith(text[:begin]) for prompt in prompts)
                    mask[lead:end] = [False] * (end - lead)
                assert len(found) > 1 or not any(mask[: len(text)]), row
                compared += 1
                break
    assert compared >= 3


def talk(draw, name):
    """Draws a row that the template takes."""
    system = name != "gemma" and draw.random() < 0.4
    roles = ["system"] * system + ["user", "assistant"] * draw.randrange(1, 5)
    if name not in ("gemma", "gemma3", "qwen3") and draw.random() < 0.5:
        roles = roles[: 1 + system] + draw.choices(["user", "assistant", "system"], k=draw.randrange(6))
    if len(roles) > 1 and draw.random() < 0.3:
        roles.pop()
    words = [
        "",
        " ",
        "\n",
        "\u2028",
        "\u3000",
        "\x1c",
        "é",
        "世界",
        "🚢",
        "a b",
        "<",
        "<think>",
        "<|im_end|>",
        "<s>",
        "\\",
        '"',
        "{{ x }}",
    ]
    return {"messages": [{"role": r, "content": "".join(draw.choices(words, k=draw.randrange(5)))} for r in roles]}


@pytest.mark.parametrize("name", IN_C)
def test_what_is_rendered_in_c_is_what_jinja_renders(name, tokenizer, tmp_path, seed):
    draw = random.Random(seed)
    rows = [talk(draw, name) for _ in range(200)]
    for place in "known", "unknown", "path":
        (tmp_path / place).mkdir()
    known = model_of(tmp_path / "known", tokenizer, TEMPLATES[name])
    unknown = model_of(tmp_path / "unknown", tokenizer, "{# another text #}" + TEMPLATES[name])
    mute = [
        row
        for row in rows
        if name == "phi3_5" and any(m["role"] == "system" and not m["content"] for m in row["messages"])
    ]
    rows = [row for row in rows if row not in mute]
    assert ours(known, rows, path=tmp_path / "path") == ours(unknown, rows)  # the first has no python3 to ask
    assert ours(known, mute) == ours(unknown, mute)
    for row, found in zip(rows, ours(known, rows)):
        assert len(found) > 1 or name == "qwen3" or found[0][0] == theirs(tokenizer, TEMPLATES[name], row)[0]


def refused(tokenizer, directory, template, row, words, path=None):
    done = program(model_of(directory, tokenizer, template), [{"messages": [user("a"), says("b")], **row}], path)
    assert done.returncode and words in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_what_cannot_be_rendered_is_said(tokenizer, tmp_path):
    def check(template, row, words, path=None):
        refused(tokenizer, tmp_path, template, row, words, path)

    other = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "path").mkdir()
    python = tmp_path / "path" / "python3"
    check(other, {}, "apt-get install python3-jinja2", path=tmp_path / "path")  # no python3
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    check(other, {}, "apt-get install python3-jinja2", path=tmp_path / "path")  # one without jinja2
    check(TEMPLATES["qwen2_5"], {"tools": [ADD]}, "apt-get install python3-jinja2", path=tmp_path / "path")
    python.write_text("#!/bin/sh\nkill -9 $$\n")
    check(other, {}, "ended by itself, with signal 9", path=tmp_path / "path")
    check("{{ messages", {}, "chat_template.jinja: the template fails: TemplateSyntaxError")
    check("{{ raise_exception('no ' + messages[0].role) }}", {}, ".jsonl:1: the template fails: TemplateError: no user")
    check("{{ messages.__class__.__mro__ }}", {}, "is unsafe")
    check("{{ messages.append(1) }}", {}, "is unsafe")
    check("{{ namespace(_x=1) }}", {}, "SecurityError")
    check("{{ 'x' * 9999999999 }}", {}, "GiB of memory")
    check(other, {"messages": []}, "no list of messages")
    check(other, {"messages": ["a"]}, "no list of messages")
    check(other, {"messages": None}, "no list of messages")
    left_out = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]
    check(other, {"messages": left_out}, 'message 2 has a "weight" by which it would not count')
    check(other, {"messages": [{**left_out[0], "train": False}]}, 'message 1 has a "train"')
    check(other, {"messages": [{**left_out[0], "loss": False}]}, 'message 1 has a "loss"')
    counted = [left_out[0], {**left_out[1], "train": True, "weight": 1, "loss": True}]
    assert program(model_of(tmp_path, tokenizer, other), [{"messages": counted}]).returncode == 0
    check(other, {"tools": "[1]"}, "no list of JSON schemas")
    check(other, {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs")
    check(other, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "message 1 has 'image'")
    check(other + "{% if add_generation_prompt %}Go: {% endif %}", {}, "what counts cannot be told")
    check("{{ messages[1].content }}", {}, "does not render the messages before answer 2 alone")
    check("{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}", {}, "is within another one")
    begins = {"messages": [says("Hello."), user("Hi."), says("Yes?")]}
    check(TEMPLATES["qwen2_5"], begins, "list object has no element 0; put {% generation %} around what counts")
    assert program(model_of(tmp_path, tokenizer, TEMPLATES["qwen2_5_training"]), [begins]).returncode == 0


def test_tokens_without_a_name_are_as_in_jinja(tokenizer, tmp_path):
    nameless = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    rows = [{"messages": [user("a"), says("b")]}]
    assert nameless.bos_token is None
    refused(nameless, tmp_path, TEMPLATES["llama3"], rows[0], "'bos_token' is undefined")
    for name in "gemma", "phi3", "qwen2_5":
        found = ours(model_of(tmp_path, nameless, TEMPLATES[name]), rows)
        assert found[0][0][0] == theirs(nameless, TEMPLATES[name], rows[0])[0]


def test_a_row_with_tools_takes_the_template_for_them(tokenizer, tmp_path):
    model_of(tmp_path, tokenizer, "").joinpath("chat_template.jinja").unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = {"default": "D{{ bos_token }}", "tool_use": "T{{ tools[0].function.name }}", "rag": "R"}
    config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    rows = [
        {"messages": [user("a")]},
        {"messages": [user("a")], "tools": [ADD]},
        {"messages": [user("a")], "tools": json.dumps([ADD])},
    ]
    assert [found[0][0] for found in ours(tmp_path, rows)] == ["D<s>", "Tadd", "Tadd"]
