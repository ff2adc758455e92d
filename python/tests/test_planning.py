"""With little memory what is left over of the tree takes turns with the layers, and nothing else changes."""

import copy
import re
import types

import pytest
import torch
from torch import nn

import longshore
from models import gpt2, llama, tokens
from test_loop import engine_for


def untied():
    return llama(vocab_size=9000, attention_dropout=0.1)


class NoList(nn.Module):
    """Without a list of layers, with an embedding that is asked for outside of its own forward, and a head that is
    called twice."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4000, 64)
        self.wide = nn.Linear(64, 4000)
        self.back = nn.Linear(4000, 64, bias=False)
        self.head = nn.Linear(64, 4000)

    def forward(self, input_ids, labels):
        x = self.table(input_ids)
        x = x + self.back(torch.tanh(self.wide(x)))
        logits = self.head(x) + self.head(x.detach()) + nn.functional.linear(x, self.table.weight)
        return types.SimpleNamespace(loss=nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def least(model, tmp_path, **how):
    with pytest.raises(longshore.BudgetError) as said:
        longshore.wrap(model, run=tmp_path / "none", memory="1MiB", **how)
    return re.search(r"minimum ([0-9.]+ \w+)", str(said.value))[1]


def mib(size):
    return float(size.removesuffix(" MiB"))


@pytest.mark.parametrize("make", [untied, NoList])
@pytest.mark.parametrize("storage", ["fp32", "bf16"])
def test_what_is_left_over_takes_turns(make, storage, tmp_path, seed):
    digests, losses, memory = [], [], least(make(), tmp_path, storage=storage)
    for n, size in enumerate((memory, f"{mib(memory) + (0.5 if make is untied else 1)}MiB", "1GiB")):
        torch.manual_seed(seed)
        model = make()
        plain = copy.deepcopy(model)
        with engine_for(model, tmp_path, f"run{n}", memory=size, storage=storage) as engine:
            stay = {s.block.module for s in engine._core.streams.blocks if s.stays}
            assert ("lm_head" in stay or "head" in stay) == (size == "1GiB")
            assert engine.memory().held <= longshore.native.size(size)
            for batch in tokens(2):
                engine.backward(engine(**batch).loss)
                engine.step()
            engine.train_batch(tokens(3))
            with torch.no_grad():
                losses.append(engine.eval()(**tokens(1)[0]).loss.item())
            engine.train()
        resumed = longshore.resume(
            tmp_path / f"run{n}", None if make is untied else make, memory=memory if n else "1GiB"
        )
        with resumed as engine:
            engine.train()
            for batch in tokens(2):
                engine.backward(engine(**batch).loss)
                engine.step()
            digests.append(engine.digest())
    assert len(set(digests)) == 1 and len(set(losses)) == 1
    if storage == "fp32" and make is NoList:
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1)
        for batches in ([b] for b in tokens(2)):
            _step(plain, optimizer, batches)
        _step(plain, optimizer, tokens(3))
        assert plain(**tokens(1)[0]).loss.item() == pytest.approx(losses[0], rel=2e-6)


def _step(model, optimizer, batches):
    for batch in batches:
        (model(**batch).loss / len(batches)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def test_less_memory_is_enough(tmp_path, seed):
    """Of an embedding and a head that are not tied, one at a time is there."""
    with engine_for(untied(), tmp_path, memory=least(untied(), tmp_path)) as engine:
        lent, head = engine._core.streams.tier.memory.nbytes, engine.module.lm_head.weight.numel() * 4
        assert lent < 1.5 * head
        words = tokens(1)[0]["input_ids"]
        engine.eval()
        logits = nn.functional.linear(engine.module.model(words)[0], engine.module.lm_head.weight)
        assert torch.allclose(logits, engine.module(words).logits, atol=1e-6)
        engine.drop_gradients()
        with longshore.resident(engine.module.lm_head, write=True):
            engine.module.lm_head.weight.data[5].zero_()
        assert engine.module.lm_head.weight.detach()[5].abs().sum() == 0
    for make in (gpt2, llama):  # tied, or small
        assert mib(least(make(), tmp_path)) < 8
