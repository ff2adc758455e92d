"""Models of two dtypes: each parameter is fetched, computed with, stored and saved in its own; nothing is rounded that
nobody has rounded."""

import copy
import dataclasses
import os
import shutil
import subprocess
import types
from unittest import mock

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.checkpoint import checkpoint as checkpoint_of
from transformers import MambaConfig, MambaForCausalLM

import longshore
from longshore.drives.layout import Layout
from longshore.model import blocks
from longshore.run import checkpoint, memory_plan
from longshore.step import parameter_state
from models import deepseek, gpt2, llama, tokens
from test_loop import engine_for

BF16, FP32 = torch.bfloat16, torch.float32
PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")


class Layer(nn.Module):
    """A router and a norm in one dtype, experts in the other; a module with one of each, of which it reads both; one
    that is frozen."""

    def __init__(self, width=48):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.weight, self.scale = nn.Parameter(torch.randn(width, width) / 7), nn.Parameter(torch.ones(width))
        self.fixed = nn.Parameter(torch.rand(width), requires_grad=False)

    def forward(self, x):
        h = self.norm(x.to(self.norm.weight.dtype))
        shares = self.router(h.to(self.router.weight.dtype)).softmax(-1)
        h = h.to(x.dtype)
        h = sum(expert(h) * shares[..., n : n + 1].to(x.dtype) for n, expert in enumerate(self.experts))
        return x + nn.functional.linear(h, self.weight) * (self.scale * self.fixed).to(x.dtype)


class Mixed(nn.Module):
    """most: the dtype of experts; few: of routers, norms, and of an embedding that is tied to the head."""

    def __init__(self, most, few, checkpoints=False):
        super().__init__()
        self.checkpoints = checkpoints
        self.table, self.layers, self.last = (
            nn.Embedding(96, 48),
            nn.ModuleList(Layer() for _ in range(3)),
            nn.LayerNorm(48),
        )
        self.head = nn.Linear(48, 96, bias=False)
        self.head.weight = self.table.weight
        nn.init.normal_(self.table.weight, std=0.1)
        self.to(most)
        for name, p in self.named_parameters():
            if any(part in name for part in ("table", "norm", "router", "scale", "fixed", "last")):
                p.data = p.data.to(few)

    def forward(self, input_ids, labels):
        x = self.table(input_ids).to(self.layers[0].weight.dtype)
        for layer in self.layers:
            x = checkpoint_of(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        logits = self.head(self.last(x.to(self.last.weight.dtype)).to(self.head.weight.dtype))
        return types.SimpleNamespace(loss=nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()))


class Plain:
    """PyTorch, with masters in fp32 as the drives have them, and gradients that are added up in fp32. storage: as
    wrap() takes it."""

    def __init__(self, model, storage=None, **how):
        self.model, self.storage = copy.deepcopy(model), storage
        self.pairs = [
            (p, p.detach().float().clone().requires_grad_()) for p in self.model.parameters() if p.requires_grad
        ]
        self.optimizer = torch.optim.AdamW(
            [master for _, master in self.pairs], **{"lr": 1e-3, "weight_decay": 0.1, **how}
        )
        self.take()

    @torch.no_grad()
    def take(self):
        """Parameters are what is fetched of the masters."""
        for p, master in [*self.pairs, *((p, p.clone()) for p in self.model.parameters() if not p.requires_grad)]:
            p.copy_(master.bfloat16() if self.storage == "bf16" else master)

    def step(self, *batches):
        """Returns (the mean loss, the norm)."""
        losses = []
        for batch in batches:
            loss = self.model(**batch).loss / len(batches)
            loss.backward()
            losses.append(loss.item())
            for p, master in self.pairs:
                if p.grad is not None:
                    master.grad = p.grad.float() + (0 if master.grad is None else master.grad)
                    p.grad = None
        norm = nn.utils.clip_grad_norm_([master for _, master in self.pairs], 1.0).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.take()
        return sum(losses), norm


def step(engine, batch):
    loss = engine(**batch).loss
    engine.backward(loss)
    return loss.item(), engine.step().grad_norm


def same(got, expected, first=True):
    """Two of (loss, norm). After the first step other last bits of a master may be another bf16 number."""
    for a, b in zip(got, expected):
        assert abs(a - b) <= (1e-5 if first else 2e-3) * b


def dtypes(model):
    return {name: t.dtype for name, t in [*model.named_parameters(), *model.named_buffers()]}


