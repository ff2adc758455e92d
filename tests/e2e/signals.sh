#!/usr/bin/env bash
# A signal at any instant of the smallest products, whose kernels keep values below the stack pointer: nothing that is
# computed with is written over, the step is committed, and the run ends with the same digest.
. "$(dirname "$0")/lib.sh"
some_text "$place/text" 250
# a step takes milliseconds, its validation seconds
common=(--init gpt2-tiny --seed 5 --data "$place/text" --val-share 0.5 --eval-every 2 --steps 2 --batch 1 --seq-len 8
        --threads 1 --memory 512MiB --drive "$place/d")
mkdir "$place/d"
start=$(date +%s%N)
must train "${common[@]}" --out "$place/run"
took=$((($(date +%s%N) - start) / 1000000))
wanted=$(digest)
# Measuring another text keeps its tokens in a file, which goes. It may have no name from the beginning.
mkdir "$place/tmp"
mkfifo "$place/pipe"
TMPDIR=$place/tmp "$LONGSHORE" eval "$place/run" --data "$place/pipe" >"$place/log" 2>&1 </dev/null &
background=$!
held() { [ -n "$(find /proc/$background/fd -lname "$place/tmp/*" 2>/dev/null)" ]; }
await held
held && ok "tokens in a file" || fail "no file of tokens is made"
kill -TERM $background
wait $background
same "what is left of it" "$(ls -A "$place/tmp")" ""
background=
must remove "$place/run"
for part in 3 5 7 9; do
    "$LONGSHORE" train "${common[@]}" --out "$place/run" >"$place/log" 2>&1 </dev/null &
    background=$!
    sleep "$(awk "BEGIN {print $took * $part / 10000}")"
    kill -TERM $background 2>/dev/null # or it has ended
    wait $background
    same "exit code after SIGTERM, $part tenths into the run" $? 0
    background=
    [ ! -s "$place/run/run.json" ] || must train --resume "$place/run"
    [ -s "$place/run/run.json" ] || must train "${common[@]}" --out "$place/run"
    same "digest after SIGTERM, $part tenths into the run" "$(digest)" "$wanted"
    must remove "$place/run"
done

# What a scheduler reads and sends: a code of its own for a run that a signal stopped, and SIGUSR1 as a warning.
made() { # steps
    if [ -e "$place/run/metrics.jsonl" ]; then wc -l <"$place/run/metrics.jsonl"; else echo 0; fi
}
# stopped_by SIGNAL... -- FLAGS...: sends the signals to a run that has made another step, and sets $code.
stopped_by() {
    local signals=() before
    before=$(made)
    while [ "$1" != -- ]; do signals+=("$1") && shift; done
    shift
    "$LONGSHORE" train "$@" >"$place/log" 2>&1 </dev/null &
    background=$!
    until [ "$(made)" -gt "$before" ]; do
        kill -0 $background || break
        sleep 0.02
    done
    for signal in "${signals[@]}"; do kill "-$signal" $background; done
    wait $background
    code=$?
    background=
}
merge common --out "$place/run" --steps 1000000 --eval-every 1000000
stopped_by TERM -- "${merged[@]}" --stopped-exit 75
same "--stopped-exit after SIGTERM" $code 75
grep -q "go on with: longshore train --resume" "$place/log" && ok "which says how to go on" || fail "not said how to go on"
stopped_by USR1 USR1 -- --resume "$place/run" --stop-on-usr1 --stopped-exit 99
same "--stop-on-usr1, twice" $code 99
stopped_by USR1 -- --resume "$place/run" --stop-on-usr1
same "--stop-on-usr1 alone" $code 0
stopped_by USR1 -- --resume "$place/run" --stopped-exit 75
same "SIGUSR1 without the flag" $code 138
must train --resume "$place/run" --steps "$(($(made) + 10))" --stopped-exit 75
ok "a run that ends by itself ends with 0"
refused "no exit code" "stopped-exit" train --resume "$place/run" --stopped-exit 256
done_testing
