#!/usr/bin/env bash
# Snapshots where the file system shares blocks (XFS, btrfs), if one may be mounted: they take next to no room, hold what
# they held when training goes on, and leave nothing behind; a file system that fills up later costs neither state.
. "$(dirname "$0")/lib.sh"
PATH=$PATH:/usr/sbin:/sbin
gpt2_config "$place/config.json" 2 128 4 64 4000
some_text "$place/text" 100
common=(--init "$place/config.json" --data "$place/text" --batch 4 --seq-len 64 --steps 8 --memory 512MiB --quiet)
must train "${common[@]}" --drive ram: --out "$place/ram"
wanted=$(digest)
run=$place/run mnt=$place/mnt
mkdir "$mnt"
used() { # KiB
    sync -f "$mnt"
    df --output=used "$mnt" | tail -n 1
}
fill() { # not everywhere to the last block
    fallocate -l $((($(df --output=avail "$mnt" | tail -n 1) - 2000) * 1024)) "$mnt/fill" 2>/dev/null
}
holds() { # NAME DIGEST
    must inspect "$run" --digest --deep
    same "$1" "$(digest)" "$2"
}
# with KIND MKFS...: the file system is mounted afterwards, or said to be left out.
with() {
    local kind=$1
    shift
    rm -f "$place/image"
    truncate -s 400M "$place/image"
    if ! command -v "$1" >/dev/null; then
        echo "$kind: no $1: left out"
    elif ! device=$(losetup --find --show "$place/image" 2>/dev/null); then
        echo "$kind: no loop device: left out"
        device=
    elif "$@" "$device" >"$place/log" 2>&1 && mount -t "$kind" "$device" "$mnt" 2>>"$place/log"; then
        return 0
    else
        echo "$kind: cannot be mounted: left out"
        losetup -d "$device"
        device=
    fi
    return 1
}
check() {
    local kind=$1 at4 before state
    mkdir "$mnt"/d{1,2}
    must train "${common[@]}" --drive "$mnt/d1" "$mnt/d2" --drive-speeds 2,1 --out "$run" --stop-at 2
    fill
    must train --resume "$run" --stop-at 4 # a volume's room is its own
    rm "$mnt/fill"
    at4=$(digest)
    state=$(($(du -ck "$mnt"/d*/longshore*.volume | tail -n 1 | cut -f 1) / 3)) # at least so much is a slot's
    before=$(used)
    must snapshot "$run" four
    [ $(($(used) - before)) -lt $((state / 8)) ] && ok "$kind: shared" ||
        fail "$kind: a snapshot takes $(($(used) - before)) KiB, of a state of $state KiB and more"
    if command -v filefrag >/dev/null; then
        filefrag -v "$mnt"/d1/*.snapshot-four | grep -q shared && ok "$kind: shared extents" ||
            fail "$kind: filefrag sees no shared extents"
    fi
    must train --resume "$run"
    same "$kind: training goes on" "$(digest)" "$wanted"
    must rollback "$run" four
    holds "$kind: back" "$at4"

    # Writing where blocks are shared takes new ones.
    must snapshot "$run" more
    fill
    run train --resume "$run"
    if [ $rc = 0 ]; then same "$kind: enough room" "$(digest)" "$wanted"; else
        grep -q "No space left.*remove a snapshot" "$place/log" && ok "$kind: full" || fail "$kind: no word of a full file system"
    fi
    rm -f "$mnt/fill"
    must train --resume "$run"
    same "$kind: on, with room" "$(digest)" "$wanted"
    must rollback "$run" more
    holds "$kind: back once more" "$at4"
    must snapshot "$run" more --remove
    must snapshot "$run" four --remove
    holds "$kind: without snapshots" "$at4"
    must remove "$run"
    same "$kind: nothing is left" "$(find "$mnt" -name '*volume*' | wc -l)" 0
    umount "$mnt"
    losetup -d "$device"
    device=
}
with xfs mkfs.xfs -q -m reflink=1 && check xfs
with btrfs mkfs.btrfs -q && check btrfs
done_testing
