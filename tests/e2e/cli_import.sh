#!/usr/bin/env bash
# import is the inverse of export, with data or without.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 32 2 32 500
some_text "$place/text" 100
mkdir "$place/d"
must train --init "$place/config.json" --data "$place/text" --batch 2 --seq-len 32 --memory 512MiB --quiet \
    --drive ram: --out "$place/ram" --steps 1
must train --init "$place/config.json" --data "$place/text" --batch 2 --seq-len 32 --memory 512MiB --quiet \
    --drive "$place/d/a.volume" --out "$place/run" --steps 3
must export "$place/run" --out "$place/one" --dtype fp32 --quiet
must import "$place/one" --drive "$place/d/b.volume" --out "$place/imported" --quiet
sum=$(digest)
must inspect "$place/imported" --deep
same "what was imported is whole" "$(digest)" "$sum"
must export "$place/imported" --out "$place/two" --dtype fp32 --quiet
cmp -s "$place/one/model.safetensors" "$place/two/model.safetensors" && ok "the same weights" || fail "other weights"
must export "$place/run" --out "$place/many" --dtype fp32 --shard-size 64KiB --quiet
[ "$(ls "$place/many" | grep -c '^model-0000[0-9]-of-0000[0-9].safetensors$')" -gt 1 ] && [ -s "$place/many/model.safetensors.index.json" ] &&
    ok "several files and an index" || fail "not several files: $(ls "$place/many")"
must import "$place/many" --drive "$place/d/g.volume" --out "$place/from_many" --quiet
same "the same from several files" "$(digest)" "$sum"
must export "$place/run" --out "$place/half" --dtype fp16 --quiet
grep -q '"torch_dtype": "float16"' "$place/half/config.json" && ok "fp16 is told" || fail "fp16 is not told"
must import "$place/half" --drive "$place/d/half.volume" --out "$place/from_half" --quiet
"$COMPARE" "$place/one" "$place/half" 5e-4 >"$place/log" 2>&1 && ok "fp16 is near" || fail "fp16 differs"

# a tied model whose files hold another head: both are used, and said, in every command; the run is untied
head=$place/parted
cp -r "$place/one" "$head"
perl -e 'use strict; local $/; open my $f, "<:raw", $ARGV[0] or die; my $all = <$f>; close $f;
    my $n = unpack "Q<", $all; my ($h, $data) = (substr($all, 8, $n), substr $all, 8 + $n); $h =~ s/\s+$//;
    my $wte = 500 * 32 * 4; my $end = length($data) + $wte;
    $h =~ s/\}$/sprintf q(,"lm_head.weight":{"dtype":"F32","shape":[500,32],"data_offsets":[%d,%d]}}), length $data, $end/e;
    open $f, ">:raw", $ARGV[0]; print $f pack("Q<", length $h), $h, $data, pack("f<*", map { sin } 1 .. 500 * 32)' \
    "$head/model.safetensors"
said="hold an lm_head.weight that differs: both are used"
for command in "eval $head --data $place/text --json" "generate $head --prompt the --max-tokens 2" \
    "train --model $head --data $place/text --batch 2 --seq-len 32 --steps 1 --memory 512MiB --quiet --drive $place/d/parted.volume --out $place/parted_run" \
    "import $head --drive $place/d/parted2.volume --out $place/parted_import --quiet"; do
    # shellcheck disable=SC2086
    must $command
    same "${command%% *} says so" "$(grep -c "$said" "$place/log")" 1
done
must eval "$head" --data "$place/text" --seq-len 32 --precision fp32
parted=$(grep -o 'loss [0-9.]*' "$place/log")
must eval "$place/one" --data "$place/text" --seq-len 32 --precision fp32
[ "$parted" != "$(grep -o 'loss [0-9.]*' "$place/log")" ] && ok "the other head counts" || fail "the other head does not count"
must eval "$place/parted_import" --data "$place/text" --seq-len 32 --precision fp32
same "the run has the same loss" "$(grep -o 'loss [0-9.]*' "$place/log")" "$parted"
same "and nothing more to say" "$(grep -c "$said" "$place/log")" 0
must export "$place/parted_import" --out "$place/untied" --dtype fp32 --quiet
grep -q '"tie_word_embeddings": false' "$place/untied/config.json" && ok "the export is untied" || fail "the export is tied"
"$COMPARE" "$head" "$place/untied" 0 >"$place/log" 2>&1 && ok "with both tables" || fail "tables differ"
must eval "$place/untied" --data "$place/text" --seq-len 32 --precision fp32
same "the export has the same loss" "$(grep -o 'loss [0-9.]*' "$place/log")" "$parted"
must train --resume "$place/parted_run" --steps 2 --quiet