@pytest.mark.parametrize("most, few, storage", [(BF16, FP32, None), (FP32, BF16, None), (FP32, BF16, "bf16")], ids=str)
def test_two_dtypes_as_in_pytorch_whatever_is_kept(most, few, storage, tmp_path, seed, monkeypatch):
    digests, before = set(), None
    for n, (slots, gradients, how) in enumerate(
        [(None, None, {}), (1, 0, {}), (2, None, {"activations": "drives", "activation_room": "16MiB"})]
    ):
        torch.manual_seed(seed)
        model = Mixed(most, few)
        plain, before = Plain(model, storage), dtypes(model)
        with engine_for(model, tmp_path, f"run{n}", slots, gradients, monkeypatch, storage=storage, **how) as engine:
            of_layers = [s for s in engine._core.streams.blocks if s.block.layer]
            assert {s.block.dtype for s in of_layers} == {most, few}
            assert all(s.stays == (slots is None) for s in of_layers)
            for n, batch in enumerate(tokens(3)):
                same(step(engine, batch), plain.step(batch), n == 0)
            assert dtypes(model) == before
            digests.add(engine.digest())
    assert len(digests) == 1
    with longshore.resume(tmp_path / "run1", Mixed(most, most)) as engine:
        assert dtypes(engine.module) == before and digests == {engine.digest()}
        result = engine.train_batch(tokens(2), lambda out, _: out.loss)
        same((result.loss, result.grad_norm), plain.step(*tokens(2)), False)


@pytest.mark.parametrize(
    "how",
    [{"compress": 0.05}, {"moments": "8bit"}, {"optimizer": "sgd", "momentum": 0.9}],
    ids=lambda how: next(iter(how)),
)
def test_the_bits_are_the_same_whatever_is_kept(how, tmp_path, seed, monkeypatch):
    digests, how = set(), {"weight_decay": 0.0, **how}
    for n, (slots, gradients) in enumerate([(None, None), (1, 0)]):
        torch.manual_seed(seed)
        with engine_for(Mixed(BF16, FP32), tmp_path, f"run{n}", slots, gradients, monkeypatch, **how) as engine:
            for batch in tokens(3):
                step(engine, batch)
            digests.add(engine.digest())
    assert len(digests) == 1


@pytest.mark.parametrize("slots", [1, None])
def test_what_is_done_with_a_run_of_two_dtypes(slots, tmp_path, seed, monkeypatch):
    """Snapshots, checkpoints, gradients, values in memory and files, moments for another run."""
    model = Mixed(BF16, FP32)
    plain, before, batches = Plain(model), dtypes(model), tokens(8)
    with engine_for(model, tmp_path, "run", slots, None, monkeypatch) as engine:
        step(engine, batches[0])
        plain.step(batches[0])
        checkpoint.save(engine, tmp_path / "checkpoint")
        digest = engine.digest()
        step(engine, batches[1])
        checkpoint.load(engine, tmp_path / "checkpoint")
        assert engine.digest() == digest
        same(step(engine, batches[1]), plain.step(batches[1]), False)
        for (name, p), q in zip(model.named_parameters(), plain.model.parameters()):
            assert torch.allclose(p.detach(), q, rtol=1e-2, atol=3e-3), name
        router = model.layers[1].router.weight
        with longshore.resident(router, write=True), torch.no_grad():
            router.mul_(1.001)  # which bf16 does not have
            changed = router.clone()
        assert torch.equal(router.detach(), changed)
        engine.backward(engine(**batches[2]).loss)
        trained = [p for p in model.parameters() if p.requires_grad]
        assert {p.grad.dtype for p in trained} == {BF16, FP32} and all(p.grad.dtype == p.dtype for p in trained)
        engine.drop_gradients()
        values = {name: value.clone() for name, value in engine.module.state_dict().items()}
        assert {name: before[name] for name in values if name in before} == {
            name: value.dtype for name, value in values.items() if name in before
        }
        model.load_state_dict({name: value * 1.25 for name, value in values.items()})
        assert all(torch.equal(value, values[name] * 1.25) for name, value in model.state_dict().items())
        engine.save_pretrained(tmp_path / "out", moments=True)
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: t.dtype for name, t in saved.items()} == {name: before[name] for name in saved} and len(saved) == len(
        before
    )
    other = Mixed(BF16, FP32)
    other.load_state_dict(saved, strict=False)
    with (
        longshore.resume(tmp_path / "run", Mixed(FP32, FP32)) as engine,
        engine_for(other, tmp_path, "other", moments_from=tmp_path / "out") as again,
    ):
        for p, q in zip(engine.module.parameters(), again.module.parameters()):
            assert p.dtype == q.dtype and torch.equal(parameter_state.read(p, "v"), parameter_state.read(q, "v"))


def least(model, device=None, **how):
    """The least memory that works for a model, in bytes."""
    parts = blocks.partition(model)
    blocks.mark_rest(parts, model)
    how = {"optimizer": "adamw", "moments": "fp32", "storage": blocks.NAME_OF[blocks.dtype_of(model)], **how}
    return memory_plan.plan(Layout(parts), ["/nowhere"], 1 << 30, how, device=device).least_bytes


