"""torch.compile of a model whose parameters come and go: the numbers of PyTorch, and the same bits in one slot and in two."""

import copy
import os

import pytest
import torch

from models import tokens
from test_architectures import Language, feed_forward, in_memory, loss_of
from test_loop import engine_for


@pytest.mark.parametrize("backend", os.environ.get("LONGSHORE_TEST_COMPILE", "").split())  # "aot_eager inductor": take a minute
def test_a_compiled_model(backend, tmp_path, seed, monkeypatch):
    digests = []
    for n, slots in enumerate((1, 2)):
        torch.manual_seed(seed)
        torch._dynamo.reset()
        model = Language(feed_forward, 2).eval()
        if not n:
            expected = in_memory(copy.deepcopy(model), seed, tokens(3))
        with monkeypatch.context() as patched, engine_for(model, tmp_path, f"run{n}", slots, monkeypatch=patched) as engine:
            engine.module.compile(backend=backend)
            losses = []
            for batch in tokens(3):
                loss = loss_of(engine(**batch))
                losses.append(loss.item())
                engine.backward(loss)
                engine.step()
            assert losses == pytest.approx(expected, rel=2e-6)
            digests.append(engine.digest())
    assert digests[0] == digests[1]
