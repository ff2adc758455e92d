"""A script edits optimizer.param_groups: each step uses them as torch.optim would, or is refused by name."""

import math

import pytest
import torch
from torch import nn

import longshore

EDITED = torch.randn(9, 4, 200, generator=torch.Generator().manual_seed(2))


class Wide(nn.Module):
    """Layers that take turns in little memory."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(200, 200) for _ in range(6)])
        self.head = nn.Linear(200, 4)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def wide():
    torch.manual_seed(0)
    return Wide()


def three(kind, **numbers):
    """An optimizer of three groups with rates of their own."""

    def make(model):
        parts = model.layers[:2], model.layers[2:4], nn.ModuleList([*model.layers[4:], model.head])
        return kind(
            [{"params": [*part.parameters()], "lr": rate} for part, rate in zip(parts, (1e-3, 3e-3, 2e-3))], **numbers
        )

    return make


KINDS = {
    "AdamW": three(torch.optim.AdamW, weight_decay=0.1, eps=1e-4),
    "Adam": three(torch.optim.Adam, weight_decay=0.01, betas=(0.8, 0.95), eps=1e-4),
    "SGD": three(torch.optim.SGD, momentum=0.9, weight_decay=0.01),
    "Adagrad": three(torch.optim.Adagrad),
}


def as_they_are(optimizer, model, i):
    pass


def taken_out_and_put_back(optimizer, model, i):
    if i == 2:
        optimizer.kept = optimizer.param_groups.pop(1)
    if i == 5:
        optimizer.param_groups.insert(0, optimizer.kept)


def taken_out_and_added(optimizer, model, i):
    if i == 2:
        optimizer.kept = optimizer.param_groups.pop(0)
    if i == 5:
        optimizer.add_param_group({"params": optimizer.kept["params"], "lr": 5e-3})


def filtered(optimizer, model, i):
    group = optimizer.param_groups[0]
    if i == 2:
        optimizer.kept, group["params"] = group["params"], [p for p in group["params"] if p.ndim > 1]
    if i == 5:
        group["params"] = optimizer.kept


def by_turns(optimizer, model, i):  # as LISA does
    first, second, last = optimizer.param_groups
    first["params"], last["params"] = [], [*model.head.parameters()]
    second["params"] = [*model.layers[i % 6].parameters()]


def rotated(optimizer, model, i):
    optimizer.param_groups.append(optimizer.param_groups.pop(0))


def merged(optimizer, model, i):
    if i == 3:
        optimizer.param_groups[0]["params"] += optimizer.param_groups[1]["params"]
        del optimizer.param_groups[1]


def another_list(optimizer, model, i):
    if i == 3:
        optimizer.param_groups = [dict(group, lr=group["lr"] / 2) for group in reversed(optimizer.param_groups)]


def without_any(optimizer, model, i):
    if i == 3:
        optimizer.kept = [*optimizer.param_groups]
        optimizer.param_groups.clear()
    if i == 6:
        optimizer.param_groups.extend(optimizer.kept)


def other_numbers(optimizer, model, i):
    for group in optimizer.param_groups[:2]:
        if "momentum" in group:  # which leaves the buffer where it is 0
            group["momentum"] = (0.9, 0, 0, 0.5, 0.9, 0, 0, 0.9, 0.9)[i]
        if "betas" in group:
            group["betas"] = [(0.9, 0.99), (0.5, 0.9), (0.0, 0.999)][i % 3]
        group.update(weight_decay=0.01 * i, foreach=bool(i % 2), mine="the script's own")
    optimizer.param_groups[2]["lr"] = torch.tensor(1e-3 * i)


EDITS = [
    taken_out_and_put_back,
    taken_out_and_added,
    filtered,
    by_turns,
    rotated,
    merged,
    another_list,
    without_any,
    other_numbers,
]


def train(call, model, optimizer, edit, first=0, last=9):
    losses = []
    for i in range(first, last):
        edit(optimizer, model, i)
        loss = (call(EDITED[i]) - 1).square().mean()
        loss.backward()
        optimizer.step()
        call.zero_grad()
        losses.append(loss.item())
    return losses


def numbers_of(optimizer, model):
    """The groups with names instead of parameters."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [
        {
            k: [names[id(p)] for p in v] if k == "params" else float(v) if isinstance(v, torch.Tensor) else v
            for k, v in group.items()
        }
        for group in optimizer.param_groups
    ]


