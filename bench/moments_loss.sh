#!/usr/bin/env bash
# The loss with moments of 8 bits beside fp32 ones, on real text: the same model, data, order and steps.
# TEXT: files of UTF-8 text (default: Perl's manual); MODEL: a preset or config.json (default gpt2-small); STEPS, SEEDS;
# CURVES: where to leave the losses, step by step.
. "$(dirname "$0")/lib.sh"
STEPS=${STEPS:-400}
SEEDS=${SEEDS:-1 2}
MODEL=${MODEL:-gpt2-small}
machine
if [ -z "${TEXT:-}" ]; then
    mapfile -t pods < <(dpkg -L perl-doc 2>/dev/null | grep '\.pod$' | sort)
    [ ${#pods[@]} -gt 0 ] || { echo "perl-doc is not installed: TEXT=FILE names a text" >&2; exit 1; }
    TEXT=$work/text
    cat "${pods[@]}" >"$TEXT"
fi
run_with() { # MOMENTS SEED
    gone "$work/run"
    # shellcheck disable=SC2086
    "$LONGSHORE" train --init "$MODEL" --data $TEXT --val-share 0.05 --seed "$2" --batch "${BATCH:-16}" --seq-len "${LENGTH:-128}" \
        --steps "$STEPS" --drive "$work/state.volume" --memory "${MEMORY:-1GiB}" --out "$work/run" --moments "$1" --quiet \
        >"$work/log" 2>&1 </dev/null || { cat "$work/log" >&2; exit 1; }
    [ -z "${CURVES:-}" ] || metric "$work/run" loss >"$CURVES/loss-$1-$2"
    printf '%s %s\n' "$(metric "$work/run" loss | tail -n 20 | awk '{s += $1} END {printf "%.4f", s / NR}')" \
        "$(metric "$work/run" val_loss | tail -n 1)"
}
for seed in $SEEDS; do
    read -r train32 val32 < <(run_with fp32 "$seed")
    read -r train8 val8 < <(run_with 8bit "$seed")
    printf 'seed %s: training loss %s with fp32 moments, %s with 8-bit ones; validation %s, %s\n' "$seed" "$train32" \
        "$train8" "$val32" "$val8"
    calc "$val8 / $val32" >>"$work/ratios"
    echo >>"$work/ratios"
done
verdict "$MODEL, $STEPS steps: validation loss with 8-bit moments / with fp32 ones" "$(median <"$work/ratios")" 1.01 most
