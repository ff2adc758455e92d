"""Every snippet of the pages that users read is run, in the order of the page, by one process in an empty directory.

What a page speaks of and does not make (a pretrained model, data, drives) is stood in for. What is not run is listed
with its reason.
"""

import importlib.util
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import longshore
import standin
from models import HANGS_SECONDS

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/python.md",
    "docs/gpu.md",
    "docs/deepspeed.md",
    "docs/faster.md",
    "docs/when-it-fails.md",
    "docs/python-internals.md",
]
LANGUAGES = {"python", "sh", "json", "text"}
NOT_RUN = {  # beginnings of lines of a shell's block
    "make": "builds, and is what runs this test",
    "pip install": "installs from the sources: scripts/python-test does it",
    "longshore drive move runs/a $TMPDIR": "is for a job of Slurm",
    "longshore drive move runs/a /project": "is for the next one",
    "longshore train ... ": "shows where hosts stand, which are not here",
}
SHORTER = {
    "--steps 500": "--steps 2",
    "--steps 1000": "--steps 2",
    "--seq-len 256": "--seq-len 32",
    "--memory 1GiB": "--memory 512MiB",
}
PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")

STAND_INS = """
import sys
import torch
sys.path.insert(0, TESTS)
import standin
if ON_DEVICE:
    standin.make()
from models import gpt2, tokens
from test_documents import pretrained
pretrained("gpt2")
place = standin.NAME if ON_DEVICE else "cpu"
loader = [{k: v.to(place) for k, v in batch.items()} for batch in tokens(2)]
dataset = [{k: v[0] for k, v in batch.items()} for batch in tokens(4)]
model = gpt2()
"""
OF_PAGE = {
    "docs/faster.md": "micro_batches, model_of_your_own = loader, gpt2()",
    "docs/python.md": """
def make():
    return torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])
data = [torch.randn(4, 16, device=place) for _ in range(4)]
from unittest import mock
sampler = mock.Mock(generate=lambda prompts: data[:2])
def policy_loss(output, rollout):
    return output.square().mean()
import subprocess
subprocess.run(["longshore", "train", "--init", "gpt2-tiny", "--data", "book.txt", "--seq-len", "16", "--steps", "1",
                "--drive", PLACE + "nvme0", "--memory", "512MiB", "--out", "runs/c"], check=True)
""",
}
ON_A_GPU = {  # what a page gives to one: the stand-in's, or the CPU's
    'device="cuda", gpu_memory="20GiB", memory="48GiB"': (
        'device="cpu", memory="1GiB"',
        f'device="{standin.NAME}", gpu_memory="1GiB", memory="1GiB"',
    )
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "PLACE/nvme0"}},
}
TRAIN = """
import argparse, deepspeed, torch
parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed")
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
engine, *_ = deepspeed.initialize(model=model, config=parser.parse_args().deepspeed)
for _ in range(2):
    engine.backward(engine(torch.randn(1, 8)).square().mean())
    engine.step()
print("steps", engine.global_steps)
"""


