"""A step's trace: what a module computes and saves, without running it."""

import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import models
from longshore.model import blocks as tree, equal_layers, trace as tracing


def saved_by(model, batch):
    """Bytes that autograd really saves in a forward pass, of each storage once, without parameters and the batch."""
    tensors = [*model.parameters(), *model.buffers(), *tracing._tensors(batch)]
    given, seen = {t.untyped_storage().data_ptr() for t in tensors}, {}

    def pack(t):
        if t.untyped_storage().data_ptr() not in given:
            seen[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = model(**batch) if isinstance(batch, dict) else model(*batch)
    kept = sum(t.untyped_storage().nbytes() for t in seen.values())
    return kept, output


OTHERS = "rows", "functions", "calls"  # kinds that are no products


def flops(model, batch):
    """Operations that PyTorch's counter sees in a step."""
    with FlopCounterMode(display=False) as counter:
        output = model(**batch) if isinstance(batch, dict) else model(*batch)
        getattr(output, "loss", output).sum().backward()
    return counter.get_total_flops()


def products(trace):
    return sum(w.work for unit in trace.units for w in unit.forward + unit.backward if w.kind not in OTHERS)


def attention(trace):
    return sum(w.work for u in trace.units for w in u.forward + u.backward if w.kind.startswith("attention"))


def tokens(sequences=2, length=16):
    ids = torch.randint(0, models.VOCAB, (sequences, length))
    return {"input_ids": ids, "labels": ids}


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2))
        self.head = nn.Linear(4 * 6 * 6, 5)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


KINDS = {
    "gpt2": (models.gpt2, tokens),
    "llama": (models.llama, tokens),
    "conv": (ConvNet, lambda: (torch.randn(4, 3, 16, 16),)),
    "sequential": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), lambda: (torch.randn(6, 8),)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_has_what_a_step_really_saves_and_computes(kind):
    make, batch = KINDS[kind]
    model, batch = make(), batch()
    trace = tracing.trace(model, batch)
    saved, _ = saved_by(model, batch)
    assert trace.saved_bytes == saved > 0
    # PyTorch's counter takes all of a causal attention for computed; half of it is left out
    assert products(trace) + attention(trace) == flops(model, batch)
    assert not trace.guesses and not trace.why


@pytest.mark.parametrize("how", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}])
def test_what_an_lstms_kernel_leaves_for_backward_counts(how):
    model, batch = nn.LSTM(192, 128, **how), (torch.randn(48, 40, 192),)
    saved, _ = saved_by(model, batch)
    assert saved <= tracing.trace(model, batch).saved_bytes <= 1.1 * saved


def test_a_trace_of_the_meta_device_is_that_of_the_model():
    with torch.device("meta"):
        there = models.llama()
    assert tracing.trace(there, tokens()) == tracing.trace(models.llama(), tokens())
    assert all(p.is_meta for p in there.parameters())


def test_a_trace_leaves_the_model_and_random_numbers_as_they_are():
    model, batch = models.gpt2(dropout=0.1), tokens()
    modules = {name: dict(vars(m)) for name, m in model.named_modules()}
    before, state = {name: t.clone() for name, t in model.state_dict().items()}, torch.get_rng_state()
    tracing.trace(model, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: dict(vars(m)) for name, m in model.named_modules()} == modules
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_units_come_in_the_order_in_which_they_run():
    trace = tracing.trace(models.gpt2(), tokens())
    names = [unit.name for unit in trace.units]
    layers = [f"transformer.h.{n}" for n in range(3)]
    assert names == ["transformer.wte", "transformer.wpe", *layers, "transformer.ln_f", "lm_head"]
    assert [unit.layer for unit in trace.units] == [name in layers for name in names]
    assert trace.units[-1].parameters == ["transformer.wte.weight"]  # which is tied
    hidden = 2 * 16 * 48 * 4
    for unit in trace.units[2:-1]:
        assert unit.boundary_bytes == unit.output_bytes == hidden
        assert unit.saved_bytes >= hidden
    assert trace.units[3].saved_bytes > 11 * hidden
    assert (trace.tokens, trace.vocabulary, trace.logits_bytes) == (32, models.VOCAB, 32 * models.VOCAB * 4)
    assert trace.inputs_bytes == 32 * 8  # labels are the same tensor


def test_works_of_a_layer_by_kind_and_rows():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    first, second = tracing.trace(model, (torch.randn(6, 8),)).units
    assert [(w.kind, w.precision, w.rows, w.work) for w in first.forward if w.kind not in OTHERS] == [
        ("product", "fp32", 6, 2 * 6 * 8 * 16)
    ]
    found = {w.kind: (w.rows, w.work) for w in second.backward if w.kind not in OTHERS}
    assert found == {"product_input": (6, 2 * 6 * 16 * 4), "product_weight": (6, 2 * 6 * 16 * 4)}
    assert not [w for w in first.backward if w.kind == "product_input"]  # nobody needs the batch's gradient
    with torch.autocast("cpu", torch.bfloat16):
        (low, _) = tracing.trace(model, (torch.randn(6, 8),)).units
    assert {w.precision for w in low.forward if w.kind == "product"} == {"bf16"}


