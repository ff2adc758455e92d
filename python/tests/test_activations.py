"""Activations on the drives: the same bits as in memory, whatever views, changes, failures and passes in between do."""

import copy
import gc
import resource

import pytest
import torch
from torch import nn

import longshore
from longshore.model import activations
from longshore.model.activations import Activations, Saved, Stayed
from longshore.native import ffi, lib
from longshore.run import memory_plan
from longshore.step import parameter_state
from models import LANGUAGE, Cnn, gpt2, tokens

POOL = 256 << 10


@pytest.fixture
def small(monkeypatch):
    """Whatever is 4 KiB goes, through a pool that a step does not fit into."""
    plan = memory_plan.plan

    def smaller(*a, **k):
        chosen = plan(*a, **k)
        chosen.pool_bytes = POOL if chosen.pool_bytes else 0
        return chosen

    monkeypatch.setattr(memory_plan, "plan", smaller)
    monkeypatch.setattr(activations, "LEAST_BYTES", 4096)


def engine_for(model, tmp_path, name="run", kind="drives", **how):
    drive = tmp_path / f"{name}-drive"
    drive.mkdir()
    return longshore.wrap(
        model,
        run=tmp_path / name,
        drives=[drive],
        activations=kind,
        **{"lr": 1e-3, "clip": 1.0, "activation_room": "64MiB", **how},
    )


def nothing_is_taken(engine):
    store = engine._core.streams.activations
    gc.collect()
    store.settle()
    counts = store.counts
    assert counts.entries == counts.pool_used_bytes == counts.scratch_used_bytes == 0
    assert 0 < counts.pool_most_bytes <= counts.pool_bytes
    assert not len(store.known)


def test_a_pass_that_no_backward_follows_leaves_nothing(tmp_path):
    with engine_for(Cnn(), tmp_path, kind="memory") as engine:
        counts = []
        for _ in range(3):
            engine(torch.randn(2, 1, 6, 6))  # whose graph is dropped
            gc.collect()
            counts.append(sum(type(thing) is Stayed for thing in gc.get_objects()))
        assert counts[0] == counts[2]


@pytest.mark.parametrize("model", [*LANGUAGE, "cnn"])
def test_same_bits(model, tmp_path, seed, small):
    digests, losses = set(), set()
    for kind in ("memory", "drives", "auto") if model == "gpt2" else ("memory", "drives"):
        torch.manual_seed(seed)
        with engine_for(LANGUAGE[model]() if model != "cnn" else Cnn(), tmp_path, kind, kind) as engine:
            for batch in tokens(4, batch=4, length=16):
                loss = engine(**batch).loss if model != "cnn" else engine(torch.randn(12, 1, 12, 12)).square().mean()
                engine.backward(loss)
                result = engine.step()
            digests.add(engine.digest())
            losses.add(result.loss)
            if kind == "drives":
                store = engine._core.streams.activations
                assert store.counts.read_bytes > 0 and store.counts.taken_bytes > 2 * POOL
            if kind != "memory":
                nothing_is_taken(engine)
    assert len(digests) == 1 and len(losses) == 1


@pytest.mark.parametrize("how", ["reentrant", "non-reentrant", "train_batch", "accumulate", "dropout"])
def test_same_bits_in_other_loops(how, tmp_path, seed, small):
    digests = set()
    for kind in ("memory", "drives"):
        torch.manual_seed(seed)
        with engine_for(gpt2(dropout=0.1 if how == "dropout" else 0), tmp_path, kind, kind) as engine:
            engine.train()
            if how.endswith("reentrant"):
                engine.module.gradient_checkpointing_enable({"use_reentrant": how == "reentrant"})
            engine.accumulate = 2 if how == "accumulate" else 1
            for i in range(3):
                batches = tokens(2, batch=4, length=16, seed=i)
                if how == "train_batch":
                    engine.train_batch(batches)
                    continue
                for batch in batches:
                    loss = engine(**batch).loss
                    with torch.no_grad():
                        engine(**batch)
                    engine.backward(loss)
                    if how != "accumulate":
                        engine.step()
                if how == "accumulate":
                    engine.step()
            digests.add(engine.digest())
            if kind == "drives":
                assert engine._core.streams.activations.counts.written_bytes > 0
                nothing_is_taken(engine)
    assert len(digests) == 1


