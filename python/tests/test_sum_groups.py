"""The groups in which a step's gradients are added: the sums are those made by hand, however they are gathered."""

import copy

import pytest
import torch
from torch import nn

import longshore
from longshore.run.engine_surface import core_of
from longshore.step.block_gradients import BlockGradients
from models import gpt2, tokens
from test_loop import engine_for

GROUPS, COUNT = 4, 8


def by_hand(model, batches, groups, loss_of=lambda model, batch: model(**batch).loss):
    """{name: the sum of a plain model's gradients in fp32, groups in order, each the sum of its micro-batches}"""
    total = {}
    for first in range(0, len(batches), len(batches) // groups):
        of_group = {}
        for batch in batches[first : first + len(batches) // groups]:
            (loss_of(model, batch) / len(batches)).backward()
            for name, p in model.named_parameters():
                if p.grad is not None:
                    g, p.grad = p.grad.float(), None
                    of_group[name] = of_group[name] + g if name in of_group else g
        for name, g in of_group.items():
            total[name] = total[name] + g if name in total else g
    return total


def together(engine, batches, loss_of):
    engine.backward_together(batches, lambda batch: loss_of(engine, batch))


def loop(engine, batches, loss_of):
    engine.accumulate = len(batches)
    for batch in batches:
        engine.backward(loss_of(engine, batch))


def script(engine, batches, loss_of):
    engine.accumulate = len(batches)
    for batch in batches:
        (loss_of(engine, batch) / len(batches)).backward()


def sums(engine):
    """{name: the step's gradient in fp32}"""
    gradients = core_of(engine).gradients
    values = {name: gradients.value_of(p) for name, p in engine.module.named_parameters()}
    return {name: value.float().clone() for name, value in values.items() if value is not None}


def check(engine, expected):
    found = sums(engine)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name].view(value.shape), value), name


def causal(model, batch):
    return model(**batch).loss


