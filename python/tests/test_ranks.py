"""What ranks say to each other, in processes of their own."""

import queue
import re
import threading
import time

import pytest
import torch

from longshore.errors import RankError
from longshore.ranks.launch import ranks
from longshore.ranks.ranks import Ranks
from rank_processes import results


def test_one_process_is_one_rank():
    r = Ranks()
    assert (r.rank, r.size) == (0, 1) and r.meet("here", 5) == [5] and threading.active_count() == 1
    r.come("a pass")
    r.take_rank_0s(torch.ones(2))
    r.fail(ValueError())
    r.close()
    assert r.meet("here", 6) == [6]


def meets():
    r = ranks(20)
    big = r.meet("big", torch.full((2 << 20,), float(r.rank)))
    small = [r.meet(f"small {i}", (r.rank, i)) for i in range(200)]
    return r.rank, [t[-1].item() for t in big], small == [[(k, i) for k in range(r.size)] for i in range(200)]


@pytest.mark.parametrize("size", [2, 3])
def test_all_get_what_all_bring(size):
    assert results(size, meets) == [(k, [float(i) for i in range(size)], True) for k in range(size)]


def asks():
    r = ranks(20)
    big = torch.arange(64 << 20, dtype=torch.uint8) if r.rank == 0 else None

    def handler(asking, numbers):
        return big if numbers == ("big",) else bytes([asking, *numbers]) * 3

    r.serve("bytes", handler)
    done, order = queue.SimpleQueue(), []
    outs = [torch.empty(9, dtype=torch.uint8) for _ in range(500)]
    other = 1 - r.rank

    def asks_many(half):
        for i in range(half, 500, 2):
            r.ask(other, "bytes", (i % 200, 7), outs[i], done.put)

    threads = [threading.Thread(target=asks_many, args=(half,)) for half in (0, 1)]
    [t.start() for t in threads]
    if r.rank == 1:
        whole = torch.empty(64 << 20, dtype=torch.uint8)
        r.ask(0, "bytes", ("big",), whole, done.put)
    order = [r.meet("meanwhile", i)[other] for i in range(20)]
    [t.join() for t in threads]
    assert [done.get(timeout=20) for _ in range(500 + r.rank)] == [None] * (500 + r.rank)
    assert all(out.tolist() == [r.rank, i % 200, 7] * 3 for i, out in enumerate(outs)) and order == list(range(20))
    r.meet("the end")
    r.serve("bytes", None)
    return r.rank == 0 or torch.equal(whole, torch.arange(64 << 20, dtype=torch.uint8))


def test_asks_cross_while_ranks_meet():
    assert results(2, asks) == [True, True]


def waits(what):
    try:
        r = ranks(20)
        if r.rank == 0:
            r.meet("engine.step()")
        elif what == "elsewhere":
            r.meet("engine.digest()")
        elif what == "fails":
            r.fail(ValueError("no such thing"))
        elif what == "ends":
            r.close()
        r.meet("after")
    except RankError as error:
        with pytest.raises(RankError, match="^" + re.escape(str(error)) + "$"):
            ranks().come("a forward pass")
        return str(error)


def test_what_goes_wrong_is_named_at_once():
    began = time.monotonic()
    elsewhere = "at engine.digest() and rank"
    assert all(elsewhere in said or "at engine.step() and rank" in said for said in results(2, waits, "elsewhere"))
    assert results(2, waits, "fails") == ["rank 1 failed: ValueError: no such thing"] * 2
    first, second = results(2, waits, "ends")
    assert "rank 1 has ended" in first and "engine.step()" in first and "its part" in second
    assert time.monotonic() - began < 60
