"""Ranks that say different things are all told so, by run/agreement.py."""

import os
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch

from longshore.errors import LongshoreError
from longshore.run import agreement


class Fake:
    """Ranks that are threads of this process."""

    def __init__(self, rank, size, shared):
        self.rank, self.size, self.shared, self.failed = rank, size, shared, []

    def meet(self, what, value=None):
        barrier, values = self.shared
        values[self.rank] = what, value
        barrier.wait(60)
        found = list(values)
        barrier.wait(60)
        assert {said for said, _ in found} == {what}
        return [value for _, value in found]

    def fail(self, error):
        self.failed.append(error)


def on_ranks(call, size=2):
    """What call(ranks) raises on each of so many ranks; None: nothing."""
    shared, out = (threading.Barrier(size), [None] * size), [None] * size

    def run(rank):
        try:
            call(Fake(rank, size, shared))
        except Exception as failure:
            out[rank] = failure

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def tensor(name="a.weight", shape=(2, 3), dtype=torch.float32, trains=True):
    return SimpleNamespace(name=name, shape=shape, dtype=dtype, trains=trains)


def said_of(*tensors, how=None, versions=None, **more):
    block = SimpleNamespace(tensors=tensors or [tensor()], buffers=False)
    return agreement.described(SimpleNamespace(blocks=[block]), how or {}, versions or {}, **more)


def reach(*every):
    def call(ranks):
        with agreement.Agreement("wrap", ranks) as agreed:
            agreed.on("/tmp/run", every[ranks.rank])

    return [str(failure) for failure in on_ranks(call, len(every)) if failure is not None]


def groups(*names, **numbers):
    return {"groups": [{"params": list(names), **numbers}, {"params": ["z"]}]}


@pytest.mark.parametrize(
    "other, differs",
    [
        (
            said_of(tensor(shape=(2, 4))),
            r"a.weight of the model is \[2, 4\] torch.float32 trained on rank 1, and \[2, 3\]",
        ),
        (
            said_of(tensor(dtype=torch.bfloat16)),
            r"\[2, 3\] torch.bfloat16 trained on rank 1, and \[2, 3\] torch.float32",
        ),
        (said_of(tensor(trains=False)), "frozen on rank 1, and .* trained on rank 0"),
        (said_of(tensor("b.weight")), "a.weight of the model is missing on rank 1, and"),
        (said_of(tensor(), tensor("b.weight")), "b.weight of the model is .* on rank 1, and missing on rank 0"),
        (said_of(how={"lr": 0.5}), "lr is 0.5 on rank 1, and missing"),
        (said_of(versions={"torch": "2"}), "version of torch is 2 on rank 1"),
        (said_of(accept_step=3), "accept_step is 3 on rank 1"),
        (said_of(drives=["a"]), r"drives is \['a'\] on rank 1.*give all ranks the same, with {rank} and {host} for"),
    ],
)
def test_what_differs_is_named_on_all_ranks(other, differs):
    told = reach(said_of(), other, said_of())
    assert len(told) == 3 and len(set(told)) == 1 and "; give all ranks the same" in told[0]
    with pytest.raises(LongshoreError, match=f"wrap: the ranks differ: .*{differs}"):
        raise LongshoreError(told[0])


def test_groups_that_differ():
    told = reach(said_of(how=groups("a", "b", lr=1.0)), said_of(how=groups("a", lr=1.0)))
    assert told[0].startswith("wrap: the ranks differ: the group of b is missing on rank 1, and 0 on rank 0")
    told = reach(said_of(how=groups("a", lr=1.0)), said_of(how=groups("a", lr=2.0)))
    assert "groups[0].lr is 2.0 on rank 1, and 1.0 on rank 0" in told[0]


def test_seeds_and_budgets_may_differ():
    assert not reach(*(said_of(how={"seed": n, "gpu_memory": n, "default_memory": n}) for n in range(3)))


def test_other_numbers_of_threads_are_said():
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert not reach(*(said_of(versions={"threads": n}) for n in (4, 2)))
    assert {str(w.message) for w in warned} == {
        "wrap: threads is 2 on rank 1, and 4 on rank 0: their last bits may differ; OMP_NUM_THREADS sets it"
    }


def test_the_failure_of_one_rank_is_told_to_all():
    def call(ranks):
        with agreement.Agreement("wrap", ranks) as agreed:
            if ranks.rank == 1:
                raise ValueError("lr must be a number")
            agreed.on("/tmp/run", {})

    first, second, third = on_ranks(call, 3)
    assert type(second) is ValueError
    assert type(first) is LongshoreError and str(first) == "wrap: rank 1 failed: ValueError: lr must be a number"
    assert str(third) == str(first)


def test_what_all_ranks_raise_stays_as_it_is():
    def call(ranks):
        with agreement.Agreement("wrap", ranks):
            raise KeyError(ranks.rank)

    assert list(map(repr, on_ranks(call))) == ["KeyError(0)", "KeyError(1)"]


def test_a_failure_after_the_agreement_ends_all(tmp_path):
    every = []

    def call(ranks):
        every.append(ranks)
        with agreement.Agreement("wrap", ranks) as agreed:
            agreed.on(tmp_path / "run", {})
            raise ValueError("a full disk")

    assert [type(failure) for failure in on_ranks(call)] == [ValueError, ValueError]
    assert [len(ranks.failed) for ranks in every] == [1, 1]


def test_an_interrupt_ends_all():
    ranks = Fake(0, 2, (threading.Barrier(2), [None] * 2))
    with pytest.raises(KeyboardInterrupt), agreement.Agreement("wrap", ranks):
        raise KeyboardInterrupt
    assert len(ranks.failed) == 1


def test_the_run_is_one_directory_for_all(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()

    def look(*runs):
        return on_ranks(lambda ranks: agreement.refuse_other_directories(ranks, "wrap", runs[ranks.rank]), len(runs))

    assert look(tmp_path / "a" / "run" / "x", tmp_path / "b" / ".." / "a" / "run" / "x") == [None, None]
    for runs in ((tmp_path / "a" / "run", tmp_path / "b" / "run"), (tmp_path / "a" / "run", tmp_path / "a" / "other")):
        told = set(map(str, look(*runs)))
        assert all("is not one directory for all ranks: rank 1 on " in text for text in told)
        assert not [name for _, _, names in os.walk(tmp_path) for name in names]


def test_a_directory_that_rank_0_cannot_write_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(
        agreement, "open", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")), raising=False
    )
    run = tmp_path / "run"
    told = on_ranks(lambda ranks: agreement.refuse_other_directories(ranks, "wrap", run))
    assert {str(failure) for failure in told} == {f"wrap: {tmp_path}: rank 0 cannot write there: Read-only file system"}