class Views(nn.Module):
    """Saves a matrix, its transpose, neighbours in one storage, and one storage as two shapes and dtypes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128, bias=False)

    def forward(self, x):
        h = self.first(x)
        left, right = h.chunk(2, -1)
        square = h[:64, :64]
        out = left * right + square @ square.t() + square.t().exp() * square
        folded = h.view(32, 2, 128).transpose(0, 1)
        return out.sum() + (folded * folded.cos()).sum() + (h.t() @ h).sin().sum()


def test_views_are_given_back_as_they_were(tmp_path, seed, small):
    model = Views()
    plain = copy.deepcopy(model)
    x = torch.randn(64, 64, requires_grad=True)
    with engine_for(model, tmp_path) as engine:
        grads = []
        for m in (plain, engine):
            x.grad = None
            m(x).backward()
            grads.append(x.grad)
        assert torch.equal(*grads)
        store = engine._core.streams.activations
        assert store.counts.taken_bytes < 12 * 64 * 128 * 4
        engine.drop_gradients()
        nothing_is_taken(engine)


class Cells(nn.Module):
    """Gates are changed in place, each a part of one storage that counts its changes for itself."""

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.GRUCell(64, 64), nn.LSTMCell(64, 64)])

    def forward(self, x):
        h = c = x
        for _ in range(3):
            h = self.cells[0](x, h)
            h, c = self.cells[1](x, (h, c))
        return h.square().sum()


def test_parts_that_count_changes_for_themselves(tmp_path, seed, small):
    model, x = Cells(), torch.randn(64, 64)
    plain = copy.deepcopy(model)
    plain(x).backward()
    with engine_for(model, tmp_path) as engine:
        engine.backward(engine(x), last=False)
        for p, q in zip(model.parameters(), plain.parameters()):
            assert torch.equal(parameter_state.gradient(p), q.grad)
        assert engine._core.streams.activations.counts.taken_bytes > 0


class Changing(nn.Module):
    def forward(self, x):
        h = x * 2
        a = h.exp()
        h = h.clone()
        b = h * h  # saves h
        h.add_(1)
        c = h.sin()  # saves h, changed
        return (a * b).sum() + c.sum()


def test_a_change_in_place_is_another_tensor(tmp_path, seed, small):
    """What was saved before it is what backward gets; what is saved after it is not mistaken for that."""
    x = torch.randn(64, 64, requires_grad=True)
    h = (x * 2).detach()
    expected = 2 * (h.exp() * h * h + h.exp() * 2 * h + (h + 1).cos())
    model = nn.Sequential(nn.Linear(4, 4), Changing())
    model.forward = lambda x: model[1](x)
    with engine_for(model, tmp_path) as engine:
        engine(x).backward()
        torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def store(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        yield store_of(engine)


def store_of(engine, kind="auto", scratch_bytes=1 << 20):
    """Of four entries of 16 KiB."""
    store = Activations(engine._core.state, kind, 64 << 10, scratch_bytes, least=4096)
    store.begin(nn.Module(), (), {})
    return store


def test_identity(store):
    x = torch.randn(64, 64)
    one, two, flat = store.pack(x), store.pack(x.t()), store.pack(x.view(-1)[64:])
    assert one.entry is two.entry is flat.entry
    assert torch.equal(store.unpack(two), x.t()) and store.unpack(two).stride() == (1, 64)
    assert torch.equal(store.unpack(flat), x.view(-1)[64:])
    before = x.clone()
    x.mul_(2)
    other = store.pack(x)
    assert other.entry is not one.entry
    assert torch.equal(store.unpack(one), before) and torch.equal(store.unpack(other), x)
    # memory that somebody else gets now is not what was there before
    address = x.data_ptr()
    del x
    again = [t for t in (torch.randn(64, 64) for _ in range(8))]
    for y in again:
        new = store.pack(y)
        assert type(new) is Stayed or new.entry is not one.entry
    print("address used again:", address in [y.data_ptr() for y in again])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64])
def test_dtypes_and_odd_lengths(store, dtype):
    x = torch.randint(0, 2, (4103 if dtype.itemsize == 1 else (12 << 10) // dtype.itemsize + 1,)).to(dtype)
    saved = [store.pack(x), store.pack(x[1::2])]
    for t in saved:
        assert type(t) is Saved
        _push_out(store)
    assert torch.equal(store.unpack(saved[0]), x) and torch.equal(store.unpack(saved[1]), x[1::2])
    assert store.counts.read_bytes > 0


def test_what_stays(store, caplog):
    big = torch.randn(64, 64)
    leaf = torch.randn(64, 64, requires_grad=True)
    store.begin(nn.Module(), (big,), {})
    huge = torch.randn(64 << 10)
    for t in (
        big.t(),
        leaf,
        torch.randn(8),
        torch.randn(64, 64).to_sparse(),
        torch.randn(4096, dtype=torch.complex64).conj(),
        huge,
        torch.randn(64, 64)[0],
    ):
        saved = store.pack(t)
        assert type(saved) is Stayed and saved.value() is t
    (said,) = caplog.messages
    assert said.startswith("activations of 256.00 KiB stay where PyTorch has them: all others leave through 64.00 KiB")
    with torch.no_grad():
        huge.add_(1)
    store.pack(huge)
    saved = store.pack(huge)
    huge.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved.value()


def _push_out(store):
    """All that is stored and that nobody has, of the pool."""
    store.settle()
    key = 1 << 40
    assert lib.shore_store_take(store.store, key, 64 << 10, True, ffi.new("void **"), ffi.NULL) == 0
    assert lib.shore_store_drop(store.store, key, ffi.NULL) == lib.shore_store_release(store.store, key, ffi.NULL) == 0


def test_where_the_pool_is_full_it_stays(store):
    saved = [(x, store.pack(x)) for x in (torch.randn(64, 64) for _ in range(4))]
    got = [store.unpack(s) for _, s in saved]
    others = [(x, store.pack(x)) for x in (torch.randn(64, 64) for _ in range(4))]
    assert [type(s) for _, s in saved + others] == [Saved] * 4 + [Stayed] * 4
    assert type(store.pack(others[-1][0].t())) is Stayed
    assert all(torch.equal(t, x) for t, (x, _) in zip(got, saved))
    assert store.counts.read_bytes == 0 and store.counts.pool_most_bytes == 64 << 10


def test_all_of_the_pool_is_in_use(store):
    """What backward asks for beyond it lies in memory of its own."""
    saved = []
    for _ in range(6):
        x = torch.randn(64, 64)
        saved.append((x, store.pack(x)))
        store.settle()
    assert {type(s) for _, s in saved} == {Saved}
    got = [store.unpack(s) for _, s in saved]
    assert all(torch.equal(t, x) for t, (x, _) in zip(got, saved))
    assert store.counts.pool_most_bytes == store.counts.pool_used_bytes == 64 << 10


def test_backward_that_changes_what_it_was_given_is_told(store):
    """Also where its memory was another's in between, and nobody has what was changed."""
    for in_pool in (True, False):
        x = torch.randn(64, 64)
        saved = store.pack(x)
        store.unpack(saved).mul_(2)
        if not in_pool:
            _push_out(store)
        with pytest.raises(
            RuntimeError, match="modified by an inplace operation: 64x64 float32, as backward got it before"
        ):
            store.unpack(saved)


