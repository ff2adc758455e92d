"""wrap(trains=False): a second model that is only read, beside one that trains."""

import copy
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import longshore
from longshore import native
from models import HANGS_SECONDS, gpt2, llama, tokens
from test_budget import held, step

PROGRAM = os.environ.get("LONGSHORE") or shutil.which("longshore")
KEPT = [None, 1]  # slots of layers: as many as there is memory for, or one


def policy(tmp_path, name="policy", **how):
    return longshore.wrap(gpt2(), run=tmp_path / name, lr=1e-2, clip=1.0, **{"memory": "64MiB", **how})


@pytest.fixture(params=KEPT, ids=["all", "one slot"])
def kept(request, monkeypatch):
    """How many layers engines hold at once."""
    from longshore.run import memory_plan

    plan = memory_plan.plan

    def smaller(*args, **how):
        chosen = plan(*args, **how)
        chosen.pages = request.param or chosen.pages
        return chosen

    monkeypatch.setattr(memory_plan, "plan", smaller)


def files(run):
    """{file of a run: its time and contents}, but for the name of the process that works on it."""
    return {
        path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name != "worker.json"
    }


# ---- what it computes


@pytest.mark.parametrize("make", [gpt2, llama])
def test_outputs_and_gradients_of_inputs_are_pytorchs(make, tmp_path, seed, kept):
    """The way back through it: soft prompts, a perceptual loss."""
    model = make()
    plain = copy.deepcopy(model).requires_grad_(False)
    with policy(tmp_path), longshore.wrap(model, trains=False) as frozen:
        assert not any(p.requires_grad for p in model.parameters())
        for batch in tokens(2):
            assert torch.equal(frozen(**batch).logits, plain(**batch).logits)
            prompts = [torch.randn(2, 12, 48, requires_grad=True)]
            prompts.append(prompts[0].detach().clone().requires_grad_(True))
            fetched = frozen.fetched_bytes
            for m, prompt in zip((frozen, plain), prompts):
                loss = m(inputs_embeds=prompt, labels=batch["labels"]).loss
                forward = frozen.fetched_bytes
                loss.backward()
            assert fetched <= forward <= frozen.fetched_bytes and frozen.fetched_bytes > 0
            assert torch.equal(prompts[0].grad, prompts[1].grad)
        assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("way", ["loop", "together", "plain backward"])
def test_a_reward_model(way, tmp_path, seed, kept):
    """The policy's output goes through it, and the policy gets the gradients that it gets of a model in memory."""
    judge, digests = gpt2().requires_grad_(False), []
    for n in range(2):
        torch.manual_seed(seed)
        with policy(tmp_path, f"run{n}") as engine:
            reward = judge if n == 0 else longshore.wrap(copy.deepcopy(judge), trains=False)

            def loss_of(output, batch, reward=reward):
                soft = output.logits.softmax(-1) @ judge.transformer.wte.weight
                return reward(inputs_embeds=soft, labels=batch["labels"]).loss + output.loss

            for batch in tokens(3):
                if way == "together":
                    engine.train_batch([batch, batch], loss_of)
                    continue
                loss = loss_of(engine(**batch), batch)
                loss.backward() if way == "plain backward" else engine.backward(loss)
                engine.step()
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_recomputed_layers(tmp_path, seed, kept):
    model = llama()
    plain = copy.deepcopy(model).requires_grad_(False)
    with policy(tmp_path), longshore.wrap(model, trains=False) as frozen:
        grads = []
        for m in (frozen, plain):
            m.gradient_checkpointing_enable()
            m.train()
            torch.manual_seed(seed)
            prompt = torch.randn(2, 12, 48, requires_grad=True)
            m(inputs_embeds=prompt, labels=tokens(1)[0]["labels"]).loss.backward()
            grads.append(prompt.grad)
        assert torch.equal(*grads) and grads[0].any()


