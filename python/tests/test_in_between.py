"""What is computed, kept, broken off or dropped between the calls of a step: the numbers of PyTorch, or an exception
that says why not."""

import copy
import gc
import itertools
import threading
import weakref

import pytest
import torch
from torch import nn

import longshore
from longshore.drives.state import State
from longshore.run import checkpoint
from longshore.step import commit_blob
from models import check_gradients, gpt2, tokens
from test_loop import engine_for


class Layers(nn.Module):
    """A few linear layers; what is done with them is the subclass's."""

    def __init__(self, n=3, width=16):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(n)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def compared(model, tmp_path, monkeypatch, loss_of, slots=1, name="run"):
    """The gradients, against PyTorch's."""
    plain = copy.deepcopy(model)
    loss_of(plain).backward()
    with engine_for(model, tmp_path, name, slots=slots, monkeypatch=monkeypatch) as engine:
        engine.backward(loss_of(engine.module))
        check_gradients(model, plain)


def test_what_is_kept_is_a_copy(tmp_path, seed):
    """Of parameters that stay in memory, where updates write."""
    model = gpt2(layers=2)
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    batch = tokens(1)[0]
    with engine_for(model, tmp_path, clip=0) as engine:
        loss = engine(**batch).loss
        kept = [
            model.state_dict(),
            {n: p.detach() for n, p in model.named_parameters()},
            {n: p.data for n, p in model.named_parameters()},
        ]
        engine.backward(loss)
        assert engine._core.gradients.has_sent()
        for _ in range(2):
            for values in kept:
                assert all(torch.equal(value * 1, plain[name]) for name, value in values.items())
            if engine.step_number == 0:
                engine.step()
        assert not torch.equal(model.lm_head.weight.detach() * 1, plain["lm_head.weight"])


@pytest.mark.parametrize("slots", [1, 3])
def test_losses_that_read_parameters(slots, tmp_path, seed, monkeypatch):
    ids = tokens(1)[0]["input_ids"]

    def loss_of(model):
        hidden = model.transformer(ids).last_hidden_state
        loss = (hidden @ model.lm_head.weight.T).logsumexp(-1).mean()
        return loss + sum(p.square().sum() for p in model.parameters())

    compared(gpt2(), tmp_path, monkeypatch, loss_of, slots)


class Flat(Layers):
    def forward(self, x):
        every = torch.cat([layer.weight.view(-1)[:5] for layer in self.layers])
        again = self.layers[0].weight.t()
        first = self.layers[0](x)
        after = self.layers[0].weight.t()
        return super().forward(x).sum() * every.sum() + ((again + after) @ self.layers[2](first).t()).square().mean()


