#!/usr/bin/env bash
# Golden trainings: digests, losses and norms, the rows of plans, what is handed over to drives and in which order, bytes moved. They are
# computed with plain arithmetic, so that what is committed in tests/data/golden holds on every processor. GRID=all: every case of
# the grid instead of those in which each two of its values meet. GOLDEN=write takes what this build does for right: look at
# `git diff` then, and say in the commit what has changed and why.
. "$(dirname "$0")/lib.sh"
. "$tests/tools/grid.sh"
PROGRAM=${TRACED:-$build/tool_longshore}
golden=$tests/data/golden/train.txt
export LONGSHORE_PLAIN=1
grid_begin 64
grid_more=(--batch 2 --seq-len 16)
[ "${GRID:-}" = all ] && cases=$(grid_all) || cases=$(grid_pairs)
[ "${GOLDEN:-}" != write ] || cases=$(grid_all)
for case in $cases; do
    found=$(grid_train "$case")
    if [ "${GOLDEN:-}" = write ]; then
        printf '%s\n' "$found" >>"$place/golden"
    else
        same "$case" "$found" "$(grep "^$case " "$golden")"
    fi
done
if [ "${GOLDEN:-}" = write ]; then
    mkdir -p "${golden%/*}"
    cp "$place/golden" "$golden"
fi
# Whatever the budget and the drives are, the bits are those of the model and the way.
for model in "${grid_models[@]}"; do
    for way in "${grid_ways[@]}"; do
        same "$model, $way: digests in all budgets, on all drives" 1 \
            "$(grep "^$model-.*-$way " "$golden" | grep -oE 'digest=[0-9a-f]+ numbers=[0-9a-f]+' | sort -u | wc -l)"
    done
done
done_testing
