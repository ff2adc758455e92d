#!/usr/bin/env bash
# What strangers and hurried people hand in: each is refused with exit code 2 and a sentence that names it, and nothing
# new is made.
. "$(dirname "$0")/lib.sh"
good=$tests/data/numeric/gpt2/model
data=$tests/data/numeric/gpt2/data.bin
some_text "$place/text" 50
out=$place/out
drive=$place/drive
mkdir "$drive"
base=(train --model "$good" --data "$data" --drive "$drive" --out "$out" --steps 2 --batch 2 --seq-len 16 --memory 512MiB)

# untouched NAME: the last command made nothing.
untouched() {
    if [ -e "$out" ] || [ -n "$(ls -A "$drive")" ]; then
        fail "$1: something was made: $(ls -d "$out" "$drive"/* 2>/dev/null | tr '\n' ' ')"
        rm -rf "$out" "${drive:?}"/*
    fi
}
bad() { # NAME PATTERN ARGS...
    refused "$@"
    untouched "$1"
}
# with_flag NAME PATTERN FLAGS...: the good command with something added.
with_flag() {
    local name=$1 pattern=$2
    shift 2
    merge base "$@"
    bad "$name" "$pattern" "${merged[@]}"
}

# ---- flags ----
bad "no command" "usage|command is missing" # nothing at all
bad "unknown command" "did you mean.*train" trian
with_flag "unknown flag" "did you mean.*--batch" --bacth 4
with_flag "a model that is not there" "$place/none: there is no such directory" --model "$place/none"
with_flag "a tokenizer that is not there" "$place/none: there is no such directory" --tokenizer "$place/none"
with_flag "a dry run with too little memory" "1.00 MiB of memory is too little for this model: minimum " --memory 1MiB --dry-run
with_flag "a dry run with too much" "a budget of .* is more than the memory of this machine" --memory 8000TiB --dry-run
with_flag "the same as JSON" "1.00 MiB of memory is too little for this model: minimum " --memory 1MiB --dry-run --json
with_flag "a dry run with a drive that is missing" "$place/none: nothing is there: mount the drive or mkdir" --drive "$place/none" --dry-run
with_flag "and one in a directory that is missing" "$place/none/d: does not exist, and neither does its directory" --drive "$place/none/d" --dry-run
with_flag "a dry run with a drive that is no file" "/dev/null: a special file" --drive /dev/null --dry-run
bad "and a plan" "/dev/null: a special file" plan --init gpt2-tiny --memory 512MiB --drive /dev/null
with_flag "a number of another unit" "300 bytes of memory is too little.*; did you mean 300MiB[?]" --memory 300 --dry-run
with_flag "and of a larger one" "8 bytes of memory is too little.*; did you mean 8GiB[?]" --memory 8 --dry-run
echo '{"messages": [{"role": "user", "content": "Hello"}]}' >"$place/chat.jsonl"
with_flag "chat data" "no chat template" --data "$place/chat.jsonl" --tokenizer bytes
with_flag "unknown flag with =" "did you mean.*--memory" --memroy=1GiB
with_flag "no number" "--lr" --lr fast
ONEDNN_MAX_CPU_ISA=AVX2 with_flag "bf16 products without AVX-512" "avx2.*--products bf16 needs" --products bf16
with_flag "negative rate" "--lr" --lr -1
with_flag "NaN rate" "--lr" --lr nan
with_flag "feedback of nothing" "--error-feedback means nothing without --compress" --error-feedback on
with_flag "a place for nothing" "--residual means nothing without --compress" --residual host
with_flag "validation on nothing" "--eval-every means nothing without validation data: give --val-data" --eval-every 5
bad "drives of a directory" "is no run" eval "$good" --data "$data" --drive a=b
mkdir -p "$place"/{bare,begun/making}
bad "an empty directory" "bare: is not a run, but empty" eval "$place/bare" --data "$data"
bad "removing an empty directory" "bare: is not a run, but empty" remove "$place/bare"
[ -d "$place/bare" ] && ok "which stays" || fail "an empty directory was removed"
bad "a run that was never made" "begun: was stopped while it was being made" export "$place/begun" --out "$out"
bad "verify of a flag that means nothing" "--residual means nothing" verify "${base[@]:1:6}" --batch 2 --residual host
bad "import of a flag that means nothing" "--residual means nothing" import "$good" --drive "$drive" --out "$out" \
    --residual host
bad "verify of what train refuses" "--min-lr 3 is above --lr" verify "${base[@]:1:6}" --batch 2 --seq-len 16 --min-lr 3
bad "verify that lasts" "--overwrite does not go with verify" verify "${base[@]:1:6}" --overwrite
with_flag "no batch" "--batch" --batch 0
with_flag "a batch of too many" "--batch takes a whole number from 1 to 16777216" --batch 99999999
with_flag "a step of too many tokens" "--batch 16777216 times --seq-len 64: a step takes" --batch 16777216 --seq-len 64
with_flag "hexadecimal" "--lr takes a number" --lr 0x1p-3
with_flag "a rate that is lost" "--lr takes a number" --lr 1e-400
with_flag "a negative rate" "--lr takes a number from 0 to 1e\+06, not .-1." --lr -1
with_flag "a negative number" "--steps takes a whole number from 1 to [0-9]*, not .-3." --steps -3
with_flag "too many threads" "--threads takes a whole number from 0 to 1024" --threads 99999
with_flag "a warm-up without end" "--warmup" --warmup 18446744073709551615
with_flag "huge chunks" "--chunk-size takes a size up to 1.00 TiB" --chunk-size 17T
with_flag "connections twice" "--connections is given twice" --connections 2 --connections 3
bad "too many threads to measure" "--threads takes" bench compute --threads 99999
bad "a step of a new run" "--accept-step goes with --resume" "${base[@]}" --accept-step 0
with_flag "huge batch" "--batch" --batch 99999999999999999999
with_flag "no steps" "--steps" --steps 0
with_flag "beta of one" "beta2 takes" --beta2 1
with_flag "momentum for Adam" "--momentum needs --optimizer sgd" --momentum 0.9
same "said once" "$(grep -c '^longshore:' "$place/log")" 1
with_flag "negative clip" "--clip" --clip -1
with_flag "share of more than one" "val-share takes" --val-share 1.5
with_flag "nonsense size" "--memory" --memory 12parsecs
with_flag "a size of nothing" "--memory" --memory 0
with_flag "negative size" "--memory" --memory -1GiB
with_flag "choice" "--precision.*fp32|fp32.*--precision" --precision fp64
with_flag "choice near another" "cosine" --schedule cosin
with_flag "a share of nothing" "--compress takes a share above 0 such as top1%, or none, not 'top0%'" --compress top0%
with_flag "value missing" "--optimizer" --optimizer
bad "a flag twice" "--steps" "${base[@]}" --steps 3
with_flag "sequences longer than the model" "seq-len|64" --seq-len 65
with_flag "more memory than the machine" "memory of this machine, .* \(minimum [1-9]" --memory 4096TiB
bad "the same, no minimum being known" "memory of this machine, [^ ]+ .iB$" eval "$good" --data "$data" --memory 4096TiB
with_flag "no such directory for a drive" "no-such.*neither does its directory: mount the drive, or mkdir" --drive "$place/no-such/dir/volume"
with_flag "a path that fills a message" "cannot read it: No such file" --tokenizer bytes --data "$place$(printf '/%0200d' {1..15})"
ln -s loop "$place/loop"
with_flag "a drive that is a circle of links" "loop: cannot be examined" --drive "$drive/a.volume" "$place/loop"
with_flag "a name too long for a drive" "0: cannot be examined: File name too long" --drive "$place/$(printf %0256d 0)"
mkfifo "$place/pipe"
with_flag "a pipe for a drive" "pipe: a special file" --drive "$place/pipe"
bad "a pipe to measure" "pipe is a special file" drive bench "$place/pipe"
with_flag "a drive twice" "twice|same" --drive "$drive" "$drive"
echo kept >"$place/hard"
ln "$place/hard" "$place/link"
with_flag "a drive by two hard links" "link is given twice" --drive "$place/hard" "$place/link" --overwrite
same "which stay" "$(cat "$place/hard" "$place/link" | uniq)" kept
ln -sf loop "$place/loop"
with_flag "a drive behind a loop of links" "loop: cannot be examined: Too many" --drive "$place/loop"
ln -sf nothing "$place/link"
with_flag "a drive behind a link to nothing" "link: is a link to nothing" --drive "$place/link"
rm "$place/link"
long=$(printf '%0255d' 1)
with_flag "a drive of too long a name" "cannot be examined: File name too long" --drive "$drive/0$long"
bad "no data" "--data" train --model "$good" --drive "$drive" --out "$out" --steps 2
bad "no model" "which model" train --data "$data" --drive "$drive" --out "$out" --steps 2
bad "preset near another" "did you mean.*gpt2-124m" train --init gpt2-124 --data "$data" --out "$out" --drive "$drive" --steps 2
bad "resume of nothing" "no-run" train --resume "$place/no-run"
for name in Qwen/Qwen2.5-0.5B https://huggingface.co/Qwen/Qwen2.5-0.5B; do
    with_flag "a hub's name for a model: $name" "hf download Qwen/Qwen2.5-0.5B --local-dir DIR.*then name DIR" --model $name
    with_flag "a hub's name for a tokenizer: $name" "hf download Qwen/Qwen2.5-0.5B .*then name DIR" --tokenizer $name
    bad "eval of a hub's name: $name" "does not download.*hf download Qwen/Qwen2.5-0.5B" eval $name --data "$data"
    bad "text of a hub's model: $name" "does not download.*hf download Qwen/Qwen2.5-0.5B" generate $name
    bad "import of a hub's model: $name" "hf download Qwen/Qwen2.5-0.5B .*then name DIR" import --model $name --drive "$drive" --out "$out"
done
with_flag "a hub's name for data" "hf download --repo-type dataset roneneldan/TinyStories" --tokenizer bytes --data roneneldan/TinyStories
bad "an address of data" "does not download: fetch it first" eval "$good" --tokenizer bytes --data https://example.org/a.txt
bad "inspect of nothing" "no-run" inspect "$place/no-run" --digest
printf '{"stepz": 3}' >"$place/config.json"
with_flag "unknown key" "did you mean.*steps" --config "$place/config.json"
printf '{"config": "other.json"}' >"$place/config.json"
with_flag "a flag that is no key" "unknown key config: .*--help" --config "$place/config.json"
for key in '"batch": "many"' '"memory": true' '"data": [7]' '"drive": ""'; do
    echo "{$key}" >"$place/config.json"
    with_flag "a key that a flag overrides: $key" "config.json: .*(batch|memory|data|drive)" --config "$place/config.json"
done
printf '{"steps": 3, "steps": 4}' >"$place/config.json"
with_flag "key twice" "steps|duplicate" --config "$place/config.json"
printf '{"steps": ' >"$place/config.json"
with_flag "JSON cut off" "config.json" --config "$place/config.json"
printf '{"min_lr": 1e-5, "lr": 1e-3, "min-lr": 1e-4}' >"$place/config.json"
with_flag "key in two spellings" '"min_lr" and "min-lr" are the same key' --config "$place/config.json"

# ---- data ----
: >"$place/empty"
with_flag "empty data" "empty" --tokenizer bytes --data "$place/empty"
with_flag "no such data" "no-such" --tokenizer bytes --data "$place/no-such.txt"
printf 'a' >"$place/one"
with_flag "one token" "one|token" --tokenizer bytes --data "$place/one"
with_flag "a program for a text" "is not UTF-8 text: byte [0-9]+ is 0x" --tokenizer bytes --data "$LONGSHORE"
printf '{"text": 5}\n' >"$place/bad.jsonl"
with_flag "JSONL without text" "bad.jsonl" --tokenizer bytes --data "$place/bad.jsonl"
printf '{"text": "fine"}\n{"text": "cut\n' >"$place/bad.jsonl"
with_flag "JSONL cut off" "bad.jsonl" --tokenizer bytes --data "$place/bad.jsonl"
{ head -c 1024 "$data"; printf '\377\377'; tail -c +1027 "$data"; } >"$place/range.bin"
with_flag "token out of range" "range.bin.*65535|65535.*range.bin|range" --tokenizer bytes --data "$place/range.bin"
{ printf '\001\002\003\004'; tail -c +5 "$data"; } >"$place/magic.bin"
with_flag "foreign magic" "magic.bin" --tokenizer bytes --data "$place/magic.bin"
head -c 2000 "$data" >"$place/cut.bin"
with_flag "token file cut off" "cut.bin" --tokenizer bytes --data "$place/cut.bin"
name=$'esc\033[31mape\n.bin'
cp "$place/magic.bin" "$place/$name"
with_flag "a name with escapes" "esc" --tokenizer bytes --data "$place/$name"
if grep -q $'\033' <(sed 1,2d "$place/log"); then fail "a name is printed raw"; else ok "names are escaped"; fi

# ---- safetensors ----
octets() { # NUMBER: 8 bytes, little-endian
    local n=$1 i text=
    for i in 1 2 3 4 5 6 7 8; do
        text+=$(printf '\\%03o' $((n & 255)))
        n=$((n >> 8))
    done
    printf '%b' "${text//\\/\\0}"
}
# model NAME: a copy of the good directory in $place/NAME
model() {
    rm -rf "${place:?}/$1"
    cp -r "$good" "$place/$1"
    dir=$place/$1
}
# header NAME PATTERN JSON DATA_BYTES [LENGTH]
header() {
    model st
    { octets "${5:-${#3}}"; printf '%s' "$3"; head -c "$4" /dev/zero; } >"$dir/model.safetensors"
    with_flag "$1" "$2" --model "$dir"
}
st='model\.safetensors'
header "header of 2^60 bytes" "$st" '{}' 0 1152921504606846976
header "negative header" "$st" '{}' 0 -1
header "header past the end" "$st" '{}' 0 4096
header "header is no JSON" "$st" 'hello' 0
header "header is an array" "$st" '[]' 0
header "no tensors" "missing|lacks|not in|$st" '{}' 0
header "shape overflows" "$st" '{"transformer.wte.weight":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,16]}}' 16
header "negative shape" "$st" '{"transformer.wte.weight":{"dtype":"F32","shape":[-2,-2],"data_offsets":[0,16]}}' 16
header "size and offsets differ" "$st" '{"transformer.wte.weight":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}}' 16
header "offsets past the end" "$st" '{"transformer.wte.weight":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}' 16
header "offsets backwards" "$st" '{"transformer.wte.weight":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}' 16
header "overlap" "overlap" '{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}' 24
header "duplicate tensor" "twice|duplicate" '{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}}' 32
header "deep nesting" "$st" "{\"a\":$(printf "[%.0s" $(seq 5000))" 0
header "unknown type" "$st|wte" '{"transformer.wte.weight":{"dtype":"Q7","shape":[4],"data_offsets":[0,16]}}' 16
model cut
truncate -s -100 "$dir/model.safetensors"
with_flag "file cut off" "$st" --model "$dir"
model misshapen
sed -i 's/"n_inner": 72/"n_inner": 73/' "$dir/config.json"
with_flag "misshapen tensors" "shape|c_fc" --model "$dir"
model missing
sed -i 's/"n_layer": 2/"n_layer": 3/' "$dir/config.json"
with_flag "missing tensors" "h\.2\." --model "$dir"
for shard in ../outside.safetensors /etc/passwd sub/../../outside.safetensors; do
    model shards
    cp "$dir/model.safetensors" "$place/outside.safetensors"
    rm "$dir/model.safetensors"
    printf '{"metadata": {}, "weight_map": {"transformer.wte.weight": "%s"}}' "$shard" >"$dir/model.safetensors.index.json"
    with_flag "shard $shard" "outside|passwd|leave" --model "$dir"
done
model pickled
mv "$dir/model.safetensors" "$dir/pytorch_model.bin"
with_flag "weights of another format" "no other \*.safetensors file; .*save_pretrained" --model "$dir"
model linked # as the Hugging Face cache has it
mkdir "$place/blobs"
mv "$dir/model.safetensors" "$place/blobs/0123"
ln -s ../blobs/0123 "$dir/model.safetensors"
merge base --model "$dir"
run "${merged[@]}"
same "links are followed" $rc 0
rm -rf "$out" "${drive:?}"/*

# ---- config.json ----
config() { # NAME PATTERN SED
    model config
    sed -i "$3" "$dir/config.json"
    with_flag "$1" "$2" --model "$dir"
}
config "unknown architecture" "bert|architecture|model_type" 's/"model_type": "gpt2"/"model_type": "bert"/; s/GPT2LMHeadModel/BertModel/'
config "no layers" "n_layer" 's/"n_layer": 2/"n_layer": 0/'
config "negative width" "n_embd" 's/"n_embd": 40/"n_embd": -40/'
config "text for a number" "n_head" 's/"n_head": 4/"n_head": "four"/'
config "heads that do not divide" "n_head|heads" 's/"n_head": 4/"n_head": 7/'
config "absurd vocabulary" "vocab_size" 's/"vocab_size": 260/"vocab_size": 99999999999999/'
config "unknown activation" "activation|mish" 's/gelu_new/mish/'
config "a token beyond 32 bits" "bos_token_id" 's/"n_head": 4/"n_head": 4, "bos_token_id": 4294967301/'
config "vocabulary too small for the tokenizer" "vocab" 's/"vocab_size": 260/"vocab_size": 100/'
rope() { # NAME PATTERN JSON
    model config
    cat >"$dir/config.json" <<JSON
{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
 "vocab_size": 260, "${4:-rope_scaling}": $3}
JSON
    with_flag "$1" "$2" --model "$dir"
}
rope "heads that turn in part" "partial_rotary_factor.*0.5" 0.5 partial_rotary_factor
rope "the same, where newer files have it" "partial_rotary_factor.*0.25" \
    '{"rope_type": "default", "partial_rotary_factor": 0.25}' rope_parameters
rope "rotary scaling of no kind" "rope_type.*missing" '{"factor": 2}'
rope "unknown rotary scaling" "rope_type.*ntk.*longrope are supported" '{"rope_type": "ntk", "factor": 2}'
rope "a key of rotary scaling that nobody reads" "finetuned.*no such key" \
    '{"type": "yarn", "factor": 2, "finetuned": true}'
merge base --seq-len 2049
base_was=("${base[@]}") base=("${merged[@]}")
rope "longer than angles stay as they are" "2048 positions.*dynamic" '{"type": "dynamic", "factor": 2}'
base=("${base_was[@]}")
rope "linear scaling without factor" "factor.*missing" '{"type": "linear"}'
rope "llama3 scaling without its limits" "low_freq_factor.*missing" '{"rope_type": "llama3", "factor": 8}'
model noconfig
rm "$dir/config.json"
with_flag "no config.json" "not a model's directory: it has no config.json" --model "$dir"

# ---- what is no model ----
no_model() { # NAME PATTERN PATH
    with_flag "$1" "$2" --model "$3"
    refused "$1, eval" "$2" eval "$3" --data "$data"
}
model what-is-none
mv "$dir/config.json" "$place/config-of-it.json"
printf 'GGUF\3\0\0\0' >"$dir/model-Q4_K_M.gguf"
no_model "a GGUF file" "is a GGUF model.*gguf_file=\"model-Q4_K_M.gguf\"" "$dir/model-Q4_K_M.gguf"
bad "a GGUF file as --init" "is a GGUF model" train --init "$dir/model-Q4_K_M.gguf" --data "$data" --out "$out" --drive "$drive" --steps 2
no_model "a directory with one" "is a GGUF model.*gguf_file=\"model-Q4_K_M.gguf\"" "$dir"
rm "$dir/model-Q4_K_M.gguf"
no_model "a file" "is a file: name the directory" "$dir/model.safetensors"
touch "$dir/consolidated.00.pth"
no_model "Meta's own files" "params.json, consolidated.*hf download.*convert_llama_weights_to_hf" "$dir"
rm "$dir/consolidated.00.pth"
cache=$place/hub/models--a--b
mkdir -p "$cache/refs" "$cache/snapshots/0a" "$cache/snapshots/1b"
no_model "a cached repository" "name $cache/snapshots/0a$" "$cache"
printf '1b\n' >"$cache/refs/main"
no_model "the commit that it is at" "name $cache/snapshots/1b$" "$cache"
with_flag "its tokenizer" "name $cache/snapshots/1b$" --tokenizer "$cache"
no_model "the cache itself" "such as $place/hub/models--a--b/snapshots/HASH" "$place/hub"
rmdir "$cache"/snapshots/*
no_model "a cached repository without files" "without a snapshot.*hf download" "$cache"
mkdir "$dir/checkpoint-500"
mv "$place/config-of-it.json" "$dir/checkpoint-500/config.json"
no_model "a model one level below" "no config.json; one is in $dir/checkpoint-500" "$dir"
model marked
sed -i '1s/^/\xef\xbb\xbf/' "$dir/config.json"
merge base --model "$dir"
run "${merged[@]}"
same "a byte order mark before config.json" $rc 0
rm -rf "$out" "${drive:?}"/*
model notok
echo x >"$dir/tokenizer.model"
with_flag "half a tokenizer" "has tokenizer.model, but not tokenizer.json" --model "$dir"
rm "$dir/tokenizer.model"
printf '{"version": "1.0", "model": {"type": "Unigram"}}' >"$dir/tokenizer.json"
with_flag "unsupported tokenizer" "tokenizer.json" --model "$dir"
printf '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 9999}, "merges": []}}' >"$dir/tokenizer.json"
with_flag "tokenizer that does not fit" "tokenizer|vocab" --model "$dir"

# ---- a run that cannot go on: the committed state stays ----
model huge # bf16 values of 3.4e38 at the end of the file: the first loss is no number
bytes=$(stat -c %s "$dir/model.safetensors")
printf '\177\177%.0s' $(seq 60) | dd of="$dir/model.safetensors" bs=1 seek=$((bytes - 120)) conv=notrunc status=none
merge base --model "$dir"
expect_failure 1 "loss that is no number" "step 1" "${merged[@]}"
must inspect "$out" --digest --deep
same "step 0 stays" "$(digest | cut -d ' ' -f 1)" 0
rm -rf "$out" "${drive:?}"/*
run "${merged[@]}" --on-nonfinite skip
same "refused steps are skipped on wish" $rc 0
same "skipped steps count" "$(digest | cut -d ' ' -f 1)" 2
rm -rf "$out" "${drive:?}"/*

# ---- a model that has become no number ----
merge base --optimizer sgd --lr 1e6 --clip 0 --warmup 0 --steps 3 --on-nonfinite skip --sample-every 1
must "${merged[@]/--quiet/}"
grep -qE "loss [0-9.]+ at the first step, not finite at the last of 3" "$place/log" && ok "its summary" || fail "its summary says nan"
grep -q "no sample after step 3: .* is not finite" "$place/log" && ok "no sample" || fail "a sample of what is no number"
expect_failure 1 "what it generates" "the model's output for this prompt is not finite" generate "$out" --prompt a
rm -rf "$out" "${drive:?}"/*

model large # in the row of a position that no sequence has: only its decay meets it
header=$(od -An -tu8 -N8 "$dir/model.safetensors" | tr -d ' ')
end=$(head -c $((8 + header)) "$dir/model.safetensors" | grep -ao 'wpe.weight":{[^}]*}' |
    sed -E 's/.*data_offsets":\[[0-9]+,([0-9]+).*/\1/')
printf '\177\177' | dd of="$dir/model.safetensors" bs=1 seek=$((8 + header + end - 2)) conv=notrunc status=none
for how in drive host; do
    for skip in stop skip; do
        merge base --model "$dir" --lr 1000 --weight-decay 1 --update $how --on-nonfinite $skip
        expect_failure 1 "a new value that is no number, update on the $how, $skip" \
            "step 1 is refused: a new value of tensor .* is not finite; the state stays at step 0 \(go on with a lower --lr or --weight-decay\)" \
            "${merged[@]}"
        must inspect "$out" --digest --deep
        same "step 0 stays" "$(digest | cut -d ' ' -f 1)" 0
        rm -rf "$out" "${drive:?}"/*
    done
done

# ---- what run.json cannot record ----
odd=$place/$'d\xff'
mkdir "$odd" "$odd/d"
ln -s "$odd/d" "$place/link"
echo '{"link": {"shared": "8GB"}}' >"$odd/rack.json"
merge base --drive "$place/link"
refused "a link to what is not UTF-8" 'd\\xff/d: is not UTF-8' "${merged[@]}"
cd "$odd" || exit
merge base --drive d
refused "a drive in a directory that is not UTF-8" 'd\\xff/d: is not UTF-8' "${merged[@]}"
merge base --emulate rack.json
refused "a machine in such a directory" 'd\\xff/rack.json: is not UTF-8' "${merged[@]}"
cd "$OLDPWD" || exit
[ ! -e "$out" ] && [ "$(ls "$odd/d")" = "" ] && ok "nothing is made" || fail "something was made"

# ---- what exists is not overwritten ----
must "${base[@]}"
run inspect "$out" --digest
before=$(digest)
refused "an existing run" "exist|--overwrite|--resume" "${base[@]}"
merge base --out "$place/other" --drive "$(volume_in "$place/drive")"
refused "an existing volume" "exist|--overwrite|volume" "${merged[@]}"
[ ! -e "$place/other" ] || fail "the refused run left $place/other"
printf 'precious' >"$place/precious"
merge base --out "$place/other" --drive "$place/precious"
refused "a foreign file" "precious|--overwrite" "${merged[@]}"
same "the foreign file is whole" "$(cat "$place/precious")" precious
run inspect "$out" --digest --deep
same "the run is whole" "$(digest)" "$before"
must export "$out" --out "$place/model"
merge base --model "$place/model" --overwrite --drive "$place/model/model.safetensors" --out "$place/other"
refused "a drive that is the model" "drive .*model.safetensors is what model .* reads" "${merged[@]}"
mkdir "$place/model/parts"
cp "$place/model/model.safetensors" "$place/model/parts"
merge base --model "$place/model" --overwrite --drive "$place/model/parts/model.safetensors" --out "$place/other"
refused "a drive that is a shard below the model" "parts/model.safetensors is what model .* reads" "${merged[@]}"
rm -r "$place/model/parts"
cp "$data" "$place/tokens.bin"
merge base --data "$place/tokens.bin" --overwrite --drive "$place/tokens.bin" --out "$place/other"
refused "a drive that is the text" "drive .*tokens.bin is what data .* reads" "${merged[@]}"
cmp -s "$data" "$place/tokens.bin" && ok "the text is whole" || fail "the text has changed"
merge base --model "$place/model" --overwrite --drive "$place/volume.volume" --out "$place/model"
refused "a run in place of the model" "model is what model .* reads" "${merged[@]}"
must eval "$place/model" --data "$data" --seq-len 16 --memory 512MiB
for name in making snapshots; do
    mkdir -p "$place/foreign/$name"
    printf 'precious' >"$place/foreign/$name/file"
    merge base --drive "$place/volume.volume" --out "$place/foreign"
    refused "a run around foreign $name" "foreign.*choose another directory" "${merged[@]}"
    same "what is in $name" "$(cat "$place/foreign/$name/file")" precious
    rm -r "$place/foreign"
done
mkdir "$place/gone.partial"
printf 'precious' >"$place/gone.partial/file"
refused "an export over foreign files" "gone.partial/file: is in the way" export "$out" --out "$place/gone"
same "what was in the way" "$(cat "$place/gone.partial/file")" precious
must "${base[@]}" --overwrite --lr 1e-3
must remove "$out"
untouched "remove"
# A drive is what is there, or a new file whose name has a suffix: nothing is made where a drive is not mounted.
mkdir "$place/real"
socket=$(mktemp -d)/s
serve --root "$place"
must train --model "$good" --data "$data" --drive "$place/real" --out "$place/real-run" --steps 1 --batch 2 --seq-len 16 \
    --memory 512MiB --quiet
unmade="nvme0.*: nothing is there: mount the drive or mkdir the directory; a new file needs a name with a suffix, such as .*nvme0.volume"
for drive in "$place/nvme0" "$place/nvme0/" "unix:$socket:nvme0" "unix:$socket:$place/nvme0"; do
    merge base --drive "$drive" --out "$place/unmade"
    refused "train on $drive" "$unmade" "${merged[@]}"
    merge base --drive "$place/fresh.volume" "$drive" --out "$place/unmade"
    refused "train on it and another" "$unmade" "${merged[@]}"
    refused "import to $drive" "$unmade" import "$good" --tokenizer bytes --drive "$drive" --out "$place/unmade"
    refused "drive add $drive" "$unmade" drive add "$place/real-run" "$drive" --drive-speeds 1,1
    refused "drive move to $drive" "$unmade" drive move "$place/real-run" "$place/real=$drive"
    refused "drive bench $drive" "$unmade" drive bench "$drive"
    [ ! -e "$place/nvme0" ] && [ ! -e "$place/unmade" ] && [ ! -e "$place/fresh.volume" ] && ok "nothing is made" ||
        fail "something was made"
done
refused "bench disk" "$unmade" bench disk --drive "$place/nvme0" --size 16MiB
refused "bench update" "$unmade" bench update --drive "$place/nvme0" --params 1M
refused "verify" "nvme0: is not a directory; verify makes" verify --model "$good" --data "$data" \
    --drive "$place/nvme0" --batch 2 --seq-len 16
refused "a place that is not there" "nvme0 does not exist" train --resume "$place/real-run" --drive "$place/real=$place/nvme0"
[ ! -e "$place/nvme0" ] && ok "nothing is made by any of them" || fail "something was made"
for command in "train --data $data --drive $place/real --out $place/none --model" "import --drive $place/real --out $place/none" "plan --model"; do
    # shellcheck disable=SC2086
    refused "a run as a model: ${command%% *}" "real-run: is a run, not a model: 'longshore export .*/real-run --out DIR'" $command "$place/real-run"
done
must train --resume "$place/real-run" --quiet
# What older versions have made under such a name goes on.
cp "$(volume_in "$place/real")" "$place/old"
must train --resume "$place/real-run" --drive "$place/real=$place/old" --steps 2 --quiet
must train --resume "$place/real-run" --steps 3 --quiet
stop_serving

done_testing
