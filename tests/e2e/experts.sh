#!/usr/bin/env bash
# Experts: the same bits wherever the state lies and whatever memory there is, though a step carries those that no token
# went to; also after kills of the program, of a far side and of a drive that fails, and where drives join and leave.
. "$(dirname "$0")/lib.sh"
for_ways
cat >"$place/qwen3.json" <<JSON
{"model_type": "qwen3_moe", "vocab_size": 2500, "hidden_size": 96, "intermediate_size": 96, "moe_intermediate_size": 240,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 24,
 "num_experts_per_tok": 2, "norm_topk_prob": true, "max_position_embeddings": 512, "tie_word_embeddings": false}
JSON
cat >"$place/oss.json" <<JSON
{"model_type": "gpt_oss", "vocab_size": 2500, "hidden_size": 96, "intermediate_size": 240, "num_hidden_layers": 1,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 24, "num_experts_per_tok": 2,
 "sliding_window": 16, "max_position_embeddings": 512, "tie_word_embeddings": false,
 "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                  "original_max_position_embeddings": 16}}
JSON
merge common --batch 2 --seq-len 8 # so few tokens that some experts, each larger than a segment, get none
common=("${merged[@]}")
alike --init "$place/qwen3.json" --moments 8bit --gather on
alike --init "$place/qwen3.json" --freeze '*.experts.*'
alike --init "$place/oss.json" --freeze '*self_attn*'
killed_alike --init "$place/qwen3.json" --freeze '*.1.self_attn.*'
wanted=$(digest)
[ "$(metric "$place/whole" drive_write_bytes | sort -u | wc -l)" -gt 1 ] && ok "some are carried" || fail "each step writes all"

merge common --init "$place/qwen3.json" --freeze '*.1.self_attn.*' --steps 20 --quiet
common=("${merged[@]}")
printf '#!/bin/sh\nexec "%s" drive serve --stdio\n' "$LONGSHORE" >"$place/rsh"
chmod +x "$place/rsh"
export LONGSHORE_RSH=$place/rsh
rm -rf "$place"/d?/*
kill_far_side "$place/far" 6 300 train "${common[@]}" --drive "$place/d1" "ssh://far$place/d2"
same "digest after $kills kills of the far side" "$(digest)" "$wanted"
run inspect "$place/far" --digest --deep
same "every byte after kills of the far side" "$(digest)" "$wanted"

rm -rf "$place"/d?/*
must train "${common[@]}" --drive "$place/d1" --memory 512MiB --out "$place/moved" --stop-at 6
must drive add "$place/moved" "$place/d2" "$place/d3" --drive-speeds 1,2,1
must train --resume "$place/moved" --stop-at 12
must drive remove "$place/moved" "$place/d1"
must train --resume "$place/moved" --memory 64MiB
same "digest where drives join and leave" "$(digest)" "$wanted"

rm -rf "$place"/d?/*
must train "${common[@]}" --drive "$place/d1" "$place/d2" --io threads --out "$place/failing" --stop-at 3
for fault in "write 40 28 d1/" "read 30 5 d2/" "flush 4 5 d1/" "write 90 5 d2/" "flush 9 28 d2/"; do
    FAIL_IO=$fault LD_PRELOAD=$FAIL_IO_SO run train --resume "$place/failing"
    same "$fault: exit code" $rc 1
done
must train --resume "$place/failing"
same "digest after drives that failed" "$(digest)" "$wanted"
run inspect "$place/failing" --digest --deep
same "every byte after drives that failed" "$(digest)" "$wanted"
done_testing