class Prompts(Layers):
    class Prompt(nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt = nn.Parameter(torch.randn(1, 16))

        def forward(self, x):
            return {"of": (self.prompt.expand(len(x), -1),)}

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([self.Prompt() for _ in range(3)])

    def forward(self, x):
        found = [layer(x)["of"][0] for layer in self.layers]
        return sum(x * f for f in found)


class Nested(Layers):
    class Outer(nn.Linear):
        def forward(self, x, inner):
            w = self.weight.t()
            return torch.tanh(x @ w) + inner(x) @ w

    def __init__(self):
        super().__init__()
        self.layers[0] = self.Outer(16, 16)

    def forward(self, x):
        return self.layers[2](self.layers[0](x, self.layers[1]))


class Given(Layers):
    """Views of a layer's weights are arguments of another one, while its own forward goes on."""

    class Outer(nn.Linear):
        def forward(self, x, inner):
            return torch.tanh(super().forward(x)) + inner(x, self.weight.t()[:16], b=self.bias)

    class Inner(nn.Linear):
        def forward(self, x, w, b):
            return super().forward(x) @ w + b

    def __init__(self):
        super().__init__()
        self.layers[0], self.layers[1] = self.Outer(16, 16), self.Inner(16, 16)

    def forward(self, x):
        return self.layers[2](self.layers[0](x, self.layers[1]))


@pytest.mark.parametrize("kind", [Flat, Prompts, Nested, Given])
def test_views_outlive_their_slot(kind, tmp_path, seed, monkeypatch):
    model, x = kind(), torch.randn(4, 16)
    with torch.no_grad():
        expected = model(x)
    compared(copy.deepcopy(model), tmp_path, monkeypatch, lambda m: m(x).square().mean())
    with engine_for(model, tmp_path, "again", slots=1, monkeypatch=monkeypatch) as engine, torch.no_grad():
        assert torch.equal(engine(x), expected)


class Handing(Layers):
    """The first layer hands a view of its weights on, in a way that nobody sees."""

    class First(nn.Linear):
        def forward(self, x):
            self.handed = self.weight.detach()[:4] if self.detaches else self.weight[:4]
            return super().forward(x)

    def __init__(self, detaches):
        super().__init__()
        self.layers[0] = self.First(16, 16)
        self.layers[0].detaches = detaches

    def forward(self, x):
        x = super().forward(x)
        return x @ self.layers[0].handed.t()


@pytest.mark.skipif(
    not hasattr(torch._C, "_set_storage_data_ptr_access_error_msg"), reason="of later versions of PyTorch"
)
@pytest.mark.parametrize("storage", ["fp32", "bf16"])
@pytest.mark.parametrize("detaches", [False, True])
def test_views_that_nobody_sees(detaches, storage, tmp_path, seed, monkeypatch):
    """They have their own numbers, or raise; and what was not used again does no harm."""
    model, x = Handing(detaches), torch.randn(4, 16)
    plain = copy.deepcopy(model)
    with torch.no_grad():
        expected = plain(x)
    for slots in (1, 2, 3):
        with engine_for(
            copy.deepcopy(model), tmp_path, f"run{slots}", slots=slots, monkeypatch=monkeypatch, storage=storage
        ) as engine:
            for grad in (False, True):
                with torch.set_grad_enabled(grad):
                    if slots == 3:
                        loss = engine(x).square().mean()
                        assert storage == "bf16" or torch.equal(loss, expected.square().mean())
                        continue
                    with pytest.raises(RuntimeError, match="layers.0.weight: a view of it"):
                        engine(x)
            kept = engine.module.layers[2].bias
            with longshore.resident(kept):
                kept = kept[:2]
            if slots == 3:
                engine.backward(loss)
                engine.step()
                with pytest.raises(RuntimeError, match="layers.2.bias: a view of it.* has been updated"):
                    kept * 1
                engine(x)


def test_gradients_of_gradients(tmp_path, seed, monkeypatch):
    x = torch.randn(4, 16, requires_grad=True)

    def loss_of(model):
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return (slope.norm() - 1).square()

    compared(Layers(), tmp_path, monkeypatch, loss_of)


@pytest.mark.parametrize("slots", [1, 3])
def test_transforms(slots, tmp_path, seed, monkeypatch):
    """Of those that take hooks of what is saved."""
    model, x = Layers(), torch.randn(4, 16)
    expected = (
        torch.func.vmap(model)(x),
        torch.func.jvp(model, (x,), (x,))[1],
        torch.autograd.functional.jacobian(model, x),
    )
    with engine_for(model, tmp_path, slots=slots, monkeypatch=monkeypatch) as engine:
        found = (
            torch.func.vmap(model)(x),
            torch.func.jvp(model, (x,), (x,))[1],
            torch.autograd.functional.jacobian(model, x),
        )
        assert all(torch.equal(a, b) for a, b in zip(found, expected))
        assert torch.equal(engine(x), expected[0])


@pytest.mark.parametrize("kind", [lambda p: p * 2, lambda p: nn.Parameter(p * 2)], ids=["tensor", "parameter"])
def test_other_values_by_functional_call(kind, tmp_path, seed, monkeypatch):
    """As averages of weights are tried, or models of weights that are learned: for one call, of the model or of a
    part."""
    model, x = Layers(), torch.randn(4, 16)
    plain = copy.deepcopy(model)

    def values(model):
        out = {name: kind(p.detach()) for name, p in model.named_parameters()}
        out["layers.1.weight"] = out["layers.1.weight"].detach().requires_grad_()
        return out

    def found(model):
        others = values(model)
        out = torch.func.functional_call(model, others, (x,))
        some = torch.func.functional_call(model, {"layers.1.weight": others["layers.1.weight"]}, (x,))
        (slope,) = torch.autograd.grad(out.square().mean(), others["layers.1.weight"])
        return out, some, slope

    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        engine.backward(engine(x).square().mean())
        for one, other in zip(found(engine.module), found(plain)):
            assert torch.allclose(one, other)
        engine.backward(engine(x).square().mean())
        assert engine.step().step == 1


def test_gradients_that_are_wanted_within_no_grad(tmp_path, seed, monkeypatch):
    class Slope(nn.Linear):
        def forward(self, x):
            with torch.enable_grad():
                return super().forward(x)

    model, x = Layers(), torch.randn(4, 16, requires_grad=True)
    model.layers = nn.ModuleList([Slope(16, 16) for _ in range(3)])

    def slope(model):
        with torch.no_grad():
            parts = [layer(x) for layer in model.layers]
        return torch.autograd.grad(parts[0].square().sum(), x)[0]

    expected = slope(model)
    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        assert torch.equal(slope(engine.module), expected)


def test_a_forward_within_backward(tmp_path, seed, monkeypatch):
    batch, other = tokens(2)

    def loss_of(model):
        def evaluate(*args):
            with torch.no_grad():
                model(**other)

        handle = model.transformer.h[1].register_full_backward_hook(evaluate)
        loss = model(**batch).loss
        loss.register_hook(lambda g: handle and None)
        return loss

    compared(gpt2(), tmp_path, monkeypatch, loss_of)


def test_a_graph_of_before_the_step(tmp_path, seed, monkeypatch):
    """As in PyTorch, where the change in place is seen."""
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}", slots=1, monkeypatch=monkeypatch) as engine:
            old = engine(**tokens(1)[0]).loss if n else None
            for i, batch in enumerate(tokens(2)):
                if n and i:
                    with pytest.raises(longshore.LongshoreError, match="has been updated since the forward pass"):
                        engine.backward(old)
                engine.backward(engine(**batch).loss)
                engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_values_right_after_a_step(tmp_path, seed, monkeypatch):
    """They are the step's, although its updates may not have ended."""
    with engine_for(gpt2(layers=6), tmp_path, slots=1, monkeypatch=monkeypatch, clip=1e-3) as engine:
        for batch in tokens(4):
            engine.backward(engine(**batch).loss)
            engine.step()
            at_once = {n: p.detach() * 1 for n, p in reversed(list(engine.module.named_parameters()))}
            engine.settle()
            for name, p in engine.module.named_parameters():
                assert torch.equal(p.detach() * 1, at_once[name]), name


