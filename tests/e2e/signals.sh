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
done_testing
