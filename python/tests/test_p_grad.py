"""p.grad by PyTorch's rules: when it is there, what it is, and what is made of it. Random loops: test_any_loop.py."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import longshore
from longshore.step import parameter_state
from test_loop import engine_for

X = torch.randn(6, 4, 64, generator=torch.Generator().manual_seed(3))


class Two(nn.Module):
    """Two towers, of which a pass uses one, and a head."""

    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.head = nn.Linear(64, 4)

    def forward(self, x, tower=0):
        return self.head(torch.tanh(self.towers[tower](x)))


def loss_of(model, x, tower=0):
    return (model(x, tower).float() - 1).square().mean()


@pytest.fixture(params=["plenty", "little"])
def pair(request, tmp_path, seed, monkeypatch):
    """(model, optimizer) of PyTorch, and of an engine: with room for all, or with the least."""
    plain = Two()
    model = copy.deepcopy(plain)
    little = {"slots": 1, "gradient_bytes": 0} if request.param == "little" else {}
    with engine_for(
        model, tmp_path, monkeypatch=monkeypatch, lr=1e-2, clip=0, optimizer="sgd", momentum=0.9, **little
    ) as engine:
        if little:
            engine._core.plan.spare_bytes = 0
        optimizer = torch.optim.SGD(plain.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1)
        yield (plain, optimizer), (engine, engine.optimizer)


def same(pair):
    (plain, _), (engine, _) = pair
    for (name, p), q in zip(engine.module.named_parameters(), plain.parameters()):
        torch.testing.assert_close(p.detach() + 0, q.detach(), rtol=1e-5, atol=1e-6, msg=name)


def norms(model):
    return [None if p.grad is None else round(p.grad.norm().item(), 5) for p in model.parameters()]


def test_zeros_of_the_engines_step(tmp_path, seed):
    """A tensor of zeros that is made zero once more is a gradient of the next step."""
    with engine_for(Two(), tmp_path, lr=1e-2, clip=0, optimizer="sgd", momentum=0.9) as engine:
        p = engine.module.towers[0].weight
        for n, x in enumerate(X[:4]):
            engine.backward(loss_of(engine, x, n > 0))
            engine.step()
            p.grad.view(-1)  # which gives it memory of its own
            engine.module.zero_grad(set_to_none=False)
            before = p.detach() + 0
        engine.backward(loss_of(engine, X[4], 1))
        assert p.grad is not None and engine.step()
        assert not torch.equal(p.detach() + 0, before)


@pytest.mark.parametrize("zeros", ["optimizer", "model", "by hand", None])
def test_zeros_are_not_none(pair, zeros):
    """A tower that is not used any more goes on by momentum and decay, where its gradient is zero."""
    seen = []
    for model, optimizer in pair:
        of_this = []
        for n, x in enumerate(X):
            loss_of(model, x, n > 2).backward()
            of_this.append(norms(model))
            optimizer.step()
            of_this.append(norms(model))
            if zeros == "by hand":
                for p in model.parameters():
                    if p.grad is not None:
                        p.grad.detach_()
                        p.grad.zero_()
            else:
                (model if zeros == "model" else optimizer).zero_grad(set_to_none=zeros is None)
            of_this.append(norms(model))
        seen.append(of_this)
    for ours, theirs in zip(*seen):
        assert [g is None for g in ours] == [g is None for g in theirs]
        assert [g or 0 for g in ours] == pytest.approx([g or 0 for g in theirs], abs=1e-4)
    same(pair)


def test_steps_without_zero_grad(pair, caplog):
    for model, optimizer in pair:
        for n, x in enumerate(X):
            loss_of(model, x, n % 2).backward()
            optimizer.step()
            if n == 3:
                optimizer.step()
                optimizer.zero_grad()
    same(pair)
    said = [record.getMessage() for record in caplog.records if "without zero_grad()" in record.getMessage()]
    assert len(said) == 1 and "They take 17.27 KiB" in said[0]


def test_a_step_of_the_engine_needs_no_zero_grad(pair):
    (plain, optimizer), (engine, _) = pair
    for n, x in enumerate(X):
        optimizer.zero_grad()
        loss_of(plain, x).backward()
        optimizer.step()
        if n % 2:
            engine.train_batch([x], lambda output, x: (output - 1).square().mean())
        else:
            engine.backward(loss_of(engine, x))
            engine.step()
        assert norms(engine) == pytest.approx(norms(plain), abs=1e-4)
    same(pair)


def test_a_gradient_that_is_kept_keeps_its_values(pair, request, caplog):
    little = "little" in request.node.name
    kept = []
    for model, optimizer in pair:
        before, seen = None, []
        for x in X:
            loss_of(model, x).backward()
            p = (model if isinstance(model, Two) else model.module).towers[0].weight
            if before is not None:
                try:
                    seen.append(torch.nn.functional.cosine_similarity(before.flatten(), p.grad.flatten(), 0).item())
                except longshore.LongshoreError as refused:
                    assert little and "towers.0.weight.grad: was kept after it was dropped" in str(refused)
                    return
            before = p.grad
            optimizer.step()
            optimizer.zero_grad()
            assert before is not p.grad and p.grad is None
        kept.append(seen)
    assert not little and kept[0] == pytest.approx(kept[1], abs=1e-5)
    said = [record.getMessage() for record in caplog.records if "keeps gradients past" in record.getMessage()]
    assert len(said) == 1 and "16.00 KiB of memory" in said[0]


def test_nobody_keeps_a_gradient_in_the_ordinary_loop(pair, caplog):
    _, (engine, optimizer) = pair
    for x in X[:3]:
        loss_of(engine, x).backward()
        torch.nn.utils.clip_grad_norm_(engine.parameters(), 1.0)
        there = [weakref.ref(p.grad) for p in engine.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        assert there and all(g() is None for g in there)
    assert not caplog.records and not engine._core.gradients.shown.most_bytes


def test_the_same_tensor_until_it_is_none(pair):
    ids = []
    for model, optimizer in pair:
        p = next(iter(model.parameters()))
        p.grad = beforehand = torch.full_like(p, 0.5)
        loss_of(model, X[0]).backward()
        first = p.grad
        assert first is beforehand
        loss_of(model, X[1]).backward()
        ids.append(beforehand.clone())
        optimizer.step()
        assert p.grad is first
        optimizer.zero_grad(set_to_none=False)
        assert p.grad is first and not first.any()
        loss_of(model, X[2]).backward()
        assert p.grad is first and torch.equal(first, beforehand)
        optimizer.zero_grad()
        loss_of(model, X[3]).backward()
        assert p.grad is not first
    torch.testing.assert_close(*ids)


def test_writes_in_part_count_or_are_refused(pair, request):
    """By views, NumPy and DLPack; nothing is changed where one is refused."""
    refused = []

    def rows(g):
        for row in g:
            row.mul_(0.5)

    for write in (
        rows,
        lambda g: g.view(-1)[:3].zero_(),
        lambda g: g[0].mul_(2),
        lambda g: g.numpy().fill(1e-2),
        lambda g: torch.from_dlpack(g).mul_(0.5),
        lambda g: g.data.t()[1].add_(0.1),
        lambda g: g.untyped_storage().fill_(0),
    ):
        for model, optimizer in reversed(pair):
            loss_of(model, X[0]).backward()
            p = next(iter(model.parameters()))
            try:
                if model is pair[0][0] and refused and refused[-1] is write:
                    raise ValueError
                write(p.grad)
            except (longshore.LongshoreError, ValueError) as why:
                if model is not pair[0][0]:
                    assert any(said in str(why) for said in ("change it as a whole", "read-only", "clone() it first"))
                    refused.append(write)
            optimizer.step()
            optimizer.zero_grad()
        same(pair)
    assert len(refused) == 7 * ("little" in request.node.name)


def test_a_copy_of_a_parameter_beside_its_gradient(pair):
    dots = []
    for model, _ in pair:
        loss_of(model, X[0]).backward()
        p = next(iter(model.parameters()))
        dots.append(
            [
                (p.detach() * p.grad).sum().item(),
                (p.grad * p.detach()).sum().item(),
                torch.dot(p.detach().flatten(), p.grad.flatten()).item(),
            ]
        )
    assert dots[0] == pytest.approx(dots[1], rel=1e-5) and dots[0][0]


def test_a_gradient_scaler(pair):
    for model, optimizer in pair:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for x in X[:4]:
            scaler.scale(loss_of(model, x)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    same(pair)


def test_what_a_hook_keeps_is_p_grad(pair):
    for model, optimizer in pair:
        p, seen = next(iter(model.parameters())), []
        handle = p.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.grad))
        loss_of(model, X[0]).backward()
        seen[0].mul_(0.5)
        assert p.grad is seen[0]
        loss_of(model, X[1]).backward()
        assert p.grad is seen[0] is seen[1]
        optimizer.step()
        optimizer.zero_grad()
        handle.remove()
    same(pair)


def test_the_dtype_is_the_parameters(tmp_path, seed, monkeypatch):
    """What is only read changes no bit of a bf16 model's step, whose sums are fp32."""

    def masked(p):
        p.grad = p.grad * (torch.arange(p.numel()).view_as(p) % 2).to(p.dtype)

    def read(p):
        g = p.grad
        assert g.dtype == p.dtype == torch.bfloat16
        return g.view(-1)[:3].sum() + g.numel() + (p.detach() @ g.t()).sum() if g.ndim > 1 else g.flatten().sum()

    def given_back(p):
        p.grad = p.grad.clone()

    digests = {}
    for how in (None, read, given_back, masked):
        torch.manual_seed(seed)
        with engine_for(Two().bfloat16(), tmp_path, str(how and how.__name__), lr=1e-2, clip=0) as engine:
            for x in X:
                for part in x.bfloat16().split(2):
                    loss_of(engine, part).backward()
                for p in engine.parameters() if how else ():
                    if p.grad is not None:
                        how(p)
                weight = engine.module.head.weight
                assert how is masked or not torch.equal(parameter_state.gradient(weight), weight.grad.float())
                engine.step()
            digests[how] = engine.digest()
    assert digests[None] == digests[read] == digests[given_back] != digests[masked]


