"""Which volumes the drives of several ranks are, and which rank owns which.

Each rank says what it sees (offered(), seen()), all exchange it, and every rank computes the same from all of it
(volumes_of(), owners_of()). In a directory each rank has a volume of its own. Files, devices and drives of other hosts
are one volume each, and ranks that name the same ones share them out. Volumes of a rank follow each other.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections import defaultdict
from typing import NamedTuple

from .. import native
from ..errors import LongshoreError, MissingError
from ..native import ffi, lib

_BOOT = "/proc/sys/kernel/random/boot_id"  # the same in all containers of a machine
_NAME_CHARACTERS = 40  # of the run's directory, in the name of a volume


class Offer(NamedTuple):
    """A drive as one rank sees it."""

    path: str
    kind: str  # "directory", "device", "file" (also one that is still to be made), or "server" of another host
    machine: str
    host: str
    same: str  # equal for two names of one thing; "": nothing is there yet


def filled(drives, rank):
    """Drives with {rank} and {host} replaced by this rank and this host's name."""
    return [drive.replace("{rank}", str(rank)).replace("{host}", socket.gethostname()) for drive in drives]


def offered(drives, run):
    """An Offer of each drive, as filled() returns them, for a run that is to be made."""
    machine, host = _machine(), socket.gethostname()
    out = []
    for drive in drives:
        if re.match(r"(ssh|unix|ram|null):", drive):
            out.append(Offer(drive, "server", machine, host, ""))
            continue
        device = "opencl:" if drive.startswith("opencl:") else ""  # which computes beside that path
        path, kind, same = os.path.abspath(drive[len(device) :]), "file", ""
        try:
            st = os.stat(path)
            is_device = stat.S_ISBLK(st.st_mode)
            kind = "directory" if stat.S_ISDIR(st.st_mode) else "device" if is_device else "file"
            same = f"{machine} {('device', st.st_rdev) if is_device else (st.st_dev, st.st_ino)}"
        except OSError:
            if os.path.realpath(path) == os.path.realpath(run):
                kind = "directory"  # the run's own, which is made with it
        twice = next((o.path for o in out if same and o.same == same), None)
        if twice is not None:
            raise LongshoreError(f"drives: {twice} and {path} are the same place; name it once")
        out.append(Offer(f"{device}{path}", kind, machine, host, same))
    return out


def _machine():
    try:
        with open(_BOOT) as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def volumes_of(offers, run, ending):
    """(paths of the fleet's volumes in order, the rank that owns each) of a new run.

    offers: what offered() returned on each rank. ending: 8 hexadecimal digits, the same on all ranks, which no other
    run has. One rank alone keeps the names of its directories, and the library names the volumes in them.
    """
    ranks, columns = len(offers), _columns(offers)
    shared, own = defaultdict(list), defaultdict(list)  # {ranks that name it: [(entry, path)]}, {rank: [(entry, path)]}
    for entry, column in enumerate(columns):
        if column[0].kind == "directory":
            for rank, offer in enumerate(column):
                name = os.path.join(offer.path, _name(run, ending, rank)) if ranks > 1 else offer.path
                own[rank].append((entry, name))
            continue
        for path in dict.fromkeys(offer.path for offer in column):
            shared[_naming(column, path)].append((entry, path))
    for naming, volumes in shared.items():
        for rank, volume in _shared_out(volumes, naming):
            own[rank].append(volume)
    return [path for rank in range(ranks) for _, path in sorted(own[rank])], [
        rank for rank in range(ranks) for _ in own[rank]
    ]


