#!/usr/bin/env bash
# The largest overrun of a budget, as measured from outside, over models, batches, sequences and budgets.
. "$(dirname "$0")/lib.sh"
machine
random_tokens "$work/tokens.bin"
cat >"$work/small.json" <<'JSON'
{"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 8, "n_positions": 2048, "vocab_size": 50257}
JSON
cat >"$work/llama.json" <<'JSON'
{"model_type": "llama", "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6,
 "num_key_value_heads": 2, "max_position_embeddings": 2048, "vocab_size": 50257, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}
JSON
worst=-1000000000000
runs=0
one() { # NAME BUDGET ARGS...
    local name=$1 budget=$2 peak over
    shift 2
    "$WATCH" "$LONGSHORE" train --data "$work/tokens.bin" --out "$work/run" --quiet --steps 2 --memory "$budget" "$@" \
        >"$work/log" 2>&1 || { echo "$name: FAILED"; tail -n 3 "$work/log"; worst=999999999999; return; }
    peak=$(sed -n 's/^peak //p' "$work/log")
    over=$((peak - $(size_bytes "$budget")))
    printf '%-52s budget %12s, peak %8.1f MiB, over by %9d KiB\n' "$name" "$budget" "$(calc "$peak / 1048576")" $((over / 1024))
    [ $over -le $worst ] || worst=$over
    runs=$((runs + 1))
    gone "$work/run"
}
for model in small.json llama.json gpt2-124m; do
    init=$model
    [ ! -e "$work/$model" ] || init=$work/$model
    for shape in "1 64" "4 64" "16 128" "2 1000" "32 256"; do
        read -r batch length <<<"$shape"
        [ $model != gpt2-124m ] || [ $((batch * length)) -le 2048 ] || continue
        for how in "" "--clip 0.01" "--precision fp32"; do
            # shellcheck disable=SC2206
            command=(--init "$init" --batch "$batch" --seq-len "$length" --drive "$work/one.volume" "$work/two.volume" $how)
            least=$("$LONGSHORE" train --data "$work/tokens.bin" --out "$work/run" --steps 2 "${command[@]}" --memory 1MiB 2>&1 |
                sed -nE 's/.*minimum ([0-9.]+ ?[KMGT]?i?B?).*/\1/p' | sed -n 1p) || true # it refuses
            bytes=$(size_bytes "$least")
            for budget in "$least" $((bytes + bytes / 7)) $((bytes * 2)); do
                one "$model $batch x $length $how" "$budget" "${command[@]}"
            done
        done
    done
done
verdict "largest overrun in bytes over $runs runs" "$(printf '%s\n0\n' "$worst" | sort -g | tail -n 1)" 0 most
