"""wrap(fused_loss=True): the loss of a causal model's head in slices of tokens is PyTorch's, to rounding."""

import copy
import types
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import longshore
import models
from longshore.model import sliced_loss

VOCAB = models.VOCAB


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCAB,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    )


def biased():
    """A head with a bias, which its configuration does not have."""
    model = models.llama()
    model.lm_head = nn.Linear(48, VOCAB)
    return model


MODELS = {"gpt2": models.gpt2, "llama": models.llama, "qwen2": qwen2, "bias": biased, "bert": models.bert}


@pytest.fixture(autouse=True)
def slices(monkeypatch):
    """Of 5 tokens, and the sizes of all logits that were computed in them."""
    monkeypatch.setattr(sliced_loss, "SLICE_TOKENS", 5)
    seen, compute = [], sliced_loss.Slices._compute

    def counted(self, hidden, *args):
        seen.append(len(hidden))
        return compute(self, hidden, *args)

    monkeypatch.setattr(sliced_loss.Slices, "_compute", counted)
    return seen


@pytest.fixture
def whole(monkeypatch):
    """How often the head was computed as PyTorch does."""
    seen, compute = [], sliced_loss.Logits._whole
    monkeypatch.setattr(sliced_loss.Logits, "_whole", lambda self: (seen.append(1), compute(self))[1])
    return seen


def wrapped(model, path, fused_loss=True, **how):
    return longshore.wrap(model, run=path / "run", memory="64MiB", lr=1e-2, fused_loss=fused_loss, **how)


def pair(make, dtype=torch.float32):
    model = make().to(dtype)
    return model, copy.deepcopy(model)


def batch(masked=True, seed=3):
    out = models.tokens(1, seed=seed)[0]
    if masked:
        out["labels"][0, 3:7] = -100
    return out


def close(a, b, bound=2e-6):
    a, b = torch.as_tensor(a).float(), torch.as_tensor(b).float()
    return (a - b).norm().item() <= bound * max(b.norm().item(), 1e-3)


def check(engine, plain, bound=2e-6):
    for (name, p), q in zip(engine.module.named_parameters(), plain.parameters()):
        assert (p.grad is None) == (q.grad is None), name
        assert q.grad is None or close(p.grad, q.grad, bound), name


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients(name, tmp_path, seed, slices, whole):
    model, plain = pair(MODELS[name])
    with wrapped(model, tmp_path) as engine:
        for n in range(2):  # the second step begins with weights of the first
            expected = plain(**batch(seed=n)).loss
            expected.backward()
            loss = engine(**batch(seed=n)).loss
            assert close(loss.detach(), expected.detach())
            engine.backward(loss)
            check(engine, plain)
            engine.step()
            engine.settle()
            plain.load_state_dict(engine.module.state_dict())
            plain.zero_grad()
            engine.module.zero_grad()
    assert slices and not whole


@pytest.mark.parametrize(
    "more",
    [
        {"num_items_in_batch": 7},
        {"num_items_in_batch": torch.tensor(7)},
        {"ignore_index": 4},
        {"shift_labels": True},
        {"logits_to_keep": 4},
    ],
    ids=str,
)
def test_what_the_loss_is_told(more, tmp_path, seed, slices, whole):
    given = batch()
    if "ignore_index" in more:
        given["labels"][:, 2:5] = 4
        given["labels"][given["labels"] == -100] = 4
    if "shift_labels" in more:
        more = {"shift_labels": given["labels"].roll(2, 1)}
    if "logits_to_keep" in more:
        given["labels"] = given["labels"][:, -4:]
    model, plain = pair(models.llama)
    expected = plain(**given, **more).loss
    expected.backward()
    with wrapped(model, tmp_path) as engine:
        loss = engine(**given, **more).loss
        assert close(loss.detach(), expected.detach())
        engine.backward(loss)
        check(engine, plain)
    assert slices and not whole


