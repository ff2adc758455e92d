"""Random numbers of forward passes: those of the run, step and pass, those of an earlier pass that began alike, and
where they leave the script's own."""

import copy
import random

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import longshore
from longshore.model import random_numbers
from test_loop import engine_for

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class Noisy(nn.Module):
    """Draws in each of its layers, and keeps what it has drawn."""

    def __init__(self, everywhere=True, keeps=True):
        super().__init__()
        self.layers, self.everywhere = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)]), everywhere
        self.drawn, self.keeps = None, keeps

    def forward(self, x):
        drawn = []
        for layer in self.layers:
            mask = F.dropout(torch.ones(16, 8), 0.5, self.training)
            drawn += [mask.flatten(), torch.randn(4) if self.training else torch.zeros(4)]
            if self.everywhere and self.training:
                drawn.append(torch.tensor([random.random(), numpy.random.random_sample()]))
            x = layer(x) * mask[: x.shape[0]] + x
        if self.keeps:
            self.drawn = torch.cat([t.detach().double() for t in drawn])
        return x


class Still(Noisy):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + x
        return x


@pytest.fixture(params=["plenty", "least"])
def make(request, tmp_path, monkeypatch):
    """A function that makes an engine with plenty of memory, or with the least."""
    engines = []

    def engine(model, name=None):
        little = {"slots": 1, "gradient_bytes": 0, "monkeypatch": monkeypatch} if request.param == "least" else {}
        engines.append(engine_for(model.train(), tmp_path, name=name or f"run{len(engines)}", clip=0.0, **little))
        return engines[-1]

    engine.little = request.param == "least"
    yield engine
    for engine in engines:
        engine.close()


def drawn(call, gradients=True):
    """What a pass draws."""
    with torch.set_grad_enabled(gradients):
        call(X)
    return getattr(call, "module", call).drawn


def states():
    return random_numbers.keys(random_numbers.now())


# ---- passes that are made again

WAYS = [
    "no gradients, then gradients",
    "gradients, then none",
    "twice",
    "five times",
    "manual_seed",
    "fork_rng",
    "a copy",
    "two engines",
    "evaluation between",
]


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_that_is_made_again_draws_the_same(way, make, seed):
    engine, other = make(Noisy(False)), make(Noisy(False))
    copied = copy.deepcopy(engine.module)
    for step in range(3):
        noise = torch.randn(3)  # the script's own numbers
        state = torch.get_rng_state()
        if way == "manual_seed":
            torch.manual_seed(step)
            state = torch.get_rng_state()
        if way == "fork_rng":
            with torch.random.fork_rng():
                first = drawn(engine)
        else:
            first = drawn(engine, gradients=not way.startswith("no gradients"))
            after = torch.get_rng_state()
            assert not torch.equal(state, after)  # the pass moved it on
            if way == "evaluation between":
                drawn(engine.eval())
                engine.train()
            torch.set_rng_state(state)
        again = {"a copy": copied, "two engines": other}.get(way, engine)
        for _ in range(4 if way == "five times" else 1):
            torch.set_rng_state(state)
            assert torch.equal(drawn(again, gradients=way not in ("gradients, then none", "a copy")), first)
        if way != "fork_rng":
            assert torch.equal(torch.get_rng_state(), after)
        assert not torch.equal(drawn(engine), first)
        assert not torch.equal(noise, torch.randn(3))
        engine(X).sum().backward()
        engine.step()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_around_an_engine(reentrant, make, seed):
    """Backward computes the same masks again, in loops and in micro-batches together."""
    engine, seen = make(Noisy(False, keeps=False)), []
    engine.module.layers[2].register_forward_hook(lambda module, args, out: seen.append(tuple(args[0][0].tolist())))
    if not reentrant and make.little:
        pytest.skip("the layers of one checkpoint do not fit together, which is refused by name")

    def loss_of(_):
        return checkpoint(engine, X.clone().requires_grad_(), use_reentrant=reentrant).square().mean()

    for count in (1, 3, 3):
        seen.clear()
        if count == 1:
            engine.backward(loss_of(0))
        else:
            engine.backward_together(range(count), loss_of)
        engine.step()
        assert len(seen) == 2 * count and len(set(seen)) == count  # each twice: what dropout left of the layers before