@pytest.mark.parametrize(
    "kind, edit",
    [
        *((kind, edit) for kind in ("AdamW", "SGD") for edit in EDITS),
        *((kind, edit) for kind in ("Adam", "Adagrad") for edit in (taken_out_and_added, other_numbers)),
    ],
    ids=lambda edit: getattr(edit, "__name__", edit),
)
def test_edited_groups_train_as_in_torch(kind, edit, tmp_path):
    plain = wide()
    expected = KINDS[kind](plain)
    losses = train(plain, plain, expected, edit)
    for memory, is_given in (("64MiB", True), ("6500KiB", False)):
        model = wide()
        given = KINDS[kind](model)
        with longshore.wrap(model, run=tmp_path / memory, memory=memory, optimizer=given) as engine:
            optimizer = given if is_given else engine.optimizer
            assert train(engine, model, optimizer, edit) == pytest.approx(losses, rel=3e-5), memory
            # also the keys, of which torch.optim's own object gets none of another optimizer
            assert numbers_of(engine.optimizer, model) == numbers_of(given, model) == numbers_of(expected, plain)
            assert optimizer.param_groups is engine.optimizer.param_groups


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_a_resumed_run_has_them_as_they_were(edit, tmp_path):
    plain, model = wide(), wide()
    expected, optimizer = KINDS["SGD"](plain), KINDS["SGD"](model)
    losses = train(plain, plain, expected, edit)
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=optimizer) as engine:
        told = train(engine, model, optimizer, edit, 0, 5)
        before = numbers_of(optimizer, model)
        kept = getattr(optimizer, "kept", None)
        names = {id(p): name for name, p in model.named_parameters()}

    with longshore.resume(tmp_path / "run", Wide) as engine:
        kept_groups = [{k: v for k, v in group.items() if k != "foreach"} for group in before]
        assert [
            {k: v for k, v in group.items() if k != "foreach"} for group in numbers_of(engine.optimizer, engine.module)
        ] == kept_groups
        if kept is not None:  # what the script keeps beside the groups is its own to make again

            def again(value):
                if isinstance(value, torch.Tensor):
                    return engine.module.get_parameter(names[id(value)]) if id(value) in names else value
                if isinstance(value, dict):
                    return {k: again(v) for k, v in value.items()}
                return [again(v) for v in value] if isinstance(value, list) else value

            engine.optimizer.kept = again(kept)
        told += train(engine, engine.module, engine.optimizer, edit, 5)
        assert told == pytest.approx(losses, rel=3e-5)


def test_a_checkpoint_has_them_as_they_were(tmp_path):
    """A rollback undoes edits, too."""
    model = wide()
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=KINDS["AdamW"](model)) as engine:
        optimizer = engine.optimizer
        train(engine, model, optimizer, merged, 0, 2)
        before = numbers_of(optimizer, model)
        engine.snapshot("before")
        told = train(engine, model, optimizer, merged, 2)
        engine.reopen(tmp_path / "run", "before")
        assert numbers_of(optimizer, model) == before
        assert train(engine, model, optimizer, merged, 2) == told


@pytest.mark.parametrize("clip", ["wrap", "torch"])
def test_what_no_group_has_is_in_the_norm_of_all_gradients(clip, tmp_path):
    plain, model = wide(), wide()
    expected, optimizer = KINDS["AdamW"](plain), KINDS["AdamW"](model)
    del expected.param_groups[1], optimizer.param_groups[1]
    norms, told = [], []
    for batch in EDITED:
        (plain(batch) - 1).square().mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(plain.parameters(), 0.5)))
        expected.step()
        plain.zero_grad()
    with longshore.wrap(
        model,
        run=tmp_path / "run",
        memory="64MiB",
        groups=optimizer.param_groups,
        weight_decay=0.1,
        clip=0.5 * (clip == "wrap"),
    ) as engine:
        for batch in EDITED:
            (engine(batch) - 1).square().mean().backward()
            if clip == "torch":
                told.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
                engine.optimizer.step()
                engine.zero_grad()
            else:
                told.append(engine.step().grad_norm)
    assert told == pytest.approx(norms, rel=1e-5)