class Largest(TorchDispatchMode):
    """Notes the most tokens whose logits, or gradients of them, an operation makes."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.dim() > 1 and t.shape[-1] == VOCAB and t.shape != (48, VOCAB):
                self.most = max(self.most, t.shape[:-1].numel())
        return out


def test_whole_logits_never_exist(tmp_path, seed):
    given = models.tokens(1, batch=40, length=12)[0]
    most = []
    for fused in (True, False):
        (tmp_path / str(fused)).mkdir()
        model = models.llama()
        with wrapped(model, tmp_path / str(fused), fused) as engine:
            seen = Largest()
            with seen:
                engine.backward(engine(**given).loss)
            most.append(seen.most)
    assert most == [sliced_loss.SLICE_TOKENS, 40 * 12]


def test_bytes_that_it_takes():
    """The logits of a slice, of all tokens what a hidden state has, and the gradient of the head."""
    slice_of = sliced_loss.SLICE_TOKENS  # 5
    taken = sliced_loss.most_bytes(1000, (VOCAB, 48), torch.float32)
    assert 4 * (slice_of * VOCAB + 1000 * 48 + VOCAB * 48) <= taken < 4 * (slice_of * VOCAB + 1000 * 58 + VOCAB * 48)
    assert sliced_loss.most_bytes(1000, (VOCAB, 48), torch.float32, trains=False) == taken - 4 * VOCAB * 48


def test_one_slice_is_in_memory_at_a_time(tmp_path, monkeypatch):
    seen, linear = [], sliced_loss.functional.linear

    def noted(*given):
        assert all(before() is None for before in seen)
        made = linear(*given)
        seen.append(weakref.ref(made))
        return made

    monkeypatch.setattr(sliced_loss, "functional", types.SimpleNamespace(**{**vars(functional), "linear": noted}))
    with wrapped(models.gpt2(), tmp_path) as engine:
        engine.backward(engine(**batch()).loss)
    assert len(seen) > 2


def test_no_token_counts(tmp_path, seed):
    model, plain = pair(models.gpt2)
    given = batch()
    given["labels"][:] = -100
    plain(**given).loss.backward()
    with wrapped(model, tmp_path) as engine:
        loss = engine(**given).loss
        assert loss.isnan()
        loss.backward()
        check(engine, plain)
        given["labels"][0, 3] = VOCAB
        with pytest.raises(IndexError, match=f"Target {VOCAB} is out of bounds"):
            engine(**given)


@pytest.mark.parametrize("when", ["before", "after"])
def test_logits_are_looked_at(when, tmp_path, seed, slices, whole, recwarn):
    model, plain = pair(models.gpt2)
    expected = plain(**batch())
    with wrapped(model, tmp_path) as engine:
        out = engine(**batch())
        logits = out.logits
        assert isinstance(logits, torch.Tensor) and logits.shape == expected.logits.shape and logits.requires_grad
        assert logits.dtype == torch.float32 and logits.size(-1) == VOCAB and len(logits) == 2 and not whole
        if when == "after":
            engine.backward(out.loss)
        assert torch.equal(logits.detach(), expected.logits) and torch.equal(out[1].argmax(-1), expected[1].argmax(-1))
        assert torch.equal(torch.as_tensor(logits.detach().numpy()), expected.logits.detach())
        assert repr(logits).startswith("tensor([[[")
        if when == "before":  # a loss of the logits counts, too
            (out.loss + logits.logsumexp(-1).square().mean()).backward()
            (expected.loss + expected.logits.logsumexp(-1).square().mean()).backward()
            check(engine, plain)
        assert len(whole) == 1 and sum("reads logits" in str(w.message) for w in recwarn) == 1
        engine.step()
        assert torch.equal(logits.detach(), expected.logits)  # they have values by now
        late = engine(**batch())
        engine.backward(late.loss)
        engine.step()
        with pytest.raises(longshore.LongshoreError, match="read them before step"):
            late.logits.sum()


def test_gradients_of_logits_are_refused(tmp_path, seed):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x.sum()

        @staticmethod
        def backward(ctx, gradient):
            return (gradient * 2).expand(2, 12, VOCAB)

    with wrapped(models.gpt2(), tmp_path) as engine:
        out = engine(**batch())
        for ask in (
            lambda: out.logits.retain_grad(),
            lambda: out.logits.register_hook(print),
            lambda: out.logits.grad,
            lambda: torch.autograd.grad(out.loss, out.logits),
        ):
            with pytest.raises(longshore.LongshoreError, match="leaves no gradient of its logits"):
                ask()
        twice = Twice.apply(out.logits)
        assert close(twice.detach(), 2 * out.logits.detach().sum())
        with pytest.raises(longshore.LongshoreError, match=r"torch\.autograd\.Function"):
            twice.backward()
        engine.drop_gradients()


OWN = {
    "own cross entropy": lambda out, labels: functional.cross_entropy(out.logits.view(-1, VOCAB), labels.view(-1)),
    "shifted": lambda out, labels: functional.cross_entropy(
        out.logits[..., :-1, :].reshape(-1, VOCAB), labels[:, 1:].reshape(-1)
    ),
    "smoothed": lambda out, labels: functional.cross_entropy(
        out.logits.view(-1, VOCAB), labels.view(-1), label_smoothing=0.1
    ),
    "weighted": lambda out, labels: nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1, VOCAB))(
        out.logits.view(-1, VOCAB), labels.view(-1)
    ),
    "per token": lambda out, labels: functional.cross_entropy(
        out.logits.transpose(1, 2), labels, reduction="none"
    ).mean(),
    "soft cap": lambda out, labels: functional.cross_entropy(
        (torch.tanh(out.logits / 3) * 3).view(-1, VOCAB), labels.view(-1)
    ),
    "policy": lambda out, labels: out.logits.log_softmax(-1).gather(-1, labels.clamp(0)[..., None]).mean(),
    "changed": lambda out, labels: functional.cross_entropy(out.logits.mul_(0.5).view(-1, VOCAB), labels.view(-1)),
}


@pytest.mark.parametrize("name", OWN)
def test_a_loss_of_the_scripts_own(name, tmp_path, seed):
    model, plain = pair(models.gpt2)
    expected = OWN[name](plain(**batch()), batch()["labels"])
    expected.backward()
    with wrapped(model, tmp_path) as engine:
        loss = OWN[name](engine(**batch()), batch()["labels"])
        assert close(loss.detach(), expected.detach())
        engine.backward(loss)
        check(engine, plain)


def test_hooks_of_the_head(tmp_path, seed, slices):
    model, plain = pair(models.gpt2)
    expected = plain(**batch())
    seen = []
    with wrapped(model, tmp_path) as engine:
        handle = model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output))
        out = engine(**batch())
        assert torch.equal(out.logits, expected.logits) and type(seen[0]) is torch.Tensor and not slices
        handle.remove()
        engine(**batch())
        assert slices


@pytest.mark.parametrize("whole_model", [True, False])
def test_a_compiled_model(whole_model, tmp_path, seed, slices, whole):
    model, plain = pair(models.llama)
    expected = plain(**batch()).loss
    expected.backward()
    (model if whole_model else model.lm_head).compile(backend="eager")
    with wrapped(model, tmp_path) as engine:
        out = engine(**batch())
        assert close(out.loss.detach(), expected.detach()) and slices and not whole
        engine.backward(out.loss)
        check(engine, plain)
        assert close(out.logits.detach(), plain(**batch()).logits.detach())


def test_evaluation_and_generation(tmp_path, seed, slices, whole):
    model, plain = pair(models.gpt2)
    with wrapped(model, tmp_path) as engine:
        engine.eval()
        plain.eval()
        with torch.no_grad():
            out, expected = engine(**batch()), plain(**batch())
            assert close(out.loss, expected.loss) and not out.loss.requires_grad and slices and not whole
            assert torch.equal(out.logits, expected.logits) and not out.logits.requires_grad
        with torch.inference_mode():
            assert close(engine(**batch()).loss, expected.loss)
        ids = batch()["input_ids"]
        found = engine.module.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
        assert torch.equal(found, plain.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_micro_batches(name, together, tmp_path, seed, slices, whole):
    """Whether computed one after the other or together; where layers come and go, too."""
    model, plain = pair(MODELS[name])
    batches = [batch(seed=n) for n in range(3)]
    for b in batches:
        (plain(**b).loss / 3).backward()
    with wrapped(model, tmp_path) as engine:
        if together:
            losses = engine.backward_together(batches, lambda b: engine(**b).loss)
            assert all(close(loss, plain(**b).loss.detach()) for loss, b in zip(losses, batches))
        else:
            for b in batches:
                engine.accumulate = 3
                engine.backward(engine(**b).loss)
        check(engine, plain)
        engine.step()
    assert not whole and len(slices) in ((5, 6) if together else (3,))  # the first may run alone first


def test_a_graph_that_is_kept(tmp_path, seed, slices):
    model, plain = pair(models.gpt2)
    expected = plain(**batch()).loss
    with wrapped(model, tmp_path) as engine:
        loss = engine(**batch()).loss
        for n in range(2):
            expected.backward(retain_graph=n == 0)
            loss.backward(retain_graph=n == 0)
        check(engine, plain)
        assert len(slices) == 2
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_bf16_and_autocast(tmp_path, seed, slices, whole):
    model, plain = pair(models.gpt2, torch.bfloat16)
    with wrapped(model, tmp_path) as engine:
        expected, out = plain(**batch()), engine(**batch())
        assert out.logits.dtype == torch.bfloat16 and close(out.loss.detach(), expected.loss.detach(), 1e-5)
        expected.loss.backward()
        engine.backward(out.loss)
        check(engine, plain, 2e-2)
    (tmp_path / "cast").mkdir()
    model, plain = pair(models.llama)
    with wrapped(model, tmp_path / "cast") as engine, torch.autocast("cpu", torch.bfloat16):
        expected, out = plain(**batch()), engine(**batch())
        assert out.logits.dtype == torch.bfloat16 and close(out.loss.detach(), expected.loss.detach(), 1e-5)
        expected.loss.backward()
        engine.backward(out.loss)
        check(engine, plain, 2e-2)
        assert slices and not whole
        assert torch.equal(engine(**batch()).logits, plain(**batch()).logits)


@pytest.mark.parametrize("together", [False, True])
def test_a_scaler_of_float16(together, tmp_path, seed, slices, whole):
    """The tokens that count are those of which the model is sure: without the scaler's factor, gradients of their
    logits are below float16's numbers."""
    (model, plain), given, factor = pair(models.llama), models.tokens(2, 32, 32), 2.0**14
    with torch.autocast("cpu", torch.float16):
        with torch.no_grad():
            for each in (model, plain):
                each.lm_head.weight.mul_(60)
            for b in given:
                chosen = plain(b["input_ids"]).logits.float().log_softmax(-1).max(-1)
                b["labels"] = chosen.indices.masked_fill(chosen.values < -1e-3, -100).roll(1, -1)
        for b in given:
            (plain(**b).loss * factor).backward()
        with wrapped(model, tmp_path) as engine:
            if together:
                engine.backward_together(given, lambda b: engine(**b).loss * factor, divide=False)
            else:
                for b in given:
                    (engine(**b).loss * factor).backward()
            check(engine, plain, 2e-3)
            assert slices and not whole


