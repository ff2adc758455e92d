#!/usr/bin/env bash
# What is done with a trained model: eval, generate, export, train from the export, inspect, verify, bench, remove.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 64 4 64 257
some_text "$place/text" 300
some_text "$place/more" 40
printf '{"text": "the old crane"}\n{"other": 1, "text": "a new tide"}\n' >"$place/lines.jsonl"
mkdir "$place/d"
run_dir=$place/run
number() { sed -nE 's/.*"'"$1"'": ?([-0-9.e+]+).*/\1/p' "$place/log" | tail -n 1; }

must train --init "$place/config.json" --data "$place/text" "$place/lines.jsonl" --val-share 0.1 --drive "$place/d" \
    --out "$run_dir" --steps 30 --batch 8 --seq-len 64 --lr 3e-3 --memory 512MiB --sample-every 15 --eval-every 10
first=$(metric "$run_dir" loss | sed -n 1p)
last=$(metric "$run_dir" loss | tail -n 1)
awk -v a="$first" -v b="$last" 'BEGIN {exit !(b < a * 0.8)}' && ok "the loss falls" || fail "loss $first -> $last"
same "one object per step" "$(wc -l <"$run_dir/metrics.jsonl")" 30
for key in step loss grad_norm lr tokens step_seconds compute_seconds wait_seconds commit_seconds replays link_bytes \
    drive_read_bytes drive_write_bytes resident_bytes speculated; do
    same "metrics: $key" "$(metric "$run_dir" $key | wc -l)" 30
done
documented RUN/metrics.jsonl "$run_dir/metrics.jsonl"

# One set of flags for all optimizers is fine, and what one of them does not use is said.
must train --init "$place/config.json" --data "$place/text" --drive "$place/idle.volume" --out "$place/idle" --steps 1 \
    --batch 1 --seq-len 64 --memory 512MiB --optimizer sgd --beta1 0.8 --momentum 0.9 --schedule constant --min-lr 0 --dry-run
for flag in --beta1:1 --min-lr:1; do
    same "${flag%:*} has no effect" "$(grep -c -e "${flag%:*} has no effect with" "$place/log")" "${flag#*:}"
done

# A measured loss, a sample and a snapshot are between steps: what they fetch and wait for is in none.
gpt2_config "$place/wide.json" 3 256 4 64 1500
between=(train --init "$place/wide.json" --data "$place/text" --val-share 0.3 --drive "$place/between.volume"
         --out "$place/between" --steps 9 --batch 4 --seq-len 64)
must "${between[@]}" --eval-every 3 --sample-every 4 --snapshot-every 5 --memory "$(minimum "${between[@]}")"
metric "$place/between" link_parameters | sort -n | awk '{v[NR] = $1} END {exit !(NR == 9 && v[9] < 10 * v[1])}' &&
    ok "bytes of steps alone" || fail "link_parameters: $(metric "$place/between" link_parameters | xargs)"
metric "$place/between" compute_seconds | awk '$1 <= 0 {exit 1}' && ok "waiting of steps alone" ||
    fail "compute_seconds: $(metric "$place/between" compute_seconds | xargs)"
# Its weights as a directory are the same parameters: among so many, some lie halfway between two of bf16.
must export "$place/between" --out "$place/exported_between" --dtype fp32
measured() {
    must eval "$1" --data "$place/more" --seq-len 64 --json >&2 # what VERBOSE prints is no loss
    number loss
}
same "what a run and its export lose" "$(measured "$place/exported_between")" "$(measured "$place/between")"
must remove "$place/between"

# Of little else than a vocabulary, a sample takes more than a step leaves it.
gpt2_config "$place/words.json" 1 16 1 8 400000
words=(train --init "$place/words.json" --data "$place/text" --drive "$place/words.volume" --out "$place/words"
       --steps 2 --batch 1 --seq-len 8 --sample-every 1)
must "${words[@]}" --memory "$(minimum "${words[@]}")"
must remove "$place/words"

must eval "$run_dir" --data "$place/more" --json --memory 512MiB
documented eval "$place/log"
loss=$(number loss)
same "eval prints one line" "$(sed 1d "$place/log" | grep -c '"loss"')" 1
awk -v l="$loss" -v p="$(number perplexity)" 'BEGIN {d = exp(l) / p - 1; exit !(d * d < 1e-6)}' &&
    ok perplexity || fail "perplexity is not exp(loss)"

