#!/usr/bin/env bash
# Data by any name: the same records give the same run, whatever they are in; what cannot be read is refused with what to
# do; what is left out is counted; a long row keeps the budget.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 32 2 32 300
base=(train --init "$place/config.json" --batch 1 --seq-len 16 --steps 1 --drive ram: --quiet --overwrite --out "$place/run")

mkdir -p "$place/data/more"
for i in $(seq 200); do echo "{\"id\": $i, \"score\": NaN, \"text\": \"page $i\"}"; done >"$place/data/a.jsonl"
must "${base[@]}" --data "$place/data/a.jsonl"
plain=$(digest)
cp "$place/data/a.jsonl" "$place/b.ndjson"
{ echo '['; sed '$!s/$/,/' "$place/data/a.jsonl"; echo ']'; } >"$place/c.json"
gzip -c "$place/c.json" >"$place/d.json.gz"
{ head -n 100 "$place/b.ndjson" | gzip -c; tail -n +101 "$place/b.ndjson" | gzip -c; } >"$place/e.ndjson.gz"
for name in b.ndjson c.json d.json.gz e.ndjson.gz data 'dat*' 'data/*.jsonl' '[bx].*'; do
    must "${base[@]}" --data "$place/$name"
    same "the same data from $name" "$(digest)" "$plain"
done

cp "$place/b.ndjson" "$place/data/more/notes.md"
must "${base[@]}" --data "$place/data"
grep -q "not read, since .*data/more/notes.md" "$place/log" && ok "what is left out" || fail "what is left out is not said"
cp "$place/b.ndjson" "$place/text"
must "${base[@]}" --data "$place/text"
grep -q "text: looks like records" "$place/log" && ok "records as text" || fail "records as text: not said"
# a run beside its data is none of them
(cd "$place/data" && mkdir -p out) || exit
merge base --out "$place/data/out/run"
must "${merged[@]}" --data "$place/data"
must "${merged[@]}" --data "$place/data"
same "the same data beside a run" "$(digest)" "$plain"

printf 'PAR1\025' >"$place/data/x.parquet"
refused "Parquet" "python3 -c .*read_parquet" "${base[@]}" --data "$place/data/x.parquet"
refused "no match" "no file matches it" "${base[@]}" --data "$place/*.csv"
head -c 100 "$place/d.json.gz" >"$place/cut.json.gz"
refused "an archive cut off" "cut.json.gz: is cut off" "${base[@]}" --data "$place/cut.json.gz"

# bad rows
sed '7s/.*/{"text": "page/; 9s/text/content/' "$place/b.ndjson" >"$place/bad.jsonl"
refused "a bad row" 'bad.jsonl:7: not valid JSON: the line ends within a string \(byte [0-9]+\)' "${base[@]}" --data "$place/bad.jsonl"
mkdir "$place/d"
merge base --drive "$place/d"
must "${merged[@]}" --data "$place/bad.jsonl" --bad-rows skip
grep -q "2 of 200 rows bad and skipped, the first: .*bad.jsonl:7: " "$place/log" && ok "counted" || fail "bad rows: not counted"
must inspect "$place/run"
grep -q "^bad rows: 2, " "$place/log" && ok "recorded" || fail "bad rows: not recorded"
must inspect "$place/run" --json
grep -q '"bad_rows":2,' "$place/log" && ok "recorded, as JSON" || fail "bad rows: not recorded as JSON"
must train --resume "$place/run" --data "$place/bad.jsonl" --bad-rows skip --text-field text
refused "another way with bad rows" "identity" train --resume "$place/run" --bad-rows stop
refused "another field" "identity" train --resume "$place/run" --text-field content

# fields
sed 's/"text"/"content"/' "$place/b.ndjson" >"$place/field.jsonl"
refused "another key" 'no key "text"; its keys are "id", "score", "content": --text-field' "${base[@]}" --data "$place/field.jsonl"
must "${merged[@]}" --data "$place/field.jsonl" --text-field content
same "the same data in another field" "$(digest)" "$plain"
must eval "$place/run" --data "$place/field.jsonl" --json --seq-len 16
sed 1d "$place/log" >"$place/said"
must eval "$place/run" --data "$place/b.ndjson" --text-field text --json --seq-len 16
same "eval takes the run's field, or another" "$(sed 1d "$place/log")" "$(cat "$place/said")"
refused "eval, no such field" 'no key "content"' eval "$place/run" --data "$place/b.ndjson" --seq-len 16
must eval "$place/run" --data "$place/bad.jsonl" --text-field text --bad-rows skip --json --seq-len 16

# a row of 64 MiB
head -c 67108864 /dev/zero | tr '\0' 'x' | sed 's/^/{"id": 1, "text": "/; s/$/"}\n/' >"$place/long.jsonl"
least=$(minimum "${merged[@]}" --data "$place/long.jsonl")
rm -rf "$place/run" "$place/d"/*
echo "\$ a row of 64 MiB" >"$place/log"
"${guard[@]}" "$PEAK" "$LONGSHORE" "${merged[@]}" --data "$place/long.jsonl" --memory "$least" >>"$place/log" 2>&1 </dev/null
same "a row of 64 MiB is read" $? 0
peak=$(sed -n 's/^peak //p' "$place/log")
[ "${peak:-$(($(bytes "$least") + 1))}" -le "$(bytes "$least")" ] && ok "in the least memory" || fail "a row of 64 MiB takes $peak of $least"
done_testing
