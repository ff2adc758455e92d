"""Adapters of peft, and frozen weights, on a base that is streamed: one layer in memory at a time, and nothing moves
for what is frozen."""

import copy
import json
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import longshore
from models import gpt2, llama, tokens
from test_loop import engine_for
from test_program import PROGRAM, program

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("one_thread")


LINEAR = ["q_proj", "v_proj", "down_proj"]


def lora(**how):
    return peft.LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=LINEAR, **how)


def loaded_adapter(tmp_path):
    """One that was trained before, and is trained on."""
    before = peft.get_peft_model(llama(), lora(init_lora_weights=False))
    before.save_pretrained(tmp_path / "before")
    return peft.PeftModel.from_pretrained(llama(), tmp_path / "before", is_trainable=True)


KINDS = {
    "lora": lambda _: peft.get_peft_model(llama(), lora(lora_dropout=0.0, bias="all")),
    "dora": lambda _: peft.get_peft_model(llama(), lora(use_dora=True)),
    "modules": lambda _: peft.get_peft_model(llama(), lora(modules_to_save=["lm_head", "input_layernorm"])),
    "tokens": lambda _: peft.get_peft_model(llama(), lora(trainable_token_indices=[3, 7])),
    "loaded": loaded_adapter,
    "ia3": lambda _: peft.get_peft_model(
        llama(), peft.IA3Config(target_modules=LINEAR, feedforward_modules=["down_proj"], init_ia3_weights=False)
    ),
    "vera": lambda _: peft.get_peft_model(llama(), peft.VeraConfig(r=4, target_modules=["q_proj"], init_weights=False)),
    "mixed": lambda _: peft.get_peft_model(llama(), lora(layers_to_transform=[1])),
    "tied": lambda _: peft.get_peft_model(
        gpt2(), peft.LoraConfig(r=4, target_modules=["c_attn", "c_proj"], trainable_token_indices={"wte": [2]})
    ),
}


def same_loss(engine, plain, optimizer, batch, clip=1.0):
    loss = engine(**batch).loss
    engine.backward(loss)
    result = engine.step()
    expected = plain(**batch).loss
    expected.backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    assert abs(loss.item() - expected.item()) <= 2e-6 * expected.item()
    assert abs(result.grad_norm - norm.item()) <= 1e-4 * norm.item()


@pytest.mark.parametrize("kind", KINDS)
def test_losses_resume_and_saving(kind, tmp_path, seed, monkeypatch):
    model = KINDS[kind](tmp_path)
    plain = copy.deepcopy(model)
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    batches = tokens(4)
    engine = engine_for(model, tmp_path, lr=1e-2, slots=1, monkeypatch=monkeypatch)
    assert frozen and len(engine._core.streams.layers) == 3 and engine._core.streams.slots == 1
    for batch in batches[:3]:
        same_loss(engine, plain, optimizer, batch)
    digest = engine.digest()
    engine.close()
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.digest() == digest and type(engine.module) is type(plain)
        for batch in batches[3:]:
            same_loss(engine, plain, optimizer, batch)
        for (name, p), (other, q) in zip(engine.module.named_parameters(), plain.named_parameters()):
            assert name == other and p.requires_grad == q.requires_grad
            if name in frozen:
                assert torch.equal(p.detach() * 1, frozen[name]), name
        engine.module.save_pretrained(tmp_path / "out")
        engine.save_pretrained(tmp_path / "streamed")
        plain.save_pretrained(tmp_path / "plain")
        trained = dict(peft.get_peft_model_state_dict(engine.module))
    from safetensors.torch import load_file

    saved = [load_file(tmp_path / d / "adapter_model.safetensors") for d in ("out", "streamed", "plain")]
    assert saved[0].keys() == saved[1].keys() == saved[2].keys() and len(saved[0]) > 2
    assert (tmp_path / "streamed" / "adapter_config.json").exists() and not list((tmp_path / "streamed").glob("model*"))
    for name, value in saved[0].items():
        assert torch.equal(value, saved[1][name]) and torch.equal(value, trained[name] * 1), name
        torch.testing.assert_close(value, saved[2][name], rtol=1e-3, atol=2e-4)


