"""p.grad: what an ordinary loop does with it counts, wherever the gradient lies."""

import copy
import gc
import pickle

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import longshore
from models import LANGUAGE, gpt2, tokens
from test_loop import engine_for

MEMORY = [(None, None), (1, 0)]  # everything there; one slot, and gradients put aside


def a_part(parameters):
    """Of two parts of a model, each by itself; some gradients noisy, one replaced, one dropped."""
    clip_grad_norm_(parameters[:5], 0.05)
    clip_grad_norm_(parameters[5:], 0.02, norm_type=1)
    parameters[2].grad.data.add_(0.01 * torch.ones_like(parameters[2].grad))
    parameters[3].grad = parameters[3].grad * 0.5
    parameters[4].grad[0] = 0
    parameters[6].grad = None
    torch.add(parameters[7].grad, 0.001, out=parameters[7].grad)


def old_way(parameters):
    norm = sum(p.grad.data.norm(2).item() ** 2 for p in parameters) ** 0.5
    for p in parameters:
        p.grad.data.mul_(min(1, 0.05 / norm))


CHANGES = {
    "norm": lambda ps: clip_grad_norm_(ps, 0.1),
    "value": lambda ps: clip_grad_value_(ps, 1e-3),
    "foreach": lambda ps: torch._foreach_mul_([p.grad for p in ps], 0.5),
    "foreach, each its own": lambda ps: torch._foreach_mul_(
        [p.grad for p in ps], [1 / (n + 1) for n in range(len(ps))]
    ),
    "old way": old_way,
    "a part": a_part,
}


@pytest.mark.parametrize("slots, gradient_bytes", MEMORY)
@pytest.mark.parametrize("kind, accumulate", [("gpt2", 1), ("gpt2", 2), ("bert", 1)])
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_loop_does_with_gradients(change, kind, accumulate, slots, gradient_bytes, tmp_path, seed, monkeypatch):
    model = LANGUAGE[kind]()
    plain = copy.deepcopy(model)
    # eps is far above the rounding of the smallest gradients, which would otherwise move their weights by a whole lr on
    # some processors
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1, eps=1e-4)
    with engine_for(
        model, tmp_path, slots=slots, gradient_bytes=gradient_bytes, monkeypatch=monkeypatch, clip=0, eps=1e-4
    ) as engine:
        engine.accumulate = accumulate
        for _ in range(3):
            for batch in tokens(accumulate):
                loss, expected = engine(**batch).loss, plain(**batch).loss
                assert abs(loss.item() - expected.item()) <= 2e-6 * expected.item()
                engine.backward(loss)
                (expected / accumulate).backward()
            ours, theirs = ([p for p in m.parameters() if p.requires_grad] for m in (model, plain))
            assert [p.grad is None for p in ours] == [p.grad is None for p in theirs]
            for p, q in zip(ours, theirs):
                assert q.grad is None or torch.allclose(
                    p.grad, q.grad, rtol=1e-4, atol=1e-7 + 1e-5 * q.grad.abs().max().item()
                )
            ours, theirs = ([p for p in ps if p.grad is not None] for ps in (ours, theirs))
            assert torch.allclose(clip_grad_norm_(ours, 1e9), clip_grad_norm_(theirs, 1e9))
            CHANGES[change](ours)
            CHANGES[change](theirs)
            norm = torch.nn.utils.get_total_norm([p.grad for p in theirs if p.grad is not None]).item()
            assert engine.grad_norm() == pytest.approx(norm, rel=1e-4)
            assert engine._core.gradients.held_bytes <= max(
                engine._core.gradients.room,
                4 * max(engine._core.layout.elems(n) for n in range(len(engine._core.layout.blocks))),
            )
            assert engine.step().grad_norm == pytest.approx(norm, rel=1e-4)
            for p, q in zip(ours, theirs):  # also after the step, until the next pass
                assert (p.grad is None) == (q.grad is None)
                assert q.grad is None or torch.allclose(
                    p.grad, q.grad, rtol=1e-4, atol=1e-7 + 1e-5 * q.grad.abs().max().item()
                )
            optimizer.step()
            optimizer.zero_grad()


