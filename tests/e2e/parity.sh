#!/usr/bin/env bash
# Against PyTorch: the cases of tests/data/numeric, made by tests/numeric/make_expected.py.
# fp32: loss within 2e-6 relative, gradient norm within 2e-5, weights within 3e-5 absolute; bf16: loss within 1e-2.
. "$(dirname "$0")/lib.sh"
data=$tests/data/numeric

# follows NAME KEY COLUMN LIMIT RUN: a metric beside the expected one, relative.
follows() {
    local worst
    worst=$(paste -d ' ' "$data/$1/losses" <(metric "$5" "$2") | awk -v column="$3" -v limit="$4" '
        { if (NF != 4) { print "a step is missing or too many: " $0; exit }
          d = ($4 - $column) / $column; if (d < 0) d = -d; if (!(d <= worst)) worst = d }
        END { if (NF == 4) printf "%.3g%s\n", worst, worst <= limit ? "" : " is too much" }')
    case $worst in
        *" "* | "") fail "$1: $2 differs: $worst (limit $4)" ;;
        *) ok "$1: $2 within $worst"; printf '  %-14s %-9s within %s (limit %s)\n' "$1" "$2" "$worst" "$4" ;;
    esac
}

# one NAME PRECISION EXTRA...
one() {
    local name=$1 precision=$2 model limit=2e-6
    shift 2
    model=$data/$name/model
    [ -d "$model" ] || model=$data/$(cat "$data/$name/model_of")/model
    rm -rf "$place/run" "$place/out" "$place"/drive/*
    # shellcheck disable=SC2046
    run train --model "$model" --data "$data/$name/data.bin" --precision "$precision" --memory 1GiB \
        --out "$place/run" $(cat "$data/$name/args") "$@"
    [ $rc = 0 ] || { fail "$name: exit code $rc"; return; }
    if [ "$precision" = bf16 ]; then
        follows "$name" loss 2 1e-2 "$place/run"
        return
    fi
    follows "$name" loss 2 $limit "$place/run"
    follows "$name" grad_norm 3 2e-5 "$place/run"
    [ -d "$data/$name/expected" ] || return 0
    must export "$place/run" --out "$place/out" --dtype fp32 --memory 1GiB
    if "$COMPARE" "$data/$name/expected" "$place/out" 3e-5 >"$place/log" 2>&1; then
        ok "$name: weights"
        printf '  %-14s %s\n' "$name" "$(cat "$place/log")"
    else
        fail "$name: weights differ"
    fi
}

# fp32 on a drive, whence the weights are exported; the 50 steps in memory, and again in bf16.
mkdir "$place/drive"
for directory in "$data"/*/; do
    name=$(basename "$directory")
    case $name in
        *_50)
            one "$name" fp32 --drive ram:
            one "$name" bf16 --drive ram:
            ;;
        *) one "$name" fp32 --drive "$place/drive" ;;
    esac
done
one llama fp32 --drive "$place/drive" --io threads --speculate on
one qwen2_padding fp32 --drive "$place/drive" --update host
done_testing
