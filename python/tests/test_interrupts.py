"""What breaks a step off: exceptions, Ctrl-C and other signals at any instant. The step was not made, or was, and
nothing is left behind."""

import random
import signal
import threading
import time

import pytest
import torch

import longshore
from longshore.interrupts import whole
from longshore.model import random_numbers
from models import gpt2, tokens
from test_loop import engine_for


def one(engine, batch):
    engine.backward(engine(**batch).loss)
    engine.step()


def trained(tmp_path, seed, monkeypatch, disturb, name, together=False, steps=3):
    """The digest after some steps with dropout in one slot, disturbed before the second."""
    torch.manual_seed(seed)
    with engine_for(
        gpt2(dropout=0.1, layers=2), tmp_path, name, slots=1, gradient_bytes=0, monkeypatch=monkeypatch
    ) as engine:
        engine.train()
        for i, batch in enumerate(tokens(steps, length=6)):
            if i == 1 and disturb is not None:
                disturb(engine, batch)
            engine.train_batch([batch, batch]) if together else one(engine, batch)
        return engine.digest(), torch.get_rng_state().sum().item()


class Planned(Exception):
    pass


BROKEN_OFF = KeyboardInterrupt, SystemExit


class Sent:
    """A signal that another thread sends after a while. Its handler raises KeyboardInterrupt or SystemExit."""

    def __init__(self, number):
        self.number, self.sent, self.handled = number, 0, 0

    def handler(self, signum, frame):
        self.handled += 1
        raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(1)

    def after(self, seconds):
        """A timer that sends it."""
        self.sent += 1
        return threading.Timer(seconds, signal.pthread_kill, (threading.main_thread().ident, self.number))

    def wait(self):
        """Until each that was sent has been handled, however long a busy machine takes."""
        while self.handled < self.sent:
            time.sleep(0.001)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=lambda s: s.name)
def sent(request):
    """Its handler is set for SIGINT, too: a job in the background of a shell inherits that as ignored."""
    sent = Sent(request.param)
    before = signal.signal(sent.number, sent.handler)
    yield sent
    assert signal.getsignal(sent.number) == sent.handler
    signal.signal(sent.number, before)


def breaking(where, what):
    """Raises in forward or backward, in a layer, a loss, or a parameter's gradient."""

    def disturb(engine, batch):
        layer = engine.module.transformer.h[1]

        def stop(*args):
            raise what

        if where == "layer's forward":
            handle = layer.mlp.register_forward_pre_hook(stop)
        elif where == "before the layer's own hooks":
            handle = layer.register_forward_pre_hook(stop, prepend=True)
        elif where == "layer's backward":
            handle = layer.ln_1.register_full_backward_hook(stop)
        else:
            handle = layer.mlp.c_fc.weight.register_post_accumulate_grad_hook(stop)
        with pytest.raises(type(what)):
            one(engine, batch)
        handle.remove()
        assert engine.step_number == 1
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None

    return disturb


@pytest.mark.parametrize("together", [False, True])
def test_exceptions_leave_nothing_behind(together, tmp_path, seed, monkeypatch):
    expected = trained(tmp_path, seed, monkeypatch, None, "plain", together)
    places = ["layer's forward", "before the layer's own hooks", "layer's backward", "gradient"]
    for n, (where, what) in enumerate(
        [(place, KeyboardInterrupt()) for place in places] + [(places[0], Planned()), (places[3], Planned())]
    ):
        came = trained(tmp_path, seed, monkeypatch, breaking(where, what), f"run{n}", together)
        assert came == expected, (where, what)


def test_interrupts_at_any_instant(sent, tmp_path, seed, monkeypatch):
    """Ctrl-C while a step is made, from another thread, sooner or later; then the step is made, if it was not."""
    expected = trained(tmp_path, seed, monkeypatch, None, "plain")
    generator = torch.Generator().manual_seed(seed)
    came = []

    def disturb(engine, batch):
        for together in [False] * 8 + [True] * 8:
            timer = sent.after(0.03 * float(torch.rand((), generator=generator)))
            try:
                timer.start()
                if together:
                    engine.backward_together([batch], lambda b: engine.module(**b).loss)
                else:
                    engine.backward(engine(**batch).loss)
                engine.grad_norm()
                sent.wait()
                came.append(False)
            except BROKEN_OFF:
                came.append(True)
            engine.drop_gradients()
            assert engine.step_number == 1
            assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None

    assert trained(tmp_path, seed, monkeypatch, disturb, "run") == expected
    assert any(came) and sent.handled == len(came)


