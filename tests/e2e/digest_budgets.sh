#!/usr/bin/env bash
# The same bits between the least budget and the one that keeps everything: what is kept, computed
# again or handed over in parts shows in nothing but the time. Tied and untied tables; a speculation that fails.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/gpt2.json" 7 128 4 128 9000
cat >"$place/llama.json" <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 320,
 "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 9000,
 "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "pad_token_id": 1}
JSON
sed 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$place/llama.json" >"$place/tied.json"
skewed_tokens "$place/tokens.bin" 9000
mkdir "$place"/d{1,2}

# way NAME ARGS...: its digest in $found
way() {
    local name=$1
    shift
    rm -rf "$place/run" "$place"/d[12]/*
    run train "${common[@]}" --out "$place/run" "$@"
    found=$(digest)
    [ $rc = 0 ] && [ -n "$found" ] || fail "$name: exit code $rc"
}
# sweep NAME ARGS...: in memory, then on drives in budgets between the least and all
sweep() {
    local name=$1 least most part
    shift
    way "$name in memory" --drive ram: --memory 1GiB "$@"
    wanted=$found
    run train "${common[@]}" --out "$place/none" --drive "$place/d1" --dry-run "$@"
    least=$(bytes "$(sed -n 's/^memory: minimum \([0-9.]* [KMG]iB\)$/\1/p' "$place/log")")
    most=$(most_memory)
    [ "${most:-0}" -gt "${least:-0}" ] || fail "$name: no budgets between '$least' and '$most'"
    for part in ${parts:-0 1 3 6 10}; do
        way "$name, $part tenths" --drive "$place/d1" --memory $((least + (most - least) * part / 10)) "$@"
        same "$name, $part tenths from the least budget to all" "$found" "$wanted"
    done
}

for model in gpt2 tied llama; do # frequent padding in the latter
    batch=18 # three units, of which the last is short; then two
    [ $model = gpt2 ] || parts="1 3 6" batch=10
    common=(--init "$place/$model.json" --seed 7 --data "$place/tokens.bin" --shuffle off --steps 3 --batch $batch
            --seq-len 128 --lr 3e-3 --warmup 1 --speculate on)
    sweep "$model" --clip 100
done
parts=0 sweep "llama whose head's first slice passes the limit" --clip 1e-3 # no buffer is left for the other slices
common=("${common[@]/llama/gpt2}")
parts="1 4 7" sweep "gpt2, products in fp32" --clip 100 --products fp32 # what is kept is widened, whatever the processor
parts="1 4 7" sweep "gpt2 in fp32" --clip 100 --precision fp32
norm=$(metric "$place/run" grad_norm | sort -g | sed -n 2p)
parts="1 4 7 10" sweep "gpt2 that clips now and then" --clip "$norm"
merge common --speculate off
common=("${merged[@]}")
way "gpt2 that clips, waiting" --drive "$place/d1" "$place/d2" --memory 1GiB --clip "$norm"
same "gpt2 that clips, waiting" "$found" "$wanted"
done_testing