def test_same_bits_as_without(tmp_path, seed, monkeypatch):
    """Where somebody looks, and nothing is clipped; a model is evaluated between backward and step; and more passes
    come than were said."""
    digests = set()
    for n, looks in enumerate((False, True)):
        torch.manual_seed(seed)
        with engine_for(gpt2(dropout=0.1), tmp_path, f"run{n}", 1, 0, monkeypatch) as engine:
            for batch in tokens(3):
                for _ in range(2):
                    engine.backward(engine(**batch).loss)
                    if looks:
                        before = [p.grad.clone() for p in engine.module.parameters()]
                        with torch.no_grad():
                            engine(**batch)
                        assert all(torch.equal(p.grad, g) for p, g in zip(engine.module.parameters(), before))
                        assert engine.grad_norm() > 0 and repr(p_grad(engine)).startswith("tensor(")
                engine.step()
            digests.add(engine.digest())
    assert len(digests) == 1


def p_grad(engine):
    return engine.module.transformer.h[0].ln_1.weight.grad


def test_layer_major_and_what_ends_a_step(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        engine.backward_together(tokens(2), lambda b: engine.module(**b).loss)
        assert clip_grad_norm_(engine.module.parameters(), 0.1) > 0.1
        assert engine.step().grad_norm == pytest.approx(0.1, rel=1e-4)
        assert p_grad(engine) is not None
        for end in (engine.drop_gradients, engine.optimizer.zero_grad, engine.module.zero_grad):
            engine.backward(engine(**tokens(1)[0]).loss)
            assert p_grad(engine) is not None
            end()
            assert p_grad(engine) is None
        engine.step()  # of nothing
        digest, step = engine.digest(), engine.step_number
        engine.backward(engine(**tokens(1)[0]).loss)
        with torch.no_grad():
            p_grad(engine).fill_(float("inf"))
        with pytest.raises(longshore.NotFiniteError):
            engine.step()
        assert engine.step_number == step and engine.digest() == digest


def test_copies_of_a_gradient_cannot_be_written(tmp_path, seed, monkeypatch):
    """Where memory has no room for p.grad, what is read of it is a copy."""
    with engine_for(gpt2(), tmp_path, slots=1, gradient_bytes=0, monkeypatch=monkeypatch) as engine:
        engine._core.plan.spare_bytes = 0
        engine.backward(engine(**tokens(1)[0]).loss)
        g = p_grad(engine)
        assert g.shape == (48,) and g.dtype == torch.float32 and isinstance(g, torch.Tensor)
        for write in (lambda: g[:3].zero_(), lambda: g.view(2, -1).mul_(0), lambda: [x.zero_() for x in g]):
            with pytest.raises(
                longshore.AbsentParameterError, match=r"h.0.ln_1.weight.grad: this is a copy.*parameter.grad"
            ):
                write()
        with pytest.raises(ValueError, match="read-only"):
            g.numpy()[0] = 1
        for other in (copy.deepcopy(g), pickle.loads(pickle.dumps(g)), g.clone(), g + 0, torch.stack([g])[0]):
            assert type(other) is torch.Tensor and torch.equal(other, g)
            other.zero_()
        assert g.norm() > 0
        module = engine.module.transformer.h[0]
        assert module.to("cpu") is module and p_grad(engine) is g


@pytest.mark.parametrize("checkpoints", [None, False, True], ids=["no checkpoints", "checkpoints", "reentrant ones"])
@pytest.mark.parametrize("slots, gradient_bytes", MEMORY)
def test_a_loop_as_it_is(slots, gradient_bytes, checkpoints, tmp_path, seed, monkeypatch):
    """loss.backward() of PyTorch, the optimizer's step() and zero_grad(), passes added up, clipping: as if there were
    no engine."""
    model = gpt2()
    if checkpoints is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": checkpoints})
        model.enable_input_require_grads()
    plain = copy.deepcopy(model)
    with engine_for(
        model, tmp_path, slots=slots, gradient_bytes=gradient_bytes, monkeypatch=monkeypatch, clip=0
    ) as engine:

        def loop(model, optimizer, losses):
            model.train()
            for n in range(3):
                optimizer.zero_grad()
                for batch in tokens(2):
                    loss = model(**batch).loss
                    (loss / 2).backward()
                    losses.append(loss.item())
                losses.append(1e-2 * clip_grad_norm_(model.parameters(), 0.1).item())
                if n == 1:
                    model.zero_grad()
                optimizer.step()

        losses, expected = [], []
        loop(engine.module, engine.optimizer, losses)
        loop(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1), expected)
        assert losses == pytest.approx(expected, rel=2e-6)
        for batch in tokens(2):  # one of each
            (engine.backward if batch else torch.Tensor.backward)(engine(**batch).loss)
            engine(**batch).loss.backward()
        norm = engine.grad_norm()
        assert clip_grad_norm_(engine.module.parameters(), 1e9).item() == pytest.approx(norm, rel=1e-5)


