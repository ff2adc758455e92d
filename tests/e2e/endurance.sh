#!/usr/bin/env bash
# --max-writes-per-day holds: what the drives have written is never more than the limit's share of the time since the
# start. It changes no bit, and whoever stops a step that waits is heard.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 64 4 32 300
some_text "$place/text" 60
base=(--init "$place/config.json" --data "$place/text" --steps 5 --batch 2 --seq-len 32 --memory 256MiB --io threads)
mkdir "$place/a" "$place/b"
must train "${base[@]}" --drive "$place/a" --out "$place/free"
wanted=$(digest)
written=$(metric "$place/free" drive_write_bytes | sed -n 3p)
same "nothing waits" "$(metric "$place/free" paced_seconds)" ""

# seconds RUN: of all its steps
seconds() { metric "$1" step_seconds | awk '{ s += $1 } END { print s }'; }
# paced NAME RUN SECONDS: a step of its five took so long, on average, and it says that they waited. The limit's clock
# starts as the run opens, before the first step does.
paced() {
    awk -v s="$(seconds "$2")" -v least="$3" 'BEGIN { exit !(s >= 4.5 * least) }' && ok "$1" || fail "$1: $(seconds "$2")"
    same "$1: digest" "$(digest)" "$wanted"
    same "$1: said once" "$(grep -c "steps wait for --max-writes-per-day" "$place/log")" 1
    same "$1: steps that waited" "$(metric "$2" paced_seconds | wc -l)" 4
    grep -q "paced [0-9]*%" "$place/log" && ok "$1: shown" || fail "$1: progress does not say it"
}
must train "${base[@]}" --drive "$place/a" --out "$place/held" --max-writes-per-day $((written * 86400 * 10 / 3)) --log-every 1
paced "all drives together" "$place/held" 0.3
documented "RUN/metrics.jsonl" "$place/held/metrics.jsonl"
must train "${base[@]}" --drive "$place/a" "$place/b" --drive-speeds 1,1 --out "$place/each" --log-every 1 \
    --max-writes-per-day "500TB,$((written * 86400 * 5 / 3))"
paced "each drive" "$place/each" 0.2

# stops ARGS...: training that waits for a day is stopped at once, without a word about failure
stops() {
    rm -f "$place/day.log"
    "$LONGSHORE" "$@" >"$place/day.log" 2>&1 </dev/null &
    background=$!
    await grep -qs "steps wait for --max-writes-per-day .*: the next one begins in" "$place/day.log"
    kill -INT $background
    wait $background
    same "exit code of a stop" $? 0
    background=
    steps=$(sed -nE 's/^step ([0-9]+) digest .*/\1/p' "$place/day.log")
}
stops train "${base[@]}" --drive "$place/a" --out "$place/day" --max-writes-per-day $((written * 3 / 2))
same "the step is committed" "$steps" 1
stops train --resume "$place/day" # which goes on with the limit, from its last step
same "no step more" "$steps" 1
must train --resume "$place/day" --max-writes-per-day none
same "none ends it" "$(digest)" "$wanted"

refused "no size" "max-writes-per-day takes a size such as 2TB, not 'much'" \
    train "${base[@]}" --drive "$place/a" --out "$place/no" --max-writes-per-day much
refused "nothing at all" "max-writes-per-day takes a size such as 2TB, not '0'" \
    train "${base[@]}" --drive "$place/a" --out "$place/no" --max-writes-per-day 0
refused "sizes for other drives" "2 sizes for 1 drive: give one for each, or one for all together" \
    train "${base[@]}" --drive "$place/a" --out "$place/no" --max-writes-per-day 1TB,2TB
done_testing
