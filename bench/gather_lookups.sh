#!/usr/bin/env bash
# What crosses the host link for an untied embedding of Llama-3's vocabulary (128,256 x 2,048) in a step of 4 x 64 tokens:
# with --gather, as a share of what crosses without. All other parameters stay in memory. Takes 10 GiB of drive.
. "$(dirname "$0")/lib.sh"
vocab=128256 width=2048
cat >"$work/config.json" <<JSON
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": $width, "intermediate_size": 256,
 "num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 1, "max_position_embeddings": 512,
 "vocab_size": $vocab, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}
JSON
# spread evenly, so that few are looked up twice; 32 bits each
perl -e 'print pack("V256", 20240801, 7, 20000, (0) x 253); my $s = 1;
    for (1 .. 20000) { $s = $s * 16807 % 2147483647; print pack "V", $s % $ARGV[0] }' $vocab >"$work/tokens.bin"
machine
bytes=()
for gather in off on; do
    train "$work/run" --init "$work/config.json" --optimizer sgd --steps 4 --batch 4 --seq-len 64 --clip 0 --memory "${MEMORY:-6GiB}" \
        --drive "$work/drive.volume" --gather $gather
    bytes[${#bytes[@]}]=$(for key in link_gradients link_parameters; do metric "$work/run" $key | sed -n 3p; done |
        awk '{s += $1} END {printf "%.0f", s}') # the last step's forward counts with the one before
    echo "# --gather $gather: ${bytes[-1]} bytes a step, $(seconds "$work/run" 2 4) s"
    gone "$work/run"
done
whole=$((6 * vocab * width)) # parameters in bf16, gradients in fp32
verdict "link, an embedding of $vocab x $width: bytes with rows / without" "$(calc "1 - (${bytes[0]} - ${bytes[1]}) / $whole")" 0.02 most
