"""Activations that leave the device of standin.py, in a process of their own. python on_standin_activations.py
DIRECTORY; writes JSON: {name: what came of it}."""

import contextlib
import gc
import json
import os
import pathlib
import sys
from unittest import mock

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import standin

standin.make()

import longshore  # noqa: E402
import models  # noqa: E402
from longshore.model import activations, offload_streams  # noqa: E402
from longshore.model.activations import Activations, Saved, Stayed  # noqa: E402
from longshore.run import memory_plan  # noqa: E402
from longshore.run.engine_surface import core_of  # noqa: E402
from on_standin import step, waits_of  # noqa: E402

WIDTH, ROWS = 32, 64


class Deep(nn.Module):
    """Layers, each of which is checkpointed or not."""

    def __init__(self, layers, mode=None, dropout=0.0, width=WIDTH):
        super().__init__()
        self.first, self.mode = nn.Linear(width, width), mode
        self.layers = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(layers)
            ]
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.first(x)
        for layer in self.layers:
            if self.mode is None or not torch.is_grad_enabled():
                h = h + self.dropout(layer(h))
            else:
                h = h + self.dropout(checkpoint(layer, h, use_reentrant=self.mode == "reentrant"))
        return h.float().square().mean()


@contextlib.contextmanager
def sizes(slots, pages, pool=None, least=16, in_flight=None):
    """Layers on the device, pages of the host, bytes of the pool, of the smallest activation that leaves, and of those
    that are on their way."""
    plan = memory_plan.plan

    def chosen(*args, **how):
        out = plan(*args, **how)
        out.pages, out.slots, out.gpu_memory = pages, slots if out.slots else 0, None
        if pool is not None and out.pool_bytes:
            out.pool_bytes = pool
            if out.pinned:
                out.pinned["pool"] = pool, pool
        return out

    with contextlib.ExitStack() as entered:
        entered.enter_context(mock.patch.object(memory_plan, "plan", chosen))
        entered.enter_context(mock.patch.object(activations, "LEAST_BYTES", least))
        if in_flight is not None:
            entered.enter_context(mock.patch.object(offload_streams, "IN_FLIGHT_BYTES", in_flight))
        yield


def wrapped(model, where, path, kind, **how):
    drive = f"{path}-drive"
    os.mkdir(drive)
    if kind in ("drives", "auto"):
        how = {"activation_room": "64MiB", **how}
    return longshore.wrap(
        model,
        device=where,
        run=path,
        drives=[drive],
        **{"memory": "64MiB", "lr": 1e-2, "clip": 1.0, **how},
        activations=kind,
    )


def batches_of(step, parts, dtype, width=WIDTH, rows=ROWS):
    g = torch.Generator().manual_seed(step)
    return [torch.randn(rows, width, generator=g).to(dtype) for _ in range(parts)]


def trained(
    where, path, kind="memory", layers=4, mode=None, together=False, cast=False, dtype=torch.float32, own=False, **how
):
    """Two steps of two batches."""
    dropout, patched = how.pop("dropout", 0.0), {k: how.pop(k) for k in ("pool", "in_flight") if k in how}
    torch.manual_seed(7)
    with contextlib.ExitStack() as entered:
        if own and where != "cpu":
            stream = torch.Stream(where)
            stream.wait_stream(torch.accelerator.current_stream())
            entered.enter_context(stream)
        entered.enter_context(sizes(2, 3, **patched))
        model = Deep(layers, mode, dropout).to(dtype)
        engine = entered.enter_context(wrapped(model, where, path, kind, **how))
        standin.pinned_most()
        pinned, losses = standin.pinned_most(), []
        for n in range(2):
            batches = [batch.to(where) for batch in batches_of(n, 2, dtype)]
            with torch.autocast(where, torch.bfloat16, enabled=cast, cache_enabled=False):
                result = step(engine, batches, together)
            losses.append(result.loss)
        out = {"digest": engine.digest(), "losses": losses, "more_pinned": standin.pinned_most() - pinned}
        store = core_of(engine).streams.activations
        if store is not None:
            store.settle()
            counts = store.counts
            out["taken"], out["left"] = counts.taken_bytes, counts.entries + counts.pool_used_bytes
            out["written"], out["forwarded"] = counts.written_bytes, counts.forwarded_bytes
            out["boundaries"] = list(store.most_boundaries)
            assert engine.memory().boundaries == store.most_boundaries[1]
    return out


