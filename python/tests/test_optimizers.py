"""Which optimizer a script asks for, and its state: with the numbers of torch.optim, or refused by name."""

import copy
import functools
import io

import pytest
import torch
from torch import nn

import longshore

BATCHES = [torch.randn(8, 16, generator=torch.Generator().manual_seed(i)) for i in range(10)]


def made(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(16, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), nn.Linear(16, 4)
    )


def steps(model, optimizer, batches, scheduler=None):
    """A loop of PyTorch, whoever the optimizer is of."""
    losses = []
    for batch in batches:
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def same(model, expected, rel=2e-5):
    for (name, p), q in zip(model.named_parameters(), expected.parameters()):
        assert torch.allclose(p.detach() + 0, q, rtol=rel, atol=1e-6), name


def two_groups(kind, **numbers):
    """An optimizer of the first layer at another rate than the rest."""

    def make(model):
        first, *rest = list(model.children())
        return kind(
            [{"params": list(first.parameters()), "lr": 3e-3}, {"params": [p for m in rest for p in m.parameters()]}],
            **numbers,
        )

    return make


OPTIMIZERS = {
    "AdamW": two_groups(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, betas=(0.8, 0.9)),
    "Adam": two_groups(torch.optim.Adam, lr=1e-2, weight_decay=0.1, eps=1e-4),
    "Adam, decoupled": lambda model: torch.optim.Adam(
        model.parameters(), lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True
    ),
    "SGD": two_groups(torch.optim.SGD, lr=1e-1),
    "SGD, momentum": two_groups(torch.optim.SGD, lr=1e-1, momentum=0.9, weight_decay=0.01),
    "SGD, momentum of a group": lambda model: torch.optim.SGD(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "momentum": 0.9},
            {"params": [p for p in model.parameters() if p.ndim == 1]},
        ],
        lr=1e-1,
    ),
    "Adagrad": two_groups(torch.optim.Adagrad, lr=1e-2),
    "Adagrad, that begins with a sum": two_groups(torch.optim.Adagrad, lr=1e-2, initial_accumulator_value=0.5),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 2])
def test_one_that_is_given_is_taken_with_its_groups_and_its_state(kind, before, tmp_path, seed):
    model = made()
    optimizer = OPTIMIZERS[kind](model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    plain = made()
    expected = OPTIMIZERS[kind](plain)
    steps(model, optimizer, BATCHES[:before], scheduler)
    schedule = torch.optim.lr_scheduler.ExponentialLR(expected, 0.8)
    steps(plain, expected, BATCHES[:before], schedule)
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=optimizer) as engine:
        assert engine.step_number == 0
        told = steps(engine, optimizer, BATCHES[before:5], scheduler)  # the script as it was
        assert told == pytest.approx(steps(plain, expected, BATCHES[before:5], schedule), rel=1e-5)
        assert engine.step_number == 5 - before and scheduler.get_last_lr() == schedule.get_last_lr()
        same(model, plain)
    with longshore.resume(tmp_path / "run", made) as engine:
        assert steps(engine, engine.optimizer, BATCHES[5:7]) == pytest.approx(
            steps(plain, expected, BATCHES[5:7]), rel=1e-5
        )


@pytest.mark.parametrize(
    "kind, numbers",
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (functools.partial(torch.optim.AdamW, lr=1e-2), {}),
        (torch.optim.Adagrad, {}),
        (lambda parameters: torch.optim.Adam(parameters, lr=1e-2), {}),
    ],
    ids=["SGD", "AdamW", "Adagrad", "Adam"],
)
def test_what_makes_an_optimizer_gives_its_own_numbers(kind, numbers, tmp_path, seed):
    model, plain = made(), made()
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=kind, **numbers) as engine:
        expected = steps(plain, kind(plain.parameters(), **numbers), BATCHES[:4])
        assert steps(engine, engine.optimizer, BATCHES[:4]) == pytest.approx(expected, rel=1e-5)


class Own(torch.optim.AdamW):
    def step(self, closure=None):
        return None


def of_another_model(model):
    return torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.zeros(3, 5))])


def with_a_hook(model):
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *args: None)
    return optimizer


