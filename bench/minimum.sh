#!/usr/bin/env bash
# The printed minimum for 5M parameters on two drives, GPT-2 124M and 1.5B, 1 x 64 tokens, and what a run at exactly that
# budget holds as measured from outside. minimum.sh [5m|124m|1.5b]...
. "$(dirname "$0")/lib.sh"
machine
random_tokens "$work/tokens.bin"
[ $# -gt 0 ] || set -- 5m 124m 1.5b
cat >"$work/5m.json" <<'JSON'
{"model_type": "gpt2", "n_layer": 6, "n_embd": 256, "n_head": 4, "n_positions": 256, "vocab_size": 1024}
JSON
perl -e 'print pack("V256", 20240520, 1, 20000, (0) x 253); print pack "v", $_ * 7919 % 1024 for 1 .. 20000' >"$work/small.bin"
for which in "$@"; do
    data=$work/tokens.bin drives=("$work/one.volume") init=gpt2-$which
    case $which in
        5m) limit=96MiB init=$work/5m.json data=$work/small.bin drives=("$work/one.volume" "$work/two.volume") ;;
        124m) limit=400MiB ;;
        1.5b) limit=1.25GiB ;;
    esac
    command=("$LONGSHORE" train --init "$init" --data "$data" --drive "${drives[@]}" --out "$work/run" --batch 1
             --seq-len 64 --steps 3 --quiet)
    least=$("${command[@]}" --memory 1MiB 2>&1 | sed -nE 's/.*minimum ([0-9.]+ ?[KMGT]?i?B?).*/\1/p' | sed -n 1p) || true # it refuses
    "$WATCH" "${command[@]}" --memory "$least" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    peak=$(sed -n 's/^peak //p' "$work/log")
    printf '%s: minimum %s, peak from outside %.1f MiB\n' "$which" "$least" "$(calc "$peak / 1048576")"
    verdict "$which: minimum in MiB" "$(calc "$(size_bytes "$least") / 1048576")" "$(calc "$(size_bytes $limit) / 1048576")" most
    verdict "$which: peak / budget" "$(calc "$peak / $(size_bytes "$least")")" 1 most
    gone "$work/run"
done
