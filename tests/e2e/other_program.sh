#!/usr/bin/env bash
# A run that another program made through longshore/run.h: the commands know it, kills cost nothing, what computes with a
# model refuses it by name; and that program goes on with a run of ours, and we with its steps.
. "$(dirname "$0")/lib.sh"
maker=${MAKE_RUN:-$(dirname "$LONGSHORE")/tool_make_run}
mkdir "$place"/d{1,2,3,4}
run=$place/run
made() { # ARGS...: what the maker ends with in $line, as digest has it
    printf '$ make_run %s\n' "$*" >"$place/log"
    "$maker" "$@" >"$place/out" 2>>"$place/log" </dev/null || fail "make_run $*"
    line=$(sed -n '$s/^step \(.*\) digest /\1 /p' "$place/out")
}

# ---- the commands ----------------------------------------------------------------------------------------------------
made "$run" 3 "$place/d1" "$place/d2"
at3=$line
must inspect "$run" --digest --deep
same "the digest" "$(digest)" "$at3"
must inspect "$run"
for words in "^run .*: step 3$" "^made by: make_run$" "^tensors: 7 in 3 blocks, 147809 parameters$" "^  optimizer  *adamw$"; do
    grep -q "$words" "$place/log" && ok "inspect has $words" || fail "inspect has no $words"
done
must inspect "$run" --json
grep -q '"program":{"name":"make_run","lr":0.01}' "$place/log" && ok "the program's object" || fail "no object of the program"
grep -q '{"name":"embed.weight","shape":\[300,257\],"dtype":"bf16","group":0,"tied":\["lm_head.weight"\]}' "$place/log" &&
    ok "a tensor as JSON" || fail "no tensor with its tied name"
grep -q '"tokenizer"\|"train_tokens"\|"seq-len"' "$place/log" && fail "it says what such a run has not" || ok "no texts"
documented "inspect|drive list" "$place/log"
for command in "train --resume $run" "eval $run --data $0" "generate $run"; do
    # shellcheck disable=SC2086 # words
    refused "$command" "run: was made by make_run: continue it there" $command
done
must snapshot "$run" three
made "$run" 6
at6=$line
must export "$run" --out "$place/own"
grep -q "^step 6 exported as recorded to" "$place/log" && ok "exported as recorded" || fail "not as recorded"
must export "$run" --out "$place/fp32" --dtype fp32 --shard-size 100000
[ -e "$place/fp32/model.safetensors.index.json" ] && ok "sharded" || fail "not sharded"
same "tensors" "$("$COMPARE" --sum "$place/own")" "tensors 7 elements 147809"
# two bytes of seven tensors, but for those in fp32
same "bytes" "$(($(stat -c %s "$place/own/model.safetensors") / 10000))" 29
"$COMPARE" "$place/own" "$place/fp32" 0.02 >>"$place/log" && ok "the same values" || fail "other values"
must drive list "$run"
must drive add "$run" "$place/d3"
must drive remove "$run" "$place/d1"
must inspect "$run" --digest
same "on other drives" "$(digest)" "$at6"
must rollback "$run" three
grep -q "back at step 3, from step 6$" "$place/log" && ok "no word of train" || fail "$(cat "$place/log")"
must drive move "$run" "$place/d2=$place/d4"
must inspect "$run" --digest
same "back" "$(digest)" "$at3"
made "$run" 6
same "the same steps again" "$line" "$at6"
same "one line a step" "$(metric "$run" step | tr '\n' ' ')" "1 2 3 4 5 6 "
must remove "$run"
[ -z "$(find "$place" -name '*.volume*')" ] && [ ! -e "$run" ] && ok "nothing is left" || fail "something is left"

# ---- kills -----------------------------------------------------------------------------------------------------------
made "$run" 400 ram:
want=$line
rm -r "$run"
kills=0
for _ in $(seq 60); do
    "$maker" "$run" 400 "$place/d1" "$place/d2" >"$place/out" 2>"$place/log" &
    background=$!
    nap 1000 150000
    if kill -9 $background 2>/dev/null; then kills=$((kills + 1)); fi
    wait $background 2>/dev/null
    rc=$?
    background=
    [ $rc = 137 ] || break
done
made "$run" 400 "$place/d1" "$place/d2"
same "killed $kills times" "$line" "$want"
same "one line a step" "$(metric "$run" step | cksum)" "$(seq 400 | cksum)"
must remove "$run"

# ---- a drive that goes and comes back --------------------------------------------------------------------------------
socket=$place/socket
serve --root "$place"
"$maker" "$run" 400 "$place/d1" "unix:$socket:d2" >"$place/out" 2>"$place/log" &
making=$!
await test -s "$run/metrics.jsonl"
kills=0
for _ in 1 2 3; do
    nap 1000 150000
    kill -0 $making 2>/dev/null && kills=$((kills + 1))
    stop_serving
    serve --root "$place"
done
wait $making || fail "the server went and came back"
stop_serving
same "a server that was killed $kills times" "$(sed -n '$s/^step \(.*\) digest /\1 /p' "$place/out")" "$want"
same "one line a step" "$(metric "$run" step | cksum)" "$(seq 400 | cksum)"
serve --root "$place"
must remove "$run"
stop_serving

# ---- a run of ours ---------------------------------------------------------------------------------------------------
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 60
must train --init "$place/config.json" --data "$place/text" --steps 6 --stop-at 2 --batch 4 --seq-len 64 --quiet \
    --drive "$place/d1" --out "$run"
"$maker" --tensors "$run" >"$place/out" 2>"$place/log" || fail "the tensors of a run of ours"
grep -q "^transformer.h.1.attn.c_attn.weight 96 288 transposed$" "$place/out" && ok "a transposed tensor" || fail "no c_attn"
grep -q "^transformer.wte.weight 600 96 = lm_head.weight$" "$place/out" && ok "the tied head" || fail "no tied head"
must export "$run" --out "$place/hf"
same "as many as are exported" "tensors $(wc -l <"$place/out")" "$("$COMPARE" --sum "$place/hf" | cut -d' ' -f1,2)"
"$maker" --export "$run" "$place/theirs" 2>"$place/log" || fail "the maker exports a run of ours"
cmp "$place/hf/model.safetensors" "$place/theirs/model.safetensors" >"$place/log" 2>&1 && ok "as we export it" || fail "not as we do"
made "$run" 3
must inspect "$run" --digest
same "its step" "$(digest)" "$line"
must train --resume "$run" --quiet
same "and ours" "$(metric "$run" step | tr '\n' ' ')" "1 2 3 4 5 6 "
done_testing
