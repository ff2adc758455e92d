#!/usr/bin/env bash
# A run from outside while it is trained: its last loss, the time of a step, what is left, and who works on it.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 32 2 64 257
some_text "$place/text" 60
run_dir=$place/run
says() { sed 1d "$place/log" | grep -qE -- "$1" && ok "$2" || fail "$2: no line like '$1'"; }
quiet() { sed 1d "$place/log" | grep -qE -- "$1" && fail "$2: $(grep -E -- "$1" "$place/log")" || ok "$2"; }

"$LONGSHORE" train --init "$place/config.json" --data "$place/text" --drive "$place/d.volume" --out "$run_dir" --steps 100000 \
    --batch 1 --seq-len 64 --memory 512MiB >"$place/train.log" 2>&1 </dev/null &
background=$!
await steps_made "$run_dir" 2
kill -STOP $background
must inspect "$run_dir"
says "^last steps: loss [0-9.]+, .* a step, .* to go$" "how it goes"
says "^in use: by process $background \(longshore\) on $(hostname | sed 's/\./\\./g') since [-0-9]+ [0-9:]+; this was read without its lock$" "who"
mkdir -p "$run_dir/snapshots"
touch "$run_dir/snapshots/half.partial" # as while he makes one
must inspect "$run_dir" --json
"$LONGSHORE" inspect "$run_dir" --json >"$place/json"
documented "inspect|drive list" "$place/json"
says "\"in_use\": ?true" "the same as JSON"
says "\"worker\": ?\{\"pid\": ?$background," "who, as JSON"
rm "$run_dir/snapshots/half.partial"
for how in "inspect $run_dir --digest" "export $run_dir --out $place/out" "generate $run_dir" "snapshot $run_dir x"; do
    expect_failure 2 "$how of a run in use" "$run_dir: another process works on this run; wait for it, or stop it" $how
done
kill -CONT $background
kill -TERM $background
wait $background
same "it ends in good order" $? 0
background=
must inspect "$run_dir"
quiet "^in use" "nobody any more"
says "^last steps: loss" "how it went"
[ -e "$run_dir/worker.json" ] && fail "his note is still there" || ok "his note is gone"

echo '{"pid": 1, "host": "gone", "since": 1, "process": "x"}' >"$run_dir/worker.json" # of one that was killed
must inspect "$run_dir"
quiet "^in use" "nobody, whatever the note says"
must remove "$run_dir"
[ -e "$run_dir" ] && fail "something is left: $(ls "$run_dir")" || ok "removed with its note"
done_testing
