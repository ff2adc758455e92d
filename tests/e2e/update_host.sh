#!/usr/bin/env bash
# --update host gives the bits of UPDATE beside the drives, wherever the state lies, whatever the budget, and across
# kills; and moves over the link what ZeRO-Infinity moves.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 3 128 4 64 600
some_text "$place/text" 300
common=(--init "$place/config.json" --seed 7 --data "$place/text" --steps 6 --batch 12 --seq-len 64 --lr 3e-3
        --warmup 1 --log-every 1)
# way NAME ARGS...: a run of its own; its digest in $found.
way() {
    local name=$1
    shift
    rm -rf "$place/run" "$place"/d[1-3]
    mkdir "$place"/d{1,2,3}
    run train "${common[@]}" --out "$place/run" "$@"
    found=$(digest)
    [ $rc = 0 ] || fail "$name: exit code $rc"
}
agrees() {
    way "$@"
    same "$1" "$found" "$wanted"
}
d=("$place"/d{1,2,3})
for precision in bf16 fp32; do
    how=(--precision $precision --memory 1GiB)
    way "$precision speculating beside the drive" --speculate on --clip 100 --drive ram: "${how[@]}"
    speculated=$found
    way "$precision beside the drive" --drive ram: "${how[@]}"
    wanted=$found
    [ -n "$wanted" ] && ok "a digest" || fail "no digest"
    agrees "$precision in memory" --update host --drive ram: "${how[@]}"
    agrees "$precision two in memory" --update host --drive ram: ram: "${how[@]}"
    agrees "$precision one drive" --update host --drive "${d[0]}" "${how[@]}"
    agrees "$precision three drives" --update host --drive "${d[@]}" "${how[@]}"
    # speculation has nothing to say here
    way "$precision speculating" --update host --speculate on --clip 100 --drive "${d[@]}" "${how[@]}"
    same "$precision speculating" "$found" "$speculated"
done
way "bf16 beside the drive" --drive ram: --memory 1GiB
wanted=$found
run train "${common[@]}" --update host --drive "${d[0]}" --dry-run
least=$(sed -nE 's/^memory: minimum (.*)/\1/p' "$place/log")
agrees "the least budget" --update host --drive "${d[@]:0:1}" --memory "$least"
refused "below it" "minimum $least" train "${common[@]}" --update host --drive "${d[0]}" --memory 30MiB --out "$place/other"
agrees "clipping every step" --update host --drive "${d[@]}" --memory 1GiB
same "clipped" "$(metric "$place/run" speculated | sort -u)" false

# Bytes a parameter: 16 in, 16 out. State goes in whole segments, gradients without the padding behind blocks.
json=$("$LONGSHORE" inspect "$place/run" --json)
segments=$(sed -nE 's/.*"segments": ?([0-9]+), ?"model".*/\1/p' <<<"$json")
parameters=$(sed -nE 's/.*"parameters": ?([0-9]+).*/\1/p' <<<"$json")
same "state on the link" "$(metric "$place/run" link_state | tail -n 1)" $((segments * 65536 * 24))
gradients=$(metric "$place/run" link_gradients | tail -n 1)
awk -v g="$gradients" -v p="$parameters" 'BEGIN {exit !(g >= 8 * p && g < 8.1 * p)}' && ok "gradients on the link" ||
    fail "$gradients bytes of gradients on the link for $parameters parameters"

# It may change from start to start, and a kill costs nothing.
way "stopped" --update host --drive "${d[@]}" --memory 1GiB --stop-at 2
run train --resume "$place/run" --update drive --stop-at 4
run train --resume "$place/run" --update host
same "host, drive, host" "$(digest)" "$wanted"
way "stopped at once" --update host --drive "${d[@]}" --memory 1GiB --stop-at 1
kills=0
for ((start = 0; start < 20; start++)); do
    "$LONGSHORE" train --resume "$place/run" >"$place/log" 2>&1 </dev/null &
    background=$!
    nap 100000 400000
    [ $start -lt 6 ] && kill -9 $background 2>/dev/null && kills=$((kills + 1))
    wait $background 2>/dev/null
    rc=$?
    background=
    [ $rc = 137 ] || break
done
same "after $kills kills" "$rc $(digest)" "0 $wanted"
run inspect "$place/run" --digest --deep
same "every byte" "$(digest)" "$wanted"

# verify trains in that way, too.
mkdir "$place/tmp"
merge common --steps 2
TMPDIR=$place/tmp "${guard[@]}" "$LONGSHORE" verify "${merged[@]}" --update host --drive "$place/d1" \
    >"$place/log" 2>&1 </dev/null &
background=$!
while kill -0 $background 2>/dev/null && ! how=$(grep -hs '"update"' "$place/tmp"/*/0/run.json); do sleep 0.01; done
wait $background
same "verify" "$? $(tail -n 1 "$place/log")" "0 the same bits everywhere"
background=
same "on the host" "${how//[ ,]/}" '"update":"host"'

# bench update takes the same way.
run bench update --drive "$place/d1" "$place/d2" --params 4M --steps 1 --update host --quiet
grep -qE '^bytes a parameter and step on the host link: 16\.[0-9]+ in, 16\.[0-9]+ out$' "$place/log" && ok "bench update" ||
    fail "bench update does not move 16 bytes each way"
done_testing
