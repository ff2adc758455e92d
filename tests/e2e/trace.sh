#!/usr/bin/env bash
# --trace N records what worked when in the last N steps, and `longshore trace` writes it for Perfetto: steps as long as
# the metrics say, what their time went to, and lanes of the drives. It changes no bit.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 64 2 64 257
some_text "$place/text" 200
odd="$place/a\"<b>é" # names are escaped
mkdir "$odd" "$place/two"
base=(--init "$place/config.json" --data "$place/text" --drive "$odd" "$place/two" --batch 2 --seq-len 64 --quiet)
# check FILE METRICS STEPS LANES...: the events, with python's json
check() {
    python3 - "$@" <<'PY' >"$place/log" 2>&1 && ok "events of $1" || fail "events of $1"
import json
import sys

events = json.load(open(sys.argv[1], encoding="ascii"))["traceEvents"]
metrics = {m["step"]: m for m in map(json.loads, open(sys.argv[2]))}
first, last = map(int, sys.argv[3].split("-"))
assert {e["ph"] for e in events} == {"X", "M"}, "kinds"
lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
spans = [e for e in events if e["ph"] == "X"]
assert {e["tid"] for e in spans} == set(lanes), "each lane has a name, and spans"
assert len(set(lanes.values())) == len(lanes), "names differ"
by_lane = {name: [e for e in spans if e["tid"] == tid] for tid, name in lanes.items()}
steps = [e for e in by_lane["step"] if e["name"].startswith("step ")]
charges = [e for e in by_lane["step"] if not e["name"].startswith("step ")]
assert [e["name"] for e in steps] == [f"step {n}" for n in range(first, last + 1)], [e["name"] for e in steps]
for n, e in enumerate(steps, first):
    took, end = metrics[n]["step_seconds"], e["ts"] + e["dur"]
    assert abs(e["dur"] * 1e-6 - took) < 1e-6, (n, e["dur"], took)
    within = [c for c in charges if c["ts"] > e["ts"] - 0.01 and c["ts"] + c["dur"] < end + 0.01]
    assert sum(c["dur"] for c in within) > 0.95 * e["dur"], n
    for name, seconds in metrics[n]["charges"].items():
        assert abs(sum(c["dur"] for c in within if c["name"] == name) * 1e-6 - seconds) < 0.01 * took, (n, name)
for name, lane in by_lane.items():
    if name != "step":
        for a, b in zip(lane, lane[1:]):
            assert a["ts"] + a["dur"] <= b["ts"] + 0.002, ("overlap", name, a, b)
for wanted in sys.argv[4:]:
    assert wanted in lanes.values(), (wanted, sorted(lanes.values()))
PY
}
must train "${base[@]}" --out "$place/plain" --steps 9
wanted=$(digest)
minimum=$(minimum train "${base[@]}" --out "$place/least" --steps 2)
traced=$(minimum train "${base[@]}" --out "$place/least" --steps 2 --trace 3)
more=$(($(bytes "$traced") - $(bytes "$minimum")))
[ $more -ge 2097152 ] && [ $more -le 8388608 ] && ok "its memory is in the minimum" || fail "a minimum of $traced, and $minimum without"
must train "${base[@]}" --out "$place/run" --steps 9 --trace 3 --memory "$traced"
same "the same bits" "$(digest)" "$wanted"
must trace "$place/run" -o "$place/out.json"
grep -q "^steps 7 to 9 in " "$place/log" && ok "which steps" || fail "which steps"
check "$place/out.json" "$place/run/metrics.jsonl" 7-9 commit "$odd drive_read" "$odd drive_write" \
    "$place/two drive_read" "$place/two drive_compute"

# many more steps than are kept; one more start; the file in place of another
must train --resume "$place/run" --steps 60 --trace 4
must trace "$place/run" --out "$place/out.json"
check "$place/out.json" "$place/run/metrics.jsonl" 57-60 "$place/two drive_read"
[ "$(stat -c %s "$place/run/trace.spans")" -lt 1000000 ] && ok "it does not grow" || fail "it grows"
must train --resume "$place/run" --steps 62 --trace 0
must trace "$place/run" -o "$place/out.json"
grep -q "^steps 57 to 60 in " "$place/log" && ok "it stays" || fail "a start without --trace changes it"

# an emulated link, and updates on the host
echo '{"link": {"in": "20MB", "out": "20MB"}, "host-update": {"rate": "100MB"}, "drives": [{"read": "50MB"}]}' >"$place/slow.json"
must train "${base[@]}" --out "$place/slow" --steps 3 --trace 9 --emulate "$place/slow.json" --update host
must trace "$place/slow" -o "$place/slow.trace"
check "$place/slow.trace" "$place/slow/metrics.jsonl" 1-3 link "link out" host_update "$odd drive_read"

# while it trains
gone() { ! kill -0 "$1" 2>/dev/null; }
"$LONGSHORE" train --resume "$place/run" --steps 100000 --trace 2 >"$place/train.log" 2>&1 </dev/null &
background=$!
await steps_made "$place/run" 70
kill -STOP $background
must trace "$place/run" -o "$place/out.json"
steps=$(sed -n 's/^steps \([0-9]*\) to \([0-9]*\) in .*/\1-\2/p' "$place/log")
check "$place/out.json" "$place/run/metrics.jsonl" "$steps"
kill -CONT $background
disown $background
kill -9 $background
await gone $background
background=

# a torn end is left out, and damage is said
spans=$place/run/trace.spans
truncate -s -7 "$spans"
must trace "$place/run" -o "$place/out.json"
cp "$spans" "$place/kept"
printf 'x' | dd of="$spans" bs=1 seek=$(($(stat -c %s "$spans") / 2)) conv=notrunc status=none
expect_failure 2 "damage" "trace.spans: is damaged: " trace "$place/run" -o "$place/no"
head -c 40 "$place/kept" >"$spans"
expect_failure 2 "a torn head" "trace.spans: is damaged: " trace "$place/run" -o "$place/no"
echo "what is this" >"$spans"
expect_failure 2 "no trace at all" "trace.spans: is no trace" trace "$place/run" -o "$place/no"
expect_failure 2 "a run without one" "plain: has no trace: the next start with --trace N records" trace "$place/plain" -o "$place/no"
expect_failure 2 "no such run" "nowhere: there is no such run" trace "$place/nowhere" -o "$place/no"
expect_failure 2 "no file named" "where to\? Give -o FILE" trace "$place/plain"
expect_failure 2 "no run named" "which run" trace -o "$place/no"
expect_failure 2 "nowhere to write" "$place/gone" trace "$place/slow" -o "$place/gone/x"
expect_failure 2 "a file that is no trace" "text: is there, and is no trace" trace "$place/slow" -o "$place/text"
ln -s "$place/slow.trace" "$place/link" && mkfifo "$place/pipe"
expect_failure 2 "a link" "link: is there, and is no trace" trace "$place/slow" -o "$place/link"
expect_failure 2 "a pipe" "pipe: is there, and is no trace" trace "$place/slow" -o "$place/pipe"
[ -e "$place/no" ] && fail "a failure leaves a file" || ok "no file"
refused "too many" "--trace" train "${base[@]}" --out "$place/no" --trace 1001
refused "no number" "--trace" train "${base[@]}" --out "$place/no" --trace many
must remove "$place/run"
[ -e "$place/run" ] && fail "something is left: $(ls "$place/run")" || ok "removed"
done_testing
