"""Scripts that generate while they train, and that hold several engines: what they reach for in ZeRO-3 is there, with
PyTorch's numbers."""

import copy
import itertools
import os

import pytest
import torch
from torch.nn import functional as F

import longshore.deepspeed as deepspeed
from longshore.deepspeed.zero import GatheredParameters
from models import gpt2, tokens


def made(model, path, trains=True):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": str(path)}},
    }
    if trains:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-2}}
    return deepspeed.initialize(model=model, config=config)[0]


def hooks_off(engine):
    """As TRL and OpenRLHF take ZeRO-3's hooks off."""
    # of one that is not trained it is the optimizer
    offload = getattr(engine.optimizer, "parameter_offload", engine.optimizer)
    for _, p in itertools.chain(offload.module.named_parameters(), offload.module.ds_external_parameters()):
        p.ds_active_sub_modules.clear()
    for hook in offload.forward_hooks + offload.backward_hooks:
        hook.remove()
    offload.forward_hooks = offload.backward_hooks = []


def hooks_on(engine):
    # of one that is not trained it is the optimizer
    offload = getattr(engine.optimizer, "parameter_offload", engine.optimizer)
    if not offload.param_coordinator.is_invalid_trace():
        offload.param_coordinator._invalidate_trace()
    offload._register_deepspeed_module(offload.module)


def generated(model, prompt):
    model.eval()
    out = model.generate(prompt, max_new_tokens=6, do_sample=True, pad_token_id=0)
    model.train()
    return out


def plain_step(model, optimizer, loss):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)


def test_generates_with_hooks_taken_off(tmp_path, seed):
    plain = gpt2()
    engine, optimizer = made(copy.deepcopy(plain), tmp_path), adamw(plain)
    reference, still = made(copy.deepcopy(plain), tmp_path, trains=False), copy.deepcopy(plain)
    for batch in tokens(2):
        for ours, theirs in ((reference, still), (engine, plain)):
            torch.manual_seed(seed)
            expected = generated(theirs, batch["input_ids"])
            torch.manual_seed(seed)
            with GatheredParameters(ours.parameters()):
                hooks_off(ours)
                found = generated(ours.module, batch["input_ids"])
                hooks_on(ours)
            assert torch.equal(found, expected)
        losses = [model(input_ids=found, labels=found).loss for model in (engine, plain)]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
        engine.backward(losses[0])
        engine.step()
        plain_step(plain, optimizer, losses[1])
    with pytest.raises(deepspeed.LongshoreError, match="step: initialize.. was given no optimizer"):
        reference.step()
    for of in (engine, reference):
        of.destroy()


def test_a_second_engine_follows_the_first(tmp_path, seed, caplog):
    """Parameters of two engines, gathered together: each is its own engine's, and both are written back where they
    changed."""
    plain, slow = gpt2(), gpt2()
    engine, follower = made(copy.deepcopy(plain), tmp_path), made(copy.deepcopy(slow), tmp_path, trains=False)
    optimizer = adamw(plain)
    for batch in tokens(2):
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        plain_step(plain, optimizer, plain(**batch).loss)
        with GatheredParameters(list(engine.module.parameters()) + list(follower.module.parameters()), modifier_rank=0):
            for p, q in zip(follower.module.parameters(), engine.module.parameters()):
                p.data.mul_(0.5).add_(q.data, alpha=0.5)
        with torch.no_grad():
            for p, q in zip(slow.parameters(), plain.parameters()):
                p.mul_(0.5).add_(q, alpha=0.5)
            for ours, theirs in ((engine, plain), (follower, slow)):
                assert ours(**batch).loss.item() == pytest.approx(theirs(**batch).loss.item(), rel=1e-5)
    for of in (engine, follower):
        of.destroy()


class Distance(torch.autograd.Function):
    """A loss of two heads that is computed and differentiated by hand, as fused ones are."""

    @staticmethod
    def forward(ctx, a, weight_a, b, weight_b):
        ctx.save_for_backward(a, weight_a, b, weight_b)
        return (F.linear(a, weight_a) - F.linear(b, weight_b)).square().mean()

    @staticmethod
    def backward(ctx, gradient):
        a, weight_a, b, weight_b = ctx.saved_tensors
        apart = F.linear(a, weight_a) - F.linear(b, weight_b)
        apart = apart * (2 * gradient / apart.numel())
        return apart @ weight_a, apart.flatten(0, 1).t() @ a.flatten(0, 1), None, None


class Student(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.inner, self.head = gpt2(layers=layers).transformer, torch.nn.Linear(48, 96, bias=False)

    def forward(self, input_ids, teacher=None):
        hidden = self.inner(input_ids).last_hidden_state
        if teacher is None:
            return hidden
        with torch.no_grad():
            theirs = teacher(input_ids)
        return Distance.apply(hidden, self.head.weight, theirs, getattr(teacher, "module", teacher).head.weight)


def test_heads_of_two_engines_in_a_function_of_the_script(tmp_path, seed):
    plain, teacher = Student(2), Student(3)
    engine, master = made(copy.deepcopy(plain), tmp_path), made(copy.deepcopy(teacher), tmp_path, trains=False)
    optimizer = adamw(plain)
    for batch in tokens(3):
        loss, expected = engine(batch["input_ids"], master), plain(batch["input_ids"], teacher)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        engine.backward(loss)
        engine.step()
        plain_step(plain, optimizer, expected)
    late = engine(batch["input_ids"], master)
    engine.backward(engine(batch["input_ids"], master))
    engine.step()
    with pytest.raises(deepspeed.LongshoreError, match="has been updated since the forward pass"):
        engine.backward(late)
    for of in (engine, master):
        of.destroy()


def test_where_a_second_model_lies(tmp_path, seed, caplog, monkeypatch):
    """A directory that had to be made is said, and runs of this job are not those of earlier ones."""
    engine = made(gpt2(), tmp_path / "nvme")
    assert f"nvme_path: made {tmp_path}/nvme on the file system of /" in caplog.text
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}
    # as TRL writes it, where offload_optimizer alone had a path
    follower = deepspeed.initialize(model=gpt2(), config=config)[0]
    assert (
        os.path.dirname(follower.engine._core.state.path) == str(tmp_path / "nvme")
        and "its state lies beside the first one's" in caplog.text
    )
    assert "runs of earlier jobs" not in caplog.text and caplog.text.count("nvme_path: made") == 1
    for of in (engine, follower):
        of.destroy()
    with pytest.raises(deepspeed.ConfigError, match="where is the state to live"):
        deepspeed.initialize(model=gpt2(), config=config)
    theirs = {"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path / "theirs")}}}
    monkeypatch.setattr("transformers.integrations.deepspeed.deepspeed_config", lambda: theirs)
    alone = deepspeed.initialize(model=gpt2(), config=config)[0]  # before the model that is trained, as TRL does
    assert os.path.dirname(alone.engine._core.state.path) == str(tmp_path / "theirs")
    alone.destroy()