def test_pythons_and_numpys_numbers_too(make, seed):
    engine = make(Noisy())
    for gradients in (True, False):
        before = random_numbers.now()
        first = drawn(engine, gradients)
        random_numbers.put(before)
        assert torch.equal(drawn(engine), first)
        assert not torch.equal(drawn(engine), first)
    before = torch.get_rng_state()
    first = drawn(engine)
    torch.set_rng_state(before)
    assert not torch.equal(drawn(engine), first)  # nobody has put back those two


def test_gradients_of_a_cache_are_those_of_pytorch(make, seed):
    """GradCache: representations without gradients, their gradients, and then the passes again with gradients."""
    model = Noisy(False).train()
    plain, engine = copy.deepcopy(model), make(model)
    masks, told = [], []
    engine.module.register_forward_hook(lambda module, args, out: masks.append(module.drawn))
    for call in (engine, plain):
        kept = []
        for n in range(3):
            kept.append(torch.get_rng_state() if call is engine else None)
            with torch.no_grad():
                if call is plain:
                    _with(plain, masks[n])
                out = call(X + n)
        loss = 0
        for n in range(3):
            if call is engine:
                torch.set_rng_state(kept[n])
            else:
                _with(plain, masks[3 + n])
            out = call(X + n)
            loss = loss + out.square().mean()
        loss.backward()
        told.append([p.grad.clone() for p in call.parameters()])
    assert all(torch.equal(masks[n], masks[3 + n]) for n in range(3))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*told))


def _with(module, mask):
    """Makes a plain module draw what a pass has drawn: it looks its masks up."""
    parts = iter(mask.float().view(3, -1)[:, :128].reshape(3, 16, 8))
    module.forward = lambda x: _masked(module, x, parts)


def _masked(module, x, parts):
    for layer, mask in zip(module.layers, parts):
        x = layer(x) * mask[: x.shape[0]] + x
    return x


# ---- what a run promises


def _numbers_of(first, step, number):
    """What a pass draws of this run's seed, step and pass."""
    with torch.random.fork_rng():
        plain = Noisy(False).train()
        torch.manual_seed((first * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + number) % 2**63)
        return drawn(plain)


def test_numbers_follow_from_the_seed_the_step_and_the_pass(make, seed):
    """Whatever the script draws, and passes without gradients between."""
    first = torch.initial_seed()
    engine = make(Noisy(False))
    for step in range(3):
        for number in range(2):
            torch.randn(step)
            with torch.no_grad():
                one, other = drawn(engine, False), drawn(engine, False)
            assert not torch.equal(one, other)
            loss = engine(X).square().mean()
            assert torch.equal(engine.module.drawn, _numbers_of(first, step, number))
            loss.backward()
        engine.step()


def test_a_pass_that_draws_nothing_moves_nothing(make, seed):
    for model, moves in ((Still(), False), (Noisy(), True)):
        engine = make(model)
        for gradients in (True, False):
            before = states()
            with torch.set_grad_enabled(gradients):
                engine(X)
            assert [a != b for a, b in zip(before, states())][:3] == [moves] * 3
        before = states()
        engine.eval()(X)
        assert states() == before


@pytest.mark.parametrize("kind", ["loop", "together"])
def test_a_resumed_run_goes_on_with_the_same_numbers(kind, tmp_path, seed):
    """Also of what the script draws, and of two engines side by side."""

    def steps(engines, count):
        for _ in range(count):
            for engine in engines:
                if kind == "loop":
                    for _ in range(2):
                        engine.backward((engine(X + torch.randn(4, 8))).square().mean())
                else:
                    engine.backward_together(range(2), lambda _, e=engine: e(X + torch.randn(4, 8)).square().mean())
                engine.step()
                told.append(engine.module.drawn)

    found = []
    for name, counts in (("whole", [4]), ("parts", [1, 3])):
        told = []
        torch.manual_seed(seed)
        engines = [engine_for(Noisy().train(), tmp_path, name=f"{name}{n}") for n in range(2)]
        steps(engines, counts[0])
        for count in counts[1:]:
            for engine in engines:
                engine.close()
            torch.manual_seed(5)
            torch.randn(100)
            engines = [longshore.resume(tmp_path / f"{name}{n}", Noisy().train()) for n in range(2)]
            steps(engines, count)
        found.append([engine.digest() for engine in engines])
        for engine in engines:
            engine.close()
    assert found[0] == found[1] and len({tuple(d.tolist()) for d in told}) == 8