REFUSED = {
    "amsgrad=True": lambda model: torch.optim.AdamW(model.parameters(), amsgrad=True),
    "maximize=True": lambda model: torch.optim.Adam(model.parameters(), maximize=True),
    "nesterov=True": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "dampening=0.5": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
    "lr_decay=0.1": lambda model: torch.optim.Adagrad(model.parameters(), lr_decay=0.1),
    "RMSprop is not supported; torch.optim's AdamW, Adam, SGD and Adagrad": lambda model: torch.optim.RMSprop(
        model.parameters()
    ),
    "Own has a step.. of its own": lambda model: Own(model.parameters()),
    "hooks of AdamW's step": with_a_hook,
    r"wrap: groups\[0\] has a parameter of shape \[3, 5\] that is not the model's": of_another_model,
}


@pytest.mark.parametrize("said", REFUSED)
def test_one_that_the_engine_does_not_have_is_refused_by_name(said, tmp_path, seed):
    model = made()
    with pytest.raises((longshore.LongshoreError, ValueError), match=said):
        longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=REFUSED[said](model))
    assert not (tmp_path / "run").exists()


def test_numbers_beside_an_optimizer_are_refused(tmp_path, seed):
    model = made()
    for more in ({"lr": 1e-3}, {"weight_decay": 0.01}, {"groups": list(model.parameters())}):
        with pytest.raises(ValueError, match=f"wrap: {next(iter(more))}: the optimizer that was given says it"):
            longshore.wrap(
                model, run=tmp_path / "run", memory="64MiB", optimizer=torch.optim.AdamW(model.parameters()), **more
            )
    with pytest.raises(ValueError, match="wrap: optimizer='unheardof'"):
        longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer="unheardof")


def test_momentum_that_the_run_has_no_room_for(tmp_path, seed):
    model = made()
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer="sgd", lr=0.1) as engine:
        engine.optimizer.param_groups[0]["momentum"] = 0.9
        with pytest.raises(longshore.LongshoreError, match="momentum was 0 in all groups"):
            steps(engine, engine.optimizer, BATCHES[:1])


# ---- its state


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("whose", ["ours", "torch's"])
def test_the_checkpoint_of_an_ordinary_loop(kind, whose, tmp_path, seed, monkeypatch):
    # so that these small ones go through files, too
    monkeypatch.setattr(longshore.step.optimizer_state, "_IN_MEMORY", 100)
    plain = made()
    expected = OPTIMIZERS[kind](plain)
    steps(plain, expected, BATCHES[:3])
    if whose == "ours":
        model = made()
        with longshore.wrap(model, run=tmp_path / "first", memory="64MiB", optimizer=OPTIMIZERS[kind](model)) as engine:
            steps(engine, engine.optimizer, BATCHES[:3])
            saved = through_a_file({"model": model.state_dict(), "optimizer": engine.optimizer.state_dict()})
        theirs, ours = expected.state_dict()["state"], saved["optimizer"]["state"]
        assert {i: entry.keys() for i, entry in ours.items()} == {i: entry.keys() for i, entry in theirs.items()}
        for i, entry in theirs.items():
            for key, value in entry.items():
                assert torch.allclose(ours[i][key], torch.as_tensor(value), rtol=1e-4, atol=1e-7), (i, key)
        again = OPTIMIZERS[kind](other := made(5))  # and PyTorch goes on with it
        other.load_state_dict(saved["model"])
        again.load_state_dict(copy.deepcopy(saved["optimizer"]))  # which PyTorch goes on writing into
        twin = copy.deepcopy(plain)
        assert steps(other, again, BATCHES[3:6]) == pytest.approx(
            steps(twin, _of(expected, twin, kind), BATCHES[3:6]), rel=1e-4
        )
    else:
        saved = through_a_file({"model": plain.state_dict(), "optimizer": expected.state_dict()})
    model = made(7)
    model.load_state_dict(saved["model"])
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=OPTIMIZERS[kind](model)) as engine:
        before = engine.step_number
        engine.optimizer.load_state_dict(saved["optimizer"])
        assert engine.step_number == before + bool(saved["optimizer"]["state"])
        told = steps(engine, engine.optimizer, BATCHES[3:5])
    with longshore.resume(tmp_path / "run", made) as engine:
        told += steps(engine, engine.optimizer, BATCHES[5:])
        assert told == pytest.approx(steps(plain, expected, BATCHES[3:]), rel=1e-4)
        same(engine.module, plain, 1e-4)


def _of(optimizer, model, kind):
    """A copy of an optimizer, of a copy of its model."""
    out = OPTIMIZERS[kind](model)
    out.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return out