def test_its_mode_stays(tmp_path, seed):
    for mode in (True, False):
        model = gpt2(dropout=0.5).train(mode)
        with policy(tmp_path, f"run{mode}") as engine, longshore.wrap(model, trains=False) as frozen:
            batch = tokens(1)[0]
            engine.train().backward(engine(**batch).loss)
            engine.step()
            assert all(m.training is mode for m in model.modules()) and frozen.training is mode
            torch.manual_seed(1)
            first, second = frozen(**batch).logits, frozen(**batch).logits
            assert torch.equal(first, second) is not mode


def test_it_draws_as_in_pytorch(tmp_path, seed):
    """In training mode it draws from the script's generator, with and without gradients, also after a resume."""
    model = gpt2(dropout=0.5).train()
    plain, (batch,) = copy.deepcopy(model).requires_grad_(False), tokens(1)
    with policy(tmp_path), longshore.wrap(model, trains=False) as frozen:
        for grad in (True, False):
            out = []
            for m in (frozen, plain):
                torch.manual_seed(2)
                torch.rand(3)
                with torch.set_grad_enabled(grad):
                    out.append([m(**batch).logits for _ in range(2)] + [torch.rand(2)])
            assert all(map(torch.equal, *out))


@pytest.mark.parametrize("first", [False, True])
def test_the_other_model_has_the_bits_that_it_has_alone(first, tmp_path, seed):
    """Dropout in both. first: the frozen model is wrapped before."""
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        reference = gpt2(dropout=0.1).train()
        model, frozen = gpt2(dropout=0.1).train(), reference.requires_grad_(False)
        if n and first:
            frozen = longshore.wrap(frozen, run=tmp_path / "frozen", trains=False)
        engine = longshore.wrap(model, run=tmp_path / f"run{n}", lr=1e-2, memory="64MiB")
        if n and not first:
            frozen = longshore.wrap(frozen, trains=False)
        for batch in tokens(3):
            with torch.no_grad():
                out = frozen(**batch).logits
            engine.backward(engine(**batch).loss + (engine(**batch).logits - out).square().mean())
            engine.step()
        digests.append(engine.digest())
        engine.close()
        if n:
            frozen.close()
    assert digests[0] == digests[1]


# ---- where it lies, and what it takes


def test_it_lies_in_the_run_beside_it(tmp_path, seed):
    drives = [tmp_path / "a", tmp_path / "b"]
    for drive in drives:
        drive.mkdir()
    with policy(tmp_path, drives=drives) as engine:
        first, second = (longshore.wrap(gpt2(), trains=False) for _ in range(2))
        other = longshore.wrap(llama(), trains=False)
        for frozen, name in (
            (first, "frozen-GPT2LMHeadModel"),
            (second, "frozen-GPT2LMHeadModel-2"),
            (other, "frozen-LlamaForCausalLM"),
        ):
            run = tmp_path / "policy" / name
            assert f"run {run}, step 0" in repr(frozen) and (run / "run.json").exists()
            for drive in drives:
                assert any(str(volume).startswith(f"{drive}/longshore-{name}-") for volume in drive.iterdir())
        assert engine.step_number == 0
        first.close()
        with longshore.wrap(gpt2(), trains=False) as third:
            assert "frozen-GPT2LMHeadModel," in repr(third)
        second.close()
        other.close()
    assert len([*tmp_path.glob("policy/frozen-*/run.json")]) == 3


def test_it_takes_4_bytes_a_parameter(tmp_path, seed):
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
    with policy(tmp_path), longshore.wrap(model, trains=False):
        nbytes = 4 * sum(p.numel() for p in model.parameters())
        (volume,) = tmp_path.glob("policy/frozen-*/*.volume")
        assert nbytes <= volume.stat().st_blocks * 512 <= nbytes + (3 << 20)


@pytest.mark.parametrize("place", [{}, {"run": "frozen"}])
def test_it_takes_part_of_the_others_memory(place, tmp_path, seed):
    place = {name: tmp_path / path for name, path in place.items()}
    with policy(tmp_path, memory="24MiB") as engine:
        before, reference = held(engine), gpt2()
        batch = tokens(1)[0]
        step(engine, batch)
        for _ in range(2):
            with longshore.wrap(copy.deepcopy(reference), trains=False, **place) as frozen:
                assert 0 < held(frozen) and held(frozen) + held(engine) <= 24 << 20
                assert engine.memory().budget + frozen.memory().budget <= 24 << 20
                assert engine.memory().held <= engine.memory().budget
                assert frozen.memory().held <= frozen.memory().budget
                step(engine, batch)
            assert held(engine) == before and engine.memory().budget == 24 << 20
        with longshore.wrap(reference, trains=False, memory="32MiB", **place) as frozen:
            assert held(engine) == before and frozen.memory().budget == 32 << 20


