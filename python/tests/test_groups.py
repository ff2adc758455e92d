"""The optimizer's groups and its state: the keys and values of torch.optim's. Parameters in no group are never updated,
and are part of the norm where their peers have them so."""

import copy
import pickle

import pytest
import torch
from torch import nn

import longshore
import longshore.deepspeed as deepspeed
from longshore.deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state
from test_edited_groups import KINDS, Wide, as_they_are, train, wide

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


def test_what_zero_leaves_out_is_not_added_in_silence(tmp_path, seed):
    model, inside, left_out = made(seed)
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "zero_optimization": {"stage": 1},
        "longshore": {"run": str(tmp_path / "run")},
    }
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(inside, **HYPER), config=config)[0]
    engine.optimizer.add_param_group({"params": left_out})
    engine.backward(loss_of(engine(BATCHES[0])))
    with pytest.raises(longshore.LongshoreError, match="layers.1.weight was in no group at deepspeed.initialize"):
        engine.step()
    engine.destroy()


# ---- what a group has


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
def test_defaults_and_keys_are_the_optimizers_own(kind, tmp_path):
    expected = kind(wide().parameters())
    for name, optimizer in (("name", kind.__name__.lower()), ("class", kind)):
        with longshore.wrap(wide(), run=tmp_path / name, memory="64MiB", optimizer=optimizer) as engine:
            assert engine.optimizer.defaults == expected.defaults
            assert engine.optimizer.state_dict()["param_groups"] == expected.state_dict()["param_groups"]
            kind(wide().parameters()).load_state_dict(copy.deepcopy(engine.optimizer.state_dict()))
        with longshore.resume(tmp_path / name, Wide) as engine:
            assert engine.optimizer.state_dict()["param_groups"] == expected.state_dict()["param_groups"]


def test_a_number_that_an_optimizer_does_not_have_is_refused(tmp_path):
    for name, numbers in (("sgd", {"betas": (0.9, 0.99)}), ("adamw", {"momentum": 0.9}), ("sgd", {"eps": 1e-6})):
        with pytest.raises(ValueError, match=f"wrap: {next(iter(numbers))}=.* has no effect with optimizer='{name}'"):
            longshore.wrap(wide(), run=tmp_path / "run", optimizer=name, **numbers)


# ---- its state


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_frozen_at_the_moment_keeps_its_state(kind, tmp_path):
    plain, model = wide(), wide()
    expected, optimizer = KINDS[kind](plain), KINDS[kind](model)
    train(plain, plain, expected, as_they_are, 0, 2)
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=optimizer) as engine:
        train(engine, model, optimizer, as_they_are, 0, 2)
        for both in (plain, model):
            both.layers[1].requires_grad_(False)
        ours, theirs = (copy.deepcopy(o.state_dict()) for o in (engine.optimizer, expected))
        assert ours["param_groups"] == theirs["param_groups"] and ours["state"].keys() == theirs["state"].keys()
        for index, entry in theirs["state"].items():
            for key, value in entry.items():
                torch.testing.assert_close(ours["state"][index][key], torch.as_tensor(value), rtol=1e-4, atol=1e-6)
        engine.optimizer.load_state_dict(ours)  # the values of before, of what is frozen, too
        again = copy.deepcopy(engine.optimizer.state_dict())["state"]
        assert all(
            torch.equal(value, again[i][key]) for i, entry in ours["state"].items() for key, value in entry.items()
        )
        for both in (plain, model):
            both.layers[1].requires_grad_(True)
        assert train(engine, model, optimizer, as_they_are, 2) == pytest.approx(
            train(plain, plain, expected, as_they_are, 2), rel=3e-5
        )


def test_a_step_where_nothing_has_a_gradient_does_nothing(tmp_path):
    model = wide()
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=KINDS["AdamW"](model)) as engine:
        engine.optimizer.step()
        assert engine.optimizer.step(lambda: 3) == 3 and engine.step_number == 0
        with pytest.raises(longshore.LongshoreError, match="no backward pass"):
            engine.step()
        model.head.weight.grad = torch.ones(4, 200)
        engine.optimizer.step()
        assert engine.step_number == 1 and len(engine.optimizer.state) == 1
    with pytest.raises(longshore.LongshoreError, match="closed"):
        engine.optimizer.step()


def test_a_changed_count_is_refused(tmp_path):
    model = wide()
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=KINDS["AdamW"](model)) as engine:
        train(engine, model, engine.optimizer, as_they_are, 0, 2)
        p = model.layers[0].weight
        entry = engine.optimizer.state[p]
        assert float(entry["step"]) == entry["step"].item() == 2 and entry["step"].shape == ()
        for change in (
            lambda: entry["step"].zero_(),
            lambda: entry["step"].add_(1),
            lambda: entry["step"].fill_(7),
            lambda: entry.update(step=torch.tensor(0.0)),
            lambda: entry.__setitem__("step", torch.tensor(0.0)),
            lambda: engine.optimizer.state.__setitem__(p, {**entry, "step": torch.tensor(0.0)}),
            lambda: engine.optimizer.state.__setitem__(p, {}),
            lambda: engine.optimizer.state.__setitem__(p, engine.optimizer.state[model.head.weight]),
        ):
            with pytest.raises(longshore.LongshoreError, match="load_state_dict"):
                change()
        engine.optimizer.state[p] = engine.optimizer.state[p]
        train(engine, model, engine.optimizer, as_they_are, 2, 3)
        assert float(entry["step"]) == 3  # as torch.optim's, which counts in place


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))], ids=["deepcopy", "pickle"]
)
def test_a_copy_is_torchs_own_with_the_values_of_then(way, tmp_path):
    plain, model = wide(), wide()
    expected, given = KINDS["AdamW"](plain), KINDS["AdamW"](model)
    train(plain, plain, expected, as_they_are, 0, 2)
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=given) as engine:
        train(engine, model, engine.optimizer, as_they_are, 0, 2)
        copies = way(engine.optimizer), way(given)
        train(engine, model, engine.optimizer, as_they_are, 2, 4)
        theirs = expected.state_dict()
        for made in copies:
            assert type(made) is torch.optim.AdamW
            ours = made.state_dict()
            assert ours["param_groups"] == theirs["param_groups"] and ours["state"].keys() == theirs["state"].keys()
            for index, entry in theirs["state"].items():
                for key, value in entry.items():
                    torch.testing.assert_close(ours["state"][index][key], value, rtol=1e-4, atol=1e-6)
        engine.optimizer.load_state_dict(copies[0].state_dict())
        assert {float(entry["step"]) for entry in engine.optimizer.state.values()} == {2}
