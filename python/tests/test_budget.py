"""Engines of one process that share one budget."""

import copy
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

import longshore
from longshore import native
from models import gpt2, tokens


def held(engine):
    return engine._core.plan.total_bytes + engine._core.plan.spare_bytes


def wrap(model, path, **how):
    (path.parent / f"{path.name}.drive").mkdir(exist_ok=True)
    return longshore.wrap(model, run=path, drives=[str(path.parent / f"{path.name}.drive")], **how)


def step(engine, batch):
    engine.backward(engine(**batch).loss)
    return engine.step()


def frozen():
    return gpt2().requires_grad_(False)


def least_of(make, tmp_path):
    with pytest.raises(longshore.BudgetError) as said:
        wrap(make(), tmp_path / "none", memory="1KiB")
    return native.size(re.search(r"minimum ([0-9.]+ \w+)", str(said.value))[1])


def test_a_budget_is_at_most_what_the_machine_has(tmp_path):
    """The default, too, as the program has it."""
    from longshore.run import shared_budget

    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < shared_budget.within() <= machine // 2
    model = torch.nn.Linear(8, 8)
    for made in (
        lambda: longshore.wrap(model, run=tmp_path / "run", memory="8000TiB"),
        lambda: longshore.budget("8000TiB"),
        longshore.init(tmp_path / "run", memory="8000TiB").__enter__,
    ):
        with pytest.raises(longshore.BudgetError, match="is more than the memory of this machine"):
            made()
    assert not (tmp_path / "run").exists()
    longshore.wrap(model, run=tmp_path / "run", memory="64MiB").close()
    with pytest.raises(longshore.BudgetError, match="is more than the memory of this machine"):
        longshore.resume(tmp_path / "run", torch.nn.Linear(8, 8), memory="8000TiB")


def test_a_container_plans_with_its_memory(tmp_path):
    """In namespaces where the control group of the process has a limit."""
    for place, text in (("group/memory.max", "2000000000"), ("own", "0::/")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(f"{text}\n")
    binds = f"mount --bind {tmp_path}/group /sys/fs/cgroup && mount --bind {tmp_path}/own /proc/$$/cgroup"
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*inside, binds], capture_output=True).returncode:
        pytest.skip("this process may not make namespaces")
    script = """
import torch, longshore, sys
from longshore.run import shared_budget
print(shared_budget.within())
try:
    longshore.wrap(torch.nn.Linear(8, 8), run=sys.argv[1], memory="3GB")
except longshore.BudgetError as refused:
    print(refused)
"""
    (tmp_path / "script.py").write_text(script)
    run = [*inside, f"{binds} && exec {sys.executable} {tmp_path}/script.py {tmp_path}/run"]
    half, refused = subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()
    assert half == "1000000000" and "is more than the memory of this machine" in refused


def test_too_little_is_said_as_less_than_the_minimum(tmp_path):
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    with longshore.wrap(copy.deepcopy(model), run=tmp_path / "run", memory="64MiB") as engine:
        least = engine._core.plan.least_bytes
    assert least % 2**20
    with pytest.raises(longshore.BudgetError) as said:
        longshore.wrap(model, run=tmp_path / "other", memory=least - 2**16)
    asked, minimum = re.search(r"^(.*) of memory is too little.*minimum ([0-9.]+ \w+)", str(said.value)).groups()
    assert native.size(asked) < least <= native.size(minimum)


def test_a_policy_and_its_reference_share_one(tmp_path, seed):
    """Both train, or are read, with the bits that each has alone; and neither is planned as if it were."""
    model, reference = gpt2(), gpt2()
    with wrap(copy.deepcopy(model), tmp_path / "alone") as alone:
        for batch in tokens(3):
            step(alone, batch)
        want = alone.digest()
    with longshore.budget(memory="64MiB") as shared:
        policy, other = wrap(model, tmp_path / "policy"), wrap(copy.deepcopy(reference), tmp_path / "reference")
    assert held(policy) <= 32 << 20 and held(policy) + held(other) <= 64 << 20
    assert policy.memory().budget + other.memory().budget <= 64 << 20
    assert "policy) has " in repr(shared) and "reference) has " in repr(shared)
    with policy, other, torch.no_grad():
        for batch in tokens(3):
            with torch.enable_grad():
                step(policy, batch)
            assert torch.equal(other.eval()(**batch).logits, reference.eval()(**batch).logits)
        assert policy.digest() == want


def test_too_little_names_each_with_what_it_needs(tmp_path, seed):
    least = least_of(gpt2, tmp_path)
    with longshore.budget(memory=least + least // 2) as shared:
        policy = wrap(gpt2(), tmp_path / "policy")
        with pytest.raises(longshore.BudgetError) as said:
            wrap(gpt2(), tmp_path / "reference")
        said = str(said.value)
        assert re.search(
            r"policy\) has [0-9.]+ [KM]iB \([0-9.]+ [KM]iB at least\), GPT2LMHeadModel \(.*reference\) "
            r"needs [0-9.]+ [KM]iB",
            said,
        )
        least = re.search(r"minimum ([0-9.]+ [KM]iB); give budget\(\) more", said)[1]
        assert native.size(least) >= 2 * policy._core.plan.least_bytes
        assert not (tmp_path / "reference").exists()
        policy.close()
        assert shared.left == shared.memory
    enough = re.search(r"minimum ([0-9.]+ [KM]iB)", said)[1]
    with longshore.budget(memory=enough):
        with wrap(gpt2(), tmp_path / "p2"), wrap(gpt2(), tmp_path / "r2"):
            pass


def test_a_share_is_free_again_once_its_engine_is_closed(tmp_path, seed):
    least = least_of(gpt2, tmp_path)
    with longshore.budget(memory=least, engines=1) as shared:
        wrap(gpt2(), tmp_path / "first").close()
        wrap(gpt2(), tmp_path / "second").close()
    with shared, longshore.resume(tmp_path / "first") as engine:
        step(engine, tokens(1)[0])
        with pytest.raises(longshore.BudgetError, match=r"first\) has .*second\) needs"):
            longshore.resume(tmp_path / "second")
    with longshore.resume(tmp_path / "second", memory="1GiB") as engine:  # outside, nothing is shared
        assert engine.memory().budget == 1 << 30 and shared.left == shared.memory


def test_a_part_of_its_own(tmp_path, seed):
    with longshore.budget(memory="64MiB", engines=3) as shared:
        with (
            wrap(gpt2(), tmp_path / "policy", memory="48MiB") as policy,
            wrap(frozen(), tmp_path / "reference") as reference,
        ):
            assert policy.memory().budget == held(policy) <= 48 << 20 and shared.left == (64 << 20) - held(
                policy
            ) - held(reference)
        with pytest.raises(longshore.BudgetError, match="needs 65.00 MiB .*give budget.. more"):
            wrap(gpt2(), tmp_path / "more", memory="65MiB")


def test_what_is_refused(tmp_path, seed):
    with longshore.budget(memory="64MiB"):
        with pytest.raises(ValueError, match="do not nest"):
            with longshore.budget(memory="32MiB"):
                pass
        with wrap(gpt2(), tmp_path / "run") as engine:  # the outer one is still entered
            assert held(engine) <= 32 << 20
    for wrong in (0, 1.5, True, -1):
        with pytest.raises(ValueError, match="engines="):
            longshore.budget("1GiB", engines=wrong)
    with pytest.raises(ValueError, match="not a size"):
        longshore.budget("much")
    with wrap(gpt2(), tmp_path / "after", memory="1GiB"):
        pass