def test_what_resident_holds_stays(tmp_path, seed, monkeypatch):
    model = gpt2()
    plain, batch = copy.deepcopy(model), tokens(1)[0]
    first, second = model.transformer.h[0].ln_1.weight, model.transformer.h[1].ln_1.weight
    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        with longshore.resident(first):
            view = first.data
            with pytest.raises(
                longshore.LongshoreError, match="transformer.h.1: .*transformer.h.0, which longshore.resident.* holds"
            ):
                engine(**batch)
            with pytest.raises(longshore.LongshoreError, match="transformer.h.1: .*transformer.h.0"):
                with longshore.resident(second):
                    pass
            assert torch.equal(view, plain.transformer.h[0].ln_1.weight.data)
        with torch.no_grad():
            assert torch.equal(engine(**batch).loss, plain(**batch).loss)


@pytest.mark.parametrize("slots", [1, 3])
def test_what_resident_changed_before_an_exception_is_forgotten(slots, tmp_path, seed, monkeypatch):
    model = gpt2()
    plain, batch = copy.deepcopy(model), tokens(1)[0]
    p = model.transformer.h[0].ln_1.weight
    with engine_for(model, tmp_path, slots=slots, monkeypatch=monkeypatch) as engine:
        with pytest.raises(ZeroDivisionError):
            with longshore.resident(p, write=True), torch.no_grad():
                p.add_(1)
                1 / 0
        with torch.no_grad():
            assert torch.equal(engine(**batch).loss, plain(**batch).loss)
            assert torch.equal(p * 1, plain.transformer.h[0].ln_1.weight)
        assert engine.step_number == 0