def test_a_loop_of_accelerate(tmp_path, seed):
    """prepare(), accumulate(), clip_grad_norm_() and a scheduler, as of any model; and a scaler of gradients."""
    accelerate = pytest.importorskip("accelerate")
    model = gpt2()
    plain = copy.deepcopy(model)

    def loop(model, optimizer):
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4)
        model, optimizer, loader, scheduler = accelerator.prepare(
            model, optimizer, torch.utils.data.DataLoader(tokens(6), batch_size=None), scheduler
        )
        losses = []
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    losses.append(0.01 * accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    with engine_for(model, tmp_path, clip=0) as engine:
        assert loop(engine.module.train(), engine.optimizer) == pytest.approx(
            loop(plain.train(), torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1)), rel=2e-6
        )
        assert engine.step_number == 3
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(engine(**tokens(1)[0]).loss).backward()
        scaler.unscale_(engine.optimizer)
        assert clip_grad_norm_(engine.module.parameters(), 1.0) < 100
        scaler.step(engine.optimizer)
        assert engine.step_number == 4


def test_gradients_that_change_places(tmp_path, seed):
    """Also of a bf16 model, whose gradients that stand in p.grad have no memory to be converted."""
    for n, dtype in enumerate((torch.float32, torch.bfloat16)):
        model = gpt2().to(dtype)
        with engine_for(model, tmp_path, f"run{n}", clip=0) as engine:
            engine.backward(engine(**tokens(1)[0]).loss)
            p, q = (model.transformer.h[i].mlp.c_fc.weight for i in (0, 1))
            before = p.grad.clone(), q.grad.clone()
            p.grad, q.grad = q.grad, p.grad
            engine.grad_norm()
            assert torch.equal(p.grad, before[1]) and torch.equal(q.grad, before[0])
            held = p.grad
            engine.step()
            assert torch.equal(held, before[1]) and torch.equal(copy.deepcopy(held), before[1])
            engine.backward(engine(**tokens(1)[0]).loss)  # which begins anew: who kept one keeps its values
            assert p.grad is not held and torch.equal(held, before[1])


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_backward_of_an_engine_that_is_gone(end, tmp_path, seed):
    engine = engine_for(gpt2(), tmp_path)
    loss, head = engine(**tokens(1)[0]).loss, engine.module.lm_head.weight
    if end == "close":
        engine.close()
    del engine
    gc.collect()
    with pytest.raises(longshore.LongshoreError, match="the engine .*is closed; longshore.resume"):
        loss.backward()
    with longshore.resume(tmp_path / "run", model=gpt2()) as engine:
        engine(**tokens(1)[0]).loss.backward()
        assert engine.step().step == 1
    assert head.grad is None