def _columns(offers):
    """The Offers of all ranks for each drive. Raises LongshoreError if ranks do not see the same kind of drives."""
    for rank, own in enumerate(offers):
        if len(own) != len(offers[0]):
            raise LongshoreError(
                f"drives: rank {rank} names {len(own)}, and rank 0 names {len(offers[0])}: give all ranks the same list"
            )
    columns, known = list(zip(*offers)), {}
    for column in columns:
        at = next((rank for rank, offer in enumerate(column) if offer.kind == "directory"), None)
        for rank, offer in enumerate(column):
            if at is not None and offer.kind != "directory":
                raise LongshoreError(
                    f"drives: {column[at].path} is a directory for rank {at} on {column[at].host}, and rank {rank} on "
                    f"{offer.host} has none at {offer.path}: make it there, or put {{host}} or {{rank}} into the path "
                    "where it differs"
                )
            first, before = known.setdefault(offer.same or (rank, offer.path), (rank, offer))
            if offer.kind != "directory" and before.path != offer.path:
                raise LongshoreError(
                    f"drives: {before.path} of rank {first} and {offer.path} of rank {rank} are the same {offer.kind}, "
                    "which two ranks would own: give all of them one name for it, or each a drive of its own with "
                    "{rank} in the path"
                )
    return columns


def _naming(column, path):
    """The ranks that share a volume which is no directory."""
    naming = {rank: offer for rank, offer in enumerate(column) if offer.path == path}
    seeing = {rank: offer for rank, offer in naming.items() if offer.kind == "device"} or naming
    hosts = {offer.machine: offer.host for offer in seeing.values() if offer.kind == "device"}
    if len(hosts) > 1:
        raise LongshoreError(
            f"drives: {path} is a device of its own on each of the hosts {', '.join(sorted(hosts.values()))}, and the "
            "run could not tell them apart: name each by a path that has {host} in it, such as a symbolic link"
        )
    return tuple(seeing)


def _shared_out(volumes, naming):
    """[(rank, volume)]: volumes that these ranks see, in equal parts that follow each other. With fewer volumes than
    ranks the first rank has one, since a rank keeps its state with each step on its own volumes."""
    n, parts = len(volumes), len(naming)
    return [(naming[k], v) for k in range(parts) for v in volumes[-(-k * n // parts) : -(-(k + 1) * n // parts)]]


def _name(run, ending, rank):
    """The file name of a rank's volume in a directory: as the library names volumes, and with the rank."""
    base = os.path.basename(os.path.abspath(run))
    plain = re.sub(r"[^0-9A-Za-z._-]", "_", os.fsencode(base).decode("latin-1"), flags=re.ASCII)
    return f"longshore-{plain[:_NAME_CHARACTERS] or 'run'}-{ending}.rank{rank}.volume"


# ---- a run that is there ---------------------------------------------------------------------------------------------


def seen(volumes, fleet):
    """Which volumes of a run this rank can open. fleet: the fleet's id, as run.json has it: 32 hexadecimal digits.
    A volume behind a server counts as seen."""
    ids = ffi.new("uint64_t[2]", [int(fleet[:16], 16), int(fleet[16:], 16)])
    return [lib.shore_drive_holds(native.path_bytes(path), ids, number) for number, path in enumerate(volumes)]


def owners_of(volumes, seen_by, hosts):
    """The rank that owns each volume of a run. Where all ranks see all volumes, rank r of R has those
    from r*V/R to (r+1)*V/R, both rounded up.

    seen_by: what seen() returned on each rank. hosts: of each rank, for messages.
    """
    owners, at = [], 0
    while at < len(volumes):
        seeing, end = _seeing(seen_by, at), at + 1
        if not seeing:
            raise MissingError(
                f"{volumes[at]}: no rank finds this volume of the run there; ranks run on "
                f"{', '.join(dict.fromkeys(hosts))}: start one on the host that has it, or put it back"
            )
        while end < len(volumes) and (both := seeing & _seeing(seen_by, end)):
            seeing, end = both, end + 1
        free = sorted(seeing.difference(owners))
        if not free:
            rank = min(seeing)
            raise LongshoreError(
                f"{volumes[at]}: only rank {rank} on {hosts[rank]} and others there find this volume, and volumes of "
                "a rank must follow each other: start more ranks there, or give hosts the ranks in the order of their "
                "volumes"
            )
        owners += [rank for rank, _ in _shared_out(volumes[at:end], free)]
        at = end
    return owners


def _seeing(seen_by, number):
    return {rank for rank, sees in enumerate(seen_by) if sees[number]}