must generate "$place/imported" --prompt "the" --max-tokens 4
must eval "$place/imported" --data "$place/text" --json
"$LONGSHORE" inspect "$place/imported" --json >/dev/full 2>"$place/log"
same "a full disk is named once" "$(grep -c 'cannot write to standard output: No space' "$place/log")" 1
refused "training without data" "without --data" train --resume "$place/imported" --steps 5
refused "data that is not there" "no-such-text" train --resume "$place/imported" --data "$place/no-such-text"
refused "too little to validate on" "val-share" train --resume "$place/imported" --data "$place/text" --val-share 1e-9
[ ! -e "$place/imported/tokens.bin" ] && ok "the run is as it was" || fail "tokens.bin was left behind"

must import "$place/one" --drive "$place/d/c.volume" --out "$place/trainable" --data "$place/text" --batch 2 --seq-len 32 \
    --steps 2 --memory 512MiB --quiet
must train --resume "$place/trainable"
resumed=$(digest)
must train --model "$place/one" --drive ram: --out "$place/direct" --data "$place/text" --batch 2 --seq-len 32 --steps 2 \
    --memory 512MiB --quiet
same "import and train is train" "$(digest)" "$resumed"

must import "$place/one" --drive "$place/d/e.volume" --out "$place/later" --batch 2 --seq-len 32 --steps 2 --memory 512MiB \
    --quiet
must train --resume "$place/later" --data "$place/text" --dry-run
[ ! -e "$place/later/tokens.bin" ] && ok "a dry run makes nothing" || fail "a dry run made tokens.bin"
cp "$place/text" "$place/more"
must import "$place/one" --drive "$place/d/mixed.volume" --out "$place/mixed" --batch 2 --seq-len 32 --steps 2 --memory 512MiB \
    --quiet
must train --resume "$place/mixed" --mix "$place/text=3" "$place/more=1" --val-data "$place/more" --quiet
must inspect "$place/mixed" --json
grep -q "\"mix\":\[\"$place/text=3\",\"$place/more=1\"\]" "$place/log" && ok "the first data of a run, by weight" ||
    fail "weights of the first data were dropped: $(cat "$place/log")"
must train --model "$place/one" --drive ram: --out "$place/direct-mixed" --mix "$place/text=3" "$place/more=1" \
    --val-data "$place/more" --batch 2 --seq-len 32 --steps 2 --memory 512MiB --quiet
mixed=$(digest)
must inspect "$place/mixed" --deep
same "import and train by weight is train by weight" "$(digest)" "$mixed"
mkfifo "$place/pipe"
# stopped NAME PATTERN ARGS...: a signal while the text is read.
stopped() {
    local name=$1 pattern=$2
    shift 2
    "$LONGSHORE" "$@" --data "$place/pipe" --quiet >"$place/log" 2>&1 </dev/null &
    background=$!
    exec 3>"$place/pipe" # it reads
    kill -TERM $background
    wait $background
    same "exit code: $name" $? 0
    exec 3>&-
    background=
    grep -q "$pattern" "$place/log" && ok "$name" || fail "$name: no '$pattern'"
}
stopped "reading data that comes later" "before the run had its data: the same command goes on" train --resume "$place/later"
[ ! -e "$place/later/tokens.bin" ] && ok "and leaves nothing" || fail "a signal left tokens.bin"
stopped "importing" "before the run was made: the same command makes it" import "$place/one" --drive "$place/d/x.volume" --out "$place/x"
must train --resume "$place/later" --data "$place/text" --stop-at 1
refused "other data that are none" "config.json:1: the row has no key" train --resume "$place/later" --data "$place/config.json"
must train --resume "$place/later"
same "data that comes later is data" "$(digest)" "$resumed"
must import "$place/one" --drive "$place/d/f.volume" --out "$place/passes" --batch 2 --seq-len 32 --memory 512MiB --quiet
must train --resume "$place/passes" --data "$place/text" --val-share 0.5 --epochs 0.05 --quiet
same "passes over data that comes later" "$(digest | cut -d " " -f 1)" "$(metric "$place/passes" step | tail -n 1)"
[ -n "$(metric "$place/passes" val_loss)" ] && ok "it validates" || fail "no validation loss"

