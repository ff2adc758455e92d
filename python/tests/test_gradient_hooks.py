"""Hooks of a script on gradients see, whenever they were set, what they see in PyTorch, and what they make of it
counts."""

import copy

import pytest
import torch
from torch import nn

import longshore
from longshore.step import parameter_state
from test_loop import engine_for
from test_together import Net, mean

WAYS = {
    "backward": lambda engine, batches: [engine.backward(mean(engine, x)) for x in batches],
    "loss.backward": lambda engine, batches: [(mean(engine, x) / 3).backward() for x in batches],
    "together": lambda engine, batches: engine.backward_together(batches, lambda x: mean(engine, x)),
}


@pytest.mark.parametrize("room", [None, 0])
@pytest.mark.parametrize("before", [True, False], ids=["set before", "set after"])
@pytest.mark.parametrize("way", WAYS)
def test_hooks_see_the_sum_so_far(way, before, room, tmp_path, seed, monkeypatch):
    model, batches = Net(), list(torch.randn(3, 5, 8))
    plain = copy.deepcopy(model)
    seen, expected = {}, {}

    def hook(model, seen):
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(
                lambda p, name=name: seen.setdefault(name, []).append(p.grad.detach().clone())
            )

    hook(plain, expected)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    if before:
        hook(model, seen)
    with engine_for(model, tmp_path, gradient_bytes=room, monkeypatch=monkeypatch, lr=1e-2, clip=0) as engine:
        if not before:
            hook(model, seen)
        engine.accumulate = 3
        for _ in range(2):
            WAYS[way](engine, batches)
            result = engine.step()
            for x in batches:
                (mean(plain, x) / 3).backward()
            norm = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
            assert result.grad_norm == pytest.approx(norm.item(), rel=1e-4)
            optimizer.step()
            optimizer.zero_grad()
        assert seen.keys() == expected.keys()
        for name in expected:
            assert len(seen[name]) == 6
            for ours, theirs in zip(seen[name], expected[name]):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7, msg=name)


def doubled(p):
    p.grad.mul_(2)


def clipped(p):
    p.grad = p.grad.clamp(-1e-3, 1e-3)


def taken_away(p):
    p.grad = None


def through_data(p):
    p.grad.data = p.grad.data * 3


@pytest.mark.parametrize("how", [doubled, clipped, taken_away, through_data], ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_what_hooks_make_of_a_gradient_counts(how, way, tmp_path, seed):
    model, batches = Net(), list(torch.randn(3, 5, 8))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    with engine_for(model, tmp_path, lr=1e-2, clip=0) as engine:
        handles = [
            m.get_parameter(name).register_post_accumulate_grad_hook(how)
            for m in (model, plain)
            for name in ("layers.1.inner.weight", "layers.1.inner.bias", "heads.0.weight")
        ]
        engine.accumulate = 3
        for step in range(3):
            if step == 2:
                [handle.remove() for handle in handles]
            WAYS[way](engine, batches)
            for x in batches:
                (mean(plain, x) / 3).backward()
            norm = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
            assert engine.step().grad_norm == pytest.approx(norm.item(), rel=1e-4)
            optimizer.step()
            optimizer.zero_grad()
        for (name, p), q in zip(model.named_parameters(), plain.parameters()):
            torch.testing.assert_close(p.detach() + 0, q.detach(), rtol=1e-4, atol=1e-6, msg=name)


def test_sums_of_bfloat16(tmp_path, seed):
    """Hooks see them in the parameter's dtype; they are fp32, where no hook changes them."""
    seen, model = [], Net().to(torch.bfloat16)

    def double(p):
        p.grad.data.mul_(2)

    with engine_for(model, tmp_path, clip=0) as engine:
        model.stem.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        model.stem.weight.register_post_accumulate_grad_hook(double)
        for scale in (1.0, 1e-3, 1e-3):
            engine.backward(engine(torch.ones(5, 8, dtype=torch.bfloat16)).float().sum() * scale)
        assert [g.dtype for g in seen] == [torch.bfloat16] * 3
        assert torch.equal(model.stem.bias.grad, seen[2]) and not torch.equal(
            parameter_state.gradient(model.stem.bias), seen[2].float()
        )
        torch.testing.assert_close(model.stem.weight.grad + 0, 8 * seen[0][:, None].expand(8, 8), rtol=2e-2, atol=1e-2)


def test_steps_within_backward_are_refused(tmp_path, seed):
    """As optimizers do it that are fused into backward; what they do to parameters is refused, too."""
    model = Net()
    others = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}
    with engine_for(model, tmp_path) as engine:
        for what, match in (
            (lambda p: engine.optimizer.step(), "engine.step: backward.. is still run"),
            (lambda p: engine.optimizer.zero_grad(), "optimizer.zero_grad: backward.. is still run"),
            (lambda p: others[p].step(), "is updated by engine.step"),
            (lambda p: p.data.add_(p.grad, alpha=-0.1), "heads.0.*was changed"),
            (lambda p: p.add_(p.grad, alpha=-0.1), "heads.0.*was changed"),
        ):
            handle = model.heads[0].weight.register_post_accumulate_grad_hook(what)
            with pytest.raises(longshore.LongshoreError, match=match):
                engine.backward(mean(engine, torch.ones(5, 8)))
                engine.step()
            handle.remove()
        engine.backward(mean(engine, torch.ones(5, 8)))
        assert engine.step().step == 1


def test_hooks_of_a_model_without_values_are_kept(tmp_path, seed):
    with engine_for(nn.Sequential(nn.Linear(4, 4)), tmp_path) as engine:
        engine.backward(mean(engine, torch.ones(2, 4)))
        engine.step()
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4))
    seen = []
    model[0].weight.register_hook(lambda g: seen.append("hook"))
    handle = model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append("post"))
    with longshore.resume(tmp_path / "run", model) as engine:
        engine.backward(mean(engine, torch.ones(2, 4)))
        handle.remove()
        engine.backward(mean(engine, torch.ones(2, 4)))
    assert seen == ["hook", "post", "hook"]
