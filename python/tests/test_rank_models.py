"""Models that 1, 2 and 4 ranks train with the same groups: the same bits, wherever each group is computed."""

import hashlib

import pytest
import torch
from torch import nn

import longshore
from longshore.ranks.launch import ranks
from models import VOCAB, Cnn, deepseek, gpt2, llama, tokens
from rank_processes import results

GROUPS, COUNT, STEPS, SEED = 4, 8, 3, 5


class Experts(nn.Module):
    """Each micro-batch goes through one of four experts: each rank reaches others, and nobody the last."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(24), "experts": nn.ModuleList(nn.Linear(24, 24) for _ in range(5))})
            for _ in range(2)
        )

    def forward(self, x, expert):
        for layer in self.layers:
            x = x + nn.functional.dropout(layer["experts"][expert](layer["norm"](x)).tanh(), 0.1, self.training)
        return x.square().mean()


def lora():
    import peft

    return peft.get_peft_model(llama(), peft.LoraConfig(r=4, task_type="CAUSAL_LM", lora_dropout=0.1))


def wide():
    """Its layers have three segments each, which two ranks share."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=120, n_layer=2, n_head=4, n_positions=32))


MODELS = {
    "wide": wide,
    "gpt2": lambda: gpt2(dropout=0.1, layers=2),
    "bf16": lambda: gpt2(dropout=0.1, layers=2).bfloat16(),
    "llama": llama,
    "deepseek": deepseek,
    "experts": Experts,
    "lora": lora,
    "cnn": Cnn,
}


