"""Files that a model or moments are loaded from, cut off, overwritten or mixed up: each is named."""

import json
import os
import zipfile

import pytest
import torch

import longshore
from models import gpt2, llama
from test_loop import engine_for
from test_moments import steps

WEIGHTS, INDEX, BIN = "model-00002-of-00006.safetensors", "model.safetensors.index.json", "pytorch_model.bin"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Directories of the same weights, as one file, in shards, and as torch.save() has them."""
    place, model = tmp_path_factory.mktemp("whole"), llama()
    model.save_pretrained(place / "one")
    model.save_pretrained(place / "shards", max_shard_size="50KB")
    model.config.save_pretrained(place / "torch")
    torch.save(model.state_dict(), place / "torch" / BIN)
    return place


def cut(path):
    os.truncate(path, os.path.getsize(path) * 9 // 10)


def written(data):
    return lambda path: path.write_bytes(data)


def reshaped(path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    save_file(
        {name: torch.zeros(3, 5) if n == 0 else t for n, (name, t) in enumerate(sorted(tensors.items()))},
        path,
        {"format": "pt"},
    )


def flipped(path):
    """A byte of the pickle within."""
    with zipfile.ZipFile(path) as z:
        at = next(i.header_offset for i in z.infolist() if i.filename.endswith("data.pkl")) + 120
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def elsewhere(path):
    path.unlink()
    path.mkdir()


def loaded(directory, run):
    from transformers import AutoModelForCausalLM

    with longshore.init(run, memory="64MiB"):
        return AutoModelForCausalLM.from_pretrained(directory)


@pytest.mark.parametrize(
    "kind, file, damage, said",
    [
        ("one", "model.safetensors", cut, "is damaged.*incomplete|is damaged.*not fully covered"),
        ("one", "model.safetensors", written(b""), "is damaged.*header"),
        ("one", "model.safetensors", written(b"\xff" * 5000), "is damaged.*header"),
        ("shards", WEIGHTS, cut, "is damaged"),
        ("shards", WEIGHTS, elsewhere, "is damaged"),
        ("shards", WEIGHTS, os.unlink, ""),
        ("shards", WEIGHTS, reshaped, r"is of shape \[3, 5\] there, and \[48\] in the model"),
        ("shards", INDEX, written(b"{ no"), "is damaged"),
        ("shards", INDEX, written(b""), "is damaged"),
        ("shards", INDEX, written(b"{}"), "weight_map"),
        ("torch", BIN, cut, "is damaged.*not what torch.save"),
        ("torch", BIN, written(b"\x12" * 5000), "is damaged"),
        ("torch", BIN, flipped, "is damaged"),
    ],
)
def test_weights(kind, file, damage, said, whole, tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    for path in (whole / kind).iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    damage(directory / file)
    with pytest.raises((longshore.LongshoreError, FileNotFoundError), match=f"{file}.*({said})"):
        loaded(directory, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    loaded(whole / kind, tmp_path / "run")


def test_what_else_fails_is_left_as_it_is(whole, tmp_path):
    class Mine(Exception):
        pass

    with pytest.raises(Mine, match="mismatch"), longshore.init(tmp_path / "run"):
        path = str(whole / "one" / "model.safetensors")
        raise Mine(f"a mismatch that is not of {path}")


def test_moments(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        steps(engine, 1)
        engine.save_pretrained(tmp_path / "out", moments=True)
    directory = tmp_path / "out" / "optimizer" / "exp_avg_sq"
    (directory / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))

    def refused(match, name):
        with pytest.raises(longshore.LongshoreError, match=match):
            engine_for(gpt2(), tmp_path, name, moments_from=tmp_path / "out")

    refused("exp_avg_sq/model-2.safetensors: the moments cannot be read", "a")
    (directory / INDEX).write_text("{")
    refused(f"exp_avg_sq/{INDEX}: the moments cannot be read", "b")
    (directory / INDEX).unlink()
    cut(directory / "model.safetensors")
    refused("exp_avg_sq/model.safetensors: the moments cannot be read", "c")
