"""memory_of="process": the process stays within memory=, and no bit changes."""

import json
import re

import pytest
import torch
from torch import nn

import longshore
from longshore.model import activations
from longshore.model.fates import Fate
from longshore.run.activation_plan import Activations, Chosen, Way
from models import Cnn, deepseek, gpt2, llama, tokens

MEMORY = "400MiB"


def wrapped(model, tmp_path, name="run", **how):
    how = {"memory": MEMORY, "memory_of": "process", "lr": 1e-3, "clip": 1.0, "fused_loss": None, **how}
    return longshore.wrap(model, run=tmp_path / name, activation_room="64MiB", **how)


@pytest.fixture
def all_get(monkeypatch):
    """All layers get one fate, through a small pool where that needs one."""

    def all_get(fate, moves_inputs=False):
        way = Way(fate, (256 << 10) * (moves_inputs or fate is Fate.MOVE))

        def chosen(self, made, planned):
            layers = [unit for unit in self.trace.units if unit.layer]
            of = {unit.name: fate if fate is Fate.KEEP else self.instead(unit, way) for unit in layers}
            return Chosen(of, way.pool_bytes, {})

        monkeypatch.setattr(Activations, "chosen", chosen)

    monkeypatch.setattr(activations, "LEAST_BYTES", 1024)
    return all_get


def language(engine, seed):
    return engine(**tokens(1, seed=seed)[0]).loss


def trained(engine, loss_of, steps=3):
    """The losses of steps of one pass, of two, and of three micro-batches together; and the digest."""
    losses = []
    for step in range(steps):
        for n in range(1 + step % 2):
            engine.backward(loss_of(engine, 10 * step + n), last=n == step % 2)
        losses.append(engine.step().loss)
    engine.backward_together([1, 2, 3], lambda n: loss_of(engine, n))
    return [*losses, engine.step().loss, engine.digest()]


def images(engine, seed):
    torch.manual_seed(seed)
    return engine(torch.randn(4, 1, 8, 8)).square().mean()


