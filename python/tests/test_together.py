"""Micro-batches that are computed together: what one changes of the model beside tensors, the others never see."""

import copy
import logging
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import longshore
from longshore.step.module_changes import ModuleChanges
from test_loop import engine_for


class Net(nn.Module):
    """Layers, and all kinds of state that a script may keep in a module."""

    factor = 1.0

    def __init__(self, dropout=0.0):
        super().__init__()
        self.stem, self.layers = nn.Linear(8, 8), nn.ModuleList([Block(dropout) for _ in range(3)])
        self.heads = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])
        self.task, self.calls, self.scale, self.more = 0, 0, torch.tensor(1.0), 0.0
        self.said = {"scales": [1.0], "task": 0}
        self.config = types.SimpleNamespace(scale=1.0, deep={"scale": 1.0})

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        scale = self.factor * self.scale * self.config.scale * self.config.deep["scale"] * self.said["scales"][-1]
        return self.heads[self.task](x) * scale + self.more


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.inner, self.adapter, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(dropout)
        self.adapted, self.seen = True, 0

    def forward(self, x):
        self.seen += 1
        y = self.dropout(self.inner(x).tanh())
        return y + self.adapter(x) if self.adapted else y


def mean(model, x):
    return model(x).square().mean()


def task(model, x, i):
    model.task = i % 2
    return mean(model, x)


def scale_that_is_a_tensor(model, x, i):
    model.scale = torch.tensor(1.0 + i)
    return mean(model, x)


def class_of_the_model(model, x, i):
    Net.factor = 1.0 + i
    return mean(model, x)


def entry_of_a_dict(model, x, i):
    model.said["scales"] = [1.0 + i]
    return mean(model, x)


def list_in_place(model, x, i):
    model.said["scales"].append(1.0 + i)
    try:
        return mean(model, x)
    finally:
        model.said["scales"].pop()


def plain_object(model, x, i):
    model.config.scale = 1.0 + i
    return mean(model, x)


def within_a_plain_object(model, x, i):
    model.config.deep["scale"] = 1.0 + i
    return mean(model, x)


def reference_without_adapters(model, x, i):
    policy = mean(model, x)
    for layer in model.layers:
        layer.adapted = False
    with torch.no_grad():
        reference = mean(model, x)
    for layer in model.layers:
        layer.adapted = True
    return F.softplus(3 * (policy - reference))


def only_the_last_adapter_off(model, x, i):
    policy = mean(model, x)
    model.layers[-1].adapted = False
    reference = mean(model, x)
    model.layers[-1].adapted = True
    return policy - 0.5 * reference


def frozen_for_a_pass(model, x, i):
    frozen = [p for layer in model.layers for p in layer.inner.parameters()] if i % 2 else []
    for p in frozen:
        p.requires_grad_(False)
    loss = mean(model, x)
    for p in frozen:
        p.requires_grad_(True)
    return loss


def hooks_for_a_pass(model, x, i):
    handles = [layer.inner.register_forward_hook(lambda module, args, out: out * (1.0 + i)) for layer in model.layers]
    loss = mean(model, x)
    for handle in handles:
        handle.remove()
    return loss


def hook_of_all_modules(model, x, i):
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out * (1.0 + i) if isinstance(module, nn.Linear) else None
    )
    try:
        return mean(model, x)
    finally:
        handle.remove()


def evaluated_reference(model, x, i):
    policy = mean(model, x)
    model.eval()
    with torch.no_grad():
        reference = mean(model, x)
    model.train()
    return F.softplus(policy - reference)


def head_put_in_place(model, x, i):
    before = model.heads[0]
    model.heads[0] = model.heads[i % 2]
    try:
        return mean(model, x)
    finally:
        model.heads[0] = before


def losses_collected_in_a_list(model, x, i):
    model.said["collected"].append(model.stem(x).square().sum())
    loss = mean(model, x) + sum(model.said["collected"])
    model.said["collected"].clear()
    return loss


