#!/usr/bin/env bash
# --gather moves the rows of an untied embedding that a batch looks up, instead of all of it: the same bits, wherever the
# state lies, whatever else is set, and across resumes with another setting.
. "$(dirname "$0")/lib.sh"
vocab=6000 width=192
llama() { # FILE SETTINGS: the configuration of a small Llama, and what else it says
    cat >"$1" <<JSON
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": $width, "intermediate_size": 256,
 "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
 "vocab_size": $vocab, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", $2}
JSON
}
llama "$place/untied.json" '"tie_word_embeddings": false'
llama "$place/tied.json" '"tie_word_embeddings": true'
llama "$place/padded.json" '"tie_word_embeddings": false, "pad_token_id": 1'
gpt2_config "$place/positions.json" 2 96 4 64 $vocab
sed -i 's/{/{"tie_word_embeddings": false, /' "$place/positions.json"
skewed_tokens "$place/tokens.bin" $vocab
common=(--seed 7 --data "$place/tokens.bin" --steps 4 --batch 20 --seq-len 64 --lr 3e-3 --warmup 1 --log-every 1)

# way ARGS...: a run of its own; its digest in $found.
way() {
    rm -rf "$place/run" "$place"/d[1-3]
    mkdir "$place"/d{1,2,3}
    run train "${common[@]}" --out "$place/run" "$@"
    found=$(digest)
    [ $rc = 0 ] && [ -n "$found" ] || fail "exit code $rc: $*"
}
# agrees NAME ARGS...: with rows, without, and as the plan says.
agrees() {
    local name=$1 wanted
    shift
    way "$@" --gather off
    wanted=$found
    parameters=$(metric "$place/run" link_parameters | sed -n 3p) gradients=$(metric "$place/run" link_gradients | sed -n 3p)
    way "$@" --gather on
    same "$name, on" "$found" "$wanted"
    rows_parameters=$(metric "$place/run" link_parameters | sed -n 3p) rows_gradients=$(metric "$place/run" link_gradients | sed -n 3p)
}
less() { # NAME A B ELEMENTS BYTES: B is less than A, by more than half of the embedding
    [ "$3" -lt $(($2 - $4 * $5 / 2)) ] && ok "$1" || fail "$1: $2 bytes, and $3 with rows"
}
d=("$place"/d{1,2,3}) model=(--init "$place/untied.json") table=$((vocab * width))
agrees "bf16" "${model[@]}" --drive "${d[0]}"
less "parameters" "$parameters" "$rows_parameters" $table 2
less "gradients" "$gradients" "$rows_gradients" $table 4
agrees "fp32" "${model[@]}" --drive "${d[0]}" --precision fp32
less "parameters in fp32" "$parameters" "$rows_parameters" $table 4
agrees "bf16 gradients" "${model[@]}" --drive "${d[@]}" --drive-speeds 3,1,2 --grad-precision bf16
less "gradients in bf16" "$gradients" "$rows_gradients" $table 2
agrees "in memory" "${model[@]}" --drive ram: ram:
agrees "8-bit moments" "${model[@]}" --drive "${d[0]}" --moments 8bit
agrees "SGD" "${model[@]}" --drive "${d[0]}" --optimizer sgd --momentum 0.9
for speculate in on off auto; do
    agrees "clipping, speculating $speculate" "${model[@]}" --drive "${d[@]:0:2}" --speculate $speculate --clip 0.5
done
agrees "never clipped" "${model[@]}" --drive "${d[0]}" --speculate on --clip 100
for residual in host saved; do # the table is selected from as a whole: its gradient goes as before
    agrees "compressed, residual $residual" "${model[@]}" --drive "${d[0]}" --compress top1% --residual $residual --compress-after 1
    same "compressed gradients" "$rows_gradients" "$gradients"
    less "its parameters" "$parameters" "$rows_parameters" $table 2
done
agrees "updated on the host" "${model[@]}" --drive "${d[@]:0:2}" --update host
same "gradients for the host" "$rows_gradients" "$gradients"
agrees "padding" --init "$place/padded.json" --drive "${d[0]}"
agrees "learned positions" --init "$place/positions.json" --drive "${d[0]}"
agrees "validated" "${model[@]}" --drive "${d[0]}" --val-share 0.1 --eval-every 2 --sample-every 2
validated=$(metric "$place/run" val_loss)
way "${model[@]}" --drive "${d[0]}" --val-share 0.1 --eval-every 2 --gather off
same "the validation loss" "$(metric "$place/run" val_loss)" "$validated"
for gather in on auto; do
    least=$(minimum train "${common[@]}" "${model[@]}" --drive "${d[0]}" --gather $gather --out "$place/none")
    way "${model[@]}" --drive "${d[0]}" --gather off
    wanted=$found
    way "${model[@]}" --drive "${d[0]}" --gather $gather --memory "$least"
    same "the least budget, $least, $gather" "$found" "$wanted"
