"""`longshore train --lora` beside peft: the same adapters, the same losses, and a directory that peft loads."""

import json

import pytest
import torch

from models import gpt2, llama
from test_program import needs_program, program

peft = pytest.importorskip("peft")
safetensors_torch = pytest.importorskip("safetensors.torch")

T, B, STEPS, LR = 32, 6, 4, 1e-2
TOKENS = 997
SAME = ["--seq-len", T, "--batch", B, "--precision", "fp32", "--shuffle", "off", "--threads", 1, "--quiet"]
# of PyTorch's AdamW below, without warm-up and clipping
ADAMW = ["--schedule", "constant", "--warmup", 0, "--beta2", 0.95, "--weight-decay", 0.1, "--clip", 0]


def base(make, tmp_path):
    """A model's directory, and tokens for it as one array and as a file of llm.c's kind."""
    torch.manual_seed(3)
    model = make()
    model.save_pretrained(tmp_path / "base")
    values = torch.randint(0, model.config.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(4))
    header = torch.zeros(256, dtype=torch.int32)
    header[:3] = torch.tensor([20240520, 1, TOKENS])
    data = tmp_path / "data.bin"
    data.write_bytes(header.numpy().tobytes() + values.to(torch.int16).numpy().tobytes())
    return values, data


def train(tmp_path, data, name, lora, lr, steps=STEPS, *more):
    """A run; its losses."""
    run = tmp_path / name
    (tmp_path / "drive").mkdir(exist_ok=True)
    where = ["--model", tmp_path / "base", "--data", data, "--drive", tmp_path / "drive", "--out", run]
    how = ["--lora", lora, "--lr", lr, "--min-lr", 0, "--steps", steps, *SAME, *ADAMW, *more]
    program("train", *where, *how)
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def export(tmp_path, name):
    program("export", tmp_path / name, "--out", tmp_path / f"{name}-adapters", "--quiet")
    return tmp_path / f"{name}-adapters"


def loaded(make, tmp_path, adapters, **how):
    return peft.PeftModel.from_pretrained(type(make()).from_pretrained(tmp_path / "base"), adapters, **how)


def with_peft(make, tmp_path, values, adapters):
    """What peft's adapters become when PyTorch trains them as the program did; and the losses."""
    model = loaded(make, tmp_path, adapters, is_trainable=True).float().eval()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        start = (step * B + torch.arange(B))[:, None] * T + torch.arange(T)[None, :]
        x, y = values[start % TOKENS], values[(start + 1) % TOKENS]
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@needs_program
@pytest.mark.parametrize(
    "make, lora",
    [
        (llama, "r=4,alpha=8"),
        (llama, "r=3,alpha=6,target=q_proj,v_proj,up_proj,rslora=on"),
        (gpt2, "r=4,alpha=16,target=all-linear,dropout=0"),
    ],
)
def test_the_program_trains_adapters_as_peft_does(make, lora, tmp_path):
    values, data = base(make, tmp_path)
    train(tmp_path, data, "first", lora, 0, steps=1)  # a learning rate of 0 leaves them as they begin
    losses = train(tmp_path, data, "run", lora, LR)
    model, expected = with_peft(make, tmp_path, values, export(tmp_path, "first"))
    assert losses[0] == pytest.approx(expected[0], rel=2e-6)
    assert losses == pytest.approx(expected, rel=2e-6), (losses, expected)

    adapters = export(tmp_path, "run")
    written = safetensors_torch.load_file(adapters / "adapter_model.safetensors")
    theirs = peft.get_peft_model_state_dict(model)
    assert written.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(written[name], value, rtol=0, atol=3e-5, msg=name)
        assert not torch.equal(value, torch.zeros_like(value)), name

    # peft loads what the program writes; the base is the directory that it was trained on
    assert json.loads((adapters / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        (tmp_path / "base").resolve()
    )
    x = values[:T][None]
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(make, tmp_path, adapters).float().eval()(x).logits, model(x).logits, rtol=1e-4, atol=1e-4
        )


@needs_program
def test_adapters_begin_as_pefts(tmp_path):
    """a uniform within 1 / sqrt(in), b zero; other seeds, other values."""
    _, data = base(llama, tmp_path)
    train(tmp_path, data, "run", "r=8", 0, 1)
    train(tmp_path, data, "other", "r=8", 0, 1, "--seed", 7)
    one, other = (
        safetensors_torch.load_file(export(tmp_path, n) / "adapter_model.safetensors") for n in ("run", "other")
    )
    for name, value in one.items():
        if "lora_B" in name:
            assert not value.any()
            continue
        bound = value.shape[1] ** -0.5
        assert bound * 0.9 < value.abs().max() <= bound
        assert value.std() == pytest.approx(bound / 3**0.5, rel=0.15)
        assert not torch.equal(value, other[name])


@needs_program
def test_generate_and_eval_read_the_adapters(tmp_path):
    values, data = base(llama, tmp_path)
    train(tmp_path, data, "run", "r=4,alpha=32", 5e-2, 8)
    said = program("eval", tmp_path / "run", "--data", data, "--precision", "fp32", "--json")
    model = loaded(llama, tmp_path, export(tmp_path, "run")).float().eval()
    n = (TOKENS - 1) // T
    with torch.no_grad():
        logits = model(values[: n * T].reshape(n, T)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), values[1 : n * T + 1])
    assert json.loads(said)["loss"] == pytest.approx(loss.item(), rel=2e-3)


@needs_program
def test_adapters_name_their_base_when_it_is_gone(tmp_path):
    _, data = base(llama, tmp_path)
    train(tmp_path, data, "run", "r=4", 1e-2, 1)
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    config = json.loads((export(tmp_path, "run") / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "base")
