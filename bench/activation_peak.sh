#!/usr/bin/env bash
# GPT-2 124M, 8 x 1,024 tokens: a step with 1 GiB, of whose activations most go to the drive, beside one that keeps all of them in
# memory, in turn; and the bytes of activations and boundaries at the peak of both, by plan.
. "$(dirname "$0")/lib.sh"
machine
random_tokens "$work/tokens.bin"
STEPS=${STEPS:-3}
ROUNDS=${ROUNDS:-2}
export LONGSHORE_MACHINE=$work/machine.json
"$LONGSHORE" machine --drive "$work" --out "$LONGSHORE_MACHINE" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
shape=(--init gpt2-124m --batch 8 --seq-len 1024 --clip 0 --drive "$work/state.volume")
activations() { # MEMORY
    "$LONGSHORE" plan "${shape[@]}" --memory "$1" --json 2>>"$work/log" | sed -E 's/.*"memory": ?\{([^}]*)\}.*/\1/' >"$work/rows"
    echo $(($(number boundaries <"$work/rows") + $(number activations <"$work/rows")))
}
all=$(activations 6GiB) some=$(activations 1GiB)
printf 'activations at the peak: %s MiB of %s MiB\n' $((some >> 20)) $((all >> 20))
for ((round = 1; round <= ROUNDS; round++)); do
    for memory in 6GiB 1GiB; do
        train "$work/run" "${shape[@]}" --memory $memory --steps "$STEPS"
        metric "$work/run" step_seconds | sed -n "2,$((STEPS - 1))p" >>"$work/$memory"
        printf 'round %d, %s: %s s a step\n' $round $memory "$(tail -n 1 "$work/$memory")"
    done
done
verdict "124M, 8 x 1,024 tokens: activations at the peak / keeping all" "$(calc "$some / $all")" 0.2 most
verdict "the same: a step / keeping all" "$(calc "$(sort -g "$work/1GiB" | sed -n 1p) / $(sort -g "$work/6GiB" | sed -n 1p)")" 1.01 most