def test_prompts_are_made_again(tmp_path, seed):
    """Of which nothing is in the base."""
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    with engine_for(peft.get_peft_model(llama(), config), tmp_path) as engine:
        values = {name: p.detach() * 1 for name, p in engine.module.named_parameters()}
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.module.active_adapter == "default" and len(values) > 1
        assert all(torch.equal(p.detach(), values[name]) for name, p in engine.module.named_parameters())


def grown(tmp_path, rows, tied):
    """A base with more tokens than its files have, whose rows follow from a seed."""
    torch.manual_seed(0)
    if not (tmp_path / "base").exists():
        before = llama()
        before.config.tie_word_embeddings = tied
        type(before)(before.config).save_pretrained(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model.resize_token_embeddings(104)
    with torch.no_grad():
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):
            table.weight[96:] = torch.randn(8, 48, generator=torch.Generator().manual_seed(rows))
    return model


def injected(model, config, name="default"):
    """By transformers, without a model of peft's around it."""
    try:
        model.add_adapter(config, name)
    except ValueError as said:
        pytest.skip(str(said))  # this transformers asks for a newer peft
    return model


ONTO = {
    "lora": lambda model: peft.get_peft_model(
        model, peft.LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False)
    ),
    "vera": lambda model: peft.get_peft_model(
        model, peft.VeraConfig(r=4, target_modules=["q_proj"], init_weights=False)
    ),
    "injected": lambda model: injected(
        model, peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False), "mine"
    ),
}


def loaded(kind, base, directory):
    if not kind.startswith("injected"):
        return peft.PeftModel.from_pretrained(base, directory)
    base.load_adapter(str(directory))
    return base


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ONTO)
def test_what_peft_saves_beside_what_is_trained(kind, tied, tmp_path, seed):
    """Of a vocabulary that was resized the whole table and head, projections that are buffers; also after resume()."""
    batch = {"input_ids": torch.arange(90, 104)[None], "labels": torch.arange(90, 104)[None]}
    engine = engine_for(ONTO[kind](grown(tmp_path, 1, tied)), tmp_path)
    engine.backward(engine(**tokens(1)[0]).loss)
    engine.step()
    with torch.no_grad():
        expected = engine(**batch).loss
    engine.save_pretrained(tmp_path / "engine")
    engine.module.save_pretrained(tmp_path / "model")
    engine.close()
    with longshore.resume(tmp_path / "run") as engine:
        engine.save_pretrained(tmp_path / "resumed")
    for door in ("engine", "model", "resumed"):
        with torch.no_grad():
            loss = loaded(kind, grown(tmp_path, 2, tied), tmp_path / door).eval()(**batch).loss
        assert abs(loss - expected) < 1e-5 * expected, door


@pytest.mark.parametrize("kind", ONTO)
def test_what_a_trainer_saves_of_adapters(kind, tmp_path, seed):
    """save_model(), and each checkpoint."""
    from longshore.transformers import Trainer, TrainingArguments

    batch = tokens(1)[0]
    args = TrainingArguments(
        str(tmp_path / "out"),
        run=str(tmp_path / "run"),
        memory="64MiB",
        max_steps=2,
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
    )
    rows = [{key: value[0] for key, value in batch.items()}] * 4
    trainer = Trainer(ONTO[kind](grown(tmp_path, 1, False)), args, train_dataset=rows)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    with torch.no_grad():
        expected = trainer.model.eval()(**batch).loss
        for directory in (tmp_path / "saved", tmp_path / "out" / "checkpoint-2"):
            loss = loaded(kind, grown(tmp_path, 2, False), directory).eval()(**batch).loss
            assert abs(loss - expected) < 1e-5 * expected
    trainer.engine.close()