# Who only reads changes nothing, needs no leave to write, and does not mind others who read.
must inspect "$run_dir" --digest
wanted=$(digest)
volume=$(volume_in "$place/d")
before=$(cksum <"$volume")
exec 9<"$volume"
flock -s 9
chmod -R a-w "$place/d" "$run_dir"
chmod a+rx "$place"
writing=("${guard[@]}")
# root may write anyway
nobody=(setpriv --reuid 65534 --clear-groups)
[ "$(id -u)" != 0 ] || ! "${nobody[@]}" test -x "$LONGSHORE" 2>/dev/null || guard=("${nobody[@]}" "${guard[@]}")
must inspect "$run_dir" --digest --deep
same "what is read" "$(digest)" "$wanted"
must eval "$run_dir" --data "$place/more" --json --memory 512MiB
same "what is measured" "$(number loss)" "$loss"
must generate "$run_dir" --prompt "the old " --max-tokens 2
guard=("${writing[@]}")
must export "$run_dir" --out "$place/read"
chmod -R u+w "$place/d" "$run_dir"
refused "training while somebody reads" "in use" train --resume "$run_dir" --steps 31
flock -u 9
flock -x 9
refused "reading while somebody writes" "another process works on this run" eval "$run_dir" --data "$place/more"
exec 9<&-
same "nothing is written" "$(cksum <"$volume")" "$before"

