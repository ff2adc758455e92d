"""Moments that are saved beside weights, and what begins with them: here, and in the program."""

import copy
import json

import pytest
import torch
from torch import nn

import longshore
from models import LANGUAGE, Cnn, gpt2
from test_loop import engine_for
from test_program import needs_program, program, steps


class Branches(nn.Module):
    """Layers that span several segments, of which one is not used in every step."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(300, 300) for _ in range(3))
        self.head = nn.Linear(300, 4)

    def forward(self, x, rare):
        for i, layer in enumerate(self.layers):
            if i != 1 or rare:
                x = x + torch.tanh(layer(x))
        return self.head(x)


def values(engine):
    return {name: p.detach().clone() for name, p in engine.module.named_parameters()}


def same(engine, expected):
    for name, p in engine.module.named_parameters():
        assert torch.equal(p.detach() * 1, expected[name]), name


def copy_of(model, directory):
    from safetensors.torch import load_file

    for file in directory.glob("*.safetensors"):
        missing, unexpected = model.load_state_dict(load_file(file), strict=False)
        assert not unexpected
    return model


@pytest.mark.parametrize("kind", LANGUAGE)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"optimizer": "adam", "betas": (0.8, 0.9)},
        {"optimizer": "sgd", "momentum": 0.9},
        {"optimizer": "sgd"},
        {"optimizer": "adagrad"},
    ],
    ids=str,
)
def test_the_next_step_is_the_same(kind, how, tmp_path, seed):
    with engine_for(LANGUAGE[kind](), tmp_path, **how) as engine:
        steps(engine, 2)
        engine.save_pretrained(tmp_path / "out", moments=True)
        steps(engine, 2, 2)
        expected, norm = values(engine), engine.step_number
    model = type(engine.module).from_pretrained(tmp_path / "out")
    with engine_for(model, tmp_path, "next", moments_from=tmp_path / "out", **how) as engine:
        assert engine.step_number == 0
    with longshore.resume(tmp_path / "next") as engine:  # as after a kill before the first step
        steps(engine, 1, 2)
    with longshore.resume(tmp_path / "next") as engine:
        steps(engine, 1, 3)
        same(engine, expected)
        engine.save_pretrained(tmp_path / "again", moments=True)
    said = json.loads((tmp_path / "again" / "optimizer" / "optimizer.json").read_text())
    assert said == {"optimizer": how.get("optimizer", "adamw"), "updates": norm, "fewer": {}}


@pytest.mark.parametrize(
    "was, now, sentence",
    [(0.9, 0.0, "momentum_buffer: exists, .* momentum="), (0.0, 0.9, "momentum_buffer: is missing, .* momentum=0")],
)
def test_a_momentum_is_neither_dropped_nor_made_up(was, now, sentence, tmp_path, seed):
    with engine_for(Branches(), tmp_path, optimizer="sgd", momentum=was) as engine:
        engine.backward(engine(torch.randn(2, 300), True).square().mean())
        engine.step()
        engine.save_pretrained(tmp_path / "out", moments=True)
    with pytest.raises(longshore.LongshoreError, match=sentence):
        engine_for(Branches(), tmp_path, "next", optimizer="sgd", momentum=now, moments_from=tmp_path / "out")
    assert not (tmp_path / "next" / "run.json").exists()


def test_each_tensor_keeps_its_count(tmp_path, seed):
    def go(engine, first, last):
        for i in range(first, last):
            engine.backward(engine(torch.full((2, 300), 0.1 * (i + 1)), i % 2 == 0).square().mean())
            engine.step()

    with engine_for(Branches(), tmp_path) as engine:
        go(engine, 0, 3)
        engine.save_pretrained(tmp_path / "out", moments=True, max_shard_size="400KiB")
        go(engine, 3, 6)
        expected = values(engine)
    said = json.loads((tmp_path / "out" / "optimizer" / "optimizer.json").read_text())
    assert said["updates"] == 3 and said["fewer"] == {"layers.1.weight": 2, "layers.1.bias": 2}
    assert len(list((tmp_path / "out" / "optimizer" / "exp_avg").glob("*.safetensors"))) > 1
    engine = engine_for(copy_of(Branches(), tmp_path / "out"), tmp_path, "next", moments_from=tmp_path / "out")
    with engine:
        go(engine, 3, 5)
    with longshore.resume(tmp_path / "next", Branches) as engine:
        go(engine, 5, 6)
        same(engine, expected)


def test_what_is_new_begins_anew(tmp_path, seed):
    """A frozen layer has none; a head of another model takes its first step as if it were alone."""
    model = Branches()
    model.layers[0].requires_grad_(False)
    x = torch.randn(2, 300)
    with engine_for(model, tmp_path, clip=0.0) as engine:
        for _ in range(3):
            engine.backward(engine(x, True).square().mean())
            engine.step()
        engine.save_pretrained(tmp_path / "out", moments=True)
    other = copy_of(Branches(), tmp_path / "out")
    other.new = nn.Parameter(torch.ones(300))
    was = other.new.detach().clone()
    twin = copy_of(Branches(), tmp_path / "out")
    twin.new = nn.Parameter(torch.ones(300))
    with engine_for(other, tmp_path, "next", clip=0.0, weight_decay=0.0, moments_from=tmp_path / "out") as engine:

        def counts(engine):
            return {
                t.name: n
                for b, ns in zip(engine._core.layout.blocks, engine._core.cycle.counts)
                for t, n in zip(b.tensors, ns)
            }

        assert (
            counts(engine)["layers.0.weight"] == 0
            and counts(engine)["layers.1.weight"] == 3
            and counts(engine)["new"] == 0
        )
        engine.backward(engine(x, True).mean() + (engine.module.new * x).sum())
        engine.step()
        step = was - engine.module.new.detach()
        assert torch.allclose(step.abs(), torch.full_like(step, 1e-3), rtol=1e-3)  # Adam's first: the rate
        assert counts(engine)["layers.1.weight"] == 4 and counts(engine)["new"] == 1


def test_of_8_bits(tmp_path, seed):
    """They are rounded once more, and no more than that."""
    with engine_for(Branches(), tmp_path, moments="8bit") as engine:
        for _ in range(3):
            engine.backward(engine(torch.ones(2, 300), True).square().mean())
            engine.step()
        engine.save_pretrained(tmp_path / "out", moments=True)
        expected = longshore.step.parameter_state.read(engine.module.layers[0].weight, "m")
    with engine_for(
        copy_of(Branches(), tmp_path / "out"), tmp_path, "next", moments="8bit", moments_from=tmp_path / "out"
    ) as engine:
        now = longshore.step.parameter_state.read(engine.module.layers[0].weight, "m")
        assert (now - expected).abs().max() <= expected.abs().max() / 50


@needs_program
def test_from_the_program_and_back(tmp_path, seed):
    text, places = tmp_path / "text", ("a", "b", "c", "d")
    text.write_text("every ship waits and meets a pil" * 100)
    for name in places:
        (tmp_path / name).mkdir()
    gpt2().save_pretrained(tmp_path / "hf")
    how = [
        "--data",
        text,
        "--batch",
        2,
        "--seq-len",
        32,
        "--precision",
        "fp32",
        "--tokenizer",
        "bytes",
        "--shuffle",
        "off",
        "--lr",
        "1e-3",
        "--schedule",
        "constant",
        "--warmup",
        0,
        "--beta2",
        "0.999",
        "--weight-decay",
        0,
        "--clip",
        1,
        "--memory",
        "512MiB",
        "--quiet",
    ]
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    config["vocab_size"] = 300
    (tmp_path / "config.json").write_text(json.dumps(config))
    program(
        "train",
        "--init",
        tmp_path / "config.json",
        *how,
        "--drive",
        tmp_path / "a",
        "--out",
        tmp_path / "theirs",
        "--steps",
        4,
        "--stop-at",
        2,
    )
    program("export", tmp_path / "theirs", "--dtype", "fp32", "--moments", "--out", tmp_path / "two")
    program("train", "--resume", tmp_path / "theirs", "--quiet")
    program("export", tmp_path / "theirs", "--dtype", "fp32", "--moments", "--out", tmp_path / "four")
    from transformers import AutoModelForCausalLM

    with longshore.init(tmp_path / "ours", drives=[tmp_path / "b"], memory="512MiB"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "two", dtype=torch.float32)
    x = torch.tensor([list(text.read_bytes()[:33])] * 2)
    with longshore.wrap(model, lr=1e-3, weight_decay=0.0, clip=1.0, moments_from=tmp_path / "two") as engine:
        logits = engine(input_ids=x[:, :32]).logits
        engine.backward(nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()))
        engine.step()
        engine.save_pretrained(tmp_path / "three", moments=True)
    how[how.index("bytes")] = tmp_path / "two"
    program("import", tmp_path / "three", *how, "--drive", tmp_path / "c", "--out", tmp_path / "back", "--steps", 1)
    program("train", "--resume", tmp_path / "back", "--quiet")
    program("export", tmp_path / "back", "--dtype", "fp32", "--moments", "--out", tmp_path / "end")
    assert json.loads((tmp_path / "end" / "optimizer" / "optimizer.json").read_text())["updates"] == 4
    for where, tolerance in (("", 2e-6), ("optimizer/exp_avg", 1e-6), ("optimizer/exp_avg_sq", 1e-8)):
        from safetensors.torch import load_file

        one, other = (load_file(tmp_path / d / where / "model.safetensors") for d in ("four", "end"))
        assert one.keys() == other.keys()
        for name in one:
            assert torch.allclose(one[name], other[name], rtol=1e-3, atol=tolerance), (where, name)


def test_bad_input(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        steps(engine, 1)
        engine.save_pretrained(tmp_path / "out", moments=True)
        with pytest.raises(longshore.ExistsError, match="holds .*optimizer|holds model.safetensors"):
            engine.save_pretrained(tmp_path / "out", moments=True)
    said = tmp_path / "out" / "optimizer" / "optimizer.json"

    def refused(match, model=None, **how):
        with pytest.raises((longshore.LongshoreError, ValueError), match=match):
            engine_for(model or gpt2(), tmp_path, "x", **{"moments_from": tmp_path / "out", **how})
        assert not (tmp_path / "x" / "run.json").exists()
        (tmp_path / "x-drive").rename(tmp_path / f"used{len(list(tmp_path.iterdir()))}")

    refused("not-there.*is not there: wrap.moments_from", moments_from=tmp_path / "not-there")
    refused("moments of adamw, not of sgd", optimizer="sgd")
    refused("holds no moments", model=Cnn())
    refused(r"transformer.wte.weight is of shape \[96, 48\] there, and \[97, 48\]", model=_resized(97))
    for text in (
        "{",
        "[]",
        '{"optimizer": "adamw"}',
        '{"optimizer": "adamw", "updates": true}',
        '{"optimizer": "adamw", "updates": 1, "fewer": {"a": 2}}',
    ):
        said.write_text(text)
        refused("optimizer.json: does not say which")
    said.write_text('{"optimizer": "adamw", "updates": 1}')
    (tmp_path / "out" / "optimizer" / "exp_avg" / "model.safetensors").write_bytes(b"x" * 20)
    refused("exp_avg/model.safetensors: the moments cannot be read")


def _resized(vocab):
    model = gpt2()
    model.resize_token_embeddings(vocab)
    return model


def test_moments_of_no_step(tmp_path, seed):
    """Zeros, which have seen nothing: the next run is as one that begins anew."""
    with engine_for(gpt2(), tmp_path) as engine:
        engine.save_pretrained(tmp_path / "out", moments=True)
        steps(engine, 1)
        expected = values(engine)
    with engine_for(copy_of(gpt2(), tmp_path / "out"), tmp_path, "next", moments_from=tmp_path / "out") as engine:
        steps(engine, 1)
        same(engine, expected)


def test_another_optimizer_of_the_process_takes_a_copy(tmp_path, seed):
    """It would write to what lies on the drives: the sentence says what it takes, and with that it goes on as the
    engine does."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    with engine_for(model, tmp_path, lr=1e-2, clip=0) as engine:
        engine.backward(engine(torch.ones(2, 8)).square().mean())
        engine.step()
        other = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
        other.load_state_dict(model.state_dict())
        optimizer = torch.optim.AdamW(other.parameters())
        optimizer.load_state_dict(engine.optimizer.state_dict())
        other(torch.ones(2, 8)).square().mean().backward()
        with pytest.raises(longshore.LongshoreError, match=r"another optimizer loads a copy.deepcopy\(\) of it"):
            optimizer.step()
        other.load_state_dict(model.state_dict())  # it has decayed weights before it looked at moments
        optimizer.load_state_dict(copy.deepcopy(engine.optimizer.state_dict()))
        optimizer.step()
        engine.backward(engine(torch.ones(2, 8)).square().mean())
        engine.step()
        for name, value in other.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=name)