def test_an_interrupted_step_was_made_or_not(sent, tmp_path, seed, monkeypatch):
    torch.manual_seed(seed)
    batches = tokens(6, length=6)
    digests = []
    for interrupted in (False, True):
        torch.manual_seed(seed)
        with engine_for(gpt2(layers=2), tmp_path, f"run{interrupted}", slots=1, monkeypatch=monkeypatch) as engine:
            tries = 0
            while engine.step_number < len(batches):
                tries += 1
                try:
                    engine.backward(engine(**batches[engine.step_number]).loss)
                    if interrupted:
                        sent.after(0.004 * (tries % 5)).start()
                    engine.step()
                    sent.wait()
                except BROKEN_OFF:
                    engine.drop_gradients()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("raises", [True, False])
def test_a_handler_that_closes(raises, together, tmp_path, seed, monkeypatch):
    """As schedulers want it: the engine is closed in the handler, wherever it was, and the run goes on with the same
    bits."""
    expected = trained(tmp_path, seed, monkeypatch, None, "plain", together, steps=8)[0]
    rnd, batches = random.Random(seed), tokens(8, length=6)
    before, came, tries, started = signal.getsignal(signal.SIGTERM), [], 8, 0
    torch.manual_seed(seed)
    engine = engine_for(
        gpt2(dropout=0.1, layers=2), tmp_path, "run", slots=1, gradient_bytes=0, monkeypatch=monkeypatch
    )

    def close(signum, frame):
        came.append(signum)  # maybe behind the last step: it cannot be said when
        engine.close()
        if raises:
            raise SystemExit(0)

    signal.signal(signal.SIGTERM, close)
    try:
        while engine._core.state is None or engine.step_number < len(batches):
            if engine._core.state is None:
                engine = longshore.resume(tmp_path / "run")
            engine.train()
            timer, tries = (
                threading.Timer(
                    rnd.uniform(0, 0.1), signal.pthread_kill, (threading.main_thread().ident, signal.SIGTERM)
                ),
                tries - 1,
            )
            try:
                if tries > 0:
                    started += 1
                    timer.start()
                while engine.step_number < len(batches):
                    batch = batches[engine.step_number]
                    engine.train_batch([batch, batch]) if together else one(engine, batch)
                if tries <= 0:
                    break
                timer.join()
            except (SystemExit, longshore.LongshoreError) as stopped:
                # in a destructor Python ignores it
                assert raises if isinstance(stopped, SystemExit) else "is closed" in str(stopped)
            timer.join()
            while len(came) < started:
                time.sleep(0.001)
    except SystemExit:
        pass  # behind the last step
    finally:
        signal.signal(signal.SIGTERM, before)
    engine.close()
    assert came
    assert longshore.verify(tmp_path / "run") == expected


def test_a_handler_that_closes_while_an_operation_saves_what_it_reads(tmp_path, monkeypatch):
    """PyTorch lets Python run in the middle of an operation. The operation goes on with the memory that it had."""
    engine = engine_for(gpt2(layers=2), tmp_path, slots=1, monkeypatch=monkeypatch)
    places, handlers = engine._core.streams.places, [engine.close]
    of = places.place_of

    def place_of(tensor, sources=None):
        place = of(tensor, sources)
        if place is not None and handlers:
            handlers.pop()()  # as a signal's
        return place

    monkeypatch.setattr(places, "place_of", place_of)
    with pytest.raises(longshore.LongshoreError, match="is closed"):
        engine(**tokens(1, length=6)[0])
    assert not handlers


def test_a_handler_that_closes_before_micro_batches_begin(tmp_path, monkeypatch):
    """They are not waited for: none of them has a thread."""
    engine = engine_for(gpt2(layers=2), tmp_path)
    states, handlers = random_numbers.now, [engine.close]

    def now():
        if threading.current_thread() is threading.main_thread() and handlers:
            handlers.pop()()  # as a signal's
        return states()

    monkeypatch.setattr(random_numbers, "now", now)
    with pytest.raises(longshore.LongshoreError, match="is closed"):
        engine.train_batch(tokens(2, length=4))
    assert not handlers and engine._core.state is None


def test_several_signals(tmp_path):
    """All are handled, once each, also where the first one raises."""
    handled, before = [], {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR1)}

    def stop(signum, frame):
        handled.append(signum)
        raise SystemExit

    try:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGUSR1, lambda signum, frame: handled.append(signum))
        with pytest.raises(SystemExit):
            with whole:
                with whole:
                    for s in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
                        signal.raise_signal(s)
                assert not handled
        assert sorted(handled) == [signal.SIGUSR1, signal.SIGTERM]
        signal.raise_signal(signal.SIGUSR1)
        assert len(handled) == 3
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
