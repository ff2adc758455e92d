"""Models of many kinds, in fewer slots than they have layers: the numbers of PyTorch, and the same bits whatever is
kept."""

import copy
import random

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import longshore
from longshore.run import memory_plan
from models import VOCAB, tokens

SMALL = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=32,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=0,
)


def causal(kind, **more):
    import transformers

    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")(**{**SMALL, **more})
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=48,
            max_position_embeddings=32,
        )
    )


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCAB,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            dropout_rate=0.1,
            decoder_start_token_id=0,
        )
    )


class Language(nn.Module):
    """Embedding, layers, head: what is between them is the subclass's."""

    def __init__(self, layer, n=3):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 16)
        self.layers = nn.ModuleList([layer() for _ in range(n)])
        self.head = nn.Linear(16, VOCAB)

    def through(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x

    def forward(self, input_ids, labels):
        logits = self.head(self.through(self.embedding(input_ids)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def feed_forward():
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, 16))


class Routed(nn.Module):
    """Experts of modules of their own: those that no token goes to get no gradient."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(16, 6), nn.ModuleList([feed_forward() for _ in range(6)])

    def forward(self, x):
        weight, chosen = self.router(x.mean((0, 1))).softmax(-1).topk(2)
        return sum(w * self.experts[e](x) for w, e in zip(weight, chosen.tolist()))


class Repeated(Language):
    """One layer three times, another twice in each of them, and one that only some inputs reach."""

    def through(self, x):
        for _ in range(3):
            x = x + self.layers[0](self.layers[1](x) + self.layers[1](-x))
        return x + self.layers[2](x) if bool(x.sum() > 0) else x


class Reaching(Language):
    """Parameters that are read without their modules being called, tied ones among them."""

    def __init__(self):
        super().__init__(feed_forward)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.head.weight = self.embedding.weight
        self.scale = nn.Linear(16, 16)

    def forward(self, input_ids, labels):
        x = self.embedding(input_ids)
        x = self.through(x + self.attention(x, x, x, need_weights=False)[0])
        x = F.linear(x, self.scale.weight) + self.layers[1][1].bias.mean()
        return F.cross_entropy(F.linear(x, self.embedding.weight).flatten(0, 1), labels.flatten())


class Sharing(Language):
    """A parameter of modules of several layers, and one that is a layer twice."""

    def __init__(self):
        super().__init__(feed_forward, 4)
        self.layers[2][4].weight = self.layers[0][4].weight
        self.layers[3] = self.layers[1]


class Sizes(nn.Module):
    """Parameters without elements, without dimensions, and in another order in memory than PyTorch's."""

    def __init__(self):
        super().__init__()
        self.none, self.scale = nn.Parameter(torch.empty(0, 3)), nn.Parameter(torch.tensor(1.5))
        self.transposed = nn.Parameter(torch.randn(16, 16).t())
        self.several = nn.ParameterList([torch.randn(16), torch.empty(0)])

    def forward(self, x):
        return torch.tanh(x @ self.transposed + self.several[0]) * self.scale + self.none.sum()


MODELS = {
    "bert": bert,
    "t5": t5,
    "llama": lambda: causal("Llama"),
    "qwen3": lambda: causal("Qwen3"),
    "gemma2": lambda: causal("Gemma2"),
    "qwen2_moe": lambda: causal(
        "Qwen2Moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16
    ),
    "routed": lambda: Language(Routed),
    "repeated": lambda: Repeated(feed_forward),
    "reaching": Reaching,
    "sharing": Sharing,
    "sizes": lambda: Language(Sizes),
}


def make_step(engine, batches, together):
    """Of a model that returns its loss; engine.accumulate is how many batches there are."""
    if together:
        engine.train_batch(batches, lambda loss, batch: loss)
    else:
        for batch in batches:
            engine.backward(engine(**batch))
        engine.step()


def engine_of(model, tmp_path, name, monkeypatch, slots, gradients=None, **how):
    plan = memory_plan.plan

    def other(*a, **k):
        chosen = plan(*a, **k)
        chosen.pages, chosen.gradient_bytes = slots, chosen.gradient_bytes if gradients is None else gradients
        return chosen

    with monkeypatch.context() as patched:
        patched.setattr(memory_plan, "plan", other)
        return longshore.wrap(
            model, run=tmp_path / name, **{"drives": ["ram:"], "lr": 1e-3, "weight_decay": 0.1, "clip": 1.0, **how}
        )


def loss_of(output):
    return output if isinstance(output, torch.Tensor) else output.loss


def in_memory(model, seed, batches):
    """PyTorch's, with the random numbers that a run has in each of its micro-batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    losses = []
    for step, batch in enumerate(batches):
        torch.manual_seed((seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) % 2**63)
        loss = loss_of(model(**batch))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", MODELS)
def test_losses_are_those_of_pytorch(kind, tmp_path, seed, monkeypatch):
    model = MODELS[kind]().train()
    expected = in_memory(copy.deepcopy(model), seed, tokens(4))
    torch.manual_seed(seed)  # which the run takes
    losses = []
    with engine_of(model, tmp_path, "run", monkeypatch, 1) as engine:
        for batch in tokens(4):
            loss = loss_of(engine(**batch))
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    assert losses == pytest.approx(expected, rel=2e-6)


class PassingOn(Language):
    """The first layer makes what all of them use and pass on, as T5's positions."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.bias, self.outer = nn.Linear(16, 16), nn.Parameter(torch.randn(16)), nn.Linear(16, 16)

        def forward(self, x, shared):
            h = self.inner(x)
            shared = (h * self.bias).mean(1, keepdim=True).tanh() if shared is None else shared
            return self.outer(torch.tanh(h * shared)), shared

    def __init__(self):
        super().__init__(self.Layer)

    def through(self, x):
        shared = None
        for layer in self.layers:
            more, shared = checkpoint(layer, x, shared, use_reentrant=False)
            x = x + more
        return x


def t5_encoder():
    from transformers import T5Config, T5EncoderModel

    model = Language(lambda: nn.Identity())
    model.layers = T5EncoderModel(T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=48, num_layers=3, num_heads=2))
    model.layers.gradient_checkpointing_enable({"use_reentrant": False})
    model.through = lambda x: model.layers(inputs_embeds=x).last_hidden_state
    return model


