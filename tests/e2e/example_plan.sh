#!/usr/bin/env bash
# The example that plans a made-up network: the least budget that it names works and less does not, more memory makes no
# step longer, and what is enough for everything keeps everything.
source "$(dirname "$0")/lib.sh"
network=$(dirname "$LONGSHORE")/plan_network

"$network" 1 >"$place/log" 2>&1 && fail "one mebibyte is enough"
least=$(sed -n 's/.*this network: minimum \([0-9.]*\) MiB.*/\1/p' "$place/log")
[ -n "$least" ] || fail "no minimum is named: $(cat "$place/log")"
least=$(awk -v least="$least" 'BEGIN { printf "%d", least == int(least) ? least : least + 1 }')
"$network" $((least - 1)) >"$place/log" 2>&1 && fail "less than the least budget is enough"
for machine in "" gpu-24gb cpu-64gb; do
    last=
    for memory in $least $((least * 2)) $((least * 4)) 100000; do
        # shellcheck disable=SC2086
        "$network" "$memory" $machine >"$place/log" 2>&1 || fail "$memory MiB on ${machine:-an assumed machine}: $(cat "$place/log")"
        seconds=$(sed -n 's/^a step: \([0-9.]*\) s.*/\1/p' "$place/log")
        awk -v now="$seconds" -v last="${last:-$seconds}" 'BEGIN { exit !(now > 0 && now <= last * 1.001) }' ||
            fail "$memory MiB: a step of $seconds s, and of $last s with less memory"
        last=$seconds
    done
    same "everything is kept on ${machine:-an assumed machine}" "$(grep -c "parameters kept, activations kept" "$place/log")" 8
done
done_testing
