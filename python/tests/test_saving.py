"""What is loaded in longshore.init() and what is written by save_pretrained(): whole or not at all."""

import json
import os
import shutil
import signal

import pytest
import torch

import longshore
from longshore import saving
from models import gpt2, tokens
from test_loop import engine_for

transformers = pytest.importorskip("transformers")


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
    assert {n for n in ours if "safetensors" not in n} == {n for n in plain if "safetensors" not in n} | {"tokenizer.json"}
    index = [json.loads((tmp_path / d / "model.safetensors.index.json").read_text())["weight_map"].keys() for d in ("plain", "out")]
    assert index[0] == index[1]  # the tied head is there once
    configs = [json.loads((tmp_path / d / "config.json").read_text()) for d in ("plain", "out", "half")]
    assert configs[0] == configs[1] and configs[2] == {**configs[0], "dtype": "bfloat16"}
    expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    for directory, dtype in (("out", torch.float32), ("half", torch.bfloat16)):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / directory, dtype="auto")
        assert loaded.generation_config.max_new_tokens == 7 and loaded.lm_head.weight is loaded.transformer.wte.weight
        for (name, p), q in zip(loaded.named_parameters(), expected.parameters()):
            assert p.dtype == dtype and torch.equal(p, q.to(dtype)), name


@pytest.mark.parametrize("at", ["copy.deepcopy", "os.rename"])
def test_kills_while_saving(tmp_path, seed, at):
    """Once the weights are written, once all of it is: the run is what it was, and the directory is not there until it is whole."""
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
            setattr(getattr(saving, module), name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
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
