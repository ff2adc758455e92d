"""engine.sleep(), wake() and weights() on a CPU: what goes and comes back, and the bits of one that never slept."""

import contextlib
import gc
import os
import random
import re
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import longshore
from longshore.run import allocator
from longshore.run.engine_surface import core_of
from models import HANGS_SECONDS, Cnn, gpt2, tokens
from test_loop import engine_for
from test_lost_drives import FarSide
from test_program import PROGRAM

ASLEEP = "the engine sleeps: engine.wake() wakes it"
LOOPS = int(os.environ.get("LONGSHORE_LOOPS", 8))


def rest(engine, chance):
    """What a script may do between steps at random, which changes no bit."""
    for _ in range(chance.randrange(1, 5)):
        what = chance.choice(["sleep", "sleep", "weights", "snapshot", "settle"])
        if what == "snapshot":
            engine.snapshot(f"s{chance.getrandbits(40)}")
        elif what == "settle":
            engine.settle()
        elif what == "weights":
            dict(engine.weights())
        else:
            engine.sleep()
            if chance.random() < 0.5:
                dict(engine.weights("bf16"))
            if chance.random() < 0.3:
                engine.sleep()
            engine.wake()
            if chance.random() < 0.3:
                engine.wake()


def trained(engine, number, sleeps):
    """Steps at random with a scheduler, some of an optimizer without zero_grad(), to which the next one adds."""
    chance, other = random.Random(number), random.Random(number + 1)
    scheduler = engine.follow("scheduler", torch.optim.lr_scheduler.StepLR(engine.optimizer, 2, 0.5))
    engine.train()
    numbers, batches = [], tokens(12)
    for n in range(6):
        how = chance.choice(["together", "accumulated", "own", "own, zeros", "own, adds"])
        if how == "together":
            engine.train_batch(batches[2 * n : 2 * n + 2])
        elif how == "accumulated":
            engine.accumulate = 2
            for batch in batches[2 * n : 2 * n + 2]:
                engine.backward(engine(**batch).loss)
            engine.step()
        else:
            engine(**batches[n]).loss.backward()
            engine.optimizer.step()
            if how != "own, adds":
                engine.optimizer.zero_grad(set_to_none=how == "own")
        if sleeps == "sleeps":
            rest(engine, other)
        scheduler.step()
        numbers.append(torch.rand(1).item())
    return engine.digest(), numbers


@pytest.mark.parametrize("number", range(LOOPS))
def test_bits_are_those_of_an_engine_that_never_slept(number, tmp_path, seed, monkeypatch):
    number += 1000 * seed
    print("number", number)
    chance = random.Random(number)
    how = {"compress": chance.choice([None, "top5%"]), "optimizer": chance.choice(["adamw", "sgd"])}
    if chance.random() < 0.5:
        how.update(activations="drives", activation_room="64MiB")
    less = {"slots": chance.choice([None, 1]), "gradient_bytes": chance.choice([None, 0]), "monkeypatch": monkeypatch}
    found = []
    for sleeps in ("awake", "sleeps"):
        torch.manual_seed(number)
        with engine_for(gpt2(dropout=0.1), tmp_path, sleeps, **less, **how) as engine:
            found.append(trained(engine, number, sleeps))
    assert found[0] == found[1]


def test_objects_hooks_and_buffers_stay(tmp_path, seed):
    model = Cnn()
    called = []
    with engine_for(model, tmp_path) as engine:
        model.stem.weight.register_post_accumulate_grad_hook(lambda p: called.append("gradient"))
        model.head.register_forward_hook(lambda *a: called.append("forward"))
        tensors = [*model.parameters(), *model.buffers()]
        x = torch.randn(4, 1, 6, 6)
        engine.backward(engine(x).square().mean())
        engine.step()
        statistics = [b.clone() for b in model.buffers()]
        engine.sleep()
        assert all(torch.equal(a, b) for a, b in zip(statistics, model.buffers()))
        assert [tuple(p.shape) for p in tensors] == [tuple(p.shape) for p in (*model.parameters(), *model.buffers())]
        engine.wake()
        engine.backward(engine(x).square().mean())
        assert called == ["forward", "gradient"] * 2
        assert all(a is b for a, b in zip(tensors, (*model.parameters(), *model.buffers())))


