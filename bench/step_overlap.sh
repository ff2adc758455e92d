#!/usr/bin/env bash
# GPT-2 124M, 4 x 64 tokens, 1 GiB, speculating: how near a step comes to the longer of computing alone and I/O alone.
# Computing alone: the same steps on a drive that does nothing. I/O alone: the bytes of a step at the rate of raw mixed
# direct I/O (`bench disk`). In turn.
. "$(dirname "$0")/lib.sh"
machine
random_tokens "$work/tokens.bin"
shape=(--init gpt2-124m --batch 4 --seq-len 64 --steps 20 --clip 100 --memory 1GiB)
for ((round = 1; round <= ROUNDS; round++)); do
    "$LONGSHORE" bench disk --drive "$work" --size 1GiB --passes 3 --json --quiet | number bytes_per_second >>"$work/rate"
    train "$work/run" "${shape[@]}" --drive "$work/state.volume"
    seconds "$work/run" 11 20 >>"$work/step"
    paste <(metric "$work/run" drive_read_bytes) <(metric "$work/run" drive_write_bytes) | sed -n 11,20p |
        awk '{print $1 + $2}' | median >>"$work/bytes"
    metric "$work/run" compute_seconds | sed -n 11,20p | median >>"$work/inside"
    metric "$work/run" speculated | sed -n 11,20p | sort | uniq -c | tr '\n' ' ' >"$work/speculated"
    if train "$work/null" "${shape[@]}" --drive null: --on-nonfinite skip 2>/dev/null; then
        seconds "$work/null" 11 20 >>"$work/compute"
    else # no such drive on the command line: what the step itself counted
        tail -n 1 "$work/inside" >>"$work/compute"
    fi
    printf 'round %d: step %.3f s; computing %.3f s (inside the step %.3f); %.0f MB at %.0f MB/s; speculated: %s\n' $round \
        "$(tail -n 1 "$work/step")" "$(tail -n 1 "$work/compute")" "$(tail -n 1 "$work/inside")" \
        "$(calc "$(tail -n 1 "$work/bytes") / 1e6")" "$(calc "$(tail -n 1 "$work/rate") / 1e6")" "$(cat "$work/speculated")"
done
io=$(calc "$(median <"$work/bytes") / $(median <"$work/rate")")
compute=$(median <"$work/compute")
longer=$(printf '%s\n' "$io" "$compute" | sort -g | tail -n 1)
verdict "124M, 4 x 64 tokens, 1 GiB: max(computing $compute s, I/O $io s) / step" "$(calc "$longer / $(median <"$work/step")")" 0.9
