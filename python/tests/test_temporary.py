"""Other values in the place of parameters for a while (resident(write="temporary")): the numbers of PyTorch, and a run
in which nothing has changed."""

import contextlib
import copy

import pytest
import torch
from torch import nn

import longshore
from longshore.model.absent import Absent
from models import check_gradients, gpt2, tokens
from test_loop import engine_for

pytestmark = pytest.mark.usefixtures("one_thread")


def climb(parameters):
    """By how much sharpness-aware minimization moves each."""
    norm = torch.stack([p.grad.norm() for p in parameters]).norm()
    return [p.grad * (0.05 / norm) for p in parameters]


def push(parameters, by):
    with torch.no_grad():
        for p, e in zip(parameters, by):
            p.add_(e)


def sharp_in_pytorch(model, steps, **how):
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    parameters, losses = list(model.parameters()), []
    for step in steps:
        for batch in step:
            (model(**batch).loss / len(step)).backward()
        before, by = [p.detach().clone() for p in parameters], climb(parameters)
        push(parameters, by)
        optimizer.zero_grad()
        for batch in step:
            (model(**batch).loss / len(step)).backward()
        for p, value in zip(parameters, before):
            p.data.copy_(value)
        losses.append(model(**step[0]).loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def backwards(engine, step, how):
    if how == "together":
        engine.backward_together(step, lambda batch: engine.module(**batch).loss)
    for batch in () if how == "together" else step:
        if how == "plain":
            (engine(**batch).loss / len(step)).backward()
        else:
            engine.backward(engine(**batch).loss)


@pytest.mark.parametrize("how", ["plain", "engine", "together"])
def test_sharpness_aware_minimization(how, tmp_path, seed, monkeypatch):
    """With layers that take turns in a slot, and with all in memory; whatever computes the gradients."""
    steps = [tokens(4)[n : n + 2] for n in (0, 2)]
    model = gpt2()
    plain = copy.deepcopy(model)
    expected = sharp_in_pytorch(plain, steps, lr=1e-2, weight_decay=0.1)
    digests = set()
    for slots in 1, 3:
        ours = copy.deepcopy(model)
        with (
            monkeypatch.context() as patched,
            engine_for(
                ours,
                tmp_path,
                f"run{slots}",
                slots=slots,
                gradient_bytes=0 if slots == 1 else None,
                monkeypatch=patched,
                lr=1e-2,
                clip=0,
            ) as engine,
        ):
            engine.accumulate, parameters, losses = 2, list(ours.parameters()), []
            for step in steps:
                backwards(engine, step, how)
                by = climb(parameters)
                engine.optimizer.zero_grad()
                with longshore.resident(parameters, write="temporary"):
                    push(parameters, by)
                    backwards(engine, step, how)
                with torch.no_grad():
                    losses.append(engine(**step[0]).loss.item())
                engine.step()
            assert losses == pytest.approx(expected, rel=2e-5)
            assert engine.step_number == 2
            digests.add(engine.digest())
    assert len(digests) == 1


@pytest.mark.parametrize("how", [{}, {"slots": 1}, {"storage": "bf16"}, {"slots": 1, "storage": "bf16"}])
def test_averages_for_an_evaluation(how, tmp_path, seed, monkeypatch):
    """Put in by each way that there is, between backward() and step(), too; the run is that in which nobody did."""
    model, digests = gpt2(), []
    for n in range(2):
        ours = copy.deepcopy(model)
        with (
            monkeypatch.context() as patched,
            engine_for(ours, tmp_path, f"run{n}", monkeypatch=patched, **how) as engine,
        ):
            for batch in tokens(2):
                engine.backward(engine(**batch).loss)
                if n:
                    other = {name: p.detach() * 0.9 for name, p in ours.named_parameters()}
                    plain = copy.deepcopy(ours)
                    plain.load_state_dict(other, strict=False)
                    for give in (
                        lambda p, v: p.data.copy_(v),
                        lambda p, v: setattr(p, "data", v),
                        lambda p, v: p.detach().numpy().__setitem__(..., v),
                        None,
                    ):
                        loss = engine(**batch).loss.item()
                        with longshore.resident(ours, write="temporary"):
                            for name, p in ours.named_parameters() if give else ():
                                give(p, other[name].clone())
                            if give is None:
                                ours.load_state_dict(plain.state_dict())
                            with torch.no_grad():
                                assert torch.equal(engine(**batch).loss, plain(**batch).loss)
                                assert all(
                                    torch.equal(value, plain.state_dict()[name])
                                    for name, value in ours.state_dict().items()
                                )
                        assert engine(**batch).loss.item() == loss
                assert engine.step().step == engine.step_number
            digests.append(engine.digest())
            assert engine.step_number == 2 and all(type(p) is Absent for p in ours.parameters())
    assert digests[0] == digests[1]


def test_within_each_other_and_after_exceptions(tmp_path, seed):
    model, batch = gpt2(), tokens(1)[0]
    p, q = model.transformer.h[0].ln_1.weight, model.transformer.wte.weight
    with engine_for(model, tmp_path) as engine, torch.no_grad():
        digest, was, loss = engine.digest(), p.detach() * 1, engine(**batch).loss
        with longshore.resident([p, q, p], write="temporary"):
            p.mul_(2)
            outer = engine(**batch).loss
            with pytest.raises(ZeroDivisionError):
                with longshore.resident(model, write="temporary"):
                    p.mul_(2)
                    q.zero_()
                    assert torch.equal(p * 1, was * 4) and not torch.equal(engine(**batch).loss, outer)
                    1 / 0
            assert torch.equal(p * 1, was * 2) and torch.equal(engine(**batch).loss, outer)
            with longshore.resident(model.transformer.h[0]):
                assert torch.equal(p * 1, was * 2) and torch.equal(engine(**batch).loss, outer)
        with longshore.resident(p, write=True):
            p.add_(1)
            with longshore.resident(p, write="temporary"):
                p.zero_()
            assert torch.equal(p * 1, was + 1)
            p.sub_(1)
        assert torch.equal(p.detach() * 1, was) and torch.equal(engine(**batch).loss, loss)
        with pytest.raises(ValueError, match='False, True or "temporary"'):
            with longshore.resident(p, write="always"):
                pass
        with longshore.resident(p):
            p.mul_(2)
            p.div_(2)  # what is put back needs neither
        engine.settle()
        assert engine.digest() == digest or engine.step_number == 1  # write=True found the value changed, and equal
        assert torch.equal(engine(**batch).loss, loss)


def test_what_cannot_be_within_it(tmp_path, seed):
    """Steps and what saves them are refused, and no gradient is lost by it."""
    model, batch = gpt2(), tokens(1)[0]
    plain = copy.deepcopy(model)
    p = model.transformer.h[0].ln_1.weight
    plain(**batch).loss.backward()
    with engine_for(model, tmp_path) as engine:
        engine.backward(engine(**batch).loss)
        with longshore.resident(p, write="temporary"):
            for refused in (
                engine.step,
                engine.optimizer.step,
                lambda: engine.train_batch([batch]),
                lambda: engine.save_pretrained(tmp_path / "out"),
                lambda: model.load_state_dict(plain.state_dict()),
                lambda: contextlib.ExitStack().enter_context(longshore.resident(model.lm_head, write=True)),
            ):
                with pytest.raises(longshore.LongshoreError, match='write="temporary".*leave it first'):
                    refused()
        check_gradients(model, plain)
        assert engine.step().step == 1
        with longshore.resident(p, write="temporary"):
            engine.close()
        with pytest.raises(longshore.LongshoreError, match="resume"):
            p.detach()
        with pytest.raises(longshore.LongshoreError, match="resume"):
            with longshore.resident(p, write="temporary"):
                pass


def test_graphs_and_views_have_the_values_that_they_were_made_of(tmp_path, seed, monkeypatch):
    model, batch = gpt2(), tokens(1)[0]
    plain = copy.deepcopy(model)
    plain(**batch).loss.backward()
    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        loss = engine(**batch).loss
        with longshore.resident(model, write="temporary"), torch.no_grad():
            for p in model.parameters():
                p.mul_(2)
            kept = p.data
        engine.backward(loss)
        check_gradients(model, plain)
        assert torch.equal(
            kept,
            plain.lm_head.weight * 2
            if kept.shape == plain.lm_head.weight.shape
            else dict(plain.named_parameters())[p.longshore.name] * 2,
        )
        engine.drop_gradients()
        with longshore.resident(model, write="temporary"), torch.no_grad():
            for p, q in zip(model.parameters(), plain.parameters()):
                p.mul_(2)
                q.mul_(2)
            with torch.enable_grad():
                loss = engine(**batch).loss
        plain.zero_grad()
        plain(**batch).loss.backward()
        engine.backward(loss)
        check_gradients(model, plain)


def test_changes_between_graphs_that_send_activations(tmp_path, seed):
    """What is saved of other values stays in memory: changes of it have no version."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(2)])
    model[0][0].weight.requires_grad_(False)
    plain, x = copy.deepcopy(model), torch.randn(2, 512, requires_grad=True)
    losses = []
    for _ in range(2):
        plain[1][0].weight.data.mul_(2)
        plain[0][0].weight.data.mul_(2)
        losses.append(plain(x).square().mean())
    sum(losses).backward()
    with engine_for(model, tmp_path, memory="64MiB", activations="drives", activation_room="64MiB") as engine:
        with longshore.resident(model, write="temporary"):
            losses = []
            for _ in range(2):
                model[1][0].weight.data.mul_(2)
                model[0][0].weight.data.mul_(2)
                losses.append(engine(x).square().mean())
            engine.backward(sum(losses))
        check_gradients(model, plain)


def test_its_memory_is_the_budgets(tmp_path, seed):
    """State that is kept makes room, and comes back; what does not fit is refused with sizes."""
    model = nn.Sequential(*[nn.Linear(800, 800) for _ in range(4)])
    x = torch.randn(2, 800)
    with engine_for(model, tmp_path, memory="60MiB") as engine:
        engine._core.plan.again = None  # which may hold other things in memory
        for _ in range(3):
            engine.backward(engine(x).square().mean())
            engine.step()
        assert engine.memory().held <= engine.memory().budget
        before = engine.memory().state
        with longshore.resident(model, write="temporary"):
            assert engine.memory().held <= engine.memory().budget
            assert engine.memory().parameters >= engine._core.streams.tier.memory.nbytes + 4 * 800 * 801 * 4
            engine.backward(engine(x).square().mean())
            assert engine.memory().held <= engine.memory().budget
            with pytest.raises(
                longshore.BudgetError, match=r"temporary.*needs 9.*MiB, and of memory=60.00 MiB, .* is left: give "
            ):
                with contextlib.ExitStack() as many:
                    for _ in range(9):
                        many.enter_context(longshore.resident(model, write="temporary"))
        engine.step()
        engine.backward(engine(x).square().mean())
        assert before and engine.memory().state == before
        engine.step()