def test_a_view_from_before(tmp_path, seed):
    """Its memory is not the parameter's any more."""
    model = gpt2()
    with engine_for(model, tmp_path) as engine:
        with longshore.resident(model.lm_head):
            view = model.lm_head.weight.detach()
        engine.sleep()
        engine.wake()
        with pytest.raises(RuntimeError, match="a view of it"):
            view.sum()


def test_what_a_closed_engine_says(tmp_path, seed):
    """Also why it is closed, if it was woken or closed in its sleep."""
    for wakes in (True, False):
        engine = engine_for(nn.Linear(2, 2), tmp_path, f"{wakes}")
        engine.sleep()
        if wakes:
            engine.wake()
        engine.close()
        with pytest.raises(longshore.LongshoreError, match=r"the engine is closed; longshore.resume\(\)"):
            engine(torch.ones(2))


def test_a_scaled_loss(tmp_path, seed):
    digests = set()
    for sleeps in (False, True):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"{sleeps}") as engine:
            scaler = torch.amp.GradScaler("cpu")
            for batch in tokens(3):
                scaler.scale(engine(**batch).loss).backward()
                scaler.step(engine.optimizer)
                scaler.update()
                if sleeps:
                    engine.sleep()
                    engine.wake()
                engine.optimizer.zero_grad()
            digests.add((engine.digest(), scaler.get_scale()))
    assert len(digests) == 1


def test_memory_goes(tmp_path, seed):
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(16)])
    with engine_for(model, tmp_path, memory="1GiB") as engine:
        engine.backward(engine(torch.randn(8, 1024)).square().mean())
        engine.step()
        engine.optimizer.zero_grad()
        tier = core_of(engine).streams.tier
        assert tier.memory.nbytes >= 64 << 20
        held = engine.memory().parameters + engine.memory().state
        before = allocator.process_bytes()
        engine.sleep()
        gc.collect()
        assert tier.bytes is None and before - allocator.process_bytes() > 0.9 * held
        engine.wake()
        engine.train_batch([torch.randn(8, 1024)], lambda out, _: out.square().mean())


@pytest.mark.parametrize(
    "call",
    [
        lambda e, x: e(**x),
        lambda e, x: e.module(**x),
        lambda e, x: e.step(),
        lambda e, x: e.optimizer.step(),
        lambda e, x: e.backward(torch.ones(1, requires_grad=True)),
        lambda e, x: e.train_batch([x]),
        lambda e, x: e.grad_norm(),
        lambda e, x: e.settle(),
        lambda e, x: e.digest(),
        lambda e, x: e.snapshot("a"),
        lambda e, x: e.memory(),
        lambda e, x: e.step_number,
        lambda e, x: e.fetched_bytes,
        lambda e, x: e.state_dict(),
        lambda e, x: e.load_state_dict(dict(e.weights()), strict=False),
        lambda e, x: e.optimizer.state_dict(),
        lambda e, x: e.module.lm_head.weight.sum(),
        lambda e, x: e.reopen(core_of(e).state.path),
        lambda e, x: longshore.resident(e.module).__enter__(),
        lambda e, x: longshore.resident(e.module, write=True).__enter__(),
        lambda e, x: longshore.resident(e.module, write="temporary").__enter__(),
    ],
)
def test_what_is_refused_asleep(call, asleep):
    engine, digest = asleep
    with pytest.raises(longshore.LongshoreError) as said:
        call(engine, tokens(1)[0])
    assert str(said.value).endswith(ASLEEP)


@pytest.fixture(scope="module")
def asleep(tmp_path_factory):
    torch.manual_seed(1)
    with engine_for(gpt2(), tmp_path_factory.mktemp("asleep")) as engine:
        engine.train_batch(tokens(2))
        digest = engine.digest()
        engine.sleep()
        yield engine, digest
        engine.wake()
        assert engine.digest() == digest