def pretrained(directory):
    """What a model and its tokenizer look like that somebody has downloaded."""
    import tokenizers
    import transformers

    from models import gpt2

    gpt2().save_pretrained(directory)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({chr(97 + i): i for i in range(26)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)


def blocks(page):
    """(language, line, text) of each fenced block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        (m.group(1), text[: m.start()].count("\n") + 2, m.group(2))
        for m in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    ]


def lines_to_run(text):
    """Of a shell's block: those that are not listed as not run."""
    whole = re.sub(r"\\\n\s*", "", text).splitlines()
    return [line for line in whole if line.strip() and not line.startswith(tuple(NOT_RUN))]


def anchors(path):
    """Of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {language for language, _, _ in blocks(page)} <= LANGUAGES
    without = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    assert not re.search(r"\n\n(?! *[-*|]) {4,}\S", without), "a block without a fence is not run"


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        there = page.parent / target
        assert there.exists() and (not anchor or anchor in anchors(there)), (target, anchor)


@pytest.mark.skipif(not PROGRAM, reason="the program is not installed")
def test_commands_within_sentences_are_there():
    """`longshore drive add RUN NEW`: the command, and each of its flags, as its help has them."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
    for command in sorted(set(re.findall(r"`longshore ([a-z][^`]*)`", text))):
        words = command.split()
        asked = subprocess.run(
            [PROGRAM, *words[: 1 + (words[0] in ("drive", "bench"))], "--help"], capture_output=True, text=True
        )
        assert asked.returncode == 0, command
        assert [
            f for f in re.findall(r"--[a-z][a-z0-9-]+", command) if f != "--help" and f not in asked.stdout
        ] == [], command


def test_what_is_not_run_is_there():
    lines = [
        line for page in PAGES for language, _, text in blocks(page) if language == "sh" for line in text.splitlines()
    ]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []


def rows(page, heading):
    """Cells of the table below a heading."""
    section = (ROOT / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")][
        2:
    ]


def test_every_option_has_a_row():
    named = [name for row in rows("docs/python.md", "Options") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(inspect.signature(longshore.wrap).parameters.keys() - {"model"})


def test_sizes_are_the_planners(tmp_path):
    """The rows of 1B, which are the quick ones."""
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("pytorch_sizes", ROOT / "bench" / "pytorch_sizes.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    for row in rows("docs/python.md", "Disk, memory, time")[:2]:
        parameters, disk, least = bench.sizes(next(iter(bench.SHAPES.values())), row[2], str(tmp_path))
        assert row[3] == f"{disk / 1e9:,.0f} GB"
        assert least <= float(row[4].removesuffix(" GiB")) * 2**30 <= 1.1 * least
        assert row[5] == f"{parameters * (bench.MOVED[row[2]] + bench.FETCHED) / 3e9:,.0f} s"


def test_messages_are_those_of_the_sources():
    files = [*(ROOT / "python" / "longshore").rglob("*.py"), *(ROOT / "src").rglob("*.c")]
    said = re.sub(r'"\s*\n\s*f?"', "", "\n".join(f.read_text(encoding="utf-8") for f in files))
    page = (ROOT / "docs" / "when-it-fails.md").read_text(encoding="utf-8")
    first = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    quoted = [m for cell in first for m in re.findall(r"`([^`]+)`", cell) if " " in m]
    assert len(quoted) > 15
    parts = {m: map(re.escape, m.replace("300MiB?", "").split("...")) for m in quoted}  # ...: what differs
    assert [m for m, fixed in parts.items() if not re.search(".*".join(fixed), said)] == []


PASTE = """
import code, socket, sys
def refuse(*a, **k): raise OSError("there is no network here")
socket.socket.connect = refuse
class Paste(code.InteractiveConsole):
    def showtraceback(self): raise
    def showsyntaxerror(self, *a, **k): raise
console = Paste()
for line in sys.stdin.read().splitlines():
    console.push(line)
assert not console.push(""), "not whole"
"""


def test_the_first_block_is_pasted(tmp_path):
    """Into an interpreter, in an empty directory, without a network."""
    text, same = (
        next(text for language, _, text in blocks(page) if language == "python")
        for page in ("README.md", "docs/python.md")
    )
    code_lines = [re.sub(" *#.*", "", line) for line in text.splitlines()]
    assert code_lines == [re.sub(" *#.*", "", line) for line in same.splitlines()]
    assert len([line for line in code_lines if line]) <= 10
    done = subprocess.run(
        [sys.executable, "-c", PASTE], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS_SECONDS
    )
    losses = [float(loss) for loss in re.findall(r"^step \d+  loss (\S+)  norm \S+$", done.stdout, re.MULTILINE)]
    assert done.returncode == 0 and len(losses) == 20 and losses[-1] < losses[0] / 5, done.stdout + done.stderr
    assert (tmp_path / "runs" / "first" / "run.json").exists()


@pytest.mark.parametrize(
    "page, on_device",
    [
        *((page, False) for page in PAGES if "internals" not in page),
        *((page, True) for page in PAGES if page.startswith("docs/") and "internals" not in page),
    ],
)
@pytest.mark.skipif(not PROGRAM, reason="the program is not installed")
def test_a_page_from_its_top(page, on_device, tmp_path):
    """All its blocks, as somebody types them who reads it from the top. on_device: where PyTorch has an accelerator."""
    if on_device and standin.why_not() is not None:
        pytest.skip(f"the stand-in for a device is not built: {standin.why_not()}")
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    place, work = str(tmp_path / "mnt") + "/", tmp_path / "work"
    for directory in (
        work,
        tmp_path / "mnt" / "nvme0",
        tmp_path / "mnt" / "nvme1",
        tmp_path / "mnt" / "local",
        tmp_path / "bin",
    ):
        directory.mkdir(parents=True)
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "longshore").symlink_to(PROGRAM)
    (tmp_path / "bin" / "python").chmod(0o755)
    (work / "book.txt").write_text("once upon a time the quick brown fox jumped over a lazy dog\n" * 200)
    (work / "train.py").write_text(TRAIN)
    (work / "ds.json").write_text(json.dumps(DEEPSPEED).replace("PLACE/", place))
    tests = str(ROOT / "python" / "tests")
    script = [f"TESTS, PLACE, ON_DEVICE = {tests!r}, {place!r}, {on_device}", STAND_INS, OF_PAGE.get(page, "")]
    for language, line, text in blocks(page):
        text = text.replace("/mnt/", place)
        for said, (on_cpu, there) in ON_A_GPU.items():
            text = text.replace(said, there if on_device else on_cpu)
        if language == "json":
            json.loads(text)
        elif language == "python":
            script.append(
                f"print('{page}:{line}', file=sys.stderr, flush=True)\nexec(compile({text!r}, '{page}:{line}', 'exec'))"
            )
        elif language == "sh":
            command = (
                "\n".join(lines_to_run(text))
                .replace("build/longshore", "longshore")
                .replace("scripts/", f"{ROOT}/scripts/")
            )
            for said, here in SHORTER.items():
                command = command.replace(said, here)
            script.append(
                "import subprocess; subprocess.run(['env', '-u', 'ACCELERATE_TORCH_DEVICE', 'bash', '-euc', "
                f"{command!r}], check=True, stdin=subprocess.DEVNULL)"
            )
    (tmp_path / "page.py").write_text("\n".join(script))
    env = {**os.environ, "ACCELERATE_TORCH_DEVICE": standin.NAME} if on_device else dict(os.environ)
    env.update(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", HF_HUB_OFFLINE="1")
    done = subprocess.run(
        [sys.executable, tmp_path / "page.py"], cwd=work, env=env, capture_output=True, text=True, timeout=HANGS_SECONDS
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