class Wide(nn.Module):
    """Blocks of several tensors, of which some span segments and end within them; a layer that is frozen, and a weight
    that is seldom used."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(300, 300) for _ in range(3))
        self.seldom = nn.Parameter(torch.ones(300))
        self.layers[1].requires_grad_(False)

    def forward(self, x, uses=False):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x * self.seldom if uses else x


def test_each_tensor_has_its_own_moments_and_count(tmp_path, seed):
    torch.manual_seed(seed)
    model = Wide()
    plain, x = copy.deepcopy(model), torch.randn(4, 300)
    expected = torch.optim.AdamW(plain.parameters(), lr=1e-3)

    def go(model, optimizer, numbers):
        for i in numbers:
            model(x * (i + 1), i % 2 == 0).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    go(plain, expected, range(3))
    with longshore.wrap(
        model, run=tmp_path / "run", memory="64MiB", optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3)
    ) as engine:
        go(engine, engine.optimizer, range(1))
        with longshore.resident(model, write=True):
            model.load_state_dict(plain.state_dict())
        engine.optimizer.load_state_dict(expected.state_dict())
        state = engine.optimizer.state
        assert (
            len(state) == 5
            and model.layers[1].weight not in state
            and [float(e["step"]) for e in state.values()] == [2, 3, 3, 3, 3]
        )
        go(plain, expected, range(3, 6))
        go(engine, engine.optimizer, range(3, 6))
        for p, q in zip(model.parameters(), plain.parameters()):
            assert torch.allclose(p.detach() + 0, q, atol=1e-6)
            if p.requires_grad:
                for key, value in expected.state[q].items():
                    assert (engine.optimizer.state[p][key] - value).norm() <= 1e-4 * value.norm(), key


def test_what_is_loaded_as_it_is_costs_no_step(tmp_path, seed):
    """Accelerate moves a state to the device that it is on."""
    with longshore.wrap(made(), run=tmp_path / "run", memory="64MiB") as engine:
        optimizer = engine.optimizer
        optimizer.load_state_dict(optimizer.state_dict())
        steps(engine, optimizer, BATCHES[:2])
        state = optimizer.state_dict()
        moved = {i: {k: v.to("cpu") for k, v in entry.items()} for i, entry in state["state"].items()}
        optimizer.load_state_dict({**state, "state": moved})
        for entry in optimizer.state.values():  # and so does Lightning
            for key in entry:
                entry[key] = entry[key].to("cpu")
        assert engine.step_number == 2
        state["param_groups"][0]["lr"] = 0.5
        optimizer.load_state_dict(state)
        assert engine.step_number == 2 and optimizer.param_groups[0]["lr"] == 0.5
        optimizer.load_state_dict({**state, "state": {}})
        assert engine.step_number == 3 and not len(optimizer.state)
        assert not any(longshore.step.parameter_state.read(p, "v").any() for p in engine.module.parameters())


def test_the_state_is_no_place_to_keep_something_in(tmp_path, seed):
    with longshore.wrap(made(), run=tmp_path / "run", memory="64MiB") as engine:
        optimizer, p = engine.optimizer, engine.module[0].weight
        assert p not in optimizer.state and not optimizer.state_dict()["state"]
        steps(engine, optimizer, BATCHES[:1])
        entry = optimizer.state[p]
        kept, early = copy.deepcopy(optimizer.state_dict()), optimizer.state_dict()
        refused = pytest.raises(longshore.LongshoreError, match="load_state_dict")
        for change in (
            lambda: entry["exp_avg"].zero_(),
            lambda: entry["exp_avg"][0].mul_(2),
            lambda: entry.update(exp_avg=1),
            lambda: entry.__setitem__("exp_avg", torch.zeros(16, 16)),
            lambda: optimizer.state.clear(),
            lambda: optimizer.state.__setitem__(p, {"mine": torch.zeros(1)}),
            lambda: setattr(optimizer, "state", {}),
        ):
            with refused:
                change()
        assert entry["exp_avg"].shape == p.shape and torch.equal(
            entry["exp_avg"] * 2, longshore.step.parameter_state.read(p, "m") * 2
        )
        value = longshore.step.parameter_state.read(p, "m")
        assert [
            torch.equal(e["exp_avg"], value) for q, e in copy.deepcopy(optimizer.state).items() if q.shape == (16, 16)
        ][0]
        assert (
            torch.equal(torch.utils.dlpack.from_dlpack(entry["exp_avg"]), value)
            and entry["exp_avg"].data_ptr() == entry["exp_avg"].data_ptr()
        )
        assert entry["exp_avg"].tolist() == value.tolist() and (entry["exp_avg"].numpy() == value.numpy()).all()
        steps(engine, optimizer, BATCHES[1:2])
        with pytest.raises(longshore.LongshoreError, match="of step 1, and the engine is at step 2"):
            early["state"][0]["exp_avg"].sum()
        assert torch.equal(kept["state"][0]["exp_avg"], value)
        optimizer.load_state_dict(kept)
        assert torch.equal(longshore.step.parameter_state.read(p, "m"), value)
    with pytest.raises(longshore.LongshoreError, match="closed"):
        optimizer.state_dict()


def test_an_optimizer_that_is_followed_commits_once(tmp_path, seed):
    model, plain = made(), made()
    expected = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=optimizer) as engine:
        assert engine.follow("optimizer", optimizer) is optimizer
        told = steps(engine, optimizer, BATCHES[:3])
    with longshore.resume(tmp_path / "run", made) as engine:
        engine.follow("optimizer", engine.optimizer)
        assert engine.step_number == 3
        told += steps(engine, engine.optimizer, BATCHES[3:5])
    assert told == pytest.approx(steps(plain, expected, BATCHES[:5]), rel=1e-5)


def test_a_state_that_there_is_no_room_for_is_named(tmp_path, seed, monkeypatch):
    with longshore.wrap(Wide(), run=tmp_path / "run", memory="64MiB") as engine:
        engine(torch.ones(2, 300)).sum().backward()
        engine.optimizer.step()

        class Full(io.BytesIO):
            def write(self, piece):
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(longshore.step.optimizer_state.tempfile, "TemporaryFile", lambda **how: Full())
        with pytest.raises(
            longshore.LongshoreError, match="351.56 KiB of layers.0.weight now: No space left on device; make room"
        ):
            through_a_file(engine.optimizer.state_dict())


def test_states_that_do_not_fit_are_refused(tmp_path, seed):
    plain = made()

    def state_of(make):
        steps(plain, optimizer := make(plain.parameters()), BATCHES[:1])
        return optimizer.state_dict()

    right = state_of(torch.optim.AdamW)
    with longshore.wrap(made(), run=tmp_path / "run", memory="64MiB") as engine:
        steps(engine, engine.optimizer, BATCHES[:1])
        digest = engine.digest()

        def refused(match, state, kind=(longshore.LongshoreError, ValueError)):
            with pytest.raises(kind, match=match):
                engine.optimizer.load_state_dict(state)
            assert engine.digest() == digest and engine.optimizer.param_groups[0]["lr"] == 1e-3

        def changed(**more):
            return {
                **right,
                "state": {**right["state"], 2: {**right["state"][2], **more}},
                "param_groups": [{**right["param_groups"][0], "lr": 0.5}],
            }

        refused("amsgrad=True", state_of(lambda p: torch.optim.AdamW(p, amsgrad=True)))
        refused(
            "'momentum_buffer' is not a state of adamw, which has exp_avg",
            state_of(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        )
        refused("decoupled_weight_decay", state_of(lambda p: torch.optim.Adam(p, weight_decay=0.1)))
        refused(
            "groups of .1, 7. parameters",
            state_of(lambda p: torch.optim.AdamW([{"params": [next(p := iter(list(p)))]}, {"params": list(p)}])),
        )
        refused("2.0.weight: has no exp_avg_sq", changed(exp_avg_sq=None))
        refused("2.0.weight: is of shape .3. there", changed(exp_avg=torch.zeros(3)))
        refused("2.0.weight: step 0.5", changed(step=torch.tensor(0.5)))
        refused("2.0.weight: holds a value that is not finite", changed(exp_avg=torch.full((16, 16), torch.inf)))
        refused(r"state\[99\] is of no parameter", {**right, "state": {99: right["state"][0]}})
        engine(BATCHES[0]).pow(2).mean().backward()
        with pytest.raises(longshore.LongshoreError, match="load before backward.. or after step"):
            engine.optimizer.load_state_dict(right)
        engine.optimizer.zero_grad()
        engine.optimizer.load_state_dict(right)


# ---- the model's


class Around(nn.Module):
    """What has the model as a part, as a LightningModule does."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.scale = model, nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("how", [{}, {"storage": "bf16"}, {"memory": "64MiB"}], ids=str)
