"""The ordinary loop: the numbers of PyTorch, and the same bits however much memory there is."""

import collections
import contextvars
import copy
import itertools
import threading
import types

import pytest
import torch

import longshore
from longshore import openmp_wait
from longshore.native import lib
from longshore.run import memory_plan
from longshore.step.gradients import Gradients
from models import LANGUAGE, Cnn, gpt2, tokens


def engine_for(model, tmp_path, name="run", slots=None, gradient_bytes=None, monkeypatch=None, **how):
    if slots or gradient_bytes is not None:
        plan = memory_plan.plan

        def smaller(*a, **k):
            chosen = plan(*a, **k)
            chosen.pages = slots or chosen.pages
            chosen.gradient_bytes = chosen.gradient_bytes if gradient_bytes is None else gradient_bytes
            chosen.again = None  # which would give more of it where this processor is quick
            return chosen

        monkeypatch.setattr(memory_plan, "plan", smaller)
    drive = tmp_path / f"{name}-drive"
    drive.mkdir()
    return longshore.wrap(
        model, run=tmp_path / name, drives=[drive], **{"lr": 1e-3, "weight_decay": 0.1, "clip": 1.0, **how}
    )


@pytest.mark.parametrize("kind", LANGUAGE)
def test_losses_are_those_of_pytorch(kind, tmp_path, seed):
    model = LANGUAGE[kind]()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1)
    with engine_for(model, tmp_path) as engine:
        for batch in tokens():
            loss = engine(**batch).loss
            engine.backward(loss)
            result = engine.step()
            expected = plain(**batch).loss
            expected.backward()
            norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            assert abs(loss.item() - expected.item()) <= 2e-6 * expected.item()
            assert abs(result.grad_norm - norm.item()) <= 1e-4 * norm.item()


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_same_bits_whatever_is_kept(kind, tmp_path, seed, monkeypatch):
    digests = set()
    for n, (slots, gradients, accumulate) in enumerate([(None, None, 2), (1, None, 2), (2, 0, 2), (1, 0, 2)]):
        torch.manual_seed(seed)
        model = LANGUAGE[kind]()
        with engine_for(model, tmp_path, f"run{n}", slots, gradients, monkeypatch) as engine:
            engine.accumulate = accumulate
            for i, batch in enumerate(tokens(6)):
                engine.backward(engine(**batch).loss)
                if i % 2:
                    engine.step()
            digests.add(engine.digest())
    assert len(digests) == 1


def test_blocks_are_fetched_again_after_a_skipped_step(tmp_path, seed, monkeypatch):
    """In one slot each pass fetches every layer: from a step of which the drives have nothing but its commit."""
    with engine_for(wide(3, 64), tmp_path, slots=1, monkeypatch=monkeypatch, on_nonfinite="skip") as engine:
        x = torch.ones(2, 64)
        before = engine(x).detach()
        for n in range(20):
            engine.backward(engine(x).sum() * float("inf"))
            assert engine.step().skipped
            assert engine.module[0].weight.isfinite().all() or n % 2  # outside of a pass, and in one
            assert torch.equal(engine(x), before)


def wide(n=3, width=896):
    """Each layer has so much state that it may stay in memory."""
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(n)])


@pytest.mark.parametrize(
    "how", [{}, {"clip": 0.5}, {"storage": "bf16"}, {"moments": "8bit"}, {"optimizer": "sgd", "momentum": 0.9}]
)
def test_same_bits_where_state_stays_in_memory(tmp_path, seed, monkeypatch, how):
    digests, read = set(), []
    for n, spare in enumerate([0, 6 << 20, 1 << 30]):
        torch.manual_seed(seed)
        model, x = wide(), torch.randn(8, 2, 896)
        model.register_parameter("unused", torch.nn.Parameter(torch.ones(900000)))
        with engine_for(model, tmp_path, f"run{n}", monkeypatch=monkeypatch, **how) as engine:
            engine._core.plan.spare_bytes, engine._core.plan.aside_bytes = spare, 0
            engine._core.plan.again = None  # which would hold as much of it as fits
            engine._core.gradients.room = engine._core.gradients.most_bytes(True)
            engine._core.gradients.open(engine._core.state)
            for i, batch in enumerate(x):
                engine.accumulate = 2 if i > 5 else 1  # gradients become fp32, and take more
                loss = engine(batch).square().mean()
                engine.backward(loss + (model.unused.sum() if i == 3 else 0))
                if i == 4:
                    engine.drop_gradients()
                    with longshore.resident(model[0], write=True), torch.no_grad():
                        model[0].weight.mul_(1.5)
                    continue
                if i == 6:
                    engine._core.cycle.discard()  # as a step that cannot be committed does
                    continue
                before = engine._core.state.ledger().drive_read_state + engine._core.state.ledger().link_out_state
                engine.step()
                engine.settle()
            read.append(
                engine._core.state.ledger().drive_read_state + engine._core.state.ledger().link_out_state - before
            )
            assert 4 << 20 <= engine.memory().state <= spare or not spare and not engine.memory().state
            digests.add(engine.digest())
            engine.reopen(tmp_path / f"run{n}")
            engine.backward(engine(batch).square().mean())
            engine.backward(engine(batch).square().mean())
            engine.step()
            digests.add("again " + engine.digest())
    assert len(digests) == 2
    assert read[0] > read[1] > read[2] == 0


