#!/usr/bin/env bash
# The example that updates before the norm is known ends with the digest of the one that waits, on one drive and on two,
# killed at random instants too, those of its making among them. SEED repeats a try.
source "$(dirname "$0")/lib.sh"
speculate=$(dirname "$LONGSHORE")/speculate
steps=60
limit=0.7 # of the norms here: some attempts are discarded, most are not

"$speculate" --wait $steps $limit ram: >"$place/log" 2>&1 || fail "waiting, in memory"
want=$(tail -n 1 "$place/log")
case $want in "step $steps digest "*) ok "waiting, in memory" ;; *) fail "no digest: $want" ;; esac
"$speculate" $steps $limit ram: >"$place/log" 2>&1 || fail "speculating, in memory"
same "speculating, in memory" "$(tail -n 1 "$place/log")" "$want"
grep -q '^discarded [1-9]' "$place/log" && ok "attempts were discarded" || fail "nothing was discarded"

killed() { # what, drives...
    local name=$1 kills=0 longest=0
    shift
    for try in $(seq 40); do
        "$speculate" $steps $limit "$@" >"$place/log" 2>&1 &
        background=$!
        nap $((longest * 1000 + 1000)) 300000
        kill -9 "$background" 2>/dev/null && kills=$((kills + 1))
        wait "$background" 2>/dev/null
        rc=$?
        background=
        longest=$((longest < 600 ? longest + 20 : longest)) # a slow machine gets on, too
        [ "$rc" != 0 ] || break
        [ "$rc" = 137 ] || { fail "$name: start $try failed"; return; }
    done
    "$speculate" $steps $limit "$@" >"$place/log" 2>&1 || fail "$name: the last start"
    same "$name, killed $kills times" "$(tail -n 1 "$place/log")" "$want"
}
mkdir "$place/one" "$place/two" "$place/three"
killed "one drive" "$place/one"
killed "two drives" "$place/two" "$place/three"
done_testing
