#!/usr/bin/env bash
# Data of which a part counts, mixtures, and other data for a run: the same bits for every budget and placement, after
# stops and kills, and what is refused.
. "$(dirname "$0")/lib.sh"
mkdir -p "$place"/{d,e,text}
gpt2_config "$place/model.json" 2 64 4 64 300
for i in $(seq 300); do echo "{\"prompt\": \"What is $i and one? \", \"completion\": \"It is $((i + 1)).\"}"; done >"$place/q.jsonl"
for i in $(seq 50); do echo "{\"text\": \"ship $i\"}"; done >"$place/mixed.jsonl"
head -n 40 "$place/q.jsonl" >>"$place/mixed.jsonl"
some_text "$place/text/prose.txt" 60
common=(--init "$place/model.json" --seed 7 --batch 40 --seq-len 64 --lr 3e-3 --warmup 1 --threads 1 --quiet --overwrite)

# ---- one digest ----
one_digest() {
    local name=$1 least whole
    shift
    local args=(train "${common[@]}" --steps 5 "$@")
    must "${args[@]}" --drive "$place/d" --memory 512MiB --out "$place/run"
    whole=$(digest)
    least=$(minimum "${args[@]}" --drive "$place/d" --out "$place/run")
    must "${args[@]}" --drive "$place/d" --memory "$least" --out "$place/run"
    same "$name: in $least" "$(digest)" "$whole"
    must "${args[@]}" --drive "$place/d" "$place/e" --memory 256MiB --speculate off --out "$place/run"
    same "$name: on two drives" "$(digest)" "$whole"
    must "${args[@]}" --drive "$place/d" --memory 512MiB --stop-at 2 --out "$place/run"
    must train --resume "$place/run" --quiet
    same "$name: after a stop" "$(digest)" "$whole"
    rm -rf "$place/killed"
    kill_and_resume "$place/killed" 3 400 "${args[@]:1}" --drive "$place/e" --memory 512MiB
    same "$name: after $kills kills" "$(digest)" "$whole"
    echo "$whole" >>"$place/digests"
}
one_digest "completions" --data "$place/q.jsonl" --val-share 0.1 --eval-every 2
one_digest "a row a sequence" --data "$place/q.jsonl" --val-share 0.1 --pack off
one_digest "texts beside completions" --data "$place/mixed.jsonl"
one_digest "a mixture" --mix "$place/text=2" "$place/q.jsonl=1" --val-data "$place/mixed.jsonl"
must train "${common[@]}" --steps 5 --data "$place/q.jsonl" --val-share 0.1 --loss-on all --drive "$place/d" --out "$place/run"
digest >>"$place/digests"
same "they are different" "$(sort -u "$place/digests" | wc -l)" 5

# ---- evaluation ----
must train "${common[@]}" --steps 5 --data "$place/q.jsonl" --val-data "$place/q.jsonl" --pack off --drive "$place/d" --out "$place/run"
must eval "$place/run" --quiet
grep -q "bits per byte" "$place/log" && fail "bits per byte of a part" || ok "no bits per byte of a part"
wanted=$(sed 1d "$place/log")
must eval "$place/run" --data "$place/q.jsonl" --quiet
same "eval takes the run's way" "$(sed 1d "$place/log")" "$wanted"
same "as training does" "$(metric "$place/run" val_loss | tail -n 1 | cut -c 1-7)" "$(sed -n 's/^loss \([0-9.]*\) .*/\1/p' "$place/log" | cut -c 1-7)"
tokens() { sed -nE 's/.* tokens ([0-9]+).*/\1/p' "$place/log"; }
few=$(tokens)
must eval "$place/run" --data "$place/q.jsonl" --loss-on all --quiet
[ "$(tokens)" -gt "$few" ] && ok "more count" || fail "all: no more tokens"
must eval "$place/run" --data "$place/q.jsonl" --pack on --quiet
same "as many count in joined rows" "$(tokens)" "$few"
# the only answer lies behind the last whole sequence
long=$(printf 'What is one and one more %.0s' 1 2 3 4)
echo "{\"prompt\": \"$long\", \"completion\": \"It is.\"}" >"$place/tail.jsonl"
must train "${common[@]}" --steps 2 --data "$place/q.jsonl" --val-data "$place/tail.jsonl" --drive "$place/d" --out "$place/tailed"
must eval "$place/tailed" --quiet
same "the rest counts in validation" "$(metric "$place/tailed" val_loss | tail -n 1 | cut -c 1-7)" "$(sed -n 's/^loss \([0-9.]*\) .*/\1/p' "$place/log" | cut -c 1-7)"
# padding is not what is measured: 1,500 rows are 96,000 tokens with it
for i in $(seq 300); do echo "{\"prompt\": \"Say $i.\", \"completion\": \"<$i>\"}"; done >"$place/short.jsonl"
cat "$place"/{q,q,q,q,short}.jsonl >"$place/padded.jsonl"
must train "${common[@]}" --steps 1 --data "$place/q.jsonl" --val-data "$place/padded.jsonl" --pack off --drive "$place/d" --out "$place/run"
must eval "$place/run" --quiet
same "as many are measured as count" "$(metric "$place/run" val_loss | cut -c 1-7)" "$(sed -n 's/^loss \([0-9.]*\) .*/\1/p' "$place/log" | cut -c 1-7)"