def test_what_deepspeed_gives_of_adapters(tmp_path, seed):
    """transformers asks it for what is trained, and peft for what it saves."""
    import longshore.deepspeed as deepspeed

    batch, model = tokens(1)[0], ONTO["lora"](grown(tmp_path, 1, False))
    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "Adam"},
        "zero_optimization": {"stage": 3},
        "longshore": {"run": str(tmp_path / "run"), "memory": "64MiB"},
    }
    engine = deepspeed.initialize(model=model, config=config)[0]
    given = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True)
    model.save_pretrained(tmp_path / "saved", state_dict=given)
    with torch.no_grad():
        expected = engine.eval()(**batch).loss
        again = loaded("lora", grown(tmp_path, 2, False), tmp_path / "saved").eval()(**batch).loss
        assert abs(again - expected) < 1e-5 * expected
    assert not any("k_proj" in name for name in given)
    engine.destroy()


def test_several_adapters_without_a_model_of_pefts(tmp_path, seed):
    """The active one is in the directory, as transformers has it, and none is lost."""
    model = llama()
    for name in ("first", "second"):
        injected(model, lora(init_lora_weights=False), name)
    model.set_adapter("second")
    with engine_for(model, tmp_path) as engine:
        engine.save_pretrained(tmp_path / "out", dtype="bf16")
        with pytest.raises(ValueError, match="max_shard_size=1024: peft writes adapters as one file, of .*KiB"):
            engine.save_pretrained(tmp_path / "no", max_shard_size="1KiB")
        values = {name: p * 1 for name, p in engine.module.named_parameters() if "lora_" in name}
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.module.active_adapters() == ["second"]
        assert all(torch.equal(p * 1, values[name]) for name, p in engine.module.named_parameters() if "lora_" in name)
    other = llama()
    for name, directory in (("first", tmp_path / "out" / "first"), ("second", tmp_path / "out")):
        other.load_adapter(str(directory), name)
    for name, p in other.named_parameters():
        if "lora_" in name:
            assert torch.equal(p, values[name].bfloat16().float()), name


def test_what_is_trained_beside_adapters_is_named(tmp_path, seed):
    model = peft.get_peft_model(llama(), lora())
    model.base_model.model.model.norm.weight.requires_grad_(True)
    with (
        engine_for(model, tmp_path) as engine,
        pytest.warns(UserWarning, match="model.norm.weight: is trained, but belongs to no adapter.*modules_to_save"),
    ):
        engine.save_pretrained(tmp_path / "out")


def test_an_adapter_is_the_same_bits_whatever_is_kept(tmp_path, seed, monkeypatch):
    digests, fetched = [], []
    for n, slots in enumerate((1, 2, 3)):
        torch.manual_seed(seed)
        model = peft.get_peft_model(llama(), lora(lora_dropout=0.1))
        with engine_for(model, tmp_path, f"run{n}", slots=slots, monkeypatch=monkeypatch) as engine:
            engine.train()
            for batch in tokens(2):
                engine.train_batch([batch, batch])
            digests.append(engine.digest())
            fetched.append(engine.fetched_bytes)
    assert len(set(digests)) == 1 and fetched[2] < fetched[0]


def test_the_base_alone_within_a_loop(tmp_path, seed, monkeypatch):
    """As preference training has it: the reference is the model with its adapter off."""
    model = peft.get_peft_model(llama(), lora(init_lora_weights=False))
    plain = copy.deepcopy(model)
    with engine_for(model, tmp_path, slots=1, monkeypatch=monkeypatch) as engine:
        for batch in tokens(2):
            losses = []
            for m in (model, plain):
                with torch.no_grad(), m.disable_adapter():
                    reference = m(**batch).logits
                losses.append((m(**batch).logits - reference).square().mean())
            torch.testing.assert_close(losses[0], losses[1], rtol=2e-6, atol=0)
            engine.backward(losses[0])
            assert engine.step().grad_norm > 0
            plain.load_state_dict({k: v * 1 for k, v in model.state_dict().items()})


