#!/usr/bin/env bash
# GPT-2 124M, 4 x 1,024 tokens a step, 1 GiB: the state on a drive beside the same with the state in memory, in turn.
. "$(dirname "$0")/lib.sh"
machine
random_tokens "$work/tokens.bin"
STEPS=${STEPS:-4}
ROUNDS=${ROUNDS:-2}
shape=(--init gpt2-124m --batch 4 --seq-len 1024 --steps "$STEPS" --clip 100 --speculate on)
least() {
    "$LONGSHORE" train --data "$work/tokens.bin" --out "$work/none" "${shape[@]}" --drive "$1" --memory 1MiB 2>&1 |
        sed -nE 's/.*minimum ([0-9.]+[KMGT]?i?B?).*/\1/p' | sed -n 1p
}
# In memory, the budget holds the state too: as much more as the minimum is.
ram_budget=$(((1 << 30) + $(size_bytes "$(least ram:)") - $(size_bytes "$(least "$work/volume")")))
for ((round = 1; round <= ROUNDS; round++)); do
    train "$work/a" "${shape[@]}" --drive ram: --memory $ram_budget
    seconds "$work/a" 2 "$STEPS" >>"$work/ram"
    train "$work/b" "${shape[@]}" --drive "$work/volume" --memory 1GiB
    seconds "$work/b" 2 "$STEPS" >>"$work/drive"
    printf 'round %d: in memory %.2f s a step, on a drive %.2f s\n' $round "$(tail -n 1 "$work/ram")" "$(tail -n 1 "$work/drive")"
done
verdict "124M, 4 x 1,024 tokens, 1 GiB: speed on a drive / in memory" \
    "$(calc "$(median <"$work/ram") / $(median <"$work/drive")")" 0.97