def counts_at_the_end(model, x, i):
    loss = mean(model, x)
    model.more = float(loss) / 10
    return loss


def counts_at_the_beginning(model, x, i):
    model.calls += 1
    model.task = model.calls % 2
    return mean(model, x)


ALL = [
    task,
    scale_that_is_a_tensor,
    class_of_the_model,
    entry_of_a_dict,
    list_in_place,
    plain_object,
    within_a_plain_object,
    reference_without_adapters,
    only_the_last_adapter_off,
    frozen_for_a_pass,
    hooks_for_a_pass,
    hook_of_all_modules,
    evaluated_reference,
    head_put_in_place,
    losses_collected_in_a_list,
    counts_at_the_end,
    counts_at_the_beginning,
]


def trained(model, loss_of, batches):
    """The losses of two steps of plain PyTorch, and the model that comes of it."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1), []
    for _ in range(2):
        for i, x in enumerate(batches):
            loss = loss_of(model, x, i)
            (loss / len(batches)).backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, model


@pytest.mark.parametrize("loss_of", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "room",
    [{}, {"slots": 1, "gradient_bytes": 0, "activations": "drives", "activation_room": "64MiB"}],
    ids=["", "little"],
)
def test_what_a_pass_changes_of_modules(loss_of, room, tmp_path, seed, monkeypatch):
    model = Net()
    model.said["collected"] = []
    monkeypatch.setattr(Net, "factor", 1.0)
    plain, batches = copy.deepcopy(model), list(torch.randn(4, 5, 8))
    expected, plain = trained(plain, loss_of, batches)
    with engine_for(model, tmp_path, monkeypatch=monkeypatch, lr=1e-2, clip=0, **room) as engine:

        def of_number(i):
            return loss_of(engine.module, batches[i], i)

        losses = []
        for _ in range(2):
            losses += engine.backward_together(range(4), of_number)
            engine.step()
        assert losses == pytest.approx(expected, rel=1e-5)
        for (name, p), q in zip(model.named_parameters(), plain.parameters()):
            torch.testing.assert_close(p.detach() + 0, q.detach(), rtol=1e-4, atol=1e-6, msg=name)
        assert [layer.seen for layer in model.layers] == [layer.seen for layer in plain.layers]


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.drop = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)]), nn.Dropout(0.5)

    def forward(self, x):
        for layer in self.layers:
            x = x + self.drop(layer(x))
        return x


@pytest.mark.parametrize("alone", [False, True])
def test_random_numbers_beside_the_model(alone, tmp_path, seed):
    """Those that a loss draws are other ones for each micro-batch and in each step, and so are those of two passes of a
    micro-batch."""
    told = []
    for n, together in enumerate((False, True)):
        torch.manual_seed(seed)
        drawn, differ = [], []
        with engine_for(Drawing(), tmp_path, f"run{n}") as engine:
            engine.train()
            engine.accumulate = 3

            def loss_of(i):
                if alone:
                    engine.module.task = i
                x = torch.randn(4, 8)
                drawn.append(x.sum().item())
                one, other = engine(x), engine(x)
                differ.append(not torch.equal(one, other))
                return one.square().mean() + other.square().mean()

            for _ in range(2):
                if together:
                    engine.backward_together(range(3), loss_of)
                else:
                    for i in range(3):
                        engine.backward(loss_of(i))
                engine.step()
            assert all(differ) and len(set(drawn)) == 6
        told.append(drawn + [torch.rand(()).item()])
    assert told[0] == told[1]


def test_what_is_said(tmp_path, seed, caplog):
    """Once, and by its name; and nothing of models that keep tensors of their graph, or what a layer counts."""
    with engine_for(Net(dropout=0.1), tmp_path) as engine, caplog.at_level(logging.INFO, "longshore"):
        engine.train_batch(list(torch.randn(3, 5, 8)), lambda output, x: output.square().mean())
        assert "one after the other" not in caplog.text
        for _ in range(2):
            engine.backward_together(range(3), lambda i: task(engine.module, torch.ones(5, 8), i))
            engine.step()
    said = [r.getMessage() for r in caplog.records if "one after the other" in r.getMessage()]
    assert len(said) == 1 and "Net.task is changed within a pass" in said[0]


class Shared(nn.Module):
    """What all layers have, and each keeps something in."""

    def forward(self, x):
        self.last, self.size = x.detach().sign(), x.shape[0]
        return self.last


class Told(nn.Module):
    """Layers that are told what to do with what is to come, one by one."""

    class Layer(nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.inner, self.shared, self.mask = nn.Linear(8, 8), shared, torch.ones(8)

        def forward(self, x):
            return self.inner(x * self.mask) + self.shared(x)

    def __init__(self, first):
        super().__init__()
        shared, self.first = Shared(), first
        self.stem, self.layers = nn.Linear(8, 8), nn.ModuleList([self.Layer(shared) for _ in range(3)])

    def forward(self, x):
        signs, x = x.sign(), self.stem(x)
        for n, layer in enumerate(self.layers):
            if n >= self.first:
                layer.mask = signs * (n + 1)
            x = x + layer(x)
        return x


@pytest.mark.parametrize("first", [0, 1, 3])
def test_what_layers_are_told_and_what_they_share(first, tmp_path, seed, caplog):
    """Seen before the first of them, or before each; what a layer keeps in what they share is the next one's, as in a
    loop."""
    model, batches = Told(first), list(torch.randn(4, 5, 8))
    expected, _ = trained(copy.deepcopy(model), lambda model, x, i: mean(model, x), batches)
    with engine_for(model, tmp_path, lr=1e-2, clip=0) as engine, caplog.at_level(logging.INFO, "longshore"):
        losses = []
        for _ in range(2):
            losses += engine.backward_together(batches, lambda x: mean(engine, x))
            engine.step()
    assert losses == pytest.approx(expected, rel=1e-5) and ("one after the other" in caplog.text) is (first < 3)


class Flipping(nn.Module):
    """A layer whose forward, computed again in backward, is another one."""

    def __init__(self):
        super().__init__()
        self.inner, self.flip = nn.Linear(8, 8), False

    def forward(self, x):
        self.flip = not self.flip
        return self.inner(x) * (1.5 if self.flip else 0.5)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Flipping() for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


def test_a_layer_that_changes_when_it_is_computed_again(tmp_path, seed):
    """Each pass finds it as it was in a loop, and so do all of them together without a checkpoint."""
    with engine_for(Checkpointed(), tmp_path) as engine:
        with pytest.raises(longshore.LongshoreError, match=r"layers.\d.flip is changed by a micro-batch"):
            engine.train_batch(list(torch.randn(3, 5, 8)), lambda output, x: output.square().mean())


def test_what_is_equal_and_another_object_is_no_change(tmp_path, seed):
    """And what takes an object's place in memory is none that was there before."""
    model = Net()
    model.names, model.long = {"a" * n for n in range(1, 9)}, 1000
    left = ModuleChanges(model, list(model.layers))
    for n in range(50):
        model.names, model.long = {name[:1] * len(name) for name in model.names}, 10 ** (n % 3 + 4) + 7 * (n % 2)
        model.said["task"] = int("0")
        found = left.revert()
        assert sorted(left.name(change) for change in found.changes) == ["Net.long", "Net.names"] and not found.private
        assert model.long == 1000
        for layer in model.layers:
            before = left.changed(layer)
            layer.seen = 1000 + layer.seen
            layer.last = float(layer.seen)
            left.accept(layer, before, False)
        assert not left.revert().changes and left.holds()
    assert [layer.seen for layer in model.layers] == [50000] * 3
