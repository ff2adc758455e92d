#!/usr/bin/env bash
# UPDATE on an OpenCL device (PoCL, which is this processor) beside the engine's vector code, on the same drive, in turn.
# PARAMS (default 124M); OPENCL: another device (device=NAME).
. "$(dirname "$0")/lib.sh"
PARAMS=${PARAMS:-124M}
machine
: >"$work/host"
: >"$work/device"
rate() { # DRIVE FILE
    "$LONGSHORE" bench update --drive "$1" --params "$PARAMS" --steps 5 --opencl "${OPENCL:-memory=4GiB}" --json --quiet \
        >"$work/json" 2>"$work/said" || { cat "$work/said" >&2; exit 1; }
    number params_per_second <"$work/json" >>"$2"
}
for ((round = 1; round <= ROUNDS; round++)); do
    rate "$work" "$work/host"
    rate "opencl:$work" "$work/device"
    printf 'round %d: host %.1f, device %.1f million parameters/s\n' $round "$(calc "$(tail -n 1 "$work/host") / 1e6")" \
        "$(calc "$(tail -n 1 "$work/device") / 1e6")"
done
sed -nE 's/.*"drive": ?"([^"]*)".*/\1/p' "$work/json"
verdict "UPDATE on the OpenCL device / by the engine's vector code" "$(calc "$(median <"$work/device") / $(median <"$work/host")")" 0.8