def test_p_grad_asleep(tmp_path, seed):
    """That of a step to which the next pass adds stays; it cannot be read meanwhile."""
    model = gpt2()
    with engine_for(model, tmp_path) as engine:
        engine(**tokens(1)[0]).loss.backward()
        engine.optimizer.step()
        p = model.transformer.h[0].mlp.c_fc.weight
        before = p.grad.clone()
        engine.sleep()
        with pytest.raises(longshore.LongshoreError, match=re.escape(ASLEEP)):
            p.grad.sum()
        engine.wake()
        assert torch.equal(p.grad, before)
        engine.train_batch(tokens(1))
        assert p.grad is not None
        engine.sleep()  # the next pass begins anew
        assert p.grad is None
        engine.wake()


def test_when_it_may_not_sleep(tmp_path, seed):
    model, batch = gpt2(), tokens(1)[0]
    with engine_for(model, tmp_path) as engine:
        engine.backward(engine(**batch).loss)
        with pytest.raises(longshore.LongshoreError, match="gradients wait for their step"):
            engine.sleep()
        engine.drop_gradients()
        model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
        with pytest.raises(longshore.LongshoreError, match="gradients wait for their step"):
            engine.sleep()
        engine.optimizer.zero_grad()
        with longshore.resident(model.transformer.h[0]):
            with pytest.raises(longshore.LongshoreError, match=r"resident\(\) holds transformer.h.0: leave it first"):
                engine.sleep()
        with longshore.resident(model.transformer.h[0], write="temporary"):
            with pytest.raises(longshore.LongshoreError, match="leave it first"):
                engine.sleep()
        handle = model.transformer.h[1].register_forward_hook(lambda *a: engine.sleep())
        with pytest.raises(longshore.LongshoreError, match="a pass of the model is running"):
            engine(**batch)
        handle.remove()
        handle = model.lm_head.weight.register_hook(lambda g: engine.sleep())
        with pytest.raises(longshore.LongshoreError, match="is still running"):
            engine.backward(engine(**batch).loss)
        handle.remove()

        def asks(output, batch):
            engine.sleep()

        with pytest.raises(longshore.LongshoreError, match="a pass of the model is running"):
            engine.train_batch([batch, batch], asks)
        engine.sleep()
        engine.wake()
        engine.train_batch([batch])


def test_a_thread_in_mid_forward(tmp_path, seed):
    model, batch = gpt2(), tokens(1)[0]
    inside, go_on = threading.Event(), threading.Event()
    with engine_for(model, tmp_path) as engine:
        handle = model.transformer.h[1].register_forward_hook(
            lambda *a: (inside.set(), go_on.wait(HANGS_SECONDS)) and None
        )
        thread = threading.Thread(target=lambda: engine(**batch))
        thread.start()
        assert inside.wait(HANGS_SECONDS)
        with pytest.raises(longshore.LongshoreError, match="a pass of the model is running"):
            engine.sleep()
        go_on.set()
        thread.join()
        handle.remove()
        engine.sleep()
        engine.wake()


