"""What is loaded in longshore.init() and what is written by save_pretrained(): whole or not at all."""

import importlib
import json
import os
import shutil
import signal
import subprocess

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import longshore
from longshore.run import export
from models import Cnn, bert, gpt2, tokens
from test_loop import engine_for
from test_program import PROGRAM, needs_program

transformers = pytest.importorskip("transformers")
huggingface_hub = pytest.importorskip("huggingface_hub")


def wrapped(directory, tmp_path, name):
    (tmp_path / f"{name}-drive").mkdir()
    with longshore.init(tmp_path / name, drives=tmp_path / f"{name}-drive"):
        model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    return longshore.wrap(model, lr=1e-3)


def test_sharded_and_old_forms_are_loaded(tmp_path, seed):
    model = gpt2()
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    shutil.copytree(tmp_path / "whole", tmp_path / "bin")
    os.remove(tmp_path / "bin" / "model.safetensors")
    torch.save(model.state_dict(), tmp_path / "bin" / "pytorch_model.bin")  # mapped, as safetensors are
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    digests = set()
    for form in ("whole", "sharded", "bin"):
        with wrapped(tmp_path / form, tmp_path, f"run-{form}") as engine:
            digests.add(engine.digest())
    assert len(digests) == 1
    torch.save(model.state_dict(), tmp_path / "bin" / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(longshore.LongshoreError, match=r"pytorch_model.bin: .*convert it once.*save_pretrained\(NEW\)"):
        wrapped(tmp_path / "bin", tmp_path, "run-old")
    assert torch.load(tmp_path / "bin" / "pytorch_model.bin", weights_only=True).keys() == model.state_dict().keys()


def test_what_is_saved_is_what_transformers_saves(tmp_path, seed):
    model = gpt2()
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path / "plain", max_shard_size="100KB")
    with engine_for(model, tmp_path) as engine:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "tokenizer.json").write_text("{}")
        engine.save_pretrained(tmp_path / "out", max_shard_size="100KB")
        engine.save_pretrained(tmp_path / "half", dtype="bf16")
        with pytest.raises(longshore.ExistsError, match="holds .*safetensors.* already"):
            engine.save_pretrained(tmp_path / "out")
        with pytest.raises(ValueError, match="dtype='int8'"):
            engine.save_pretrained(tmp_path / "no", dtype="int8")
    assert sorted(p.name for p in tmp_path.iterdir() if "saving" in p.name) == []
    plain, ours = ({p.name for p in (tmp_path / d).iterdir()} for d in ("plain", "out"))
    assert {n for n in ours if "safetensors" not in n} == {n for n in plain if "safetensors" not in n} | {
        "tokenizer.json"
    }
    index = [
        json.loads((tmp_path / d / "model.safetensors.index.json").read_text())["weight_map"].keys()
        for d in ("plain", "out")
    ]
    assert index[0] == index[1]  # the tied head is there once
    configs = [json.loads((tmp_path / d / "config.json").read_text()) for d in ("plain", "out", "half")]
    assert configs[0] == configs[1] and configs[2] == {**configs[0], "dtype": "bfloat16"}
    expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    for directory, dtype in (("out", torch.float32), ("half", torch.bfloat16)):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / directory, dtype="auto")
        assert loaded.generation_config.max_new_tokens == 7 and loaded.lm_head.weight is loaded.transformer.wte.weight
        for (name, p), q in zip(loaded.named_parameters(), expected.parameters()):
            assert p.dtype == dtype and torch.equal(p, q.to(dtype)), name


def stepped(engine, loss_of):
    """An engine that has made a step, and its parameters and buffers."""
    engine.backward(loss_of(engine))
    engine.step()
    return {name: value.detach().clone() for name, value in engine.module.state_dict().items()}


def same(model, expected):
    found = model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_are_in_the_file_of_the_parameters(dtype, tmp_path, seed):
    """Of whatever type, as whoever loads model.safetensors expects them."""
    model = Cnn().to(dtype)
    model.register_buffer("odd", torch.tensor([True, False, True]))
    model.register_buffer("wide", torch.tensor(1 / 3, dtype=torch.float64))
    with engine_for(model, tmp_path) as engine:
        expected = stepped(engine, lambda m: m(torch.randn(2, 1, 6, 6, dtype=dtype)).square().mean())
        engine.save_pretrained(tmp_path / "out")
        engine.save_pretrained(tmp_path / "sharded", max_shard_size="2KiB")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["model.safetensors"] and len(
        list((tmp_path / "sharded").iterdir())
    ) > 2
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert all(loaded[name].dtype == value.dtype for name, value in expected.items())
    same(load_model(Cnn(), loaded, dtype), expected)
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == expected.keys()
    assert all(
        torch.equal(load_file(tmp_path / "sharded" / file)[name], expected[name]) for name, file in index.items()
    )


def load_model(model, values, dtype):
    model = model.to(dtype)
    model.register_buffer("odd", torch.zeros(3, dtype=torch.bool))
    model.register_buffer("wide", torch.zeros((), dtype=torch.float64))
    model.load_state_dict(values)
    return model