# ---- what counts is said ----
must train --init "$place/model.json" --seq-len 64 --batch 300 --steps 1 --overwrite --data "$place/q.jsonl" --pack off --drive "$place/d" --out "$place/run"
counted=$(metric "$place/run" counted_tokens)
grep -qE "longshore: .*/q.jsonl: ([0-9,]+) of 19,200 tokens count in the loss$" "$place/log" && ok "how many count" || fail "not said how many count"
same "as many in the step" "$(sed -nE 's/.*q.jsonl: ([0-9,]+) of 19,200 tokens count.*/\1/p' "$place/log" | tr -d ,)" "$counted"
same "eval counts as many" "$("$LONGSHORE" eval "$place/run" --data "$place/q.jsonl" --json --quiet | sed -nE 's/.*"tokens":([0-9]+).*/\1/p')" "$counted"
documented "RUN/metrics.jsonl" "$place/run/metrics.jsonl"
must train "${common[@]}" --steps 1 --data "$place/text" --drive "$place/d" --out "$place/run"
same "all of a text counts" "$(metric "$place/run" counted_tokens)" ""
must train "${common[@]}" --steps 1 --data "$place/q.jsonl" --val-data "$place/q.jsonl" --pack off --drive "$place/d" --out "$place/run"
refused "another length than the rows'" "rows? .* 64 tokens|of 64 tokens" eval "$place/run" --seq-len 32

# ---- other data ----
# others OUT: a run on prose, and from step 3 on with questions
others() { must train "${common[@]}" --steps 3 --data "$place/text" --drive "$place/d" --memory 512MiB --out "$1"; }
others "$place/run"
must snapshot "$place/run" before
must train --resume "$place/run" --data "$place/q.jsonl" --steps 8 --stop-at 5
grep -q "from step 3 on: steps 3 -> 8, data .*text -> .*q.jsonl" "$place/log" && ok "said" || fail "other data: not said"
five=$(digest)
[ -e "$place/run/tokens.2.bin" ] && [ ! -e "$place/run/tokens.bin" ] && ok "the old tokens are gone" || fail "token files: $(ls "$place/run")"
must train --resume "$place/run" --data "$place/q.jsonl" # the same command goes on
eight=$(digest)
must inspect "$place/run"
grep -q "from step 3 on: .*data .* -> .*q.jsonl" "$place/log" && ok "recorded" || fail "other data: not recorded"
others "$place/run"
must train --resume "$place/run" --data "$place/q.jsonl" --steps 8
same "without the stop" "$(digest)" "$eight"
others "$place/killed"
kills=0
for pause in 5 60 150 300; do # perhaps before anything is recorded
    "$LONGSHORE" train --resume "$place/killed" --data "$place/q.jsonl" --steps 8 >/dev/null 2>&1 </dev/null &
    background=$!
    nap $((pause * 1000)) 20000
    kill -9 $background 2>/dev/null && kills=$((kills + 1))
    wait $background 2>/dev/null
    background=
