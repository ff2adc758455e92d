#!/usr/bin/env bash
# What a user reads: help, version, and where results and messages go.
. "$(dirname "$0")/lib.sh"

shows() { # NAME PATTERN: the last command printed it
    if grep -qE -- "$2" "$place/log"; then ok "$1"; else fail "$1: no '$2'"; fi
}

commands="train plan eval generate render verify import export inspect top report curves trace remove snapshot rollback snapshots drive bench machine doctor"
must --help
for command in $commands; do
    shows "the overview names $command" "^  $command +"
done
for command in $commands; do
    must $command --help
    shows "$command explains itself" "^usage: longshore $command"
    must help $command
done
must --version
shows "version: products" "oneDNN [0-9]+\."
shows "version: I/O" "thread pool"
shows "version: update" "^update:.* scalar"

must train --help
for flag in model init seed tokenizer data special-tokens val-data val-share drive drive-speeds snapshot-every keep keep-best stop-after-no-gain memory out resume steps batch seq-len \
    precision optimizer lr min-lr warmup schedule beta1 beta2 eps momentum weight-decay clip on-nonfinite products \
    shuffle threads epochs stop-at eval-every sample-every log-every tensorboard quiet dry-run chunk-size io speculate offload config \
    overwrite accept-step not-a-copy json; do
    shows "train has --$flag" "^  --$flag( |\$)"
done
shows "default of --beta2" "--beta2 X .*default 0.95"
shows "default of --precision" "--precision .*default bf16"
must verify --help
shows "verify has --json" "^  --json "
for command in verify import; do # what they do not take, they do not list
    must $command --help
    same "$command --resume is not listed" "$(grep -c "^  --resume " "$place/log")" 0
    refused "$command --resume" "--resume does not go with $command" $command --resume x
done
for bench in update disk compute; do
    must bench $bench --help
    shows "bench $bench" "^usage: longshore bench $bench"
done

for what in list add remove move bench; do
    must drive $what --help
    shows "drive $what" "^usage: longshore drive $what"
done

refused "command nearly known" "did you mean generate" genrate x
refused "a command's words the other way round" "unknown benchmark 'drive': 'longshore drive bench' measures" bench drive x
refused "another word for a flag" "unknown flag --tokens: here it is --max-tokens" generate x --tokens 4
refused "benchmark nearly known" "did you mean update" bench updat
refused "drive command nearly known" "did you mean bench" drive benhc
refused "a drive without a directory" "does not exist" drive bench "$place/none/none"
refused "one dash" "two dashes" train -steps 3
refused "another trainer's name" "unknown flag --learning_rate: here it is --lr\$" train --init gpt2-tiny --learning_rate=1e-4
refused "another trainer's flag for what needs none" "no accumulation is needed" train --gradient-accumulation-steps 4
refused "another trainer's name for this command" "here it is --temperature\$" generate x --temp 0.5
refused "llm.c's" "two dashes; if it is llm.c's, here it is --lr\$" train -l 3e-4
echo '{"per_device_train_batch_size": 4}' >"$place/theirs.json"
refused "another trainer's key" "theirs.json: unknown key per_device_train_batch_size: here it is batch," train --config "$place/theirs.json"
echo '{"gradient_checkpointing": true}' >"$place/theirs.json"
refused "a key of what is not set" "kept, moved to drives or computed again" train --config "$place/theirs.json"
refused "flag of another command" "unknown flag --steps" eval x --steps 3
refused "flag without value at the end" "--prompt needs a value" generate x --prompt
refused "a value for a flag that takes none" "--json takes no value" eval x --json=yes
refused "a second word" "unexpected word" inspect a b
"$LONGSHORE" inspect "$place/nothing" >"$place/out" 2>"$place/err"
same "nothing on stdout" "$(wc -c <"$place/out")" 0
same "one line on stderr" "$(grep -c '^longshore: ' "$place/err")" 1
"$LONGSHORE" --help >/dev/full 2>/dev/null
same "a full disk is noticed" $? 1

# A terminal redraws lines, if it can; no text of a model's or a stranger's moves its cursor.
model=$tests/data/numeric/gpt2
on_terminal() { TERM=$1 script -qec "'$LONGSHORE' $2" /dev/null </dev/null >"$place/log" 2>&1; }
escapes() { grep -c $'\e' "$place/log"; }
for kind in vt100 dumb; do
    on_terminal $kind "eval '$model/model' --data '$model/data.bin' --seq-len 16 --memory 512MiB"
    same "lines redrawn on $kind" "$(($(escapes) > 0))" "$([ $kind = vt100 ] && echo 1 || echo 0)"
    sed -i 's/.*\r\x1b\[K//' "$place/log" # as a terminal shows it: what was redrawn and erased is gone
    shows "the result on $kind" "^loss "
done
# a line that is longer than a terminal is wide ends with a whole field
TERM=vt100 script -qec "stty cols 60; '$LONGSHORE' train --init gpt2-tiny --data '$tests/e2e/lib.sh' --drive ram: \
    --memory 512MiB --batch 1 --seq-len 16 --steps 3 --out '$place/narrow'" /dev/null </dev/null 2>&1 |
    tr '\r' '\n' | sed -n 's/\x1b\[K.*//; /^step 3\//p' | tail -n 1 >"$place/log"
grep -qE '^step 3/3  loss [0-9.]+  [0-9.]+ m?s/step(  norm [0-9.e-]+(  lr [0-9.e-]+(  [0-9]+ tok/s)?)?)?$' "$place/log" && ok "whole fields" ||
    fail "not whole fields"
on_terminal vt100 "generate '$model/model' --tokenizer bytes --max-tokens 1 --prompt '$(printf 'a\e[1mb\xc2\x9b1mc')'"
shows "controls of a prompt" 'a.x1b\[1mb.u.9b.1mc'

done_testing
