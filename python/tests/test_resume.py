"""Runs go on with the same bits, random states, buffers and groups among them."""

import json
import random
import shutil

import numpy
import pytest
import torch

import longshore
from longshore.run import wrap
from longshore.step import commit_blob
from models import Cnn, gpt2, tokens
from test_loop import engine_for
from test_program import steps


def test_a_model_that_needs_values_to_be_made(tmp_path, seed):
    def make():
        return torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(8, 8))

    x = torch.randn(2, 8)
    with longshore.wrap(make(), run=tmp_path / "run") as engine, torch.no_grad():
        expected = engine(x)
    with pytest.raises(
        longshore.LongshoreError, match="run: the model cannot be made without values .*give resume.. the module itself"
    ):
        longshore.resume(tmp_path / "run", make)
    with longshore.resume(tmp_path / "run", make()) as engine, torch.no_grad():
        assert torch.equal(engine(x), expected)


def two_steps(engine, x):
    for _ in range(2):
        engine.backward(engine(x).square().mean())
        engine.step()
    return engine.digest()


@pytest.mark.parametrize("first", [2**63 - 1, 2**63, 2**64 - 1, -(2**63)])
def test_a_run_that_was_killed_before_its_first_step(first, tmp_path, seed):
    """Whatever PyTorch was seeded with: a script without manual_seed() has 64 bits."""

    def model():
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8))

    digests, x = [], torch.randn(4, 8)
    for n in range(3):
        torch.manual_seed(first)
        engine = engine_for(model(), tmp_path, f"run{n}")
        if n:
            engine.close()
            path = tmp_path / f"run{n}" / "run.json"
            said = json.loads(path.read_text())
            if n == 2:  # as it was written before numbers beyond 63 bits were text
                said["program"]["engine"]["seed"] = float(first % 2**64) if first % 2**64 >= 2**63 else first
                del said["checksum"]
                path.write_text(json.dumps(said))
            torch.manual_seed(7)
            engine = longshore.resume(tmp_path / f"run{n}", model)
            assert engine._core.cycle.lineage == [first % 2**64, 0]
        digests.append(two_steps(engine, x))
        engine.close()
    assert digests[0] == digests[1] == digests[2]


def test_a_seed_that_is_lost_is_said(tmp_path, seed, caplog):
    torch.manual_seed(2**63 + 1)
    engine_for(torch.nn.Linear(8, 8), tmp_path, "run").close()
    path = tmp_path / "run" / "run.json"
    said = json.loads(path.read_text())
    said["program"]["engine"]["seed"], said["program"]["position"] = 1.7e19, ""
    del said["checksum"]
    path.write_text(json.dumps(said))
    with longshore.resume(tmp_path / "run", lambda: torch.nn.Linear(8, 8)) as engine:
        two_steps(engine, torch.randn(4, 8))
    assert caplog.text.count("run.json has rounded the seed to 1.7e+19") == 1


def test_numbers_of_a_configuration_stay_what_they_are(tmp_path, seed):
    numbers = [10**30, -(2**63) - 1, 2**64, 2**63 - 1, -(2**63), 1e300, float("inf"), True, 0]
    model = torch.nn.Linear(8, 8)
    model.config = type("Config", (), {"to_dict": lambda self: {"numbers": numbers}})()
    with engine_for(model, tmp_path, "run") as engine:
        assert engine._core.state.program["config"]["numbers"] == numbers
        assert [type(n) for n in engine._core.state.program["config"]["numbers"]] == [type(n) for n in numbers]


def test_buffers_groups_and_random_states(tmp_path, seed):
    digests, states = [], []
    for n in range(2):
        torch.manual_seed(seed)
        model = Cnn()
        for b in model.buffers():
            b.add_(1)  # not as they are made
        groups = [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.2},
            {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0, "lr": 5e-3},
        ]
        engine = engine_for(model, tmp_path, f"run{n}", groups=groups)
        for i in range(4):
            if n and i in (0, 2):
                engine.close()
                torch.manual_seed(99)
                engine = longshore.resume(tmp_path / "run1", Cnn)
                engine.train()
            if i == 1:
                engine.optimizer.param_groups[0]["lr"] = 2e-3
            x, y = torch.randn(5, 1, 8, 8), torch.randint(0, 4, (5,))
            engine.backward(torch.nn.functional.cross_entropy(engine(x), y))
            engine.step()
        digests.append(engine.digest())
        states.append({k: v.clone() for k, v in engine.module.named_buffers()})
        engine.close()
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert digests[0] == digests[1]


