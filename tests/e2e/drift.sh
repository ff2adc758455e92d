#!/usr/bin/env bash
# A drive that gets slow in mid-run: the training plans again between two steps, says so, records it, and changes no bit.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 4 128 4 128 600
some_text "$place/text" 300
mkdir "$place"/d{1,2}
common=(--init "$place/config.json" --seed 7 --data "$place/text" --batch 24 --seq-len 128 --clip 100 --steps 1000)
# machine NAME MB MORE: with a drive of so many megabytes a second
machine() {
    echo '{"drives": [{"read": "'"$2"'MB", "write": "'"$2"'MB"'"$3"'}],
           "compute": {"products": {"fp32": "20GB", "bf16": "20GB"}}}' >"$place/$1.json"
}
machine mid 400 ', "slower-after": 8, "slower-by": 40'
machine slow 10 ''
must train "${common[@]}" --stop-at 24 --memory 512MiB --drive ram: --out "$place/plain"
wanted=$(digest)

# With memory for everything there is no better plan, which it says once.
machine third 60 ', "slower-after": 7, "slower-by": 3'
must train --init "$place/config.json" --data "$place/text" --batch 2 --seq-len 64 --steps 30 --memory 512MiB \
    --emulate "$place/third.json" --drive "$place/d2" --out "$place/third"
same "told" "$(grep -cE 'planned again, since .*/d2.* takes [0-9.]+ times as long.*: no other plan saves' "$place/log")" 1
grep -q '"what": "planned again' "$place/third/run.json" && fail "it records a plan that it has not taken" || ok "same plan"

# moved MACHINE MEMORY: bytes that a step moves, by the plan for it
moved() {
    "$LONGSHORE" plan "${common[@]}" --emulate "$place/$1.json" --drive "$place/d1" --memory "$2" --json 2>"$place/log" |
        sed -nE 's/.*"drive_(read|write)_bytes": ?([0-9]+).*/\2/p' | awk '{s += $1} END {print s + 0}'
}
# A budget with which the two plans differ.
memory=$(for m in {60..130..6}; do echo "$(moved mid ${m}MiB) $(moved slow ${m}MiB) ${m}MiB"; done |
    awk '$2 > 0 && $1 > 1.1 * $2 && $1 / $2 > most {most = $1 / $2; best = $3} END {print best}')
[ -n "$memory" ] && ok "budget" || fail "with no budget, the plan for the slow drive moves less"
common+=(--memory "${memory:-100MiB}")

must train "${common[@]}" --stop-at 6 --emulate "$place/slow.json" --drive "$place/d2" --out "$place/slow"
grep -q 'planned again' "$place/log" && fail "it plans again on a machine that stays as it is" || ok "it stays"

"$LONGSHORE" train "${common[@]}" --emulate "$place/mid.json" --drive "$place/d1" --out "$place/run" >"$place/log" 2>&1 &
background=$!
planned() { grep -q '"what": "planned again' "$place/run/run.json" 2>/dev/null; }
await planned
nap 0 500000
kill -9 $background
wait $background 2>/dev/null
background=
grep -qE 'from step [0-9]+ on: planned again, since .*/d1/.* takes [0-9.]+ times as long.*: by simulation, a step takes ' "$place/log" &&
    ok "it says so" || fail "it does not say why it plans again"
must train --resume "$place/run" --stop-at 24
same "digest" "$(digest)" "$wanted"
same "lines" "$(wc -l <"$place/run/metrics.jsonl")" 24
# bytes_of RUN STEP: that it moved
bytes_of() { paste <(metric "$1" drive_read_bytes) <(metric "$1" drive_write_bytes) | sed -n "$2p" | awk '{print $1 + $2}'; }
first=$(bytes_of "$place/run" 6) last=$(bytes_of "$place/run" 24) slow=$(bytes_of "$place/slow" 6)
awk -v f="$first" -v l="$last" -v s="$slow" 'BEGIN {exit !(l < 0.95 * f && l < 1.05 * s && l > 0.95 * s)}' && ok "bytes" ||
    fail "a step moved $first bytes before, $last after, and $slow with a plan for the slow drive"
done_testing
