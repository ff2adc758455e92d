#!/usr/bin/env bash
# --keep-best keeps the state with the least validation loss, whatever is killed; --stop-after-no-gain counts over resumes.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 32 2 32 300
some_text "$place/text" 200
mkdir "$place"/d{1,2}
common=(--init "$place/config.json" --data "$place/text" --batch 4 --seq-len 32 --schedule constant --warmup 0
        --memory 256MiB)
kept=("${common[@]}" --lr 3e-3 --val-share 0.1 --eval-every 2 --drive "$place"/d{1,2})
slowly=("${common[@]}" --lr 1e-4 --val-share 0.1 --eval-every 1 --drive "$place"/d{1,2})
run=$place/run
parts() { find "$place"/d{1,2} -name '*.snapshot-best*' | wc -l; }
best() { "$LONGSHORE" snapshots "$run" --json | python3 -c '
import json, sys
print(*["{step} {val_loss:.6g} {digest}".format(**s) for s in json.load(sys.stdin)["snapshots"] if s["name"] == "best"])'; }
least() { python3 - "$run/metrics.jsonl" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
print(*["{step} {val_loss:.6g}".format(**min((x for x in lines if x.get("val_loss")), key=lambda x: x["val_loss"]))])
PY
}
says() { if grep -qE -- "$2" "$place/log"; then ok "$1"; else fail "$1: no '$2' in $(tail -n 3 "$place/log")"; fi; }

for flag in --keep-best "--stop-after-no-gain 3"; do
    refused "${flag%% *} without validation data" "goes by validation losses: give --val-data" \
        train "${common[@]}" --drive "$place/d1" --steps 3 --out "$run" $flag
    refused "${flag%% *} without an interval" "and --eval-every N" \
        train "${common[@]}" --val-share 0.1 --drive "$place/d1" --steps 3 --out "$run" $flag
done
refused "the best of memory" "keep-best needs drives that keep" \
    train "${common[@]}" --val-share 0.1 --eval-every 1 --drive ram: --steps 3 --out "$run" --keep-best

# It follows the least loss. Ordinary snapshots are pruned beside it.
must train "${kept[@]}" --steps 40 --stop-at 8 --out "$run" --keep-best --snapshot-every 2 --keep 1
at8=$(digest)
must snapshots "$run"
says "listed" "^best: step 8, .*, validation loss [0-9.]+, 2 drives, digest ${at8#* }"
same "what is left" "$(cd "$run/snapshots" && echo *.json)" "best.json step-000008.json"
must snapshots "$run" --json
documented snapshots "$place/log"
must inspect "$run"
says "inspect shows it" "best: step 8"
same "one copy on each drive" "$(parts)" 2

# A rate that spoils the model: the best stays, and the run stops after two measurements, counted over resumes.
must train --resume "$run" --lr 10 --stop-at 10 --stop-after-no-gain 2 --snapshot-every 0
says "the end names the least" "; validation loss [0-9.]+ \(the least is $(printf %.4f "$(least | cut -d' ' -f2)"), of step 8\)$"
same "no gain" "$(best | cut -d' ' -f1,2)" "$(least)"
must train --resume "$run" --stop-after-no-gain 2
same "stopped" "$(digest | cut -d' ' -f1)" "12"
says "why" "stopped after step 12 of 40 by --stop-after-no-gain 2: the least .* of step 8, and the last 2 are not below it; to go on: .* --stop-after-no-gain 0"
must train --resume "$run" --quiet
same "a resume makes no step" "$(digest | cut -d' ' -f1)" "12"
says "and says so" "stopped after step 12 of 40 by --stop-after-no-gain"
must train --resume "$run" --stop-after-no-gain 3
same "more patience" "$(digest | cut -d' ' -f1)" "14"
must train --resume "$run" --stop-after-no-gain 0 --stop-at 16
same "none at all" "$(digest | cut -d' ' -f1)" "16"
must inspect "$run"
says "recorded" "stop-after-no-gain 2 -> 3"
same "the best is what it was" "$(best | cut -d' ' -f1,3)" "8 ${at8##* }"

# By name, as any snapshot.
must eval "$run" --snapshot best --json
says "eval measures it" "\"loss\":$(best | cut -d' ' -f2 | cut -c1-3).*\"step\":8"
must generate "$run" --snapshot best --max-tokens 2
must export "$run" --snapshot best --out "$place/exported"
says "export" "^step 8 exported"
refused "of no run" "names one of a run" eval "$place/exported" --snapshot best --data "$place/text"
refused "no such snapshot" "has no snapshot" generate "$run" --snapshot worst
must rollback "$run" best
must inspect "$run" --digest
same "back at the best" "$(digest)" "$at8"

# What the user made under that name stays.
must snapshot "$run" best --remove
same "removed" "$(parts) $(cd "$run/snapshots" && echo *)" "0 step-000008.files step-000008.json"
must snapshot "$run" best
refused "the user's own" "there is a snapshot best of this run that was made by hand" train --resume "$run" --lr 3e-3 --keep-best
must snapshot "$run" best --remove
echo '{"keep-best": false}' >"$place/no.json"
must train --resume "$run" --config "$place/no.json" --lr 3e-3 --stop-at 10
must train --resume "$run" --stop-at 12
same "no more of them" "$(parts)" 0
must inspect "$run"
says "and recorded" "keep-best on -> off"
must remove "$run"

# Killed at random instants, it is the old one or the new one, and of the other nothing stays.
must train "${slowly[@]}" --steps 100000 --stop-at 1 --out "$run" --keep-best
seen=0
for i in $(seq "${KILLS:-9}"); do
    before=$(best)
    steps=$(metric "$run" step | tail -n 1)
    "$LONGSHORE" train --resume "$run" >"$place/log" 2>&1 </dev/null &
    background=$!
    await steps_made "$run" $((steps + 2))
    nap 0 60000
    kill -9 $background 2>/dev/null
    wait $background 2>/dev/null
    background=
    [ -n "$(best)" ] && ok "there is one after kill $i" || fail "no best after kill $i"
    [ "$(best)" = "$before" ] || seen=$((seen + 1))
    must train --resume "$run" --stop-at 1
    same "what a kill missed is made up for" "$(best | cut -d' ' -f1,2)" "$(least)"
    same "of others nothing stays" "$(parts) $(ls "$run/snapshots" | wc -l)" "2 2"
    [ $((i % 3)) = 0 ] || continue
    must rollback "$run" best
    must inspect "$run" --digest --deep
    same "it is whole after kill $i" "$(digest)" "$(best | cut -d' ' -f1,3)"
done
[ $seen -gt 0 ] && ok "replaced $seen times" || fail "it was never replaced"
# And before calls on files of the run's snapshots: every fifth, beginning anywhere.
calls=$((SEED % 5))
while :; do
    before=$(best | cut -d' ' -f1) step=$(metric "$run" step | tail -n 1)
    { FAIL_IO="kill $calls 0 snapshots" LD_PRELOAD=$FAIL_IO_SO run train --resume "$run" --stop-at $((step + 1)); } 2>/dev/null
    [ $rc != 0 ] || break
    now=$(best | cut -d' ' -f1)
    [ "$now" = "$before" ] || [ "$now" = $((step + 1)) ] && ok "old or new" || fail "before call $calls: $now, and neither $before nor $((step + 1))"
    must train --resume "$run" --stop-at 1
    same "before call $calls" "$(best | cut -d' ' -f1) $(parts) $(ls "$run/snapshots" | wc -l)" "$(digest | cut -d' ' -f1) 2 2"
    calls=$((calls + 5))
done
[ $calls -gt 20 ] && ok "$calls calls" || fail "only $calls calls"
must remove "$run"
same "it goes with the run" "$(find "$place"/d{1,2} -type f | wc -l)" 0

# A loss that is not finite is no gain, and no older one stands for it.
must train "${common[@]}" --val-share 0.1 --eval-every 1 --drive "$place/d1" --steps 9 --out "$run" --lr 1e6 --clip 0 \
    --weight-decay 1000 --on-nonfinite skip --keep-best --stop-after-no-gain 2
same "stopped by those" "$(digest | cut -d' ' -f1) $(metric "$run" val_loss | grep -c null)" "2 2"
says "why, without a least" "stop-after-no-gain 2: no validation loss has been finite, and the last 2 are not below it"
says "the end does not name another" "; validation loss not finite$"
same "none is kept" "$(best)" ""
must remove "$run"

# A full disk leaves the old one.
must train "${slowly[@]}" --steps 6 --stop-at 2 --out "$run" --keep-best
before=$(best)
FAIL_IO="write 0 28 .snapshot-" LD_PRELOAD=$FAIL_IO_SO run train --resume "$run" --stop-at 3
same "the run goes on" "$rc $(best)" "0 $before"
says "it is said" "no snapshot of step 3: .*[Nn]o (space|room)"
same "the old one is whole" "$(parts) $(ls "$run/snapshots" | wc -l)" "2 2"
must train --resume "$run"
same "the next one is kept" "$(best | cut -d' ' -f1,2)" "$(least)"
done_testing
