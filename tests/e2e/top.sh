#!/usr/bin/env bash
# `longshore top`: how a run goes, also one that is in use, has made no step, or has metrics that are damaged or older.
. "$(dirname "$0")/lib.sh"
maker=${MAKE_RUN:-$(dirname "$LONGSHORE")/tool_make_run}
gpt2_config "$place/config.json" 1 32 2 64 257
some_text "$place/text" 60
mkdir "$place"/d{1,2}
run_dir=$place/run
says() { sed 1d "$place/log" | grep -qE -- "$1" && ok "$2" || fail "$2: no line like '$1'"; }
# narrow COLUMNS: no line of the last output is longer
narrow() { sed 1d "$place/log" | python3 -c 'import sys; sys.exit(any(len(x.rstrip("\n")) > int(sys.argv[1]) for x in sys.stdin))' "$1" &&
    ok "$1 columns" || fail "a line is longer than $1 columns"; }

must train --init "$place/config.json" --data "$place/text" --drive "$place/d1" "$place/d2" --out "$run_dir" --steps 100000 \
    --batch 1 --seq-len 64 --memory 512MiB --stop-at 4 --quiet
COLUMNS=120 must top "$run_dir" --once
says "^step 4 of 100000, nobody works on it now$" "nobody works on it"
says "^loss [0-9.]+  lr [0-9.e-]+  norm [0-9.]+" "loss"
says "^[0-9.]+ m?s/step  [0-9]+ tok/s  ETA " "pace"
says "^a step's time, mean of 4: " "the mean"
for charge in forward backward drive commit; do says "^$charge +[#.]+ +[0-9]+ % [0-9.]+ m?s" "$charge"; done
says "^gpu +[#.]+ +[0-9]+ %" "a lane"
says "^memory +[#.]+ +[0-9]+ % of 512.00 MiB" "memory"
says "^drives, busy in step 4$" "drives"
same "each drive" "$(grep -cE "^$place/d[12]  reads [0-9.]+ .*/s, writes [0-9.]+ .*/s$" "$place/log")" 2
for columns in 1 20 40 200; do
    COLUMNS=$columns must top "$run_dir"
    [ $columns = 1 ] || narrow $columns
done

# a terminal: it is redrawn until q or Ctrl-C, and left as it was
on_terminal() { # KEYS COMMAND: as many keys as are typed, each half a second after the screen is there
    { await grep -q "drives, busy" "$place/log" && printf '%b' "$1" && await grep -q "1049l" "$place/log"; } |
        TERM=xterm script -qefc "stty rows $2 cols 60; $3" /dev/null >"$place/log" 2>&1
}
for key in q '\003'; do
    : >"$place/log"
    on_terminal "$key" 40 "trap : INT; '$LONGSHORE' top '$run_dir'; echo code \$?; stty -a"
    same "$key: exit code" "$(tr -d '\r' <"$place/log" | sed -n 's/^code //p')" 0
    grep -q $'\e\[?1049h\e\[?25l' "$place/log" && grep -q $'\e\[?25h\e\[?1049l' "$place/log" && ok "screens" || fail "screens"
    grep -qE '(^| )icanon' "$place/log" && grep -qE '(^| )echo ' "$place/log" && ok "the terminal is as it was" || fail "the terminal is changed"
done
: >"$place/log"
on_terminal q 24 "'$LONGSHORE' top '$run_dir'"
most=$(sed '/\x1b\[?1049l/,$d; s/.*\x1b\[H//' "$place/log" | tr -d '\r' | awk '/step 4 of/ {n = 1} {n++} n > most {most = n} END {print most}')
[ "$most" -le 24 ] && ok "no more rows than there are" || fail "$most rows"
: >"$place/log"
{ await grep -q "step's time" "$place/log" && printf q && await grep -q "1049l" "$place/log"; } |
    TERM=xterm script -qefc "stty rows 8 cols 60; '$LONGSHORE' top '$run_dir'" /dev/null >"$place/log" 2>&1
largest=$(sed '1,/1049l/d; /^lanes/,$d' "$place/log" | awk '/ %/ {gsub(/.*[.#] +/, ""); print $1}' | sort -n | tail -1)
sed '/1049l/,$d' "$place/log" | grep -qE " $largest % " && ok "few rows have the largest charge" || fail "no $largest %"

# in use
"$LONGSHORE" train --resume "$run_dir" --stop-at 0 >"$place/train.log" 2>&1 </dev/null &
background=$!
await steps_made "$run_dir" 8
kill -STOP $background
must top "$run_dir"
says "^step [0-9]+ of 100000, process $background works on it$" "who works on it"
kill -CONT $background
kill -TERM $background
wait $background
background=

# older metrics, damaged ones, none
cp "$run_dir/metrics.jsonl" "$place/kept"
sed -i 's/"charges":{[^}]*},//' "$run_dir/metrics.jsonl"
must top "$run_dir"
says "^steps are an older version's, or lost$" "older metrics"
says "^[0-9.]+ m?s/step" "their pace"
{ cat "$place/kept"; echo '{"step": broken'; } >"$run_dir/metrics.jsonl"
must top "$run_dir"
says "^a step's time, mean of " "what is whole counts"
says "^metrics.jsonl: damaged lines left out$" "damaged"
head -c 3000 /dev/urandom | tr -d '\n' >"$run_dir/metrics.jsonl"
echo >>"$run_dir/metrics.jsonl"
must top "$run_dir"
says "^metrics.jsonl is damaged at its end$" "nothing but damage"
echo '{"step": 1, "loss": "x", "step_seconds": -1, "charges": [1], "tokens": {}, "resident_bytes": null}' >"$run_dir/metrics.jsonl"
echo '{"step": 1, "drives": [1, {"drive": -7, "busy_seconds": "x"}, {"drive": 1000000, "read_bytes": 1e300}]}' >"$run_dir/drives.jsonl"
echo '[1' >"$run_dir/plan.json"
must top "$run_dir"
rm "$run_dir/metrics.jsonl" "$run_dir/drives.jsonl"
must top "$run_dir"
says "^metrics.jsonl's end cannot be read$" "no metrics of its steps"
"$maker" "$place/begun" 0 "$place/d1" "$place/d2" >"$place/out" 2>&1 || fail "make_run"
must top "$place/begun"
says "^no step has been made yet$" "no step"

"$maker" "$place/other" 3 "$place/d1" "$place/d2" >"$place/out" 2>&1 || fail "make_run"
must top "$place/other"
says "^step 3, nobody works on it now$" "another program's run"
expect_failure 2 "no such run" "nowhere: is not a run" top "$place/nowhere"
expect_failure 2 "no run named" "which run\? longshore top RUN" top
done_testing
