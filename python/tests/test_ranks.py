"""What ranks say to each other, in processes of their own."""

import os
import queue
import re
import threading
import time

import pytest
import torch

from longshore.errors import LongshoreError, RankError
from longshore.ranks import launch
from longshore.ranks.launch import ranks
from longshore.ranks.ranks import Ranks
from rank_processes import free_port, processes, results


def test_one_process_is_one_rank():
    before = threading.active_count()
    r = Ranks()
    assert (r.rank, r.size) == (0, 1) and r.meet("here", 5) == [5] and threading.active_count() == before
    r.come("a pass")
    r.take_rank_0s(torch.ones(2))
    r.fail(ValueError())
    r.close()
    assert r.meet("here", 6) == [6]


def meets():
    r = ranks(200)
    big = r.meet("big", torch.full((2 << 20,), float(r.rank)))
    small = [r.meet(f"small {i}", (r.rank, i)) for i in range(200)]
    return r.rank, [t[-1].item() for t in big], small == [[(k, i) for k in range(r.size)] for i in range(200)]


@pytest.mark.parametrize("size", [2, 3])
def test_all_get_what_all_bring(size):
    assert results(size, meets) == [(k, [float(i) for i in range(size)], True) for k in range(size)]


def asks():
    r = ranks(200)
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
    assert [done.get(timeout=200) for _ in range(500 + r.rank)] == [None] * (500 + r.rank)
    assert all(out.tolist() == [r.rank, i % 200, 7] * 3 for i, out in enumerate(outs)) and order == list(range(20))
    r.meet("the end")
    r.serve("bytes", None)
    return r.rank == 0 or torch.equal(whole, torch.arange(64 << 20, dtype=torch.uint8))


def test_asks_cross_while_ranks_meet():
    assert results(2, asks) == [True, True]


def waits(what):
    try:
        r = ranks(200)
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
    assert time.monotonic() - began < 200


def evaluates_alone():
    r = ranks(200)
    r.serve("segments", lambda asking, numbers: bytes([r.rank, *numbers]))
    for _loop in range(3):
        r.come("a forward pass")
        if r.rank == 0:  # the others wait for it, and serve
            for i in range(50):
                r.come("a forward pass")
                out, done = torch.empty(2, dtype=torch.uint8), queue.SimpleQueue()
                r.ask(1, "segments", (i,), out, done.put)
                assert done.get(timeout=200) is None and out.tolist() == [1, i]
        r.meet("engine.save()")
    if r.rank == 1:
        return says(lambda: r.meet("engine.digest()"))
    return says(lambda: r.come("a forward pass"))


def says(call):
    try:
        call()
    except RankError as error:
        return str(error)


def test_a_rank_that_evaluates_alone_goes_on_while_the_others_meet():
    """It is one check-in behind and ahead of the others at last: those since the last meet count alone."""
    assert results(2, evaluates_alone)[0] is None  # as rank 1 is at a meet; rank 0 ends then
    assert "rank 0 has ended, and rank 1 is at engine.digest()" in results(2, evaluates_alone)[1]


def checks_in_alone():
    r = ranks(200)
    if r.rank == 0:
        r.come("a forward pass")
        r.timeout = 2
        return says(lambda: r.come("a forward pass"))
    r.come("a forward pass")
    time.sleep(200)  # until the test ends it


def test_an_evaluation_by_rank_0_alone_is_named():
    with processes(2, checks_in_alone) as all_:
        assert all_.said(0)[1].startswith(
            "rank 1 has not come to a forward pass within 2 s: every rank must call it, also if rank 0 alone needs the "
            "result, as in an evaluation; rank_timeout= says"
        )


def takes():
    r = ranks(200)
    torch.manual_seed(r.rank)
    tensors = [
        torch.rand(3, 5).t(),
        torch.rand(7).to(torch.bfloat16),
        torch.tensor(r.rank),
        torch.rand(0),
        torch.rand(2) > r.rank,
    ]
    tensors.append(torch.nn.Parameter(torch.rand(4)))
    for t in tensors:
        r.take_rank_0s(t)
    return [t.tolist() for t in tensors], says(lambda: r.take_rank_0s(torch.zeros(2 + r.rank)))


def test_all_take_rank_0s_values():
    first, second = results(2, takes)
    assert first[0] == second[0] and first[0][2] == 0 and first[0][4] == [True, True]
    assert all(
        "taking rank 0's values: rank" in said and "((2,), 'torch.float32')" in said for _, said in (first, second)
    )


def serves_late():
    r = ranks(200)
    if r.rank == 0:
        out, done = torch.empty(1, dtype=torch.uint8), queue.SimpleQueue()
        r.ask(1, "late", (), out, done.put)
        r.meet("asked")
        r.meet("answered", done.get(timeout=200))
        return out.item()
    began, goes_on = threading.Event(), threading.Event()

    def handler(*_):
        began.set()
        goes_on.wait(200)
        return b"5"

    r.meet("asked")
    r.serve("late", handler)
    began.wait(200)
    threading.Timer(0.2, goes_on.set).start()
    r.serve("late", None)  # returns once the handler has
    assert goes_on.is_set()
    return r.meet("answered")


def test_what_is_asked_for_early_waits_for_who_serves_it():
    assert results(2, serves_late) == [ord("5"), [None, None]]


def forks_off():
    r = ranks(200)
    child = os.fork()
    if not child:
        wanted = "the ranks of a run: this process was forked from the one that works on its run"
        os._exit(0 if says(lambda: r.meet("a child")) == wanted == says(lambda: ranks().come("a pass")) else 1)
    assert os.waitpid(child, 0)[1] == 0
    return r.meet("parents", r.rank)


def test_a_forked_child_leaves_the_ranks_alone():
    assert results(2, forks_off) == [[0, 1]] * 2


def restarts(own):
    if own:
        store = torch.distributed.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store_of_agent())
        torch.distributed.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
    r = ranks()
    own and torch.distributed.destroy_process_group()
    return r.meet("here", r.timeout)


def store_of_agent(**how):
    return torch.distributed.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), wait_for_workers=False, **how)


@pytest.mark.parametrize("own", [False, True], ids=["made from the environment", "of the script"])
def test_restarted_ranks_do_not_look_for_ended_ones(own, monkeypatch):
    """torchrun keeps its store, with what the ended processes wrote to it."""
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    agent = {"MASTER_PORT": os.environ["MASTER_PORT"], "TORCHELASTIC_USE_AGENT_STORE": "True"}
    store = store_of_agent(is_master=True)
    for attempt in range(3):
        said = results(2, restarts, own, TORCHELASTIC_RESTART_COUNT=str(attempt), **agent)
        assert said == [[1800.0] * 2] * 2
    del store


def test_srun_says_who_is_there(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "4")  # a batch script, which is one process
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert launch._launched() is None and launch.local_rank() is None
    said = {"STEP_NUM_TASKS": "4", "STEP_NODELIST": "gpu[07-09,12],cpu1", "PROCID": "3", "LOCALID": "1", "JOB_ID": "77"}
    for name, value in said.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert launch._launched() == (3, 4, "gpu07", 20770) and launch.local_rank() == 1
    monkeypatch.setenv("SLURM_STEP_NODELIST", "big-node,other")
    assert launch._launched()[2] == "big-node"
    monkeypatch.setenv("WORLD_SIZE", "2")  # torchrun under srun
    with pytest.raises(LongshoreError, match="WORLD_SIZE=2 says .* RANK is not set"):
        launch._launched()
