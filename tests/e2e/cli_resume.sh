#!/usr/bin/env bash
# --resume: what may change, what may not, and that a refused start changes nothing; signals; --config.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 32 2 32 257
some_text "$place/text" 100
mkdir "$place/d"
model=(--init "$place/config.json" --data "$place/text" --batch 2 --seq-len 32 --memory 512MiB --quiet)
here=$place/run

must train "${model[@]}" --drive "$place/d" --out "$here" --steps 2
whole=$(digest)
must train --resume "$here"
same "a finished run says its digest" "$(digest)" "$whole"
grep -q "finished" "$place/log" && ok "it says so" || fail "a finished run does not say so"
must train --resume "$here" --batch 2 --precision bf16
for change in "--batch 4" "--seq-len 16" "--seed 9" "--optimizer sgd" "--precision fp32" "--shuffle off" "--special-tokens parse"; do
    # shellcheck disable=SC2086
    refused "identity: $change" "identity" train --resume "$here" $change
done
refused "--init with --resume" "identity" train --resume "$here" --init gpt2-tiny
refused "behind the run" "behind" train --resume "$here" --steps 1
refused "a drive that is not told from where" "OLD=NEW" train --resume "$here" --drive "$place/d"
refused "a budget below the minimum" "minimum [0-9]+" train --resume "$here" --steps 4 --memory 1MiB

before=$(cksum <"$here/run.json")
mv "$place/d" "$place/moved"
refused "a missing drive" "--drive .*=NEW" train --resume "$here" --steps 4
same "a refused start changes nothing" "$(cksum <"$here/run.json")" "$before"
must train --resume "$here" --steps 4 --lr 1e-4 --drive "$place/d=$place/moved"
must inspect "$here"
grep -q "steps 2 -> 4, lr 0.0003 -> 0.0001, min-lr 3e-05 -> 1e-05, drive" "$place/log" && ok "the change is recorded" || fail "no record of the change"
must train --resume "$here"
same "the new place is remembered" "$(digest | cut -d' ' -f1)" 4
# by the names that it has where they are typed
cd "$place"
mv moved d
must train --resume "$here" --drive moved=d
mv d moved
must inspect "$here" --digest --drive d=moved
must train --resume "$here" --drive d=moved
cd "$OLDPWD"
must train --resume "$here" --steps 5 --threads 3
grep -q "processor changed .* to .*3 threads" "$place/log" && ok "other threads are said" || fail "other threads are not said"
must train --resume "$here" --steps 6
grep -q "processor changed" "$place/log" && fail "a change of threads is said again" || ok "a change is said once"

# a copy has the volumes of its run, and says so
cp -r "$here" "$place/copy"
must train --resume "$place/copy" --steps 8
grep -q "$place/copy is a copy of the run .*/run and has its volumes" "$place/log" && ok "a copy is said" || fail "a copy is not said"
must train --resume "$here" --steps 9
grep -q "a copy of the run was trained" "$place/log" && ok "what a copy did is said" || fail "nothing is said of the copy"
rm -r "$place/copy"
refused "nothing there" "copy: is not a run" train --resume "$place/copy"

# a clean stop does not hold the run at its step for ever
must train "${model[@]}" --drive "$place/moved/b.volume" --out "$place/stopped" --steps 4 --stop-at 2
same "stopped at" "$(digest | cut -d' ' -f1)" 2
must train --resume "$place/stopped"
stopped=$(digest)
must train "${model[@]}" --drive ram: --out "$place/ram" --steps 4
same "the same bits, in memory and without a stop" "$(digest)" "$stopped"

# signals
for signal in INT TERM; do
    "$LONGSHORE" train "${model[@]}" --drive "$place/moved/$signal.volume" --out "$place/$signal" --steps 100000 \
        >"$place/log" 2>&1 &
    background=$!
    await test -s "$place/$signal/metrics.jsonl"
    # a shell gives children in the background SIGINT ignored; longshore handles it all the same
    kill -$signal $background
    wait $background
    same "$signal: exit code" $? 0
    background=
    grep -q "train --resume $place/$signal" "$place/log" && ok "$signal: how to go on" || fail "$signal: how to go on is not said"
    same "$signal: its step is committed" "$(digest | cut -d' ' -f1)" "$(metric "$place/$signal" step | tail -n 1)"
