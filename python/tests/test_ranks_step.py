"""Steps of two ranks: the same bits as one process that adds in the same groups."""

import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import longshore
import standin
from longshore.ranks.launch import ranks
from longshore.run.engine_surface import core_of
from longshore.step.reduce_scatter import END, ReduceScatter
from rank_processes import results

WIDTH = 192  # a layer has 4 segments


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.down(torch.relu(self.up(x))))


class Net(nn.Module):
    """The last layer is a branch that a batch of negative numbers does not reach. norm: the class of a norm."""

    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.first, self.norm = nn.Linear(8, WIDTH), norm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.branch = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])

    def forward(self, x, y):
        h = self.norm(self.first(x))
        for layer in self.layers:
            h = layer(h)
        if bool(x[0, 0] > 0):
            h = self.branch[0](h)
        return (h.mean(-1) - y).float().pow(2).mean()


def batches(count, seed=3):
    generator = torch.Generator().manual_seed(seed)
    data = [(torch.randn(4, 8, generator=generator), torch.randn(4, generator=generator)) for _ in range(count)]
    for i, (x, _) in enumerate(data):
        x[0, 0] = 1 if i % 2 else -1
    return data


def share(data, sizes=None):
    """This rank's part of a step's micro-batches."""
    r = ranks()
    sizes = sizes if sizes and r.size > 1 else [len(data) // r.size] * r.size
    return data[sum(sizes[: r.rank]) :][: sizes[r.rank]]


def engine_for(run, net, **how):
    torch.set_num_threads(1)
    ranks(60)
    how = {"sum_groups": 2, "lr": 1e-2, "memory": "64M", "clip": 0.5, **how}
    return longshore.wrap(net, run=run, **how)


def loss_fn(output, batch):
    return output


def together(engine, mine, step):
    return engine.train_batch(mine, loss_fn)


def loop(engine, mine, step):
    engine.accumulate = len(mine)
    for batch in mine:
        engine.backward(engine(*batch))
    return engine.step()


def own(engine, mine, step):
    engine.accumulate = len(mine)
    for batch in mine:
        (engine(*batch) / len(mine)).backward()
    return engine.step()


def clipped(engine, mine, step):
    """As scripts clip and change gradients themselves."""
    engine.accumulate = len(mine)
    for batch in mine:
        (engine(*batch) / len(mine)).backward()
    norm = torch.nn.utils.clip_grad_norm_(engine.parameters(), 0.3)
    with torch.no_grad():
        engine.module.layers[0].up.weight.grad.mul_(0.5)
    if step == 1:
        engine.module.layers[1].down.bias.grad = torch.ones(WIDTH) * float(norm)
    return engine.step()


def read(engine, mine, step):
    """Reads what the ordinary step leaves."""
    engine.accumulate = len(mine)
    for batch in mine:
        engine.backward(engine(*batch))
    seen = {n: p.grad.clone() for n, p in engine.named_parameters() if p.grad is not None}
    norm = engine.grad_norm()
    result = engine.step()
    assert result.grad_norm == norm
    assert all(torch.equal(p.grad, seen[n]) for n, p in engine.named_parameters() if p.grad is not None)
    return result


def adding(engine, mine, step):
    """The second step adds to the first one's gradients, of which a rank owns a part of some tensors alone."""
    engine.accumulate = len(mine)
    for batch in mine:
        (engine(*batch) / len(mine)).backward()
    norm = float(engine.grad_norm())
    engine.optimizer.step()
    if step == 1:
        engine.optimizer.zero_grad()
    return f"{norm:.4f}"


def hooked(engine, mine, step):
    if step == 0:
        engine.module.layers[2].up.weight.register_hook(lambda g: g * 0.5)
        engine.module.layers[2].down.weight.register_post_accumulate_grad_hook(lambda p: None)
    return loop(engine, mine, step)


def more_than_said(engine, mine, step):
    """engine.backward() cannot know that another pass follows, nor which number over all ranks a micro-batch has."""
    engine.module.eval()
    for batch in mine:
        engine.backward(engine(*batch) / len(mine))
    return engine.step()


def trained(run, way, steps=3, count=4, sizes=None, norm=nn.LayerNorm, dtype=torch.float32, change=None, room=1, **how):
    """(digest, what each step says, {name: buffer})"""
    torch.manual_seed(5)
    data, said = batches(steps * count), []
    if change is not None:
        change(data)
    with engine_for(run, Net(norm).to(dtype), **how) as engine:
        core_of(engine).gradients.room *= room
        for step in range(steps):
            mine = [(x.to(dtype), y) for x, y in share(data[step * count : (step + 1) * count], sizes)]
            said.append(str(way(engine, mine, step)))
        state = {n: b.tolist() for n, b in engine.module.named_buffers()}
        return engine.digest(), said, state


def all_of(run, cases):
    out = {}
    for name, (way, how) in cases.items():
        out[name] = trained(f"{run}/{name}", way, **how)
    return out


def infinite(data):
    data[3][0][0, 1] = math.inf


CASES = {
    "together": (together, {}),
    "loop": (loop, {}),
    "own": (own, {}),
    "own, bf16": (own, {"dtype": torch.bfloat16}),
    "together, bf16": (together, {"dtype": torch.bfloat16}),
    "4 groups": (together, {"sum_groups": 4}),
    "4 groups in a loop": (loop, {"sum_groups": 4}),
    "clipped by the script": (clipped, {"clip": 0.0}),
    "read": (read, {}),
    "hooked": (hooked, {}),
    "adding to the last step": (adding, {}),
    "no room": (together, {"room": 0, "count": 2}),
    "small memory": (together, {"memory": "34M"}),
    "all by rank 0": (together, {"sizes": [4, 0], "sum_groups": None}),
    "all by rank 1": (together, {"sizes": [0, 4], "sum_groups": None}),
    "more passes than said": (more_than_said, {"sum_groups": None}),
    "skipped": (together, {"change": infinite, "on_nonfinite": "skip"}),
}

OTHER_BITS = {"more passes than said", "adding to the last step"}  # their sums are the same to rounding


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """By number of ranks: what all_of() returns in each."""
    path = tmp_path_factory.mktemp("runs")
    for size in (1, 2):
        (path / str(size)).mkdir()
    return {size: results(size, all_of, str(path / str(size)), CASES, OMP_NUM_THREADS="1") for size in (1, 2)}


def goes_on(run, first, steps, resumes):
    """Makes these steps of a run of four groups. Returns (digest, what each says)."""
    ranks(60), torch.manual_seed(5), torch.set_num_threads(1)
    data, said = batches(24)[4 * first :], []
    net = Net()
    engine = longshore.resume(run, net) if resumes else engine_for(run, net, sum_groups=4)
    with engine:
        for step in range(steps):
            way = (together, loop)[step % 2]
            said.append(str(way(engine, share(data[4 * step :][:4]), step)))
        return engine.digest(), said


def test_another_number_of_ranks_goes_on_with_the_same_bits(tmp_path):
    (alone,) = results(1, goes_on, str(tmp_path / "alone"), 0, 6, False, OMP_NUM_THREADS="1")
    run, said = str(tmp_path / "run"), []
    for first, size in ((0, 4), (2, 2), (4, 1)):
        of = results(size, goes_on, run, first, 2, first > 0, OMP_NUM_THREADS="1")
        assert of == [of[0]] * size
        said += of[0][1]
    assert (of[0][0], said) == alone


def uneven(run):
    """What each way of giving a rank too few or no micro-batches says."""
    said = []
    with engine_for(run, Net(), sum_groups=4) as engine:
        for mine in (share(batches(3), [2, 1]), []):
            with pytest.raises((longshore.LongshoreError, ValueError)) as refused:
                engine.train_batch(mine, loss_fn)
            said.append(str(refused.value))
        engine.train_batch(share(batches(4)), loss_fn)  # the refused steps have left nothing
        engine.train_batch(share(batches(4)), loss_fn)
        return said, engine.step_number


def test_all_ranks_refuse_what_one_cannot_cut_into_its_groups(tmp_path):
    of = results(2, uneven, str(tmp_path / "run"), OMP_NUM_THREADS="1")
    assert of[0] == of[1] and of[0][1] == 2
    (groups, none) = of[0][0]
    assert "1 micro-batch" in groups and "multiple of 2" in groups and "no micro-batches" in none


def fails(run, where):
    torch.manual_seed(5)
    data = share(batches(4))
    with engine_for(run, Net()) as engine:
        engine.train_batch(data, loss_fn)

        def loss(output, batch):
            if ranks().rank == 1 and batch is data[where]:
                raise KeyError("a batch that only rank 1 has")
            return output

        try:
            engine.train_batch(data, loss)
        except KeyError:
            return "its own"
        except longshore.LongshoreError as failure:
            return str(failure)


@pytest.mark.parametrize("where", [0, 1])
def test_an_exception_on_one_rank_is_said_on_all(where, tmp_path):
    first, second = results(2, fails, str(tmp_path / "run"), where, OMP_NUM_THREADS="1")
    assert second == "its own"
    assert "rank 1 failed" in first and "a batch that only rank 1 has" in first


def compressed(run):
    with pytest.raises(ValueError) as refused:
        engine_for(run, Net(), compress=0.01)
    return str(refused.value)


def test_compression_is_refused(tmp_path):
    assert all("works in one process" in said for said in results(2, compressed, str(tmp_path / "run")))


def test_a_rank_waits_for_those_that_have_published_less_and_go_on():
    r = object.__new__(ReduceScatter)
    r.round, r.others, r.counts, r.ranks = 3, [0, 2], {7: 1, 6: 1}, SimpleNamespace(failed=False)
    r.told = {(0, 3, 7, 0), (0, 3, 6, 0), (2, 3, 7, 0), (2, 2, 6, 0)}
    assert r._is_ahead()
    r.told.add((2, 3, END, 0))
    assert not r._is_ahead()
    r.counts[5] = 1
    assert r._is_ahead()  # of rank 0
    r.ranks.failed = True
    assert not r._is_ahead()


def test_a_failure_of_the_ranks_stays_a_rank_error():
    r = object.__new__(ReduceScatter)
    r.failure = longshore.RankError("rank 1 has ended")
    with pytest.raises(longshore.RankError, match="rank 1 has ended"):
        r._are_here(0)


class Deep(nn.Module):
    """Each layer fills four segments."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 512, False), nn.ReLU(), nn.Linear(512, 256, False)) for _ in range(12)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.float().pow(2).mean()


def counts_bytes(run):
    net = Deep().bfloat16()
    elems = sum(p.numel() for p in net.parameters())
    with engine_for(run, net, memory="34M") as engine:
        for _ in range(9):
            engine.train_batch([torch.randn(2, 256, dtype=torch.bfloat16)], loss_fn)
        engine.settle()
        with open(f"{run}/metrics.jsonl") as lines:
            return [json.loads(line)["rank_bytes"] / elems for line in lines]


def test_parameters_cross_twice_and_gradients_once(tmp_path):
    of_steps = results(2, counts_bytes, str(tmp_path / "run"), OMP_NUM_THREADS="1")[0][1:]
    # what is fetched ahead may count with the step before
    assert 6 < sum(of_steps) / len(of_steps) < 2 * 2 + 4, of_steps


def on_device(run):
    standin.make()
    data, said = batches(12), {}
    for way in (together, loop, own):
        torch.manual_seed(5)
        with engine_for(f"{run}/{way.__name__}", Net().to(standin.NAME), gpu_memory="64M") as engine:
            of_way = said[way.__name__] = []
            for step in range(3):
                mine = [(x.to(engine.device), y.to(engine.device)) for x, y in share(data[4 * step :][:4])]
                of_way.append(str(way(engine, mine, step)))
            of_way.append(engine.digest())
    return said


@pytest.mark.skipif(standin.why_not() is not None, reason="the stand-in for a device is not built")
def test_two_ranks_on_a_device_have_the_bits_of_one(tmp_path):
    (tmp_path / "1").mkdir(), (tmp_path / "2").mkdir()
    (alone,) = results(1, on_device, str(tmp_path / "1"), OMP_NUM_THREADS="1")
    assert results(2, on_device, str(tmp_path / "2"), OMP_NUM_THREADS="1") == [alone, alone]


def normed(run):
    return trained(run + "/of rank 0", together, norm=nn.BatchNorm1d, sizes=[2, 2])


def in_ddp(run):
    """What says that DistributedDataParallel is not needed; the CPU of a rank has a number in Accelerate."""
    with engine_for(run, Net()) as engine:
        assert engine.to("cpu:1") is engine
        with pytest.raises(longshore.LongshoreError) as refused:
            nn.parallel.DistributedDataParallel(engine)
        engine.train_batch(share(batches(2)), loss_fn)
    return str(refused.value)


def test_distributed_data_parallel_is_refused(tmp_path):
    assert all("use it as it is" in said for said in results(2, in_ddp, str(tmp_path / "run")))


def said_by_wrap(run):
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("longshore").addHandler(handler)
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").addHandler(handler)
    for norm in (nn.LayerNorm, nn.BatchNorm1d):
        with engine_for(f"{run}/{norm.__name__}", Net(norm)) as engine:
            at_wrap = [text for text in said if "rank 0's" in text]
            engine.train_batch(share(batches(2)), loss_fn)
    return at_wrap, [text for text in said if "rank 0's" in text]


def test_wrap_says_of_buffers_when_bits_are_equal(tmp_path):
    (at_wrap, all_), others = results(2, said_by_wrap, str(tmp_path), OMP_NUM_THREADS="1")
    assert len(all_) == 1 and at_wrap == all_ and "norm.num_batches_tracked" in all_[0] and others == ([], [])


def test_buffers_are_rank_0s(tmp_path):
    of = results(2, normed, str(tmp_path), OMP_NUM_THREADS="1")
    assert of[0][2].keys() == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert of[0] == of[1] and of[0][2]["norm.num_batches_tracked"] == 3 * 2


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_have_the_bits_of_one_process(said, case):
    (alone,) = said[1]
    for rank, of in enumerate(said[2]):
        assert of[case][1] == alone[case][1] and of[case] == said[2][0][case], rank
        assert of[case][0] == alone[case][0] or case in OTHER_BITS
