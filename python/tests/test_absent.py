"""A parameter that is not there is never garbage and never a crash."""

import contextlib
import copy
import io

import pytest
import torch
from torch import nn

import longshore
from models import gpt2, tokens
from test_architectures import in_memory
from test_loop import engine_for


@pytest.fixture
def pair(tmp_path, seed, monkeypatch):
    model = gpt2()
    plain = copy.deepcopy(model)
    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        yield engine, plain


def test_questions_get_the_value(pair):
    engine, plain = pair
    for (name, p), (_, q) in zip(engine.module.named_parameters(), plain.named_parameters()):
        assert p.shape == q.shape and p.dtype == q.dtype and p.requires_grad and p.numel() == q.numel()
        with torch.no_grad():
            assert torch.equal(p.norm(), q.norm()), name
        assert torch.equal(p, q) and torch.allclose(p, q) and bool((p == q).all()) and bool(torch.isfinite(p).all())
        assert torch.equal(p.detach() * 1, q.detach()) and torch.equal(p.data * 1, q.data)
        assert isinstance(p, torch.nn.Parameter)
    state = engine.module.state_dict()
    for name, q in plain.state_dict().items():
        assert torch.equal(state[name] * 1, q), name
    file = io.BytesIO()
    torch.save({k: v for k, v in state.items()}, file)
    p = engine.module.transformer.h[0].mlp.c_fc.weight
    assert "tensor(" in repr(p)
    assert torch.equal(copy.deepcopy(p).data, plain.transformer.h[0].mlp.c_fc.weight.data)


def test_what_would_be_lost_is_refused_by_name(pair):
    engine, _ = pair
    p = engine.module.transformer.h[0].mlp.c_fc.weight
    name = "transformer.h.0.mlp.c_fc.weight"
    for lost in (
        lambda: p.add_(1),
        lambda: p.data.mul_(2),
        lambda: p.data.copy_(torch.zeros_like(p.data)),
        lambda: p.detach().zero_(),
        lambda: p.set_(torch.zeros(p.shape)),
        lambda: torch.nn.functional.dropout(p, inplace=True),
        lambda: p.__setitem__(0, 1.0),
        lambda: p.view(-1).mul_(2),
        lambda: p.data_ptr(),
    ):
        with pytest.raises(longshore.AbsentParameterError, match=f"{name}.*longshore.resident"):
            with torch.set_grad_enabled(True):
                lost()


def test_between_forward_and_backward(pair):
    engine, plain = pair
    a, b = tokens(2)
    loss = engine(**a).loss
    with torch.no_grad():
        other = engine(**b).loss
    assert torch.equal(other, plain(**b).loss)
    engine.backward(loss)
    with torch.no_grad():
        assert torch.equal(engine(**b).loss, other)
    engine.step()
    plain(**a).loss.backward()
    with torch.no_grad():
        assert not torch.equal(engine(**b).loss, other)


@pytest.mark.parametrize(
    "how", [{"do_sample": False}, {"do_sample": True, "top_k": 20, "temperature": 1.5, "num_return_sequences": 2}]
)
def test_generate(pair, seed, how):
    engine, plain = pair
    prompt = tokens(1)[0]["input_ids"][:, :4]
    told = []
    for model in (plain, engine.module):
        torch.manual_seed(seed)
        told.append(model.generate(prompt, max_new_tokens=6, **how))
    assert torch.equal(*told)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_with_dropout(tmp_path, seed, monkeypatch, reentrant):
    """The same bits in one slot, with everything in memory, and without checkpoints; and the losses of PyTorch."""
    digests, losses = [], []
    for n, (slots, checkpoints) in enumerate([(1, True), (3, True), (3, False)]):
        torch.manual_seed(seed)
        model = gpt2(dropout=0.1).train()
        if checkpoints:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            model.enable_input_require_grads()
        if not n:
            expected = in_memory(copy.deepcopy(model), seed, tokens(3))
        torch.manual_seed(seed)  # which the run takes
        with (
            monkeypatch.context() as patched,
            engine_for(model, tmp_path, f"run{n}", slots=slots, monkeypatch=patched) as engine,
        ):
            for batch in tokens(3):
                loss = engine(**batch).loss
                losses.append(loss.item())
                engine.backward(loss)
                engine.step()
            digests.append(engine.digest())
    assert len(set(digests)) == 1
    assert losses == pytest.approx(expected * 3, rel=2e-6)