@pytest.mark.parametrize("way", [together, loop, script], ids=lambda way: way.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_are_those_made_by_hand(way, dtype, tmp_path, seed):
    model, batches = gpt2().to(dtype), tokens(COUNT)
    plain = copy.deepcopy(model)
    with engine_for(model, tmp_path, sum_groups=GROUPS) as engine:
        way(engine, batches, causal)
        expected = by_hand(plain, batches, GROUPS)
        check(engine, expected)
        other = by_hand(plain, batches, 1)
        assert any(not torch.equal(value, other[name]) for name, value in expected.items())
        engine.step()


def digest_of(tmp_path, name, way, seed, n=COUNT, steps=3, **how):
    torch.manual_seed(seed)
    with engine_for(gpt2(dropout=0.1), tmp_path, name, **how) as engine:
        for step in range(steps):
            way(engine, tokens(n, seed=step), causal)
            engine.step()
        return engine.digest()


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_every_way_has_the_same_bits(clip, tmp_path, seed, monkeypatch):
    how = {"clip": clip, "sum_groups": GROUPS}
    digests = {
        digest_of(tmp_path, "together", together, seed, **how),
        digest_of(tmp_path, "loop", loop, seed, **how),
        digest_of(tmp_path, "script", script, seed, **how),
        digest_of(tmp_path, "drives", together, seed, gradient_bytes=0, slots=1, monkeypatch=monkeypatch, **how),
    }
    assert len(digests) == 1
    assert digests != {digest_of(tmp_path, "one", together, seed, clip=clip)}


@pytest.mark.parametrize("way", [loop, script], ids=lambda way: way.__name__)
def test_groups_before_the_one_in_hand_wait_on_the_drives(way, tmp_path, seed, monkeypatch):
    expected = digest_of(tmp_path, "all", way, seed, sum_groups=GROUPS, steps=2)
    asked, steps = 4 * sum(p.numel() for p in gpt2().parameters()), []
    spill = BlockGradients.leave

    def left(block):
        steps.append(len(block.held))
        spill(block)

    monkeypatch.setattr(BlockGradients, "leave", left)
    how = {"sum_groups": GROUPS, "steps": 2, "monkeypatch": monkeypatch}
    assert digest_of(tmp_path, "one", way, seed, gradient_bytes=asked, **how) == expected
    assert len(steps) > 10
    assert digest_of(tmp_path, "part", way, seed, gradient_bytes=asked * 3 // 2, slots=1, **how) == expected
    with pytest.raises(longshore.BudgetError, match=r"gradients of a group .*train_batch\(\)"):
        digest_of(tmp_path, "few", way, seed, gradient_bytes=asked // 2, **how)


def test_groups_of_one_micro_batch_change_nothing(tmp_path, seed):
    assert digest_of(tmp_path, "a", loop, seed, sum_groups=COUNT) == digest_of(tmp_path, "b", loop, seed)


class Branches(nn.Module):
    """Two branches, of which a micro-batch takes one, and one that none takes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x, branch):
        return self.layers[3](self.layers[branch](x).tanh()).square().mean()


@pytest.mark.parametrize("way", [together, loop, script], ids=lambda way: way.__name__)
@pytest.mark.parametrize("reaches", [(3, 4), (0,), (7,), (1, 2, 6)], ids=str)
def test_tensors_that_some_groups_reach(way, reaches, tmp_path, seed):
    model = Branches()
    plain = copy.deepcopy(model)
    batches = [{"x": torch.randn(3, 16), "branch": int(n in reaches)} for n in range(COUNT)]

    def loss_of(model, batch):
        return model(**batch)

    with engine_for(model, tmp_path, sum_groups=GROUPS) as engine:
        way(engine, batches, loss_of)
        check(engine, by_hand(plain, batches, GROUPS, loss_of))
        engine.step()


class Table(nn.Module):
    """Its table has sparse gradients, of other rows in each micro-batch."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(64, 16, sparse=True), nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.table(ids)).square().mean()


@pytest.mark.parametrize("way", [together, loop, script], ids=lambda way: way.__name__)
def test_sparse_gradients(way, tmp_path, seed):
    model = Table()
    plain = copy.deepcopy(model)
    plain.table.sparse = False
    batches = [torch.randint(0, 64, (2, 5)) for _ in range(COUNT)]

    def loss_of(model, batch):
        return model(batch)

    with engine_for(model, tmp_path, sum_groups=GROUPS) as engine:
        way(engine, batches, loss_of)
        check(engine, by_hand(plain, batches, GROUPS, loss_of))


@pytest.mark.parametrize("few", [False, True])
def test_reading_gradients_between_passes_changes_nothing(few, tmp_path, seed, monkeypatch):
    """Nor do hooks that see them: a hook sees the sum so far."""
    model, batches = gpt2(layers=2), tokens(COUNT)
    plain = copy.deepcopy(model)
    asked = {"gradient_bytes": 0, "slots": 1, "monkeypatch": monkeypatch} if few else {}
    way = [batches[:GROUPS], batches[:GROUPS]] if few else [batches]
    with engine_for(model, tmp_path, sum_groups=GROUPS, **asked) as engine:
        for batches in way:
            engine.accumulate = len(batches)
            for n, batch in enumerate(batches):
                engine.backward(causal(engine, batch))
                expected = by_hand(plain, batches[: n + 1], 1)
                for (name, p), q in zip(engine.module.named_parameters(), plain.parameters()):
                    scale = (n + 1) / len(batches)
                    assert torch.allclose(p.grad, expected[name].view(q.shape) * scale, rtol=1e-4, atol=1e-6), name
            check(engine, by_hand(plain, batches, GROUPS))
            engine.drop_gradients()
        seen = []
        p = engine.module.transformer.h[0].mlp.c_fc.weight
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        (together if not few else loop)(engine, batches, causal)
        check(engine, by_hand(plain, batches, GROUPS))
        assert len(seen) == len(batches) and torch.equal(seen[-1], sums(engine)["transformer.h.0.mlp.c_fc.weight"])


def test_what_a_script_makes_of_a_gradient_takes_the_place_of_the_sum(tmp_path, seed):
    """Within a group the next micro-batch adds to it; the next group adds its sum."""
    model, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(COUNT, 3, 8)
    plain, given = copy.deepcopy(model)[0].weight, torch.randn(8, 8)
    with engine_for(model, tmp_path, sum_groups=2) as engine:
        engine.accumulate, p = COUNT, model[0].weight
        for n in range(COUNT):
            engine.backward(engine(x[n]).square().mean())
            if n in (1, 5):
                p.grad = given.clone() if n == 1 else p.grad * 2
        grads = []
        for n in range(COUNT):
            (
                nn.functional.linear(x[n], plain, copy.deepcopy(model)[0].bias.detach()).square().mean() / COUNT
            ).backward()
            grads.append(plain.grad)
            plain.grad = None
        total = given + grads[2] + grads[3]
        expected = (total + (grads[4] + grads[5])) * 2 + grads[6] + grads[7]
        assert torch.equal(sums(engine)["0.weight"], expected)


def test_a_run_keeps_its_groups(tmp_path, seed):
    whole = digest_of(tmp_path, "whole", together, seed, sum_groups=GROUPS, steps=3)
    digest_of(tmp_path, "halves", together, seed, sum_groups=GROUPS, steps=2)
    with longshore.resume(tmp_path / "halves") as engine:
        assert core_of(engine).how["sum_groups"] == GROUPS
        together(engine, tokens(COUNT, seed=2), causal)
        engine.step()
        assert engine.digest() == whole


def test_another_run_brings_its_groups(tmp_path, seed):
    whole = digest_of(tmp_path, "whole", together, seed, sum_groups=GROUPS, steps=3)
    digest_of(tmp_path, "halves", together, seed, sum_groups=GROUPS, steps=2)
    with engine_for(gpt2(dropout=0.1), tmp_path, "other") as engine:
        engine.reopen(tmp_path / "halves")
        together(engine, tokens(COUNT, seed=2), causal)
        engine.step()
        assert engine.digest() == whole


def test_a_trainer_takes_groups(tmp_path, seed):
    pytest.importorskip("accelerate")
    from longshore.transformers import Trainer, TrainingArguments
    from test_trainer import Sentences, arguments

    digests = []
    for groups, layer_major in [(2, True), (2, False), (1, True)]:
        name = f"{groups}-{layer_major}"
        args = arguments(
            TrainingArguments, tmp_path, run=str(tmp_path / name), sum_groups=groups, layer_major=layer_major
        )
        args.gradient_accumulation_steps, args.max_steps = COUNT, 2
        torch.manual_seed(seed)
        trainer = Trainer(gpt2(dropout=0.1), args, train_dataset=Sentences(2 * COUNT * 2))
        trainer.train()
        digests.append(trainer.engine.digest())
        trainer.engine.close()
    assert digests[0] == digests[1] != digests[2]


def test_a_step_that_is_no_multiple_is_refused(tmp_path, seed):
    model, computed = gpt2(), []
    model.register_forward_pre_hook(lambda *_: computed.append(1))
    with engine_for(model, tmp_path, sum_groups=GROUPS) as engine:
        with pytest.raises(longshore.LongshoreError, match=r"train_batch: this step has 6 micro-batches, .*of 4"):
            engine.train_batch(tokens(6))
        assert not computed
        with pytest.raises(longshore.LongshoreError, match=r"backward: this step has 1 micro-batch, .*accumulate"):
            engine.backward(engine(**tokens(1)[0]).loss)
        with pytest.raises(longshore.LongshoreError, match=r"backward: this step has 1 micro-batch, .*accumulate"):
            engine(**tokens(1)[0]).loss.backward()
        engine.drop_gradients()
        engine.accumulate = COUNT
        for batch in tokens(GROUPS):
            engine.backward(engine(**batch).loss)
        for what in engine.grad_norm, engine.step:
            with pytest.raises(longshore.LongshoreError, match=r"the step: this step has 4 backward passes, .* for 8"):
                what()
        loop(engine, tokens(GROUPS), causal)
        assert engine.step().step == 1


def test_deepspeed_takes_groups(tmp_path, seed):
    import longshore.deepspeed as deepspeed

    batches, digests = tokens(COUNT), []
    for n in range(3):  # train_batch(), engine.backward(), loss.backward()
        config = {
            "train_batch_size": 2 * COUNT,
            "gradient_accumulation_steps": COUNT,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "longshore": {"run": str(tmp_path / f"run{n}"), "sum_groups": GROUPS},
        }
        torch.manual_seed(seed)
        engine = deepspeed.initialize(model=gpt2(), config=config)[0]
        for batch in batches if n else ():
            loss = engine(**batch).loss
            loss.backward() if n == 2 else engine.backward(loss)
            engine.step()
        if not n:
            engine.train_batch(iter(batches))
        assert engine.engine.step_number == 1
        digests.append(engine.engine.digest())
        engine.destroy()
    assert len({*digests}) == 1


@pytest.mark.parametrize("groups", [0, -1, 2.0, True, "4"])
def test_impossible_groups_are_refused(groups, tmp_path):
    with pytest.raises(ValueError, match="wrap: sum_groups must be a whole number"):
        engine_for(gpt2(), tmp_path, sum_groups=groups)
