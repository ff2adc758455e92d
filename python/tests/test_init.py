"""longshore.init(): what can be refused is refused before a model is made; whose it is; room for it; and that somebody
wraps it."""

import contextlib
import copy
import errno
import logging
import os
import re
import shutil
import subprocess

import pytest
import torch

import longshore
from longshore import native
from longshore.model import init_on_disk
from longshore.run import init
from models import gpt2, tokens
from test_ending import ended
from test_loop import engine_for


@pytest.fixture(autouse=True)
def nobody_else():
    yield
    for watched in init._unwrapped[:]:
        watched.leave(list(watched.modules))
    init._unwrapped.clear()


def layers(width=160, count=2):
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(count)])


def directories(engine):
    return [os.path.dirname(drive) for drive in engine._core.state.drives]


# ---- what is refused before a model is loaded


@pytest.mark.parametrize(
    "how, kind, said",
    [
        ({"drives": "typo"}, longshore.LongshoreError, "typo: nothing is there: mount the drive"),
        ({"drives": ["there", "no/typo"]}, longshore.LongshoreError, "no/typo: does not exist"),
        ({"memory": "lots"}, ValueError, "memory='lots' is not a size"),
        ({"memory": 0.5}, ValueError, "0.5 is not a size"),
        ({"memory": True}, ValueError, "True is not a size"),
        ({"memory": float("inf")}, ValueError, "inf is not a size"),
    ],
)
def test_what_is_wrong_is_refused_before_a_model_is_made(how, kind, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(kind, match=said):
        with longshore.init("run", **how):
            pytest.fail("a model would be loaded now")
    assert os.listdir(tmp_path) == ["there"]


def test_a_run_that_is_there(tmp_path, seed):
    run = tmp_path / "run"
    with engine_for(layers(4), tmp_path):
        for overwrite in (False, True):
            with (
                pytest.raises(longshore.BusyError, match="an engine of this process"),
                longshore.init(run, overwrite=overwrite),
            ):
                pytest.fail("a model would be loaded now")
    for begin in (lambda: longshore.init(run).__enter__(), lambda: longshore.wrap(layers(4), run=run)):
        with pytest.raises(longshore.ExistsError) as refused:
            begin()
        assert f"longshore.resume({str(run)!r}) continues it, overwrite=True begins anew" in str(refused.value)
    with longshore.init(run, resume=True):
        model = layers(4)
    longshore.resume(run, model).close()
    with longshore.init(run, overwrite=True):
        model = layers(4)
    longshore.wrap(model).close()


def test_a_drive_that_is_anothers(tmp_path, seed):
    """Named with whose it is; a directory is shared."""
    shared = tmp_path / "run-drive"
    with engine_for(layers(4), tmp_path) as engine:
        (volume,) = engine._core.state.drives
    before = (tmp_path / "run" / "run.json").read_bytes()
    for overwrite in (False, True):
        with pytest.raises(longshore.LongshoreError, match=f"{volume}: holds the state of the run .*run"):
            with longshore.init(tmp_path / "other", drives=volume, overwrite=overwrite):
                pytest.fail("a model would be loaded now")
    with longshore.init(tmp_path / "other", drives=shared):
        model = layers(4)
    longshore.wrap(model).close()
    longshore.verify(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_messages_speak_of_python(tmp_path):
    (tmp_path / "a.volume").write_bytes(b"somebody's")
    with pytest.raises(longshore.LongshoreError) as refused:
        longshore.wrap(layers(4), run=tmp_path / "run", drives=tmp_path / "a.volume")
    assert "--" not in str(refused.value) and "a.volume" in str(refused.value)
    with pytest.raises(longshore.MissingError, match="none: is not a run.*; longshore.wrap.. makes one"):
        longshore.verify(tmp_path / "none")


def test_a_run_that_was_moved_names_the_command_for_it(tmp_path, caplog):
    model = layers(4)
    longshore.wrap(model, run=tmp_path / "run", drives=tmp_path).close()
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "moved")  # as between file systems
    shutil.rmtree(tmp_path / "run")
    moved = tmp_path / "elsewhere" / "moved"
    longshore.resume(moved, layers(4)).close()
    with pytest.raises(longshore.LongshoreError) as refused:
        longshore.wrap(layers(4), run=moved, drives=tmp_path, overwrite=True)
    assert "say once that it is not a copy" in caplog.text
    assert str(refused.value).endswith(
        f"; if it is the run itself, `longshore snapshot {moved} NAME --not-a-copy` says so"
    )


def test_every_advice_of_the_library_has_words_here():
    """None names a flag of the program outside of a command of it."""
    numbers = [getattr(native.lib, name) for name in dir(native.lib) if name.startswith("SHORE_ADVICE_")]
    assert len(numbers) >= 11 and sorted(native.ADVICE) == sorted(numbers)
    diag = native.ffi.new("struct shore_diag *", {"text": b"it is wrong", "of": b"runs/a"})
    for diag.advice in numbers:
        with pytest.raises(longshore.LongshoreError) as refused:
            native.fail(-5, diag)
        said = str(refused.value)
        assert said.startswith("it is wrong; ") and "{" not in said and "--" not in re.sub("`.*?`", "", said), said


@pytest.mark.parametrize("make", [lambda: longshore.init("").__enter__(), lambda: longshore.wrap(layers(4), run="")])
def test_a_run_without_a_name_is_refused(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="run='' is not a directory"):
        make()
    assert not os.listdir(tmp_path)


# ---- whose a model is


def test_each_model_has_the_run_of_its_own_init(tmp_path, seed):
    for name in "ab":
        (tmp_path / name).mkdir()
    with longshore.init(tmp_path / "run-a", drives=tmp_path / "a", memory="64MiB"):
        teacher = layers()
    with longshore.init(tmp_path / "run-b", drives=tmp_path / "b"):
        student = layers(count=3)
        loaded = copy.deepcopy(student)
    for model, run, drive in ((teacher, "run-a", "a"), (loaded, "run-b", "b")):
        with longshore.wrap(model) as engine:
            assert engine._core.state.path == str(tmp_path / run) and directories(engine) == [str(tmp_path / drive)]
            assert run != "run-a" or engine._core.state.memory_bytes == 64 << 20
    with pytest.raises(longshore.ExistsError, match="run-b"):
        longshore.wrap(student)


def test_a_model_of_no_init_or_of_two_is_refused(tmp_path, seed):
    with longshore.init(tmp_path / "run-a"):
        one = layers()
    with longshore.init(tmp_path / "run-b"):
        two = layers()
    with pytest.raises(longshore.LongshoreError, match="parts of longshore.init.*run-a.*and of longshore.init.*run-b"):
        longshore.wrap(torch.nn.Sequential(one[0], two[1]))
    with pytest.raises(ValueError, match="where is the state to live"):
        longshore.wrap(layers())
    with longshore.init(tmp_path / "run-c"), pytest.raises(longshore.LongshoreError, match="another .* is open"):
        longshore.init(tmp_path / "run-d").__enter__()
    longshore.wrap(torch.nn.Sequential(one, torch.nn.Linear(160, 2))).close()
    assert (tmp_path / "run-a" / "run.json").exists()


def test_another_run_at_wrap_counts_and_is_said(tmp_path, seed, caplog):
    (tmp_path / "drive").mkdir()
    with longshore.init(tmp_path / "run-a", drives=tmp_path / "drive", overwrite=True):
        model = layers()
    engine_for(layers(4), tmp_path, "run-b").close()
    with pytest.raises(longshore.ExistsError, match="run-b: holds a run"):  # overwrite was said of another
        longshore.wrap(model, run=tmp_path / "run-b")
    with longshore.wrap(model, run=tmp_path / "run-c") as engine:
        assert engine._core.state.path == str(tmp_path / "run-c") and directories(engine) == [str(tmp_path / "drive")]
    assert caplog.text.count(f"run={str(tmp_path / 'run-c')!r} counts, and not {str(tmp_path / 'run-a')!r}") == 1


# ---- room


@contextlib.contextmanager
def tmpfs(path, size):
    path.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"nothing can be mounted here: {mount.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("load", [False, True])
def test_a_drive_that_is_too_small_is_named(load, tmp_path, seed, monkeypatch):
    """A mapped page without room would end this process."""
    monkeypatch.setattr(init_on_disk, "LEAST_BYTES", 1 << 10)
    gpt2().save_pretrained(tmp_path / "saved")
    with tmpfs(tmp_path / "small", "128k") as small:
        with pytest.raises(
            longshore.LongshoreError,
            match="needs .*KiB, .*/small has .*; free space, or add a drive: longshore.init.*drives=",
        ):
            with longshore.init(tmp_path / "run", drives=small):
                type(gpt2()).from_pretrained(tmp_path / "saved", dtype=torch.bfloat16) if load else layers()
        (tmp_path / "large").mkdir()
        with longshore.init(tmp_path / "run", drives=[small, tmp_path / "large"]):
            model = layers()
        assert torch.isfinite(model(torch.ones(1, 160))).all()
        del model


@pytest.mark.parametrize(
    "fallocate, pwrite, said",
    [
        (errno.ENOSPC, None, "needs 100.00 KiB, .*/run-drive has "),
        (errno.EDQUOT, None, "Disk quota exceeded"),
        (errno.EOPNOTSUPP, errno.ENOSPC, "needs 100.00 KiB"),
        (errno.EINVAL, errno.EDQUOT, "Disk quota exceeded"),
        (errno.EOPNOTSUPP, None, None),
    ],
)
def test_room_is_taken_on_every_file_system(fallocate, pwrite, said, tmp_path, seed, monkeypatch):
    def failing(number):
        def call(*args):
            raise OSError(number, os.strerror(number))

        return call

    expected = layers()
    monkeypatch.setattr(init_on_disk.os, "posix_fallocate", failing(fallocate))
    if pwrite:
        monkeypatch.setattr(init_on_disk.os, "pwrite", failing(pwrite))
    (tmp_path / "run-drive").mkdir()
    with pytest.raises(longshore.LongshoreError, match=said) if said else contextlib.nullcontext():
        with longshore.init(tmp_path / "run", drives=tmp_path / "run-drive") as making:
            torch.manual_seed(seed)
            model = layers()
            assert making.spool.has(model[0].weight) and torch.equal(model[1].weight, expected[1].weight)


def test_weights_stay_on_the_file_systems_of_the_drives(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("drive")
    (tmp_path / "a.volume").touch()
    os.symlink("drive", "link")
    here = str(tmp_path)
    assert init.places("runs/a", ["drive"]) == [f"{here}/drive"]
    assert init.places("runs/a", ["link", "ssh://host/path"]) == [f"{here}/drive"]
    assert init.places("runs/a", ["a.volume", "new.volume"]) == [here]
    assert init.places("runs/a", None) == [here] and init.places("drive", None) == [f"{here}/drive"]
    assert not caplog.text
    assert init.places("runs/a", ["ssh://host/path", "unix:socket"]) == [here]
    assert f"weights that are loaded lie in files of {here} until" in caplog.text


# ---- models that nobody wraps


def said(caplog):
    return [
        r.getMessage()
        for r in caplog.records
        if r.levelno == logging.WARNING and "is trained by PyTorch alone" in r.getMessage()
    ]


@pytest.mark.parametrize("train", ["backward", "optimizer", "adapters"])
def test_training_without_wrap_is_said_once(train, tmp_path, seed, caplog):
    with longshore.init(tmp_path / "run"):
        model = layers()
    if train == "adapters":  # in memory, on a base that is frozen
        model.requires_grad_(False)
        model[1] = torch.nn.Sequential(model[1], torch.nn.Linear(160, 2))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        with torch.no_grad():
            model(torch.ones(1, 160))
        assert len(said(caplog)) == _
        loss = model(torch.ones(1, 160)).square().sum()
        if train == "optimizer":
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
                p.grad = g
        else:
            loss.backward()
        if train != "backward":
            optimizer.step()
        if _ == 0:
            assert len(said(caplog)) == 1 and f"longshore.init({str(tmp_path / 'run')!r})" in caplog.text
            break
    loss = model(torch.ones(1, 160)).square().sum()
    loss.backward()
    optimizer.step()
    assert len(said(caplog)) == 1


def test_what_is_wrapped_or_never_trained_is_not_spoken_of(tmp_path, seed, caplog):
    with longshore.init(tmp_path / "run-teacher"):
        teacher = layers()
    with longshore.init(tmp_path / "run"):
        model = layers()
    with longshore.wrap(model, run=tmp_path / "run") as engine, torch.no_grad():
        target = teacher(torch.ones(1, 160))
    with longshore.resume(tmp_path / "run", layers) as engine:
        loss = (engine(torch.ones(1, 160)) - target).square().sum()
        loss.backward()
        engine.optimizer.step()
    assert not said(caplog)
    assert not any(p._post_accumulate_grad_hooks for p in layers().parameters())


def test_a_tied_part_of_it_is_wrapped(tmp_path, seed, caplog):
    with longshore.init(tmp_path / "run"):
        model, head = layers(), layers(count=1)
        head[0].weight = model[1].weight
    with longshore.wrap(model) as engine:
        engine.backward(engine(torch.ones(1, 160)).square().sum())
        engine.optimizer.step()
        assert not said(caplog)


FORGOTTEN = """
import sys
import torch, longshore
with longshore.init(sys.argv[1]):
    model = torch.nn.Linear(8, 8)
if "train" in sys.argv:
    model(torch.ones(1, 8)).sum().backward()
    print("trained", file=sys.stderr)
"""


def test_it_is_said_on_stderr_and_again_at_the_end(tmp_path):
    before, trained, after = ended(tmp_path, FORGOTTEN, tmp_path / "run", "train").stderr.partition("trained\n")
    assert "is trained by PyTorch alone" in before and trained and "no run was made" in after
    assert not ended(tmp_path, FORGOTTEN, tmp_path / "run").stderr


@pytest.mark.parametrize("ours", [False, True])
def test_the_trainer_of_transformers(ours, tmp_path, seed, caplog):
    transformers = pytest.importorskip("transformers")
    from longshore.transformers import Trainer, TrainingArguments

    with longshore.init(tmp_path / "run"):
        model = gpt2(layers=1)
    kind, arguments = (Trainer, TrainingArguments) if ours else (transformers.Trainer, transformers.TrainingArguments)
    data = [{name: value[0] for name, value in batch.items()} for batch in tokens(4)]
    how = {"max_steps": 1, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    trainer = kind(model, arguments(str(tmp_path / "out"), use_cpu=True, **how), train_dataset=data)
    trainer.train()
    assert len(said(caplog)) == (not ours)
    if ours:
        trainer.engine.close()
        with pytest.raises(
            longshore.ExistsError, match="train.resume_from_checkpoint=True. continues it, .*overwrite_run=True"
        ):
            kind(
                gpt2(layers=1), arguments(str(tmp_path / "out"), run=str(tmp_path / "run"), **how), train_dataset=data
            ).train()


@pytest.mark.parametrize("initialized", [False, True])
def test_the_init_of_deepspeed(initialized, tmp_path, seed, caplog):
    from longshore import deepspeed

    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "longshore": {"run": str(tmp_path / "run")},
    }
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = layers()
    if initialized:
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        engine.backward(engine(torch.ones(1, 160)).sum())
        engine.step()
        engine.destroy()
    else:
        model(torch.ones(1, 160)).sum().backward()
    assert len(said(caplog)) == (not initialized)
    assert initialized or "deepspeed.initialize(model=...)" in caplog.text


# ---- sizes


@pytest.mark.parametrize(
    "memory, hint",
    [
        (300, "; did you mean 300MiB?"),
        ("8", "; did you mean 8GiB?"),
        ("8192", "did you mean 8192MiB?"),
        (1e3, "1000 bytes"),
        ("200KiB", None),
    ],
)
def test_too_little_memory_has_the_minimum_and_a_hint(memory, hint, tmp_path, seed):
    with pytest.raises(longshore.BudgetError, match="minimum [0-9.]+ MiB") as refused:
        longshore.wrap(layers(), run=tmp_path / "run", memory=memory)
    assert hint in str(refused.value) if hint else "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    "value, nbytes",
    [
        ("8GB", 8 * 10**9),
        ("8 GiB", 8 << 30),
        ("8g", 8 << 30),
        (1e9, 10**9),
        ("1.5GiB", 3 << 29),
        (5, 5),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes(value, nbytes):
    assert native.size(value) == nbytes


@pytest.mark.parametrize("nbytes, said", [(0, "0 B"), (1023, "1023 B"), (3 << 29, "1.50 GiB"), (7e9, "6.52 GiB")])
def test_sizes_are_said_as_the_program_says_them(nbytes, said):
    assert native.readable(nbytes) == said
    assert native.size(native.readable(2**20 + 1, up=True)) >= 2**20 + 1


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the kernel names features of other processors otherwise")
def test_bf16_products_are_those_that_the_kernel_names():
    with open("/proc/cpuinfo") as f:
        named = {word for line in f if line.startswith("flags") for word in line.split()}
    assert native.lib.shore_multiplies_bf16() == bool(named & {"avx512_bf16", "amx_bf16"})


@pytest.mark.parametrize(
    "value",
    [0.5, "0.5", 1.5, True, False, 0, -1, "-8GiB", "inf", float("nan"), "nan", 2**63, "8EiB", "", "8 GiB!", [8]],
)
def test_what_is_no_size(value):
    with pytest.raises(ValueError, match="not a size"):
        native.size(value)
