# The grid of trainings that nets are made of: models x budgets x drives x ways. Sourced, not run: tests/e2e/golden.sh runs a part of
# it with plain kernels, whose results are committed; scripts/compare-builds runs it with the programs of two commits.
# What is set before: place, a directory; PROGRAM, a traced program (tool_longshore); grid_known, a file with lines of an earlier
# training, whose budgets are those of these cases, whatever the least is now.
grid_models=(gpt2 llama tied window)
grid_budgets=(least middle all)
grid_drives=(local ram ssh)
grid_ways=(plain topk 8bit clip)

# grid_pairs: sixteen cases in which each two values of two axes meet. grid_all: every case.
grid_pairs() {
    local i j
    for i in 0 1 2 3; do
        for j in 0 1 2 3; do
            echo "${grid_models[i]}-${grid_budgets[(i + j) % 3]}-${grid_drives[(i + 2 * j) % 3]}-${grid_ways[j]}"
        done
    done
}
grid_all() {
    local m b d w
    for m in "${grid_models[@]}"; do for d in "${grid_drives[@]}"; do for w in "${grid_ways[@]}"; do for b in "${grid_budgets[@]}"; do
        echo "$m-$b-$d-$w"
    done; done; done; done
}

# grid_begin WIDTH CLIP_GPT2 CLIP: models, and clips with norms on both sides of them; data, and a shell that stands in for ssh
grid_begin() {
    local d=$1
    grid_clip=("$2" "$3")
    cat >"$place/gpt2.json" <<JSON
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 3, "n_embd": $d, "n_head": 4, "n_positions": 64,
 "vocab_size": 3000, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
 "attn_pdrop": 0.0}
JSON
    cat >"$place/llama.json" <<JSON
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": $d, "intermediate_size": $((2 * d)),
 "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 3000,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "pad_token_id": 1}
JSON
    sed 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$place/llama.json" >"$place/tied.json"
    sed 's/"model_type": "llama"/"model_type": "mistral", "sliding_window": 7/; s/LlamaFor/MistralFor/' "$place/llama.json" >"$place/window.json"
    # few tokens are frequent; in whole numbers, so that no libm decides
    perl -e 'use integer; print pack("V256", 20240520, 1, 40000, (0) x 253); my ($s, $t) = (1, 2);
        for (1 .. 40000) { $s = $s * 16807 % 2147483647; $t = $t * 48271 % 2147483647;
        print pack "v", ($s % 3000) * ($t % 3000) / 3000 * ($t / 4096 % 3000) / 3000 }' >"$place/tokens.bin"
    printf '#!/bin/sh\nunset LONGSHORE_TRACE\nshift\nexec "$GRID_FAR" drive serve --stdio\n' >"$place/rsh"
    chmod +x "$place/rsh"
}

# grid_case CASE: its flags in $case_args, without where it is made and what it may take
grid_case() {
    local model budget drives way
    IFS=- read -r model budget drives way <<<"$1"
    rm -rf "$place"/drive[12]
    mkdir "$place"/drive{1,2}
    case_args=(--init "$place/$model.json" --seed 7 --data "$place/tokens.bin" --steps 4 --lr 3e-3 --warmup 1 --threads 1
        --log-every 1 --products fp32 "${grid_more[@]}")
    case $drives in
    local) case_args+=(--drive "$place/drive1" "$place/drive2") ;;
    ram) case_args+=(--drive ram:) ;;
    ssh) case_args+=(--drive "ssh://far$place/drive1") ;;
    esac
    case $way in
    plain) case_args+=(--clip 100) ;;
    topk) case_args+=(--compress top5% --compress-after 1 --residual saved --clip 100) ;;
    8bit) case_args+=(--moments 8bit --clip 100) ;;
    clip) # some speculate although a step before was clipped
        case $model in
        gpt2) case_args+=(--clip "${grid_clip[0]}" --speculate on) ;;
        window) case_args+=(--clip "${grid_clip[1]}" --speculate on) ;;
        *) case_args+=(--clip "${grid_clip[1]}") ;;
        esac ;;
    esac
}

# grid_budget CASE: bytes for it, from what its plan says of the least and of all
grid_budget() {
    local least most said
    sed -nE "s/^$1 memory=([^ ]*) .*/\\1/p" "${grid_known:-/dev/null}" | grep . && return
    said=$(grid_run train "${case_args[@]}" --out "$place/none" --dry-run)
    least=$(sed -n 's/^memory: minimum \([0-9.]* [KMG]iB\)$/\1/p' <<<"$said")
    most=$(sed -n 's/^memory: everything kept from \([0-9.]* [KMG]iB\) on$/\1/p' <<<"$said")
    case $1 in
    *-least-*) echo "${least// /}" ;;
    *-middle-*) awk -v a="${least% *}" -v b="${most% *}" 'BEGIN {printf "%.0fKiB\n", (9 * a + b) * 102.4}' ;;
    *-all-*) echo "${most// /}" ;;
    esac
}

grid_run() { GRID_FAR=$PROGRAM LONGSHORE_RSH=$place/rsh timeout -k 5 300 "$PROGRAM" "$@" 2>&1 </dev/null; }

hashed() { md5sum | cut -c 1-16; }
# grid_said RUN TRACE LOG: what a training came to, in words that are compared one by one
grid_said() {
    local keys
    echo "digest=$(sed -nE 's/^step [0-9]+ digest ([0-9a-f]+).*$/\1/p' "$3" | tail -n 1)"
    keys='"(loss|grad_norm|dropped_energy)": ?[^,}]*'
    echo "numbers=$(grep -oE "$keys" "$1/metrics.jsonl" | hashed)"
    echo "rows=$(grep '^row ' "$2" | LC_ALL=C sort | hashed)"
    echo "sends=$(grep -vE '^(row|moved) ' "$2" | hashed)"
    keys='"(link_[a-z]*|drive_(read|write)_bytes)": ?[0-9]*'
    echo "bytes=$(grep -q '^discard' "$2" && echo any || # what was discarded had been written, or not yet
        grep -oE "$keys" "$1/metrics.jsonl" | grep -vE 'link_(bytes|control)' | awk -F: '{sum += $2} END {print sum}')"
}

# grid_train CASE: trains it; what came of it on standard output, in one line
grid_train() {
    local run=$place/run memory
    grid_case "$1"
    memory=$(grid_budget "$1")
    rm -rf "$run"
    LONGSHORE_TRACE=$place/trace grid_run train "${case_args[@]}" --memory "$memory" --out "$run" >"$place/log" || {
        echo "$1 FAILED"
        tail -n 5 "$place/log" >&2
        return 1
    }
    grid_said "$run" "$place/trace" "$place/log" | paste -sd ' ' - | sed "s/^/$1 memory=$memory /"
}

# grid_stop_and_go_on CASE OTHER: trains half of it, and the program OTHER the rest; the digest at the end
grid_stop_and_go_on() {
    local run=$place/run memory
    grid_case "$1"
    memory=$(grid_budget "$1")
    rm -rf "$run"
    grid_run train "${case_args[@]}" --memory "$memory" --out "$run" --stop-at 2 >"$place/log" &&
        PROGRAM=$2 grid_run train --resume "$run" >"$place/log" || echo FAILED
    sed -nE 's/^step ([0-9]+ digest [0-9a-f]+).*$/\1/p' "$place/log" | tail -n 1
}
