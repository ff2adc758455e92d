#!/usr/bin/env bash
# The example's own trainer, killed at random instants on one and on two drives, ends with the digest of a run that was
# never interrupted. OWN_TRAINER is the program; without it, the one beside longshore.
source "$(dirname "$0")/lib.sh"
trainer=${OWN_TRAINER:-$(dirname "$LONGSHORE")/own_trainer}
steps=800

"$trainer" $steps ram: >"$place/log" 2>&1 || fail "a run in memory"
want=$(tail -n 1 "$place/log")
case $want in "step $steps digest "*) ok "a run in memory ends with its digest" ;; *) fail "no digest: $want" ;; esac
first=$(sed -n 's/^step 20 loss //p' "$place/log")
last=$(sed -n "s/^step $steps loss //p" "$place/log")
if awk "BEGIN { exit !($last < $first / 2) }"; then ok "the loss falls"; else fail "loss $first, then $last"; fi

killed() {
    local name=$1 kills=0
    shift
    for try in $(seq 100); do
        "$trainer" $steps "$@" >"$place/log" 2>&1 &
        background=$!
        nap 5000 400000
        if kill -9 "$background" 2>/dev/null; then kills=$((kills + 1)); fi
        wait "$background" 2>/dev/null
        rc=$?
        background=
        if [ "$rc" = 0 ]; then break; fi
        [ "$rc" = 137 ] || { fail "$name: start $try failed"; return; }
    done
    "$trainer" $steps "$@" >"$place/log" 2>&1 || fail "$name: the last start"
    same "$name, killed $kills times" "$(tail -n 1 "$place/log")" "$want"
    echo "$name: killed $kills times"
}
killed "one drive" "$place/one.volume"
mkdir "$place/a"
killed "two drives" "$place/a" "$place/b.volume"
mv "$place/b.volume" "$place/elsewhere"
if "$trainer" $steps "$place/a" "$place/b.volume" >"$place/log" 2>&1; then fail "one of two drives is enough"; fi
if grep -q "b.volume is missing" "$place/log"; then ok "a missing drive is named"; else fail "$(cat "$place/log")"; fi

# Killed while it makes its drives, also where a file system cannot preallocate them and filling takes a while.
made_killed() {
    local name=$1 most=$2 kills=0
    shift 2
    for delay in $(seq 1 "$most"); do
        "${slowly[@]}" "$trainer" 1 "$@" >"$place/log" 2>&1 &
        background=$!
        sleep "$(printf '0.%03d' $((delay * 4)))"
        if kill -9 "$background" 2>/dev/null; then kills=$((kills + 1)); fi
        wait "$background" 2>/dev/null
        rc=$?
        background=
        if [ "$rc" = 0 ]; then break; fi
        [ "$rc" = 137 ] || { fail "$name: start $delay failed"; return; }
    done
    if "$trainer" $steps "$@" >"$place/log" 2>&1; then
        same "$name, killed $kills times while it was made" "$(tail -n 1 "$place/log")" "$want"
    else
        fail "$name: the last start"
    fi
}
slowly=(env)
mkdir "$place/made" "$place/slow"
made_killed "new drives" 20 "$place/made" "$place/made.volume"
slowly=(env "FAIL_IO=slow 0 20 slow" "LD_PRELOAD=$FAIL_IO_SO")
made_killed "new drives that are filled by writing" 25 "$place/slow" "$place/slow.volume"
echo precious >"$place/stranger.volume"
for drive in "$place/stranger.volume" "$place/a"; do
    if "$trainer" 1 "$drive" >"$place/log" 2>&1; then fail "what is no volume of its own is replaced: $drive"; else ok "$drive stays"; fi
done
same "a stranger's file" "$(cat "$place/stranger.volume")" precious
done_testing
