#!/usr/bin/env bash
# `machine` measures within a minute, leaves nothing on drives, and keeps what plans read; what it cannot read it names.
. "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME=$place/cache
unset LONGSHORE_MACHINE
kept=$place/cache/longshore/machine.json
mkdir "$place/drive"
echo keep >"$place/drive/file"
says() { if grep -qE -- "$2" "$place/log"; then ok "$1"; else fail "$1: no '$2'"; fi; }
listing() { (cd "$place/drive" && find . -printf '%p %s %y\n' | sort); }
before=$(listing)

refused "nothing is kept yet" "was not measured: 'longshore machine --drive PATH' measures" machine --kept
refused "a result that cannot be written" "none/here.json: cannot be written" machine --out "$place/none/here.json"
refused "a result in place of another file" "file: is there, and is no description of a machine" machine --out "$place/drive/file"
refused "a result in place of a directory" "drive: is there, and is no description" machine --out "$place/drive"
ln -s /dev/null "$place/link"
refused "a result in place of a link" "link: is there, and is no description" machine --out "$place/link"
refused "a drive that is not mounted" "$place/none: nothing is there: mount the drive" machine --drive "$place/none"
[ ! -e "$kept" ] && ok "nor is anything kept" || fail "a refused measurement was kept"
refused "a drive that is no machine" "is a directory: 'longshore machine --drive $place/drive'" machine "$place/drive"
start=$SECONDS
"$LONGSHORE" machine --json --out "$place/here.json" --drive "$place/drive" "$place/drive/other.volume" ram: \
    >"$place/json" 2>"$place/log" </dev/null || fail "machine ended with $?: $(cat "$place/log")"
took=$((SECONDS - start))
[ $took -le 60 ] && ok "a minute" || fail "it took $took s"
same "nothing is left on the drive" "$(listing)" "$before"
must machine cpu-64gb --out "$place/here2.json"
must machine "$place/here.json" --out "$place/here2.json" # a description is replaced
same "the new one is there" "$("$LONGSHORE" machine "$place/here2.json" --json)" "$(cat "$place/json")"
"$LONGSHORE" machine cpu-64gb --json >/dev/full 2>"$place/log" && fail "a full disk" || same "a full disk is said once" "$(wc -l <"$place/log")" 1
same "one line" "$(wc -l <"$place/json")" 1
documented machine "$place/json"
same "what is kept is what it said" "$("$LONGSHORE" machine --kept --json)" "$(cat "$place/json")"
same "so is the file" "$("$LONGSHORE" machine "$place/here.json" --json)" "$(cat "$place/json")"
must machine --kept
says "rates of products by rows" "^  fp32 product, of weight +[0-9.]+ [GT]op/s \(64 rows\) +[0-9.]+ [GT]op/s \(256 rows\)"
says "a drive" "^$place/drive.*, room for .*reads .*/s, writes .*/s, both at once .*/s, a flush takes .* ms, updates "
says "drives of one directory share" "^$place/drive/other.volume.*: shares the device of drive 1"
perl -MJSON::PP -e 'local $/; my $j = decode_json(<>); my @d = @{$j->{drives}};
    die "rates" if grep { !($d[0]{$_} > 1e6) } qw(read write mixed compute room); die "shares" if $d[0]{device} ne $d[1]{device};
    die "rates" if $d[0]{mixed} != $d[1]{mixed}; die "host" if !($j->{host}{bandwidth} > 1e8) || !($j->{host}{memory} > 1e8);
    for my $kind (qw(product product_input product_weight attention attention_backward rows)) {
        my $r = $j->{compute}{products}{$kind}{fp32} or die $kind; die $kind if grep { !($_->[1] > 1e7) } @$r; }' \
    "$place/json" 2>"$place/log" && ok "figures" || fail "figures: $(cat "$place/log")"

