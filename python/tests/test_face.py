"""What an engine and the package look like: to a person, to dir(), and to code that takes the engine for its model."""

import copy
import gc
import os
import pickle
import runpy
import sys
import sysconfig

import pytest
import torch
from torch import nn

import longshore
from models import Cnn, gpt2, tokens
from test_loop import engine_for


class Awkward(nn.Module):
    """Its names are those that the engine uses itself, or nearly."""

    def __init__(self):
        super().__init__()
        self.position, self.plan, self.run, self.state_of = nn.Linear(4, 4), "mine", "mine", "mine"
        self.gradients, self.lineage = "mine", "mine"

    def forward(self, x):
        return self.position(x).square().mean()


def test_an_engine_shows_what_it_is(tmp_path, seed):
    engine = engine_for(gpt2(), tmp_path)
    elements = sum(p.numel() for p in engine.module.parameters())
    engine.backward(engine(**tokens(1)[0]).loss)
    engine.step()
    assert repr(engine) == (
        f"<Engine of GPT2LMHeadModel, open: run {tmp_path}/run, step 1, {elements:,} parameters "
        f"on {', '.join(engine.state.drives)}, memory "
        f"{longshore.native.readable(engine.memory().budget)}>"
    )
    memory = engine.memory()
    assert repr(memory) == str(memory)
    engine.close()
    assert repr(engine) == f"<Engine of GPT2LMHeadModel, closed: run {tmp_path}/run, step 1>"
    assert repr(longshore.Engine.__new__(longshore.Engine)) == "<Engine, closed>"


def _hold(thing):
    return {"best": [thing]}


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda engine: copy.deepcopy(_hold(engine)),
        lambda engine: torch.save(_hold(engine), os.devnull),
    ],
)
def test_an_engine_that_is_not_copied_trains_on(duplicate, tmp_path, seed):
    with engine_for(Cnn(), tmp_path) as engine:
        with pytest.raises(TypeError, match="an Engine cannot be copied or pickled.*deepcopy.engine.module"):
            duplicate(engine)
        gc.collect()
        engine.backward(engine(torch.randn(2, 1, 16, 16)).square().mean())
        assert engine.step().step == 1
        assert not any(getattr(p, "longshore", None) for p in copy.deepcopy(engine.module).parameters())


def test_what_is_public(tmp_path, seed):
    assert sorted(n for n in dir(longshore) if not n.startswith("_")) == sorted(longshore.__all__)
    assert longshore.__version__.count(".") == 2
    with engine_for(Cnn(), tmp_path) as engine:
        assert {
            "backward",
            "step",
            "module",
            "optimizer",
            "accumulate",
            "memory",
            "close",
            "step_number",
            "training",
        } <= set(dir(engine))
        assert not {
            n
            for n in dir(engine)
            if n.startswith("_") or n in ("streams", "layout", "how", "plan", "state", "lineage", "patience", "gone")
        }
        assert all(hasattr(engine, name) for name in dir(engine))


def test_what_the_module_has_is_passed_on(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        model = engine.module
        assert engine.config is model.config and engine.device == torch.device("cpu") and engine.dtype == torch.float32
        assert [n for n, _ in engine.named_parameters()] == [n for n, _ in model.named_parameters()]
        assert list(engine.modules())[:2] == [engine, model] and list(engine.children()) == [model]
        assert engine.state_dict().keys() == model.state_dict().keys()
        x = tokens(1)[0]["input_ids"]
        assert torch.equal(
            engine.generate(x, max_new_tokens=2, do_sample=False), model.generate(x, max_new_tokens=2, do_sample=False)
        )
        engine.training = False
        assert not model.training and engine.train().training and model.training
        assert engine.to("cpu") is engine and engine.float() is engine and engine.apply(lambda m: None) is engine
        for convert in (engine.half, lambda: engine.to(torch.bfloat16)):
            with pytest.raises(
                longshore.AbsentParameterError, match="convert, resize and replace parameters before longshore.wrap"
            ):
                convert()
        with pytest.raises(
            AttributeError, match="there is no paramters here, and its module, a GPT2LMHeadModel, has none"
        ):
            engine.paramters
        assert not hasattr(engine, "_hf_peft_config_loaded") and not hasattr(engine, "__deepcopy__")
        engine.backward(engine.forward(**tokens(1)[0]).loss)
        assert engine.step().step == 1
    bare = longshore.Engine.__new__(longshore.Engine)
    for name in ("config", "module", "training"):
        assert getattr(bare, name, None) is None
    with pytest.raises(Exception):
        pickle.dumps(engine)
    copied = copy.deepcopy(gpt2())
    assert not hasattr(copied, "step_number")


def test_names_that_both_have_are_the_engines(tmp_path, seed):
    with engine_for(Awkward(), tmp_path) as engine:
        engine.follow("nothing", torch.optim.lr_scheduler.ConstantLR(engine.optimizer))
        engine.backward(engine(torch.ones(1, 4)))
        engine.step()
        assert engine.run == "mine" and engine.module.plan == "mine" and engine.plan != "mine"
    with longshore.resume(tmp_path / "run", Awkward) as engine:
        assert engine.step_number == 1


def test_who_wraps_a_model_takes_no_engine(tmp_path, seed):
    pytest.importorskip("transformers")
    import longshore.deepspeed as deepspeed
    from longshore.transformers import Trainer, TrainingArguments

    with engine_for(gpt2(), tmp_path) as engine:
        with pytest.raises(ValueError, match="wrap: this is an Engine, whose model is wrapped already: use the Engine"):
            longshore.wrap(engine)
        with pytest.raises(ValueError, match="deepspeed.initialize: this is an Engine, .*: give the model itself"):
            deepspeed.initialize(model=engine, config={})
        with pytest.raises(
            ValueError, match="Trainer: this is an Engine, .*: give the model itself: the Trainer wraps it"
        ):
            Trainer(engine, TrainingArguments(str(tmp_path / "out")))


@pytest.mark.parametrize("installed", [True, False])
def test_the_package_as_a_program(installed, monkeypatch, capsys, tmp_path):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["longshore", *words])
        runpy.run_module("longshore", run_name="__main__")
        return capsys.readouterr().out

    started = []
    monkeypatch.setattr(os, "execv", lambda *given: started.append(given) or sys.exit(0))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    if installed:
        (tmp_path / "longshore").touch(0o755)
    said = run()
    assert (
        said.startswith(f"longshore {longshore.__version__}: the program")
        and "python -m longshore.deepspeed SCRIPT" in said
    )
    if installed:
        with pytest.raises(SystemExit):
            run("inspect", "a")
        assert started == [(str(tmp_path / "longshore"), ["longshore", "inspect", "a"])]
    else:
        assert run("--version") == f"longshore {longshore.__version__}\n"
        with pytest.raises(SystemExit, match="the program `longshore` is not installed"):
            run("inspect", "a")