@pytest.mark.parametrize("slots, storage", [(1, "fp32"), (3, "fp32"), (3, "bf16")])
def test_changes_that_have_no_version(slots, storage, tmp_path, seed, monkeypatch):
    """They are written back, or refused, as others are; and who holds a parameter outside keeps it."""
    model, batch = gpt2(), tokens(1)[0]
    plain = copy.deepcopy(model)
    p, q = model.transformer.h[1].ln_1.weight, plain.transformer.h[1].ln_1.weight
    with engine_for(model, tmp_path, slots=slots, monkeypatch=monkeypatch, storage=storage) as engine, torch.no_grad():
        for n, change in enumerate(
            (lambda p: p.data.mul_(3), lambda p: p.detach().numpy().__imul__(0.5), lambda p: setattr(p, "data", p + 1))
        ):
            with longshore.resident(model.transformer.h[1]):
                with longshore.resident(p, write=True):
                    change(p)
                change(q)
                assert torch.equal(p.data, q) and p.data_ptr() == p.longshore.view.data_ptr()
            assert engine.step_number == n + 1 and torch.equal(p.detach(), q)
            with pytest.raises(longshore.AbsentParameterError, match="h.1.ln_1.weight: was changed"):
                with longshore.resident(p):
                    change(p)
            assert torch.equal(p.detach(), q) and (
                storage == "bf16" or torch.equal(engine(**batch).loss, plain(**batch).loss)
            )
        with longshore.resident(model, write=True) if slots == 3 else longshore.resident(p, write=True):
            pass
        with pytest.raises(longshore.LongshoreError, match=r"h.1.ln_1.weight: is \[48\], and \[3\] was put"):
            with longshore.resident(p, write=True):
                p.data = torch.ones(3)
        assert engine.step_number == 3 and torch.equal(p.detach(), q)


def test_resident(pair):
    engine, plain = pair
    p, q = engine.module.transformer.h[1].ln_1.weight, plain.transformer.h[1].ln_1.weight
    with longshore.resident(p):
        assert torch.equal(p, q) and p.data_ptr()
    with pytest.raises(longshore.AbsentParameterError, match="ln_1.weight.*was changed"):
        with longshore.resident(p):
            with torch.no_grad():
                p.add_(1)
    with torch.no_grad():
        assert torch.equal(p * 1, q)
    batch = tokens(1)[0]
    with torch.no_grad():
        assert torch.equal(engine(**batch).loss, plain(**batch).loss)


def test_what_is_changed_within_resident_is_committed(pair):
    engine, plain = pair
    p, q = engine.module.transformer.h[1].ln_1.weight, plain.transformer.h[1].ln_1.weight
    with longshore.resident([p], write=True):
        with torch.no_grad():
            p.add_(0.25)
            q.add_(0.25)
    assert engine.step_number == 1
    batch = tokens(1)[0]
    with torch.no_grad():
        assert torch.equal(engine(**batch).loss, plain(**batch).loss)
    engine.backward(engine(**batch).loss)
    assert engine.step().step == 2


@pytest.mark.parametrize("convert", [lambda m: m.half(), lambda m: m.to(torch.float64), lambda m: m.to("meta")])
@pytest.mark.parametrize("present", [False, True])
def test_conversions_are_refused(pair, convert, present):
    engine, plain = pair
    batch = tokens(1)[0]
    if present:
        engine(**batch)
    refused = "weight.*(before (longshore.)?wrap|another module)"
    with pytest.raises((longshore.LongshoreError, RuntimeError), match=refused):
        convert(engine.module)
        engine.backward(engine(**batch).loss)
        engine.step()
    engine.drop_gradients()
    # where the conversion itself failed half way: says what is put back
    with contextlib.suppress(longshore.LongshoreError):
        engine(**batch)
    with torch.no_grad():
        assert torch.equal(engine(**batch).loss, plain(**batch).loss)
    assert engine.step_number == 0


