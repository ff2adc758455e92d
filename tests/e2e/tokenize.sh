#!/usr/bin/env bash
# Text becomes tokens: the same for every number of threads, runs without an end in a small budget, and killed at any
# instant nothing half made, nothing that the same command, or remove, does not clear.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 32 2 64 600
some_text "$place/text" 40000
yes '{"text": "the old crane lifts a small load, and it'"'"'s 1999."}' | head -n 60000 >"$place/rows.jsonl"
{ head -c 3000000 /dev/zero | tr '\0' a; echo; head -c 3000000 /dev/zero | tr '\0' ' '; echo y; } >"$place/run"
common=(--init "$place/config.json" --tokenizer "$tests/data/tokenizers/gpt2" --seed 3 --steps 1 --batch 1 --seq-len 64
        --memory 256MiB --quiet)

# Threads.
for threads in 1 2 3; do
    must train "${common[@]}" --data "$place/text" "$place/rows.jsonl" "$place/run" --threads $threads \
        --drive ram: --out "$place/t$threads"
    same "tokens with $threads threads" "$(cksum <"$place/t$threads/tokens.bin")" "$(cksum <"$place/t1/tokens.bin")"
done
wanted=$(cksum <"$place/t1/tokens.bin")

# 20 MB of one letter, as PEAK counts it.
head -c 20000000 /dev/zero | tr '\0' a >"$place/endless"
echo '$ peak of an endless run' >"$place/log"
"${guard[@]}" "$PEAK" "$LONGSHORE" train "${common[@]}" --data "$place/endless" --threads 2 --drive ram: \
    --out "$place/endless-run" >>"$place/log" 2>&1 </dev/null
same "an endless run" $? 0
peak=$(sed -n 's/^peak //p' "$place/log")
[ "${peak:-999999999}" -le $((96 << 20)) ] && ok "peak $peak" || fail "an endless run takes $peak bytes"

# Killed at random instants of its making, begun again, at last left alone.
mkdir -p "$place"/drive/{whole,k}
start=$(date +%s%N)
must train "${common[@]}" --data "$place/text" --drive "$place/drive/whole" --out "$place/whole"
limit=$((($(date +%s%N) - start) / 1000000 + 20))
kills=0
for ((i = 0; i < 25; i++)); do
    "$LONGSHORE" train "${common[@]}" --data "$place/text" --drive "$place/drive/k" --out "$place/killed" \
        >"$place/log" 2>&1 </dev/null &
    background=$!
    nap 0 $((limit * 1000))
    kill -9 $background 2>/dev/null && kills=$((kills + 1))
    wait $background 2>/dev/null
    background=
    # what has the name of a token file is whole
    for tokens in "$place/killed/tokens.bin" "$place/killed/making/tokens.bin"; do
        [ ! -e "$tokens" ] || same "tokens after a kill" "$(cksum <"$tokens")" "$(cksum <"$place/whole/tokens.bin")"
    done
    # every third is removed, with all that it left
    if [ $((i % 3)) = 2 ] && [ -n "$(ls -A "$place/killed" 2>/dev/null)" ]; then
        must remove "$place/killed"
        same "what a killed making leaves when it is removed" "$(ls -Ad "$place"/killed* "$place"/drive/k/* 2>/dev/null)" ""
    fi
    [ ! -e "$place/killed/run.json" ] || must remove "$place/killed"
done
echo "$kills kills"
must train "${common[@]}" --data "$place/text" --drive "$place/drive/k" --out "$place/killed"
same "tokens after $kills kills" "$(cksum <"$place/killed/tokens.bin")" "$(cksum <"$place/whole/tokens.bin")"
same "what is in the run" "$(cd "$place/killed" && ls -A | tr '\n' ' ')" "$(cd "$place/whole" && ls -A | tr '\n' ' ')"

# eval leaves nothing of its tokens, killed or not.
mkdir "$place/tmp"
export TMPDIR=$place/tmp
for ((i = 0; i < 6; i++)); do
    "$LONGSHORE" eval "$place/whole" --data "$place/text" --max-tokens 64 --quiet >"$place/log" 2>&1 </dev/null &
    background=$!
    nap 0 $((limit * 1000))
    kill -9 $background 2>/dev/null
    wait $background 2>/dev/null
    background=
    same "what eval leaves in TMPDIR" "$(ls -A "$place/tmp")" ""
done
same "tokens at the end" "$wanted" "$(cksum <"$place/t3/tokens.bin")"
done_testing