def test_what_cannot_be_honoured_is_refused_before_the_step(tmp_path):
    model, foreign = wide(), nn.Parameter(torch.zeros(3, 5))
    model.layers[1].requires_grad_(False)
    twice, frozen = model.layers[2].weight, model.layers[1].weight
    given = KINDS["AdamW"](model)
    given.param_groups[0]["params"] = [*model.layers[0].parameters()]
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=given) as engine:
        optimizer = engine.optimizer
        (engine(EDITED[0]) - 1).square().mean().backward()
        first = optimizer.param_groups[0]
        for change, match in (
            (lambda group: group["params"].append(twice), "layers.2.weight is in the groups twice"),
            (lambda group: group["params"].append(foreign), "an optimizer of their own"),
            (lambda group: group.update(params=(p for p in [])), '"params" must be a list'),
            (lambda group: group.update(lr=math.nan), r"param_groups\[0\]\.lr=nan"),
            (lambda group: group.update(lr="0.1"), r"param_groups\[0\]\.lr='0\.1'"),
            (lambda group: group.update(betas=(0.9, torch.tensor(math.inf))), r"param_groups\[0\]\.betas="),
            (lambda group: group.pop("lr"), r"param_groups\[0\] has no 'lr'; optimizer.add_param_group"),
            *(
                (lambda group, key=key: group.update({key: True}), rf"param_groups\[0\]\.{key}=True is not supported")
                for key in ("amsgrad", "maximize", "differentiable")
            ),
            (lambda group: group.update(decoupled_weight_decay=False), "decoupled_weight_decay=False"),
        ):
            kept = {**first, "params": [*first["params"]]}
            change(first)
            with pytest.raises(longshore.LongshoreError, match=match):
                optimizer.step()
            first.clear()
            first.update(kept)
        with pytest.raises(longshore.LongshoreError, match="layers.1.weight is frozen in this run.*train at wrap"):
            optimizer.add_param_group({"params": [frozen]})
        with pytest.raises(longshore.LongshoreError, match="an optimizer of their own"):
            optimizer.add_param_group({"params": [foreign]})
        with pytest.raises(ValueError, match="more than one parameter group"):  # torch.optim's own sentence
            optimizer.add_param_group({"params": [twice]})
        assert len(optimizer.param_groups) == 3
        optimizer.step()  # with the gradients that were there
        assert engine.step_number == 1


@pytest.mark.parametrize("key, value", [("nesterov", True), ("dampening", 0.5), ("maximize", True)])
def test_other_kinds_of_sgd_are_refused(key, value, tmp_path):
    model = wide()
    with longshore.wrap(model, run=tmp_path / "run", memory="64MiB", optimizer=KINDS["SGD"](model)) as engine:
        engine.optimizer.param_groups[1][key] = value
        (engine(EDITED[0]) - 1).square().mean().backward()
        with pytest.raises(longshore.LongshoreError, match=rf"param_groups\[1\]\.{key}={value} is not supported"):
            engine.optimizer.step()


# ---- schedules


def scheduled(schedule):
    def edit(optimizer, model, i):
        if i == 0:
            optimizer.schedule = schedule(optimizer)
        elif isinstance(optimizer.schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            optimizer.schedule.step(math.sin(i))
        else:
            optimizer.schedule.step()

    return edit


LR = torch.optim.lr_scheduler
SCHEDULES = {
    "OneCycleLR": lambda o: LR.OneCycleLR(o, max_lr=[2e-3, 3e-3, 4e-3], total_steps=20),
    "CyclicLR": lambda o: LR.CyclicLR(o, base_lr=1e-4, max_lr=3e-3, step_size_up=3, cycle_momentum=True),
    "CosineAnnealingLR": lambda o: LR.CosineAnnealingLR(o, 9),
    "LambdaLR": lambda o: LR.LambdaLR(o, [lambda i: 1 / (i + 1), lambda i: 0.5, lambda i: 0.9**i]),
    "SequentialLR": lambda o: LR.SequentialLR(o, [LR.LinearLR(o, 0.1, total_iters=3), LR.ExponentialLR(o, 0.8)], [3]),
    "ReduceLROnPlateau": lambda o: LR.ReduceLROnPlateau(o, patience=1),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
def test_schedules_have_the_numbers_that_torch_gives_them(kind, name, tmp_path):
    """OneCycleLR and CyclicLR look into the defaults for what they cycle."""
    edit, plain = scheduled(SCHEDULES[name]), wide()
    expected = KINDS[kind](plain)
    try:
        losses = train(plain, plain, expected, edit)
    except (ValueError, KeyError) as said:  # Adagrad has no momentum to cycle
        losses = said
    assert isinstance(losses, list) or (kind == "Adagrad" and name in ("OneCycleLR", "CyclicLR"))
    for memory, is_given in (("64MiB", True), ("6500KiB", False)):
        model = wide()
        given = KINDS[kind](model)
        with longshore.wrap(model, run=tmp_path / memory, memory=memory, optimizer=given) as engine:
            optimizer = given if is_given else engine.optimizer
            if not isinstance(losses, list):
                with pytest.raises(type(losses)) as error:
                    train(engine, model, optimizer, edit)
                assert str(error.value) == str(losses)
                continue
            assert train(engine, model, optimizer, edit) == pytest.approx(losses, rel=3e-5), memory
            assert numbers_of(optimizer, model) == numbers_of(expected, plain)