def test_a_rate_that_is_a_tensor_stays_one(tmp_path, seed):
    """As compiled optimizers want it, with schedulers of PyTorch and of DeepSpeed, and after resume."""
    from longshore.deepspeed.lr_schedules import WarmupCosineLR

    def model():
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))

    kinds = {
        "torch": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
        "deepspeed": lambda o: WarmupCosineLR(o, 8, warmup_num_steps=3),
    }
    for name, kind in kinds.items():
        digests, rates = [], []
        for n, rate in enumerate((1e-2, torch.tensor(1e-2, dtype=torch.float64), torch.tensor([1e-2]))):
            torch.manual_seed(seed)
            new = model()
            groups = (
                [{"params": new[0].parameters()}, {"params": new[1].parameters(), "lr": rate * 2}] if n < 2 else None
            )
            engine = engine_for(new, tmp_path, f"{name}{n}", lr=rate, groups=groups)
            scheduler = engine.follow("scheduler", kind(engine.optimizer))
            for i in range(5):
                if n and i == 3:
                    engine.close()
                    engine = longshore.resume(tmp_path / f"{name}{n}", model)
                    scheduler = engine.follow("scheduler", kind(engine.optimizer))
                before = [g["lr"] for g in engine.optimizer.param_groups]
                engine.backward(engine(torch.ones(3, 4)).square().mean())
                engine.step()
                scheduler.step()
                for group, was in zip(engine.optimizer.param_groups, before):
                    if n:
                        assert group["lr"] is was and was.shape == rate.shape and was.dtype == rate.dtype
            rates.append(float(engine.optimizer.param_groups[0]["lr"]))
            digests.append(engine.digest())
            engine.close()
        assert digests[0] == digests[1] and rates == pytest.approx([rates[0]] * 3)


def test_another_model_is_named(tmp_path, seed):
    engine_for(gpt2(), tmp_path).close()
    with pytest.raises(longshore.LongshoreError, match="transformer.h.2.ln_1.weight is missing"):
        longshore.resume(tmp_path / "run", lambda: gpt2(layers=2))


class Closing(torch.nn.Module):
    """Its first layer is its last one, too, and partly frozen."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        self.layers.append(self.layers[0])
        self.layers[0].weight.requires_grad_(False)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def test_what_is_frozen_under_several_names_stays_so(tmp_path, seed):
    digests, x = [], torch.randn(3, 4)
    for n in range(2):
        torch.manual_seed(seed)
        engine = engine_for(Closing(), tmp_path, f"run{n}")
        for i in range(3):
            if n and i:
                engine.close()
                engine = longshore.resume(tmp_path / "run1", Closing)
                assert not engine.module.layers[0].weight.requires_grad
            engine.backward(engine(x))
            engine.step()
        digests.append(engine.digest())
        engine.close()
    assert digests[0] == digests[1]


def test_a_run_that_was_never_made(tmp_path, seed):
    with longshore.init(tmp_path / "run"):
        Cnn()
    with pytest.raises(
        longshore.MissingError, match="is not a run: there is nothing of that name; longshore.wrap.. makes one"
    ):
        longshore.resume(tmp_path / "run", Cnn)


def test_a_second_engine_is_refused(tmp_path, seed):
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with engine_for(gpt2(), tmp_path):
        for name in ("run", "link"):  # at once: where the program has to be asked, it waits for the other to end
            with pytest.raises(longshore.BusyError, match="an engine of this process works on this run"):
                longshore.resume(tmp_path / name)


def test_a_run_stays_where_it_is(tmp_path, seed, monkeypatch):
    """Named from a directory that the process leaves meanwhile; by any name that a directory may have."""
    (tmp_path / "there").mkdir()
    for name in "run", "a b", "-dash", "\u00fc'\"\n", "deep/er":
        monkeypatch.chdir(tmp_path)
        engine = longshore.wrap(gpt2(), run=name)
        monkeypatch.chdir(tmp_path / "there")
        with engine:
            steps(engine, 2)
            engine.snapshot("two")
            engine.save_pretrained("out " + name.replace("/", "-"))
        monkeypatch.chdir(tmp_path)
        engine = longshore.resume(name)
        monkeypatch.chdir(tmp_path / "there")
        with engine:
            steps(engine, 1)
            assert engine.step_number == 3
        assert longshore.verify(tmp_path / name) and not (tmp_path / "there" / name).exists()


def test_a_drive_that_is_elsewhere(tmp_path, seed):
    with engine_for(gpt2(), tmp_path) as engine:
        steps(engine, 1)
        digest = engine.digest()
    drive = tmp_path / "run-drive"
    drive.rename(tmp_path / "moved")
    with pytest.raises(
        longshore.MissingError,
        match=f"{drive}/longshore-run-.* is missing.*; if it is elsewhere now, let its name lead there "
        "[(]a symbolic link, .*",
    ):
        longshore.resume(tmp_path / "run")
    drive.symlink_to("moved")
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.digest() == digest
        steps(engine, 1)


def test_a_copy_is_said_to_be_one(tmp_path, seed, caplog):
    """Its drives are those of the run: what is done here is done there."""
    with engine_for(gpt2(), tmp_path) as engine:
        steps(engine, 1)
    assert not caplog.records or "copy" not in caplog.text
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with longshore.resume(tmp_path / "copy") as engine:
        steps(engine, 1)
    assert caplog.text.count("copy is a copy of the run") == 1


def test_the_budget_holds_when_resumed(tmp_path, seed, monkeypatch):
    """With the least memory, the drives take their least rings, too."""
    opened = []
    before = wrap.State.open.__func__
    monkeypatch.setattr(
        wrap.State, "open", classmethod(lambda cls, run, **how: opened.append(how) or before(cls, run, **how))
    )
    with pytest.raises(longshore.BudgetError) as least:
        longshore.wrap(gpt2(), run=tmp_path / "none", memory="1MiB")
    with engine_for(gpt2(), tmp_path, memory=str(least.value).rsplit("minimum ", 1)[1]) as engine:
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        digest = engine.digest()
    with longshore.resume(tmp_path / "run") as engine:
        assert engine.digest() == digest
    assert opened[-1]["ring_bytes"] > 0
    assert [how.get("without_drives", False) for how in opened] == [True, False]  # its drives once


class WideNorm(torch.nn.Module):
    """Its statistics take more than what commits beside a step."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 12000), torch.nn.BatchNorm1d(12000), torch.nn.Linear(12000, 2)
        )

    def forward(self, x):
        return self.body(x)