def test_state_in_memory_after_a_write_that_failed(tmp_path, seed, monkeypatch):
    def write(module):
        with longshore.resident(module, write=True), torch.no_grad():
            module.weight.mul_(1.5)

    def write_in_vain(engine, module):
        carry, calls = engine._core.state.carry, itertools.count(1)

        def failing(*a):
            if next(calls) == 2:
                raise OSError("as it were")
            return carry(*a)

        with monkeypatch.context() as m, pytest.raises(OSError):
            m.setattr(engine._core.state, "carry", failing)
            write(module)

    digests = set()
    for fails in (False, True):
        torch.manual_seed(seed)
        model = wide()
        with engine_for(model, tmp_path, f"run{fails}") as engine:
            for i, batch in enumerate(torch.randn(5, 2, 896)):
                if i == 3:
                    engine.settle()  # a write is a step of its own from here on
                if i == 3 and fails:
                    write_in_vain(engine, model[2])
                if i == 3:
                    write(model[0])
                engine.backward(engine(batch).square().mean())
                engine.step()
            assert engine.memory().state
            digests.add(engine.digest())
    assert len(digests) == 1


def test_a_page_that_was_wanted_when_its_state_in_memory_is_updated(tmp_path, seed, monkeypatch):
    """What is fetched is not written over what the update has put there."""
    x, losses = torch.randn(2, 1024), set()
    for wants in (False, True):
        torch.manual_seed(seed)
        model = wide(4, 1024)
        with engine_for(model, tmp_path, f"run{wants}") as engine:
            engine._core.plan.again = None  # which may hold other things in memory
            for _ in range(4):
                engine.backward(engine(x).square().mean())
                assert engine.step_number == 0 or engine.memory().state
                if wants:
                    engine._core.streams.forget()  # as after a change that was refused
                    for number in range(4):
                        engine._core.streams.want(number)  # as a forward does that ends early
                engine.step()
                with torch.no_grad():
                    losses.add(engine(x).sum().item())
    assert len(losses) == 4


def test_a_run_of_another_storage_keeps_no_state_in_memory(tmp_path, seed, monkeypatch):
    x = torch.randn(2, 896)
    with engine_for(wide(), tmp_path, "one") as engine:
        engine.backward(engine(x).square().mean())
        engine.step()
    engine = engine_for(wide(), tmp_path, "other", storage="bf16")
    engine.reopen(tmp_path / "one")
    for _ in range(3):
        engine.backward(engine(x).square().mean())
        engine.step()
    assert engine.step_number == 4 and not engine.memory().state
    engine.close()


def test_openmp_threads_do_not_spin(tmp_path, monkeypatch):
    def resting():
        return [t for t in threading.enumerate() if t.name == "longshore-openmp"]

    monkeypatch.setattr(openmp_wait, "_rests", None)
    before, threads = len(resting()), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for n, (policy, more) in enumerate([("active", 0), (None, 1), (None, 1)]):
            monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
            if policy:
                monkeypatch.setenv("OMP_WAIT_POLICY", policy)
            engine_for(Cnn(), tmp_path, f"run{n}").close()
            assert len(resting()) == before + more
    finally:
        torch.set_num_threads(threads)