@pytest.mark.parametrize("most, few", [(BF16, FP32), (FP32, BF16)], ids=str)
@pytest.mark.parametrize("checkpoints", [False, True], ids=["plain", "checkpoints"])
def test_both_dtypes_pass_through_the_least_memory(most, few, checkpoints, tmp_path, seed):
    """In an ordinary loop that accumulates, and in train_batch()."""
    model = Mixed(most, few, checkpoints)
    plain, memory, batches = Plain(model), least(model), tokens(8)
    with pytest.raises(longshore.BudgetError, match="is too little for this model: minimum"):
        longshore.wrap(model, run=tmp_path / "none", memory=memory - (1 << 20))
    with engine_for(model, tmp_path, memory=memory) as engine:
        streams = engine._core.streams
        assert streams.slots == 1 and engine.memory().parameters == streams.tier.memory.nbytes
        engine.accumulate = 2
        for n in range(0, 4, 2):
            losses = [engine(**batch).loss for batch in batches[n : n + 2]]
            for loss in losses:
                engine.backward(loss)
            same((sum(losses).item() / 2, engine.step().grad_norm), plain.step(*batches[n : n + 2]), n == 0)
        for n in range(4, 8, 2):
            result = engine.train_batch(batches[n : n + 2], lambda out, _: out.loss)
            same((result.loss, result.grad_norm), plain.step(*batches[n : n + 2]), False)
        assert engine.memory().held <= memory


@pytest.mark.parametrize("most, few, storage", [(BF16, FP32, None), (FP32, BF16, "bf16")], ids=str)
def test_a_run_whose_less_common_dtype_stays_in_memory_goes_on(most, few, storage, tmp_path, seed):
    """As runs before 0.3.0 record it."""
    partition, digests = blocks.partition, []

    def that_stays(model, layers):
        parts = partition(model, layers)
        for block in parts:
            block.layer &= block.dtype == blocks.dtype_of(model)
        return parts

    for name, parted in (("now", partition), ("before", that_stays)):
        torch.manual_seed(seed)
        with (
            mock.patch.object(blocks, "partition", parted),
            engine_for(Mixed(most, few), tmp_path, name, storage=storage) as engine,
        ):
            step(engine, tokens(1)[0])
            before = engine.digest()
        with longshore.resume(tmp_path / name, Mixed(most, few)) as engine:
            streamed = [s.block.layer for s in engine._core.streams.blocks if s.block.dtype == few]
            assert any(streamed) == (name == "now") and engine.digest() == before
            for batch in tokens(2):
                step(engine, batch)
            digests.append(engine.digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    "make, said",
    [
        (torch.Tensor.half, "float16; load or make the model as float32"),
        (torch.Tensor.double, "float64; make the model as float32"),
        (torch.Tensor.to, "complex64; keep the real"),
        (torch.Tensor.byte, "uint8; dequantize the model first"),
    ],
    ids=str,
)
def test_other_dtypes_are_refused_by_name(make, said, tmp_path, seed):
    model = gpt2(layers=2)
    value = model.transformer.h[1].mlp.c_fc.bias.detach()
    value = value.to(torch.complex64) if make is torch.Tensor.to else make(value)
    model.transformer.h[1].mlp.c_fc.bias = nn.Parameter(value, requires_grad=value.is_floating_point())
    with pytest.raises(longshore.LongshoreError, match=f"float32 or bfloat16: transformer.h.1.mlp.c_fc.bias is {said}"):
        longshore.wrap(model, run=tmp_path / "run")


def adapted():
    """As peft makes them of a bf16 base: adapters are fp32."""
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
    return peft.get_peft_model(llama().bfloat16(), config)


@pytest.mark.parametrize("trained, few", [(FP32, FP32), (BF16, FP32)], ids=str)
def test_state_of_what_is_trained_stays_in_memory(trained, few, tmp_path, seed):
    """Updates hand back the dtype of most trained parameters, whatever that of the others is."""
    model = nn.Sequential(
        *[nn.ModuleDict({"base": nn.Linear(640, 1280), "more": nn.Linear(640, 640)}) for _ in range(2)]
    )
    for layer in model:
        layer["base"].to(BF16).requires_grad_(trained == BF16)
        layer["more"].to(few)
    digests = set()
    for memory in ("1GiB", least(copy.deepcopy(model))):
        with engine_for(copy.deepcopy(model), tmp_path, str(memory), memory=memory) as engine:
            for _ in range(3):
                outputs = [
                    layer[name](torch.ones(1, 640, dtype=layer[name].weight.dtype)).float().square().mean()
                    for layer in engine.module
                    for name in layer
                ]
                engine.backward(sum(outputs))
                engine.step()
            digests.add(engine.digest())
            held = engine.memory().state
            state = 12 * sum(s.block.tensors[0].elems for s in engine._core.streams.blocks if s.block.dtype == trained)
            assert held >= state if memory == "1GiB" else held < state
    assert len(digests) == 1


