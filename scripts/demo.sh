#!/usr/bin/env bash
# Trains a model from scratch on the English of Perl's manual, in less memory than its state takes. It ends within five minutes: a
# training that has not ended four minutes after the start is stopped, as a user stops one. runs/demo stays to look at.
# DEMO_SECONDS: about how long to train (default 150).
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
longshore=build/longshore
run=runs/demo
work=runs/demo.work
seconds=${DEMO_SECONDS:-150}
stop_at=$((90 + seconds)) # seconds from the start
vocab=4096 width=384 layers=7 ff=1024 length=256 batch=4
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
bytes_of() { # "112.00 MiB", as longshore prints sizes
    awk -v text="$1" 'BEGIN {p = index("KMGT", substr(text, match(text, /[KMGT]/), 1)); printf "%.0f", (text + 0) * 1024 ^ p}'
}
metric() { sed -nE 's/.*"'"$2"'": ?([^,}]*).*/\1/p' "$1/metrics.jsonl"; }

mapfile -t pods < <(dpkg -L perl-doc | grep '\.pod$' | sort)
[ ${#pods[@]} -gt 0 ] || { echo "perl-doc holds no .pod files here; 'make demo' installs it" >&2; exit 1; }
for old in "$run" "$work/probe"; do
    [ ! -e "$old" ] || "$longshore" remove "$old" >/dev/null 2>&1 || true
done
rm -rf "$run" "$run.volume" "$work"
mkdir -p "$work"

# Every 30th page is held out: never trained on.
train=() held=()
for i in "${!pods[@]}"; do
    if [ $((i % 30)) = 7 ]; then held+=("${pods[i]}"); else train+=("${pods[i]}"); fi
done
# prose FILE...: the paragraphs that are neither code nor commands, a line each, without POD's marks
prose() { perl -00 -ne 'next if /^[\s=]/; s/\s+/ /g; 1 while s/[A-Z]<+ ?([^<>]*?) ?>+/$1/g; print "$_\n"' "$@"; }
prose "${train[@]}" >"$work/text.txt"
prose "${held[@]}" | awk -v most=120000 '(n += length($0) + 1) <= most' >"$work/held-out.txt"
say "Text: the prose of Perl's manual, ${#train[@]} pages, $(wc -c <"$work/text.txt") bytes; held out: ${#held[@]} pages, $(wc -c <"$work/held-out.txt") bytes"

echo "learning a tokenizer of $vocab tokens from it ..."
scripts/learn-bpe $vocab "$work/tokenizer" "$work/text.txt" >/dev/null
bigram=$(perl -e '
    local $/; my $text = <STDIN>; open my $in, "<:raw", $ARGV[0] or die; my $held = <$in>; my (@pair, @first);
    my $last = -1;
    for (unpack "C*", $text) { if ($last >= 0) { $pair[$last * 256 + $_]++; $first[$last]++ } $last = $_ }
    my ($bits, $n) = (0, 0); $last = -1;
    for (unpack "C*", $held) {
        if ($last >= 0) { $bits -= log((($pair[$last * 256 + $_] // 0) + 1) / (($first[$last] // 0) + 256)) / log(2); $n++ }
        $last = $_
    }
    printf "%.3f", $bits / $n' "$work/held-out.txt" <"$work/text.txt")

cat >"$work/config.json" <<JSON
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": $vocab, "hidden_size": $width,
 "intermediate_size": $ff, "num_hidden_layers": $layers, "num_attention_heads": 6, "num_key_value_heads": 6,
 "max_position_embeddings": $length, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false}
JSON
params=$((2 * vocab * width + layers * (4 * width * width + 3 * width * ff + 2 * width) + width))
state=$((params * 12))
common=(train --init "$work/config.json" --tokenizer "$work/tokenizer" --data "$work/text.txt" --seed 1
        --batch $batch --seq-len $length)

# The smallest budget that is a round number: what the model's state takes would not fit.
least=$("$longshore" "${common[@]}" --steps 4 --drive "$run.volume" --out "$run" --memory 1MiB 2>&1 |
    sed -nE 's/.*minimum ([0-9.]+ ?[KMGT]i?B?).*/\1/p' | sed -n 1p) || true
[ -n "$least" ] || { echo "no minimum was printed" >&2; exit 1; }
budget=$(((($(bytes_of "$least") >> 20) + 23) / 16 * 16))
if [ $((budget << 20)) -ge $state ]; then budget=$((($(bytes_of "$least") >> 20) + 1)); fi
say "Model: Llama, $params parameters, state of $((state >> 20)) MiB on a drive; memory budget $budget MiB (the least would be $least)"
[ $((budget << 20)) -lt $state ] || echo "note: the budget is not below the state"

# A few steps tell how many fit the time on this machine.
"$longshore" "${common[@]}" --steps 5 --drive "$work/probe.volume" --out "$work/probe" --memory ${budget}MiB \
    --val-data "$work/held-out.txt" >"$work/probe.log" 2>&1 || { cat "$work/probe.log" >&2; exit 1; }
steps=$(metric "$work/probe" step_seconds | awk -v seconds="$seconds" '
    NR > 1 {sum += $1; n++} END {s = int(seconds * 0.92 / (sum / n)); print (s < 20 ? 20 : (s > 3000 ? 3000 : s))}')
"$longshore" remove "$work/probe" >/dev/null 2>&1

say "Training: $steps steps of $((batch * length)) tokens"
start=$SECONDS
watch=build/tool_peak
[ -x $watch ] || watch=
left=$((stop_at - SECONDS))
timeout --foreground --preserve-status $((left > 20 ? left : 20)) $watch \
    "$longshore" "${common[@]}" --val-data "$work/held-out.txt" --steps "$steps" --drive "$run.volume" --out "$run" --memory ${budget}MiB --lr 1.5e-3 --eval-every $((steps / 3 + 1)) \
    --sample-every $((steps / 2 + 1)) --log-every $((steps / 24 + 1)) 2> >(tee "$work/train.err" | sed -u "/^peak /d" >&2)
trained=$((SECONDS - start))
made=$(metric "$run" step | tail -n 1)
sleep 0.2 # the last line of the copy of stderr

say "A sample, after $((made * batch * length)) tokens of text: words, and not yet sentences"
"$longshore" generate "$run" --prompt "The operator" --max-tokens 120 --temperature 0.8 --top-p 0.95 --seed 11 \
    --memory ${budget}MiB

"$longshore" eval "$run" --data "$work/held-out.txt" --json --memory ${budget}MiB >"$work/eval.json"
number() { sed -nE 's/.*"'"$1"'": ?([0-9.e+-]+).*/\1/p' "$work/eval.json"; }
bits=$(awk -v loss="$(number loss)" -v tokens="$(number tokens)" -v bytes="$(wc -c <"$work/held-out.txt")" \
    'BEGIN {printf "%.3f", loss * tokens / log(2) / bytes}')
peak=$(sed -n 's/^peak //p' "$work/train.err" | tail -n 1)
[ -n "$peak" ] || peak=$(metric "$run" resident_bytes | sort -g | tail -n 1)
first=$(metric "$run" loss | sed -n 1p)
last=$(metric "$run" loss | tail -n 10 | awk '{sum += $1} END {print sum / NR}')
rm -rf "$work/probe" "$work/probe.volume"

say "$run stays: try '$longshore inspect $run', '$longshore generate $run --prompt TEXT', '$longshore export $run --out DIR'"
verdict=ok
awk -v a="$bits" -v b="$bigram" 'BEGIN {exit !(a < b)}' || verdict="NOT BETTER THAN THE BIGRAM"
[ "$peak" -le $((budget << 20)) ] || verdict="OVER BUDGET"
printf 'demo: %s; loss %.3f -> %.3f; held-out text %s bits per byte, a bigram model %s; budget %d MiB, peak %d MiB, state %d MiB; %d s of training\n' \
    "$verdict" "$first" "$last" "$bits" "$bigram" "$budget" $((peak >> 20)) $((state >> 20)) "$trained"
[ "$verdict" = ok ]
