"""step() of nothing is refused; of what a script has put into p.grad itself it is PyTorch's."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import longshore
from longshore import deepspeed
from test_loop import engine_for

X = torch.linspace(-1, 1, 24).reshape(3, 8)


def layers():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))


def same(model, plain):
    return all(
        torch.allclose(p.detach() + 0, q, rtol=1e-6, atol=1e-7) for p, q in zip(model.parameters(), plain.parameters())
    )


@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
def test_a_step_of_nothing(on_nonfinite, tmp_path, seed):
    with engine_for(layers(), tmp_path, on_nonfinite=on_nonfinite) as engine:
        digest = engine.digest()
        engine(X).sum()  # forgotten: backward()
        with pytest.raises(
            longshore.LongshoreError, match=r"step: there was no backward pass since step 0; .*engine.backward\("
        ):
            engine.step()
        engine.optimizer.step()  # which does nothing, as torch.optim's
        assert engine.step_number == 0 and engine.digest() == digest
        engine.backward(engine(X).sum())
        engine.step()
        with pytest.raises(longshore.LongshoreError, match="since step 1"):
            engine.step()
        assert engine.step_number == 1


def test_after_a_pass_that_failed(tmp_path, seed):
    with engine_for(layers(), tmp_path) as engine:
        with pytest.raises(RuntimeError):
            engine.backward(engine(X).sum().detach())
        with pytest.raises(longshore.LongshoreError, match="there was no backward pass"):
            engine.step()
        engine.backward(engine(X).sum() * float("nan"))
        with pytest.raises(longshore.NotFiniteError):
            engine.step()
        with pytest.raises(longshore.LongshoreError, match="there was no backward pass"):
            engine.step()
        assert engine.step_number == 0


def test_after_gradients_were_dropped(tmp_path, seed):
    with engine_for(layers(), tmp_path) as engine:
        for run in (engine.backward, torch.Tensor.backward):
            run(engine(X).sum())
            engine.drop_gradients()
            with pytest.raises(longshore.LongshoreError, match="there was no backward pass"):
                engine.step()
        engine.optimizer.step()
        assert engine.step_number == 0
        engine.backward(engine(X).sum())
        engine.step()


@pytest.mark.parametrize("slots", [1, None])
def test_passes_that_bring_nothing_make_a_step_as_in_pytorch(slots, tmp_path, seed, monkeypatch):
    """Gradients that were dropped after they had come."""
    with engine_for(layers(), tmp_path, slots=slots, monkeypatch=monkeypatch) as engine:
        before = [p.detach().clone() for p in engine.module.parameters()]
        engine(X).sum().backward()
        engine.optimizer.zero_grad()
        engine.optimizer.step()
        assert engine.step_number == 1
        assert all(torch.equal(p.detach() + 0, q) for p, q in zip(engine.module.parameters(), before))


def test_a_loss_of_another_graph(tmp_path, seed):
    """Is refused before anything is dropped."""
    model = layers()
    same_model = copy.deepcopy(model)
    with engine_for(model, tmp_path, "a") as engine, engine_for(layers(), tmp_path, "b") as other:
        engine.accumulate = 2
        engine.backward(engine(X).sum())
        for loss, said in (
            (torch.ones(1, requires_grad=True).sum(), "no trained parameter of this engine's model is in the graph"),
            (other(X).sum(), "no trained parameter of this engine's model"),
            (other.module[0].weight.square().sum(), "no trained parameter of this engine's model"),
            (engine(X).sum().detach(), "the loss has no graph"),
        ):
            with pytest.raises(longshore.LongshoreError, match=said):
                engine.backward(loss)
        engine.backward(engine.module[0].weight.square().sum())
        engine.step()
        expected = engine.digest()
    with engine_for(same_model, tmp_path, "c") as engine:
        engine.accumulate = 2
        engine.backward(engine(X).sum())
        engine.backward(engine.module[0].weight.square().sum())
        engine.step()
        assert engine.digest() == expected


def test_a_micro_batch_whose_loss_is_of_another_graph(tmp_path, seed):
    """No step is made of it."""
    with engine_for(layers(), tmp_path, "a") as engine, engine_for(layers(), tmp_path, "b") as other:
        ones = torch.ones(1, requires_grad=True)
        for loss, kind, said in (
            (lambda output: other(X).sum(), longshore.LongshoreError, "no trained parameter of this engine's model"),
            (lambda output: ones.sum(), longshore.LongshoreError, "no trained parameter of this engine's model"),
            (lambda output: output.sum().detach(), longshore.LongshoreError, "the loss has no graph"),
            (lambda output: output, ValueError, "a tensor of one element"),
            (lambda output: None, ValueError, "a tensor of one element"),
        ):
            for batches in ([X], [X, X + 1], [X + 1, X]):
                with pytest.raises(kind, match=f"^train_batch: .*{said}"):
                    engine.train_batch(batches, lambda output, x, loss=loss: loss(output) if x is X else output.sum())
        assert engine.step_number == 0
        engine.train_batch([X, X], lambda output, x: output.sum())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_loss_whose_graph_a_checkpoint_hides(reentrant, tmp_path, seed):
    """Only the recomputation of the checkpoint leads to the parameters."""
    with engine_for(layers(), tmp_path) as engine:
        x = X.clone().requires_grad_()
        engine.backward(checkpoint(engine, x, use_reentrant=reentrant).sum())
        assert engine.step().grad_norm > 0


@pytest.mark.parametrize("slots", [1, None])
@pytest.mark.parametrize("passes", [0, 1, 2])
def test_gradients_that_a_script_sets_itself(passes, slots, tmp_path, seed, monkeypatch):
    """As evolution strategies do; passes: backward passes through the first layer alone, before."""
    model = layers()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1)
    with engine_for(model, tmp_path, slots=slots, monkeypatch=monkeypatch, clip=0.0) as engine:
        for step in range(3):
            for m in (model, plain):
                torch.manual_seed(step)
                for _ in range(passes):
                    m[0](X).square().mean().backward()
                for p in m[1:].parameters():
                    p.grad = torch.randn(p.shape)
            engine.step()
            optimizer.step()
            optimizer.zero_grad()
        assert engine.step_number == 3 and same(model, plain)


def test_under_deepspeed(tmp_path, seed):
    model = layers()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 3,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "longshore": {"run": str(tmp_path / "run")},
        },
    )
    for _ in range(2):
        engine.backward(engine(X).sum())
        engine.step()
    assert engine.global_steps == 1
    engine.step()
    with pytest.raises(longshore.LongshoreError, match="there was no backward pass"):
        engine.step()
    assert engine.global_steps == 1
    engine.destroy()
