"""docs/adding.md says where an optimizer and an option of wrap() are named: a file that lacks a new one fails by name.
An optimizer's row in the package's table is all that a step needs."""

import inspect
import pathlib
import re
import subprocess

import pytest
import torch

import longshore
from longshore.run.options import ARGUMENTS
from longshore.step.optimizer_classes import EmptyAdagrad
from longshore.step.optimizer_table import OPTIMIZERS
from models import gpt2, tokens

TOP = pathlib.Path(__file__).parents[2]
PAGE = (TOP / "docs" / "adding.md").read_text()
ENUM = re.search(r"enum shore_optimizer {(.*?), SHORE_OPTIMIZER_COUNT", (TOP / "include/longshore/state.h").read_text())
NAMES = [name.lower() for name in re.findall(r"SHORE_(\w+)", ENUM[1])]
OPTIONS = sorted(inspect.signature(longshore.wrap).parameters.keys() - {"model"})


def listed(title):
    """(files that must name a new one, files that may) of a section's table."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", section, re.MULTILINE)
    found = {
        conditional: [
            name
            for files, said in rows
            if said.startswith("only if") is conditional
            for name in re.findall(r"`([\w./-]+\.\w+)`", files)
        ]
        for conditional in (False, True)
    }
    assert found[False] and found[True]
    return found[False], found[True]


def unnamed(files, name):
    """The files that do not have a word."""
    return [
        file for file in files if not re.search(rf"(?<![a-z]){name}(?![a-z])", (TOP / file).read_text(), re.IGNORECASE)
    ]


def check_named(files, name):
    """Fails with the name of each file that does not have a word."""
    lacking = unnamed(files, name)
    assert not lacking, f"{name} is not named in " + ", ".join(lacking)


@pytest.mark.parametrize("name", NAMES)
def test_each_file_of_the_list_names_each_optimizer(name):
    check_named(listed("An optimizer")[0], name)


def test_a_new_optimizer_is_missed_in_each_file():
    files, _ = listed("An optimizer")
    rows = PAGE.partition("## An optimizer\n")[2].partition("\n## ")[0].split("| `")
    assert len(files) == sum(row.partition(" |")[0].count("`,") + 1 for row in rows[1:] if "| only if" not in row)
    with pytest.raises(AssertionError) as error:
        check_named(files, "unheardof")
    assert str(error.value).split("\n")[0] == "unheardof is not named in " + ", ".join(files)
    assert NAMES == [*OPTIMIZERS], "the row of each is in optimizer_table.py, in the enum's order"


def test_the_page_names_every_file():
    """Of those that name the optimizer which was added last: older ones are named in examples and defaults, too."""
    must, may = listed("An optimizer")
    found = {
        str(path.relative_to(TOP))
        for part in ("src", "include", "python/longshore")
        for path in (TOP / part).rglob("*")
        if path.suffix in (".c", ".h", ".py") and not unnamed([path], NAMES[-1])
    }
    of_code = {name for name in must if name.startswith(("src/", "include/", "python/"))}
    assert of_code <= found <= {*of_code, *may}


@pytest.mark.parametrize("option", OPTIONS)
def test_each_file_of_the_list_names_each_option(option):
    must, may = listed("An option of `wrap`")
    check_named([name for name in must if not name.startswith("python/tests/")], option)
    assert {"python/longshore/run/wrap.py", "python/longshore/run/options.py", "docs/python.md"} <= {*must}
    if option in ARGUMENTS:
        check_named(["python/longshore/transformers.py", "docs/deepspeed.md"], option)


def test_examples_are_of_todays_paths():
    commits = re.findall(r"(?<![\w`])[0-9a-f]{7}(?!\w)", PAGE)
    assert len(commits) >= 5
    for commit in commits:
        there = subprocess.run(
            ["git", "show", "--name-only", "--format=", commit], cwd=TOP, capture_output=True, text=True
        )
        if there.returncode:
            pytest.skip("a checkout without its history")
        assert all((TOP / name).exists() for name in there.stdout.split()), commit


def test_every_path_of_the_page_is_there():
    for name in re.findall(r"`((?:src|include|python|tests|docs|scripts)/[\w./*-]+)`", PAGE):
        assert list(TOP.glob(name)), name


@pytest.mark.parametrize("given", [False, True])
def test_a_made_up_one_is_a_row(given, tmp_path, seed, monkeypatch):
    class MadeUp(EmptyAdagrad):
        pass

    def trained(name, optimizer):
        torch.manual_seed(seed)
        model = gpt2(layers=2)
        with longshore.wrap(model, run=tmp_path / name, **optimizer(model)) as engine:
            for batch in tokens(2):
                engine.backward(engine(**batch).loss)
                engine.step()
            state = engine.optimizer.state[next(model.parameters())]
            return engine._core.how["optimizer"], engine.digest(), set(state)

    numbers = {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0}
    expected = trained("adagrad", lambda model: {"optimizer": "adagrad", **numbers})
    row = OPTIMIZERS["adagrad"]._replace(torchs=MadeUp, states={"made_up": "v"}, deepspeeds=())
    others = dict(OPTIMIZERS)
    for name in others:  # a class before the one that it is derived from
        monkeypatch.delitem(OPTIMIZERS, name)
    for name, known in {"madeup": row, **others}.items():
        monkeypatch.setitem(OPTIMIZERS, name, known)
    made = trained(
        "made-up",
        (lambda model: {"optimizer": MadeUp(model.parameters(), **numbers)})
        if given
        else lambda model: {"optimizer": "madeup", **numbers},
    )
    assert made == ("madeup", expected[1], {"step", "made_up"})


class TorchLacksIt(torch.optim.Optimizer):
    """An optimizer that torch.optim does not have, as optimizer_classes.py takes it."""

    def __init__(self, params, lr=2e-2, eps=1e-8, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})


def test_one_that_torch_lacks_has_defaults_of_its_own(tmp_path, seed, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "lacks", OPTIMIZERS["adagrad"]._replace(torchs=TorchLacksIt, empty=None))
    for name, optimizer in (("name", "lacks"), ("class", TorchLacksIt)):
        with longshore.wrap(gpt2(layers=2), run=tmp_path / name, optimizer=optimizer) as engine:
            assert engine.optimizer.defaults == {"lr": 2e-2, "eps": 1e-8, "weight_decay": 0.0}
            engine.backward(engine(**tokens(1)[0]).loss)
            engine.optimizer.step()
            (group,) = engine.optimizer.param_groups
            assert group["lr"] == 2e-2 and group.keys() == {"params", *engine.optimizer.defaults}
        with longshore.resume(tmp_path / name) as engine:
            assert engine.step_number == 1 and engine.optimizer.param_groups[0]["lr"] == 2e-2
