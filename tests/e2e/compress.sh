#!/usr/bin/env bash
# Compressed and narrowed gradients: the same bits wherever the state lies and however the step goes, less on the link,
# and a residual that is kept as promised.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 128 4 64 1500
sed 's/"activation_function"/"tie_word_embeddings": false, "activation_function"/' "$place/config.json" >"$place/untied.json"
some_text "$place/text" 400
common=(--init "$place/config.json" --seed 7 --data "$place/text" --steps 5 --batch 20 --seq-len 64 --lr 3e-3
        --warmup 1 --log-every 1)
top=(--compress top1%)
d1=$place/d1 all=("$place"/d{1,2,3,4,5})

# way NAME ARGS...: a run of its own; its digest in $found.
way() {
    local name=$1
    shift
    rm -rf "$place/run" "$place"/d[1-5]
    mkdir "$place"/d{1,2,3,4,5}
    [[ " $* " == *" --memory "* ]] || set -- "$@" --memory 1GiB
    merge common --out "$place/run" "$@"
    run train "${merged[@]}"
    found=$(digest)
    [ $rc = 0 ] || fail "$name: exit code $rc"
    [ -n "$found" ] || fail "$name: no line 'step N digest HEX'"
}
# agrees NAME ARGS...
agrees() {
    way "$@"
    same "$1" "$found" "$wanted"
}
differs() {
    way "$@"
    if [ "$found" != "$wanted" ]; then ok "$1"; else fail "$1: the same digest"; fi
}

# ---- the same bits ----
for residual in host saved; do
    how=("${top[@]}" --residual $residual --clip 100)
    way "residual $residual in memory" --drive ram: "${how[@]}"
    wanted=$found
    losses=$(metric "$place/run" loss | tr '\n' ' ')
    same "residual $residual: the losses" "$losses" "${first_losses:=$losses}"
    agrees "residual $residual, one drive" --drive "$d1" "${how[@]}"
    agrees "residual $residual, two drives, small chunks" --drive "$d1" "$place/d2" --chunk-size 768KiB "${how[@]}"
    agrees "residual $residual, five drives, speculate off" --drive "${all[@]}" --speculate off "${how[@]}"
    agrees "residual $residual, speculate on" --drive "$d1" --speculate on "${how[@]}"
    merge common "${how[@]}" --drive "$d1"
    least=$(minimum train "${merged[@]}" --out "$place/none")
    agrees "residual $residual, the least budget ${least:-?}" --drive "$d1" "${how[@]}" --memory "${least:-1GiB}"
    rm -rf "$place/run" "$d1"/*
    merge common "${how[@]}" --drive "$d1"
    "${guard[@]}" "$PEAK" "$LONGSHORE" train "${merged[@]}" --memory "${least:-1GiB}" --out "$place/run" \
        >"$place/log" 2>&1 </dev/null
    peak=$(sed -n 's/^peak //p' "$place/log")
    if [ "${peak:-0}" -gt 0 ] && [ "$peak" -le "$(bytes "${least:-0}")" ]; then
        ok "residual $residual: the budget holds"
    else
        fail "residual $residual: a peak of ${peak:-?} bytes in ${least:-?}"
    fi
done
differs "no error feedback" --drive ram: "${top[@]}" --clip 100 --error-feedback off
wanted=$found
agrees "no error feedback, two drives" --drive "$d1" "$place/d2" "${top[@]}" --clip 100 --error-feedback off
how=(--compress top20% --compress-after 2 --clip 100)
way "after 2 steps" --drive ram: "${how[@]}"
wanted=$found
agrees "after 2 steps, two drives" --drive "$d1" "$place/d2" "${how[@]}"
for optimizer in sgd adagrad; do
    how=("${top[@]}" --optimizer $optimizer --residual saved)
    [ $optimizer != sgd ] || how+=(--momentum 0.9)
    way "$optimizer in memory" --drive ram: "${how[@]}"
    wanted=$found
    agrees "$optimizer, two drives" --drive "$d1" "$place/d2" "${how[@]}"
done
how=("${top[@]}" --moments 8bit)
way "moments of 8 bits in memory" --drive ram: "${how[@]}"
wanted=$found
agrees "moments of 8 bits, two drives" --drive "$d1" "$place/d2" "${how[@]}"
# An untied model has two tables, selected from one after the other.
how=(--init "$place/untied.json" "${top[@]}" --compress-after 2)
way "untied in memory" --drive ram: "${how[@]}"
wanted=$found
agrees "untied, two drives" --drive "$d1" "$place/d2" "${how[@]}" --residual host
merge common "${how[@]}" --drive "$d1"
least=$(minimum train "${merged[@]}" --out "$place/none")
agrees "untied, the least budget ${least:-?}" --drive "$d1" "${how[@]}" --memory "${least:-1GiB}"

# What the text looks up most is padding here: its row begins at zero, and nothing but lookups would change it.
cat >"$place/padded.json" <<'END'
{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2,
 "vocab_size": 1500, "max_position_embeddings": 64, "tie_word_embeddings": false, "pad_token_id": 32}
END
how=(--init "$place/padded.json" --compress top50% --batch 4)
way "padding in memory" --drive ram: "${how[@]}"
wanted=$found
agrees "padding, two drives, small chunks" --drive "$d1" "$place/d2" --chunk-size 768KiB "${how[@]}"
must export "$place/run" --out "$place/padded"
header=$(od -An -tu8 -N8 "$place/padded/model.safetensors" | tr -d ' ')
table=$(head -c $((8 + header)) "$place/padded/model.safetensors" | grep -ao 'embed_tokens.weight": *{[^}]*}' |
    sed -E 's/.*data_offsets": *\[([0-9]+),.*/\1/')
row() { tail -c +$((9 + header + table + $1 * 256)) "$place/padded/model.safetensors" | head -c 256; }
same "the padding's row" "$(row 32 | tr -d '\0' | wc -c)" 0
[ "$(row 33 | tr -d '\0' | wc -c)" -gt 200 ] && ok "the row beside it" || fail "the row beside the padding's is empty"

# Speculation that fails in some steps, or in all: what was sent is in memory, so no step is computed again.
way "norms" --drive ram: "${top[@]}" --speculate on --clip 100
middle=$(metric "$place/run" grad_norm | sort -g | sed -n 3p)
for clip in 0.01 "$middle"; do
    for what in "${top[*]}" "--grad-precision bf16"; do
        read -ra how <<<"$what"
        how+=(--clip "$clip")
        way "clip $clip in memory, $what" --drive ram: --speculate off "${how[@]}"
        wanted=$found
        for speculate in on off; do
            agrees "clip $clip, speculate $speculate, $what" --drive "$d1" --speculate $speculate "${how[@]}"
        done
        if [[ $what == --compress* ]]; then
            same "no step is computed again" "$(metric "$place/run" replays | sort -u)" 0
        else
            merge common "${how[@]}" --drive "$d1" --speculate on
            least=$(minimum train "${merged[@]}" --out "$place/none")
            agrees "clip $clip, $what, $least" --drive "$d1" --speculate on "${how[@]}" --memory "${least:-1GiB}"
            agrees "clip $clip, $what, $least, waiting" --drive "$d1" --speculate off "${how[@]}" \
                --memory "${least:-1GiB}"
        fi
    done
done
how=(--init "$place/untied.json" --grad-precision bf16)
way "untied, bf16 gradients, in memory" --drive ram: "${how[@]}"
wanted=$found
agrees "untied, bf16 gradients, two drives" --drive "$d1" "$place/d2" "${how[@]}"
done_testing