class Hub(nn.Module, huggingface_hub.PyTorchModelHubMixin):
    """Its own save_pretrained(), and a configuration in its own form."""

    def __init__(self, width=6):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.layers[2].weight = self.layers[0].weight

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def test_models_that_save_themselves(tmp_path, seed):
    """As they do it, with parameters that are not in memory as a whole."""
    with engine_for(Hub(5), tmp_path) as engine:
        expected = stepped(engine, lambda m: m(torch.randn(2, 5)).square().mean())
        engine.save_pretrained(tmp_path / "out")
        for what in ({"dtype": "bf16"}, {"max_shard_size": "1KiB"}, {"moments": True}):
            with pytest.raises(ValueError, match=f"{next(iter(what))}=.*: a Hub writes its files itself"):
                engine.save_pretrained(tmp_path / "no", **what)
        engine.backward(engine(torch.randn(2, 5)).square().mean())
        engine.step()
        assert not torch.equal(engine.module.layers[1].weight * 1, expected["layers.1.weight"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["width"] == 5
    same(Hub.from_pretrained(tmp_path / "out"), expected)
    assert not (tmp_path / "no").exists() and not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("shard", [None, "10KB"])
def test_models_of_diffusers(shard, tmp_path, seed):
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=4,
    )
    model.save_pretrained(tmp_path / "plain", max_shard_size=shard or "10GB")
    with engine_for(model, tmp_path) as engine:
        expected = stepped(engine, lambda m: m(torch.randn(2, 3, 8, 8), 1).sample.square().mean())
        engine.save_pretrained(tmp_path / "out", max_shard_size=shard)
        engine.save_pretrained(tmp_path / "half", dtype="bf16")
    names = [{p.name.split("-0")[0] for p in (tmp_path / d).iterdir()} for d in ("plain", "out")]
    assert names[0] == names[1]
    same(diffusers.UNet2DModel.from_pretrained(tmp_path / "out"), expected)
    assert diffusers.UNet2DModel.from_pretrained(tmp_path / "half", torch_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_adapters_on_models_of_diffusers(tmp_path, seed):
    """What its load_lora_adapter() takes: from_pretrained() of a model with adapters gives another one."""
    diffusers, peft = pytest.importorskip("diffusers"), pytest.importorskip("peft")

    def unet():
        torch.manual_seed(seed)
        return diffusers.UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(8, 16),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            cross_attention_dim=8,
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=4,
            attention_head_dim=4,
        )

    model, inputs = unet(), (torch.randn(1, 4, 8, 8), 1, torch.randn(1, 3, 8))
    model.requires_grad_(False)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    with engine_for(model, tmp_path) as engine:
        stepped(engine, lambda m: m(*inputs).sample.square().mean())
        engine.save_pretrained(tmp_path / "out")
        with pytest.raises(ValueError, match="dtype='bf16': a UNet2DConditionModel writes its files itself"):
            engine.save_pretrained(tmp_path / "half", dtype="bf16")
        with torch.no_grad():
            expected = engine(*inputs).sample
    other = unet()
    other.load_lora_adapter(str(tmp_path / "out"), prefix=None, weight_name="pytorch_lora_weights.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(other(*inputs).sample, expected, rtol=1e-5, atol=1e-6)


def test_models_of_sentence_transformers(tmp_path, seed):
    st = pytest.importorskip("sentence_transformers")
    bert().bert.save_pretrained(tmp_path / "bert")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    parts = importlib.import_module("sentence_transformers.models")
    model = st.SentenceTransformer(
        modules=[parts.Transformer(str(tmp_path / "bert")), parts.Pooling(48), parts.Dense(48, 8)], device="cpu"
    )
    with engine_for(model, tmp_path) as engine:
        batch = model.tokenize(["a b", "b a"])
        expected = stepped(engine, lambda m: m(dict(batch))["sentence_embedding"].square().mean())
        engine.save_pretrained(tmp_path / "out")
    same(st.SentenceTransformer(str(tmp_path / "out"), device="cpu"), expected)


@pytest.mark.parametrize("at", ["copy.deepcopy", "os.rename"])
def test_kills_while_saving(tmp_path, seed, at):
    """Once the weights are written, once all of it is: the run is what it was, and the directory is not there until it
    is whole."""
    with engine_for(gpt2(), tmp_path) as engine:
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        engine.save_pretrained(tmp_path / "last")
        digest = engine.digest()
    child = os.fork()
    if child == 0:
        try:
            engine = longshore.resume(tmp_path / "run")
            module, name = at.split(".")
            setattr(getattr(export, module), name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            engine.save_pretrained(tmp_path / "out")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.digest() == digest
        engine.save_pretrained(tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {p.name for p in (tmp_path / "last").iterdir()}
    assert not [p for p in tmp_path.iterdir() if "saving" in p.name]


@needs_program
def test_the_program_exports_what_transformers_loads(tmp_path, seed):
    def exported(name, *more):
        done = subprocess.run(
            [PROGRAM, "export", tmp_path / name, "--out", tmp_path / f"{name}-out", *more],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stderr

    model = gpt2()
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path / "plain")
    transformers.logging.set_verbosity_error()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    with engine_for(loaded, tmp_path, name="gpt2") as engine:
        engine.save_pretrained(tmp_path / "saved")
        engine.save_pretrained(tmp_path / "half", dtype="bf16")
    said = exported("gpt2")
    assert "no tokenizer is written" in said and f'AutoTokenizer.from_pretrained("{tmp_path}' in said
    exported_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2-out")
    assert type(exported_model) is type(loaded) and exported_model.generation_config.max_new_tokens == 7
    for name, value in transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").state_dict().items():
        assert torch.equal(exported_model.state_dict()[name], value), name
    shutil.rmtree(tmp_path / "gpt2-out")
    exported("gpt2", "--dtype", "bf16")
    assert json.loads((tmp_path / "gpt2-out" / "config.json").read_text())["dtype"] == "bfloat16"
    with engine_for(nn.Linear(4, 4), tmp_path, name="linear"):
        pass
    assert "no config.json is written, because the run has recorded none for its Linear" in exported("linear")
    assert [p.name for p in (tmp_path / "linear-out").iterdir()] == ["model.safetensors"]
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(
        gpt2(), peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
    )
    with engine_for(adapted, tmp_path, name="lora"):
        pass
    assert "because the run has adapters" in exported("lora")
    assert not (tmp_path / "lora-out" / "config.json").exists()