def test_what_a_model_is_already_it_may_be_converted_to(pair):
    engine, plain = pair
    batch = tokens(1)[0]
    p = next(engine.module.parameters())
    for convert in (
        lambda m: m.to("cpu"),
        lambda m: m.float(),
        lambda m: m.cpu(),
        lambda m: m.to("cpu", torch.float32, non_blocking=True),
    ):
        assert convert(engine.module) is engine.module
        engine.backward(convert(engine.module)(**batch).loss)  # in memory, too
    assert next(engine.module.parameters()) is p and p.to(p) is p
    with torch.no_grad():
        assert p.to("cpu", copy=True) is not p
        assert p.to(torch.float64).dtype == torch.float64
        assert torch.equal(engine(**batch).loss, plain(**batch).loss)


def test_resizing_is_refused(pair):
    engine, plain = pair
    batch = tokens(1)[0]
    with pytest.raises(longshore.AbsentParameterError, match="wte.weight.*resize.*before longshore.wrap"):
        engine.module.resize_token_embeddings(120)
    with pytest.raises(longshore.LongshoreError, match="lm_head.weight|wte.weight"):
        engine.module.transformer.wte.weight = torch.nn.Parameter(torch.zeros(96, 48))
        engine(**batch)
    with torch.no_grad():
        assert torch.equal(engine(**batch).loss, plain(**batch).loss)


def test_a_state_that_is_loaded_after_wrap(pair):
    """Is committed, also within resident(); what was computed before is not differentiated, as in PyTorch."""
    engine, plain = pair
    batch = tokens(1)[0]
    before = copy.deepcopy(plain.state_dict())
    other = {name: value + 0.125 for name, value in before.items()}
    plain.load_state_dict(other)
    engine.module.load_state_dict(other)
    loss = engine(**batch).loss
    assert torch.equal(loss, plain(**batch).loss)
    engine.module.load_state_dict(before)
    with pytest.raises((RuntimeError, longshore.LongshoreError), match="step|modified"):
        engine.backward(loss)
    plain.load_state_dict(before)
    with torch.no_grad():
        assert torch.equal(engine(**batch).loss, plain(**batch).loss)
    assert engine.step_number == 2
    layers = engine.module.transformer.h
    for n, layer in enumerate(layers):
        with longshore.resident(layer, write=True):
            layer.load_state_dict({name: other[f"transformer.h.{n}.{name}"] for name in layer.state_dict()})
    assert engine.step_number == len(layers) + 2
    plain.transformer.h.load_state_dict(
        {name.removeprefix("transformer.h."): v for name, v in other.items() if ".h." in name}
    )
    with torch.no_grad():
        assert torch.equal(engine(**batch).loss, plain(**batch).loss)
    engine.backward(engine(**batch).loss)
    assert engine.step().step == len(layers) + 3


def test_parts_of_the_model_called_by_themselves(tmp_path, seed, monkeypatch):
    """What they save is found again in backward, whoever has the slot then."""
    model = gpt2()
    plain = copy.deepcopy(model)
    ids = tokens(1)[0]["input_ids"]
    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        model.transformer(ids).last_hidden_state.square().mean().backward()
        norm = engine.grad_norm()
    plain.transformer(ids).last_hidden_state.square().mean().backward()
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1e9)
    assert abs(norm - expected.item()) <= 1e-5 * expected.item()


