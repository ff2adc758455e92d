#!/usr/bin/env bash
# A change of drives and a rollback keep the budget that the run was trained with, also its least one, or --memory. And
# where they are refused, nothing has been written; where something has, the exit code is 1.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 256 4 64 8000
some_text "$place/text" 100
base=(--init "$place/config.json" --data "$place/text" --steps 4 --batch 2 --seq-len 32 --threads 1)
mkdir "$place"/d{1,2,3,4}
# within NAME BYTES ARGS...
within() {
    local name=$1 bytes=$2 peak
    shift 2
    "${guard[@]}" "$PEAK" "$LONGSHORE" "$@" >"$place/log" 2>&1 </dev/null
    rc=$?
    peak=$(sed -n 's/^peak \([0-9]*\)$/\1/p' "$place/log")
    if [ $rc = 0 ] && [ "$peak" -le "$bytes" ]; then ok "$name"; else fail "$name: exit code $rc, peak $peak of $bytes"; fi
}
run train "${base[@]}" --drive "$place/d1" --dry-run --json
least=$(sed -n 's/.*"minimum_bytes":\([0-9]*\).*/\1/p' "$place/log")
must train "${base[@]}" --drive "$place/d1" --memory "$least" --out "$place/run" --stop-at 2
wanted=$(digest)
must snapshot "$place/run" two
within "drive add" "$least" drive add "$place/run" "$place/d2" "$place/d3" --drive-speeds 1,1,1
grep -q "training on 3 drives needs a budget of .* at least" "$place/log" && ok "said" || fail "needs more memory now: not said"
within "drive move" "$least" drive move "$place/run" "$place/d2=$place/d4"
within "drive remove" "$least" drive remove "$place/run" "$place/d3"
must train --resume "$place/run" --memory 512MiB --stop-at 3
within "rollback with --memory" "$least" rollback "$place/run" two --memory "$least"
within "drive move with --memory" "$least" drive move "$place/run" "$place/d4=$place/d2" --memory "$least"
must inspect "$place/run" --deep
same "digest" "$(digest)" "$wanted"
for command in "drive add $place/run $place/d3" "rollback $place/run two"; do
    # shellcheck disable=SC2086
    refused "too little" "1.00 MiB of memory is too little" $command --memory 1MiB
done

# Refused: no drive has a new epoch, and no file of the run is another one.
state() { sha256sum "$place/run/run.json" "$place"/d1/longshore*.volume.g? "$place"/d2/longshore*.volume* | cut -c1-64; }
before=$(state)
echo taken >"$place/d3/own.volume"
refused "a place that is taken" "own.volume" drive add "$place/run" "$place/d3/own.volume" --drive-speeds 1,1,1
refused "to a place that is taken" "own.volume" drive move "$place/run" "$place/d2=$place/d3/own.volume"
same "nothing was written" "$(state)" "$before"
[ -e "$place/run/moving.json" ] && fail "moving.json stays"
# Some drives have the new epoch, and one cannot be written: that is no refusal.
FAIL_IO="write 0 28 d2/longshore" LD_PRELOAD=$FAIL_IO_SO expect_failure 1 "one drive's epoch" "No space left" \
    train --resume "$place/run" --io threads --memory 512MiB
must train --resume "$place/run" --memory 512MiB
done_testing
