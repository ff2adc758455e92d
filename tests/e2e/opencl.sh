#!/usr/bin/env bash
# Drives that compute on an OpenCL device (PoCL, which is this processor): the digest of drives of this host, alone and
# beside them, across kills, moves, snapshots and resumes; --update host; what is refused.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
steps=24
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps $steps --batch 8 --seq-len 64 --lr 2e-3
        --memory 512MiB --quiet)
mkdir "$place"/d{1,2,3}
run train "${common[@]}" --drive "opencl:$place/d1" --out "$place/first" --stop-at 1
if [ "${CI:-}" != true ] && grep -q "no libOpenCL.so.1 here\|no platform here has a device" "$place/log"; then
    ok "$(tail -n 1 "$place/log")"
    echo "skipped: $(tail -n 1 "$place/log")"
    done_testing
fi
same "a first run" $rc 0
must remove "$place/first"

# The same digest, and every byte of it.
must train "${common[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)
# agrees NAME RUN
agrees() {
    same "$1: digest" "$(digest)" "$wanted"
    must inspect "$2" --digest --deep
    same "$1: every byte" "$(digest)" "$wanted"
}
for how in "--clip 0.3" "--optimizer adagrad --moments 8bit" "--optimizer sgd --momentum 0.9 --compress 1%"; do
    read -ra more <<<"$how"
    merge common --steps 4 "${more[@]}" --overwrite
    must train "${merged[@]}" --drive ram: --out "$place/r"
    here=$(digest)
    must train "${merged[@]}" --drive "opencl:$place/d1" --out "$place/o"
    same "one device: $how" "$(digest)" "$here"
    must train "${merged[@]}" --drive "opencl:$place/d1" "$place/d2" "opencl:$place/d3/own.volume" --out "$place/o"
    same "a mixed fleet: $how" "$(digest)" "$here"
    [[ $how != *compress* ]] || continue # which needs drives that compute
    must train "${merged[@]}" --drive "opencl:$place/d1" --update host --out "$place/o"
    same "computed by the host: $how" "$(digest)" "$here"
done
must remove "$place/o"

# Killed 20 times, on a mixed fleet.
start=$(date +%s%N)
run train "${common[@]}" --drive "opencl:$place/d1" "$place/d2" --out "$place/again"
limit=$((($(date +%s%N) - start) / 1000000 / 3 + 100))
agrees "a mixed fleet" "$place/again"
kill_and_resume "$place/killed" 20 $limit "${common[@]}" --drive "opencl:$place/d3" "$place/d2/k.volume" "opencl:$place/d2/o.volume"
same "exit code after $kills kills" $rc 0
run inspect "$place/killed" --digest
agrees "after $kills kills" "$place/killed"
same "steps in metrics.jsonl" "$(metric "$place/killed" step | tr '\n' ' ')" "$(seq -s ' ' 1 $steps) "

# A run moves between this host and devices: by a copy, and where it lies.
run=$place/moved
must train "${common[@]}" --drive "$place/d1" --out "$run" --stop-at 5
must drive move "$run" "$place/d1=opencl:$place/d1"
must drive list "$run"
grep -q "^opencl:$place/d1: .*OpenCL device ." "$place/log" && ok "the device is named" || fail "drive list names no device"
must drive list "$run" --json
grep -q '"opencl":"[^"]' "$place/log" && ok "the device is named in JSON" || fail "drive list --json names no device"
documented "drive list" "$place/log"
same "one volume" "$(find "$place/d1" -name '*moved*' | wc -l)" 1
must train --resume "$run" --quiet --stop-at 9
at9=$(digest)
must snapshot "$run" nine
must drive add "$run" "$place/d2/added.volume" --drive-speeds 1,1
must drive move "$run" "opencl:$place/d1=$place/d1" "$place/d2/added.volume=opencl:$place/d2/added.volume"
must train --resume "$run" --quiet --stop-at 12 --drive "$place/d1=opencl:$place/d1"
must rollback "$run" nine
must inspect "$run" --digest --deep
same "back at the snapshot" "$(digest)" "$at9"
must drive move "$run" "opencl:$place/d2/added.volume=$place/d3/again.volume"
must train --resume "$run" --quiet
agrees "moved to and fro" "$run"
refused "a drive twice" "twice" drive add "$run" "$place/d1" --drive-speeds 1,1,1
refused "a device that is not there" "no such device" train --resume "$run" --opencl device=absent

must doctor --drive "opencl:$place/d1" --json
grep -q '"check":"opencl:[^}]*OpenCL device .*computes UPDATE' "$place/log" && ok "doctor names the device" || fail "doctor names no device"
documented "doctor" "$place/log"
run doctor --drive "opencl:$place/d1" --opencl device=absent
same "doctor of no device" "$rc $(grep -c "^FAIL .*there is no such device" "$place/log")" "1 1"
must bench disk --drive "opencl:$place/d1" --size 16MiB --passes 1

# What is refused: exit code 2, and nothing is made.
nothing() {
    local name=$1 pattern=$2
    shift 2
    refused "$name" "$pattern" train "${common[@]}" --out "$place/none" --drive "opencl:$place/none.volume" "$@"
    [ ! -e "$place/none" ] && [ ! -e "$place/none.volume" ] && ok "$name: nothing is made" || fail "$name: something is made"
}
nothing "no such device" "device=.*there is no such device" --opencl device=absent
nothing "an unknown key" "takes device=" --opencl speed=1
nothing "little memory" "too little" --opencl memory=64KiB
nothing "not a program" "no program for the device" --opencl "binary=$place/text"
nothing "no path" "where is its storage" --drive opencl:
for other in ram: unix:/s:/d "opencl:$place/d1"; do
    nothing "opencl:$other" "opencl:$other: where is its storage" --drive "opencl:$other"
done
merge common --memory 40MiB
must train "${merged[@]}" --drive "$place/d3" --out "$place/small" --stop-at 1
refused "a small budget" "40.00 MiB of memory is too little .*: minimum .*; that is the run's budget, and --memory gives another" \
    train --resume "$place/small" --drive "$place/d3=opencl:$place/d3"
refused "a small budget that is given" "45.00 MiB of memory is too little .*: minimum [0-9.]+ MiB$" \
    train --resume "$place/small" --drive "$place/d3=opencl:$place/d3" --memory 45MiB
must train --resume "$place/small" --drive "$place/d3=opencl:$place/d3" --memory 512MiB --quiet
same "a larger budget" "$(digest)" "$wanted"
OCL_ICD_VENDORS=$place nothing "no platform" "no platform"
LONGSHORE_OPENCL=device=absent nothing "a variable" "no such device"
socket=$place/s
serve
refused "of a server" "of its own host" train "${common[@]}" --out "$place/none" --drive "unix:$socket:opencl:$place/none.volume"
stop_serving
done_testing