def test_clipping_after_speculation_is_exact(tmp_path, seed, monkeypatch):
    digests = []
    for n, early in enumerate([lib.SHORE_SPECULATE_ON, lib.SHORE_SPECULATE_OFF]):
        monkeypatch.setattr(Gradients, "speculate", early)
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}", clip=0.5) as engine:
            for batch in tokens(4):
                engine.backward(engine(**batch).loss)
                engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_norms_a_little_above_clip_send_the_state_once_a_step(tmp_path, seed):
    """What was sent as if nothing is clipped would be sent again. A step that remembers no norms sends the same
    bits."""

    def steps(name, clip, resumes=()):
        torch.manual_seed(seed)
        engine, norms, sent, before = engine_for(gpt2(), tmp_path, name, clip=clip, lr=1e-5), [], [], 0
        for i, batch in enumerate(tokens(1) * 6):
            if i in resumes:
                engine.close()
                engine, before = longshore.resume(tmp_path / name), 0
            engine.backward(engine(**batch).loss)
            norms.append(engine.step().grad_norm)
            engine.settle()
            ledger = engine._core.state.ledger()
            sent.append(ledger.drive_write_state - before)
            before = ledger.drive_write_state
        with engine:
            return engine.digest(), norms, sent

    _, norms, once = steps("plain", 0)
    for part in (0.99, 1.1):
        digest, clipped, sent = steps(f"run{part}", part * norms[0])
        assert all((norm > part * norms[0]) == (part < 1) for norm in clipped)
        assert sent == once
        assert steps(f"again{part}", part * norms[0], (2, 3, 5)) == (digest, clipped, once)


@pytest.mark.parametrize("slots", [1, 3])
def test_train_batch_is_the_ordinary_loop(tmp_path, seed, monkeypatch, slots):
    digests, fetched = [], []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(dropout=0.1), tmp_path, f"run{n}", slots, monkeypatch=monkeypatch) as engine:
            engine.train()
            batches = tokens(8)
            for first in range(0, 8, 4):
                if n:
                    result = engine.train_batch(batches[first : first + 4])
                else:
                    engine.accumulate = 4
                    for batch in batches[first : first + 4]:
                        engine.backward(engine(**batch).loss)
                    result = engine.step()
            assert result.step == 2
            digests.append(engine.digest())
            fetched.append(engine.fetched_bytes)
    assert digests[0] == digests[1]
    if slots == 1:
        assert fetched[1] < 0.5 * fetched[0]


_scale = contextvars.ContextVar("scale")


class Scaled(torch.nn.Module):
    """Of so many threads, and by what its caller says."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True) for _ in range(2)]
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean() * _scale.get()


def test_threads_of_micro_batches_are_as_their_callers(tmp_path, seed):
    digests, before, token = [], torch.get_num_threads(), _scale.set(3.0)
    torch.set_num_threads(2)  # the environment of tests says 1
    try:
        for n in range(2):
            torch.manual_seed(seed)
            with engine_for(Scaled(), tmp_path, f"run{n}") as engine:
                engine.accumulate = 2
                for _ in range(3):
                    batches = [torch.randn(2, 5, 16) for _ in range(2)]
                    if n:
                        engine.train_batch(batches, lambda loss, batch: loss)
                    else:
                        for x in batches:
                            engine.backward(engine(x))
                        engine.step()
                digests.append(engine.digest())
    finally:
        torch.set_num_threads(before)
        _scale.reset(token)
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    "kind",
    [dict, collections.UserDict, lambda b: types.MappingProxyType(b), lambda b: [b["input_ids"]]],
    ids=["dict", "UserDict", "mapping", "list"],
)
def test_what_a_micro_batch_may_be(kind, tmp_path, seed):
    """BatchEncoding, which collators of transformers give, is a UserDict."""
    with engine_for(gpt2(), tmp_path) as engine:
        assert (
            engine.train_batch([kind(b) for b in tokens(2)], lambda output, batch: output.logits.square().mean()).step
            == 1
        )


def test_micro_batches_of_several_shapes(tmp_path, seed, monkeypatch):
    digests = []
    batches = [tokens(1, size, length)[0] for size, length in ((2, 12), (3, 5), (1, 20))]
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(dropout=0.1), tmp_path, f"run{n}", 1, monkeypatch=monkeypatch) as engine:
            engine.train()
            engine.accumulate = 3
            for _ in range(2):
                if n:
                    engine.train_batch(batches)
                else:
                    for batch in batches:
                        engine.backward(engine(**batch).loss)
                    engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


class Chosen(torch.nn.Module):
    """The last layer is for some inputs only."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x, deep):
        for layer in self.layers if deep else self.layers[:2]:
            x = torch.tanh(layer(x))
        return x.square().mean()


