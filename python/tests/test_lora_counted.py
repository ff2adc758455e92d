"""Adapters trained on prompts and completions: the losses are those of peft's adapters in a PyTorch loop that takes the
mean over what counts, whatever the memory."""

import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from test_counted_data import CHATML, model_in, program, pytestmark, tokens_of  # noqa: F401
from test_tokenizer_class import byte_level

peft = pytest.importorskip("peft")
LENGTH, BATCH, STEPS, LR = 48, 7, 4, 1e-2
ADAMW = ["--schedule", "constant", "--warmup", 0, "--beta2", 0.95, "--weight-decay", 0.1]


def train(model, name, lora, lr, *more):
    given = ["--model", model, "--data", model / "rows.jsonl", "--drive", model / "drive", "--out", model / name]
    how = ["--seq-len", LENGTH, "--precision", "fp32", "--shuffle", "off", "--lora", lora, "--lr", lr, *ADAMW]
    program("train", *given, *how, "--steps", STEPS, "--overwrite", *more)
    return [json.loads(line)["loss"] for line in (model / name / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "lora, pack, batch, clip",
    [
        ("r=4,alpha=16", "off", BATCH, 0),
        ("r=4,alpha=16", "off", 60, 0.05),  # several units, clipped
        ("r=2,alpha=16,target=layers.1.self_attn.q_proj,layers.0.mlp.up_proj", "on", BATCH, 0),  # others in each layer
        ("r=2,target=1.mlp.down_proj,rslora=on", "on", BATCH, 0),  # none in the lower one, which has no backward
    ],
)
def test_losses_are_those_of_peft(lora, pack, batch, clip, tmp_path, seed):
    random.seed(seed)
    model_in(tmp_path, byte_level, CHATML)
    (tmp_path / "drive").mkdir()
    rows = [
        {"prompt": "The ship " * random.randint(0, 4) + "x", "completion": "at dawn, " * random.randint(0, 9) + "y"}
        for _ in range(60)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = ["--pack", pack, "--batch", batch, "--clip", clip]
    train(tmp_path, "first", lora, 0, *how)  # a learning rate of 0 leaves them as they begin
    program("export", tmp_path / "first", "--out", tmp_path / "adapters", "--quiet")
    made = train(tmp_path, "run", lora, LR, *how, "--memory", "256MiB")
    assert made == train(tmp_path, "small", lora, LR, *how, "--memory", "64MiB", "--threads", 1)

    ids, counts = tokens_of(tmp_path / "run")
    base = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapters", is_trainable=True).eval()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    for step, loss_made in enumerate(made):
        first = step * batch * LENGTH
        at = [[(first + i * LENGTH + k) % len(ids) for k in range(LENGTH + 1)] for i in range(batch)]
        x = torch.tensor([[ids[k] for k in line[:-1]] for line in at])
        y = torch.tensor([[ids[k] if counts[k] else -100 for k in line[1:]] for line in at])
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        if clip:
            assert torch.nn.utils.clip_grad_norm_(trained, clip) > clip
        optimizer.step()
        assert abs(loss_made - loss.item()) <= 2e-6 * loss.item(), (step, loss_made, loss.item())