def test_load_state_dict_of_the_model_a_part_or_what_is_around_it(how, tmp_path, seed):
    torch.manual_seed(seed)
    model, plain = Wide(), Wide()
    other = {name: value + 0.5 for name, value in plain.state_dict().items()}
    with longshore.wrap(model, run=tmp_path / "run", **{"memory": "16MiB", **how}) as engine:

        def agrees(expected, step):
            assert engine.step_number == step
            for name, value in expected.items():
                assert torch.allclose(
                    model.get_parameter(name).detach() + 0, value, rtol=2**-8 if "storage" in how else 0, atol=0
                ), name

        before = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(plain.state_dict())
        agrees(plain.state_dict(), 1)
        model.layers[2].load_state_dict({"weight": other["layers.2.weight"]}, strict=False)
        agrees({**plain.state_dict(), "layers.2.weight": other["layers.2.weight"]}, 2)
        around = Around(model)
        around.load_state_dict({**{f"inner.{name}": value for name, value in other.items()}, "scale": torch.zeros(3)})
        agrees(other, 3)
        assert not around.scale.any()
        assert engine.load_state_dict(through_a_file(before)) is not None
        agrees(before, 4)
        model.load_state_dict(model.state_dict())
        agrees(before, 5)
        digest = engine.digest()
        for wrong, said in (
            ({**other, "layers.0.bias": torch.zeros(3)}, "size mismatch for layers.0.bias"),
            ({**other, "seldom": torch.full((300,), torch.nan)}, "seldom: holds a value"),
        ):
            with pytest.raises((RuntimeError, longshore.NotFiniteError), match=said):
                model.load_state_dict(wrong)
            assert engine.digest() == digest
        with pytest.raises(longshore.AbsentParameterError, match="without assign=True"):
            model.load_state_dict(other, assign=True)
        with pytest.raises(longshore.AbsentParameterError, match="seldom"), torch.no_grad():
            model.seldom.copy_(other["seldom"])
        engine(torch.ones(2, 300), True).sum().backward()
        with pytest.raises(longshore.LongshoreError, match="before backward.. or after step"):
            model.load_state_dict(other)
        engine.optimizer.zero_grad()
    with longshore.resume(tmp_path / "run", Wide) as engine:
        model = engine.module
        agrees(before, 5)