def test_a_skipped_step_leaves_it(tmp_path, seed, monkeypatch):
    with engine_for(Two(), tmp_path, lr=1e-2, clip=0, on_nonfinite="skip") as engine:
        for _ in range(2):
            loss_of(engine, X[0]).backward()
            next(iter(engine.parameters())).grad.mul_(float("inf"))
            assert engine.step().skipped
            assert not next(iter(engine.parameters())).grad.isfinite().all()
            loss_of(engine, X[0]).backward()
            assert next(iter(engine.parameters())).grad.isfinite().all()
            assert not engine.step().skipped


def test_one_kept_past_close(tmp_path, seed):
    with engine_for(Two(), tmp_path, lr=1e-2, clip=0) as engine:
        loss_of(engine, X[0]).backward()
        kept = next(iter(engine.parameters())).grad
        norm = kept.norm()
    assert kept.norm() == norm and next(iter(engine.module.parameters())).grad is None


def test_zero_grad_leaves_what_no_group_has(pair):
    for model, optimizer in pair:
        first = optimizer.param_groups[0]["params"].pop(0)
        for n, x in enumerate(X):
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=n % 2 == 0)
            if n == 3:
                optimizer.param_groups[0]["params"].append(first)
    same(pair)


def test_one_tensor_for_two_parameters(pair):
    for model, optimizer in pair:
        loss_of(model, X[0]).backward()
        towers = (model if isinstance(model, Two) else model.module).towers
        assert towers[0].weight.grad.is_contiguous() and towers[0].weight.grad.stride() == (64, 1)
        towers[1].weight.grad = towers[0].weight.grad
        optimizer.step()
        torch.testing.assert_close(towers[1].weight.grad + 0, towers[0].weight.grad + 0)
        optimizer.zero_grad()
    same(pair)