@pytest.mark.parametrize("kind", [PassingOn, t5_encoder])
def test_what_layers_pass_on(kind, tmp_path, seed, monkeypatch):
    """It has its gradient in the middle of the backward pass of the one that made it, whose memory nobody takes
    then."""
    digests = set()
    for slots in (1, 2, 3):
        torch.manual_seed(seed)
        with engine_of(kind().train(), tmp_path, f"run{slots}", monkeypatch, slots) as engine:
            for batch in tokens(3):
                engine.backward(engine(**batch))
                engine.step()
            digests.add(engine.digest())
    assert len(digests) == 1


@pytest.mark.parametrize("kind", ["sharing", "sizes", "llama"])
def test_resumed_without_values(kind, tmp_path, seed, monkeypatch):
    model = MODELS[kind]().eval()
    if kind == "llama":
        model.config.limits = [0.0, float("inf")]  # Mamba 2 has such
    with engine_of(model, tmp_path, "run", monkeypatch, 1, drives=None) as engine, torch.no_grad():
        expected = loss_of(engine(**tokens(1)[0]))
    with longshore.resume(tmp_path / "run", None if kind == "llama" else MODELS[kind]) as engine, torch.no_grad():
        assert torch.equal(loss_of(engine.eval()(**tokens(1)[0])), expected)
        assert kind != "llama" or engine.module.config.limits == [0.0, float("inf")]


@pytest.mark.parametrize(
    "kind, storage",
    [
        ("sharing", "bf16"),
        ("sizes", "fp32"),
        ("t5", "bf16"),
        ("qwen2_moe", "fp32"),
        ("repeated", "bf16"),
        ("reaching", "fp32"),
    ],
)
def test_same_bits_whatever_is_kept(kind, storage, tmp_path, seed, monkeypatch):
    digests = []
    for n, (slots, gradients, together) in enumerate(
        [(9, None, False), (1, 0, False), (2, None, False), (1, None, True)]
    ):
        torch.manual_seed(seed)
        model = MODELS[kind]().train()
        with engine_of(model, tmp_path, f"run{n}", monkeypatch, slots, gradients, storage=storage) as engine:
            engine.accumulate = 2
            batches = tokens(4, length=8)
            for i in (0, 2):
                if together:
                    engine.train_batch(batches[i : i + 2], lambda output, batch: loss_of(output))
                else:
                    for batch in batches[i : i + 2]:
                        engine.backward(loss_of(engine(**batch)))
                    engine.step()
            digests.append(engine.digest())
    assert len(set(digests)) == 1