def test_what_is_looked_at_after_a_forward_is_no_view_of_a_slot(tmp_path, seed, monkeypatch):
    model = gpt2()
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    batch = tokens(1)[0]
    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        loss = engine(**batch).loss
        state = model.state_dict()
        last = model.transformer.h[2].mlp.c_fc.weight.detach()
        engine.backward(loss)  # other blocks come into the slot
        for name, value in plain.items():
            if ".h." in name:
                assert torch.equal(state[name] * 1, value), name
        assert torch.equal(last * 1, plain["transformer.h.2.mlp.c_fc.weight"])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_layers_that_share_a_slot(reentrant, tmp_path, seed, monkeypatch):
    class Together(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(
                [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(3)]
            )

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(
                lambda x: self.layers[2](self.layers[1](self.layers[0](x))), x, use_reentrant=reentrant
            )

    model = Together()
    plain = copy.deepcopy(model)
    x = torch.randn(4, 16, requires_grad=True)
    plain(x).square().mean().backward()
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1e9).item()
    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        if not reentrant:
            with pytest.raises(longshore.LongshoreError, match="checkpoint each layer"):
                engine.backward(engine(x).square().mean())
            return
        engine.backward(engine(x).square().mean())
        assert abs(engine.grad_norm() - expected) <= 1e-5 * expected


def test_copies_and_files_hold_values(pair):
    engine, plain = pair
    batch = tokens(1)[0]
    engine(**batch)
    state = engine.module.state_dict()
    copied = copy.deepcopy(engine.module)
    file, values = io.BytesIO(), io.BytesIO()
    torch.save(engine.module, file)
    torch.save(state, values)
    assert "GPT2LMHeadModel" in str(engine.module)
    engine.backward(engine(**batch).loss)
    engine.step()
    file.seek(0)
    values.seek(0)
    loaded = torch.load(file, weights_only=False)
    read = torch.load(values, weights_only=True)
    for name, q in plain.state_dict().items():
        assert torch.equal(read[name], q), name
    engine.close()
    for other in (copied, loaded):
        loss = other(**batch).loss
        assert torch.equal(loss, plain(**batch).loss)
        loss.backward()
        assert all(p.grad is not None for p in other.parameters())


def test_an_optimizer_of_others_is_refused(pair):
    engine, _ = pair
    other = torch.optim.SGD(engine.module.parameters(), lr=0.1)
    engine.backward(engine(**tokens(1)[0]).loss)
    with pytest.raises(longshore.LongshoreError, match="transformer.wte.weight.*engine.step.*SGD"):
        other.step()
    assert engine.step().step == 1


def test_views_of_weights_cannot_be_written(tmp_path, seed):
    """Outside of resident(): what would be lost raises, through whatever view."""
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])
    with engine_for(layers, tmp_path) as engine, torch.no_grad():
        w = engine.module[0][0].weight
        for write in (
            lambda: w[0].zero_(),
            lambda: w.data[0].fill_(1),
            lambda: w.view(-1).__setitem__(0, 1),
            lambda: w.t().mul_(0),
            lambda: [r.zero_() for r in w],
            lambda: w.detach()[1:].add_(1),
            lambda: nn.init.zeros_(w[1:]),
            lambda: w.diagonal().fill_(0),
            lambda: w.unbind()[0].zero_(),
            lambda: w.data.view(-1)[2:].copy_(torch.ones(62)),
            lambda: w.chunk(2)[1].__imul__(2),
            lambda: torch.mul(w, 2, out=w.data[:]),
            lambda: torch._foreach_mul_([w.data], 2),
            lambda: nn.init.normal_(w.data),
            lambda: nn.init.kaiming_uniform_(w.data[1:]),
            lambda: nn.init.constant_(w, 1.0),
            lambda: torch.ops.aten.mul_.Scalar(w.data, 2),
            lambda: torch.ops.aten.zero_(w),
        ):
            with pytest.raises(longshore.AbsentParameterError, match=r"0.0.weight: .*longshore.resident"):
                write()
        with pytest.raises(ValueError, match="read-only"):
            w.detach().numpy()[0] = 1
        row = w[0].clone()
        row.zero_()
        assert type(w[0] + 1) is torch.Tensor and w[0].abs().sum() > 0
        with longshore.resident(w, write=True):
            w[0].zero_()
        assert w[0].abs().sum() == 0
