"""bf16=True of the Trainer, and bf16.enabled of a DeepSpeed configuration: what transformers keeps in fp32 stays so,
and nothing else is rounded in silence."""

import copy
import logging

import peft
import pytest
import torch
import transformers
from torch import nn

import longshore
import longshore.deepspeed as deepspeed
from longshore.model import precision
from longshore.transformers import Trainer, TrainingArguments
from models import deepseek, llama, tokens
from test_dtypes import BF16, FP32, dtypes


def qwen2():
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=96,
            hidden_size=64,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=8192,
            rope_theta=1e6,
        )
    )


def resnet():
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            num_channels=3, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=96
        )
    )


def ernie():
    return transformers.Ernie4_5_MoeForCausalLM(
        transformers.Ernie4_5_MoeConfig(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            moe_intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            moe_num_experts=4,
            moe_k=2,
            moe_layer_start_index=0,
            moe_num_shared_experts=1,
            head_dim=8,
        )
    )


def engine_of(surface, model, tmp_path, batch):
    """What one step of the Trainer, or of a script for DeepSpeed, leaves."""
    if surface == "trainer":
        args = TrainingArguments(
            tmp_path / "out",
            run=tmp_path / "run",
            bf16=True,
            max_steps=1,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            learning_rate=0.0,
            weight_decay=0.0,
        )
        trainer = Trainer(model, args, train_dataset=[{name: value[0] for name, value in batch.items()}] * 8)
        trainer.train()
        return trainer.engine
    config = {
        "train_batch_size": 2,
        "bf16": {"enabled": True},
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.0}},
        "zero_optimization": {"stage": 3},
        "longshore": {"run": str(tmp_path / "run")},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(**batch).loss)
    engine.step()
    return engine.engine


@pytest.mark.parametrize("surface", ["trainer", "deepspeed"])
@pytest.mark.parametrize("make", [qwen2, deepseek, ernie, resnet])
def test_a_model_is_as_transformers_loads_it(make, surface, tmp_path, seed):
    model = make()
    model.save_pretrained(tmp_path / "model")
    loaded = type(model).from_pretrained(tmp_path / "model", dtype=BF16).eval()
    batch = (
        {"pixel_values": torch.randn(2, 3, 16, 16).bfloat16(), "labels": torch.tensor([1, 2])}
        if make is resnet
        else tokens(1)[0]
    )
    engine = engine_of(surface, model, tmp_path, batch)
    model.eval()
    assert dtypes(model) == dtypes(loaded)
    for (name, b), c in zip(model.named_buffers(), loaded.buffers()):
        assert make is resnet or torch.equal(b, c), name  # its statistics have seen a batch
    if make is qwen2:
        positions, x = torch.tensor([[100, 1000, 4000, 8000]]), torch.zeros(1, 4, 64, dtype=BF16)
        assert torch.equal(model.model.rotary_emb(x, positions)[0], loaded.model.rotary_emb(x, positions)[0])
    if make is not resnet:
        assert torch.equal(model(batch["input_ids"]).logits, loaded(batch["input_ids"]).logits)
    engine.close()


def test_a_trainer_goes_on_with_two_dtypes(tmp_path, seed):
    def trainer(name):
        torch.manual_seed(seed)
        args = TrainingArguments(
            tmp_path / name / "out",
            run=tmp_path / name / "run",
            bf16=True,
            max_steps=3,
            save_steps=2,
            report_to=[],
            disable_tqdm=True,
            learning_rate=1e-2,
        )
        return Trainer(
            deepseek(), args, train_dataset=[{name: value[0] for name, value in batch.items()} for batch in tokens(8)]
        )

    whole = trainer("whole")
    whole.train()
    digest = whole.engine.digest()
    whole.engine.close()
    again = trainer("whole")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "out" / "checkpoint-2"))
    assert again.engine.digest() == digest
    keeps = bool(getattr(again.model, "_keep_in_fp32_modules_strict", None))  # transformers 4 does not
    assert (FP32 in {p.dtype for p in again.model.parameters()}) == keeps
    again.save_model(tmp_path / "saved")
    again.engine.close()
    loaded = type(again.model).from_pretrained(tmp_path / "saved", dtype=BF16)
    assert dtypes(loaded) == dtypes(again.model)


class Counting(nn.Module):
    """Of nobody's library: statistics, a codebook, and frequencies that are not saved."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.register_buffer("codebook", torch.rand(4, 4))
        self.register_buffer("frequencies", torch.rand(4), persistent=False)

    def forward(self, x, labels=None):
        y = self.last(self.norm(self.first(x.to(self.first.weight.dtype))))
        return {"loss": nn.functional.mse_loss(y.float() * self.frequencies.float(), self.codebook[labels].float())}


@pytest.mark.parametrize("surface", ["trainer", "deepspeed"])
def test_buffers_of_other_models(surface, tmp_path, seed, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("longshore"), "propagate", True)
    caplog.set_level("INFO", "longshore")
    model, batch = Counting(), {"x": torch.rand(2, 8), "labels": torch.tensor([1, 2])}
    if surface == "deepspeed":
        model.forward = lambda forward=model.forward, **batch: type("Output", (), forward(**batch))
    before = {name: b.clone() for name, b in model.named_buffers()}
    engine_of(surface, model, tmp_path, batch).close()
    after = dict(model.named_buffers())
    assert model.first.weight.dtype == BF16 and torch.equal(after["frequencies"], before["frequencies"])
    said = [record.getMessage() for record in caplog.records]
    if surface == "trainer":
        assert torch.equal(after["codebook"], before["codebook"])
        assert {t.dtype for t in model.norm.state_dict(keep_vars=True).values() if t.is_floating_point()} == {FP32}
        assert not any("rounded" in text for text in said)
    else:
        assert after["codebook"].dtype == BF16
        assert "these buffers are rounded to bfloat16: codebook, norm.running_mean, norm.running_var" in said
    assert any("frequencies" in text and "keep their dtype" in text for text in said)


def test_adapters_stay_as_peft_makes_them(tmp_path, seed, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("longshore"), "propagate", True)

    def adapted(base):
        return peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]))

    model = adapted(llama().bfloat16())
    before = dtypes(model)
    precision.cast(model, BF16)
    assert dtypes(model) == before and FP32 in before.values() and not caplog.records
    whole = adapted(llama())
    precision.cast(whole, BF16)
    assert {p.dtype for p in whole.parameters()} == {
        BF16
    } and whole.base_model.model.model.rotary_emb.inv_freq.dtype == FP32


def test_a_model_in_a_file_stays_there(tmp_path, seed):
    with longshore.init(tmp_path / "run") as making:
        model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    precision.cast(model, BF16, spool=making.spool)
    assert all(making.spool.has(m.weight) and m.weight.dtype == BF16 for m in model)
    plain = copy.deepcopy(model)
    with longshore.wrap(model) as engine:
        x = torch.rand(2, 256).bfloat16()
        assert torch.equal(engine(x), plain(x))
