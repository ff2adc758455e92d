"""docs/adding.md says where an optimizer is named, and its row in the package's table is all that a step needs."""

import pathlib
import re

import pytest
import torch

import longshore
from longshore.step.optimizer_table import OPTIMIZERS
from longshore.step.optimizers import EmptyAdagrad
from models import gpt2, tokens

TOP = pathlib.Path(__file__).parents[2]


def test_the_page_names_every_file():
    page = (TOP / "docs" / "adding.md").read_text()
    section = page.partition("## An optimizer")[2].partition("\n## ")[0]
    listed = {name for name in re.findall(r"`([\w./]+)`", section) if name.startswith(("src/", "include/", "python/"))}
    found = {str(path.relative_to(TOP)) for part in ("src", "include", "python/longshore")
             for path in (TOP / part).rglob("*")
             if path.suffix in (".c", ".h", ".py") and "adagrad" in path.read_text().lower()}
    assert listed == found


def test_every_path_of_the_page_is_there():
    for name in re.findall(r"`((?:src|include|python|tests|docs|scripts)/[\w./*-]+)`",
                           (TOP / "docs" / "adding.md").read_text()):
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
            return engine.how["optimizer"], engine.digest(), set(state)

    numbers = {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0}
    expected = trained("adagrad", lambda model: {"optimizer": "adagrad", **numbers})
    row = OPTIMIZERS["adagrad"]._replace(torchs=MadeUp, states={"made_up": "v"}, deepspeeds=())
    others = dict(OPTIMIZERS)
    for name in others:  # a class before the one that it is derived from
        monkeypatch.delitem(OPTIMIZERS, name)
    for name, known in {"madeup": row, **others}.items():
        monkeypatch.setitem(OPTIMIZERS, name, known)
    made = trained("made-up", (lambda model: {"optimizer": MadeUp(model.parameters(), **numbers)}) if given else
                   lambda model: {"optimizer": "madeup", **numbers})
    assert made == ("madeup", expected[1], {"step", "made_up"})