def test_without_memory_both_have_what_is_useful(tmp_path, seed):
    """Also where the one that trains has no state to give, and in a second life."""
    head = nn.Linear(64, 2)
    for life in range(2):
        if life:
            engine = longshore.resume(tmp_path / "run", copy.deepcopy(head))
        else:
            engine = longshore.wrap(copy.deepcopy(head), run=tmp_path / "run")
        with engine, longshore.wrap(gpt2(), trains=False) as frozen:
            assert frozen._core.plan.pages == 3 and engine.memory().budget >= engine.memory().held


def test_too_little_memory_for_both(tmp_path, seed):
    with pytest.raises(longshore.BudgetError) as said:
        policy(tmp_path, memory="1KiB")
    least = re.search(r"minimum ([0-9.]+ \w+)", str(said.value))[1]
    model = gpt2()
    with policy(tmp_path, memory=least):
        with pytest.raises(longshore.BudgetError) as said:
            longshore.wrap(model, trains=False)
        assert all(p.requires_grad for p in model.parameters()) and not [*tmp_path.glob("policy/frozen-*")]
    enough = re.search(r"longshore.budget\(memory=...\):`, minimum ([0-9.]+ \w+)", str(said.value))[1]
    with longshore.budget(enough), policy(tmp_path, memory=None, overwrite=True) as engine:
        with longshore.wrap(model, trains=False) as frozen:
            assert held(engine) + held(frozen) <= native.size(enough)
            step(engine, tokens(1)[0])


def test_in_a_shared_budget(tmp_path, seed):
    with longshore.budget(memory="64MiB") as shared:
        with policy(tmp_path, memory=None) as engine, longshore.wrap(gpt2(), trains=False) as frozen:
            assert held(engine) + held(frozen) + shared.left <= 64 << 20 and held(engine) <= 32 << 20
            assert "frozen-GPT2LMHeadModel) has " in repr(shared)


# ---- a second life


def test_it_is_found_again(tmp_path, seed):
    """A script that goes on: the same values are not written again, and the script's random numbers stay."""
    reference, (batch,) = gpt2(), tokens(1)
    with policy(tmp_path) as engine, longshore.wrap(copy.deepcopy(reference), trains=False) as frozen:
        step(engine, batch)
        want = frozen(**batch).logits
    (volume,) = tmp_path.glob("policy/frozen-*/*.volume")
    there = volume.stat().st_ino
    with longshore.resume(tmp_path / "policy", gpt2()) as engine:
        random = torch.get_rng_state()
        with longshore.wrap(copy.deepcopy(reference), trains=False) as frozen:
            assert torch.equal(random, torch.get_rng_state())
            assert torch.equal(frozen(**batch).logits, want)
            step(engine, batch)
        assert volume.stat().st_ino == there
        with torch.no_grad():
            reference.transformer.h[1].mlp.c_fc.bias[3] += 0.5
        with longshore.wrap(copy.deepcopy(reference), trains=False) as frozen:
            assert torch.equal(frozen(**batch).logits, reference(**batch).logits)
        assert [*tmp_path.glob("policy/frozen-*/*.volume")] != [volume] and not volume.exists()
        (volume,) = tmp_path.glob("policy/frozen-*/*.volume")
        volume.unlink()
        with longshore.wrap(copy.deepcopy(reference), trains=False) as frozen:
            assert torch.equal(frozen(**batch).logits, reference(**batch).logits)
    with longshore.resume(next(tmp_path.glob("policy/frozen-*")), gpt2()) as frozen:
        assert torch.equal(frozen(**batch).logits, reference(**batch).logits)
        with pytest.raises(longshore.LongshoreError, match=r"engine\.step: this GPT2LMHeadModel was wrapped with"):
            frozen.step()


