#!/usr/bin/env bash
# --freeze: the same bits wherever the state lies and whatever memory there is, after kills too; what rests takes less disk.
# (Against PyTorch: parity.sh, the cases named frozen.)
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/gpt2.json" 3 64 4 64 2500
cat >"$place/llama.json" <<JSON
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 96, "intermediate_size": 160,
 "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
 "vocab_size": 2500, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}
JSON
skewed_tokens "$place/tokens.bin" 2500
common=(--seed 7 --data "$place/tokens.bin" --steps 4 --batch 20 --seq-len 64 --lr 3e-3 --warmup 1 --clip 0.5)
mkdir "$place"/d{1,2,3}

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

# a whole run, and one that is killed
merge common --init "$place/llama.json" --freeze 'layers.[01].*' '*.2.mlp.*' --steps 20
must train "${merged[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)
kill_and_resume "$place/killed" 6 700 "${merged[@]}" --drive "$place/d2"
same "digest after $kills kills" "$(digest)" "$wanted"
run inspect "$place/killed" --digest --deep
same "every byte after $kills kills" "$(digest)" "$wanted"
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
