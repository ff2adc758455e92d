#!/usr/bin/env bash
# What a training shows of its steps, in a log and on a terminal.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 32 2 32 257
some_text "$place/text" 400
mkdir "$place/d"
new=(train --init "$place/config.json" --data "$place/text" --drive "$place/d" --out "$place/run" --overwrite --batch 2 --seq-len 16
     --memory 512MiB --steps 25)
shown() { sed -nE 's/^[0-2][0-9]:[0-5][0-9]:[0-6][0-9] step ([0-9]+)\/25 .*/\1/p' "$place/log" | xargs; }

must "${new[@]}" --log-every 10
same "by steps" "$(shown)" "1 10 20 25"
must "${new[@]}" --log-every 1h
same "by time" "$(shown)" "1 25"
must "${new[@]}" --log-every 1
same "each" "$(shown)" "$(seq -s ' ' 25)"
same "a step's time and an end" "$(grep -cE ' step [0-9]+/25  loss [0-9.]+  [0-9.]+ m?s/step  ETA [0-9.]+ ' "$place/log")" 24
must "${new[@]}" --stop-at 12
must train --resume "$place/run" --log-every 30m
same "a start's first and last step" "$(shown)" "13 25"
refused "no pace" "--log-every takes a number of steps such as 10, or a time such as 30s or 5m, not '0'" "${new[@]}" --log-every 0
refused "no pace of time" "--log-every takes .* not '30 s'" "${new[@]}" --log-every "30 s"
echo '{"log-every": "30 s"}' >"$place/pace.json"
refused "no pace in a file" "log-every.* takes .*such as 30s" "${new[@]}" --config "$place/pace.json"

# On a terminal, a line of work that is done is erased, and the last line of the steps stays. What a line shows in the
# end is what follows its last return of the carriage.
on_terminal() { # COLUMNS COMMAND...
    local columns=$1
    shift
    TERM=vt100 script -qec "stty cols $columns; '$LONGSHORE' $*" /dev/null </dev/null 2>&1 | sed 's/\r$//; s/.*\r//; s/\x1b\[K//' >"$place/log"
}
for columns in 80 120; do
    on_terminal $columns "${new[@]}"
    grep -qE "(reading|writing) .*%" "$place/log" && fail "$columns columns: a line of work stays" || ok "$columns columns, a new run"
    same "$columns columns: lines of steps" "$(grep -cE "^step [0-9]+/25  loss" "$place/log")" 1
    grep -qE '^step 25/25  loss [0-9.]+  [0-9.]+ m?s/step' "$place/log" && ok "the last step stays" || fail "no last step"
    on_terminal $columns train --resume "$place/run" --steps $((25 + columns))
    grep -qE "checking .*%" "$place/log" && fail "$columns columns, resumed: a line of work stays" || ok "$columns columns, resumed"
done
done_testing
