#!/usr/bin/env bash
# The budget is a promise about resident memory, as measured from outside: at exactly the printed minimum a run works
# and holds; below, it is refused before anything is made.
. "$(dirname "$0")/lib.sh"
some_text "$place/text" 300
gpt2_config "$place/small.json" 2 64 4 64 300
gpt2_config "$place/wide.json" 3 256 8 256 4000
gpt2_config "$place/long.json" 2 48 4 1100 300
cat >"$place/llama.json" <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 192, "intermediate_size": 512,
 "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
 "vocab_size": 2000, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}
JSON
sed 's/"vocab_size": 2000/"vocab_size": 60000/; s/192/256/; s/_attention_heads": 6/_attention_heads": 4/' \
    "$place/llama.json" >"$place/vocabulary.json"
worst=0

# holds NAME BUDGET ARGS...
holds() {
    local name=$1 budget=$2
    shift 2
    rm -rf "$place/run" "$place"/d[12]
    mkdir "$place/d1" "$place/d2"
    printf '$ longshore %s --memory %s\n' "$*" "$budget" >"$place/log"
    "${guard[@]}" "$PEAK" "$LONGSHORE" "$@" --memory "$budget" >>"$place/log" 2>&1 </dev/null
    rc=$?
    if [ $rc != 0 ]; then fail "$name in $budget: exit code $rc"; else below "$name" "$budget" "$place/log"; fi
}
# below NAME BUDGET LOG: what PEAK wrote there, of one or more processes.
below() {
    local peak limit
    peak=$(sed -n 's/^peak //p' "$3" | sort -n | tail -n 1)
    limit=$(bytes "$2")
    if [ "${peak:-$((limit + 1))}" -gt "$limit" ]; then
        fail "$1: peak of $peak bytes, $((peak - limit)) above $2"
    else
        ok "$1"
        printf '  %-44s %10s, peak %4d MiB, left %d KiB\n' "$1" "$2" $((peak >> 20)) $(((limit - peak) >> 10))
    fi
    [ "$((peak - limit))" -le $worst ] || worst=$((peak - limit))
}
# sweep NAME ARGS...: below the minimum, at it, and above
sweep() {
    local name=$1 least
    shift
    rm -rf "$place/run" "$place"/d[12]
    mkdir "$place/d1" "$place/d2"
    local command=(train "$@" --data "$place/text" --out "$place/run" --steps 3)
    refused "$name: a budget far too small" "minimum [0-9.]+ [KMGT]iB" "${command[@]}" --memory 1MiB
    least=$(minimum "${command[@]}")
    [ -n "$least" ] || { fail "$name: no minimum is named"; return; }
    refused "$name: just below the minimum" "minimum $least" "${command[@]}" --memory $(($(bytes "$least") - 1048576))
    if [ -e "$place/run" ] || [ -n "$(find "$place/d1" "$place/d2" -mindepth 1)" ]; then
        fail "$name: the refused run left something"
    fi
    holds "$name, minimum" "$least" "${command[@]}"
    holds "$name, 20 MiB more" $(($(bytes "$least") + 20971520)) "${command[@]}"
    holds "$name, 1 GiB" 1GiB "${command[@]}"
}

# With AVX2, oneDNN allocates memory for each product: holes in the heap, which the least budget has no room for.
large=(train --init "$place/vocabulary.json" --drive "$place/d1" --batch 32 --seq-len 64 --eval-every 1 --val-share 0.02
       --data "$place/text" --out "$place/run" --steps 2)
holds "large vocabulary, minimum" "$(minimum "${large[@]}")" "${large[@]}"
sweep "small, one drive" --init "$place/small.json" --drive "$place/d1" --batch 4 --seq-len 64
sweep "small, large batch" --init "$place/small.json" --drive "$place/d1" --batch 64 --seq-len 64 --eval-every 1 --val-share 0.1
sweep "wide, two drives, speculating" --init "$place/wide.json" --drive "$place/d1" "$place/d2" --batch 6 --seq-len 256 \
    --clip 100 --speculate on
sweep "wide, clipped" --init "$place/wide.json" --drive "$place/d1" --batch 2 --seq-len 200 --clip 0.01
sweep "long sequences, fp32, threads" --init "$place/long.json" --drive "$place/d1" --batch 2 --seq-len 1100 \
    --precision fp32 --io threads
