"""Parameters that are in no group of the optimizer: never updated, and part of the norm where their peers have them
so."""

import pytest
import torch
from torch import nn

import longshore
import longshore.deepspeed as deepspeed
from longshore.deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state

HYPER = {"lr": 1e-2, "weight_decay": 0.1, "eps": 1.0}  # with which the norm that is clipped shows in the numbers
BATCHES = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(1))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def made(seed):
    """(model, parameters in groups, parameters in none)."""
    torch.manual_seed(seed)
    model = Deep()
    left_out = [*model.layers[1].parameters(), model.layers[3].bias]
    return model, [p for p in model.parameters() if not any(p is q for q in left_out)], left_out


def loss_of(output):
    return (output**2).mean() * 100


def of_torch(seed, all_in_norm):
    model, inside, _ = made(seed)
    optimizer, norms = torch.optim.AdamW(inside, **HYPER), []
    for batch in BATCHES:
        loss_of(model(batch)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters() if all_in_norm else inside, 0.5)))
        optimizer.step()
        model.zero_grad()
    return norms, list(model.parameters())


def compare(model, norms, expected, left_out, before):
    assert norms == pytest.approx(expected[0], rel=1e-5)
    for p, q in zip(model.parameters(), expected[1]):
        assert torch.allclose(p.detach() + 0, q, rtol=2e-6, atol=2e-7)
    for p, was in zip(left_out, before):
        assert torch.equal(safe_get_full_fp32_param(p), was)
        assert not any(safe_get_full_optimizer_state(p, key).any() for key in ("exp_avg", "exp_avg_sq"))


def test_wrap_counts_them_as_clipping_a_model_does(tmp_path, seed):
    model, inside, left_out = made(seed)
    before = [p.detach().clone() for p in left_out]
    with longshore.wrap(model, run=tmp_path / "run", groups=[{"params": inside}], clip=0.5, **HYPER) as engine:
        norms = []
        for batch in BATCHES:
            engine.backward(loss_of(engine(batch)))
            norms.append(engine.step().grad_norm)
        compare(model, norms, of_torch(seed, True), left_out, before)


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("together", [False, True])
def test_deepspeed_counts_them_in_stage_0_alone(tmp_path, seed, stage, together):
    model, inside, left_out = made(seed)
    before = [p.detach().clone() for p in left_out]
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path)}},
    }
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(inside, **HYPER), config=config)[0]
    norms = []
    for batch in BATCHES:
        if together:
            engine.train_batch(iter([batch, batch]), lambda output, batch: loss_of(output))
        for _ in range(0 if together else 2):
            engine.backward(loss_of(engine(batch)))
            assert (safe_get_full_grad(left_out[0]) is None) is (stage > 0)
            assert safe_get_full_grad(inside[0]) is not None
            engine.step()
        norms.append(engine.get_global_grad_norm())
    compare(model, norms, of_torch(seed, stage == 0), left_out, before)
    engine.destroy()
