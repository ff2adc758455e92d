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
from longshore.run import checkpoint
from models import Cnn, gpt2, tokens
from test_loop import engine_for


class Awkward(nn.Module):
    """Its names are those of parts of an engine: modules, tensors, numbers, texts and methods."""

    def __init__(self):
        super().__init__()
        self.position, self.streams = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.state = nn.Parameter(torch.full((4,), 0.5))
        self.register_buffer("layout", torch.arange(4.0))
        self.plan, self.how, self.cycle, self.run, self.lineage = "mine", {"clip": "mine"}, 3, "mine", [7, 8]
        self.together, self.followed, self.gone = None, (), True

    def gradients(self):
        return self.cycle

    def compression(self, x):
        return x * self.gradients()

    @property
    def meter(self):
        return self.layout.sum()

    def forward(self, x):
        for layer in self.streams:
            x = layer(x) + self.state
        return (self.compression(self.position(x)) + self.layout).square().mean() / self.meter


def test_an_engine_shows_what_it_is(tmp_path, seed):
    engine = engine_for(gpt2(), tmp_path)
    elements = sum(p.numel() for p in engine.module.parameters())
    engine.backward(engine(**tokens(1)[0]).loss)
    engine.step()
    assert repr(engine) == (
        f"<Engine of GPT2LMHeadModel, open: run {tmp_path}/run, step 1, {elements:,} parameters "
        f"on {', '.join(engine._core.state.drives)}, memory "
        f"{longshore.native.readable(engine.memory().budget)}, computes on cpu>"
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


def test_names_of_parts_are_the_models(tmp_path, seed):
    plain = Awkward()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    x = torch.ones(1, 4)

    def step(engine):
        sgd.zero_grad()
        plain(x).backward()
        sgd.step()
        engine.backward(engine(x))
        return engine.step().loss

    with engine_for(copy.deepcopy(plain), tmp_path, optimizer="sgd", lr=0.1, weight_decay=0, clip=0) as engine:
        model = engine.module
        engine.follow("nothing", torch.optim.lr_scheduler.ConstantLR(engine.optimizer, factor=1.0))
        kept = ("position", "streams", "state", "layout", "plan", "how", "cycle", "run", "lineage", "together", "gone")
        assert all(getattr(engine, name) is getattr(model, name) for name in kept)
        assert engine.gradients == model.gradients and engine.compression(2) == 6 and engine.meter == 6
        step(engine)
        engine.cycle, engine.plan, engine.layout = 2, None, torch.ones(4)
        del engine.followed
        assert (model.cycle, model.plan, engine.meter) == (2, None, 4) and not hasattr(engine, "followed")
        plain.cycle, plain.layout = 2, torch.ones(4)
        step(engine)
        checkpoint.save(engine, tmp_path / "two")
        saved = step(engine), engine.digest()
        checkpoint.load(engine, tmp_path / "two")
        assert engine.step_number == 2 and engine.cycle == 2 and torch.equal(engine.layout, torch.ones(4))
        engine.backward(engine(x))
        assert (engine.step().loss, engine.digest()) == saved
        for name, p in plain.named_parameters():
            torch.testing.assert_close(engine.get_parameter(name).detach(), p.detach())
    with longshore.resume(tmp_path / "run", Awkward) as engine:
        assert engine.step_number == 3 and engine.cycle == 3 and torch.equal(engine.layout, torch.ones(4))
        assert engine.digest() == saved[1]


def test_no_part_of_an_engine_has_a_name_that_a_model_wants(tmp_path, seed):
    public = {name for name in dir(longshore.Engine) if not name.startswith("_")} | {"module", "forward"}
    with engine_for(nn.Linear(2, 2), tmp_path) as engine:
        core = engine._core
        parts = {name for name in (*vars(core), *vars(type(core))) if not name.startswith("_")} - public
        assert {"cycle", "gradients", "layout", "plan", "state", "streams"} <= parts
        for name in sorted(parts):
            assert not hasattr(engine, name)
            setattr(engine.module, name, "mine")
            assert getattr(engine, name) == "mine"
            setattr(engine, name, "changed")
            assert getattr(engine.module, name) == "changed"
            delattr(engine, name)
            assert not hasattr(engine.module, name)
        engine.backward(engine(torch.ones(1, 2)).sum())
        assert engine.step().step == 1


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