# what transformers needs beside the weights goes all the way
must train --init "$place/config.json" --tokenizer "$tests/data/tokenizers/qwen2" --data "$place/text" --batch 1 --seq-len 8 \
    --memory 512MiB --quiet --drive "$place/d/h.volume" --out "$place/words" --steps 1
must export "$place/words" --out "$place/chat" --quiet
grep -q '"end_of_text": 0' "$place/words/run.json" && ok "the run keeps its end of text" || fail "no end of text is kept"
printf 'hi<|endoftext|>%.0s' {1..40} >"$place/rendered"
evaluated=()
for specials in text parse; do
    must train --init "$place/config.json" --tokenizer "$tests/data/tokenizers/qwen2" --data "$place/rendered" --batch 1 \
        --special-tokens "$specials" --seq-len 8 --memory 512MiB --quiet --drive "$place/d/$specials.volume" --out "$place/as_$specials" --steps 1
    for way in "" "--special-tokens text" "--special-tokens parse"; do
        # shellcheck disable=SC2086
        must eval "$place/as_$specials" --data "$place/rendered" $way --json --quiet
        evaluated[${#evaluated[@]}]=$(sed -n 's/.*"tokens": *\([0-9]*\).*/\1/p' "$place/log")
    done
done
same "special tokens in a text, as the run has them" "${evaluated[0]} ${evaluated[3]}" "${evaluated[1]} ${evaluated[2]}"
same "or as is asked for" "${evaluated[4]} ${evaluated[5]}" "${evaluated[1]} 119"
must train --resume "$place/as_parse" --steps 2
must inspect "$place/as_parse"
grep -Eq "special-tokens +parse" "$place/log" && ok "the run says how it read them" || fail "nothing says how it read them"
refused "bytes and special tokens" "without a tokenizer, a text has no special tokens" train --init gpt2-tiny --data "$place/text" --special-tokens parse \
    --drive ram: --out "$place/x"
echo '{{ messages }}' >"$place/chat/chat_template.jinja"
echo '{"chat_template": "{{ messages }}"}' >"$place/chat/chat_template.json"
echo '{"temperature": 0.6, "eos_token_id": [5, 0]}' >"$place/chat/generation_config.json"
printf 'pieces' >"$place/chat/tokenizer.model"
must import "$place/chat" --drive "$place/d/i.volume" --out "$place/talks" --quiet
must export "$place/talks" --out "$place/chat_again" --quiet
for file in tokenizer.json tokenizer_config.json tokenizer.model chat_template.jinja chat_template.json generation_config.json; do
    cmp "$place/chat/$file" "$place/chat_again/$file" && ok "$file is kept" || fail "$file is not what it was"
done
echo '{"messages": [{"role": "user", "content": "a"}]}' >"$place/row.jsonl"
must render "$place/talks" "$place/row.jsonl" --json
grep -Fq "[{'role': 'user', 'content': 'a'}]" "$place/log" && ok "a run renders rows by its template" || fail "not rendered: $(cat "$place/log")"
must remove "$place/talks"
[ ! -e "$place/talks" ] && ok "nothing of it stays" || fail "the run's directory stays: $(ls "$place/talks")"

refused "import into memory" "ram:" import "$place/one" --drive ram: --out "$place/x"
refused "import of nothing" "config.json|no-model" import "$place/no-model" --drive "$place/d/x.volume" --out "$place/x"
[ ! -e "$place/x" ] && [ ! -e "$place/d/x.volume" ] && ok "nothing is made" || fail "something was made"
must remove "$place/imported"
[ ! -e "$place/d/b.volume" ] && ok "the volume went with the run" || fail "the volume stays"

done_testing