def test_two_threads_at_a_time(tmp_path, seed, monkeypatch):
    """Which would take each other the memory that they compute with."""
    model = gpt2()
    plain, batch = copy.deepcopy(model), tokens(1)[0]
    inside, go_on, out = threading.Event(), threading.Event(), []

    def wait(*args):
        inside.set()
        assert go_on.wait(20)

    def work():
        with torch.no_grad():
            out.append(engine(**batch).loss)

    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        handle = model.transformer.h[0].ln_1.register_forward_pre_hook(wait)
        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(20)
        handle.remove()
        with pytest.raises(longshore.LongshoreError, match="another thread"), torch.no_grad():
            engine(**batch)
        go_on.set()
        thread.join()
        with torch.no_grad():
            assert torch.equal(out[0], plain(**batch).loss) and torch.equal(engine(**batch).loss, out[0])


class Peculiar:
    """State that a step cannot keep, at first."""

    value = object()

    def state_dict(self):
        return {"value": self.value}


def test_a_state_that_cannot_be_kept(tmp_path, seed):
    """The step is not made, and can be."""
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}") as engine:
            for i, batch in enumerate(tokens(3)):
                if n and i == 1:
                    thing = engine.follow("peculiar", Peculiar())
                    engine.backward(engine(**batch).loss)
                    with pytest.raises(longshore.LongshoreError, match="peculiar: its state holds a object"):
                        engine.step()
                    assert engine.step_number == 1
                    thing.value = 1
                engine.backward(engine(**batch).loss)
                engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_a_state_that_cannot_be_put_back(tmp_path, seed, monkeypatch):
    """Nothing reads parameters of a run that is closed again."""

    def load_state_dict(state):
        raise ValueError("of another kind")

    with engine_for(gpt2(), tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        thing = engine.follow("thing", Peculiar())
        thing.value = 1
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        checkpoint.save(engine, tmp_path / "saved")
        thing.load_state_dict = load_state_dict
        with pytest.raises(ValueError, match="of another kind"):
            checkpoint.load(engine, tmp_path / "saved")
        p = engine.module.transformer.h[0].ln_1.weight
        with pytest.raises(longshore.LongshoreError, match="the engine is closed"):
            p.detach()
    other = gpt2()
    with monkeypatch.context() as broken:
        broken.setattr(commit_blob, "restore", lambda *args: load_state_dict(None))
        with pytest.raises(ValueError, match="of another kind"):
            longshore.resume(tmp_path / "run", other)
    with pytest.raises(longshore.LongshoreError, match="the engine is closed"):
        other.transformer.h[0].ln_1.weight.detach()
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.step_number == 1


def test_gradients_that_cannot_be_put_aside(tmp_path, seed, monkeypatch):
    """The step is dropped as a whole."""
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}", gradient_bytes=0, monkeypatch=monkeypatch) as engine:
            for i, batch in enumerate(tokens(2)):
                if n and i:
                    with monkeypatch.context() as broken:
                        calls, complete = itertools.count(), engine._core.gradients.step.complete

                        def fails(*args):
                            leaves = complete(*args)
                            assert leaves
                            if next(calls) == 2:
                                raise longshore.LongshoreError("no room")
                            return leaves

                        broken.setattr(engine._core.gradients.step, "complete", fails)
                        with pytest.raises(longshore.LongshoreError, match="no room"):
                            engine.backward(engine(**batch).loss)
                engine.backward(engine(**batch).loss)
                engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_engines_that_are_dropped(tmp_path, seed):
    """They are closed, and go with their memory: at once, where another one is made of their run. Whoever has the model
    has its engine."""
    engine = engine_for(gpt2(layers=2), tmp_path)
    loss = engine(**tokens(1)[0]).loss
    engine.backward(loss)
    engine.step()
    path, found, model = engine._core.state.path, weakref.ref(engine), engine.module
    del engine, loss
    with pytest.raises(longshore.BusyError, match="an engine of this process works on this run; close.* its model"):
        longshore.resume(path)
    with pytest.raises(longshore.BusyError, match="an engine of this process works on this run"):
        longshore.verify(path)
    del model
    longshore.verify(path)
    engine = longshore.resume(path)
    assert found() is None and engine.step_number == 1
    found = weakref.ref(engine)
    engine.close()
    del engine
    gc.collect()
    assert found() is None