def test_other_options_or_buffers_make_it_anew(tmp_path, seed):
    """What decides outputs is compared, and nothing else is."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    x = torch.randn(3, 4)

    def volume_of(**how):
        with longshore.wrap(copy.deepcopy(model), trains=False, **how) as frozen:
            out = frozen(x)
        (volume,) = tmp_path.glob("policy/frozen-*/*.volume")
        return volume.stat().st_ino, volume.name, out

    with policy(tmp_path):
        first = volume_of()
        assert volume_of(memory="40MiB")[:2] == first[:2]
        model[1].running_mean += 1
        second = volume_of()
        assert second[1] != first[1] and torch.equal(second[2], model(x)) and not torch.equal(second[2], first[2])
        assert volume_of(storage="bf16")[1] != second[1]


def test_a_run_of_its_own_is_found_again(tmp_path, seed):
    reference, run = gpt2(), tmp_path / "frozen"
    for _ in range(2):
        with longshore.wrap(copy.deepcopy(reference), run=run, trains=False) as frozen:
            assert torch.equal(frozen(**tokens(1)[0]).logits, reference(**tokens(1)[0]).logits)
    other = gpt2()
    with pytest.raises(longshore.ExistsError, match="holds a run"):
        longshore.wrap(other, run=run, trains=False)
    with longshore.wrap(other, run=run, trains=False, overwrite=True) as frozen:
        with pytest.raises(longshore.BusyError):
            longshore.wrap(gpt2(), run=run, trains=False)


def test_only_what_is_ours_is_replaced(tmp_path, seed):
    with policy(tmp_path):
        there = tmp_path / "policy" / "frozen-GPT2LMHeadModel"
        with policy(tmp_path, "policy/frozen-GPT2LMHeadModel") as mine:
            step(mine, tokens(1)[0])
        with pytest.raises(longshore.ExistsError, match="holds a run"):
            longshore.wrap(gpt2(), trains=False)
        assert longshore.verify(there)


def test_it_writes_nothing_afterwards(tmp_path, seed, kept):
    with policy(tmp_path) as engine, longshore.wrap(gpt2(), trains=False) as frozen:
        (run,) = tmp_path.glob("policy/frozen-*")
        there, before = files(run), {path for path in tmp_path.rglob("*") if "frozen" in str(path)}
        for batch in tokens(2):
            prompt = torch.randn(2, 12, 48, requires_grad=True)
            frozen(inputs_embeds=prompt, labels=batch["labels"]).loss.backward()
            frozen.settle()
            frozen.flush()
            step(engine, batch)
        frozen.save_pretrained(tmp_path / "saved")
        assert files(run) == there and {path for path in tmp_path.rglob("*") if "frozen" in str(path)} == before
    assert files(run) == there


# ---- what else works on the run


@pytest.mark.parametrize("drives", [None, ["a", "b"]])
def test_remove_takes_it_with_the_run(drives, tmp_path, seed):
    drives = [tmp_path / drive for drive in drives or ()]
    for drive in drives:
        drive.mkdir()
    with policy(tmp_path, drives=drives or None), longshore.wrap(gpt2(), trains=False):
        said = subprocess.run([PROGRAM, "remove", tmp_path / "policy"], capture_output=True, text=True)
        assert said.returncode != 0 and len([*tmp_path.rglob("*.volume")]) == 2 * max(1, len(drives)), said.stderr
    policy(tmp_path, "policy/frozen-mine").close()
    subprocess.run([PROGRAM, "remove", tmp_path / "policy"], check=True)
    assert [str(path) for path in tmp_path.rglob("run.json")] == [f"{tmp_path}/policy/frozen-mine/run.json"]
    subprocess.run([PROGRAM, "remove", tmp_path / "policy" / "frozen-mine"], check=True)
    assert not [*tmp_path.rglob("*.volume")]


def test_the_program_reads_it(tmp_path, seed):
    reference, (batch,) = gpt2(), tokens(1)
    with policy(tmp_path), longshore.wrap(reference, trains=False) as frozen:
        digest, want = frozen.digest(), frozen(**batch).logits
    (run,) = tmp_path.glob("policy/frozen-*")
    said = subprocess.run([PROGRAM, "inspect", run, "--digest"], check=True, capture_output=True, text=True).stdout
    assert digest in said
    assert longshore.verify(run) == digest
    subprocess.run([PROGRAM, "export", run, "--out", tmp_path / "out"], check=True)
    exported = type(reference).from_pretrained(tmp_path / "out")
    assert torch.equal(exported(**batch).logits, want)


@pytest.mark.parametrize("what", ["moved", "copied", "overwritten"])
def test_after_a_change_of_the_run(what, tmp_path, seed):
    reference, (batch,), there = gpt2(), tokens(1), tmp_path / "policy"
    drives = [tmp_path / "drive"] if what == "moved" else None  # its volumes do not move
    for drive in drives or ():
        drive.mkdir()
    with policy(tmp_path, drives=drives) as engine, longshore.wrap(copy.deepcopy(reference), trains=False) as frozen:
        step(engine, batch)
        want = frozen(**batch).logits
    if what == "overwritten":
        engine = policy(tmp_path, overwrite=True)
    else:
        to = tmp_path / "other"
        there.rename(to) if what == "moved" else shutil.copytree(there, to)
        engine, there = longshore.resume(to, gpt2()), to
    with engine:
        for changed in (False, True):
            with torch.no_grad():
                reference.transformer.h[0].mlp.c_fc.bias += changed
            with longshore.wrap(copy.deepcopy(reference), trains=False) as frozen:
                assert torch.equal(frozen(**batch).logits, reference(**batch).logits)
                assert changed or torch.equal(frozen(**batch).logits, want)
                assert f"run {there}/frozen-GPT2LMHeadModel, step 0" in repr(frozen)
                step(engine, batch)
    if what == "copied":
        with longshore.resume(tmp_path / "policy" / "frozen-GPT2LMHeadModel", gpt2()) as frozen:
            assert torch.equal(frozen(**batch).logits, want)


# ---- what it refuses, and its end


def test_what_is_refused(tmp_path, seed):
    reference = gpt2()
    values = copy.deepcopy(reference.state_dict())
    with policy(tmp_path), longshore.wrap(reference, trains=False, memory="64MiB") as frozen:
        batch, digest = tokens(1)[0], frozen.digest()
        for name, call in {
            "backward": lambda: frozen.backward(torch.ones(1, requires_grad=True).sum()),
            "step": frozen.step,
            "grad_norm": frozen.grad_norm,
            "train_batch": lambda: frozen.train_batch([batch]),
            "backward_together": lambda: frozen.backward_together([batch], lambda batch: frozen(**batch).loss),
            "drop_gradients": frozen.drop_gradients,
            "follow": lambda: frozen.follow("x", torch.nn.Linear(1, 1)),
            "snapshot": frozen.snapshot,
            "reopen": lambda: frozen.reopen(tmp_path / "policy"),
            "optimizer": lambda: frozen.optimizer,
            "accumulate": lambda: setattr(frozen, "accumulate", 2),
            "lr_scheduler": lambda: frozen.lr_scheduler,
        }.items():
            with pytest.raises(longshore.LongshoreError, match=rf"engine\.{name}: this GPT2LMHeadModel was wrapped"):
                call()
        with pytest.raises(longshore.LongshoreError, match=r"resident\(write=True\): .* trains=False"):
            with longshore.resident(reference.lm_head, write=True), torch.no_grad():
                reference.lm_head.weight.zero_()
        with pytest.raises(longshore.LongshoreError, match="a change of parameters: .* trains=False"):
            frozen.load_state_dict(gpt2().state_dict())
        with pytest.raises(longshore.AbsentParameterError), torch.no_grad():
            reference.lm_head.weight.zero_()
        assert frozen.digest() == digest
        with longshore.resident(frozen), torch.no_grad():
            assert torch.equal(reference.lm_head.weight, values["lm_head.weight"])
        with longshore.resident(reference.lm_head, write="temporary"), torch.no_grad():
            reference.lm_head.weight.zero_()
            assert not frozen(**batch).logits.any()
        assert all(torch.equal(value + 0, values[name]) for name, value in frozen.state_dict().items())
        assert frozen.step_number == 0 and frozen.generate(batch["input_ids"], max_new_tokens=2).shape == (2, 14)


def test_bad_options(tmp_path, seed):
    wrong = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.0, "clip": 1.0, "optimizer": "sgd", "groups": []}
    wrong.update(moments="8bit", on_nonfinite="skip", compress=0.1, compress_after=1, moments_from="x")
    model = gpt2()
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=rf"wrap: {name}= is for a model that trains, .*trains=False: leave it"):
            longshore.wrap(model, run=tmp_path / "run", trains=False, **{name: value})
    with pytest.raises(ValueError, match="trains must be True or False, and is 1"):
        longshore.wrap(model, run=tmp_path / "run", trains=1)
    with pytest.raises(longshore.LongshoreError, match="no engine is open that trains.*or give run=DIRECTORY"):
        longshore.wrap(model, trains=False)
    with policy(tmp_path, "a"), policy(tmp_path, "b"):
        with pytest.raises(longshore.LongshoreError, match=r"several engines .*/a, .*/b\): give run= of its own"):
            longshore.wrap(model, trains=False)
        with pytest.raises(longshore.LongshoreError, match=r"several engines .*: give memory= of its own"):
            longshore.wrap(model, trains=False, run=tmp_path / "run")
        assert all(p.requires_grad for p in model.parameters()) and not (tmp_path / "run").exists()
        with longshore.wrap(model, trains=False, run=tmp_path / "run", memory="32MiB"):
            pass


def test_a_dropped_engine_is_not_counted(tmp_path, seed):
    dropped = policy(tmp_path, "a")
    dropped.module.itself = [dropped]  # goes with the garbage collector
    del dropped
    with policy(tmp_path, "b"), longshore.wrap(gpt2(), trains=False) as frozen:
        assert "/b/frozen-" in repr(frozen)


@pytest.mark.parametrize("order", ["frozen first", "frozen last"])
def test_engines_end_in_any_order(order, tmp_path, seed):
    engine = policy(tmp_path)
    frozen, (batch,) = longshore.wrap(gpt2(), trains=False), tokens(1)
    want = frozen(**batch).logits
    step(engine, batch)
    if order == "frozen first":
        frozen.close()
        step(engine, batch)
        engine.close()
    else:
        engine.close()
        assert torch.equal(frozen(**batch).logits, want)
        with longshore.resume(tmp_path / "policy", gpt2()) as engine:
            assert engine.memory().budget + frozen.memory().budget == 64 << 20
            step(engine, batch)
            assert torch.equal(frozen(**batch).logits, want)
        frozen.close()
    frozen.close()
    with pytest.raises(longshore.LongshoreError, match="closed"):
        frozen(**batch)
    with longshore.resume(tmp_path / "policy", gpt2()) as engine:
        assert engine.step_number == 2


LIFE = """
import os, sys
import torch, longshore
from torch import nn
torch.manual_seed(5)
student, teacher = (nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]) for _ in range(2))
run = sys.argv[1]
there = os.path.exists(run + "/run.json")
engine = longshore.resume(run, student) if there else longshore.wrap(student, run=run, memory="64MiB")
print("at", engine.step_number, flush=True)
if "dies" in sys.argv:  # as all is written, and the run is not there yet
    from longshore.drives.state import State
    State.seal = lambda state: os.kill(os.getpid(), 9)
