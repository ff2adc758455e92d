#!/usr/bin/env bash
# --lora: the same bits wherever the state lies and whatever memory there is, after kills too; the model itself rests; an
# export is PEFT's directory. (Beside peft: python/tests/test_program_lora.py.)
. "$(dirname "$0")/lib.sh"
for_ways
for model in gpt2 llama; do
    must train "${common[@]}" --init "$place/$model.json" --drive "$place/d1" --out "$place/base"
    must export "$place/base" --out "$place/$model" --dtype fp32
    must remove "$place/base"
done

alike --model "$place/llama" --lora r=8,alpha=16
alike --model "$place/llama" --lora r=8,alpha=16,rslora=on
alike --model "$place/llama" --lora alpha=16,r=8,target=v_proj,down_proj
alike --model "$place/llama" --lora r=8,target=layers.1.mlp.up_proj
alike --model "$place/llama" --lora 8 --moments 8bit --gather on
alike --model "$place/gpt2" --lora r=4,target=c_proj
alike --model "$place/gpt2" --lora r=4 --precision fp32

killed_alike --model "$place/llama" --lora r=8,target=q_proj,gate_proj
must inspect "$place/killed"
grep -q ' parameters, of which 10752 are trained$' "$place/log" && ok "inspect says it" || fail "inspect does not say it"
refused "other adapters on resume" '--lora belongs to the identity' train --resume "$place/killed" --steps 21 --lora r=4
must train --resume "$place/killed" --steps 21 --lora r=8,target=q_proj,gate_proj
must generate "$place/killed" --prompt ab --max-tokens 4
must snapshot "$place/killed" kept
must export "$place/killed" --out "$place/adapters" --snapshot kept
same "files" "$(cd "$place/adapters" && echo *)" "adapter_config.json adapter_model.safetensors tokenizer.json tokenizer_config.json"
[ "$(stat -c %s "$place/adapters/adapter_model.safetensors")" -gt $((10752 * 4)) ] && ok "in fp32" || fail "not in fp32"

# what is exported is merged again
must eval "$place/killed" --data "$place/tokens.bin" --json
own=$(grep -oE '"loss": ?[0-9.]+' "$place/log")
must eval "$place/llama" --adapter "$place/adapters" --data "$place/tokens.bin" --seq-len 64 --json
merged_loss=$(grep -oE '"loss": ?[0-9.]+' "$place/log")
must eval "$place/llama" --data "$place/tokens.bin" --seq-len 64 --json
plain=$(grep -oE '"loss": ?[0-9.]+' "$place/log")
awk -v a="${own##*:}" -v b="${merged_loss##*:}" -v c="${plain##*:}" 'BEGIN { d = a - b; e = a - c
    exit !(d * d < 1e-6 && e * e > 1e-5) }' && ok "merged" || fail "merged: $own, $merged_loss, without adapters $plain"

# bytes of a plan are those of the run
dry=(--model "$place/llama" --lora r=8 --batch 20 --seq-len 64 --drive "$place/d3" --memory 512MiB)
must plan "${dry[@]}" --json
said=$(grep -oE '"disk_bytes": ?[0-9]+' "$place/log")
must train --data "$place/tokens.bin" "${dry[@]}" --steps 2 --out "$place/dry" --dry-run --json
same "disk" "$(grep -oE '"disk_bytes": ?[0-9]+' "$place/log")" "$said"

fresh=(train "${common[@]}" --drive ram: --out "$place/none" --model "$place/llama")
refused "a module that is not there" "the target 'q_prj' is no product of the layers, which are q_proj, k_proj" "${fresh[@]}" --lora target=q_prj
refused "a name that two modules have" "which are c_attn, c_proj, c_fc$" "${fresh[@]/llama/gpt2}" --lora target=q_proj
refused "the head" "the target 'lm_head' is no product" "${fresh[@]}" --lora target=lm_head
refused "dropout" "dropout of adapters is 0 here" "${fresh[@]}" --lora r=8,dropout=0.1
refused "a key" "takes r=, alpha=.*did you mean alpha" "${fresh[@]}" --lora alph=8
refused "no rank" "a rank is a whole number from 1" "${fresh[@]}" --lora r=0
refused "a key twice" "r=4: its key stands twice" "${fresh[@]}" --lora r=8,r=4
refused "a key behind a blank" "--lora alpha=0: a number above 0" "${fresh[@]}" --lora "r=8, alpha=0"
refused "both" "--lora or --freeze" "${fresh[@]}" --lora r=8 --freeze '*mlp*'
refused "random weights" "--lora needs --model" train "${common[@]}" --drive ram: --out "$place/none" --init "$place/llama.json" --lora r=8
done_testing
