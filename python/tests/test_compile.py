"""torch.compile of a model whose parameters come and go: the numbers of PyTorch, and the same bits in one slot and in
two."""

import copy
import os
import shutil
import time

import pytest
import torch
from torch import nn
from torch._dynamo import register_backend

import longshore
from longshore import progress
from models import gpt2, tokens
from test_architectures import Language, feed_forward, in_memory, loss_of
from test_loop import engine_for


# "aot_eager inductor": take a minute
@pytest.mark.parametrize("backend", os.environ.get("LONGSHORE_TEST_COMPILE", "").split())
def test_a_compiled_model(backend, tmp_path, seed, monkeypatch):
    digests = []
    for n, slots in enumerate((1, 2)):
        torch.manual_seed(seed)
        torch._dynamo.reset()
        model = Language(feed_forward, 2).eval()
        if not n:
            expected = in_memory(copy.deepcopy(model), seed, tokens(3))
        with (
            monkeypatch.context() as patched,
            engine_for(model, tmp_path, f"run{n}", slots, monkeypatch=patched) as engine,
        ):
            engine.module.compile(backend=backend)
            losses = []
            for batch in tokens(3):
                loss = loss_of(engine(**batch))
                losses.append(loss.item())
                engine.backward(loss)
                engine.step()
            assert losses == pytest.approx(expected, rel=2e-6)
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture
def anew():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def checkpointed():
    model = gpt2()
    model.gradient_checkpointing_enable()
    return model


def adapted():
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(
        gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", lora_dropout=0.0)
    )


@pytest.mark.parametrize("make", [gpt2, checkpointed, adapted])
def test_compiled_blocks(make, tmp_path, seed, monkeypatch, anew):
    """The losses of blocks that are not compiled; the same bits in one slot, in all, and resumed; no graph anew after
    the second step."""
    digests, expected = [], None
    for n, (slots, backend) in enumerate([(None, False), (1, "aot_eager"), (None, "aot_eager")]):
        torch.manual_seed(seed)
        torch._dynamo.reset()
        losses, made = [], []
        with monkeypatch.context() as patched:
            engine = engine_for(make(), tmp_path, f"run{n}", slots, monkeypatch=patched, compile=backend)
        for number, batch in enumerate(tokens(5)):
            if number == 3 and backend:
                engine.close()
                engine = longshore.resume(tmp_path / f"run{n}", make())
            loss = engine(**batch).loss
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()
            made.append(graphs())
        if backend:
            assert made[2] == made[1] > 0 and made[4] == made[2]
            assert losses == pytest.approx(expected, rel=3e-6)
            digests.append(engine.digest())
        expected = expected or losses
        engine.close()
    assert digests[0] == digests[1]


def test_micro_batches_through_compiled_blocks(tmp_path, seed, anew):
    results = []
    for backend in (False, "aot_eager"):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run-{backend}", compile=backend) as engine:
            results.append([engine.train_batch(tokens(3)).loss for _ in range(3)])
    assert graphs() > 0 and results[1] == pytest.approx(results[0], rel=3e-6)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor(tmp_path, seed, anew):
    """What compile=True is, once: a layer of its own class, so that one graph serves all layers."""
    losses, made = [], []
    for compiles in (False, True):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(8, 16), *[nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(3)]
        ).train()
        batches = [torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(n)) for n in range(4)]
        with engine_for(model, tmp_path, f"run-{compiles}", compile=compiles) as engine:
            for batch in batches:
                loss = engine(batch).square().mean()
                losses.append(loss.item())
                engine.backward(loss)
                engine.step()
                made.append(graphs())
    assert losses[4:] == pytest.approx(losses[:4], rel=3e-6)
    assert made[3] == 0 and made[5] == made[7] > 0


def test_more_layers_than_dynamo_takes_by_itself(tmp_path, seed, anew):
    """Its limit is 8 graphs of one function; transformers' layers know their number, and have a graph each."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_embd=16, n_layer=10, n_head=2, n_positions=32))
    with engine_for(model, tmp_path, compile="aot_eager") as engine:
        for batch in tokens(2):
            engine.backward(engine(**batch).loss)
            engine.step()
    assert graphs() >= 10


def test_what_cannot_be_compiled(tmp_path, monkeypatch):
    for value, said in [
        ("inductr", "inductr"),
        (3, "compile=3; it must be True"),
        ({"bakend": "inductor"}, "bakend='inductor' cannot be kept"),
        ({"backend": print}, "backend=<built-in"),
    ]:
        with pytest.raises(ValueError, match=said):
            longshore.wrap(gpt2(), run=tmp_path / "run", compile=value)
        assert not (tmp_path / "run").exists()
    with pytest.raises(longshore.LongshoreError, match="Linear has no layers that repeat: name modules"):
        longshore.wrap(nn.Linear(2, 2), run=tmp_path / "run", compile=True)
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setenv("PATH", "/nowhere")
    torch._inductor.config.cpp.cxx = (None, "/nowhere/g++")
    with pytest.raises(longshore.LongshoreError, match="needs a C\\+\\+ compiler"):
        longshore.wrap(gpt2(), run=tmp_path / "run", compile=True)


def test_it_is_said_before_it_takes_its_time(anew, tmp_path, seed, monkeypatch, caplog):
    """What is compiled, and in the first step how far it is, also while a layer is compiled."""
    caplog.set_level("INFO", "longshore")
    clock, compiled = [0.0], []
    monkeypatch.setattr(progress, "clock", lambda: clock[0])
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.001)

    def slowly(graph, inputs):
        if not compiled:
            said = len(caplog.messages)
            clock[0] += 30
            while len(caplog.messages) == said:  # the thread that looks at the clock
                time.sleep(0.001)
        compiled.append(graph)
        return graph.forward

    register_backend(slowly, name="longshore_slowly")
    with engine_for(gpt2(), tmp_path, compile="longshore_slowly") as engine:
        assert "compiling 3 layers of GPT2LMHeadModel with longshore_slowly in the first step" in caplog.text
        assert not compiled
        for batch in tokens(2):
            engine.backward(loss_of(engine(**batch)))
            engine.step()
    assert compiled and any(line.startswith("step 1, compiling 3 layers: ") for line in caplog.messages)
    assert "step 2, compiling" not in caplog.text
