#!/usr/bin/env bash
# Bytes that cross the host link per parameter and step at the update, from the ledger: GPT-2 124M, parameters resident,
# gradients in fp32, in bf16, and their top 1 %.
. "$(dirname "$0")/lib.sh"
random_tokens "$work/tokens.bin"
params=124439808
machine
for row in "fp32 6" "bf16 4" "top1% 2.1"; do
    read -r how limit <<<"$row"
    flags=(--grad-precision "$how")
    [ "$how" != top1% ] || flags=(--compress top1%)
    train "$work/run" --init gpt2-124m --steps 4 --batch 4 --seq-len 64 --memory "${MEMORY:-4GiB}" --drive "$work/drive.volume" \
        --clip 100 "${flags[@]}"
    bytes=$(for key in link_gradients link_compressed link_parameters link_state; do
        metric "$work/run" $key | tail -n 1
    done | awk '{s += $1} END {print s}')
    verdict "link, $how gradients: bytes per parameter and step" "$(calc "$bytes / $params")" "$limit" most
done
