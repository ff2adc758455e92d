#!/usr/bin/env bash
# State of a tied table that is read ahead, updated by the processors and stored beside the next forward pass: the same
# bits; reads and writes that fail in the middle of it, kills, a new value that is not finite, a limit that is passed.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 5 128 4 128 20000
skewed_tokens "$place/tokens.bin" 20000
common=(--init "$place/config.json" --seed 7 --data "$place/tokens.bin" --shuffle off --steps 4 --batch 10 --seq-len 128
        --lr 3e-3 --warmup 1 --clip 100 --speculate on --quiet --io threads)
mkdir "$place"/d{1,2,3}
two=("$place/d1" "$place/d2")
run train "${common[@]}" --out "$place/none" --drive "${two[@]}" --dry-run
most=$(most_memory)

# read_ahead RUN: in how many steps state crossed the link
read_ahead() { metric "$1" link_state | awk '$1 > 0 { n++ } END { print n + 0 }'; }
# way NAME ARGS...: in memory, then with the state on two drives, in two budgets
way() {
    local name=$1 wanted tenths
    shift
    rm -rf "$place/whole" "$place/run" "$place"/d[12]/*
    must train "${common[@]}" "$@" --drive ram: --memory 1GiB --out "$place/whole"
    wanted=$(digest)
    for tenths in 6 10; do
        rm -rf "$place/run" "$place"/d[12]/*
        must train "${common[@]}" "$@" --drive "${two[@]}" --memory $((most * tenths / 10)) --out "$place/run"
        same "$name, $tenths tenths: digest" "$(digest)" "$wanted"
        [ "$(read_ahead "$place/run")" -ge 3 ] && ok "$name: read ahead" || fail "$name, $tenths tenths: nothing is read ahead"
    done
}
way "8-bit moments" --moments 8bit
way "bf16 gradients" --grad-precision bf16
way "SGD" --optimizer sgd
way "in fp32" --precision fp32
way "all kept"
wanted=$(digest)
same "in memory, nothing is" "$(read_ahead "$place/whole")" 0

# ---- slow drives, and a table whose pages are only lent: none may be fetched again before it is stored ----
merge common --batch 8 --offload off --steps 6
must train "${merged[@]}" --drive ram: --memory 1GiB --out "$place/one"
one=$(digest)
mkdir "$place/d4"
for ms in 90; do
    must train "${merged[@]}" --drive "$place/d4" --memory $((most * 378 / 1000)) --out "$place/one" --overwrite --stop-at 1
    FAIL_IO="slow 0 $ms d4/" LD_PRELOAD=$FAIL_IO_SO must train --resume "$place/one" --quiet
    same "slow, $ms ms: digest" "$(digest)" "$one"
    [ "$(read_ahead "$place/one")" -ge 3 ] && ok "slow: read ahead" || fail "slow, $ms ms: nothing is read ahead"
done
must remove "$place/one"

# ---- a new value that is not finite ----
# In the row of an entry that the batch does not look up, in a column that is -1 for the head: only its decay meets it.
must export "$place/run" --out "$place/model" --dtype bf16
perl -e 'use strict; my ($model, $tokens) = @ARGV; my ($in, $header);
    open $in, "<:raw", $tokens; seek $in, 1024, 0; read $in, my $ids, 2 * 10 * 128;
    my %seen = map { $_ => 1 } unpack "v*", $ids; my ($row) = grep { !$seen{$_} } 0 .. 511;
    open my $out, "+<:raw", $model; read $out, my $size, 8; $size = unpack "Q<", $size; read $out, $header, $size;
    sub put { my ($name, $at, $value) = @_; $header =~ /$name":\{[^}]*offsets":\[(\d+)/ or die $name;
              seek $out, 8 + $size + $1 + 2 * $at, 0; print $out pack "v", $value }
    put("wte.weight", $row * 128 + 5, 0x7cf0); put("ln_f.weight", 5, 0); put("ln_f.bias", 5, 0xbf80)' \
    "$place/model/model.safetensors" "$place/tokens.bin"
merge common --lr 1000 --weight-decay 1 --clip 0
merged=("${merged[@]/--init/--model}")
merged=("${merged[@]/config.json/model}")

expect_failure 1 "a new value that is not finite" \
    "step 1 is refused: a new value of tensor .*wte.weight.* is not finite; the state stays at step 0" \
    train "${merged[@]}" --drive "$place/d3" --memory $((most * 9 / 10)) --out "$place/huge"
must inspect "$place/huge" --digest --deep
same "step 0 stays" "$(digest | cut -d ' ' -f 1)" 0
must remove "$place/huge"

# ---- a limit that is passed while state is read ahead ----
norm=$(metric "$place/run" grad_norm | sort -g | sed -n 2p)
merge common --clip "$norm"
must train "${merged[@]}" --drive ram: --memory 1GiB --out "$place/clips"
clipped=$(digest)
must train "${merged[@]}" --drive "${two[@]}" --memory $((most * 6 / 10)) --out "$place/clips" --overwrite
same "clips now and then: digest" "$(digest)" "$clipped"
must remove "$place/clips"

# ---- faults and kills on the way ----
rm -rf "$place/run" "$place"/d[12]/*
must train "${common[@]}" --drive "${two[@]}" --memory $((most * 6 / 10)) --out "$place/run" --stop-at 1
cp -r "$place/run" "$place/kept.run" && cp -r --sparse=always "$place"/d{1,2} "$place/kept.run/"
put_back() {
    rm -rf "$place/run" "$place"/d{1,2}
    cp -r "$place/kept.run" "$place/run" && mv "$place"/run/d{1,2} "$place/"
}
seen=0
for fault in read\ {40,80,120,160,200}\ 5\ d1/ write\ {4,12,24,40}\ 5\ d2/; do
    FAIL_IO=$fault LD_PRELOAD=$FAIL_IO_SO run train --resume "$place/run" --quiet
    if [ $rc != 0 ]; then
        seen=$((seen + 1))
        failed_on "$fault" "Input/output error"
    fi
    run train --resume "$place/run" --quiet
    same "$fault: digest" "$(digest)" "$wanted"
    put_back
done
[ $seen -ge 6 ] && ok "$seen faults" || fail "only $seen faults came"
kill_and_resume "$place/killed" 8 700 "${common[@]}" --drive "$place/d3" --memory $((most * 6 / 10))
same "killed: exit code" $rc 0
same "killed: digest" "$(digest)" "$wanted"
done_testing