@pytest.mark.parametrize("frozen", ["head", "all but the head", "lora"])
def test_frozen(frozen, tmp_path, seed, slices, whole):
    model = models.llama()
    if frozen == "lora":
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    else:
        for name, p in model.named_parameters():
            p.requires_grad_(("lm_head" in name) != (frozen == "head"))
    plain = copy.deepcopy(model)
    expected = plain(**batch()).loss
    expected.backward()
    with wrapped(model, tmp_path) as engine:
        loss = engine(**batch()).loss
        assert close(loss.detach(), expected.detach())
        engine.backward(loss)
        check(engine, plain)
    assert slices and not whole


def test_checkpointing_and_dropout(tmp_path, seed, slices):
    """Layers are computed again with the same random numbers, and so is the whole model in a checkpoint."""
    losses = []
    for n, fused in enumerate([False, True]):
        torch.manual_seed(5)
        model = models.gpt2(dropout=0.2)
        model.gradient_checkpointing_enable()
        (tmp_path / str(n)).mkdir()
        with wrapped(model, tmp_path / str(n), fused) as engine:
            engine.train()
            torch.manual_seed(1)
            loss = engine(**batch()).loss
            engine.backward(loss)
            gradients = [p.grad.clone() for p in engine.module.parameters()]
            engine.step()
            again = torch.utils.checkpoint.checkpoint(lambda: engine(**batch()).loss, use_reentrant=False)
            engine.backward(again)
            losses.append((loss.detach(), gradients, [p.grad.clone() for p in engine.module.parameters()]))
    # runs draw from seeds of their own, which come from PyTorch's
    assert close(losses[0][0], losses[1][0]) and slices
    assert all(close(b, a) for a, b in zip(losses[0][1], losses[1][1]))
    assert all(close(b, a, 2e-3) for a, b in zip(losses[0][2], losses[1][2]))  # after a step of AdamW