def test_what_would_write_into_the_base_is_refused(tmp_path, seed):
    model = peft.get_peft_model(llama(), lora(init_lora_weights=False))
    with engine_for(model, tmp_path) as engine:
        batch = tokens(1)[0]
        with torch.no_grad():
            before = engine(**batch).loss
        for merge in (model.merge_and_unload, model.merge_adapter, model.unload):
            with pytest.raises(longshore.LongshoreError, match="engine.save_pretrained"):
                merge()
        inner = model.base_model.model.model.layers[0].self_attn.q_proj
        with pytest.raises(longshore.AbsentParameterError, match="layers.0.self_attn.q_proj"), torch.no_grad():
            inner.merge()
        with torch.no_grad():
            assert torch.equal(engine(**batch).loss, before)
        inner.base_layer.weight.requires_grad_(True)
        with pytest.raises(longshore.LongshoreError, match="q_proj.base_layer.weight: is frozen"):
            engine(**batch)
        engine.backward(engine(**batch).loss)
        assert engine.step().step == 1


@pytest.mark.parametrize("trained", ["lm_head", "model.layers.2", "mlp"])
def test_frozen_layers_of_an_ordinary_model(trained, tmp_path, seed, monkeypatch):
    model = llama()
    for name, p in model.named_parameters():
        p.requires_grad_(trained in name)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    with engine_for(model, tmp_path, lr=1e-2, slots=1, gradient_bytes=0, monkeypatch=monkeypatch) as engine:
        for batch in tokens(3):
            same_loss(engine, plain, optimizer, batch)


def test_adapters_in_bf16_on_a_bf16_base(tmp_path, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(llama().to(torch.bfloat16), lora(), autocast_adapter_dtype=False)
        with engine_for(model, tmp_path) as engine:
            for batch in tokens(2):
                engine.backward(engine(**batch).loss)
                engine.step()
        with longshore.resume(tmp_path / "run") as engine:
            engine.backward(engine(**batch).loss)
            assert engine.step().step == 3


def test_what_is_frozen_takes_no_room(tmp_path, seed):
    """Two slots of moments, gradients put aside: only for what is trained, also after a snapshot and what is written by
    hand."""

    def taken():
        [volume] = (tmp_path / "run-drive").glob("longshore*.volume")
        assert volume.stat().st_size > whole
        return volume.stat().st_blocks * 512

    config = GPT2Config(vocab_size=96, n_embd=192, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0)
    model = peft.get_peft_model(GPT2LMHeadModel(config), peft.LoraConfig(r=4, target_modules=["c_attn"]))
    whole = 28 * sum(p.numel() for p in model.parameters())
    engine = engine_for(model, tmp_path)
    frozen = model.base_model.model.transformer.h[1].mlp.c_fc.weight
    before = frozen.detach().clone()
    for batch in tokens(2):
        engine.backward(engine(**batch).loss)
        engine.step()
    engine.settle()
    assert taken() < 0.4 * whole
    engine.snapshot("two")
    digest, room = engine.digest(), taken()
    engine.backward(engine(**batch).loss)
    engine.step()
    engine.reopen(tmp_path / "run", "two")
    assert longshore.verify(engine) == digest and taken() == room  # the same already, and not written again
    with longshore.resident(frozen, write=True):
        frozen.mul_(2)
    assert taken() < 0.5 * whole
    assert torch.equal(frozen * 1, before * 2) and longshore.verify(engine) != digest
    engine.reopen(tmp_path / "run", "two")
    assert torch.equal(frozen * 1, before) and longshore.verify(engine) == digest
    engine.close()
    assert taken() < 0.6 * whole
    if PROGRAM:
        volume = json.loads(program("inspect", tmp_path / "run", "--json"))["volumes"][0]
        assert volume["taken_bytes"] == taken() and volume["size_bytes"] > whole
        assert ", takes " in program("inspect", tmp_path / "run")
