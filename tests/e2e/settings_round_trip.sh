#!/usr/bin/env bash
# What `inspect --json` says of a run's settings makes the same run again, as --config; and what a dry run says is JSON
# where that is asked for. --stop-at says where it means nothing.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 64 4 32 300
some_text "$place/text" 60
base=(--init "$place/config.json" --data "$place/text" --drive "$place/v.volume" --steps 3 --batch 2 --seq-len 32)
settings() { sed -n 's/.*"settings":\({[^}]*}\).*/\1/p' "$place/log"; }
again() { # NAME FLAGS...
    local name=$1 first second
    shift
    rm -rf "$place/run" "$place/v.volume" "$place/again"
    must train "${base[@]}" "$@" --out "$place/run"
    local wanted
    wanted=$(digest)
    must inspect "$place/run" --json
    first=$(settings)
    echo "$first" >"$place/settings.json"
    must remove "$place/run"
    must train --config "$place/settings.json" --out "$place/again"
    same "$name: digest" "$(digest)" "$wanted"
    grep -q "has no effect" "$place/log" && [ "$name" = "as it is" ] && fail "$name: says that something has no effect"
    must inspect "$place/again" --json
    second=$(settings)
    same "$name: settings" "$second" "$first"
}
[ -n "$("$LONGSHORE" --version)" ] || fail "no version"
again "as it is"
again "sizes" --memory 256MiB --chunk-size 4MiB --threads 1
again "compression" --compress top5% --compress-after 1 --residual saved
again "sgd" --optimizer sgd --momentum 0.5 --schedule constant --lr 0.01 --clip 0 --seed 18446744073709551615
again "the rest" --moments 8bit --grad-precision bf16 --precision fp32 --val-share 0.2 --eval-every 2 --on-nonfinite skip \
    --shuffle off --speculate off --offload off --io threads --snapshot-every 2 --keep 1 --keep-best --stop-after-no-gain 5 --drive-speeds 1 --stop-at 3 \
    --sample-every 3 --log-every 1 --reconnect-timeout 2.5 --products fp32 --quiet
# What a file says and nothing uses is still refused.
echo '{"error-feedback": false}' >"$place/bad.json"
refused "a key that means nothing" "error-feedback means nothing without --compress" \
    train "${base[@]}" --config "$place/bad.json" --out "$place/no"

run train "${base[@]}" --dry-run --json --memory 256MiB
same "a dry run" $rc 0
documented "train --dry-run" "$place/log"
grep -q '"minimum_bytes":[0-9]' "$place/log" && ok "JSON" || fail "no JSON"
[ -e "$place/no" ] && fail "a dry run has made something"
refused "JSON of a training" "--json is for --dry-run" train "${base[@]}" --json --out "$place/no"

rm -rf "$place/v.volume" "$place/run"
must train "${base[@]}" --out "$place/run" --stop-at 9
grep -q -- "--stop-at 9 has no effect: the run ends with step 3" "$place/log" && ok "said" || fail "--stop-at beyond the end"
must train --resume "$place/run" --stop-at 2
grep -q -- "--stop-at 2 is behind the run, which is at step 3" "$place/log" && ok "said" || fail "--stop-at behind the run"
must train --resume "$place/run" --steps 5 --stop-at 3
must train --resume "$place/run" --dry-run --json
grep -q '"disk_bytes":' "$place/log" && ok "JSON of a run" || fail "no JSON of a run"

# A token file that cannot be read is a failure, not a wrong input.
FAIL_IO="read 0 5 tokens.bin" LD_PRELOAD=$FAIL_IO_SO expect_failure 1 "tokens.bin cannot be read" "tokens.bin" \
    train --resume "$place/run"
# A first snapshot that has no room leaves nothing.
FAIL_IO="write 0 28 .snapshot-" LD_PRELOAD=$FAIL_IO_SO run snapshot "$place/run" one
[ $rc = 2 ] && [ ! -e "$place/run/snapshots" ] && ok "no room" || fail "no room for a snapshot: $rc, $(ls "$place/run")"
done_testing