# What is stale is none, and says why.
stale() { # NAME SED-EXPRESSION WHY
    sed -E "$2" "$place/here.json" >"$kept"
    refused "$1" "stale: $3" machine --kept
}
stale "another processor" 's/"processor": "[^"]*"/"processor": "abacus"/' "it is of another processor \(abacus, "
stale "other cores" 's/"cores": [0-9]+/"cores": 9999/' "it is of 9999 cores"
stale "other memory" 's/("host".*)?"memory": [0-9]+/"memory": 1000000/' "it is of .* of memory"
stale "old" 's/"measured": [0-9]+/"measured": 1600000000/' "it was measured [0-9]+ days ago"
stale "another version" 's/"format": [0-9]+/"format": 99/' "another version"
echo '{"futuristic": 1}' >"$kept"
refused "another program's" "unknown key" machine --kept
LONGSHORE_MACHINE=none refused "none" "LONGSHORE_MACHINE=none" machine --kept
LONGSHORE_MACHINE=$place/here.json must machine --kept

# Descriptions that come with the program.
"$LONGSHORE" machine --list >"$place/list"
for name in gpu-24gb gpu-80gb cpu-64gb smart-infinity ssdtrain teraio; do
    grep -qE "^$name +[A-Z].{10,60}$" "$place/list" && ok "$name" || fail "--list lacks $name"
    must machine "$name"
done

# Everything that a description gives is shown.
echo '{"link": {"in": "20MB", "out": "30MB"}, "compute": {"forward": 0.25, "backward": 0.5}}' >"$place/link.json"
must machine "$place/link.json"
says "a link" "^link, to the drives 19.07 MiB/s, from them 28.61 MiB/s$"
says "seconds of a step" "^a step computes 0.25 s forward, 0.5 s backward$"

# What cannot be.
bad() { # NAME JSON WHY
    printf '%s' "$2" >"$place/bad.json"
    refused "$1" "$3" machine "$place/bad.json"
}
bad "no JSON" 'drives' "bad.json"
bad "an unknown key" '{"drive": []}' 'did you mean "drives"'
bad "a negative rate" '{"link": {"in": -5}}' "takes a number from 1"
bad "a rate beyond all" '{"bus": {"in": 1e300}}' "takes a number from 1"
bad "nesting" "$(printf '{"host":%.0s' {1..200})1$(printf '}%.0s' {1..200})" "bad.json"
refused "no name" "nor one of cpu-64gb" machine gpu-25gb
refused "two things at once" "do not go together" machine --list --kept
refused "no directory" "none/x" machine --drive "$place/none/x"
refused "too many" "at most 64" machine --drive $(printf 'ram: %.0s' {1..65})

# Of a machine whose products are known, a step says how much of their rate it came to: of the operations of a model with
# 4 x 32 tokens, whatever the step took. Here nobody measured, or in another precision.
some_text "$place/text" 60
gpt2_config "$place/config.json" 1 64 4 32 300
steps=(--init "$place/config.json" --data "$place/text" --drive ram: --batch 4 --seq-len 32 --steps 3 --memory 256MiB --precision fp32)
echo '{"compute": {"products": {"fp32": [[32, "1T"], [1024, "2T"]]}}}' >"$place/fast.json"
must train "${steps[@]}" --machine "$place/fast.json" --out "$place/known"
documented "RUN/metrics.jsonl" "$place/known/metrics.jsonl"
says "mfu in the line" " tok/s  mfu [0-9.]+%"
same "mfu" "$(python3 - "$place/known/metrics.jsonl" <<'PY'
import json, sys
n = 64 * 4 * 64 + 2 * 64 * 256 + 64 * 300 # parameters that products read
wanted = 4 * 32 * (6 * n + 12 * 64 * (32 + 1) / 2)
print(*[round(x["mfu"] * x["step_seconds"] * 2 * 2**40 / wanted, 6) for x in map(json.loads, open(sys.argv[1]))])
PY
)" "1.0 1.0 1.0"
echo '{"compute": {"products": {"bf16": "1T"}}}' >"$place/other.json"
must train "${steps[@]}" --machine "$place/other.json" --out "$place/unknown"
same "no rate, no mfu" "$(grep -c mfu "$place/unknown/metrics.jsonl")" 0

# A signal leaves nothing behind, on the drive or of what was kept.
cp "$place/here.json" "$kept"
"$LONGSHORE" machine --drive "$place/drive" >"$place/log" 2>&1 &
background=$!
await grep -q "measuring $place/drive" "$place/log"
kill -INT $background
wait $background
same "exit code" $? 1
background=
same "nothing is left on the drive after a signal" "$(listing)" "$before"
cmp -s "$place/here.json" "$kept" && ok "what was kept stays" || fail "a stopped measurement changed what was kept"
done_testing