def test_a_graph_from_before(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        losses = [engine(**batch).loss for batch in tokens(2)]
        engine.sleep()
        with pytest.raises(longshore.LongshoreError, match=re.escape(ASLEEP)):
            losses[0].backward()
        engine.wake()
        with pytest.raises(longshore.LongshoreError, match="or the engine has slept.* compute the loss again"):
            losses[1].backward()
        engine.optimizer.zero_grad()
        engine.train_batch(tokens(1))


def test_closed_in_its_sleep(tmp_path, seed):
    engine = engine_for(gpt2(), tmp_path)
    engine.train_batch(tokens(1))
    digest = engine.digest()
    engine.sleep()
    assert "asleep" in repr(engine)
    with pytest.raises(longshore.BusyError):
        longshore.resume(tmp_path / "run")
    engine.close()
    for call in (engine.wake, engine.sleep, engine.weights):
        with pytest.raises(longshore.LongshoreError, match="the engine is closed"):
            call()
    engine.reopen(tmp_path / "run")
    assert engine.digest() == digest
    engine.train_batch(tokens(1))
    engine.close()


ENDS = """
import sys, torch, longshore
from models import gpt2, tokens
engine = longshore.wrap(gpt2(), run=sys.argv[1])
engine.train_batch(tokens(1))
engine.sleep()
"""


def test_a_process_that_ends_meanwhile(tmp_path, seed):
    here = os.path.dirname(__file__)
    subprocess.run([sys.executable, "-c", ENDS, str(tmp_path / "a")], cwd=here, check=True, timeout=HANGS_SECONDS)
    with longshore.resume(tmp_path / "a", gpt2()) as engine:
        assert engine.step_number == 1


def test_forked_meanwhile(asleep):
    engine, _ = asleep
    pid = os.fork()
    if not pid:
        code = 1
        try:
            engine.wake()
        except longshore.LongshoreError as said:
            code = 0 if "forked" in str(said) else 2
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_refused_memory_leaves_it_asleep(asleep, monkeypatch):
    engine, _ = asleep
    tier = core_of(engine).streams.tier

    def refuse():
        raise MemoryError("none left\nat all")

    monkeypatch.setattr(tier, "take", refuse)
    for _ in range(2):
        with pytest.raises(longshore.LongshoreError, match="engine.wake: none left; the engine sleeps on"):
            engine.wake()
    assert len(dict(engine.weights())) > 1


@pytest.mark.skipif(not PROGRAM, reason="the program is not installed")
def test_drives_that_go_and_come_back_meanwhile(tmp_path, seed, monkeypatch):
    far = FarSide(tmp_path, monkeypatch)
    with longshore.wrap(gpt2(), run=tmp_path / "run", drives=far.drives) as engine:
        engine.train_batch(tokens(1))
        digest, before = engine.digest(), dict(engine.weights())
        engine.sleep()
        far.kill()
        now = dict(engine.weights())
        assert far.losses and all(torch.equal(now[name], before[name]) for name in before)
        far.kill()
        engine.wake()
        assert engine.digest() == digest
        engine.train_batch(tokens(1))


# ---- weights


class Parts(nn.Module):
    """Tied weights under a later name, buffers of some dtypes, one that state_dict() leaves out, an empty parameter."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)) for _ in range(3)])
        self.layers[1].requires_grad_(False)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.table.weight
        self.none = nn.Parameter(torch.empty(0))
        self.register_buffer("ids", torch.arange(4))
        self.register_buffer("left_out", torch.ones(2), persistent=False)

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def step(engine):
    engine.train_batch([torch.arange(8)], lambda out, _: out.square().mean())


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("storage", ["fp32", "bf16"])
def test_weights_are_those_of_state_dict(storage, sleeps, tmp_path, seed):
    with engine_for(Parts(), tmp_path, storage=storage) as engine:
        step(engine)
        expected = {name: t.clone() for name, t in engine.state_dict().items()}
        engine.backward(engine(torch.arange(8)).square().mean())  # whose step is not made
        if sleeps:
            engine.drop_gradients()
            expected = {name: t.clone() for name, t in engine.state_dict().items()}
            engine.sleep()
        else:
            expected = {name: t.clone() for name, t in engine.state_dict().items()}
        found = dict(engine.weights())
        assert list(found) == [name for name in expected if name != "head.weight"]
        for name, t in found.items():
            assert type(t) is torch.Tensor and t.device.type == "cpu" and not t.requires_grad
            assert t.dtype == expected[name].dtype and torch.equal(t, expected[name]), name
        if sleeps:
            engine.wake()
        else:
            engine.step()
        step(engine)
        for name, t in found.items():  # which are kept
            assert torch.equal(t, expected[name]), name


@pytest.mark.parametrize("storage", ["fp32", "bf16"])
@pytest.mark.parametrize("name, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_weights_of_a_dtype_are_those_of_save_pretrained(name, dtype, storage, tmp_path, seed):
    from safetensors.torch import load_file

    with engine_for(Parts(), tmp_path, storage=storage) as engine:
        step(engine)
        engine.save_pretrained(tmp_path / "saved", dtype=name, max_shard_size="2KiB")
        files = sorted((tmp_path / "saved").glob("*.safetensors"))
        saved = {name: t for file in files for name, t in load_file(file).items()}
        assert len(files) > 1
        for asked in (name, dtype):
            found = dict(engine.weights(asked))
            assert found.keys() - saved.keys() <= {"none"}
            for key, t in found.items():
                if t.numel() and key in dict(engine.module.named_parameters()):
                    assert t.dtype == dtype and torch.equal(t, saved[key]), key
        assert found["ids"].dtype == torch.int64


def test_weights_are_of_one_step(tmp_path, seed):
    with engine_for(Parts(), tmp_path) as engine:
        step(engine)
        some = engine.weights()
        next(some)
        engine.sleep()
        next(some)
        engine.wake()
        next(some)
        step(engine)
        with pytest.raises(longshore.LongshoreError, match="step 1 is not the engine's last one any more"):
            next(some)
        some = engine.weights()
        next(some)
    with pytest.raises(longshore.LongshoreError, match="engine.weights: the engine is closed"):
        next(some)


@pytest.mark.parametrize("dtype", ["int8", torch.int32, 16, "float"])
def test_a_dtype_that_weights_cannot_have(dtype, asleep):
    with pytest.raises(ValueError, match="it must be fp32, bf16, fp16"):
        asleep[0].weights(dtype)


def test_values_that_fp16_has_not(tmp_path, seed):
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight[0, 0] = 1e6
    with engine_for(model, tmp_path) as engine:
        with pytest.raises(longshore.LongshoreError, match="weight holds values that fp16 has not"):
            dict(engine.weights("fp16"))


class SavesItself(Parts):
    def save_pretrained(self, directory):
        os.mkdir(directory)
        torch.save(self.state_dict(), os.path.join(directory, "all.pt"))


def adapted():
    import peft

    return peft.get_peft_model(gpt2(), peft.LoraConfig(r=4, task_type="CAUSAL_LM", fan_in_fan_out=True))


@pytest.mark.parametrize("make", [gpt2, Cnn, adapted, SavesItself])
def test_saved_asleep(make, tmp_path, seed):
    """The files are those of an engine that is awake."""
    pytest.importorskip("peft")
    with engine_for(make(), tmp_path) as engine:
        engine.save_pretrained(tmp_path / "awake")
        engine.sleep()
        engine.save_pretrained(tmp_path / "asleep")
        engine.wake()
    awake, asleep = (
        {path.relative_to(tmp_path / place): path.read_bytes() for path in sorted((tmp_path / place).rglob("*.*"))}
        for place in ("awake", "asleep")
    )
    assert awake == asleep and any(path.suffix in (".safetensors", ".pt") for path in awake)


def test_weights_of_adapters(tmp_path, seed):
    pytest.importorskip("peft")
    with engine_for(adapted(), tmp_path) as engine:
        engine.train_batch(tokens(1))
        engine.sleep()
        found = dict(engine.weights())
        engine.wake()
        expected = engine.state_dict()
        assert found.keys() == expected.keys() - {"base_model.model.lm_head.weight"}
        assert all(torch.equal(t, expected[name]) for name, t in found.items())


def test_memory_that_is_taken_in_inference_mode(tmp_path, seed):
    """By wrap(), wake(), reopen() and resume(), and of buffers: training goes on in it."""
    digests = []
    for name, mode in (("plain", contextlib.nullcontext), ("inference", torch.inference_mode)):
        torch.manual_seed(seed)
        models, x = [Cnn() for _ in range(2)], torch.randn(4, 1, 6, 6)

        def step(engine, x=x):
            engine.train()
            engine.backward(engine(x).square().mean())
            engine.step()

        with mode():
            engine = engine_for(models[0], tmp_path, name)
        step(engine)
        with mode():
            engine.sleep()
            engine.wake()
            engine.eval()(x)
        step(engine)
        with mode():
            engine.reopen(tmp_path / name)
        step(engine)
        engine.close()
        with mode():
            engine = longshore.resume(tmp_path / name, models[1])
        step(engine)
        digests.append(engine.digest())
        assert not any(t.is_inference() for t in (*models[1].buffers(), *engine.state_dict().values()))
        engine.close()
    assert digests[0] == digests[1]
