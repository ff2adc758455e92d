"""DeepSpeed's engine: which micro-batches a step is made of, and gradients that a script drops."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import longshore
import longshore.deepspeed as deepspeed
from longshore.deepspeed.utils import safe_get_full_grad


def config(path, accumulate=1, **more):
    return {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": 0,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "adam_w_mode": False}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(path)}},
        "longshore": {"memory": "64MiB"},
        **more,
    }


def made(model, path, accumulate=1, **more):
    return deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(path, accumulate, **more)
    )[0]


def net(seed, sizes=(6, 16, 16, 1)):
    torch.manual_seed(seed)
    layers = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers[:-1])


def batches(n, seed=3):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 6, generator=g) for _ in range(n)]


def by_none(model):
    for p in model.parameters():
        p.grad = None


def by_zeros(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()


DROPS = {
    "module": (lambda engine: engine.module.zero_grad(), nn.Module.zero_grad),
    "zeros": (lambda engine: engine.module.zero_grad(set_to_none=False), nn.Module.zero_grad),
    "engine": (lambda engine: engine.zero_grad(), nn.Module.zero_grad),
    "optimizer": (lambda engine: engine.optimizer.zero_grad(), nn.Module.zero_grad),
    "each": (lambda engine: by_none(engine.module), nn.Module.zero_grad),
    "in place": (lambda engine: by_zeros(engine.module), nn.Module.zero_grad),
    "a part": (lambda engine: engine.module[2].zero_grad(), lambda model: model[2].zero_grad()),
}


def rounds(critic, maker, drop, back_critic, back_maker):
    """Two networks against each other: the critic's gradients of the maker's turn are dropped."""
    losses = []
    for x, real in zip(batches(5), batches(5, seed=4)):
        drop(critic)
        fake = maker(x)
        loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        back_critic(loss)
        drop(maker)
        other = F.softplus(-critic(fake)).mean()
        back_maker(other)
        losses += [loss.item(), other.item()]
    return losses


@pytest.mark.parametrize("how", DROPS)
def test_two_engines_drop_as_pytorch_does(tmp_path, how):
    ours, plains = DROPS[how]
    critic, maker = net(0), net(1, (6, 16, 6, 6))
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (critic, maker)]
    apart = copy.deepcopy((critic, maker))
    expected = rounds(
        critic, maker, plains, *(lambda loss, o=o: (loss.backward(), o.step(), o.zero_grad()) for o in optimizers)
    )
    engines = [made(model, tmp_path / str(n)) for n, model in enumerate(apart)]
    got = rounds(*engines, ours, *(lambda loss, e=e: (e.backward(loss), e.step()) for e in engines))
    assert got == pytest.approx(expected, rel=1e-4)
    for engine in engines:
        engine.destroy()


@pytest.mark.parametrize("how", DROPS)
def test_a_plain_engine_drops_as_pytorch_does(tmp_path, how):
    ours, plains = DROPS[how]
    if how == "engine":
        ours = longshore.Engine.drop_gradients
    plain = net(0)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.0)
    with longshore.wrap(
        copy.deepcopy(plain), run=tmp_path / "run", drives=[tmp_path], lr=1e-2, weight_decay=0.0
    ) as engine:
        for number, x in enumerate(batches(6)):
            a, b = engine(x).square().mean(), plain(x).square().mean()
            assert a.item() == pytest.approx(b.item(), rel=1e-4)
            engine.backward(a)
            b.backward()
            if number % 2:
                engine.step()
                optimizer.step()
                optimizer.zero_grad()
            else:
                ours(engine)
                plains(plain)


def test_dropping_within_a_step_is_said(tmp_path, caplog):
    x = batches(3)
    plain, engine = net(0), made(net(0), tmp_path, accumulate=3)
    for number in range(3):
        if number < 2:
            engine.module.zero_grad()
        engine.backward(engine(x[number]).mean())
        if number < 2:
            engine.step()
    for number in (1, 2):
        (plain(x[number]).mean() / 3).backward()
    for p, q in zip(engine.module.parameters(), plain.parameters()):
        assert torch.allclose(safe_get_full_grad(p), q.grad, atol=1e-7) and torch.allclose(p.grad, q.grad, atol=1e-7)
    engine.step()
    assert engine.global_steps == 1 and caplog.text.count("zero_grad() between the micro-batches of a step") == 1
    engine.destroy()


def test_clipping_by_the_script_counts(tmp_path):
    x, (plain,) = batches(1)[0], (net(0),)
    engine = made(net(0), tmp_path)
    engine.backward(engine(x).square().mean())
    plain(x).square().mean().backward()
    norms = [float(torch.nn.utils.clip_grad_norm_(m.parameters(), 1e-3)) for m in (engine.module, plain)]
    engine.step()
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert engine.get_global_grad_norm() == pytest.approx(1e-3, rel=1e-3)
    engine.destroy()


def loop(engine, xs):
    norms = []
    for x in xs:
        engine.backward(engine(x).square().mean())
        engine.step()
        if engine.was_step_applied():
            norms.append(engine.get_global_grad_norm())
    return norms


def test_a_checkpoint_within_a_step_goes_on_with_a_whole_one(tmp_path, caplog):
    x = batches(14)
    engine = made(net(0), tmp_path / "a", accumulate=4)
    loop(engine, x[:6])
    engine.save_checkpoint(tmp_path / "out")
    assert "begins with a whole step" in caplog.text and engine.micro_steps == 6
    whole = loop(engine, x[6:8])  # is not in the way of the step
    engine.destroy()
    same = made(net(0), tmp_path / "b", accumulate=4)
    assert loop(same, x[:8])[1:] == whole
    same.destroy()
    engine = made(net(1), tmp_path / "c", accumulate=4)
    loop(engine, x[:1])  # a step that has begun is not gone on with
    engine.load_checkpoint(tmp_path / "out")
    assert (engine.micro_steps, engine.global_steps, engine.global_samples) == (4, 1, 32)
    assert loop(engine, x[6:9]) == [] and not engine.was_step_applied() and engine.is_gradient_accumulation_boundary()
    norm = loop(engine, x[9:10])
    engine.destroy()
    engine = made(net(0), tmp_path / "d", accumulate=4)
    loop(engine, x[:4])
    assert loop(engine, x[6:10]) == norm and engine.global_steps == 2
    engine.destroy()


def test_parameters_alone_begin_with_a_whole_step(tmp_path):
    x = batches(8)
    engine = made(net(0), tmp_path, accumulate=2)
    loop(engine, x[:2])
    engine.save_checkpoint(tmp_path / "out")
    for more in ({"load_module_only": True}, {"load_optimizer_states": False}):
        loop(engine, x[2:3])
        engine.load_checkpoint(tmp_path / "out", **more)
        assert loop(engine, x[3:4]) == [] and len(loop(engine, x[4:5])) == 1
    engine.destroy()


def test_a_resumed_run_begins_with_a_whole_step(tmp_path):
    x, run = batches(9), {"longshore": {"run": str(tmp_path / "run"), "resume": True}}
    engine = made(net(0), tmp_path, accumulate=3, **run)
    loop(engine, x[:5])
    engine.destroy()
    engine = made(net(0), tmp_path, accumulate=3, **run)
    assert engine.global_steps == 1 and engine.micro_steps == 3
    assert loop(engine, x[5:7]) == [] and len(loop(engine, x[7:8])) == 1
    engine.destroy()


def test_steps_are_whole_after_one_that_was_not(tmp_path):
    """A remainder at the end of an epoch, another batch size, a backward pass that fails."""
    x = batches(8)
    engine = made(net(0), tmp_path, accumulate=3)
    loop(engine, x[:1])
    engine.set_gradient_accumulation_boundary(True)
    assert len(loop(engine, x[1:2])) == 1
    engine.set_gradient_accumulation_boundary(None)
    assert loop(engine, x[2:4]) == [] and len(loop(engine, x[4:5])) == 1
    loop(engine, x[:2])
    with pytest.raises(longshore.LongshoreError, match="set_train_batch_size: call it after a whole step"):
        engine.set_train_batch_size(16)
    out = engine(x[0])
    out.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.backward(out.mean())
    assert loop(engine, x[:2]) == [] and len(loop(engine, x[2:3])) == 1
    engine.set_train_batch_size(16)
    assert loop(engine, x[:1]) == [] and len(loop(engine, x[1:2])) == 1
    engine.micro_steps, engine.global_steps = 0, 7
    assert engine.counters.global_steps == 7
    engine.destroy()