def test_one_tensor_for_two_parameters_in_another_pass(pair, request):
    """PyTorch adds the gradients of both to it."""
    engine, optimizer = pair[1]
    towers = engine.module.towers
    loss_of(engine, X[0]).backward()
    if "plenty" in request.node.name:
        towers[1].weight.grad = towers[0].weight.grad
    else:
        towers[1].weight.grad = towers[0].weight.grad = torch.ones(64, 64)
    with pytest.raises(longshore.LongshoreError, match="weight.grad: is towers.*weight.grad, too.*clone()"):
        loss_of(engine, X[1]).backward()
    towers[1].weight.grad = towers[1].weight.grad.clone()
    loss_of(engine, X[1]).backward()
    optimizer.step()


@pytest.mark.parametrize("little", [{}, {"slots": 1, "gradient_bytes": 0}])
def test_a_gradient_from_before_wrap_is_in_the_first_step(little, tmp_path, seed, monkeypatch):
    plain = Two()
    loss_of(plain, X[0]).backward()
    model = Two()
    model.load_state_dict(plain.state_dict())
    loss_of(model, X[0]).backward()
    kept = model.head.weight.grad
    with engine_for(
        model, tmp_path, monkeypatch=monkeypatch, lr=1e-2, clip=0, optimizer="sgd", momentum=0.9, **little
    ) as engine:
        assert model.head.weight.grad is kept and model.towers[1].weight.grad is None
        optimizer = torch.optim.SGD(plain.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1)
        pair = (plain, optimizer), (engine, engine.optimizer)
        for trained, with_it in pair:
            for n in range(3):
                loss_of(trained, X[n], 1).backward()
                with_it.step()
                with_it.zero_grad()
        same(pair)


def test_a_gradient_as_a_leaf(pair):
    """p.grad itself does not get requires_grad by it."""
    for model, _ in pair:
        loss_of(model, X[0]).backward()
        p = next(iter(model.parameters()))
        leaf = p.grad.detach().requires_grad_()
        leaf.square().sum().backward()
        torch.testing.assert_close(leaf.grad, 2 * leaf.detach() + 0)
        assert not p.grad.requires_grad


def test_a_function_that_works_in_place(pair):
    for model, optimizer in pair:
        loss_of(model, X[0]).backward()
        torch.nn.init.normal_([*model.parameters()][4].grad, generator=torch.Generator().manual_seed(3))
        torch.nn.functional.dropout(next(iter(model.parameters())).grad, 1.0, inplace=True)
        optimizer.step()
        optimizer.zero_grad()
    same(pair)


def test_a_pass_that_fails_half_way(pair):
    """What it has left is not shown, so no step is made of it; zero_grad() begins anew."""

    def broken(gradient):
        raise ValueError("half way")

    engine, optimizer = pair[1]
    for x in X[:2]:
        handle = engine.module.towers[0].weight.register_hook(broken)
        with pytest.raises(ValueError, match="half way"):
            loss_of(engine, x).backward()
        handle.remove()
        with pytest.raises(longshore.LongshoreError, match="interrupted its last backward pass.*zero_grad"):
            optimizer.step()
        for model, o in pair:
            o.zero_grad()
            loss_of(model, x).backward()
            o.step()
        same(pair)
