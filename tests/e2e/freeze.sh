#!/usr/bin/env bash
# --freeze: the same bits wherever the state lies and whatever memory there is, after kills too; what rests takes less disk.
# (Against PyTorch: parity.sh, the cases named frozen.)
. "$(dirname "$0")/lib.sh"
for_ways

alike --init "$place/llama.json" --freeze '*.mlp.*'
alike --init "$place/llama.json" --freeze 'embed_tokens*' 'model.layers.[0-1].*' '*.2.self_attn.*'
alike --init "$place/llama.json" --freeze '*_proj.weight' 'lm_head*'
alike --init "$place/llama.json" --freeze '*norm*' --gather on
alike --init "$place/llama.json" --freeze 'model.layers.*' '*embed*' 'lm_head*'
alike --init "$place/gpt2.json" --freeze 'wte*'
alike --init "$place/gpt2.json" --freeze 'lm_head*' 'wpe*' 'h.0.*' 'ln_f.weight'
alike --init "$place/gpt2.json" --freeze '*.bias' 'h.1.*'
way --init "$place/llama.json" --freeze '*.mlp.*' 'embed_tokens*' --drive ram: --compress top5%
wanted=$found
way --init "$place/llama.json" --freeze '*.mlp.*' 'embed_tokens*' --drive "$place"/d{1,2} --memory 512MiB --compress top5%
same "compressed" "$found" "$wanted"
compressed_loss=$(metric "$place/run" loss | tail -n 1)
rm -rf "$place/run" "$place"/d1/*
must train "${common[@]}" --init "$place/llama.json" --freeze '*.mlp.*' 'embed_tokens*' --compress top5% --drive "$place/d1" \
    --stop-at 2 --out "$place/run"
must train --resume "$place/run" --stop-at 4
same "compressed, and resumed" "$(digest)" "$wanted"
way --init "$place/llama.json" --freeze '*.mlp.*' 'embed_tokens*' --compress top5% --residual saved --drive "$place/d1"
same "compressed, the residual on the drive" "$(metric "$place/run" loss | tail -n 1)" "$compressed_loss"

killed_alike --init "$place/llama.json" --freeze 'layers.[01].*' '*.2.mlp.*'
must inspect "$place/killed"
grep -q ' parameters, of which [0-9]* are trained$' "$place/log" && ok "inspect says it" || fail "inspect does not say it"
refused "other patterns on resume" '--freeze belongs to the identity' train --resume "$place/killed" --steps 21 --freeze '*.mlp.*'
must train --resume "$place/killed" --steps 21 --freeze 'layers.[01].*' '*.2.mlp.*'
must export "$place/killed" --out "$place/out" --dtype fp32 --moments
must generate "$place/killed" --prompt ab --max-tokens 4

# of what rests, 4 bytes a parameter
taken() { du -s --block-size=1 "$(volume_in "$place/d1")" | cut -f1; }
way --init "$place/llama.json" --drive "$place/d1" --offload off
whole=$(taken)
way --init "$place/llama.json" --drive "$place/d1" --offload off --freeze 'model.*'
[ "$(taken)" -lt $((whole * 3 / 4)) ] && ok "less disk" || fail "disk: $(taken) of $whole"

fresh=(train "${common[@]}" --drive ram: --out "$place/none" --init "$place/llama.json")
refused "nothing matches" "'\*.mpl.\*' matches no tensor.*names are such as model.embed_tokens.weight" "${fresh[@]}" --freeze '*.mpl.*'
refused "a nearby name" "did you mean 'lm_head.weight'" "${fresh[@]}" --freeze 'lm_haed.weight'
refused "a module's name" "did you mean 'layers.1.\*'" "${fresh[@]}" --freeze layers.1
refused "a part of a name" "did you mean '\*ead.w\*'" "${fresh[@]}" --freeze ead.w
refused "half of a matrix" 'are one matrix here' "${fresh[@]}" --freeze '*.q_proj.*'
refused "all" 'nothing is trained' "${fresh[@]}" --freeze '*'
done_testing
