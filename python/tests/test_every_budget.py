"""What a script does with parameters outside of forward and backward: PyTorch's values and gradients, with memory for
one layer at a time and for all of them."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import longshore
from models import gpt2, tokens
from test_loop import engine_for

BUDGETS = [1, None]  # how many layers memory holds: the least, and all
LOOPS = {}


def loop(f):
    LOOPS[f.__name__] = f
    return f


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        return torch.tanh(self.norm(self.a(x)))


class Deep(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.into, self.out = nn.Linear(6, width), nn.Linear(width, 3)
        self.layers = nn.ModuleList([Layer(width) for _ in range(4)])

    def forward(self, x):
        x = self.into(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.out(x)


def batches(n=3):
    g = torch.Generator().manual_seed(5)
    return [(torch.randn(4, 6, generator=g), torch.randn(4, 3, generator=g)) for _ in range(n)]


def step(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@loop
def a_penalty_on_all_weights(m, call, optimizer):
    for x, t in batches():
        penalty = sum(p.square().sum() + p.abs().mean() for p in m.parameters())
        yield step(optimizer, F.mse_loss(call(x), t) + 1e-2 * penalty)


@loop
def a_penalty_with_a_backward_of_its_own(m, call, optimizer):
    for x, t in batches():
        F.mse_loss(call(x), t).backward()
        yield step(optimizer, 1e-2 * sum(p.norm() for p in m.parameters()))


@loop
def elastic_weight_consolidation(m, call, optimizer):
    before = [p.detach().clone() for p in m.parameters()]
    fisher = [torch.zeros_like(p) for p in m.parameters()]
    for x, t in batches():
        for f, g in zip(fisher, torch.autograd.grad(F.mse_loss(call(x), t), [*m.parameters()])):
            f += g.view_as(f).square()
        penalty = sum((f * (p - was).square()).sum() for f, p, was in zip(fisher, m.parameters(), before))
        yield step(optimizer, F.mse_loss(call(x), t) + 10 * penalty)


@loop
def products_of_layers_and_views(m, call, optimizer):
    for x, t in batches():
        loss = F.mse_loss(call(x), t)
        for one, other in zip(m.layers, m.layers[1:]):
            w, (upper, lower), flat = one.a.weight, other.a.weight.chunk(2), one.norm.weight.view(-1)
            loss = loss + 1e-2 * (
                (w @ other.a.weight.t()).square().mean()
                + (upper @ lower.T).sum()
                + w[3, 5:].pow(2).sum()
                + (flat * flat).sum()
                + w.T[0].exp().sum()
            )
        yield step(optimizer, loss)


@loop
def backward_of_some_inputs(m, call, optimizer):
    for x, t in batches():
        loss = F.mse_loss(call(x), t)
        loss.backward(inputs=[*m.layers[1].parameters(), *m.layers[3].parameters()])
        optimizer.step()
        optimizer.zero_grad()
        yield loss


@loop
def gradients_of_gradients(m, call, optimizer):
    for x, t in batches():
        loss = F.mse_loss(call(x), t)
        found = torch.autograd.grad(loss, [*m.parameters()], create_graph=True)
        yield step(optimizer, loss + 0.1 * sum(g.square().sum() for g in found))


@loop
def hessian_products(m, call, optimizer):
    ps = [*m.parameters()]
    for x, t in batches():
        found = torch.autograd.grad(F.mse_loss(call(x), t), ps, create_graph=True)
        products = torch.autograd.grad(found, ps, [torch.ones_like(p) for p in ps])
        for p, h in zip(ps, products):
            p.grad = h.clone()
        optimizer.step()
        optimizer.zero_grad()
        yield sum(h.abs().sum() for h in products)


@loop
def influence(m, call, optimizer):
    ps, ((x, t), (x2, t2)) = [*m.layers[3].parameters(), *m.out.parameters()], batches(2)
    of_test = torch.autograd.grad(F.mse_loss(call(x2), t2), ps)
    estimate = [g.clone() for g in of_test]
    for _ in range(3):
        found = torch.autograd.grad(F.mse_loss(call(x), t), ps, create_graph=True)
        products = torch.autograd.grad(found, ps, grad_outputs=estimate)
        estimate = [a + 0.9 * b - 0.1 * c for a, b, c in zip(of_test, estimate, products)]
    yield sum(g.abs().sum() for g in estimate)


@loop
def grad_norm(m, call, optimizer):
    weights, shared = torch.ones(2, requires_grad=True), [*m.layers[2].parameters()]
    for x, t in batches():
        y = call(x)
        losses = torch.stack([F.mse_loss(y, t), y.abs().mean()])
        (weights.detach() * losses).sum().backward(retain_graph=True)
        norms = torch.stack(
            [
                torch.cat(
                    [g.flatten() for g in torch.autograd.grad(w * loss, shared, retain_graph=True, create_graph=True)]
                ).norm()
                for w, loss in zip(weights, losses)
            ]
        )
        (found,) = torch.autograd.grad((norms - norms.mean().detach()).abs().sum(), weights)
        with torch.no_grad():
            weights -= 0.1 * found
        optimizer.step()
        optimizer.zero_grad()
        yield norms.sum()


@loop
def parameters_that_a_loss_does_not_use(m, call, optimizer):
    for x, t in batches():
        short = F.mse_loss(m.out(m.layers[0](m.into(x))), t)
        found = torch.autograd.grad(short, [*m.parameters()], allow_unused=True, materialize_grads=True)
        yield step(optimizer, F.mse_loss(call(x), t)) + sum(g.abs().sum() for g in found)


@loop
def a_batch_of_gradients(m, call, optimizer):
    for x, t in batches():
        found = torch.autograd.grad(call(x).sum(0), [*m.layers[2].parameters()], torch.eye(3), is_grads_batched=True)
        yield step(optimizer, F.mse_loss(call(x), t)) + sum(g.square().sum() for g in found)


@loop
def monitors_and_control_variates(m, call, optimizer):
    control = [torch.zeros_like(p) for p in m.parameters()]
    for x, t in batches():
        F.mse_loss(call(x), t).backward()
        for p, c in zip(m.parameters(), control):
            p.grad = p.grad + 0.1 * c.view_as(p).type_as(p)
            c += 0.01 * p.detach() + p.new_zeros(1).expand_as(p)
        optimizer.step()
        optimizer.zero_grad()
        yield sum(p.norm().item() + p.mean().item() + p.std().item() for p in m.parameters())
        yield sum(torch._foreach_norm([*m.parameters()])) + nn.utils.parameters_to_vector(m.parameters()).sum()


class Adjoint(torch.autograd.Function):
    """As torchdiffeq's adjoint method: the gradients of all parameters of a part, in backward."""

    @staticmethod
    def forward(ctx, part, x, *ps):
        ctx.part, ctx.ps = part, ps
        ctx.save_for_backward(x)
        return part(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return None, *torch.autograd.grad(ctx.part(x), (x, *ctx.ps), gradient)


@loop
def the_adjoint_method(m, call, optimizer):
    part = nn.Sequential(*m.layers)
    for x, t in batches():
        yield step(optimizer, F.mse_loss(m.out(Adjoint.apply(part, m.into(x), *part.parameters())), t))


def trained(f, m, call, optimizer):
    numbers = [float(torch.as_tensor(v).detach()) for v in f(m, call, optimizer)]
    return numbers + [p.detach().clone() for p in m.parameters()]


@pytest.mark.parametrize("slots", BUDGETS)
@pytest.mark.parametrize("f", LOOPS.values(), ids=LOOPS)
def test_loops_are_those_of_pytorch(f, slots, tmp_path, seed, monkeypatch):
    model = Deep()
    plain = copy.deepcopy(model)
    expected = trained(f, plain, plain, torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1))
    with engine_for(model, tmp_path, slots=slots, monkeypatch=monkeypatch, clip=0) as engine:
        torch.testing.assert_close(trained(f, model, engine, engine.optimizer), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("f", [a_penalty_on_all_weights, hessian_products, the_adjoint_method])
def test_loops_at_the_least_that_a_plan_takes(f, tmp_path, seed):
    model = Deep(width=320)
    plain = copy.deepcopy(model)
    expected = trained(f, plain, plain, torch.optim.SGD(plain.parameters(), lr=1e-3))
    with pytest.raises(longshore.BudgetError) as refused:
        longshore.wrap(copy.deepcopy(model), run=tmp_path / "too-little", memory="64KiB")
    least = re.search(r"minimum ([0-9.]+) (MiB)", str(refused.value))
    with engine_for(model, tmp_path, memory="".join(least.groups()), clip=0, optimizer="sgd", weight_decay=0) as engine:
        assert engine._core.streams.slots < len(engine._core.streams.layers)
        torch.testing.assert_close(trained(f, model, engine, engine.optimizer), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("slots", BUDGETS)
@pytest.mark.parametrize("together", [False, True])
def test_a_penalty_of_tied_weights_in_micro_batches(together, slots, tmp_path, seed, monkeypatch):
    model = gpt2()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1)

    def loss_of(output, m):
        return output.loss + 1e-3 * sum(p.square().sum() for p in m.parameters())

    with engine_for(model, tmp_path, slots=slots, monkeypatch=monkeypatch, clip=0) as engine:
        for some in (tokens()[:3], tokens()[3:]):
            if together:
                engine.train_batch(some, lambda output, batch: loss_of(output, model))
            else:
                engine.accumulate = 3
                for batch in some:
                    engine.backward(loss_of(engine(**batch), model))
                engine.step()
            for batch in some:
                (loss_of(plain(**batch), plain) / 3).backward()
            optimizer.step()
            optimizer.zero_grad()
        for (name, p), q in zip(model.named_parameters(), plain.parameters()):
            torch.testing.assert_close(p.detach() + 0, q.detach(), rtol=2e-5, atol=2e-6, msg=name)


@pytest.mark.parametrize("slots", BUDGETS)
def test_gradients_that_a_loss_of_train_batch_asks_for(slots, tmp_path, seed, monkeypatch):
    with engine_for(Deep(), tmp_path, slots=slots, monkeypatch=monkeypatch) as engine:

        def loss_fn(output, batch):
            return torch.autograd.grad(output.sum(), [*engine.module.layers.parameters()], create_graph=True)[0].sum()

        with pytest.raises(longshore.LongshoreError, match=r"grad\(\).*train_batch\(\).*call backward\(\) for each"):
            engine.train_batch([x for x, _ in batches()], loss_fn)
        engine.backward(engine(batches()[0][0]).sum())
        assert engine.step().step == 1


def test_backward_fetches_again_what_a_penalty_needs(tmp_path, seed, monkeypatch):
    """The graph holds places, not values."""
    with engine_for(Deep(), tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        before = engine.fetched_bytes
        penalty = sum(p.square().sum() for p in engine.module.layers.parameters())
        there = engine.fetched_bytes
        assert there > before
        engine.backward(penalty)
        assert engine.fetched_bytes - there >= there - before


@pytest.mark.parametrize("slots", BUDGETS)
def test_autograd_grad_alone_is_no_pass_of_a_step(slots, tmp_path, seed, monkeypatch):
    with engine_for(Deep(), tmp_path, slots=slots, monkeypatch=monkeypatch) as engine:
        (x, t), *_ = batches()
        torch.autograd.grad(F.mse_loss(engine(x), t), [*engine.parameters()])
        assert all(p.grad is None for p in engine.parameters())
        with pytest.raises(longshore.LongshoreError, match="there was no backward pass"):
            engine.step()


@pytest.mark.parametrize("slots", BUDGETS)
def test_what_asks_for_no_value(slots, tmp_path, seed, monkeypatch):
    with engine_for(Deep(), tmp_path, slots=slots, monkeypatch=monkeypatch) as engine:
        p, before = engine.module.layers[1].a.weight, engine.fetched_bytes
        for made in (
            torch.zeros_like(p),
            torch.ones_like(p),
            torch.empty_like(p),
            torch.full_like(p, 2.0),
            torch.rand_like(p),
            torch.randn_like(p),
            torch.zeros(144).view_as(p),
            torch.zeros(1, 1).expand_as(p),
            torch.zeros(144).reshape_as(p),
            torch.zeros(12, 12).double().type_as(p),
        ):
            assert made.shape == p.shape and made.dtype == p.dtype and not made.requires_grad
            assert type(made) is torch.Tensor
        assert p.new_zeros(3).shape == p.new_tensor([1.0, 2, 3]).shape == (3,) and p.new_full((2,), 5).sum() == 10
        assert engine.fetched_bytes == before


@pytest.mark.parametrize("slots", BUDGETS)
def test_a_copy_beside_a_parameter_that_is_absent(slots, tmp_path, seed, monkeypatch):
    """The one that comes first decides how both are read."""
    model = Deep()
    plain = copy.deepcopy(model)
    with engine_for(model, tmp_path, slots=slots, monkeypatch=monkeypatch) as engine:
        engine(batches()[0][0])  # slots hold another layer
        p, q = (m.a.weight for m in model.layers[:2])
        expected = plain.layers[0].a.weight * plain.layers[1].a.weight
        for found in (p.detach() * q, q * p.detach(), p.data * q, torch.mul(p.view(12, 12), q)):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("slots", BUDGETS)
def test_copies_with_a_graph_are_not_written(slots, tmp_path, seed, monkeypatch):
    with engine_for(Deep(), tmp_path, slots=slots, monkeypatch=monkeypatch) as engine:
        p = engine.module.layers[1].a.weight
        for write in (lambda: p.view(-1).add_(1), lambda: p[0].zero_(), lambda: p.t().mul_(2)):
            with pytest.raises(longshore.AbsentParameterError, match="layers.1.a.weight: .*longshore.resident"):
                write()
        loss = p.square().sum()
        with longshore.resident(p, write=True), torch.no_grad():
            p.mul_(2)
        with pytest.raises(longshore.LongshoreError, match="updated since the forward pass"):
            loss.backward()


class Within(torch.autograd.Function):
    """Reads what it saved, computes with another layer, and uses what it has read."""

    @staticmethod
    def forward(ctx, x, weight, other):
        ctx.save_for_backward(x, weight)
        ctx.other = other
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (of_other,) = torch.autograd.grad(ctx.other(x).sum(), x)
        return gradient @ weight + of_other, gradient.t() @ x.detach(), None


class Looking(nn.Module):
    def __init__(self, others):
        super().__init__()
        self.w, self.others = nn.Parameter(torch.randn(12, 12) / 3), others

    def forward(self, x):
        return torch.tanh(Within.apply(x, self.w, self.others[0]))


@pytest.mark.parametrize("slots", BUDGETS)
def test_a_function_that_computes_with_another_layer_in_backward(slots, tmp_path, seed, monkeypatch):
    gradients = []
    for wrapped in (False, True):
        torch.manual_seed(seed)
        others = []
        model = nn.Sequential(Looking(others), nn.Linear(12, 12), nn.Linear(12, 12))
        others.append(model[2])
        x = torch.randn(3, 12, requires_grad=True)
        if wrapped:
            engine = engine_for(model, tmp_path, slots=slots, monkeypatch=monkeypatch)
        (engine if wrapped else model)(x).square().sum().backward()
        gradients.append(x.grad)
    engine.close()
    torch.testing.assert_close(*gradients)