def test_many_statistics(tmp_path, seed):
    from safetensors.torch import load_file

    digests, states = [], []
    for n in range(2):
        torch.manual_seed(seed)
        engine = engine_for(WideNorm(), tmp_path, f"run{n}")
        engine.train()
        for i in range(3):
            if n and i:
                engine.close()
                engine = longshore.resume(tmp_path / "run1", WideNorm)
                engine.train()
            engine.backward(engine(torch.randn(5, 4)).square().mean())
            engine.step()
        digests.append(engine.digest())
        states.append({k: v.detach() * 1 for k, v in engine.module.state_dict().items()})
        engine.save_pretrained(tmp_path / f"out{n}")
        engine.close()
    assert (
        digests[0] == digests[1]
        and states[0]["body.1.running_var"].std() > 0
        and states[0]["body.1.num_batches_tracked"] == 3
    )
    saved = {}
    for file in (tmp_path / "out1").glob("*.safetensors"):
        saved.update(load_file(file))
    assert saved.keys() == states[0].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]) and torch.equal(value, saved[name]), name


def test_statistics_of_a_skipped_step(tmp_path, seed):
    """They have gone on, small or large, as PyTorch's have."""
    for n, model in enumerate((WideNorm, Cnn)):
        x, more = (
            (torch.randn(5, 4), torch.randn(5, 4))
            if model is WideNorm
            else (torch.randn(5, 1, 8, 8), torch.randn(5, 1, 8, 8))
        )
        with engine_for(model(), tmp_path, f"run{n}", on_nonfinite="skip") as engine:
            engine.train()
            engine.backward(engine(x).square().mean())
            engine.step()
            before = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
            engine.backward(engine(more).square().mean() * float("inf"))
            assert engine.step().skipped and engine.step_number == 2
            statistics = {name: b.clone() for name, b in engine.module.named_buffers()}
        with longshore.resume(tmp_path / f"run{n}", model) as engine:
            assert engine.step_number == 2
            assert all(torch.equal(b, statistics[name]) for name, b in engine.module.named_buffers())
            assert all(torch.equal(p.detach() * 1, before[name]) for name, p in engine.module.named_parameters())
            engine.train()
            engine.backward(engine(x).square().mean())
            assert engine.step().step == 3 and len(engine.digest()) == 32


class Constants(torch.nn.Module):
    """Buffers of many dtypes, of which the larger ones stay as they are."""

    def __init__(self, fill=True):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        values = {
            "rotary": torch.polar(torch.ones(16000), torch.rand(16000)),
            "edges": torch.randint(0, 9999, (2, 9000)),
            "wide": torch.rand(9000, dtype=torch.float64),
            "limits": torch.tensor([float("inf"), float("-inf")]),
            "turned": torch.rand(3, dtype=torch.complex128).conj(),
            "words": torch.arange(5).to(torch.uint16),
            "seen": torch.zeros((), dtype=torch.complex64),
        }
        for name, value in values.items():
            self.register_buffer(name, value if fill else torch.zeros_like(value))

    def forward(self, x):
        self.seen += 1j
        return self.body(x).square().mean()


