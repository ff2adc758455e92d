#!/usr/bin/env bash
# Model operations a second of a whole step beside oneDNN's best rate on the model's own product shapes: GPT-2 124M,
# 4 x 1,024 tokens, with inner activations kept (4 GiB) and recomputed (1 GiB). In turn with the products alone.
. "$(dirname "$0")/lib.sh"
machine
random_tokens "$work/tokens.bin"
STEPS=${STEPS:-4}
ROUNDS=${ROUNDS:-2}
# 6 x parameters x tokens, and attention's causal half: 12 x layers x T x width x tokens / 2
operations=$(calc "6 * 124.44e6 * 4096 + 12 * 12 * 1024 * 768 * 4096 / 2")
shape=(--init gpt2-124m --batch 4 --seq-len 1024 --steps "$STEPS" --clip 100 --drive "$work/volume")
for ((round = 1; round <= ROUNDS; round++)); do
    "$LONGSHORE" bench compute --json >"$work/json"
    grep -o '"best_gflops": *[0-9.]*' "$work/json" | awk -F: '$2 > best {best = $2} END {print best}' >>"$work/best"
    for memory in 4GiB 1GiB; do
        train "$work/run" "${shape[@]}" --memory $memory
        seconds "$work/run" 2 "$STEPS" | awk -v o="$operations" '{print o / $1 / 1e9}' >>"$work/$memory"
    done
    printf 'round %d: best %.0f GFLOP/s, 4 GiB %.0f, 1 GiB %.0f\n' $round "$(tail -n 1 "$work/best")" \
        "$(tail -n 1 "$work/4GiB")" "$(tail -n 1 "$work/1GiB")"
done
verdict "inner activations kept (4 GiB): model operations / oneDNN's best" "$(calc "$(median <"$work/4GiB") / $(median <"$work/best")")" 0.8
verdict "recomputed (1 GiB)" "$(calc "$(median <"$work/1GiB") / $(median <"$work/best")")" 0.65