@pytest.mark.parametrize("together", [False, True])
def test_a_parameter_that_some_micro_batches_use(tmp_path, seed, monkeypatch, together):
    model = Chosen()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch, lr=1e-2, clip=0.05) as engine:
        engine.accumulate = 3
        for deep in ((True, False, False), (False, False, True), (False, False, False), (False, True, True)):
            batches = [(torch.randn(4, 8), d) for d in deep]
            if together:
                result = engine.train_batch(batches, lambda output, batch: output)
            else:
                for x, d in batches:
                    engine.backward(engine(x, d))
                result = engine.step()
            for x, d in batches:
                (plain(x, d) / 3).backward()
            norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
            assert result.grad_norm == pytest.approx(norm.item(), rel=1e-4)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for (name, p), q in zip(model.named_parameters(), plain.parameters()):
            torch.testing.assert_close(p.detach() + 0, q.detach(), rtol=1e-5, atol=1e-6, msg=name)


def test_train_batch_that_fails_leaves_the_engine_usable(tmp_path, seed):
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}") as engine:
            if n:
                calls = []

                def loss_fn(output, batch, calls=calls):
                    calls.append(1)
                    if len(calls) == 3:
                        raise RuntimeError("of the third")
                    return output.loss

                with pytest.raises(RuntimeError, match="of the third"):
                    engine.train_batch(tokens(4), loss_fn)
            engine.train_batch(tokens(4))
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_a_parameter_without_gradient_stays_as_it_is(tmp_path, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    x = torch.randn(3, 4)
    with engine_for(model, tmp_path, lr=1e-2, clip=0) as engine:
        for i in range(5):
            for m, e in ((plain, None), (model, engine)):
                out = m[0](x) if i % 2 else m(x)
                loss = out.square().mean()
                if e:
                    e.backward(loss)
                    e.step()
                else:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
        for (name, p), (_, q) in zip(model.named_parameters(), plain.named_parameters()):
            torch.testing.assert_close(p.detach() + 0, q.detach(), rtol=1e-5, atol=1e-6, msg=name)


def test_not_finite(tmp_path, seed):
    batch = tokens(1)[0]
    with engine_for(gpt2(), tmp_path) as engine:
        engine.backward(engine(**batch).loss)
        engine.step()
        before = engine.digest()
        with pytest.raises(longshore.NotFiniteError, match="step 2"):
            engine.backward(engine(**batch).loss * float("inf"))
            engine.step()
        assert engine.step_number == 1 and engine.digest() == before
        engine.backward(engine(**batch).loss)
        assert engine.step().step == 2


def test_a_rate_that_changes_before_the_step_counts(tmp_path, seed):
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}", lr=1e-3 if n else 5e-4, clip=0) as engine:
            engine.backward(engine(**tokens(1)[0]).loss)
            engine.optimizer.param_groups[0]["lr"] = 5e-4
            engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_an_update_that_is_not_finite_is_not_made(tmp_path, seed):
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}", clip=0) as engine:
            batch = tokens(1)[0]
            engine.backward(engine(**batch).loss)
            engine.step()
            if n:
                with pytest.raises(longshore.NotFiniteError):
                    engine.optimizer.param_groups[0]["lr"] = 3e38
                    for _ in range(2):
                        engine.backward(engine(**batch).loss)
                        engine.step()
                    engine.settle()
                engine.optimizer.param_groups[0]["lr"] = 1e-3
                assert engine.step_number == 1
            engine.backward(engine(**batch).loss)
            assert engine.step().step == 2
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_an_exception_in_backward_leaves_the_engine_usable(tmp_path, seed):
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}") as engine:
            for i, batch in enumerate(tokens(3)):
                if n and i == 1:
                    loss = engine(**batch).loss  # noqa: F841  of a pass that nothing comes of

                    def fail(g):
                        raise KeyboardInterrupt

                    with pytest.raises(KeyboardInterrupt):
                        engine.module.transformer.h[1].register_full_backward_hook(lambda *a: None)
                        out = engine(**batch)
                        out.logits.register_hook(fail)
                        engine.backward(out.loss)
                engine.backward(engine(**batch).loss)
                engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_a_network_that_is_no_language_model(tmp_path, seed):
    model = Cnn()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1)
    loss_of = torch.nn.functional.cross_entropy
    with engine_for(model, tmp_path, clip=0) as engine:
        for _ in range(4):
            x, y = torch.randn(5, 1, 8, 8), torch.randint(0, 4, (5,))
            loss = loss_of(engine(x), y)
            engine.backward(loss)
            engine.step()
            expected = loss_of(plain(x), y)
            expected.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.testing.assert_close(loss, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, None])
def test_a_number_of_passes_that_cannot_be(wrong, tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        engine.accumulate = wrong
        with pytest.raises(ValueError, match=f"engine.accumulate = {wrong}: .*1 or more"):
            engine.backward(engine(**tokens(1)[0]).loss)
        engine.accumulate = 1
        engine.backward(engine(**tokens(1)[0]).loss)
        assert engine.step().step == 1