def test_where_the_drives_are_full_it_stays(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        store = store_of(engine, scratch_bytes=16 << 10)
        saved = [(x, store.pack(x)) for x in (torch.randn(64, 64) for _ in range(12))]
        assert [type(s) for _, s in saved] == [Saved] + [Stayed] * 11
        for x, s in saved:
            assert torch.equal(store.unpack(s) if type(s) is Saved else s.value(), x)


def test_twice_backward_and_no_backward(tmp_path, seed, small):
    batch = tokens(1, batch=4, length=16)[0]
    with engine_for(gpt2(), tmp_path) as engine:
        sums = []
        loss = engine(**batch).loss
        for retain in (True, False):
            loss.backward(retain_graph=retain)
            sums.append(
                {(n, t): g.clone() for n, b in enumerate(engine._core.gradients.blocks) for t, g in b.held.items()}
            )
            engine.drop_gradients()
        assert sums[0].keys() == sums[1].keys() and all(torch.equal(sums[0][k], sums[1][k]) for k in sums[0])
        del loss
        nothing_is_taken(engine)
        loss = engine(**batch).loss
        assert engine._core.streams.activations.counts.scratch_used_bytes > 0
        del loss
        nothing_is_taken(engine)


def test_an_exception_in_backward_gives_everything_back(tmp_path, seed, small):
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}") as engine:
            for batch in tokens(2, batch=4, length=16):
                if n:

                    def fail(module, gradients, _):
                        raise KeyboardInterrupt

                    hook = engine.module.transformer.h[1].mlp.register_full_backward_hook(fail)
                    with pytest.raises(KeyboardInterrupt):
                        engine.backward(engine(**batch).loss)
                    hook.remove()
                    nothing_is_taken(engine)
                engine.backward(engine(**batch).loss)
                engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_a_drive_that_gives_back_something_else(tmp_path, seed, small):
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        with engine_for(gpt2(), tmp_path, f"run{n}") as engine:
            batch = tokens(1, batch=4, length=16)[0]
            if n:
                store = engine._core.streams.activations
                loss = engine(**batch).loss
                store.settle()
                other = activations.Buffer(4096)  # over what was saved first
                longshore.native.Wait(
                    lib.shore_fleet_scratch_put,
                    engine._core.state.fleet,
                    0,
                    other.nbytes,
                    other.pointer,
                    ffi.new("unsigned char[16]"),
                ).result()
                with pytest.raises(
                    longshore.LongshoreError, match="what forward has saved, .*float32, cannot be read back|other bytes"
                ):
                    engine.backward(loss)
                del loss
                nothing_is_taken(engine)
            engine.backward(engine(**batch).loss)
            engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_a_drive_that_does_not_take_them(store):
    x, most = torch.randn(64, 64), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most[1]))
    try:
        saved = store.pack(x)
        with pytest.warns(UserWarning, match="activations stay in memory from here on"):
            while not store.broken:
                store.pack(torch.randn(64, 64))
        assert type(store.pack(torch.randn(64, 64))) is Stayed
        assert torch.equal(store.unpack(saved), x)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    store.settle()
    _push_out(store)
    assert type(store.pack(torch.randn(64, 64))) is Saved and torch.equal(store.unpack(saved), x)


