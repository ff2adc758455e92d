#!/usr/bin/env bash
# `longshore plan` says what a training takes, before anything is made, and train keeps to it.
. "$(dirname "$0")/lib.sh"
some_text "$place/text" 200
mkdir "$place/d" "$place/model"
shape=(--init gpt2-tiny --batch 4 --seq-len 128)
# key NAME: a number of the JSON in the log
key() { grep -oE '"'"$1"'":-?[0-9.e+-]+' "$place/log" | sed -n '1s/.*://p'; }
# adds OBJECT: its values' sum
adds() { sed -nE 's/.*"'"$1"'":\{([^}]*)\}.*/\1/p' "$place/log" | tr ',' '\n' | awk -F: '{ s += $2 } END { printf "%.0f\n", s }'; }
# sound NAME: what the plan in the log says of one thing twice is the same
sound() {
    local column sum seconds
    same "$1: memory adds up" "$(adds memory)" "$(key peak_bytes)"
    for column in link:link_bytes read:drive_read_bytes written:drive_write_bytes; do
        sum=$(sed -E 's/.*"moved":(.*),"written_bytes_per_day.*/\1/' "$place/log" | grep -oE "\"${column%:*}\":-?[0-9]+" |
            awk -F: '{ s += $2 } END { printf "%.0f", s }')
        same "$1: what moves adds up: ${column%:*}" "$sum" "$(key "${column#*:}")"
    done
    grep -qE ":-[0-9]" "$place/log" && fail "$1: a figure is below 0" || ok "$1: no figure is below 0"
    seconds=$(sed -nE 's/.*"lanes":\{([^}]*)\}.*/\1/p' "$place/log" | tr ',' '\n' | sed 's/.*://' | sort -g | tail -n 1)
    true_of "$1: no lane works longer than the step" "$seconds <= $(key step_seconds) * 1.000001"
    true_of "$1: five changes or more" "$(changes) >= 5"
}
changes() { grep -oE '"change":"[^"]*"' "$place/log" | sort -u | wc -l; }
true_of() { awk "BEGIN { exit !($2) }" && ok "$1" || fail "$1: $2"; }

must plan "${shape[@]}" --memory 160MiB --tbw 600TB --json
documented "plan" "$place/log"
minimum=$(key minimum_bytes)
sound "tiny"
true_of "the peak is within the budget" "$(key peak_bytes) <= 160 * 1048576"
true_of "useful is not less than the least" "$(key useful_bytes) >= $minimum"
true_of "what is written a day" "$(key written_bytes_per_day) > $(key drive_write_bytes)"
[ -z "$(ls -A "$place/d")" ] && ok "nothing is made" || fail "something was made"

# The least budget: train takes it, and refuses a mebibyte less.
train=(train "${shape[@]}" --data "$place/text" --drive "$place/d" --steps 2)
must plan "${shape[@]}" --memory "$minimum" --json
same "the plan of the least" "$(key budget_bytes)" "$minimum"
must "${train[@]}" --memory "$minimum" --out "$place/least"
grep -qE "^plan: a step of [0-9.]+ m?s, measured [0-9.]+ m?s; a peak of [0-9.]+ MiB, measured [0-9.]+ MiB$" "$place/log" &&
    ok "plan against truth" || fail "the end does not compare"
grep -qE "^longshore: plan: .* of memory; activations .*; a step takes about .*, bound by .*" "$place/log" && grep -q "^longshore: plan: assumed rates" "$place/log" &&
    ok "the short of it first" || fail "the start has no plan"
refused "a mebibyte less" "is too little for .*: minimum" "${train[@]}" --memory $((minimum - 1048576)) --out "$place/less"
refused "the same of a plan" "is too little for .*: minimum" plan "${shape[@]}" --memory $((minimum - 1048576))
true_of "only the message" "$(wc -l <"$place/log") == 2"

# For people, in a terminal.
LONGSHORE_MACHINE="$place/a machine whose description is nowhere to be found" run plan "${shape[@]}"
same "a machine that is named and not there" $rc 2
must plan "${shape[@]}" --memory 160MiB --tbw 600TB
true_of "no line is longer than a terminal" "$(awk '{ if (length($0) > most) most = length($0) } END { print most }' <(sed 1d "$place/log")) <= 80"
grep -q "^a step .* bound by" "$place/log" && ok "a table" || fail "no table"

# Of a model, config.json alone; of a machine, its own memory and drives.
gpt2_config "$place/model/config.json" 2 64 4 128 300
must plan --model "$place/model" --json
cat >"$place/machine.json" <<'J'
{"name": "two drives", "host": {"memory": "2TiB"}, "drives": [{"read": "6GB", "write": "4GB", "room": "2TB"},
 {"read": "6GB", "write": "4GB", "room": "2TB"}]}
J
must plan "${shape[@]}" --machine "$place/machine.json" --memory 1TiB
grep -q "^disk .* on 2 drives$" "$place/log" && ok "the machine's drives" || fail "not the machine's drives"
refused "more than that machine has" "more than the memory of two drives, 2.00 TiB" plan "${shape[@]}" --machine "$place/machine.json" --memory 3TiB
# The plan of a machine is the same wherever it is made. must_alone ARGS...: on one processor
must_alone() {
    local guard=("${guard[@]}" taskset -c "$(sed -nE 's/^Cpus_allowed_list:\t([0-9]+).*/\1/p' /proc/self/status)")
    must "$@"
}
for threads in "" "--threads 3"; do
    # shellcheck disable=SC2086
    must plan "${shape[@]}" $threads --machine "$place/machine.json" --memory 1TiB --json
    here=$(key peak_bytes) said=$(grep -c "rates of two drives, with 8 threads, which are assumed" "$place/log")
    # shellcheck disable=SC2086
    must_alone plan "${shape[@]}" $threads --machine "$place/machine.json" --memory 1TiB --json
    same "the peak, planned on one processor${threads:+, $threads}" "$(key peak_bytes)" "$here"
    same "threads are assumed${threads:+, $threads}" "$said" "$([ "$threads" ] && echo 0 || echo 1)"
done
for model in llama3-70b llama3-405b; do
    run plan --init $model --batch 16 --seq-len 2048 --machine "$place/machine.json" --memory 1TiB --json
    true_of "$model is planned in seconds" "$(key plan_seconds) < 5"
    [ $model = llama3-70b ] && same "$model fits" $rc 0
done
same "a model that does not fit the drives" $rc 2
grep -q "too little room on the drives: needs .*, has " "$place/log" && ok "is refused" || fail "no room is said"

# Seconds of a step say nothing of another batch.
echo '{"name": "timed", "compute": {"forward": 0.1, "backward": 0.2}}' >"$place/timed.json"
must plan "${shape[@]}" --machine "$place/timed.json"
grep -q "a batch of" "$place/log" && fail "a batch that costs nothing" || ok "no gain is made up"
grep -q "one more drive" "$place/log" && ok "other changes are told" || fail "no changes"

# What was measured of this machine counts, unless another one is named.
LONGSHORE_MACHINE=$place/machine.json must plan "${shape[@]}"
grep -q "^machine .*rates of two drives$" "$place/log" && ok "kept rates" || fail "not the kept rates"
must plan "${shape[@]}" --machine gpu-24gb
grep -q "^note  *a step computes on the GPU of gpu-24gb, which train cannot do yet" "$place/log" && ok "a known machine" || fail "not the known machine"

true_of "a GPU has its own memory" "$(bytes "$(sed -nE 's/^ *([0-9.]+ [KMGT]iB) of it on the GPU.*/\1/p' "$place/log")") <= 24000000000"
must plan "${shape[@]}" --machine gpu-24gb --json
documented "plan" "$place/log"
sound "a GPU"
same "by place" "$(adds places)" "$(key peak_bytes)"
must plan "${shape[@]}" --machine gpu-24gb --memory 32GiB
grep -q "^budget  *29.80 GiB; at least" "$place/log" && grep -q "^note  *gpu-24gb has no more memory that can be pinned$" "$place/log" &&
    ok "a budget that is cut says so" || fail "the budget is cut in silence"

# Adapters: the base is only read.
must plan "${shape[@]}" --memory 160MiB --json
whole=$(key drive_write_bytes) disk=$(key disk_bytes) gradients=$(key gradients)
must plan "${shape[@]}" --memory 160MiB --lora 4 --json
true_of "adapters write less" "$(key drive_write_bytes) < 0.3 * $whole && $(key disk_bytes) < $disk && $(key gradients) < $gradients"
sound "adapters"
must plan --init llama3-8b --lora 16 --machine gpu-24gb --json
sound "adapters on a GPU whose activations leave"

cat >"$place/experts.json" <<'J'
{"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "num_key_value_heads": 2,
 "vocab_size": 500, "intermediate_size": 1, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
J
must plan --init "$place/experts.json" --batch 4 --seq-len 128 --moments 8bit --update host --json
sound "experts"
grep -q '"change":"LoRA of rank 16 of attention"' "$place/log" && ok "adapters beside experts' layers" || fail "no adapters beside experts' layers"

# Any settings.
flags=("--update host" "--moments 8bit" "--optimizer sgd" "--precision fp32" "--grad-precision bf16" "--offload off" "--lora 8"
    "--machine gpu-80gb" "--machine teraio" "--machine cpu-64gb" "--drive ram:" "--drive ssh://nowhere/x" "--batch 16"
    "--max-writes-per-day 2TB" "--sample-every 5" "--compress top1%")
for i in 1 2 3 4 5 6 7 8; do
    words=()
    for flag in "${flags[@]}"; do
        [ $((RANDOM % 4)) != 0 ] || [[ " ${words[*]} " == *" ${flag%% *} "* ]] || read -ra words <<<"${words[*]} $flag"
    done
    [[ " ${words[*]} " != *host*compress* ]] || continue
    must plan --init llama-tiny --seq-len 64 "${words[@]}" --json
    sound "${words[*]}"
done

# Bad input.
refused "a model that is not there" "$place/none: is not a model's directory" plan --model "$place/none"
refused "adapters of no rank" "--lora 0: r=RANK" plan "${shape[@]}" --lora 0
refused "adapters wider than the model" "a rank is at most the width of the matrices, and .* is [0-9]* by [0-9]*" plan "${shape[@]}" --lora 257
refused "adapters of random weights" "--lora needs --model" train "${shape[@]}" --data "$place/text" --drive ram: --out "$place/none" --lora 4
merge shape --batch 0
refused "a batch of nothing" "--batch takes a whole number from 1" plan "${merged[@]}"
must plan "${shape[@]}" --tbw 1PB --json
true_of "days of a drive" "$(key days_until_tbw) > 0"
refused "drives that live for nothing, without a unit" "--tbw is 600 B: give .*600TB" plan "${shape[@]}" --tbw 600
refused "drives that live for nothing" "--tbw takes a size" plan "${shape[@]}" --tbw 0
refused "a drive that may write nothing" "a step alone writes .*8-bit moments" plan "${shape[@]}" --max-writes-per-day 1MiB
refused "one of the drives" "a step alone writes .*8-bit moments" plan "${shape[@]}" --drive "$place/d" "$place/model" --max-writes-per-day 1TB,1MiB
must plan "${shape[@]}" --drive "$place/d" "$place/model" --drive-speeds 1,3 --max-writes-per-day 1TB,1TB --json
true_of "the drive with most of the updates stops the other one" "$(key written_bytes_per_day) / 1e12 < 1.4"
true_of "at its own limit" "$(key written_bytes_per_day) / 1e12 > 1.25"
must plan "${shape[@]}" --max-writes-per-day 1TB --json
grep -q '"bound":"max_writes_per_day"' "$place/log" && ok "steps wait" || fail "steps do not wait"
true_of "as long as they have to" "$(key written_bytes_per_day) <= 1000000000000 && $(key written_bytes_per_day) > 999999000000"
refused "sizes for other drives than are assumed" "1TB,1TB: 2 sizes for 1 drive: give one for each" plan "${shape[@]}" --max-writes-per-day 1TB,1TB
must plan "${shape[@]}" --machine "$place/machine.json" --max-writes-per-day 1TB,1TB # which has two
refused "two machines" "--machine and --emulate each name the machine" plan "${shape[@]}" --machine cpu-64gb --emulate "$place/machine.json"
refused "two machines, of train" "--machine and --emulate each name the machine" "${train[@]}" --machine cpu-64gb --emulate "$place/machine.json" --out "$place/no"
for command in plan "train --dry-run"; do
    # shellcheck disable=SC2086
    refused "$command on somebody's file" "text: exists already; name another path" $command "${shape[@]}" --drive "$place/text"
    # shellcheck disable=SC2086
    must $command "${shape[@]}" --drive "$place/text" --overwrite
done
: >"$place/empty.volume"
must plan "${shape[@]}" --drive "$place/empty.volume"
refused "as train does" "a step alone writes .*8-bit moments" "${train[@]}" --max-writes-per-day 1MiB --out "$place/no"
echo '{"drves": []}' >"$place/bad.json"
refused "a machine with unknown keys" 'did you mean "drives"' plan "${shape[@]}" --machine "$place/bad.json"
echo 'gpu: 1' >"$place/bad.json"
refused "a machine that is no JSON" "bad.json" plan "${shape[@]}" --machine "$place/bad.json"
refused "a machine that is not there" "$place/none is not a file .*gpu-24gb" plan "${shape[@]}" --machine "$place/none"
[ ! -e "$place/no" ] && [ ! -e "$place/less" ] && ok "nothing new" || fail "something was made"
done_testing
