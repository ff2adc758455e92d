#!/usr/bin/env bash
# Two drives of which one is twice as fast as the other (throttled by --emulate): UPDATE on both, against the sum of
# both alone. The volumes lie in memory where there is room, so that only the throttle counts.
[ -n "${DRIVE:-}" ] || { [ ! -w /dev/shm ] || DRIVE=/dev/shm/longshore-bench; }
. "$(dirname "$0")/lib.sh"
machine
fast='{"read": "100MB", "write": "60MB", "mixed": "120MB", "compute": "400MB"}'
slow='{"read": "50MB", "write": "30MB", "mixed": "60MB", "compute": "200MB"}'
mkdir "$work/a" "$work/b"
# rate NAME DRIVES-JSON DIR...
rate() {
    local name=$1
    echo "{\"drives\": [$2]}" >"$work/$name.json"
    shift 2
    "$LONGSHORE" bench update --drive "$@" --params "${PARAMS:-20M}" --steps 3 --emulate "$work/$name.json" --json --quiet \
        2>/dev/null | number params_per_second >>"$work/$name"
}
for ((round = 1; round <= ROUNDS; round++)); do
    rate fast "$fast" "$work/a"
    rate slow "$slow" "$work/b"
    rate both "$fast, $slow" "$work/a" "$work/b"
    printf 'round %d: parameters a second: fast %.4g, slow %.4g, both %.4g (emulated)\n' $round \
        "$(tail -n 1 "$work/fast")" "$(tail -n 1 "$work/slow")" "$(tail -n 1 "$work/both")"
done
sum=$(calc "$(median <"$work/fast") + $(median <"$work/slow")")
verdict "two unequal drives (2:1, throttled) / sum of both alone" "$(calc "$(median <"$work/both") / $sum")" 0.95
[ "$DRIVE" != /dev/shm/longshore-bench ] || trap 'rm -rf "$work"; rmdir "$DRIVE" 2>/dev/null' EXIT
