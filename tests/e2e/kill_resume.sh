#!/usr/bin/env bash
# kill -9 at random instants until the run has ended: the same digest and metrics as a run never interrupted. Then the
# polite signals, and a second run on drives in use.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
steps=${STEPS:-40}
common=(--init "$place/config.json" --seed 3 --data "$place/text" --val-share 0.1 --eval-every 10 --steps "$steps"
        --batch 8 --seq-len 64 --lr 2e-3 --memory 512MiB --log-every 10)

must train "${common[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)

# killed NAME LIMIT_MS ARGS...: starts again and again, kills after a random time, up to 25 times; then lets it end.
killed() {
    local name=$1 limit=$2 run=$place/$1
    shift 2
    kill_and_resume "$run" 25 "$limit" "${common[@]}" "$@"
    same "$name: exit code after $kills kills" $rc 0
    run inspect "$run" --digest
    same "$name: digest after $kills kills" "$(digest)" "$wanted"
    run inspect "$run" --digest --deep
    same "$name: every byte" "$(digest)" "$wanted"
    same "$name: steps in metrics.jsonl" "$(metric "$run" step | tr '\n' ' ')" "$(seq -s ' ' 1 "$steps") "
    same "$name: losses" "$(metric "$run" loss | cksum)" "$(metric "$place/whole" loss | cksum)"
    same "$name: norms" "$(metric "$run" grad_norm | cksum)" "$(metric "$place/whole" grad_norm | cksum)"
    same "$name: validation" "$(metric "$run" val_loss | cksum)" "$(metric "$place/whole" val_loss | cksum)"
}
# The limit follows the machine: about a third of what the whole run took in memory.
start=$(date +%s%N)
run train "${common[@]}" --drive ram: --out "$place/again"
limit=$((($(date +%s%N) - start) / 1000000 / 3 + 300))
mkdir "$place"/d{1,2,3}
killed one-drive $limit --drive "$place/d1"
killed three-drives $limit --drive "$place/d1/b.volume" "$place/d2" "$place/d3"
killed speculating $limit --drive "$place/d2/c.volume" --speculate on --io threads

# A finished run says so.
must train --resume "$place/one-drive"

# SIGTERM, SIGINT and SIGHUP: the step is finished and committed, the message says how to go on, exit code 0.
for signal in TERM INT HUP; do
    run=$place/polite-$signal
    set -m # a background job of a script would ignore SIGINT
    env --default-signal=HUP "$LONGSHORE" train "${common[@]}" --out "$run" --drive "$place/d3/p$signal.volume" \
        >"$place/polite.log" 2>&1 </dev/null &
    background=$!
    set +m
    await test -s "$run/metrics.jsonl"
    if [ $signal = TERM ]; then
        kill -STOP $background
        refused "a second run on a drive in use" "in use|another (process|run)|locked" train "${common[@]}" \
            --out "$place/second" --drive "$place/d3/p$signal.volume" --overwrite
        refused "a second start of the run" "in use|another (process|run)|locked" train --resume "$run"
        kill -CONT $background
    fi
    kill -$signal $background
    [ $signal != HUP ] || kill -HUP $background # a terminal that is closed sends two
    wait $background
    same "exit code after SIG$signal" $? 0
    background=
    cp "$place/polite.log" "$place/log"
    if [ "$(metric "$run" step | tail -n 1)" = "$steps" ]; then
        echo "SIG$signal came after the last step"
    elif grep -q -- "--resume" "$place/log"; then
        ok "SIG$signal: --resume is named"
    else
        fail "SIG$signal: no word of --resume"
    fi
    must train --resume "$run"
    must inspect "$run" --digest --deep
    same "digest after SIG$signal" "$(digest)" "$wanted"
done
env --ignore-signal=HUP "$LONGSHORE" train "${common[@]}" --out "$place/nohup" --drive "$place/d3/nohup.volume" \
    >"$place/log" 2>&1 </dev/null &
background=$!
await test -s "$place/nohup/metrics.jsonl"
kill -HUP $background
wait $background
same "SIGHUP under nohup" "$? $(digest)" "0 $wanted"
background=
done_testing