SMALL = {"pool": 128 << 10, "in_flight": 32 << 10}
TRAINED = {
    "loop": {},
    "together": {"together": True},
    "small pool": SMALL,
    "small pool, together": {**SMALL, "together": True},
    "reentrant": {"mode": "reentrant"},
    "non-reentrant": {"mode": "non-reentrant"},
    "reentrant, together": {"mode": "reentrant", "together": True},
    "non-reentrant, together": {"mode": "non-reentrant", "together": True, **SMALL},
    "dropout": {"dropout": 0.1, **SMALL},
    "dropout, non-reentrant": {"dropout": 0.1, "mode": "non-reentrant"},
    "bf16": {"dtype": torch.bfloat16},
    "own stream": {"own": True, **SMALL},
    "autocast": {"cast": True, **SMALL},
}
KINDS = {
    "host": {"kind": "host"},
    "host and drives": {"kind": "host", "activation_room": "64MiB"},
    "drives": {"kind": "drives"},
    "auto": {"kind": "auto"},
}


def waits(path, kind, layers):
    """(host waits of each of two steps, those of PyTorch's passes)"""
    model, found = Deep(layers), []
    plain = Deep(layers).to(standin.NAME)
    batches = [batch.to(standin.NAME) for batch in batches_of(0, 4, torch.float32)]
    before = standin.waits()
    for batch in batches:
        loss = plain(batch)
        loss.backward()
        loss.item()
    pytorch = standin.waits() - before
    with sizes(2, 3), wrapped(model, standin.NAME, path, kind) as engine:
        engine.accumulate = len(batches)
        for _ in range(2):
            before = waits_of(engine)
            for batch in batches:
                loss = engine(batch)
                engine.backward(loss)
                loss.item()
            engine.step()
            found.append(waits_of(engine) - before)
    return found, pytorch


def peak(path, kind, layers, mode="non-reentrant"):
    """The most memory of the device in a step beyond that before it, of activations of a megabyte."""
    batches = batches_of(0, 1, torch.float32, 64, 4096)
    with (
        sizes(2, 3, least=1 << 20, in_flight=2 << 20),
        wrapped(Deep(layers, mode, width=64), standin.NAME, path, kind, memory="256MiB") as engine,
    ):
        for _ in range(2):
            batch = batches[0].to(standin.NAME)
            before = standin.live()
            torch.accelerator.reset_peak_memory_stats()
            engine.backward(engine(batch))
            found = torch.accelerator.max_memory_allocated() - before
            engine.step()
        left = core_of(engine).streams.activations
        return found, None if left is None else list(left.most_boundaries)


@contextlib.contextmanager
def store_of(engine):
    core = core_of(engine)
    device, size = core.streams.device, 256 << 10
    store = Activations(core.state, "drives", size, 1 << 20, device, device.pinned(size), least=4096)
    store.begin(nn.Module(), (), {})
    yield store
    store.end()


def there(seed, rows=64, width=64):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(standin.NAME)


def in_place(path):
    """What is said where a tensor is changed after it was saved: by PyTorch, and of one that left."""

    class Changed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(64, 64)])

        def forward(self, x):
            h = self.layers[0](x).exp()
            out = h * h
            h.add_(1)
            return out.sum()

    said = []
    with sizes(2, 3):
        plain = Changed().to(standin.NAME)
        for name, model in (("", plain), ("a", wrapped(Changed(), standin.NAME, f"{path}-a", "drives"))):
            with contextlib.suppress(AttributeError):
                model.accumulate = 1
            try:
                model(there(1)).backward()
            except RuntimeError as failure:
                said.append(str(failure))
            if name:
                model.drop_gradients()
                model.close()
    return said