def test_resumed(tmp_path, seed, slices):
    model = models.gpt2()
    with wrapped(model, tmp_path) as engine:
        engine.train_batch([batch()])
    slices.clear()
    with longshore.resume(tmp_path / "run") as engine:
        engine(**batch())
        assert slices


def test_a_reference(tmp_path, seed, slices):
    model, plain = pair(models.gpt2)
    how = {"run": tmp_path / "run", "memory": "64MiB", "trains": False, "fused_loss": True}
    with longshore.wrap(model, **how) as engine, torch.no_grad():
        assert close(engine(**batch()).loss, plain(**batch()).loss) and slices


def test_what_has_no_such_head(tmp_path, seed):
    with pytest.raises(ValueError, match=r"fused_loss=True is for a model of transformers .* Cnn has none"):
        wrapped(models.Cnn(), tmp_path)
    with pytest.raises(ValueError, match="fused_loss must be True, False or None, and is 'yes'"):
        wrapped(models.gpt2(), tmp_path, "yes")
    assert not sliced_loss.chosen(models.Cnn(), None, True) and sliced_loss.chosen(models.gpt2(), None, True)


def test_a_head_that_is_a_layer(tmp_path, seed, slices):
    model, plain = pair(models.llama)
    layers = [*(f"model.layers.{n}" for n in range(3)), "lm_head"]
    with wrapped(model, tmp_path, layers=layers) as engine:
        assert torch.equal(engine(**batch()).loss, plain(**batch()).loss) and not slices


