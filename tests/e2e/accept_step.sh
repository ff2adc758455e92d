#!/usr/bin/env bash
# The newest step's state is damaged on one of several drives, and the other slots hold the step before: --accept-step
# goes on from that one, once all of it has been read, and says what is lost. Never without need, and never to what is
# not whole.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 64 4 32 300
some_text "$place/text" 100
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps 6 --batch 2 --seq-len 32 --memory 512MiB)
mkdir "$place/d"
must train "${common[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)
flip() { # FILE OFFSET: inverts one byte
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    printf "\\$(printf %03o $((byte ^ 255)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
# damage RUN VOLUME PLANE: the first byte found whose loss is one of this plane of the committed step
damage() {
    local at size
    size=$(stat -c %s "$2")
    for ((at = 1048576 + 77; at < size; at += 131072)); do
        flip "$2" $at
        run inspect "$1" --deep
        [ $rc = 1 ] && grep -q "plane $3 " "$place/log" && return
        flip "$2" $at
    done
    fail "no byte of plane $3 was found in $2"
}
made() { # RUN DRIVE...
    must train "${common[@]}" --drive "${@:2}" --out "$1" --stop-at 4
}
socket=$place/socket
serve --root "$place/d"
made "$place/run" "$place/d/one.volume" "unix:$socket:$place/d/two.volume"
run inspect "$place/run" --digest --accept-step 3
same "nothing is given up without need" $rc 2
grep -q "step 4 is whole on every drive" "$place/log" || fail "not said that step 4 is whole"
refused "a step that is gone" "step 2 cannot be accepted: .* no longer holds it" train --resume "$place/run" --accept-step 2
for volume in two.volume one.volume; do
    damage "$place/run" "$place/d/$volume" hi
    # more than once: a start that meets the damage leaves the step before as it is
    for _ in 1 2 3; do
        expect_failure 1 "damage on $volume" "add --accept-step 3 to go on from the step before" \
            train --resume "$place/run"
    done
    must train --resume "$place/run" --accept-step 3 --stop-at 4
    grep -q "step 4 is given up for step 3: every byte of that step was read and is whole: .*d/$volume: block" "$place/log" &&
        ok "says what is lost" || fail "not said that step 4 is given up"
    same "metrics" "$(metric "$place/run" step | tr '\n' ' ')" "1 2 3 4 "
done
must inspect "$place/run" --json
grep -q '"what":"accept-step 3' "$place/log" && ok "recorded" || fail "going back is not recorded"
must train --resume "$place/run"
same "the digest" "$(digest)" "$wanted"
stop_serving

# What UPDATE reads: it meets the damage when the other slot is half overwritten.
made "$place/late" "$place/d/late.volume"
damage "$place/late" "$place/d/late.volume" v
run train --resume "$place/late" --accept-step 3
same "before anything was tried" "$rc $(digest)" "0 $wanted"
must remove "$place/late"
made "$place/late" "$place/d/late.volume"
damage "$place/late" "$place/d/late.volume" v
run train --resume "$place/late"
same "UPDATE meets the damage" $rc 1
for _ in 1 2; do
    expect_failure 1 "half overwritten" "step 3 cannot be accepted: it is not whole either|checksum" \
        train --resume "$place/late" --accept-step 3
done
done_testing
