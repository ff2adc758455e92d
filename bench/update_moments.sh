#!/usr/bin/env bash
# UPDATE with moments of 8 bits: bytes moved per parameter for a model's own tensors, from the ledger of its training,
# and its speed beside fp32 moments, in turn. MODEL (default gpt2-124m); PARAMS of the speed (default 124M).
. "$(dirname "$0")/lib.sh"
MODEL=${MODEL:-gpt2-124m}
PARAMS=${PARAMS:-124M}
machine
random_tokens "$work/tokens.bin"
train "$work/run" --init "$MODEL" --batch 1 --seq-len 64 --steps 3 --memory "${MEMORY:-4GiB}" --drive "$work/state.volume" \
    --moments 8bit --clip 0
"$LONGSHORE" inspect "$work/run" --json >"$work/json"
per=$(calc "($(metric "$work/run" drive_read_bytes | tail -n 1) + $(metric "$work/run" drive_write_bytes | tail -n 1)) / $(number parameters <"$work/json")")
: >"$work/fp32"
: >"$work/8bit"
for ((round = 1; round <= ROUNDS; round++)); do
    for moments in fp32 8bit; do
        "$LONGSHORE" bench update --drive "$work" --params "$PARAMS" --steps 5 --moments $moments --json --quiet >"$work/json"
        number params_per_second <"$work/json" >>"$work/$moments"
    done
    printf 'round %d: fp32 %.1f, 8 bits %.1f million parameters/s\n' $round "$(calc "$(tail -n 1 "$work/fp32") / 1e6")" \
        "$(calc "$(tail -n 1 "$work/8bit") / 1e6")"
done
"$here/../build/bench_near_update" | grep -E '^(avx512|avx2|8bit)' || true
verdict "UPDATE with 8-bit moments / with fp32 ones, parameters a second" \
    "$(calc "$(median <"$work/8bit") / $(median <"$work/fp32")")" 1.6
verdict "$MODEL: bytes read and written per parameter and step, 8-bit moments" "$per" 12.5 most
