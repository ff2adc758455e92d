#!/usr/bin/env bash
# What a plan says that a step reads, writes and sends is what metrics count of a steady step, and a step's memory is what it says.
. "$(dirname "$0")/lib.sh"
some_text "$place/text" 300
gpt2_config "$place/gpt2.json" 4 128 4 128 300
cat >"$place/llama.json" <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 192, "intermediate_size": 512,
 "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
 "vocab_size": 300, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}
JSON

# counts NAME BUDGET ARGS...: least: the least budget. Without rows, which a text looks up less evenly than a plan takes:
# gather.sh counts them.
counts() {
    local name=$1 budget=$2
    shift 2
    rm -rf "$place/run" "$place"/d[12]
    mkdir "$place/d1" "$place/d2"
    local shape=("$@" --gather off --data "$place/text" --clip 0 --batch 4 --seq-len 64 --drive "$place/d1" "$place/d2")
    [ "$budget" != least ] || budget=$(minimum train "${shape[@]}" --out "$place/run" --steps 4)
    must plan "${shape[@]}" --memory "$budget" --json
    sed -n '$p' "$place/log" >"$place/plan"
    "${guard[@]}" "$PEAK" "$LONGSHORE" train "${shape[@]}" --memory "$budget" --out "$place/run" --steps 4 --quiet \
        >"$place/log" 2>&1 </dev/null || fail "$name, $budget: exit code $?"
    close "$name, $budget: peak" "$(sed -nE 's/.*"peak_bytes": ?([0-9]+).*/\1/p' "$place/plan")" "$(sed -n 's/^peak //p' "$place/log")" 0.15
    for key in drive_read_bytes drive_write_bytes link_bytes; do
        close "$name, $budget: $key" "$(sed -nE 's/.*"'$key'": ?([0-9]+).*/\1/p' "$place/plan")" \
            "$(sed -nE '3s/.*"'$key'": ?([0-9]+).*/\1/p' "$place/run/metrics.jsonl")" 0.01
    done
}
# close NAME SAID COUNTED SHARE: they differ by no more than that
close() {
    if awk -v a="$2" -v b="$3" -v s="$4" 'BEGIN {exit !(b > 0 && a >= (1 - s) * b && a <= (1 + s) * b)}'; then
        ok "$1"
    else
        fail "$1: the plan says $2, and a step counts $3"
    fi
}
for model in gpt2 llama; do
    must train --init "$place/$model.json" --data "$place/text" --batch 4 --seq-len 64 --steps 1 --drive "$place" --out "$place/base"
    must export "$place/base" --out "$place/$model" --dtype fp32
    must remove "$place/base"
    for budget in least 1GiB; do
        counts "$model, frozen" $budget --init "$place/$model.json" --freeze '*mlp*' '*.[01].*'
        counts "$model, frozen tables" $budget --init "$place/$model.json" --freeze 'lm_head*' '*.3.*'
        counts "$model, adapters" $budget --model "$place/$model" --lora r=32
        counts "$model" $budget --init "$place/$model.json"
        counts "$model, fp32" $budget --init "$place/$model.json" --precision fp32
    done
    counts "$model, offloaded" least --init "$place/$model.json" --offload on
    counts "$model, 8 bits, bf16 gradients" 1GiB --init "$place/$model.json" --moments 8bit --grad-precision bf16
    counts "$model, SGD, unequal drives" 1GiB --init "$place/$model.json" --optimizer sgd --drive-speeds 2,1
    counts "$model, compressed" 1GiB --init "$place/$model.json" --compress top1%
    counts "$model, residual saved" 1GiB --init "$place/$model.json" --compress top1% --residual saved
    for budget in least 46MiB 60MiB; do # none, some or all of them fit
        counts "$model, no speculation" $budget --init "$place/$model.json" --speculate off
    done
    counts "$model, no speculation, bf16 gradients" least --init "$place/$model.json" --speculate off --grad-precision bf16
    counts "$model, no speculation, compressed" least --init "$place/$model.json" --speculate off --compress top1%
    counts "$model, updated on the host" 1GiB --init "$place/$model.json" --update host
done
done_testing
