#!/usr/bin/env bash
# Loss with the top 1 % of the gradients and error feedback against whole gradients: the same text, steps, seed and
# schedule, both runs at once; the curves as SVG.
# Usage: compress_loss.sh [TEXT FILE...]   (otherwise Perl's manual: package perl-doc)
# STEPS (12000), AFTER (steps with whole gradients first; a tenth), BATCH (8), LENGTH (128), LR (2e-3), WIDTH (256), LAYERS
# (6), MEMORY (4GiB), OUT (runs/compress-loss), COMMON (flags of both), METHOD (flags of the compressed run)
. "$(dirname "$0")/lib.sh"
steps=${STEPS:-12000}
after=${AFTER:-$((steps / 10))}
width=${WIDTH:-256}
layers=${LAYERS:-6}
length=${LENGTH:-128}
out=${OUT:-$here/../runs/compress-loss}
read -ra common <<<"${COMMON:-}"
read -ra method <<<"${METHOD:---compress top1% --compress-after $after}"
texts=("$@")
if [ ${#texts[@]} = 0 ]; then
    mapfile -t texts < <(dpkg -L perl-doc 2>/dev/null | grep '\.pod$' | sort)
    [ ${#texts[@]} -gt 0 ] || { echo "no text: install perl-doc, or name files" >&2; exit 1; }
fi
mkdir -p "$out"
cat >"$out/config.json" <<JSON
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": $layers, "n_embd": $width,
 "n_head": $((width / 32)), "n_positions": $length, "vocab_size": 257, "activation_function": "gelu_new",
 "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
JSON
common=(--init "$out/config.json" --data "${texts[@]}" --val-share 0.03 --eval-every $((steps / 20 > 0 ? steps / 20 : 1))
    --seed 1 --steps "$steps" --batch "${BATCH:-8}" --seq-len "$length" --lr "${LR:-2e-3}" --memory "${MEMORY:-4GiB}"
    --drive ram: --quiet "${common[@]}")
one() {
    local run=$out/$1
    shift
    gone "$run"
    "$LONGSHORE" train "${common[@]}" "$@" --out "$run" >"$run.log" 2>&1 </dev/null || { cat "$run.log" >&2; exit 1; }
    metric "$run" loss >"$work/${run##*/}.loss"
}
# tail RUN: mean loss of the last 2 % of the steps, and the last validation loss
tail_of() {
    printf '%s %s\n' "$(tail -n $((steps / 50 + 1)) "$work/$1.loss" | awk '{s += $1} END {print s / NR}')" \
        "$(metric "$out/$1" val_loss | tail -n 1)"
}
machine
echo "# $layers layers of width $width, ${BATCH:-8} x $length tokens, $steps steps, lr ${LR:-2e-3}; common: ${COMMON:-none}; compressed: ${method[*]}"
one whole &
whole_run=$!
one top "${method[@]}"
wait $whole_run
read -r whole whole_val <<<"$(tail_of whole)"
read -r top top_val <<<"$(tail_of top)"
echo "whole gradients: loss $whole, validation $whole_val"
echo "compressed:      loss $top, validation $top_val; dropped at any time $(metric "$out/top" dropped_energy | tail -n 1)"
awk -v title="${method[*]}: loss, mean of the last 2 %" -f "$here/curves.awk" "whole gradients=$work/whole.loss" \
    "compressed=$work/top.loss" >"$out/curves.svg"
echo "curves: $out/curves.svg"
verdict "validation loss, compressed / whole gradients" "$(calc "$top_val / $whole_val")" 1.01 most
verdict "training loss, compressed / whole gradients" "$(calc "$top / $whole")" 1.01 most