def test_what_checkpoints_compute_again_counts_in_backward():
    plain, again = models.llama(), models.llama()
    again.gradient_checkpointing_enable()
    kept, less = tracing.trace(plain.train(), tokens()), tracing.trace(again.train(), tokens())
    assert less.saved_bytes < kept.saved_bytes
    assert less.saved_bytes == saved_by(again, tokens())[0]
    forward = sum(w.work for w in kept.units[1].forward if w.kind not in OTHERS)
    more = products(less) - products(kept)
    assert less.units[1].layer and math.isclose(more, 3 * forward, rel_tol=0.25)
    temporary = less.units[1].backward_temporary_bytes - kept.units[1].backward_temporary_bytes
    assert temporary > (kept.units[1].saved_bytes - kept.units[1].boundary_bytes) // 2


def test_temporaries_are_the_most_in_memory_at_once():
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(10))

        def forward(self, x):
            large = torch.ones(1000, 10)  # nobody saves it
            return x * self.weight + large.sum()

    trace = tracing.trace(nn.Sequential(nn.Linear(10, 10), Large()), (torch.randn(4, 10),))
    assert trace.units[0].forward_temporary_bytes < 1000
    assert 40000 <= trace.units[1].forward_temporary_bytes < 41000


def test_experts_that_values_pick_share_tokens_evenly_and_it_is_said():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(8, 4)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
            self.config = type("Config", (), {"num_experts": 4})()

        def forward(self, x):
            chosen, out = self.router(x).argmax(-1), torch.zeros_like(x)
            for n, expert in enumerate(self.experts):
                rows = (nn.functional.one_hot(chosen, 4)[:, n : n + 1] > 0).nonzero()[:, 0]
                out = out.index_add(0, rows, expert(x[rows]))
            return out

    trace = tracing.trace(Experts(), (torch.randn(64, 8),))
    assert len(trace.guesses) == 1 and "sizes values decide" in trace.guesses[0]
    works = [w for u in trace.units for w in u.forward if w.kind == "product" and u.name.startswith("experts")]
    assert [(w.rows, w.work) for w in works] == [(16, 2 * 16 * 8 * 8)] * 4


def test_deepseeks_experts():
    model = models.deepseek()
    trace, batch = tracing.trace(model, tokens()), tokens()
    assert trace.saved_bytes == pytest.approx(saved_by(model, batch)[0], rel=0.1)


def test_branches_that_values_decide_are_said():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.a(x) if x.sum() > 0 else self.b(x)

    trace = tracing.trace(Branch(), (torch.randn(4, 8),))
    assert [unit.name for unit in trace.units] == ["a"]
    assert trace.guesses == ["a branch or a number that values decide"]


def test_what_cannot_be_traced_is_said_in_one_sentence_and_known_by_its_blocks():
    model = models.Reads()
    with pytest.raises(tracing.Untraceable, match=r"^Reads cannot be traced: [^\n]*numpy[^\n]*$") as said:
        tracing.trace(model, (torch.randn(4, 8),))
    trace = tracing.from_blocks(tree.partition(model), 4, str(said.value))
    assert [unit.name for unit in trace.units] == ["layers.0", "layers.1"] and trace.why
    assert products(trace) == 6 * 4 * sum(p.numel() for p in model.parameters())


def test_equal_layers_are_traced_once(monkeypatch):
    batch = tokens()
    for make in (lambda: models.llama(num_hidden_layers=18), lambda: models.gpt2(layers=18)):
        with torch.device("meta"):
            model = make()
        layers = tree.layers_of(model)
        assert [count for _, count in equal_layers.equal_layers(model, layers).values()] == [15]
        quick = tracing.trace(model, batch)
        with monkeypatch.context() as context:
            context.setattr(equal_layers, "FROM", 99)
            assert quick == tracing.trace(model, batch)
    other = models.llama(num_hidden_layers=18)
    other.model.layers[9].self_attn.sliding_window = 4
    assert not equal_layers.equal_layers(other, tree.layers_of(other))  # nine in a row


def test_a_model_that_counts_its_layers_is_traced_whole():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(20))

        def forward(self, x):
            for n in range(20):
                x = self.layers[n](x)
            return x

    assert len(tracing.trace(Counts(), (torch.randn(2, 4),)).units) == 20


def test_tokens_of_batches():
    assert tracing.tokens_of(tokens(3, 5)) == 15
    assert tracing.tokens_of((torch.randn(7, 3, 8, 8),)) == 7
    assert tracing.tokens_of({}) == 1


def test_functions_calls_and_new_memory_count():
    def works(model, batch):
        unit = tracing.trace(model, batch).units[0]
        return {(w.kind, w.rows): w.work for w in unit.forward}

    few, many = (works(nn.Sequential(nn.Linear(8, 8), *[nn.Tanh()] * n), (torch.randn(4, 8),)) for n in (1, 3))
    assert many["calls", 0] == few["calls", 0] + 2
    assert many["functions", 1] - few["functions", 1] == 2 * (2 * 4 * 8 * 4)
    rows = tracing.NEW_BYTES // tracing.ROW_BYTES
    large = works(nn.Linear(8, 1024), (torch.empty(rows, 8, device="meta"),))
    assert large["rows", rows] == tracing.NEW_BYTES
    assert ("rows", rows) not in works(nn.Linear(8, 1024), (torch.empty(rows // 2, 8, device="meta"),))


def test_a_larger_batch_makes_as_many_calls():
    trace = tracing.trace(nn.Linear(8, 8), (torch.randn(4, 8),))
    calls = [sum(w.work for w in t.units[0].forward if w.kind == "calls") for t in (trace, trace.times(2))]
    assert calls[0] == calls[1] > 0
