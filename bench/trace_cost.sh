#!/usr/bin/env bash
# What --trace costs: step time with a trace / without, of a model that streams from two drives in memory, where spans are many.
# Both train in turn. DRIVES: a directory for the drives (default /dev/shm).
. "$(dirname "$0")/lib.sh"
machine
drives=$(mktemp -d "${DRIVES:-/dev/shm}/longshore-trace.XXXXXX")
trap 'rm -rf "$drives" "$work"' EXIT
perl -e 'print pack("V256", 20240520, 1, 200000, (0) x 253); print pack "v", $_ * 7919 % 257 for 1 .. 200000' >"$work/tokens.bin"
mkdir "$drives/a" "$drives/b"
# one FLAGS...: the time that a quarter of a training's steps stay below: what else the machine does prolongs the others
one() {
    train "$work/run" --init gpt2-small --batch 4 --seq-len 64 --drive "$drives/a" "$drives/b" --memory 512MiB --steps 20 "$@"
    metric "$work/run" step_seconds | sed -n 3,19p | sort -g | sed -n 5p
}
for ((round = 0; round < ROUNDS; round++)); do
    if ((round % 2)); then
        with=$(one --trace 20) without=$(one)
    else
        without=$(one) with=$(one --trace 20)
        kib=$(($(stat -c %s "$work/run/trace.spans") / 20 / 1024))
    fi
    printf '%.4f s without, %.4f s with a trace of %d KiB a step\n' "$without" "$with" $kib
    calc "$with / $without" >>"$work/ratios"
    echo >>"$work/ratios"
done
verdict "step with a trace / without, median of $ROUNDS" "$(median <"$work/ratios")" 1.01 most
