"""Which volumes the drives of several ranks are, and who owns which: longshore/drives/rank_drives.py."""

import json
import os
import random
import socket

import pytest

from longshore.drives import rank_drives
from longshore.drives.rank_drives import Offer
from longshore.errors import LongshoreError, MissingError

ENDING = "5c98e889"


def offers(kind, *paths, ranks=2, hosts=None, same=None):
    """What so many ranks say of the same drives. {rank} and {host} are filled in."""
    hosts = hosts or ["a"] * ranks

    def offer(rank, path):
        path = path.replace("{rank}", str(rank)).replace("{host}", hosts[rank])
        return Offer(path, kind, f"machine {hosts[rank]}", hosts[rank], same[rank] if same else "")

    return [[offer(rank, path) for path in paths] for rank in range(ranks)]


def of(found, run="/runs/a"):
    return rank_drives.volumes_of(found, run, ENDING)


def test_each_rank_has_a_volume_in_each_directory():
    paths, owners = of(offers("directory", "/mnt/0", "/mnt/1"))
    own = [f"/mnt/{d}/longshore-a-5c98e889.rank{r}.volume" for r in (0, 1) for d in (0, 1)]
    assert (paths, owners) == (own, [0, 0, 1, 1])


def test_one_rank_leaves_the_names_to_the_library():
    assert of(offers("directory", "/mnt/0", "/mnt/1", ranks=1)) == (["/mnt/0", "/mnt/1"], [0, 0])


def test_a_volume_is_named_after_the_run():
    paths, _ = of(offers("directory", "/mnt"), run="/runs/größe & mehr, viel mehr, noch viel mehr davon")
    name = os.path.basename(paths[0])
    assert name.startswith("longshore-gr____e___mehr__viel_mehr") and len(name) == len("longshore-") + 40 + 22


@pytest.mark.parametrize("kind", ["device", "file", "server"])
def test_ranks_share_out_what_is_no_directory(kind):
    names = [f"/dev/{n}" for n in range(5)]
    assert of(offers(kind, *names)) == (names, [0, 0, 0, 1, 1])
    assert of(offers(kind, *names[:3], ranks=4)) == (names[:3], [0, 1, 2])  # one of them has none


def test_a_path_with_the_rank_is_that_ranks():
    assert of(offers("device", "/dev/{rank}a", "/dev/{rank}b")) == (
        ["/dev/0a", "/dev/0b", "/dev/1a", "/dev/1b"],
        [0, 0, 1, 1],
    )


def test_a_path_with_the_host_is_shared_by_the_ranks_there():
    hosts = ["a", "a", "b", "b"]
    found = of(offers("device", "/dev/{host}0", "/dev/{host}1", ranks=4, hosts=hosts))
    assert found == (["/dev/a0", "/dev/a1", "/dev/b0", "/dev/b1"], [0, 1, 2, 3])
    found = of(offers("file", "/{host}", ranks=4, hosts=hosts))
    assert found == (["/a", "/b"], [0, 2])


def test_directories_and_devices_together_keep_a_ranks_volumes_side_by_side():
    both = [[*a, *b] for a, b in zip(offers("device", "/dev/0", "/dev/1"), offers("directory", "/mnt"))]
    paths, owners = of(both)
    assert [os.path.dirname(path) for path in paths] == ["/dev", "/mnt", "/dev", "/mnt"] and owners == [0, 0, 1, 1]


def test_directories_of_the_same_path_on_two_hosts_have_names_of_their_own():
    paths, owners = of(offers("directory", "/mnt", hosts=["a", "b"]))
    assert len(set(paths)) == 2 and owners == [0, 1]


def test_a_device_of_the_same_path_on_two_hosts_is_refused():
    with pytest.raises(LongshoreError, match=r"/dev/0 is a device of its own on each of the hosts a, b.*\{host\}"):
        of(offers("device", "/dev/0", hosts=["a", "b"]))


def test_a_device_of_one_host_belongs_to_the_ranks_there():
    found = offers("device", "/dev/0", "/dev/1", hosts=["a", "b"])
    found[0] = [offer._replace(kind="file") for offer in found[0]]  # not there
    assert of(found) == (["/dev/0", "/dev/1"], [1, 1])


def test_two_names_of_one_device_are_refused():
    with pytest.raises(
        LongshoreError, match=r"/by-id/0 of rank 0 and /by-id/1 of rank 1 are the same device, which two"
    ):
        of(offers("device", "/by-id/{rank}", same=["device 8", "device 8"]))


def test_a_directory_that_a_host_lacks_is_named():
    found = offers("directory", "/mnt", hosts=["a", "b"])
    found[1] = [found[1][0]._replace(kind="file")]
    with pytest.raises(LongshoreError, match="/mnt is a directory for rank 0 on a, and rank 1 on b has none at /mnt"):
        of(found)


