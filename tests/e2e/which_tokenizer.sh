#!/usr/bin/env bash
# Which tokenizer a model and its data go with: named, beside the model, bytes where that is said, and never in silence.
. "$(dirname "$0")/lib.sh"
model=$tests/data/numeric/gpt2/model # of 260 ids, without a tokenizer
tokens=$tests/data/numeric/gpt2/data.bin
some_text "$place/text" 60
common=(--drive ram: --steps 1 --batch 1 --seq-len 16 --memory 512MiB --out "$place/run" --overwrite)
looked="has no tokenizer: neither tokenizer.json, nor vocab.json and merges.txt.*--tokenizer bytes"

for command in "train --model $model --data $place/text ${common[*]}" "eval $model --data $place/text" \
    "generate $model --prompt a" "import $model --drive $place/volume.volume --out $place/imported" \
    "verify --model $model --data $place/text --drive $place --steps 1 --batch 1 --seq-len 16"; do
    # shellcheck disable=SC2086
    refused "${command%% *}: no tokenizer" "$looked" $command
done
[ ! -e "$place/run" ] && [ ! -e "$place/imported" ] && ok "nothing is made" || fail "a refused command made something"

must train --model "$model" --tokenizer bytes --data "$place/text" "${common[@]}"
same "said first and last" "$(grep -cE "^(longshore: )?tokenizer: bytes \(257 of 260 ids used\)$" "$place/log")" 2
must inspect "$place/run"
grep -qx "tokenizer: bytes (257 of 260 ids used)" "$place/log" && ok "inspect" || fail "inspect does not say which"
must inspect "$place/run" --json
grep -q '"tokenizer":"bytes (257 of 260 ids used)"' "$place/log" && ok "inspect --json" || fail "inspect --json does not say which"
must eval "$model" --data "$place/text" --tokenizer bytes --seq-len 16
must generate "$model" --prompt a --tokenizer bytes --max-tokens 2
must import "$model" --tokenizer bytes --drive "$place/volume.volume" --out "$place/imported" --batch 1 --seq-len 16 --steps 2
must train --resume "$place/imported" --data "$place/text" --tokenizer bytes --memory 512MiB --quiet
refused "another one" "belongs to the identity" train --resume "$place/imported" --tokenizer "$tests/data/tokenizers/gpt2" --steps 3
refused "a run has one" "is for a model directory" eval "$place/imported" --data "$place/text" --tokenizer bytes

# What export writes has its tokenizer with it.
must export "$place/imported" --out "$place/exported"
must eval "$place/exported" --data "$place/text" --seq-len 16
must train --model "$place/exported" --data "$place/text" "${common[@]}"

# Token files need none; --init may go without, and says so.
must eval "$model" --data "$tokens" --seq-len 16
must train --model "$model" --data "$tokens" "${common[@]}"
grep -q "^longshore: tokenizer: none, since the data are token files" "$place/log" && ok "token files" || fail "token files: not said"
refused "token files and text" "$looked" train --model "$model" --data "$tokens" "$place/text" "${common[@]}"
gpt2_config "$place/config.json" 1 16 1 16 50257
must train --init "$place/config.json" --data "$place/text" "${common[@]}"
grep -q "^longshore: tokenizer: bytes (257 of 50,257 ids used); --tokenizer DIR names another" "$place/log" && ok "--init" || fail "--init: not said"
must train --init "$place/config.json" --tokenizer "$tests/data/tokenizers/gpt2" --data "$place/text" "${common[@]}"
grep -qE "^longshore: tokenizer: byte-level-bpe-[0-9a-f]+ \([0-9,]+ of 50,257 ids used\)" "$place/log" && ok "a directory" || fail "a directory: not said"
# A directory that --init takes the shape of: its tokenizer, too.
mkdir "$place/shape"
cp "$place/config.json" "$tests"/data/tokenizers/gpt2/tokenizer*.json "$place/shape"
must train --init "$place/shape" --data "$place/text" "${common[@]}"
grep -q "^longshore: tokenizer: byte-level-bpe-" "$place/log" && ok "beside --init" || fail "beside --init: not used"
done_testing