KINDS = {
    "gpt2 with dropout": (lambda: gpt2(0.1), language),
    "llama": (llama, language),
    "tied llama in bf16": (lambda: llama(tie_word_embeddings=True).bfloat16(), language),
    "mixture of experts": (deepseek, language),
    "statistics of norms": (Cnn, images),
}
WAYS = [(Fate.KEEP, False), (Fate.AGAIN, False), (Fate.AGAIN, True), (Fate.MOVE, True)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_becomes_of_activations_changes_no_bit(kind, tmp_path, all_get):
    make, loss_of = KINDS[kind]
    found = []
    for n, way in enumerate([None, *WAYS]):
        if way:
            all_get(*way)
        torch.manual_seed(0)
        how = {"memory_of": "process" if way else "engine", "memory": MEMORY if way else None, "fused_loss": False}
        with wrapped(make().train(), tmp_path, f"run{n}", **how) as engine:
            found.append(trained(engine, loss_of))
            streams = engine._core.streams
            if way and way[1]:
                assert streams.activations.counts.pool_most_bytes > 0 if kind != "statistics of norms" else True
    assert all(other == found[0] for other in found[1:]), found


def test_layers_are_computed_again(tmp_path, all_get):
    computed = []
    all_get(Fate.AGAIN)
    model = gpt2(0.1)
    for name, module in model.transformer.h.named_children():
        module.register_forward_pre_hook(lambda module, args, name=name: computed.append(name))
    with wrapped(model, tmp_path) as engine:
        engine.backward(language(engine, 0))
    assert computed == ["0", "1", "2", "2", "1", "0"]


def test_a_cache_of_keys_is_made_only_if_it_is_asked_for(tmp_path, all_get):
    all_get(Fate.AGAIN)
    with wrapped(llama().train(), tmp_path) as engine:
        batch = tokens(1)[0]
        assert engine(**batch).past_key_values is None
        output = engine(**batch, use_cache=True)
        assert output.past_key_values is not None
        engine.backward(output.loss)
        engine.step()


def test_a_scripts_own_checkpoints_stay_as_they_are(tmp_path, all_get):
    computed = []
    all_get(Fate.AGAIN)
    model = llama().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.model.layers[1].register_forward_pre_hook(lambda module, args: computed.append(1))
    with wrapped(model, tmp_path) as engine:
        engine.backward(language(engine, 0))
        engine.step()
    assert len(computed) == 2


def test_a_layer_that_changes_a_buffer_is_named(tmp_path, all_get):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return self.linear(x).relu()

    all_get(Fate.AGAIN)
    with wrapped(nn.Sequential(Counts(), Counts()), tmp_path) as engine:
        with pytest.raises(longshore.LongshoreError, match=r"0\.seen: is a buffer that forward changes"):
            engine(torch.randn(2, 8))


# ---- budgets


def minimum(failure):
    size, unit = re.search(r"minimum ([\d.]+) (MiB|GiB)", str(failure.value)).groups()
    return int(float(size) * (1 << (20 if unit == "MiB" else 30)))


def test_too_little_for_a_model_or_a_batch_ends_before_anything_is_done(tmp_path):
    with pytest.raises(longshore.BudgetError, match="is too little for this model, whatever its batches") as failure:
        wrapped(gpt2(), tmp_path, memory="8MiB")
    assert not (tmp_path / "run").exists()
    torch.manual_seed(0)
    with wrapped(gpt2(), tmp_path, memory=minimum(failure) + (48 << 20)) as engine:
        before, batch = engine.digest(), torch.zeros(4096, 32, dtype=torch.long)
        with pytest.raises(longshore.BudgetError, match="is too little for this batch: minimum"):
            engine(input_ids=batch, labels=batch)
        assert engine.step_number == 0 and engine.digest() == before
        engine.backward(language(engine, 0))
        first = engine.step()
        with pytest.raises(longshore.BudgetError, match="is too little for this batch: minimum"):
            engine.train_batch([{"input_ids": batch, "labels": batch}])
        assert engine.step_number == 1
    torch.manual_seed(0)
    with wrapped(gpt2(), tmp_path, "other") as engine:
        engine.backward(language(engine, 0))
        assert engine.step() == first


def test_a_script_that_holds_all_of_the_memory_is_told_the_minimum(tmp_path):
    with wrapped(gpt2(), tmp_path) as engine:
        held = torch.ones(500 << 18)  # 500 MiB
        with pytest.raises(longshore.BudgetError, match="is too little for this batch: minimum") as failure:
            language(engine, 0)
        assert minimum(failure) > held.nbytes
        del held
        engine.backward(language(engine, 0))
        assert engine.step().step == 1


def test_a_plan_says_the_least_for_the_process(tmp_path):
    batch = tokens(1, 64, 32)[0]
    found = longshore.plan(gpt2(), batch)
    least = found["process_minimum_bytes"]
    assert least > found["minimum_bytes"]
    with wrapped(gpt2(), tmp_path, memory=least) as engine:
        engine.backward(engine(**batch).loss)
        assert engine.step().step == 1
    assert "process_minimum_bytes" not in longshore.plan([gpt2(), gpt2()], [batch, batch], memory="1GiB")


def test_a_plan_knows_of_layers_that_cannot_be_computed_again(tmp_path):
    """Norms keep statistics, so their layers' activations leave, which takes more memory."""
    batch = torch.randn(16, 1, 96, 96)
    least = {n: longshore.plan(Cnn().train(n), batch)["process_minimum_bytes"] for n in (False, True)}
    assert least[True] > least[False] + (2 << 20)
    with wrapped(Cnn().train(), tmp_path, memory=least[True]) as engine:
        engine.backward(engine(batch).sum())
        assert engine.step().step == 1


@pytest.mark.parametrize("kept", ["auto", "memory"])
def test_a_plan_for_the_process_divides_memory_as_a_run_does(kept, tmp_path):
    batch = tokens(1, 64, 32)[0]
    found = longshore.plan(gpt2(), batch, memory_of="process", activations=kept)
    least = found["minimum_bytes"]
    assert least == found["process_minimum_bytes"] > found["engine_minimum_bytes"]
    assert found["engine_minimum_bytes"] == longshore.plan(gpt2(), batch)["minimum_bytes"]
    assert found["useful_bytes"] >= least and found["what_if"]
    with pytest.raises(longshore.BudgetError, match='"process" is too little for this batch: minimum'):
        longshore.plan(gpt2(), batch, memory_of="process", activations=kept, memory=least - (1 << 20))
    for n, memory in enumerate((least, 2 * least)):
        found = longshore.plan(gpt2(), batch, memory_of="process", activations=kept, memory=memory)
        sums = found["activations"]
        assert found["budget_bytes"] == memory >= found["peak_bytes"] == sum(found["memory"].values())
        assert (sums["recomputed"] > 0) == (memory == least) and sums["kept"] > 0 == sums["offloaded"]
        with wrapped(gpt2(), tmp_path, f"run{n}", memory=memory, activations=kept) as engine:
            engine.backward(engine(**batch).loss)
            assert engine.step().step == 1
            if memory > least:
                assert {*engine._core.streams.fates.of.values()} == {Fate.KEEP}
        of_run = json.loads((tmp_path / f"run{n}" / "plan.json").read_text())
        for key in "memory", "minimum_bytes", "peak_bytes", "activations", "tokens", "budget_bytes":
            assert of_run[key] == found[key], key
        assert {*of_run} == {*found} and of_run["what_if"]
    with pytest.raises(ValueError, match="plan each model alone"):
        longshore.plan([gpt2(), gpt2()], [batch, batch], memory_of="process")


def test_a_run_goes_on_with_its_promise(tmp_path):
    with wrapped(gpt2(), tmp_path) as engine:
        engine.backward(language(engine, 0))
        engine.step()
    with longshore.resume(tmp_path / "run") as engine:
        assert engine._core.plan.process.limit == 400 << 20
        engine.backward(language(engine, 1))
        assert engine.step().step == 2
    with longshore.resume(tmp_path / "run", memory_of="engine") as engine:
        assert engine._core.plan.process is None


def test_where_it_cannot_be_promised(tmp_path):
    refused = pytest.raises(ValueError, match='memory_of="process" is for one engine on a CPU, and')
    with pytest.raises(ValueError, match='memory_of must be "engine" or "process", and is \'all\''):
        wrapped(gpt2(), tmp_path, memory_of="all")
    with refused:
        wrapped(gpt2(), tmp_path, compress=0.01)
    with refused, longshore.budget("1GiB"):
        wrapped(gpt2(), tmp_path)
    with wrapped(gpt2(), tmp_path):
        with pytest.raises(longshore.LongshoreError, match="takes all of memory= for itself"):
            longshore.wrap(gpt2(), run=tmp_path / "second")
        assert longshore.plan(gpt2(), tokens(1)[0], memory_of="process")["peak_bytes"] > 0  # of a run to come


def test_the_trainer_keeps_the_promise(tmp_path):
    from longshore.transformers import Trainer, TrainingArguments

    how = {"memory": MEMORY, "memory_of": "process", "report_to": [], "use_cpu": True}
    args = TrainingArguments(str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=2, **how)
    data = [{name: value[0] for name, value in batch.items()} for batch in tokens(8, 1)]
    trainer = Trainer(model=llama(), args=args, train_dataset=data)
    trainer.train()
    assert trainer.engine._core.plan.process.limit == 400 << 20 and trainer.engine.step_number == 2
    trainer.engine.close()


def test_deepspeeds_engine_keeps_the_promise(tmp_path):
    """With all micro-batches of a step one after the other, and together; the losses are those without it."""
    import longshore.deepspeed as deepspeed

    found = []
    for name, process in (("plain", {}), ("process", {"memory": MEMORY, "memory_of": "process", "fused_loss": False})):
        torch.manual_seed(0)
        config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
        config["longshore"] = {"run": str(tmp_path / name), **process}
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3}}
        engine = deepspeed.initialize(model=gpt2(0.1).train(), config=config)[0]
        losses = []
        for batch in tokens(4, seed=1):
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        losses.append(engine.train_batch(iter(tokens(2, seed=2))).item())
        limit = getattr(engine.engine._core.plan.process, "limit", None)
        found.append([*losses, engine.engine.digest()])
        if process:
            assert limit == 400 << 20
            ids = torch.zeros(4096, 32, dtype=torch.long)
            with pytest.raises(longshore.BudgetError, match="too little for this batch: minimum"):
                engine(input_ids=ids, labels=ids)
        engine.destroy()
    assert found[0] == found[1]