def test_lightning_goes_on_from_its_checkpoints(tmp_path, seed):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, model, engine):
            super().__init__()
            self.model, self.__dict__["engine"], self.told = model, engine, []

        def training_step(self, batch, _):
            loss = (self.engine or self.model)(batch).pow(2).mean()
            self.told.append(float(loss.detach()))
            return loss

        def configure_optimizers(self):
            optimizer = self.engine.optimizer if self.engine else torch.optim.AdamW(self.model.parameters(), lr=1e-2)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)}

    def part(ours, steps, path):
        model, saved = made(), tmp_path / f"{ours} {steps}"
        engine = longshore.wrap(model, run=saved / "run", memory="64MiB", lr=1e-2) if ours else None
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module(model, engine)
        trainer.fit(module, torch.utils.data.DataLoader(BATCHES[:6], batch_size=None), ckpt_path=path)
        trainer.save_checkpoint(saved / "it.ckpt")
        if engine:
            engine.close()
        return module.told, saved / "it.ckpt"

    told = []
    for ours in (False, True):
        first, path = part(ours, 3, None)
        told.append(first + part(ours, 6, path)[0])
    assert len(told[0]) == 6 and told[1] == pytest.approx(told[0], rel=1e-4)


def test_accelerate_goes_on_from_its_checkpoints(tmp_path, seed):
    accelerate = pytest.importorskip("accelerate")
    told = []
    for ours in (False, True):
        losses = []
        for stage in (0, 1):
            accelerator, model = accelerate.Accelerator(cpu=True), made(stage)
            engine = longshore.wrap(model, run=tmp_path / f"run{stage}", memory="64MiB", lr=1e-2) if ours else None
            optimizer = engine.optimizer if ours else torch.optim.AdamW(model.parameters(), lr=1e-2)
            prepared = accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7))
            if stage:
                accelerator.load_state(tmp_path / f"saved {ours}")
            losses += steps(*prepared[:2], BATCHES[3 * stage : 3 * stage + 3], prepared[2])
            if not stage:
                accelerator.save_state(tmp_path / f"saved {ours}")
            if ours:
                engine.close()
        told.append(losses)
    assert told[1] == pytest.approx(told[0], rel=1e-5)