def routed():
    """A mixture of experts whose layers have a bias of the router in fp32."""
    model = deepseek(layers=4).bfloat16()
    for name, t in model.state_dict(keep_vars=True).items():
        if "e_score_correction_bias" in name or name.endswith("mlp.gate.weight"):
            t.data = t.data.float()
    return model


@pytest.mark.parametrize("plenty", [True, False], ids=["plenty", "least"])
def test_adapters_in_fp32_on_a_bf16_base(plenty, tmp_path, seed):
    model = adapted()
    plain, before = Plain(model), dtypes(model)
    with engine_for(model, tmp_path, memory="1GiB" if plenty else least(model)) as engine:
        kinds = {(s.block.dtype, s.block.trains) for s in engine._core.streams.blocks if s.block.layer}
        assert kinds >= {(BF16, False), (FP32, True)} and (engine._core.streams.slots > 1) == plenty
        for n, batch in enumerate(tokens(3)):
            same(step(engine, batch), plain.step(batch), n == 0)
        assert dtypes(model) == before and {before[n] for n in before if "lora" in n} == {FP32}
        engine.save_pretrained(tmp_path / "out")
        after = engine.digest()
    saved = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {t.dtype for name, t in saved.items() if "lora" in name} == {FP32}
    with longshore.resume(tmp_path / "run") as engine:
        assert dtypes(engine.module) == before and engine.digest() == after
        same(step(engine, tokens(1)[0]), plain.step(tokens(1)[0]), False)


@pytest.mark.parametrize("slots", [1, None])
def test_routers_that_transformers_keeps_in_fp32(slots, tmp_path, seed, monkeypatch):
    from transformers import DeepseekV3ForCausalLM

    deepseek(layers=3).save_pretrained(tmp_path / "model")
    with longshore.init(tmp_path / "run"):
        model = DeepseekV3ForCausalLM.from_pretrained(tmp_path / "model", dtype=BF16)
    before, plain = dtypes(model), Plain(model)
    if FP32 not in {before[name] for name, _ in model.named_parameters()}:
        pytest.skip("transformers 4 keeps no parameter of the router in fp32")
    if slots:
        plan = memory_plan.plan
        monkeypatch.setattr(memory_plan, "plan", lambda *a, **k: dataclasses.replace(plan(*a, **k), pages=slots))
    with longshore.wrap(model, lr=1e-3, weight_decay=0.1, clip=1.0) as engine:
        assert FP32 in {s.block.dtype for s in engine._core.streams.blocks if s.block.layer}
        for n, batch in enumerate(tokens(3)):
            same(step(engine, batch)[:1], plain.step(batch)[:1], n == 0)
        engine.save_pretrained(tmp_path / "out")
        assert dtypes(model) == before
        with torch.no_grad():
            logits = engine(tokens(1)[0]["input_ids"]).logits
    loaded = DeepseekV3ForCausalLM.from_pretrained(tmp_path / "out", dtype=BF16)
    assert dtypes(loaded) == before and torch.equal(loaded(tokens(1)[0]["input_ids"]).logits, logits)


def mamba():
    """What transformers' Mamba computes in fp32 is fp32."""
    config = MambaConfig(
        vocab_size=96, hidden_size=32, state_size=8, num_hidden_layers=3, time_step_rank=4, use_cache=False
    )
    model = MambaForCausalLM(config).bfloat16()
    for name, p in model.named_parameters():
        if name.endswith("A_log"):
            p.data = p.data.float()
    return model


@pytest.mark.skipif(not PROGRAM, reason="the program is not installed")
def test_a_state_space_model_at_the_least_memory(tmp_path, seed):
    """And the program exports it as it is."""
    model = mamba()
    plain, before = Plain(model), dtypes(model)
    with engine_for(model, tmp_path, memory=least(model)) as engine:
        assert {s.block.dtype for s in engine._core.streams.blocks if s.block.layer} == {BF16, FP32}
        for n, batch in enumerate(tokens(3)):
            same(step(engine, batch), plain.step(batch), n == 0)
        engine.save_pretrained(tmp_path / "saved")
    subprocess.run([PROGRAM, "export", tmp_path / "run", "--out", tmp_path / "out"], check=True)
    saved, exported = (load_file(tmp_path / name / "model.safetensors") for name in ("saved", "out"))
    assert {name: t.dtype for name, t in exported.items()} == {name: before[name] for name in exported}
    assert saved.keys() == exported.keys() and all(torch.equal(t, exported[name]) for name, t in saved.items())