done

# It may change from start to start, across a snapshot, and when a drive is added.
way "${model[@]}" --drive "${d[0]}" --gather on --stop-at 1
must train --resume "$place/run" --gather off --stop-at 2
must drive add "$place/run" "${d[1]}" --drive-speeds 2,1
must snapshot "$place/run" two
must train --resume "$place/run" --gather on
same "on, off, on" "$(digest)" "$wanted"
must rollback "$place/run" two
must train --resume "$place/run" --gather auto
same "after a rollback" "$(digest)" "$wanted"

# Drives that fail are named, and nothing is lost, also of a run that is killed.
way "${model[@]}" --drive "${d[0]}" --gather on --io threads --stop-at 1
for count in 6 20 50; do
    FAIL_IO="read $count 5 d1/" LD_PRELOAD=$FAIL_IO_SO run train --resume "$place/run"
    failed_on "read $count 5 d1/" "Input/output error"
done
must train --resume "$place/run"
same "after failures" "$(digest)" "$wanted"
rm -rf "$place/run" "$place"/d1/*
kill_and_resume "$place/run" 5 500 "${common[@]}" "${model[@]}" --drive "${d[0]}" --gather on
same "after $kills kills" "$rc $(digest)" "0 $wanted"

# Behind a server, whose link is what rows save; and behind one that dies.
socket=$(mktemp -d)/s
serve
agrees "behind a server" "${model[@]}" --drive "unix:$socket:${d[0]}" "${d[1]}"
stop_serving
printf '#!/bin/sh\nshift\nexec "%s" drive serve --stdio\n' "$LONGSHORE" >"$place/rsh"
chmod +x "$place/rsh"
export LONGSHORE_RSH="$place/rsh"
rm -rf "$place/run" "$place"/d1/*
kill_far_side "$place/run" 3 300 train "${common[@]}" "${model[@]}" --drive "ssh://far${d[0]}" --gather on
same "the far side dies" "$rc $(digest)" "0 $wanted"
[ "$kills" -gt 0 ] && ok "$kills kills" || fail "nothing was killed"

# A tied embedding comes for the head: nothing to gather, and said.
agrees "tied" --init "$place/tied.json" --drive "${d[0]}"
same "tied parameters" "$rows_parameters" "$parameters"
grep -q "gather.*tied" "$place/log" && ok "tied, said" || fail "a tied embedding is not said"
must plan --init "$place/tied.json" --gather on --json
grep -q '"notes":\["--gather on changes nothing' "$place/log" && ok "tied, planned" || fail "a plan does not say that it is tied"

# A plan counts the bytes of steps whose tokens are spread evenly.
perl -e 'print pack("V256", 20240520, 1, 40000, (0) x 253); my $s = 1;
    for (1 .. 40000) { $s = $s * 16807 % 2147483647; print pack "v", int($ARGV[0] * $s / 2147483647) }' $vocab >"$place/even.bin"
counts() { # NAME BUDGET ARGS...
    local name=$1 budget=$2 said counted key
    shift 2
    rm -rf "$place/run" "$place"/d[12]
    mkdir "$place"/d{1,2}
    local shape=("${model[@]}" --data "$place/even.bin" --clip 0 --batch 4 --seq-len 64 --drive "${d[@]:0:2}" --gather on "$@")
    must plan "${shape[@]}" --memory "$budget" --json
    sed -n '$p' "$place/log" >"$place/plan"
    must train "${shape[@]}" --memory "$budget" --out "$place/run" --steps 4 --quiet
    for key in link_bytes drive_read_bytes drive_write_bytes; do
        said=$(sed -nE 's/.*"'$key'": ?([0-9]+).*/\1/p' "$place/plan") counted=$(metric "$place/run" $key | sed -n 3p)
        awk -v a="$said" -v b="$counted" 'BEGIN {exit !(b > 0 && a >= 0.99 * b && a <= 1.01 * b)}' && ok "$name: $key" ||
            fail "$name, $key: the plan says $said, and a step counts $counted"
    done
}
counts "all that fits" 1GiB
counts "all that fits, fp32" 1GiB --precision fp32
counts "little memory" 60MiB
counts "compressed" 1GiB --compress top1%
counts "bf16 gradients" 60MiB --grad-precision bf16
counts "updated on the host" 1GiB --update host

# The plan says it, and what it saves where a link is slow.
must plan "${model[@]}" --batch 20 --seq-len 64 --gather on --json
grep -q '"gather": \?true' "$place/log" && ok "planned" || fail "the plan does not say that it gathers"
done_testing