def test_lists_of_other_lengths_are_refused():
    found = offers("file", "/0", "/1")
    with pytest.raises(LongshoreError, match="rank 1 names 1, and rank 0 names 2: give all ranks the same list"):
        of([found[0], found[1][:1]])


def test_what_a_rank_offers(tmp_path):
    for name in ("dir", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_bytes(b"")
    names = ["dir", "file", "none", "run"]
    found = rank_drives.offered([*(str(tmp_path / n) for n in names), "ssh://h/p"], tmp_path / "run")
    assert [o.kind for o in found] == ["directory", "file", "file", "directory", "server"]
    assert bool(found[0].same) and not found[2].same
    (tmp_path / "link").symlink_to(tmp_path / "dir")
    with pytest.raises(LongshoreError, match="dir and .*link are the same place; name it once"):
        rank_drives.offered([str(tmp_path / "dir"), str(tmp_path / "link")], tmp_path / "run")


def test_the_rank_and_the_host_are_filled_in():
    here = socket.gethostname()
    assert rank_drives.filled(["/a/{host}/{rank}", "/{other}"], 3) == [f"/a/{here}/3", "/{other}"]


# ---- a run that is there


def owners(seen_by, hosts=None):
    return rank_drives.owners_of([f"/v{n}" for n in range(len(seen_by[0]))], seen_by, hosts or ["a"] * len(seen_by))


@pytest.mark.parametrize("volumes", [1, 2, 5, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_all_see_all(volumes, ranks):
    expected = [r for r in range(ranks) for _ in range(-(-r * volumes // ranks), -(-(r + 1) * volumes // ranks))]
    assert owners([[True] * volumes] * ranks) == expected


def test_the_ranks_of_a_host_own_the_volumes_there():
    a, b = [True, True, True, False], [False, False, False, True]
    assert owners([a, a, b, b]) == [0, 0, 1, 2]
    assert owners([b, b, a, a]) == [2, 2, 3, 0]  # the hosts have other ranks than before
    assert owners([a, b]) == [0, 0, 0, 1]


def test_volumes_that_all_see_lie_between_those_of_hosts():
    a, b = [True, True, True, False, True, False], [True, False, True, True, True, True]
    assert owners([a, b]) == [0, 0, 0, 1, 1, 1]


def test_a_volume_that_no_rank_sees_is_named():
    with pytest.raises(MissingError, match=r"/v1: no rank finds this volume of the run there; ranks run on a, b:"):
        owners([[True, False], [True, False]], ["a", "b"])


def test_volumes_of_a_rank_that_would_lie_apart_are_named():
    with pytest.raises(LongshoreError, match=r"/v2: only rank 0 on a"):
        owners([[True, False, True], [False, True, False]], ["a", "b"])


def test_any_views_give_each_volume_one_owner_that_sees_it():
    seed = random.randrange(2**32)
    print("seed", seed)
    drawn, made = random.Random(seed), 0
    for _ in range(300):
        ranks, volumes = drawn.randint(1, 6), drawn.randint(1, 9)
        seen_by = [[drawn.random() < 0.8 for _ in range(volumes)] for _ in range(ranks)]
        try:
            found = owners(seen_by)
        except LongshoreError:
            continue
        made += 1
        assert all(seen_by[rank][n] for n, rank in enumerate(found)) and len(found) == volumes
        assert len([n for n in range(volumes) if n == 0 or found[n] != found[n - 1]]) == len(set(found))
    assert made > 50


def test_a_rank_sees_the_volumes_of_its_run_alone(tmp_path):
    import torch

    import longshore

    for name in ("a", "b"):
        torch.manual_seed(0)
        longshore.wrap(torch.nn.Linear(4, 4), run=tmp_path / name, memory="64MiB").close()
    at = {name: json.loads((tmp_path / name / "run.json").read_text()) for name in ("a", "b")}
    volume = {name: next(str(path) for path in (tmp_path / name).glob("*.volume")) for name in at}
    assert rank_drives.seen([volume["a"]], at["a"]["fleet"]) == [True]
    assert rank_drives.seen([volume["b"], "/nowhere", "ssh://h/p"], at["a"]["fleet"]) == [False, False, True]
    assert rank_drives.seen(["/nowhere", volume["a"]], at["a"]["fleet"]) == [False, False]  # it is drive 0, not 1
    with open(volume["a"], "r+b") as file:
        file.write(bytes(4096))
    assert rank_drives.seen([volume["a"]], at["a"]["fleet"]) == [True]  # by its other header