sweep "llama in memory" --init "$place/llama.json" --drive ram: --batch 4 --seq-len 128
sweep "llama, samples, buffered" --init "$place/llama.json" --drive "$place/d1" --batch 2 --seq-len 300 --io buffered \
    --sample-every 1

# A tokenizer.json that is nearly all blanks takes no memory when it is read, and must take none when it is copied.
cp -r "$tests/data/tokenizers/gpt2" "$place/padded"
head -c 33554432 /dev/zero | tr '\0' ' ' >>"$place/padded/tokenizer.json"
must train --init "$place/wide.json" --tokenizer "$place/padded" --data "$place/text" --drive "$place/volume.volume" --steps 1 \
    --batch 1 --seq-len 16 --memory 512MiB --out "$place/kept"
least=$(minimum export "$place/kept" --out "$place/exported")
holds "export with a large tokenizer.json" "$least" export "$place/kept" --out "$place/exported"
# Where the minimum is measured, it has to do for a start that takes a little more.
for what in "inspect $place/kept --digest" "export $place/kept --out $place/again"; do
    # shellcheck disable=SC2086
    must $what --memory $(($(bytes "$(minimum $what)") - 786432))
done

what=(import "$place/exported" --drive "$place/d1" --out "$place/run")
refused "import: a budget far too small" "1.00 MiB of memory is too little for this model: minimum" "${what[@]}" --memory 1MiB
[ ! -e "$place/run" ] && [ -z "$(ls "$place/d1")" ] && ok "nothing was made" || fail "the refused import left something"
holds "import" "$(minimum "${what[@]}")" "${what[@]}"
"$LONGSHORE" remove "$place/run" >/dev/null

must train --init "$place/wide.json" --data "$place/text" --drive "$place"/five.{1,2,3,4,5} --steps 1 --batch 1 --seq-len 16 \
    --memory 512MiB --out "$place/five"
holds "the digest of five drives" "$(minimum inspect "$place/five" --deep)" inspect "$place/five" --deep

# Behind ssh: the budget of the run, and that of the server, which is the far side's.
cat >"$place/rsh" <<RSH
#!/bin/sh
shift
exec "$PEAK" "$LONGSHORE" drive serve --stdio --memory "\$(cat "$place/serve-memory")" 2>>"$place/serve-log"
RSH
chmod +x "$place/rsh"
export LONGSHORE_RSH="$place/rsh"
# far NAME ARGS...: the server in too little, the least that it names, and more; then the run's sweep
far() {
    local name=$1 least size command
    shift
    command=(train "$@" --drive "ssh://far$place/d1" --data "$place/text" --out "$place/run" --steps 3)
    rm -rf "$place/run" "$place"/d1
    mkdir "$place/d1"
    echo 1MiB >"$place/serve-memory"
    refused "$name: a server far too small" "ssh://far.*needs a server with at least [0-9.]+ ?[KMGT]iB of memory" \
        "${command[@]}" --memory 512MiB
    least=$(sed -nE 's/.*a server with at least ([0-9.]+) ?([KMGT]iB) of memory.*/\1\2/p' "$place/log")
    [ -n "$least" ] || { fail "$name: the server names no minimum"; return; }
    echo $(($(bytes "$least") - 1048576)) >"$place/serve-memory"
    refused "$name: a server just too small" "needs a server" "${command[@]}" --memory 512MiB
    [ -z "$(ls "$place/d1")" ] && [ ! -e "$place/run" ] || fail "$name: the refused run left something"
    for size in "$least" 40MiB 256MiB; do
        echo "$size" >"$place/serve-memory"
        : >"$place/serve-log"
        holds "$name, its server in $size" 512MiB "${command[@]}"
        below "$name, the server" "$size" "$place/serve-log"
    done
    echo "$least" >"$place/serve-memory" # what the kernel accounts to a process includes the children that it waited for
    sweep "$name" "$@" --drive "ssh://far$place/d1"
}
far "far" --init "$place/wide.json" --batch 6 --seq-len 256 --clip 100 --speculate on
far "far, compressed" --init "$place/wide.json" --batch 2 --seq-len 64 --compress top1% --residual saved
far "far, 8 bits" --init "$place/small.json" --batch 4 --seq-len 64 --moments 8bit --snapshot-every 2
echo "largest overrun: $worst bytes"
done_testing