done

# nothing that is printed lands in a file that took the place of a closed stream
"$LONGSHORE" train "${model[@]}" --drive "$place/moved/closed.volume" --out "$place/closed" --steps 2 --log-every 1 --sample-every 1 \
    </dev/null >&- 2>&-
same "lines of metrics, with streams closed" "$(grep -c '^{.*}$' "$place/closed/metrics.jsonl")" 2
same "other lines" "$(grep -vc '^{.*}$' "$place/closed/metrics.jsonl")" 0

# a flipped bit in the text, which no volume knows of
byte=$(od -An -tu1 -j 1501 -N 1 "$place/closed/tokens.bin")
put_byte() { printf "\\$(printf %03o "$1")" | dd of="$place/closed/tokens.bin" bs=1 seek=1501 conv=notrunc status=none; }
put_byte $((byte ^ 1))
expect_failure 1 "a flipped bit in the text" "closed/tokens.bin: its tokens do not match their checksum; a new run" \
    train --resume "$place/closed" --steps 3
put_byte "$byte"
rm "$place/closed/metrics.jsonl"
must train --resume "$place/closed" --steps 3
grep -q "metrics.jsonl is gone or empty" "$place/log" && ok "lost metrics" || fail "lost metrics: not said"
same "lines of steps, lost or not" "$(metric "$place/closed" step | xargs)" "1 2 3"

# what fails once the volumes have their new epoch has touched something
mv "$place/closed/metrics.jsonl" "$place/kept"
mkdir "$place/closed/metrics.jsonl"
expect_failure 1 "metrics that cannot be opened" "metrics.jsonl: cannot be opened.*|step 3 is committed" \
    train --resume "$place/closed" --steps 4
rmdir "$place/closed/metrics.jsonl"
mv "$place/kept" "$place/closed/metrics.jsonl"
must train --resume "$place/closed" --steps 4
refused "no new place" "drive .*=: where is it now" train --resume "$place/closed" --drive "$place/moved/closed.volume="
refused "memory as a new place" "memory keeps no state between two processes" train --resume "$place/closed" --drive "$place/moved/closed.volume=ram:"
refused "a file as a run" "text: is not a run, which is a directory" train --resume "$place/text"
refused "a dry run with a rate below --min-lr" "--min-lr 3 is above --lr" train "${model[@]}" --steps 2 --min-lr 3 --dry-run

# the same keys from a file; flags win
cat >"$place/keys.json" <<JSON
{"init": "$place/config.json", "data": ["$place/text"], "batch": 2, "seq_len": 32, "steps": 9, "drive": "ram:",
 "memory": "512MiB", "quiet": true, "out": "$place/from-file"}
JSON
must train --config "$place/keys.json" --steps 4
same "a file gives the same run" "$(digest)" "$stopped"
echo '{"bacth": 2}' >"$place/bad.json"
refused "unknown key" "bad.json.*did you mean.*batch" train --config "$place/bad.json"
echo '{"batch": [2]}' >"$place/bad.json"
refused "a key of the wrong type" "bad.json.*batch" train --config "$place/bad.json"
for value in '{"out": 5}' '{"data": 5}' '{"data": ["a", ""]}' '{"data": ["a", 5]}' '{"optimizer": 1}'; do
    echo "$value" >"$place/bad.json"
    key=${value#??} key=${key%%\"*}
    refused "a value of the wrong type, $value" "bad.json: (\"|--)$key" train --config "$place/bad.json"
done
echo '{"batch" 2}' >"$place/bad.json"
refused "what the parser says is as it says it" "bad.json:1: not valid JSON .* separated by a colon .':'." train --config "$place/bad.json"

done_testing