@pytest.mark.parametrize("looks", ["labels", "smoothed", "metrics", "own"])
def test_a_trainer(looks, tmp_path, seed, slices, whole):
    """Losses of a Trainer are those without the option; where it looks at logits, they are whole."""
    from longshore.transformers import Trainer, TrainingArguments

    made = models.gpt2()
    rows = [{k: v[0] for k, v in models.tokens(1, batch=1, seed=n)[0].items()} for n in range(8)]
    said = []
    for fused in (False, True):
        args = TrainingArguments(
            output_dir=str(tmp_path / str(fused)),
            memory="64MiB",
            fused_loss=fused,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=2,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            learning_rate=1e-3,
            label_smoothing_factor=0.1 if looks == "smoothed" else 0.0,
        )
        metrics = (lambda given: {"mean": float(given.predictions.mean())}) if looks == "metrics" else None
        own = (lambda out, labels, num_items_in_batch=None: out.logits.square().mean()) if looks == "own" else None
        trainer = Trainer(
            copy.deepcopy(made),
            args,
            train_dataset=rows,
            eval_dataset=rows,
            compute_metrics=metrics,
            compute_loss_func=own,
        )
        trainer.train()
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        found = trainer.evaluate()
        said.append([*losses, found["eval_loss"], found.get("eval_mean", 0.0)])
        trainer.engine.close()
    assert all(close(b, a, 1e-5) for a, b in zip(*said)), said
    assert bool(slices) == (looks in ("labels", "metrics")) and bool(whole) == (looks == "metrics")
