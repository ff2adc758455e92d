#!/usr/bin/env bash
# A run that is overwritten stays, whole and resumable, until the new one is made, whatever fails on the way. Where the
# drives have no room for both, everything that can fail is asked first, and the run that goes is named.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 64 4 32 300
some_text "$place/text" 40
run=$place/over/r drive=$place/over/d
mkdir -p "$drive"
common=(--init "$place/config.json" --data "$place/text" --batch 2 --seq-len 32 --memory 256MiB --io threads --quiet)
files() { (cd "$place/over" && find . -printf '%p %i\n' | sort); }
# stays WHY: the run that was there is whole, and nothing of another is left
stays() {
    must inspect "$run" --digest --deep
    same "$1: the digest" "$(digest)" "$was"
    same "$1: the files" "$(files)" "$listed"
}
made() { # DRIVE...: the run that will be overwritten
    must train "${common[@]}" --seed 1 --steps 3 --drive "$@" --out "$run"
    was=$(digest)
    listed=$(files)
}
new=(train "${common[@]}" --steps 1 --out "$run" --overwrite)

# Each call that touches the run or its drive fails once (EVERY=1; otherwise one of so many, from a random one on). What ends with 2 has changed nothing.
# What ends with 0 or 1 may have: then the new run is whole, and a volume that could not be removed is named.
each_call_fails() { # DRIVE EVERY
    local n=$((RANDOM % $2))
    made "$1"
    while true; do
        rm -f "$place/failed"
        FAIL_IO="any $n 5 $place/over" FAIL_IO_LOG=$place/failed LD_PRELOAD=$FAIL_IO_SO run "${new[@]}" --seed $((n + 2)) --drive "$1"
        [ -e "$place/failed" ] || break
        local what="$1: call $n, $(tr '\n' ' ' <"$place/failed")" code=$rc
        # what cannot be read then is not known to be the old run's
        grep -qE "^(open|read) .*(longshore-r-[^/]*|making/run.json|v[.]volume[^/]*)$" "$place/failed" && [ $code = 0 ] &&
            (cd "$drive" && ls -t | tail -n +2 | xargs -r rm)
        for stray in $(sed -n 's/.*longshore: \([^:]*\): .* yours to remove$/\1/p' "$place/log"); do [ ! -f "$stray" ] || rm "$stray"; done
        run inspect "$run" --digest
        same "$what: it opens" $rc 0
        if [ "$(digest)" != "$was" ]; then
            [ $code != 2 ] || fail "$what: exit code 2, and the run is gone"
            was=$(digest)
            must train --resume "$run"
            listed=$(files)
            same "$what: the volumes" "$(ls "$drive" | wc -l)" 1
        elif [ $code != 0 ]; then
            same "$what: the files" "$(files)" "$listed"
        fi
        n=$((n + $2))
    done
    same "$1: none fails" $rc 0
    must remove "$run"
    same "$1: nothing is left" "$(find "$place/over" -type f)" ""
}
each_call_fails "$drive" "${EVERY:-4}"
each_call_fails "$drive/v.volume" "${EVERY:-16}"

# Values that cannot be stored, in a directory, a file, and on another host.
must train "${common[@]}" --steps 1 --drive ram: --out "$place/source"
must train "${common[@]}" --steps 1 --drive "$place/source.volume" --out "$place/source" --overwrite
must export "$place/source" --out "$place/model"
must export "$place/source" --dtype fp32 --moments --out "$place/moments"
cp -r "$place/model" "$place/bad"
weights=$(ls "$place/bad"/*.safetensors)
printf '\377\177' | dd of="$weights" bs=1 seek=$(($(stat -c %s "$weights") - 2)) conv=notrunc status=none
squares=$(ls "$place/moments"/optimizer/exp_avg_sq/*.safetensors)
printf '\200\277' | dd of="$squares" bs=1 seek=$(($(stat -c %s "$squares") - 2)) conv=notrunc status=none
bad=(train "${common[@]:2}" --model "$place/bad" --steps 1 --out "$run" --overwrite)
negative=(train "${common[@]:2}" --model "$place/moments" --steps 1 --out "$run" --overwrite)
socket=$place/socket
serve --root "$place/over"
for where in "$drive" "$drive/v.volume" "unix:$socket:$drive" "unix:$socket:$drive/w.volume"; do
    made "$where"
    refused "$where: a weight" "holds NaN at .*: these weights cannot be used" "${bad[@]}" --drive "$where"
    stays "$where: a weight"
    refused "$where: a second moment" "exp_avg_sq: the tensor .* holds a negative number at" "${negative[@]}" --drive "$where"
    stays "$where: a second moment"
    must "${new[@]}" --drive "$where"
    same "$where: the volumes" "$(ls "$drive" | wc -l)" 1
    must remove "$run"
done
stop_serving

# No room for two.
if mkdir "$place/mnt" && mount -t tmpfs -o size=64m longshore-overwrite "$place/mnt" 2>/dev/null; then
    drive=$place/mnt
    made "$drive"
    mount -o remount,size=$(($(du -sk "$drive" | cut -f 1) * 3 / 2))k "$place/mnt"
    refused "no room: a weight" "holds NaN" "${bad[@]}" --drive "$drive"
    stays "no room: a weight"
    kept=("${guard[@]}")
    guard=(prlimit --fsize=1048576 "${guard[@]}")
    refused "no room: the limit of file sizes" "may write files of 1.00 MiB" "${new[@]}" --drive "$drive"
    guard=(prlimit --nofile=16 "${kept[@]}")
    refused "no room: the limit of open files" "too few files" "${new[@]}" --drive "$drive"
    guard=("${kept[@]}")
    stays "no room: limits"
    must "${new[@]}" --drive "$drive"
    grep -q "$run: the drives have no room for two runs: the run that is there, at step 3, goes before" "$place/log" &&
        ok "the run that goes is named" || fail "the run that goes is not named"
    same "no room: the volumes" "$(ls "$drive" | wc -l)" 1
    must remove "$run"
    mount -o remount,size=1m "$place/mnt"
    refused "a dry run looks at the room" "there is too little room on the drives: needs .*, has 1.00 MiB" \
        train "${common[@]}" --steps 1 --drive "$drive" --out "$run" --dry-run
    grep -q "^disk: " "$place/log" && ok "and prints its figures" || fail "a dry run prints nothing"
    umount "$place/mnt"
fi
done_testing
