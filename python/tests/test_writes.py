"""What is written to parameters, by modules and by scripts: it counts as in PyTorch, or is refused by name with what works."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import longshore
from longshore import values, writes
from test_loop import engine_for

pytestmark = pytest.mark.usefixtures("one_thread")


class Quantizer(nn.Module):
    """Layers around a codebook that forward() moves by what it is given as `write`."""

    def __init__(self, write, trains=False, layers=3, first=1):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(layers)])
        self.book = nn.Embedding(12, 8)
        self.book.weight.requires_grad_(trains)
        self.write, self.first, self.calls = write, first, 0

    def forward(self, x):
        self.calls += 1
        for n, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if n == 1:
                chosen = torch.cdist(x, self.book.weight).argmin(1)
                q = self.book(chosen)
                if self.calls >= self.first:
                    self.write(self.book.weight)
                x = x + (q - x).detach() + 0.1 * q
        return x.square().mean()


class InLayer(nn.Module):
    """Codebooks in layers that take turns in one slot. another: whose is written to, by the last one."""

    class Layer(nn.Linear):
        def forward(self, x, write):
            out = torch.tanh(super().forward(x))
            write(self.weight)
            return out

    def __init__(self, write, another=None):
        super().__init__()
        self.layers = nn.ModuleList([self.Layer(8, 8) for _ in range(3)])
        self.write, self.another = write, another

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            if self.another is None:
                x = layer(x, self.write if n == 1 else lambda w: None)
            else:
                x = layer(x, (lambda w: self.write(self.layers[self.another].weight)) if n == 2 else lambda w: None)
        return x.square().mean()


def batches(n=4, width=8):
    return [torch.randn(5, width, generator=torch.Generator().manual_seed(i)) for i in range(n)]


def assign(p, value):
    p.data = value


WRITES = {
    "copy": lambda p: p.data.copy_(p.data * 0.9),
    "reordered": lambda p: p.data.copy_(p.data.roll(1, 0)),
    "row": lambda p: p.data[3].mul_(2),
    "item": lambda p: p.data.__setitem__((0, 0), 1.0),
    "assigned": lambda p: assign(p, p.data * 2),
    "detached": lambda p: p.detach().data.mul_(2),
    "viewed": lambda p: p.detach()[2:].data.add_(1),
    "numpy": lambda p: p.detach().numpy().__imul__(2),
    "version": lambda p: p.detach().mul_(2),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_codebook_that_forward_moves(kind, tmp_path, seed, monkeypatch):
    """In the first step, wherever it lies, whether it trains or not."""
    for n, (trains, how) in enumerate([(False, {}), (True, {}), (False, {"storage": "bf16"}), (True, {"slots": 1}), (False, {"slots": 1, "storage": "bf16"})]):
        model = Quantizer(WRITES[kind], trains)
        with monkeypatch.context() as patched, engine_for(model, tmp_path, f"{kind}{n}", monkeypatch=patched, **how) as engine:
            before, value = engine.digest(), model.book.weight.detach() * 1
            with pytest.raises(longshore.AbsentParameterError, match="^book.weight: .*forward.*register_buffer.*longshore.resident"):
                engine.backward(engine(batches()[0]))
                engine.step()
            engine.drop_gradients()
            assert engine.digest() == before and torch.equal(model.book.weight.detach() * 1, value)
            with pytest.raises(longshore.AbsentParameterError, match="^book.weight: .*register_buffer"):
                engine.train_batch(batches()[:2], lambda loss, batch: loss)
            assert engine.digest() == before


@pytest.mark.parametrize("kind", ["copy", "reordered", "row", "assigned", "version"])
def test_a_codebook_that_later_steps_move(kind, tmp_path, seed):
    model = Quantizer(WRITES[kind], first=3)
    with engine_for(model, tmp_path) as engine:
        for batch in batches()[:2]:
            engine.backward(engine(batch))
            engine.step()
        with pytest.raises(longshore.AbsentParameterError, match="^book.weight: "):
            engine(batches()[2])


def test_a_codebook_whose_memory_is_kept(tmp_path, seed):
    kept = []

    def write(p):
        kept.append(p.data)
        if len(kept) > 2:
            kept[0].mul_(2)

    with engine_for(Quantizer(write), tmp_path) as engine:
        for batch in batches()[:2]:
            engine.backward(engine(batch))
            engine.step()
        with pytest.raises(longshore.AbsentParameterError, match="^book.weight: "):
            engine(batches()[2])


@pytest.mark.parametrize("kind", ["copy", "reordered", "row", "version"])
@pytest.mark.parametrize("another", [None, 0])
def test_a_layer_that_forward_moves(kind, another, tmp_path, seed, monkeypatch):
    for slots in 1, 3:
        with monkeypatch.context() as patched, engine_for(InLayer(WRITES[kind], another), tmp_path, f"run{slots}", slots=slots, monkeypatch=patched) as engine:
            before = engine.digest()
            with pytest.raises(longshore.AbsentParameterError, match=f"^layers.{1 if another is None else 0}.weight: .*register_buffer"):
                engine.backward(engine(batches()[0]))
            engine.drop_gradients()
            assert engine.digest() == before


def test_what_is_only_looked_at_is_not_refused(tmp_path, seed):
    """And what is put back before its block leaves."""
    seen = []

    def look(p):
        kept = p.data.clone()
        p.data.mul_(2)
        p.data.copy_(kept)
        seen.append((float(p.data.sum()), type(copy.deepcopy(p)), isinstance(p, nn.Parameter), p.detach().numpy().sum()))

    model, plain = Quantizer(look, True), Quantizer(look, True)
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    with engine_for(model, tmp_path, lr=1e-2, weight_decay=0.01, clip=0) as engine:
        for batch in batches():
            loss, expected = engine(batch), plain(batch)
            assert abs(loss.item() - expected.item()) < 1e-6
            engine.backward(loss)
            engine.step()
            expected.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(kind is nn.Parameter and there for _, kind, there, _ in seen)


def test_a_hook_of_backward_that_writes(tmp_path, seed):
    model = Quantizer(lambda p: None, True)
    with engine_for(model, tmp_path) as engine:
        engine.backward(engine(batches()[0]))
        engine.step()
        model.layers[0].register_full_backward_hook(lambda module, *g: module.weight.data.mul_(0.5) and None)
        with pytest.raises(longshore.AbsentParameterError, match="^layers.0.weight: "):
            engine.backward(engine(batches()[0]))
        assert engine.step_number == 1


class Bag(nn.Module):
    def __init__(self, kind, max_norm, **how):
        super().__init__()
        self.table, self.head = kind(50, 8, max_norm=max_norm, **how), nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.table(ids)).square().mean()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_max_norm(kind, tmp_path, seed):
    """Is refused with what does the same."""
    model = Bag(kind, 0.5, norm_type=1.0)
    plain = copy.deepcopy(model)
    ids = [torch.randint(50, (4, 3), generator=torch.Generator().manual_seed(i)) for i in range(4)]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    with engine_for(model, tmp_path, optimizer="sgd", lr=0.1, weight_decay=0, clip=0) as engine:
        with pytest.raises(longshore.AbsentParameterError, match=r"^table.weight: .*max_norm=None.*embedding_renorm_\(weight.data, ids, 0.5, 1.0\).*resident"):
            engine(ids[0])
        model.table.max_norm = None
        weight = model.table.weight
        for i in ids:
            with longshore.resident(weight, write=True):
                torch.embedding_renorm_(weight.data, i, 0.5, 1.0)
            loss, expected = engine(i), plain(i)
            assert abs(loss.item() - expected.item()) < 1e-6
            engine.backward(loss)
            engine.step()
            expected.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.allclose(weight.detach() * 1, plain.table.weight, atol=1e-6)


class Replaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.book = nn.Linear(8, 8), nn.Parameter(torch.randn(4, 8), requires_grad=False)

    def forward(self, x):
        loss = (self.encode(x) @ self.book.t()).square().mean()
        self.book = nn.Parameter(self.book.detach() * 0.5, requires_grad=False)
        return loss


def test_a_parameter_that_is_replaced(tmp_path, seed):
    """In forward, and before what would be without it."""
    with engine_for(Replaces(), tmp_path) as engine:
        with pytest.raises(longshore.LongshoreError, match="^book: was replaced in forward.*register_buffer"):
            engine(batches()[0])
    with engine_for(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), tmp_path, "other") as engine:
        engine.backward(engine(batches()[0]).square().mean())
        engine.module[0].weight = nn.Parameter(torch.zeros(8, 8))
        with pytest.raises(longshore.LongshoreError, match="^0.weight: .*replaced after wrap"):
            engine.step()
        assert engine.step().step == 1
        engine.module[1].bias = nn.Parameter(torch.zeros(8))
        with pytest.raises(longshore.LongshoreError, match="^1.bias: .*replaced after wrap"):
            engine.save_pretrained(tmp_path / "saved")