frozen = longshore.wrap(teacher, trains=False)
while engine.step_number < 6:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(engine.step_number))
    engine.backward((engine(x) - frozen(x)).square().mean())
    engine.step()
    engine.settle()
    print("at", engine.step_number, flush=True)
print("digest", engine.digest(), flush=True)
"""


def test_a_kill_loses_nothing(tmp_path, seed, capsys, monkeypatch):
    """At each step, and while the frozen model is written."""
    (tmp_path / "life.py").write_text(LIFE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    def live(run, *how, until=None):
        command = [sys.executable, str(tmp_path / "life.py"), str(run), *how]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
            for line in process.stdout:
                if line.strip() == until:
                    process.kill()
                if line.startswith("digest"):
                    return line
            assert (until or how) and process.wait(HANGS_SECONDS) == -9
        return None

    monkeypatch.setattr(sys, "argv", ["life.py", str(tmp_path / "whole")])
    for engine in map(runpy.run_path(str(tmp_path / "life.py")).get, ("engine", "frozen")):
        engine.close()
    want = capsys.readouterr().out.splitlines(True)[-1]
    for how, until in ((["dies"], None), ([], "at 2")):
        assert live(tmp_path / "run", *how, until=until) is None
        assert longshore.verify(tmp_path / "run")
        assert (tmp_path / "run" / "frozen-Sequential" / "run.json").exists() is (until is not None)
    assert live(tmp_path / "run") == want


def test_forked_workers_leave_it_alone(tmp_path, seed):
    with policy(tmp_path), longshore.wrap(gpt2(), trains=False) as frozen:
        want = frozen(**tokens(1)[0]).logits
        child = os.fork()
        if child == 0:
            try:
                frozen(**tokens(1)[0])
            except longshore.LongshoreError as said:
                os._exit(0 if "forked" in str(said) else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(frozen(**tokens(1)[0]).logits, want)


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("extra", [0, 8 << 20])
def test_slots_of_the_other_give_way(extra, sleeps, tmp_path, seed):
    """And its memory of gradients, where it holds no state. extra: bytes beyond the least of both."""

    def layers():
        return nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])

    def minimum(model, name, **how):
        with pytest.raises(longshore.BudgetError) as said:
            longshore.wrap(model, run=tmp_path / name, memory="1KiB", **how)
        return native.size(re.search(r"minimum ([0-9.]+ \w+)", str(said.value))[1])

    least = minimum(layers(), "b", trains=False)
    memory = minimum(layers(), "a") + least + extra
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        model, teacher = layers(), layers()
        with longshore.wrap(model, run=tmp_path / f"run{n}", memory=memory, lr=1e-2) as engine:
            plan = engine._core.plan
            before = plan.pages, plan.gradient_bytes
            assert plan.free_bytes < least - (1 << 20)
            for i, x in enumerate(torch.randn(5, 4, 512)):
                if n == 1 and i == 2:
                    engine.backward(engine(x).sum())
                    with pytest.raises(longshore.LongshoreError, match="wrap: an engine gives memory away between"):
                        longshore.wrap(copy.deepcopy(teacher), trains=False)
                    engine.drop_gradients()
                    if sleeps:
                        engine.sleep()
                    frozen = longshore.wrap(copy.deepcopy(teacher), trains=False)
                    if sleeps:
                        assert engine._core.streams.asleep is not None
                        engine.wake()
                    assert (plan.pages, plan.gradient_bytes) < before and engine._core.streams.slots == plan.pages
                    assert held(engine) + held(frozen) <= memory
                    assert engine.memory().held + frozen.memory().held <= memory
                wanted = frozen(x) if n == 1 and i >= 2 else teacher(x).detach()
                engine.backward((engine(x) - wanted).square().mean())
                engine.step()
                if n == 1 and i == 3:
                    frozen.close()
                    frozen = longshore.wrap(copy.deepcopy(teacher), trains=False)
            digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_beside_an_engine_that_sleeps(tmp_path, seed):
    """It takes memory that the other held state in, and the other sleeps on."""
    digests, batch = [], tokens(1)[0]
    for n in range(2):
        torch.manual_seed(seed)
        with policy(tmp_path, f"policy{n}") as engine:
            step(engine, batch)
            if n:
                engine.sleep()
                frozen = longshore.wrap(llama(), trains=False)
                assert engine._core.streams.asleep is not None
                assert torch.isfinite(frozen(**batch).loss)
                engine.wake()
                assert held(engine) + held(frozen) <= 64 << 20
                step(engine, batch)
                engine.sleep()
                frozen.close()
                engine.wake()
            else:
                step(engine, batch)
            step(engine, batch)
            digests.append(engine.digest())
    assert digests[0] == digests[1]