def by_hand(path):
    """Of a store of its own: what is forwarded from where, and what comes back of it."""
    out = {}
    with sizes(2, 3), wrapped(Deep(2), standin.NAME, path, "drives") as engine, store_of(engine) as store:
        x = there(1)
        standin.hang()
        saved, view = store.pack(x), store.pack(x.t()[3:])
        assert type(saved) is Saved and view.entry is saved.entry
        values, late, before = x.clone(), standin.late(), waits_of(engine)
        address = x.data_ptr()
        back = store.unpack(saved)
        out["same memory"] = back.data_ptr() == address and waits_of(engine) == before
        standin.hang(False)
        assert torch.equal(back, values) and torch.equal(store.unpack(view), values.t()[3:])
        del back, x
        # what has been let go on the device, and is on its way still, comes from pinned memory, in the streams' order
        with (
            mock.patch.object(offload_streams, "IN_FLIGHT_BYTES", 0),
            mock.patch.object(offload_streams, "IN_FLIGHT", 0),
        ):
            standin.hang()
            y = there_now = torch.full((64, 64), 3.0, device=standin.NAME)
            kept = store.pack(y)
            out["let go"] = not store.streams.leaving
            del y, there_now
            before = waits_of(engine)
            again = store.unpack(kept)
            out["waits"] = waits_of(engine) - before
            standin.hang(False)
        out["on its way"] = again.sum().item() == 3.0 * 64 * 64 and standin.late() > late
        del again, kept, saved, view
        gc.collect()
        store.settle()
        counts = store.counts
        out["left"] = [counts.entries, counts.pool_used_bytes, len(store.streams.leaving), len(store.streams.coming)]
        # what stays
        base = there(2)
        for t in (there(3)[0], there(4).requires_grad_(), there(5, 4, 4), base[:2], torch.randn(64, 64)[:, :2]):
            assert type(store.pack(t)) is Stayed
        odd = torch.arange(4103, dtype=torch.uint8, device=standin.NAME)
        bits = store.pack(odd[1::2])
        assert type(bits) is Saved and torch.equal(store.unpack(bits), odd[1::2])
        half = there(6).bfloat16().t()[5:]
        bits = store.pack(half)
        assert type(bits) is Saved and torch.equal(store.unpack(bits), half)
        assert store.unpack(bits).stride() == half.stride()
    return out


def prefetched(path):
    """How many of a chain of activations had come, or were coming, before they were asked for; and the most that were
    there ahead."""
    with sizes(2, 3), wrapped(Deep(2), standin.NAME, path, "drives") as engine, store_of(engine) as store:
        saved = []
        with mock.patch.object(offload_streams, "IN_FLIGHT_BYTES", 48 << 10):
            for n in range(10):
                x = there(n)
                saved.append((store.pack(x), x.cpu()))
            del x
            store.settle()
            ahead, most = 0, 0
            while saved:
                one, values = saved.pop()
                ahead += one.entry.key in store.streams.coming
                assert torch.equal(store.unpack(one).cpu(), values)
                most = max(most, len(store.streams.coming))
                del one
        gc.collect()
        return ahead, most, len(store.streams.coming)


