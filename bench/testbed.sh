#!/usr/bin/env bash
# The emulated testbed of Smart-Infinity: how near the update on the host comes to the paper's BASE, and what updating
# beside the drives is worth there. About half an hour. OUT: where rows and picture go (default runs/bench/testbed).
. "$(dirname "$0")/lib.sh"
machine
out=${OUT:-$DRIVE/testbed}
[ -n "${ROWS:-}" ] || LONGSHORE=$LONGSHORE "$here/testbed.py" --out "$out" >"$work/rows"
rows=${ROWS:-$work/rows}
# value KEY MODE DRIVES LINK_SHARE
value() { grep "\"mode\":\"$2\",\"drives\":$3,\"link_share\":$4" "$rows" | sed -nE 's/.*"'"$1"'":"?([^,"}]*).*/\1/p' | sed -n 1p; }
while read -r drives relative; do
    got=$(value speed_over_base1 base "$drives" 1.0)
    verdict "BASE, $drives drives: speed over one drive $got, paper $relative: off by" \
        "$(calc "($got / $relative - 1 < 0 ? 1 - $got / $relative : $got / $relative - 1)")" 0.1 most
done <<<"2 1.55
4 2.23
6 2.25
8 2.26
10 2.27"
for pair in "6 23.8" "10 23.7"; do
    read -r drives seconds <<<"$pair"
    got=$(value step_seconds base "$drives" 1.0)
    verdict "BASE, $drives drives: $got s a step, paper $seconds: off by" \
        "$(calc "($got / $seconds - 1 < 0 ? 1 - $got / $seconds : $got / $seconds - 1)")" 0.1 most
done
while read -r drives least; do
    verdict "lossless, $drives drives ($(value bound lossless "$drives" 1.0)): over BASE with one" \
        "$(value speed_over_base1 lossless "$drives" 1.0)" "$least"
done <<<"1 1.3
2 2.5
4 5.0
6 7.0
8 7.5
10 8.0"
verdict "lossless, 10 drives ($(value bound lossless 10 1.0)): over BASE with 10" "$(value speed_over_base lossless 10 1.0)" 3.5
verdict "2 drives: 8-bit moments / lossless" \
    "$(calc "$(value step_seconds lossless 2 1.0) / $(value step_seconds state8 2 1.0)")" 1.6
verdict "10 drives, a quarter of the link: top 1 % / fp32 gradients" \
    "$(calc "$(value step_seconds lossless 10 0.25) / $(value step_seconds top1 10 0.25)")" 1.5