@pytest.mark.parametrize("again", ["nothing", "gradients twice", "cached"])
def test_micro_batches_together_draw_what_the_loop_draws(again, tmp_path, seed):
    told = []
    for together in (False, True):
        torch.manual_seed(seed)
        with engine_for(Noisy(keeps=False).train(), tmp_path, name=f"run{together}") as engine:
            engine.accumulate = 3

            def loss_of(n):
                before = random_numbers.now()
                if again == "cached":
                    with torch.no_grad():
                        first = engine(X + n)
                elif again == "gradients twice":
                    first = engine(X + n).detach()
                else:
                    return engine(X + n).square().mean()
                random_numbers.put(before)
                out = engine(X + n)
                assert torch.equal(first, out)
                return out.square().mean()

            for _ in range(3):
                if together:
                    engine.backward_together(range(3), loss_of)
                else:
                    for n in range(3):
                        engine.backward(loss_of(n))
                engine.step()
            told.append((engine.digest() if again == "nothing" else None, torch.rand(()).item()))
    assert told[0] == told[1] or again == "gradients twice"  # the script sets its own states there


# ---- several engines


def test_engines_that_are_open_at_once_draw_different_numbers(tmp_path, seed):
    found = []
    for again in range(2):
        torch.manual_seed(seed)
        model = Noisy().train()
        engines = [engine_for(copy.deepcopy(model), tmp_path, name=f"run{again}{n}") for n in range(3)]
        found.append([drawn(engine) for engine in engines for _ in range(2)])
        for engine in engines:
            engine.close()
    assert all(torch.equal(a, b) for a, b in zip(*found))  # the script started again
    assert len({tuple(d.tolist()) for d in found[0]}) == 6
    torch.manual_seed(seed)
    with engine_for(Noisy().train(), tmp_path, name="alone") as engine:
        assert torch.equal(drawn(engine), found[0][0])  # the first draws what it draws alone


def test_known_states_take_little_memory(make, seed, monkeypatch):
    monkeypatch.setattr(random_numbers, "MOST_KNOWN", 5)
    engine = make(Noisy(False))
    state = torch.get_rng_state()
    first = drawn(engine)
    for n in range(12):
        torch.randn(n)
        drawn(engine)
        torch.set_rng_state(state)
        assert torch.equal(drawn(engine), first)  # what is used stays known
    assert max(len(known) for known in random_numbers._known.values()) == 5


# ---- and otherwise


def test_a_pass_that_fails_leaves_the_scripts_numbers(make, seed):
    engine = make(Noisy())

    def fail(*_):
        raise KeyboardInterrupt

    handle = engine.module.layers[2].register_forward_hook(fail)
    before = states()
    with pytest.raises(KeyboardInterrupt):
        engine(X)
    assert states() == before
    handle.remove()
    first = drawn(engine)
    torch.manual_seed(seed)
    assert not torch.equal(drawn(engine), first)


@pytest.mark.parametrize("kind", ["loop", "together"])
def test_a_step_that_is_run_again_draws_the_same(kind, make, seed):
    found = []
    for failures in (0, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        engine, told = make(Noisy(keeps=False), name=f"again{failures}"), []
        for _ in range(3):
            noise = torch.randn(3)
            for last in [False] * failures + [True]:
                if kind == "loop":
                    engine.backward(engine(X).square().mean())
                    engine.backward(engine(X).square().mean())
                else:
                    engine.backward_together(range(2), lambda _, e=engine: e(X).square().mean())
                if not last:
                    engine.drop_gradients()
            engine.step()
            told += [noise.tolist(), states()]
        found.append([*told, engine.digest()])
        engine.close()
    assert found[0] == found[1]


def test_deepspeeds_engine(tmp_path, seed):
    from longshore import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "longshore": {"run": str(tmp_path / "run"), "memory": "64MiB"},
    }
    engine, *_ = deepspeed.initialize(model=Noisy(False).train(), config=config)
    for _ in range(2):
        state = torch.get_rng_state()
        first = drawn(engine, gradients=False)
        torch.set_rng_state(state)
        assert torch.equal(drawn(engine), first)
        assert not torch.equal(torch.get_rng_state(), state)
        engine.backward(engine(X).square().mean())
        assert not torch.equal(engine.module.drawn, first)
        engine.step()
    engine.destroy() if hasattr(engine, "destroy") else engine.engine.close()