def test_after_close(tmp_path, seed, small):
    engine = engine_for(gpt2(), tmp_path)
    loss = engine(**tokens(1, batch=4, length=16)[0]).loss
    engine.close()
    with pytest.raises(longshore.LongshoreError, match="closed"):
        loss.backward()


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="activations must be one of .*drives.*, and is 'disk'"):
        longshore.wrap(gpt2(), run=tmp_path / "a", activations="disk")
    with pytest.raises(ValueError, match="activation_room='much'"):
        longshore.wrap(gpt2(), run=tmp_path / "a", activations="drives", activation_room="much")
    with pytest.raises(longshore.BudgetError, match="minimum"):
        longshore.wrap(gpt2(), run=tmp_path / "a", activations="drives", memory="1MiB")
    with pytest.warns(UserWarning, match="activation_room='1GiB' is for activations=\"drives\""):
        longshore.wrap(gpt2(), run=tmp_path / "a", activation_room="1GiB").close()
    with pytest.raises(ValueError, match=r"layers='h': must be a list of names: layers=\['h'\]"):
        longshore.wrap(gpt2(), run=tmp_path / "b", layers="h")


def test_resumed_as_it_was_made(tmp_path, seed, small):
    batches = tokens(4, batch=4, length=16)
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        engine = engine_for(gpt2(), tmp_path, f"run{n}")
        for i, batch in enumerate(batches):
            if n and i == 2:
                engine.close()
                engine = longshore.resume(tmp_path / f"run{n}")
                assert engine._core.streams.activations.counts.scratch_bytes == 64 << 20
            engine.backward(engine(**batch).loss)
            engine.step()
        assert engine._core.streams.activations.counts.written_bytes > 0
        digests.append(engine.digest())
        engine.close()
    assert digests[0] == digests[1]