def graphs(path):
    """Gradients of x through graphs that are used twice, differentiated twice, and dropped; beside PyTorch's."""
    out = []
    torch.manual_seed(1)
    model = Deep(3)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    batch = batches_of(0, 1, torch.float32)[0]
    plain = Deep(3)
    plain.load_state_dict(state)
    with sizes(2, 3, **SMALL), wrapped(model, standin.NAME, path, "drives") as engine:
        before = None
        for m, where in ((plain, "cpu"), (engine, standin.NAME)):
            x = batch.to(where).requires_grad_()
            loss = m(x)
            twice = [torch.autograd.grad(loss, x, retain_graph=True)[0].cpu() for _ in range(2)]
            (first,) = torch.autograd.grad(m(x), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
            out.append([t.double().sum().item() for t in (*twice, first, second)])
            del loss, first, second, twice
        for n in range(4):
            loss = engine(batch.to(standin.NAME))
            del loss
            gc.collect()
            core_of(engine).streams.activations.settle()
            before = standin.live() if n == 1 else before
        store = core_of(engine).streams.activations
        return out, standin.live() - before, store.counts.entries + store.counts.pool_used_bytes


def interrupted(path):
    """The digest of two steps, the second of which is broken off in forward, in backward and by a lack of memory, and
    made again; and of two that are not. Bytes of the device that stay."""
    digests, said, grown = [], [], None
    for breaks in (False, True):
        torch.manual_seed(7)
        with sizes(2, 3, **SMALL), wrapped(Deep(4), standin.NAME, f"{path}-{breaks}", "drives") as engine:
            for n in range(2):
                (batch,) = (batch.to(standin.NAME) for batch in batches_of(n, 1, torch.float32))
                if n and breaks:
                    before = standin.live()
                    for hook in ("register_forward_pre_hook", "register_full_backward_hook"):

                        def fails(*_):
                            raise KeyError("broken off")

                        hooked = getattr(engine.module.layers[2][1], hook)(fails)
                        try:
                            engine.backward(engine(batch))
                        except KeyError as failure:
                            said.append(str(failure))
                        hooked.remove()
                    for room in range(5):
                        standin.limit(standin.live() + (room << 15))
                        try:
                            engine.backward(engine(batch))
                        except torch.OutOfMemoryError as failure:
                            said.append(str(failure))
                        standin.limit()
                        engine.drop_gradients()
                    gc.collect()
                    core_of(engine).streams.activations.settle()
                    grown = standin.live() - before
                engine.backward(engine(batch))
                engine.step()
            digests.append(engine.digest())
    return digests, said, grown


def of_transformers(where, path, kind, reentrant):
    torch.manual_seed(7)
    model = models.gpt2(layers=4)
    model.set_attn_implementation("eager")  # those that are fused have other bits on other devices
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with sizes(2, 3), wrapped(model, where, path, kind) as engine:
        engine.train()
        for batch in models.tokens(2):
            engine.backward(engine(**{key: value.to(where) for key, value in batch.items()}).loss)
            result = engine.step()
        store = core_of(engine).streams.activations
        return engine.digest(), result.loss, None if store is None else store.most_boundaries[0]


def stands(path):
    """Of "auto": bytes that left in each of six steps, in all of which but the first computing stands for copies; and
    how long the store says that was waited, in seconds."""
    taken = [0]
    with sizes(2, 3, in_flight=16 << 10), wrapped(Deep(4), standin.NAME, path, "auto") as engine:
        batch = there(1, ROWS, WIDTH)
        store = core_of(engine).streams.activations
        for _ in range(6):
            engine.backward(engine(batch))
            engine.step()
            taken.append(store.counts.taken_bytes)
            standin.elapse(1e6)
        standin.elapse(0)
        return [after - before for before, after in zip(taken, taken[1:])], store.counts.waited_take_ns / 1e9


def lost(path):
    """What is said of a device that does not go on while activations leave, and what the CPU then goes on from."""
    with sizes(2, 3, **SMALL):
        engine = wrapped(Deep(4), standin.NAME, path, "drives", device_timeout=0.2)
    engine.backward(engine(there(1, ROWS, WIDTH)))
    engine.step()
    engine.digest()
    batch, said = there(2, ROWS, WIDTH), []
    standin.hang()
    for call in (lambda: engine.backward(engine(batch)), engine.close):
        try:
            call()
        except longshore.LongshoreError as failure:
            said.append(str(failure))
    standin.hang(False)
    with longshore.resume(path, Deep(4), device="cpu") as engine:
        return said, engine.step_number


def resumed(path):
    """A run whose activations go to host memory goes on on a CPU."""
    with sizes(2, 3):
        with wrapped(Deep(2), standin.NAME, path, "host") as engine:
            engine.backward(engine(there(1, ROWS, WIDTH)))
            engine.step()
        with longshore.resume(path, Deep(2), device="cpu") as engine:
            engine.backward(engine(torch.ones(ROWS, WIDTH)))
            return engine.step().step, engine.memory().activations


def main(directory):
    out = {}
    for number, (name, how) in enumerate(TRAINED.items()):
        here = standin.NAME if "autocast" in name else "cpu"  # whose autocast differs from a device's
        out[f"{name}, here"] = trained(
            here, f"{directory}/{number}", **{k: v for k, v in how.items() if k not in SMALL}
        )
        for to, kind in KINDS.items():
            out[f"{name}, {to}"] = trained(standin.NAME, f"{directory}/{number}-{to}", **kind, **how)
    for kind in ("host", "drives"):
        for layers in (12, 24):
            out[f"waits {kind} {layers}"] = waits(f"{directory}/waits-{kind}-{layers}", kind, layers)
    for kind in ("memory", "host", "drives"):
        for layers in (6, 24):
            out[f"peak {kind} {layers}"] = peak(f"{directory}/peak-{kind}-{layers}", kind, layers)
    for name, call in {
        "in place": in_place,
        "by hand": by_hand,
        "prefetched": prefetched,
        "graphs": graphs,
        "interrupted": interrupted,
        "resumed": resumed,
        "stands": stands,
        "lost": lost,
    }.items():
        out[name] = call(f"{directory}/{name.replace(' ', '-')}")
    for reentrant in (False, True):
        out[f"transformers {reentrant}"] = [
            of_transformers(where, f"{directory}/hf-{reentrant}-{where}", kind, reentrant)
            for where, kind in (("cpu", "memory"), (standin.NAME, "drives"))
        ]
    pathlib.Path(directory, "told.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
