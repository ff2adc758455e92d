#!/usr/bin/env bash
# A whole block device as a drive, if a loop device may be had: refused while it is mounted or anything is on it, taken
# when it is told to, left without a trace of the run when that is removed.
. "$(dirname "$0")/lib.sh"
# Of a run with nothing but its refusal to show for it.
clean() { [ ! -e "$place/run" ] && [ "$(blkid -p -o value -s TYPE "$device")" = "$1" ] && ok "$2" || fail "$2"; }

gpt2_config "$place/config.json" 2 64 4 64 300
some_text "$place/text" 100
common=(--init "$place/config.json" --data "$place/text" --batch 4 --seq-len 64 --steps 3 --memory 512MiB --quiet)
must train "${common[@]}" --drive ram: --out "$place/ram"
wanted=$(digest)
truncate -s 64M "$place/image"
PATH=$PATH:/usr/sbin:/sbin
if ! command -v blkid >/dev/null || ! device=$(losetup --find --show "$place/image" 2>/dev/null); then
    echo "no loop device: left out"
    done_testing
fi

must train "${common[@]}" --drive "$device" --out "$place/run" --stop-at 1
refused "the device of another run" "holds|belongs|longshore|volume" train "${common[@]}" --drive "$device" --out "$place/second"
refused "a benchmark on the device of a run" "$device: the device holds a volume of longshore's" \
    bench disk --drive "$device" --size 16MiB --chunk-size 1MiB
must train --resume "$place/run"
same "the digest on a device" "$(digest)" "$wanted"

# Where a new run has to take the old one's place, its values are read first, and the run that goes is named.
must export "$place/run" --out "$place/bad"
weights=$(ls "$place/bad"/*.safetensors)
printf '\377\177' | dd of="$weights" bs=1 seek=$(($(stat -c %s "$weights") - 2)) conv=notrunc status=none
gives_way() { # DRIVE of the finished run
    refused "$1: a weight" "holds NaN" train "${common[@]:2}" --model "$place/bad" --drive "$1" --out "$place/run" --overwrite
    must inspect "$place/run" --digest --deep
    same "$1: the run stays" "$(digest)" "$wanted"
    must train "${common[@]}" --drive "$1" --out "$place/run" --overwrite
    grep -q "$place/run: the drives have no room for two runs: the run that is there, at step 3, goes" "$place/log" &&
        ok "$1: the run that goes is named" || fail "$1: the run that goes is not named"
    same "$1: overwritten" "$(digest)" "$wanted"
    must remove "$place/run"
}
gives_way "$device"
socket=$(mktemp -d)/s
serve --root "$device"
must train "${common[@]}" --drive "unix:$socket" --out "$place/run"
gives_way "unix:$socket"
stop_serving
rm -rf "$(dirname "$socket")"
must train "${common[@]}" --drive "$device" --out "$place/run"

# It has no room for two placements or a copy: it comes and goes, and holds still in between. Behind a server too.
mkdir "$place/dir"
socket=$(mktemp -d)/s
serve --root "$device"
stays() { # NAME DRIVE ADDED
    before=$(cksum <"$place/run/run.json")
    refused "$1: another drive" "$device is a block device and would have to hold.*move it to a file first" \
        drive add "$place/run" "$3"
    refused "$1: other shares" "$device is a block device and would have to hold" drive move "$place/run" --drive-speeds 1
    refused "$1: a snapshot" "$device: a block device has no room" snapshot "$place/run" x
    same "$1: nothing has changed" "$(cksum <"$place/run/run.json")" "$before"
    [ -z "$(ls -A "$place/dir")" ] && ok "$1: nothing new" || fail "$1: something was made"
    must drive move "$place/run" "$2=$place/dir"
    same "$1: it left" "$(blkid -p -o value -s TYPE "$device")$(head -c 65536 "$device" | tr -d '\0' | wc -c)" 0
    must inspect "$place/run" --digest --deep
    same "$1: digest" "$(digest)" "$wanted"
}
stays "a device" "$device" "$place/dir"
must drive move "$place/run" "$place/dir=unix:$socket"
stays "a device there" "unix:$socket" "$place/dir"
stop_serving
rm -rf "$(dirname "$socket")"
must drive move "$place/run" "$place/dir=$device"
must remove "$place/run"
clean "" "a removed run leaves nothing on its device"
refused "the run is gone" "not a run" inspect "$place/run"

refused "a device that is not there" "/dev/longshore-none: there is no such device" \
    train "${common[@]}" --drive /dev/longshore-none --out "$place/run"
blockdev --setro "$device"
refused "a device that only reads" "$device: the device is read-only" train "${common[@]}" --drive "$device" --out "$place/run"
blockdev --setrw "$device"
clean "" "it is as it was"

if mkfs.ext4 -q "$device" 2>/dev/null; then
    refused "a file system on the device" "ext4" train "${common[@]}" --drive "$device" --out "$place/run"
    clean ext4 "the file system stays"
    mkdir "$place/mnt"
    if mount "$device" "$place/mnt" 2>/dev/null; then
        refused "a mounted device" "in use|mounted|busy" train "${common[@]}" --drive "$device" --out "$place/run"
        refused "a mounted device, overwriting" "in use|mounted|busy" train "${common[@]}" --drive "$device" \
            --out "$place/run" --overwrite
        clean ext4 "the mounted file system stays"
        umount "$place/mnt"
    fi
    must train "${common[@]}" --drive "$device" --out "$place/run" --overwrite
    same "the digest over a file system" "$(digest)" "$wanted"
    must inspect "$place/run" --digest --deep
    same "every byte of it" "$(digest)" "$wanted"
fi
truncate -s 1M "$place/small"
losetup -d "$device" && device=$(losetup --find --show "$place/small") || device=
[ -z "$device" ] || refused "a device that is too small" "needs .* (has|have) " train "${common[@]}" --drive "$device" \
    --out "$place/small_run"
done_testing