def test_buffers_that_are_no_statistics(tmp_path, seed):
    with engine_for(Constants(), tmp_path) as engine:
        constants = {name: b.clone() for name, b in engine.module.named_buffers()}
        for _ in range(2):
            engine.backward(engine(torch.randn(5, 4)))
            engine.step()
    with longshore.resume(tmp_path / "run", Constants(fill=False)) as engine:
        assert engine.module.seen == 2j
        assert all(torch.equal(b, constants[name]) for name, b in engine.module.named_buffers() if name != "seen")


@pytest.mark.parametrize("kept", [True, False])
def test_a_sparse_buffer_is_named(kept, tmp_path, seed):
    model = torch.nn.Linear(4, 4)
    model.register_buffer("adjacency", torch.eye(4).to_sparse(), persistent=kept)
    if kept:
        with pytest.raises(longshore.LongshoreError, match="adjacency.*persistent=False"):
            engine_for(model, tmp_path)
    else:
        engine_for(model, tmp_path).close()


@pytest.mark.parametrize(
    "value",
    [
        numpy.random.RandomState(3).permutation(40),
        numpy.random.RandomState(3).get_state(),
        numpy.float32(0.1),
        numpy.array(True),
        numpy.empty((2, 0)),
        b"\0pickled",
        numpy.array(["a", "bc"]),
        {1: (2, b"")},
    ],
    ids=str,
)
def test_states_of_loaders_come_back(value):
    came = commit_blob.back(json.loads(json.dumps(commit_blob.plain(value, "loader"))))
    numpy.testing.assert_equal(came, value)
    assert (
        not isinstance(value, numpy.ndarray) or not value.shape or (came.dtype == value.dtype and came.flags.writeable)
    )


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, numpy.array([object()]), numpy.zeros(2, dtype=[("a", "f4")]), numpy.dtype("f4")],
    ids=lambda value: type(value).__name__,
)
def test_states_that_cannot_be_kept_are_named(value):
    with pytest.raises(longshore.LongshoreError, match="loader: its state holds a .*, which cannot be kept"):
        commit_blob.plain([value], "loader")


class Halving:
    """A scheduler as transformers' GreedyLR is one: not of torch's class."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0

    def step(self):
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 / 2**self.steps

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def test_a_scheduler_of_another_class_commits_with_the_step(tmp_path, seed):
    engine = engine_for(Cnn(), tmp_path)
    for i in range(4):
        if i == 0 or i == 2:
            scheduler = engine.follow("scheduler", Halving(engine.optimizer))
        engine.backward(engine(torch.randn(2, 1, 8, 8)).square().mean())
        engine.step()
        scheduler.step()
        if i == 1:
            engine.close()
            engine = longshore.resume(tmp_path / "run", Cnn)
    assert scheduler.steps == 4 and engine.optimizer.param_groups[0]["lr"] == 0.1 / 16
    engine.close()


class Experts(torch.nn.Module):
    """Of which a step hits a part, under names of which each is another."""

    def __init__(self, n=4000):
        super().__init__()
        self.names = [f"p{random.Random(i).getrandbits(128):x}" for i in range(n)]
        for name in self.names:
            self.register_parameter(name, torch.nn.Parameter(torch.ones(())))

    def forward(self, hit):
        return sum(getattr(self, name) for name in self.names[hit::3]).square()


def test_thousands_of_tensors_that_only_some_steps_update(tmp_path, seed):
    digests = []
    for n in range(2):
        engine = engine_for(Experts(), tmp_path, f"run{n}")
        for i, hit in enumerate([0, 1, 1]):
            if n and i == 2:
                engine.close()
                engine = longshore.resume(tmp_path / "run1", Experts)
            engine.backward(engine(hit))
            engine.step()
        digests.append(engine.digest())
        engine.close()
    assert digests[0] == digests[1]


def test_counts_as_an_older_version_has_recorded_them(tmp_path, seed):
    with engine_for(gpt2(layers=2), tmp_path) as engine:
        for batch in tokens(3):
            engine.backward(engine(**batch).loss)
            engine.step()
        engine.settle()
        saved = commit_blob.of(engine._core.state)
        saved.pop("behind", None)
        saved["counts"] = {"transformer.wte.weight": 1}
        commit_blob.restore(engine._core, saved, engine._core.state)
        assert [
            c
            for b, block in zip(engine._core.cycle.counts, engine._core.layout.blocks)
            for c, t in zip(b, block.tensors)
            if t.name == "transformer.wte.weight"
        ] == [1]
        assert engine._core.cycle.counts[1] == [3] * len(engine._core.cycle.counts[1])
