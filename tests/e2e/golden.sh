#!/usr/bin/env bash
# Golden trainings: digests, losses and norms, the rows of plans, what is handed over to drives and in which order, bytes moved. They are
# computed with plain arithmetic, so that what is committed in tests/data/golden holds on every processor. Arguments: a pattern of
# cases ('*-topk'); GRID=all: every case of the grid; otherwise those in which each two of its values meet. GOLDEN=write takes what this
# build does for right, of all cases or those of the pattern: look at `git diff` then, and say in the commit what has changed and why.
. "$(dirname "$0")/lib.sh"
. "$tests/tools/grid.sh"
PROGRAM=${TRACED:-$build/tool_longshore}
golden=$tests/data/golden/train.txt
export LONGSHORE_PLAIN=1 LONGSHORE_POLICY=order # whose plans follow from the program, and not from how long it takes
grid_begin 64 2.2 2.6
grid_more=(--batch 2 --seq-len 16 --gather off) # e2e_gather tries it
grid_known=$golden
if [ $# != 0 ] || [ "${GRID:-}" = all ] || [ "${GOLDEN:-}" = write ]; then cases=$(grid_all); else cases=$(grid_pairs); fi
for case in $cases; do
    # shellcheck disable=SC2053
    [ $# = 0 ] || [[ $case = $1 ]] || continue
    found=$(grid_train "$case")
    [ "${GOLDEN:-}" != write ] || sed -i "s/^$case .*/$found/" "$golden"
    same "$case" "$found" "$(grep "^$case " "$golden")"
done
# Whatever the budget and the drives are, the bits are those of the model and the way.
for model in "${grid_models[@]}"; do
    for way in "${grid_ways[@]}"; do
        same "$model, $way: digests in all budgets, on all drives" 1 \
            "$(grep "^$model-.*-$way " "$golden" | grep -oE 'digest=[0-9a-f]+ numbers=[0-9a-f]+' | sort -u | wc -l)"
    done
done
done_testing