class Again(Language):
    """Each layer has two gradients in a pass: one from each time that it is computed again."""

    def __init__(self):
        super().__init__(feed_forward)

    def through(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=True)
            x = x + checkpoint(layer, -x, use_reentrant=True)
        return x


def test_several_gradients_in_a_pass_are_added_in_order(tmp_path, seed, monkeypatch):
    """To a sum that is in memory, or on the drives already."""
    digests = set()
    for n, gradients in enumerate((None, 0, 6 << 10)):
        torch.manual_seed(seed)
        with engine_of(Again().train(), tmp_path, f"run{n}", monkeypatch, 2, gradients) as engine:
            engine.accumulate = 4
            for _ in range(3):
                for batch in tokens(4):
                    engine.backward(engine(**batch))
                engine.step()
            digests.add(engine.digest())
    assert len(digests) == 1


class Drawing(Language):
    """Which layers are passed by, and what is added, are drawn by Python and NumPy, as some models of transformers do
    it."""

    def __init__(self):
        super().__init__(feed_forward)

    def through(self, x):
        for layer in self.layers:
            if random.random() < 0.5:
                x = x + layer(x) * float(numpy.random.rand())
        return x


def test_numbers_drawn_by_python_and_numpy(tmp_path, seed, monkeypatch):
    digests, outside = set(), set()
    for n, together in enumerate((False, True, True)):
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        with engine_of(Drawing().train(), tmp_path, f"run{n}", monkeypatch, 1 + n) as engine:
            engine.accumulate = 5
            for _ in range(4):
                make_step(engine, tokens(5), together)
            digests.add(engine.digest())
            outside.add((random.random(), float(numpy.random.rand())))
    assert len(digests) == 1 and len(outside) == 1


class Leaving(Language):
    """Losses of its routers are left in the modules, in one place or another, and hidden states are collected by
    another forward()."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.inner, self.seen = nn.Linear(16, 4), nn.Linear(16, 16), 0

        def forward(self, x):
            self.seen += 1
            weights = self.router(x).softmax(-1)
            self.loss = weights.square().mean()
            return self.inner(x) * weights.amax(-1, keepdim=True)

    def __init__(self):
        super().__init__(self.Layer)
        self.losses = []

    def forward(self, input_ids, labels):
        self.losses, hidden, patched = [], [], []
        for layer in self.layers:

            def collecting(x, forward=layer.forward):
                hidden.append(forward(x))
                return hidden[-1]

            patched.append((layer, layer.forward))
            layer.forward = collecting
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = x + layer(x)
            self.losses.append(layer.loss)
        for layer, forward in patched:
            layer.forward = forward
        more = sum(layer.loss for layer in self.layers) + sum(self.losses) + sum(h.square().mean() for h in hidden)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten()) + more


def test_what_a_forward_pass_leaves_in_modules(tmp_path, seed, monkeypatch):
    digests = set()
    for n, together in enumerate((False, True, True)):
        torch.manual_seed(seed)
        with engine_of(Leaving().train(), tmp_path, f"run{n}", monkeypatch, 1 + n) as engine:
            engine.accumulate = 3
            for _ in range(2):
                make_step(engine, tokens(3), together)
            digests.add(engine.digest())
            assert all(layer.seen == 6 for layer in engine.module.layers)
            engine.module(**tokens(1)[0])
            assert all(layer.seen == 7 for layer in engine.module.layers)
    assert len(digests) == 1


def test_hidden_states_of_micro_batches(tmp_path, seed, monkeypatch):
    """Which transformers 4 collects with methods that it puts into the modules."""
    digests = set()
    for n, together in enumerate((False, True)):
        torch.manual_seed(seed)
        model = causal("Mixtral", num_local_experts=4, output_router_logits=True, output_hidden_states=True)
        with engine_of(model.train(), tmp_path, f"run{n}", monkeypatch, 1) as engine:
            engine.accumulate = 2

            def loss_fn(output, batch):
                return output.loss + sum(h.square().mean() for h in output.hidden_states)

            if together:
                engine.train_batch(tokens(2), loss_fn)
            else:
                for batch in tokens(2):
                    engine.backward(loss_fn(engine(**batch), batch))
                engine.step()
            digests.add(engine.digest())
    assert len(digests) == 1
