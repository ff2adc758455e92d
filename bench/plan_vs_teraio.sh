#!/usr/bin/env bash
# The planner beside TERAIO's (arXiv 2506.06472, algorithm 1), in one simulation, on its machine and workloads: one of two
# GPUs of 94 GB with a link of 16 GB/s, fp32 AdamW. tests/unit/plan/test_teraio.c says what is assumed. And how long planning
# takes. Needs no GPU: nothing is trained.
. "$(dirname "$0")/lib.sh"
table=$("$here/../build/plan_test_teraio" | grep -v '^\[')
echo "$table"
echo "$table" | tail -n +2 | while read -r model batch _ tokens _ _ _ over_it _ over_ideal _ _; do
    [ "$model" != Llama-3-405B ] || continue
    verdict "$model, $batch x $tokens tokens: ours / TERAIO's" "$over_it" 1.2
    verdict "$model, $batch x $tokens tokens: ours / ideal" "$over_ideal" 0.97
done
echo '{"drives": [{"read": "16GB", "write": "16GB", "compute": "48GB"}]}' >"$work/machine.json"
for row in "llama3-70b 64GB 1" "llama3-405b 200GB 5"; do
    read -r model memory limit <<<"$row"
    seconds=$("$LONGSHORE" plan --init "$model" --batch 16 --seq-len 2048 --memory "$memory" --machine "$work/machine.json" --json | number plan_seconds)
    verdict "planning $model, 16 x 2,048 tokens, in seconds" "$seconds" "$limit" most
done
