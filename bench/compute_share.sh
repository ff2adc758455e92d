#!/usr/bin/env bash
# Model operations a second of a whole step beside oneDNN's best rate on the model's own product shapes: GPT-2 124M,
# 4 x 1,024 tokens, with inner activations kept (4 GiB), recomputed (1 GiB), and stored on the drive instead (1 GiB). In
# turn with the products alone.
# "best": on the shape that is fastest; "mean": all shapes' operations over the sum of their best times.
# PRODUCTS: bf16 or fp32 (default: what this processor takes)
. "$(dirname "$0")/lib.sh"
machine
random_tokens "$work/tokens.bin"
STEPS=${STEPS:-4}
ROUNDS=${ROUNDS:-2}
# 6 x parameters x tokens, and attention's causal half: 12 x layers x T x width x tokens / 2
operations=$(calc "6 * 124.44e6 * 4096 + 12 * 12 * 1024 * 768 * 4096 / 2")
shape=(--init gpt2-124m --batch 4 --seq-len 1024 --steps "$STEPS" --clip 100 --drive "$work/state.volume"
    --products "${PRODUCTS:-auto}")
for ((round = 1; round <= ROUNDS; round++)); do
    "$LONGSHORE" bench compute --json >"$work/json"
    products=${PRODUCTS:-$(sed -nE 's/.*"products": *"([a-z0-9]+)".*/\1/p' "$work/json")}
    sed -nE 's/.*"'"$products"'": *\{(.*)/\1/p' "$work/json" | sed 's/, *"fp32": *{.*//' |
        grep -o '"best_gflops": *[0-9.]*' | cut -d: -f2 >"$work/rates"
    sed -n 1p "$work/rates" >>"$work/mean"
    sort -g "$work/rates" | tail -n 1 >>"$work/best"
    for way in kept:4GiB:auto recomputed:1GiB:off stored:1GiB:on; do
        IFS=: read -r name memory offload <<<"$way"
        train "$work/run" "${shape[@]}" --memory "$memory" --offload "$offload"
        # the last step's time has no forward pass in it: a step's counts from commit to commit
        seconds "$work/run" 2 $((STEPS - 1)) | awk -v o="$operations" '{print o / $1 / 1e9}' >>"$work/$name"
    done
    printf 'round %d, %s: best %.0f GFLOP/s (mean %.0f), 4 GiB %.0f, 1 GiB %.0f, stored %.0f\n' $round "$products" \
        "$(tail -n 1 "$work/best")" "$(tail -n 1 "$work/mean")" "$(tail -n 1 "$work/kept")" \
        "$(tail -n 1 "$work/recomputed")" "$(tail -n 1 "$work/stored")"
done
share() { calc "$(median <"$work/$1") / $(median <"$work/$2")"; }
verdict "inner activations kept (4 GiB): model operations / oneDNN's best" "$(share kept best)" 0.8
verdict "recomputed (1 GiB)" "$(share recomputed best)" 0.65
verdict "stored on the drive (1 GiB)" "$(share stored best)" 0.65
printf 'of the mean: %s, %s and %s\n' "$(share kept mean)" "$(share recomputed mean)" "$(share stored mean)"
