#!/usr/bin/env bash
# The example of a table: killed at random instants, those of its making among them, it goes on with each of its rounds,
# and nothing is lost or added twice but the round that was killed. SEED repeats a try.
source "$(dirname "$0")/lib.sh"
features=$(dirname "$LONGSHORE")/features
nodes=30000
rounds=40
each=$((1024 * 64)) # added in a round

"$features" 1>/dev/null 2>"$place/log" && fail "no arguments"
"$features" $nodes $rounds ram: >"$place/log" 2>&1 || fail "in memory: $(cat "$place/log")"
want=$(tail -n 1 "$place/log")
same "in memory" "$want" "$nodes nodes, $((rounds * each)) added in all"
"$features" $nodes $rounds "$place/a.volume" "$place/b.volume" >"$place/log" 2>&1 || fail "on two drives: $(cat "$place/log")"
same "on two drives" "$(tail -n 1 "$place/log")" "$want"
"$features" $nodes $rounds "$place/b.volume" "$place/a.volume" >"$place/log" 2>&1 || fail "opened again: $(cat "$place/log")"
same "opened again, with nothing to do" "$(cat "$place/log")" "$want"
"$features" $((nodes + 1)) $rounds "$place/a.volume" "$place/b.volume" >"$place/log" 2>&1 && fail "another number of nodes"
grep -q "holds a table of $nodes rows of 64 elements of 4 bytes, which is not the one asked for" "$place/log" &&
    ok "another shape is refused" || fail "another shape: $(cat "$place/log")"

kills=0
for try in $(seq 40); do
    "$features" $nodes $rounds "$place/c.volume" >"$place/log" 2>&1 &
    background=$!
    nap 1000 60000
    kill -9 "$background" 2>/dev/null
    wait "$background" 2>/dev/null
    rc=$?
    background=
    [ $rc != 137 ] || kills=$((kills + 1))
    [ $rc = 137 ] || [ $rc = 0 ] || fail "start $try: $(tail -n 1 "$place/log")"
done
"$features" $nodes $rounds "$place/c.volume" >"$place/log" 2>&1 || fail "the last start: $(tail -n 1 "$place/log")"
sum=$(sed -n "s/^$nodes nodes, \([0-9]*\) added in all$/\1/p" "$place/log")
[ "${sum:-0}" -ge $((rounds * each)) ] && [ "${sum:-0}" -le $(((rounds + kills) * each)) ] &&
    ok "killed $kills times: no committed round is lost" || fail "killed $kills times: ${sum:-no sum} added"
done_testing
