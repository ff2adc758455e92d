#!/usr/bin/env bash
# GPT-2 124M, 4 x 1,024 tokens a step, 1 GiB: the state on a drive beside the same with the state in memory, in turn.
. "$(dirname "$0")/lib.sh"
machine
random_tokens "$work/tokens.bin"
STEPS=${STEPS:-5}
ROUNDS=${ROUNDS:-2}
shape=(--init gpt2-124m --batch 4 --seq-len 1024 --steps "$STEPS" --clip 100 --speculate on)
# planned DRIVE MEMORY: what --dry-run says of it
planned() { "$LONGSHORE" train --data "$work/tokens.bin" --out "$work/none" "${shape[@]}" --drive "$1" --memory "$2" --dry-run; }
# kept DRIVE MEMORY: layers and units whose inner activations are not computed again
kept() { planned "$@" | sed -nE 's/.*kept for ([0-9]+) of.*drives for ([0-9]+),.*/\1 \2/p' | awk '{print $1 + $2}'; }
# In memory, the budget holds the state too: the least that computes no more and no less again than 1 GiB beside a drive.
target=$(kept "$work/state.volume" 1GiB)
low=$(($(size_bytes "$(planned ram: 1MiB | sed -n 's/.*minimum //p')") >> 20))
high=$(($(size_bytes "$(planned ram: 1MiB | sed -nE 's/.*kept from (.*) on/\1/p')") >> 20))
while ((low < high)); do
    middle=$(((low + high) / 2))
    if [ "$(kept ram: ${middle}MiB)" -ge "$target" ]; then high=$middle; else low=$((middle + 1)); fi
done
printf 'budgets: 1 GiB, in memory %s MiB; each keeps or stores the inner activations of %s layers and units\n' "$high" "$target"
# the last step's time has no forward pass in it: a step's counts from commit to commit
for ((round = 1; round <= ROUNDS; round++)); do
    train "$work/a" "${shape[@]}" --drive ram: --memory ${high}MiB
    seconds "$work/a" 2 $((STEPS - 1)) >>"$work/ram"
    train "$work/b" "${shape[@]}" --drive "$work/state.volume" --memory 1GiB
    seconds "$work/b" 2 $((STEPS - 1)) >>"$work/drive"
    printf 'round %d: in memory %.2f s a step, on a drive %.2f s\n' $round "$(tail -n 1 "$work/ram")" "$(tail -n 1 "$work/drive")"
done
verdict "124M, 4 x 1,024 tokens, 1 GiB: speed on a drive / in memory" \
    "$(calc "$(median <"$work/ram") / $(median <"$work/drive")")" 0.97