def batches_of(kind, step):
    g = torch.Generator().manual_seed(step)
    if kind == "cnn":
        return [torch.randn(3, 1, 6, 6, generator=g) for _ in range(COUNT)]
    if kind == "experts":
        return [{"x": torch.randn(2, 24, generator=g), "expert": (n // 2 + n * step) % 4} for n in range(COUNT)]
    return tokens(COUNT, length=6, seed=step)


def loss_of(output):
    return output if output.dim() == 0 else output.square().mean()


def train_batch(engine, batches):
    def loss(output, batch):
        return output.loss if hasattr(output, "loss") else loss_of(output)

    return engine.train_batch(batches, loss)


def _losses(engine, batches):
    engine.accumulate = len(batches)
    for batch in batches:
        output = engine(**batch) if isinstance(batch, dict) else engine(batch)
        yield output.loss if hasattr(output, "loss") else loss_of(output)


def loop(engine, batches):
    for loss in _losses(engine, batches):
        engine.backward(loss)
    return engine.step()


def script(engine, batches):
    for loss in _losses(engine, batches):
        (loss / len(batches)).backward()
    return engine.step()


WAYS = {way.__name__: way for way in (train_batch, loop, script)}


def _trained(engine, kind, way, steps):
    """[(loss, norm), of each step], the digest, and one of buffers as this rank has them."""
    told, rank, size = [], ranks().rank, ranks().size
    while engine.step_number < steps:
        own = slice(rank * COUNT // size, (rank + 1) * COUNT // size)
        result = WAYS[way](engine, batches_of(kind, engine.step_number)[own])
        told.append((None if way == "script" else result.loss, result.grad_norm))
    buffers = hashlib.sha256()
    for _, b in engine.module.named_buffers():
        buffers.update(b.float().numpy().tobytes())
    return told, engine.digest(), buffers.hexdigest()


def train(run, kind, way, how, steps=STEPS):
    """Of a rank: trains a new run, or goes on with it."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED + ranks().rank)  # rank 0's counts
    model = MODELS[kind]()
    if how is None:
        engine = longshore.resume(run, model)
    else:
        engine = longshore.wrap(model, run=run, memory="64MiB", lr=1e-2, sum_groups=GROUPS, **how)
    with engine:
        return _trained(engine, kind, way, steps)


def of_ranks(size, tmp_path, *arguments, **how):
    """What each of them tells, which is the same."""
    out = results(size, train, str(tmp_path / f"run{size}"), *arguments, OMP_NUM_THREADS="1", **how)
    assert all(told == out[0] for told in out)
    return out[0]


def check(tmp_path, kind, way, how, sizes=(2,)):
    expected = of_ranks(1, tmp_path, kind, "train_batch", how)
    for size in sizes:
        told, digest, buffers = of_ranks(size, tmp_path, kind, way, how)
        if way != "script":
            assert told == expected[0], size
        assert [norm for _, norm in told] == [norm for _, norm in expected[0]], size
        assert (digest, buffers) == expected[1:], size


@pytest.mark.parametrize("way", WAYS)
def test_gpt2(way, tmp_path):
    check(tmp_path, "gpt2", way, {"clip": 0.05}, (2, 4) if way == "train_batch" else (2,))


@pytest.mark.parametrize("kind", ["wide", "llama", "bf16", "deepseek", "lora"])
def test_kinds_of_models(kind, tmp_path):
    if kind == "lora":
        pytest.importorskip("peft")
    check(tmp_path, kind, "train_batch", {"clip": 1.0})


@pytest.mark.parametrize("way", ["train_batch", "loop"])
def test_ranks_that_reach_other_experts(way, tmp_path):
    check(tmp_path, "experts", way, {"clip": 0.5}, (2, 4))


@pytest.mark.parametrize(
    "how", [{"optimizer": "sgd", "momentum": 0.9}, {"moments": "8bit"}, {"storage": "bf16"}], ids=str
)
def test_optimizers_and_storage(how, tmp_path):
    check(tmp_path, "gpt2", "train_batch", how)


def test_statistics_are_rank_0s(tmp_path):
    """Equal for equal numbers of ranks, and on all of them."""
    first = of_ranks(2, tmp_path / "a", "cnn", "train_batch", {})
    assert of_ranks(2, tmp_path / "b", "cnn", "train_batch", {}) == first


def passes_without_a_number(run):
    """Two passes of each rank, of which nobody has said that they are two: the sums of the first ones come first."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    with longshore.wrap(gpt2(layers=2), run=run, memory="64MiB", lr=1e-2, sum_groups=2) as engine:
        batches, size = tokens(4, length=6), ranks().size
        if size == 1:
            engine.accumulate = 4
        for n in (0, 2, 1, 3) if size == 1 else (2 * ranks().rank, 2 * ranks().rank + 1):
            engine.backward(engine(**batches[n]).loss / (2 if size == 1 else 1), divide=False)
        return engine.step().grad_norm, engine.digest()


def test_passes_after_the_one_that_seemed_last(tmp_path):
    alone = results(1, passes_without_a_number, str(tmp_path / "run1"), OMP_NUM_THREADS="1")
    both = results(2, passes_without_a_number, str(tmp_path / "run2"), OMP_NUM_THREADS="1")
    assert both == alone * 2


def reopened(run, of_three):
    engine = longshore.wrap(gpt2(layers=1), run=run, memory="64MiB", lr=1e-2, sum_groups=2)
    with pytest.raises(ValueError, match="sum_groups=3 cannot be shared out among 2 ranks"):
        engine.reopen(of_three)
    engine.close()


def test_a_run_whose_groups_ranks_cannot_share_is_not_reopened(tmp_path, seed):
    with longshore.wrap(gpt2(layers=1), run=tmp_path / "three", lr=1e-2, sum_groups=3):
        pass
    results(2, reopened, str(tmp_path / "two"), str(tmp_path / "three"), OMP_NUM_THREADS="1")


def test_other_ranks_go_on(tmp_path):
    whole = of_ranks(1, tmp_path / "whole", "gpt2", "train_batch", {}, 4)
    for n, sizes in enumerate([(4, 2, 1), (1, 2, 4)]):
        run = str(tmp_path / f"run{n}")
        for steps, size in enumerate(sizes, 1):
            how = {} if steps == 1 else None
            out = results(size, train, run, "gpt2", "train_batch", how, steps + (steps == 3), OMP_NUM_THREADS="1")
        assert {digest for _, digest, _ in out} == {whole[1]}