def test_engines_that_are_dropped_with_a_step_begun(tmp_path, seed):
    """In whatever order the collector comes to what they are made of."""
    for n in range(3):
        engine = engine_for(
            gpt2(layers=2),
            tmp_path,
            f"run{n}",
            storage="bf16" if n else None,
            activations="drives" if n > 1 else "memory",
            activation_room="64MiB",
        )
        engine.accumulate = 2
        for batch in tokens(3):
            engine.backward(engine(**batch).loss)
            if engine.step_number == 0:
                engine.step()
        path = engine._core.state.path
        del engine
        with longshore.resume(path) as engine:
            assert engine.step_number == 1


def test_a_run_that_cannot_be_made(tmp_path, seed, monkeypatch):
    """The model keeps what it has."""
    model = gpt2()
    plain = copy.deepcopy(model)

    def seal(self):
        raise longshore.LongshoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(State, "seal", seal)
        with pytest.raises(longshore.LongshoreError, match="the disk is full"):
            engine_for(model, tmp_path)
    for (name, p), q in zip(model.named_parameters(), plain.parameters()):
        assert torch.equal(p, q), name
    (tmp_path / "run-drive").rmdir()
    with engine_for(model, tmp_path) as engine, torch.no_grad():
        assert torch.equal(engine(**tokens(1)[0]).loss, plain(**tokens(1)[0]).loss)


def test_another_state_of_the_same_step(tmp_path, seed):
    """What lies widened in memory is not taken for it."""
    a, b = tokens(2)
    with engine_for(gpt2(), tmp_path, storage="bf16") as engine:
        checkpoint.save(engine, tmp_path / "before")
        engine.backward(engine(**a).loss)
        engine.step()
        checkpoint.save(engine, tmp_path / "after")
        with torch.no_grad():
            expected = engine(**a).loss
        checkpoint.load(engine, tmp_path / "before")
        engine.backward(engine(**b).loss)
        engine.step()
        with torch.no_grad():
            assert not torch.equal(engine(**a).loss, expected)
        checkpoint.load(engine, tmp_path / "after")
        with torch.no_grad():
            assert torch.equal(engine(**a).loss, expected)


def test_two_engines(tmp_path, seed, monkeypatch):
    """One differentiates through the other, in one slot each."""
    models, x = [Layers(), Layers()], torch.randn(4, 16)
    plain = copy.deepcopy(models)
    plain[1](plain[0](x)).square().mean().backward()
    engines = [engine_for(m, tmp_path, f"run{n}", slots=1, monkeypatch=monkeypatch) for n, m in enumerate(models)]
    loss = engines[1](engines[0](x)).square().mean()
    with torch.no_grad():
        assert torch.equal(loss, engines[1](engines[0](x)).square().mean())
    engines[0].backward(loss)
    for engine, model in zip(engines, plain):
        check_gradients(engine.module, model)
        assert engine.step().step == 1
        engine.close()
