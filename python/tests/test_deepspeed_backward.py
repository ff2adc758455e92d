"""DeepSpeed's engine: backward passes of the engine, and those that a script makes by itself."""

import pytest
import torch

import longshore
import longshore.deepspeed as deepspeed
from longshore.deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad
from models import gpt2, tokens

STEPS = 4


def made(tmp_path, seed, **more):
    torch.manual_seed(seed)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": STEPS,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "longshore": {"run": str(tmp_path / "run")},
        **more,
    }
    return deepspeed.initialize(model=gpt2(), config=config)[0]


HOW = {
    "loss": lambda engine, output: output.loss.backward(),
    "scaled": lambda engine, output: engine.scale(output.loss).backward(),
    "logits": lambda engine, output: (output.logits.square().mean() * 0 + output.loss).backward(),
    "engine": lambda engine, output: engine.backward(output.loss),
    "as it is": lambda engine, output: engine.backward(output.loss / STEPS, scale_wrt_gas=False),
}


@pytest.mark.parametrize("how", HOW)
def test_every_backward_pass_is_a_part_of_the_step(tmp_path, seed, how):
    torch.manual_seed(seed)
    plain = gpt2()
    for batch in tokens(STEPS):
        (plain(**batch).loss / STEPS).backward()
    engine, applied = made(tmp_path, seed), []
    for batch in tokens(STEPS):
        HOW[how](engine, engine(**batch))
        if len(applied) < STEPS - 1:
            engine.step()
            applied.append(engine.was_step_applied())
    for p, q in zip(engine.module.parameters(), plain.parameters()):
        assert torch.allclose(safe_get_full_grad(p), q.grad, rtol=1e-5, atol=1e-7)
    assert not any(applied) and engine.global_steps == 0
    engine.step()
    assert engine.was_step_applied() and engine.global_steps == 1
    engine.destroy()


def test_backward_returns_the_part(tmp_path, seed):
    engine = made(tmp_path, seed)
    assert not engine.was_step_applied()
    loss = engine(**tokens(1)[0]).loss
    assert engine.backward(loss).item() == loss.item() / STEPS
    loss = engine(**tokens(1)[0]).loss
    assert engine.backward(loss, scale_wrt_gas=False) is loss
    engine.destroy()


def test_layer_by_layer_is_a_whole_step(tmp_path, seed):
    norms = []
    for together in (False, True):
        engine = made(tmp_path / str(together), seed)
        if together:
            engine.train_batch(tokens(STEPS))
        for batch in [] if together else tokens(STEPS):
            engine(**batch).loss.backward()
            engine.step()
        norms.append(engine.get_global_grad_norm())
        engine.destroy()
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_a_boundary_where_step_is_one_is_refused(tmp_path, seed):
    engine = made(tmp_path, seed, managed_gradient_accumulation=False)
    assert not engine.managed_gradient_accumulation()
    with pytest.raises(longshore.LongshoreError, match="managed_gradient_accumulation is false"):
        engine.set_gradient_accumulation_boundary(True)
    engine.destroy()


def test_a_plateau_is_left_to_the_script(tmp_path, seed):
    torch.manual_seed(seed)
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = {"train_micro_batch_size_per_gpu": 2, "longshore": {"run": str(tmp_path / "run")}}
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    engine, _, _, scheduler = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=plateau, config=config
    )
    for batch, metric in zip(tokens(3), (1.0, 2.0, 0.5)):
        engine.backward(engine(**batch).loss)
        engine.step()
        scheduler.step(metric)
    assert engine.get_lr() == pytest.approx([1e-4]) and scheduler.best == 0.5
    engine.destroy()
    with pytest.raises(longshore.LongshoreError, match="engine is closed"):
        engine.backward_together(tokens(2), lambda batch: engine(**batch).loss)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_step_that_is_not_finite_is_skipped(tmp_path, seed, dtype, caplog):
    torch.manual_seed(seed)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_num_steps": 4}},
        "longshore": {"run": str(tmp_path / "run"), "resume": True},
    }
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    engine, told = deepspeed.initialize(model=gpt2(), config=config)[0], []
    for number, batch in enumerate(tokens(3)):
        if number == 2:  # goes on with the run
            engine.destroy()
            engine = deepspeed.initialize(model=gpt2(), config=config)[0]
        before = safe_get_full_fp32_param(engine.module.lm_head.weight)
        loss = engine(**batch).loss
        engine.backward(loss * float("nan") if number else loss)
        engine.step()
        assert torch.equal(safe_get_full_fp32_param(engine.module.lm_head.weight), before) is (number > 0)
        told.append(
            (
                engine.was_step_applied(),
                engine.global_steps,
                engine.skipped_steps,
                engine.lr_scheduler.last_batch_iteration,
            )
        )
    assert told == [(True, 1, 0, 0), (False, 2, 1, 0), (False, 3, 2, 0)]
    assert caplog.text.count("is skipped") == 2
    engine.destroy()


def test_leaves_are_marked(tmp_path, seed, caplog):
    from torch import nn

    from longshore.deepspeed.utils import (
        get_z3_leaf_modules,
        see_memory_usage,
        set_z3_leaf_modules,
        unset_z3_leaf_modules,
        z3_leaf_module,
    )

    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert set_z3_leaf_modules(model, [nn.Linear]) == get_z3_leaf_modules(model) == [model[0], model[1][0]]
    marked = set_z3_leaf_modules(model, ["ReLU", "torch.nn.modules.linear.Linear"])
    assert marked == [model[0], model[1][0], model[1][1]]
    assert unset_z3_leaf_modules(model, [nn.Linear]) == [model[0], model[1][0]] and not z3_leaf_module(model[0])
    with pytest.raises(ValueError, match="Conv2d"):
        set_z3_leaf_modules(model, [nn.Conv2d])
    assert set_z3_leaf_modules(model, [nn.Conv2d], raise_if_not_found=False) == []
    with caplog.at_level("INFO", "longshore"):
        see_memory_usage("not asked for")
        see_memory_usage("after the model", force=True)
    assert "not asked for" not in caplog.text and "after the model: " in caplog.text
    assert deepspeed.get_accelerator().device_count() == 1
