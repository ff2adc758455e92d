#!/usr/bin/env bash
# What `longshore plan` says of a step's time and of a process's peak, over a grid of models, batches and budgets, and what train then
# does: rates are measured in this run, anew for each model. predict.sh [quick|whole] [policies] [MODEL|MODEL:TOKENS]...: quick takes about three
# minutes, whole at most ten. policies: the same step, too, where all activations are kept, computed again or moved, or go by the
# order of thumb (LONGSHORE_POLICY), in turn; the planned one / the best of these.
# ROUNDS: trainings of each, of which the best step counts (default 3; quick: 2).
. "$(dirname "$0")/lib.sh"
machine
grid=whole
policies=(planned)
case ${1:-} in quick | whole) grid=$1; shift ;; esac
[ "${1:-}" != policies ] || { policies=(planned keep again move order); shift; }
[ $grid = whole ] || ROUNDS=2
random_tokens "$work/tokens.bin"
perl -e 'print pack("V256", 20240520, 1, 200000, (0) x 253); print pack "v", $_ * 7919 % 257 for 1 .. 200000' >"$work/small.bin"
cat >"$work/5m.json" <<'JSON'
{"model_type": "gpt2", "n_layer": 6, "n_embd": 256, "n_head": 4, "n_positions": 1024, "vocab_size": 1024}
JSON
export LONGSHORE_MACHINE=$work/machine.json
measure() { "$LONGSHORE" machine --drive "$work" --out "$LONGSHORE_MACHINE" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }

# one MODEL BATCH TOKENS BUDGET: a line, and a line in $work/ratios: of time, of peak. BUDGET: a factor of the least, or a size
one() {
    local model=$1 init=$1 data=$work/small.bin budget=$4 least said steps=4 round best measured predicted peak most=0 policy
    [ ! -e "$work/$model.json" ] || init=$work/$model.json
    case $model in gpt2-124m | gpt2-350m) data=$work/tokens.bin steps=3 ;; esac
    local shape=(--init "$init" --data "$data" --batch "$2" --seq-len "$3" --drive "$work/one.volume" --clip 0)
    case $budget in
        [0-9]*x)
            least=$("$LONGSHORE" plan "${shape[@]}" --json 2>>"$work/log" | grep -oE '"minimum_bytes": ?[0-9]+' | sed 's/.*: *//')
            budget=$(awk "BEGIN {printf \"%d\", $least * ${budget%x}}")
            ;;
    esac
    said=$("$LONGSHORE" plan "${shape[@]}" --memory "$budget" --json 2>>"$work/log") || { echo "$*: no plan"; return; }
    predicted=$(grep -oE '"step_seconds": ?[0-9.e-]+' <<<"$said" | sed -n '1s/.*: *//p')
    rm -f "$work"/steps.*
    for ((round = 0; round < ROUNDS; round++)); do
        for policy in "${policies[@]}"; do
            gone "$work/run"
            LONGSHORE_POLICY=$policy "$WATCH" "$LONGSHORE" train "${shape[@]}" --memory "$budget" --out "$work/run" --steps $steps \
                --shuffle off --quiet >"$work/log" 2>&1 </dev/null || { tail -n 3 "$work/log"; return; }
            metric "$work/run" step_seconds | sed -n "2,$((steps - 1))p" >>"$work/steps.$policy"
            peak=$(sed -n 's/^peak //p' "$work/log")
            [ $policy != planned ] || [ "$peak" -le "$most" ] || most=$peak
        done
    done
    best=$(sort -g "$work/steps.planned" | sed -n 1p)
    gone "$work/run"
    peak=$(grep -oE '"peak_bytes": ?[0-9]+' <<<"$said" | sed -n '1s/.*: *//p')
    printf '%-10s %5d tokens %8s MiB   step %8.4f s, measured %8.4f: %.3f   peak %6.1f MiB, measured %6.1f: %.3f   %s\n' "$model" \
        $(($2 * $3)) $((budget >> 20)) "$predicted" "$best" "$(calc "$predicted / $best")" "$(calc "$peak / 1048576")" \
        "$(calc "$most / 1048576")" "$(calc "$peak / $most")" "$(grep -oE '"bound": ?"[^"]*"' <<<"$said" | sed 's/.*: *//')"
    echo "$(calc "$predicted / $best") $(calc "$peak / $most") $((most - budget))" >>"$work/ratios"
    [ ${#policies[@]} -gt 1 ] || return 0
    rm "$work/steps.planned"
    for policy in "${policies[@]:1}"; do echo "$(sort -g "$work/steps.$policy" | sed -n 1p) $policy"; done | sort -g >"$work/best"
    measured=$(sed -n '1s/ .*//p' "$work/best")
    printf '    planned / best of the policies: %.3f   %s\n' "$(calc "$best / $measured")" "$(tr '\n' ' ' <"$work/best")"
    calc "$best / $measured" >>"$work/policies"
    echo >>"$work/policies"
}
wanted() { # MODEL TOKENS, of the arguments
    [ ${#models[@]} = 0 ] || [[ " ${models[*]} " == *" $1 "* || " ${models[*]} " == *" $1:$2 "* ]]
}
models=("$@")
# MODEL BATCH TOKENS BUDGET QUICK
while read -r model batch length budget quick; do
    wanted "$model" $((batch * length)) || continue
    [ $grid = whole ] || [ "$quick" = quick ] || continue
    [ "$model" = "${last:-}" ] || measure
    last=$model
    case $budget in *x) ;; *) budget=$(size_bytes "$budget") ;; esac
    one "$model" "$batch" "$length" "$budget"
done <<'GRID'
5m 2 128 1.1x
5m 8 256 1.5x quick
5m 16 512 1GiB quick
gpt2-tiny 1 256 1GiB
gpt2-tiny 4 512 1.2x quick
gpt2-tiny 16 512 2x
llama-tiny 4 256 1.3x quick
llama-tiny 8 1024 1GiB
gpt2-124m 1 256 1.5x quick
gpt2-124m 1 1024 1GiB quick
gpt2-124m 4 1024 1GiB
gpt2-124m 4 1024 4GiB
gpt2-124m 8 1024 2GiB
gpt2-350m 1 256 1GiB
gpt2-350m 2 1024 2GiB
GRID
# off COLUMN: how far its ratios are from 1
off() { awk -v c="$1" '{ d = $c - 1; print d < 0 ? -d : d }' "$work/ratios"; }
verdict "predicted / measured step, off by: median" "$(off 1 | median)" 0.07 most
verdict "predicted / measured step, off by: worst" "$(off 1 | sort -g | tail -n 1)" 0.15 most
verdict "predicted / measured peak, off by: worst" "$(off 2 | sort -g | tail -n 1)" 0.02 most
verdict "bytes above the budget: most" "$(awk '{ print ($3 > 0 ? $3 : 0) }' "$work/ratios" | sort -g | tail -n 1)" 0 most
if [ -e "$work/policies" ]; then
    verdict "planned / best policy's step: median" "$(median <"$work/policies")" 1.0 most
    verdict "planned / best policy's step: worst" "$(sort -g "$work/policies" | tail -n 1)" 1.05 most
fi
