#!/usr/bin/env bash
# The example of a step of one's own ends with one digest: waiting for the norm or not, with much memory or the least, on
# one drive and on two, killed at random instants too, those of its making among them. SEED repeats a try.
source "$(dirname "$0")/lib.sh"
own_step=$(dirname "$LONGSHORE")/own_step
steps=30
limit=0.26 # of the norms here: some attempts are discarded, most are not

"$own_step" --wait $steps $limit ram: >"$place/log" 2>&1 || fail "waiting, in memory"
want=$(tail -n 1 "$place/log")
case $want in "step $steps digest "*) ok "waiting, in memory" ;; *) fail "no digest: $want" ;; esac
"$own_step" $steps $limit ram: >"$place/log" 2>&1 || fail "speculating, in memory"
same "speculating, in memory" "$(tail -n 1 "$place/log")" "$want"
early=$(sed -n 's/^sent \([0-9]*\) steps .*/\1/p' "$place/log")
if [ "${early:-0}" -gt 0 ] && [ "${early:-0}" -lt $steps ]; then ok "$early of $steps steps were sent early"; else fail "sent early: $early of $steps"; fi

# The least memory: what a smaller budget says is the whole MiB above it.
"$own_step" --memory 1 $steps $limit ram: >"$place/log" 2>&1 && fail "one byte of memory is enough"
mib=$(sed -n 's/.*minimum \([0-9]*\).00 MiB.*/\1/p' "$place/log")
[ "${mib:-0}" -gt 0 ] && ok "a budget that is too little says the least" || fail "no minimum: $(cat "$place/log")"
least=$((mib << 20))
while "$own_step" --memory $((least - 32768)) 1 $limit ram: >"$place/log" 2>&1; do least=$((least - 32768)); done
"$own_step" --memory $least $steps $limit ram: >"$place/log" 2>&1 || fail "with the least memory: $(tail -n 1 "$place/log")"
same "with the least memory" "$(tail -n 1 "$place/log")" "$want"
if grep -q "parameters of 0 of 3 blocks, inputs of [012]," "$place/log"; then ok "little stays in memory"; else fail "$(head -n 1 "$place/log")"; fi

killed() { # what, words...
    local name=$1 kills=0 longest=0
    shift
    for try in $(seq 40); do
        "$own_step" --memory $1 $steps $limit "${@:2}" >"$place/log" 2>&1 &
        background=$!
        nap $((longest * 1000 + 1000)) 300000
        kill -9 "$background" 2>/dev/null && kills=$((kills + 1))
        wait "$background" 2>/dev/null
        rc=$?
        background=
        longest=$((longest < 600 ? longest + 20 : longest)) # a slow machine gets on, too
        [ "$rc" != 0 ] || break
        [ "$rc" = 137 ] || { fail "$name: start $try failed: $(tail -n 1 "$place/log")"; return; }
    done
    "$own_step" --memory $1 $steps $limit "${@:2}" >"$place/log" 2>&1 || fail "$name: the last start"
    same "$name, killed $kills times" "$(tail -n 1 "$place/log")" "$want"
}
mkdir "$place/one" "$place/two" "$place/three"
killed "one drive" $((64 << 20)) "$place/one"
killed "two drives, little memory" $((least + (2 << 20))) "$place/two" "$place/three"
done_testing