done
must train --resume "$place/killed" --data "$place/q.jsonl" --steps 8
same "after $kills kills" "$(digest)" "$eight"
same "one file is left" "$(ls "$place/killed" | grep -c '^tokens')" 1
# back behind where they began, they begin there again
must snapshot "$place/run" after
must rollback "$place/run" after
others "$place/run"
must snapshot "$place/run" before
must train --resume "$place/run" --data "$place/q.jsonl" --steps 8 --stop-at 5
same "five steps" "$(digest)" "$five"
must rollback "$place/run" before
must train --resume "$place/run" --steps 8 --stop-at 5
same "five steps again" "$(digest)" "$five"
must train --resume "$place/run" --mix "$place/text=1" "$place/q.jsonl=1" --steps 9 --loss-on all
refused "another way with the data alone" "--loss-on belongs to the identity" train --resume "$place/run" --loss-on completion
refused "other validation alone" "--val-data changes only with --data" train --resume "$place/run" --val-data "$place/q.jsonl"
# the best by other validation data is no longer the best, by the same it still is
head -c 3000 "$place/text/prose.txt" >"$place/prose.txt"
best() { "$LONGSHORE" snapshots "$place/run" | sed -nE 's/^.*best.* step ([0-9]+).*$/\1/p; s/^best +([0-9]+).*$/\1/p' | head -n 1; }
must train "${common[@]}" --steps 6 --stop-at 3 --data "$place/text" --val-data "$place/prose.txt" --eval-every 1 --keep-best --drive "$place/d" --out "$place/run"
same "the best on prose" "$(best)" 3
must train --resume "$place/run" --data "$place/text" "$place/q.jsonl" --lr 0 --min-lr 0 --stop-at 4
same "the best on the same prose" "$(best)" 3
must train --resume "$place/run" --data "$place/text" --val-data "$place/q.jsonl" --stop-at 5
same "the best on questions" "$(best)" 5
must inspect "$place/run"
grep -q "val-data .*pro.* -> .*data" "$place/log" && ok "other validation: recorded" || fail "other validation: not recorded"

# validation data and a share of the data replace each other
must train "${common[@]}" --steps 3 --data "$place/text" --val-share 0.1 --eval-every 1 --drive "$place/d" --out "$place/run"
must train --resume "$place/run" --data "$place/mixed.jsonl" --val-data "$place/q.jsonl" --steps 5
grep -q "val-share 0.1 -> 0" "$place/log" && [ -e "$place/run/val.bin" ] && ok "data for a share" || fail "data for a share: $(ls "$place/run")"
must eval "$place/run" --quiet
same "and they are measured" "$(metric "$place/run" val_loss | tail -n 1 | cut -c 1-7)" "$(sed -n 's/^loss \([0-9.]*\) .*/\1/p' "$place/log" | cut -c 1-7)"
must train --resume "$place/run" --data "$place/q.jsonl" --val-share 0.2 --steps 7
grep -q "val-data .*q.jsonl -> none" "$place/log" && [ ! -e "$place/run/val.bin" ] && ok "a share for data" || fail "a share for data: $(ls "$place/run")"
must eval "$place/run" --quiet
same "and it is measured" "$(metric "$place/run" val_loss | tail -n 1 | cut -c 1-7)" "$(sed -n 's/^loss \([0-9.]*\) .*/\1/p' "$place/log" | cut -c 1-7)"

# ---- what is refused ----
base=(train "${common[@]}" --steps 1 --drive ram: --out "$place/refused")
for weights in a=0 a=-1 a=nan a a= =1; do refused "a weight: $weights" "--mix $weights: give NAME=WEIGHT" "${base[@]}" --mix "$weights"; done
refused "a name twice" "--mix names a=2 twice" "${base[@]}" --mix a=1 a=2
refused "hardly anything" "less than one sequence in 1000" "${base[@]}" --mix a=1 b=0.0001
refused "data and a mixture" "--data or --mix, not both" "${base[@]}" --mix a=1 --data b --dry-run
refused "a share of a mixture" "give --val-data" "${base[@]}" --mix a=1 --val-share 0.1
refused "passes over a mixture" "give --steps" train --init "$place/model.json" --drive ram: --out "$place/refused" --mix a=1 --epochs 1
: >"$place/empty.txt"
refused "nothing in a part" "empty.txt: the data is empty" "${base[@]}" --mix "$place/text=1" "$place/empty.txt=1"
cat >"$place/experts.json" <<JSON
{"model_type": "qwen3_moe", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 4,
 "num_experts_per_tok": 2, "max_position_embeddings": 128, "output_router_logits": true, "tie_word_embeddings": false}
JSON
merge base --init "$place/experts.json"
refused "padding for balanced experts" "would count the padding" "${merged[@]}" --data "$place/q.jsonl" --pack off
must "${merged[@]}" --data "$place/q.jsonl"
refused "a text a sequence" "prose.txt: has no rows" "${base[@]}" --data "$place/text" --pack off
done_testing
