#!/usr/bin/env bash
# A drive that gets three times as slow in mid-run (emulated): a step once the training has planned again / one of a training whose
# plan was made for the slow drive. The budget is the one at which the two plans differ most in what they move.
. "$(dirname "$0")/lib.sh"
machine
perl -e 'print pack("V256", 20240520, 1, 200000, (0) x 253); print pack "v", $_ * 7919 % 257 for 1 .. 200000' >"$work/tokens.bin"
cat >"$work/model.json" <<'JSON'
{"model_type": "gpt2", "n_layer": 8, "n_embd": 256, "n_head": 4, "n_positions": 1024, "vocab_size": 1024, "resid_pdrop": 0, "embd_pdrop": 0,
 "attn_pdrop": 0}
JSON
emulated() { # NAME MB MORE: a machine with a drive of so many megabytes a second
    echo '{"drives": [{"mixed": "'"$2"'MB"'"$3"'}], "compute": {"products": {"fp32": "100GB", "bf16": "100GB"}}}' >"$work/$1.json"
}
emulated quick 600 ', "slower-after": 8, "slower-by": 3'
emulated third 200 ''
export LONGSHORE_MACHINE=none
shape=(--init "$work/model.json" --batch 4 --seq-len 512 --clip 0 --data "$work/tokens.bin")
moved() { # NAME MEMORY: activations that a step moves by the plan for that machine
    "$LONGSHORE" plan "${shape[@]}" --drive "$work/one.volume" --emulate "$work/$1.json" --memory "$2" --json 2>>"$work/log" |
        sed -nE 's/.*"drive_(read|write)_bytes": ?([0-9]+).*/\2/p' | awk '{s += $1} END {print s + 0}'
}
memory=$(for m in {70..160..10}; do echo "$(moved quick ${m}MiB) $(moved third ${m}MiB) ${m}MiB"; done |
    awk '$2 > 0 && $1 / $2 > most {most = $1 / $2; best = $3} END {print best}')
train "$work/a" "${shape[@]}" --drive "$work/one.volume" --memory "$memory" --emulate "$work/quick.json" --steps 30
grep -m 1 'planned again' "$work/log" || echo 'it did not plan again'
train "$work/b" "${shape[@]}" --drive "$work/two.volume" --memory "$memory" --emulate "$work/third.json" --steps 9
printf 'budget %s: %s s a step, with the slow drive %s s, planned again %s s\n' "$memory" "$(seconds "$work/a" 3 7)" \
    "$(seconds "$work/a" 10 12)" "$(seconds "$work/a" 18 29)"
verdict "a drive at a third: step once planned again / with a plan made for it" \
    "$(calc "$(seconds "$work/a" 18 29) / $(seconds "$work/b" 3 8)")" 1.05 most