must generate "$run_dir" --prompt "the old " --max-tokens 40 --seed 5 --temperature 0.8 --top-k 20 --top-p 0.9
sed 1d "$place/log" >"$place/first"
must generate "$run_dir" --prompt "the old " --max-tokens 40 --seed 5 --temperature 0.8 --top-k 20 --top-p 0.9
same "the same seed, the same text" "$(sed 1d "$place/log" | cksum)" "$(cksum <"$place/first")"
run generate "$run_dir" --prompt $'\xf0\x9fx\xff' --max-tokens 1 --json
same "a broken character is replaced once" "$(sed -n 's/^{"prompt":"\([^"]*\)".*/\1/p' "$place/log")" $'\xef\xbf\xbdx\xef\xbf\xbd'
[ "$(wc -c <"$place/first")" -gt 20 ] && ok "text comes" || fail "no text is generated"

yes '{"text": "ab"}' | head -n 500 >"$place/short.jsonl"
must train --init "$place/config.json" --data "$place/short.jsonl" --drive "$place/short.volume" --out "$place/short" \
    --steps 60 --batch 8 --seq-len 16 --lr 1e-2 --memory 512MiB
must generate "$place/short" --prompt a --max-tokens 20 --temperature 0 --json
documented generate "$place/log"
grep -q '"text":"b","tokens":1,"ended":true' "$place/log" && ok "a text that ends" || fail "the end is not reported"
must generate "$place/short" --prompt a --max-tokens 1 --temperature 0 --json
grep -q '"text":"b","tokens":1,"ended":false' "$place/log" && ok "a text that is cut" || fail "an end that was not"
must export "$place/short" --out "$place/ends" --quiet
grep -q '"eos_token_id": 256' "$place/ends/config.json" && ok "the tokenizer's end of text" || fail "no end is exported"
cp -r "$place/ends" "$place/chat_ends"
echo '{"eos_token_id": [98, 256]}' >"$place/chat_ends/generation_config.json"
must generate "$place/chat_ends" --prompt a --max-tokens 20 --temperature 0 --json
grep -q '"text":"","tokens":0,"ended":true' "$place/log" && ok "generation_config.json has ends" || fail "an end is not known"
sed -i 's/"eos_token_id": 256/"eos_token_id": [7, 98]/' "$place/ends/config.json"
must import "$place/ends" --drive "$place/ends.volume" --out "$place/two_ends" --quiet
for model in ends two_ends; do
    must generate "$place/$model" --prompt a --max-tokens 20 --temperature 0 --json
    grep -q '"text":"","tokens":0,"ended":true' "$place/log" && ok "any of two ends" || fail "the second end is no end"
done
must export "$place/two_ends" --out "$place/ends_again" --quiet
for file in config.json generation_config.json; do
    same "two ends in $file" "$(tr -d ' \n' <"$place/ends_again/$file" | grep -o '"eos_token_id":\[[0-9,]*\]')" \
        '"eos_token_id":[7,98]'
done

# attention over a long text takes more memory than the products of one token
cat >"$place/long.json" <<'JSON'
{"model_type": "mistral", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
 "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 300, "max_position_embeddings": 2048}
JSON
must train --init "$place/long.json" --data "$place/text" --drive "$place/long.volume" --out "$place/long" --steps 1 \
    --batch 1 --seq-len 16 --memory 512MiB
must generate "$place/long" --prompt "$(head -c 1500 "$place/text" | tr '\n' ' ')" --max-tokens 20

# rotary positions have no end: a model that says to have few of them goes on like one that has many
must export "$place/long" --out "$place/many" --dtype fp32
cp -r "$place/many" "$place/few"
sed -i 's/"max_position_embeddings": 2048/"max_position_embeddings": 16/' "$place/few/config.json"
grep -q '"max_position_embeddings": 16' "$place/few/config.json" && ok few || fail "the positions are written otherwise"
beyond=(--prompt "the old crane waits" --max-tokens 40 --seed 3 --precision fp32 --json)
must generate "$place/many" "${beyond[@]}"
sed 1d "$place/log" >"$place/first"
must generate "$place/few" "${beyond[@]}"
same "a text longer than the positions" "$(sed 1d "$place/log")" "$(cat "$place/first")"
windows=(--data "$place/more" --seq-len 64 --precision fp32 --json --quiet)
must eval "$place/many" "${windows[@]}"
sed 1d "$place/log" >"$place/first"
must eval "$place/few" "${windows[@]}"
same "windows longer than the positions" "$(sed 1d "$place/log")" "$(cat "$place/first")"
refused "a text longer than the memory" "tokens: minimum" generate "$place/few" --max-tokens 4294967295
refused "a text longer than some memory" "tokens: minimum" generate "$place/few" --max-tokens 200000 --memory 512MiB

must export "$run_dir" --out "$place/exported" --dtype fp32
for file in config.json model.safetensors tokenizer.json; do
    [ -s "$place/exported/$file" ] && ok "export has $file" || fail "export lacks $file"
done
mkdir "$place/half"
ln -s half "$place/linked"
must export "$run_dir" --out "$place/linked" --dtype bf16
mkdir "$place/d/here"
cd "$place/d/here" || exit
refused "an export where the command runs" "here: is the working directory" export "$run_dir" --out .
cd "$OLDPWD" && rmdir "$place/d/here"
grep -Eq '"layer_norm_epsilon": 1(\.0*1?)?e-0?5' "$place/half/config.json" && ok "numbers as they were" ||
    fail "$(grep epsilon "$place/half/config.json")"
must eval "$place/exported" --data "$place/more" --json --memory 512MiB
awk -v a="$loss" -v b="$(number loss)" 'BEGIN {d = a / b - 1; exit !(d * d < 1e-8)}' &&
    ok "the export evaluates the same" || fail "loss $loss became $(number loss)"
must generate "$place/half" --prompt "the" --max-tokens 5
must train --model "$place/exported" --data "$place/text" --drive ram: --out "$place/again" --steps 2 --batch 2 --memory 512MiB
must export "$place/run" --out "$place/exported2" --dtype fp32
if cmp -s "$place/exported/model.safetensors" "$place/exported2/model.safetensors"; then ok "export repeats"; else fail "two exports differ"; fi

must inspect "$run_dir"
grep -qE "^  compress +none$" "$place/log" && ok "no compression" || fail "compress is not none"
must inspect "$run_dir" --json
same "inspect --json is one line" "$(sed 1d "$place/log" | wc -l)" 1
documented "inspect|drive list|snapshots" "$place/log"
must inspect "$run_dir" --digest --json
documented inspect "$place/log"
must train --init "$place/config.json" --data "$place/text" --drive "$place/d/dry.volume" --out "$place/dry" --steps 5 --dry-run \
    --batch 2 --memory 1GiB
grep -q "with 1.00 GiB, inner activations kept for [1-9][0-9]* of [1-9]" "$place/log" && ok "what a budget keeps" ||
    fail "a dry run does not say what a budget keeps"
grep -qi "minimum" "$place/log" && ok "dry run" || fail "a dry run names no minimum"
# Far above the minimum, where some memory is left to the heap.
gpt2_config "$place/large.json" 10 1024 8 64 300
dry=(train --init "$place/large.json" --drive "$place/d/dry.volume" --out "$place/dry" --seq-len 64 --batch 2 --dry-run)
must "${dry[@]}" --data "$place/text"
# A size as it is printed is one that is taken, with the blank between its two words too.
kept=$(sed -n 's/^memory: everything kept from \(.*\) on$/\1/p' "$place/log")
# shellcheck disable=SC2086
must "${dry[@]}" --data "$place/text" --memory $kept
grep -q "^memory: with $kept, inner activations kept for 10 of 10" "$place/log" && ok "one notation" || fail "$kept is not $(grep with "$place/log")"
grep -q "activations kept for 10 of 10" "$place/log" && ok "what keeps everything" || fail "$(grep kept "$place/log")"
[ ! -e "$place/dry" ] && [ ! -e "$place/d/dry.volume" ] && ok "a dry run makes nothing" || fail "a dry run made something"
must --version
must --help
must train --help
grep -q -- "--weight-decay" "$place/log" && ok "help" || fail "--help lacks --weight-decay"
trials=(verify --init "$place/config.json" --data "$place/text" --drive "$place/d" --steps 2 --batch 2 --seq-len 32 --threads 2)
must "${trials[@]}" --memory 90MiB --json
most=$(grep -o '"memory_bytes":[0-9]*' "$place/log" | cut -d: -f2 | sort -n | tail -n 1)
[ "$most" -le $((90 << 20)) ] && ok "verify keeps to its budget" || fail "verify takes $most bytes"
grep -q '"name":"large chunks"' "$place/log" && ok "large chunks" || fail "no large chunks in the budget"
documented verify "$place/log"
before=$(ls -A "$place/d")
"$LONGSHORE" "${trials[@]}" --json >"$place/log" 2>&1 &
background=$!
await pgrep -P $background >/dev/null
kill -TERM $background
wait $background
same "a verify that is stopped" "$? $(ls -A "$place/d")" "1 $before"
background=
refused "hexadecimal parameters" "--params takes a number" bench update --drive "$place/d" --params 0x10
must bench update --drive "$place/d" --params 1000000 --json
awk -v v="$(number params_per_second)" 'BEGIN {exit !(v > 0)}' && ok "bench update" || fail "no params_per_second"
documented "bench update" "$place/log"
refused "a size too small" "--size takes a size from 16.00 MiB to .*, not '15MiB'" bench disk --drive "$place/d" --size 15MiB
must bench disk --drive "$place/d" --size 16MiB --passes 1 --json
documented "bench disk" "$place/log"
refused "bench disk in memory" "ram:: bench disk measures drives of this host" bench disk --drive ram: --size 16MiB
must bench gather --drive "$place/d" --size 4MiB --passes 1 --json
documented "bench gather" "$place/log"
awk -v a="$(number page_reads)" -v b="$(number distinct_pages)" 'BEGIN {exit !(a > 0 && a == b)}' && ok "bench gather" ||
    fail "bench gather reads other pages than those that hold the rows"
must bench gather --drive "$place/d" ram: --size 2MiB --share 3 --passes 1
refused "a table too small" "--size takes a size of at least 1.00 MiB, not '1023KiB'" bench gather --drive "$place/d" --size 1023KiB
must bench compute --width 64 --rows 64 --slice 64 --json
documented "bench compute" "$place/log"
ONEDNN_MAX_CPU_ISA=AVX2 must bench compute --width 64 --rows 64 --slice 64 # which has no products in bf16
grep -q '^fp32: [0-9]' "$place/log" && ok "bench compute" || fail "bench compute gives no rate in fp32"

# JSON holds only UTF-8; names of files are any bytes.
odd=$place/$'run\xff"'
mv "$run_dir" "$odd"
for command in inspect snapshots "drive list"; do
    # shellcheck disable=SC2086
    must $command "$odd" --json
    grep -qF $'/run\xef\xbf\xbd\\"",' "$place/log" && ok "$command names it" || fail "$command does not name the run"
    [ "$command" = inspect ] || documented "$command" "$place/log"
done
mkdir "$odd/d"
must drive bench "$odd/d" --json
grep -q '"drives":\[{"drive":"' "$place/log" && ok "drive bench names it" || fail "drive bench does not name the drive"
documented "drive bench" "$place/log"
rmdir "$odd/d"
mv "$odd" "$run_dir"

# A copy of the directory has the volumes in common with its run: they are not the copy's to remove.
cp -a "$run_dir" "$place/copy"
refused "removing a copy" "is a copy of the run $run_dir" remove "$place/copy"
refused "overwriting a copy" "is a copy of the run $run_dir" train --init "$place/config.json" --data "$place/text" \
    --drive "$place/d" --steps 1 --batch 2 --seq-len 32 --overwrite --out "$place/copy"
mkdir "$place/elsewhere"
refused "moving a copy" "is a copy of the run $run_dir" drive add "$place/copy" "$place/elsewhere"
mkdir "$place/copy/making" # as if the run had been copied while it was being made
refused "going on with what was interrupted" "is a copy of the run $run_dir" train --resume "$place/copy" --steps 100
must inspect "$place/copy"
rmdir "$place/copy/making" && ok "what was interrupted stays" || fail "what the run had interrupted was ended by a copy"
# With a volume of its own it is a run of its own.
cp -a "$(volume_in "$place/d")" "$place/elsewhere/"
must train --resume "$place/copy" --drive "$place/d=$place/elsewhere" --steps 100 --stop-at 9 --memory 256MiB
must remove "$place/copy"
same "what the copy leaves" "$(ls -A "$place/elsewhere")" ""
must inspect "$run_dir" --deep
mv "$run_dir" "$place/moved"
mkdir "$run_dir" # of that name, and not the run
must remove "$place/moved"
rmdir "$run_dir"
[ ! -e "$run_dir" ] && [ -z "$(ls -A "$place/d")" ] && ok "remove" || fail "remove left: $(ls "$place/d")"
done_testing
