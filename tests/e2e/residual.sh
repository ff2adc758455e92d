#!/usr/bin/env bash
# What compression leaves out of the gradients: saved on the drives, it survives any crash to the bit; on the host, it
# survives a clean stop, and its loss at a crash is said aloud.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
steps=${STEPS:-30}
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps "$steps" --batch 8 --seq-len 64 --lr 2e-3
        --memory 512MiB --log-every 10 --compress top1% --compress-after 3)
mkdir "$place"/d{1,2}

# A run without an interruption, and how long it takes.
declare -A wanted
for residual in host saved; do
    start=$(date +%s%N)
    must train "${common[@]}" --residual $residual --drive ram: --out "$place/whole-$residual"
    limit=$((($(date +%s%N) - start) / 1000000 / 3 + 300))
    wanted[$residual]=$(digest)
done

# Of the residual saved, 2 bytes an element come and 2 go, up to the last tensor of each block: tables of 600 and 64
# rows, two layers whose small tensors begin at multiples of 256, the last norm.
elems=$(((600 + 64) * 96 + 2 * (12 * 96 * 96 + 7 * 256 + 512 + 96) + 256 + 96))
same "saved: bytes on the link" "$(metric "$place/whole-saved" link_state | tail -n 1)" $((4 * elems))
same "host: bytes on the link" "$(metric "$place/whole-host" link_state | tail -n 1)" 0

# ---- kill -9, again and again ----
run=$place/killed
kill_and_resume "$run" 12 "$limit" "${common[@]}" --residual saved --drive "$place/d1" "$place/d2"
same "saved: exit code after $kills kills" $rc 0
run inspect "$run" --digest --deep
same "saved: digest after $kills kills" "$(digest)" "${wanted[saved]}"
grep -q "is lost" "$place/log" && fail "saved: something is said to be lost" || ok "saved: nothing is lost"

# ---- clean stops ----
for residual in host saved; do
    run=$place/stopped-$residual
    must train "${common[@]}" --residual $residual --drive "$place/d1/$residual.volume" --out "$run" --stop-at 2
    for stop in 3 5 11 "$steps"; do
        must train --resume "$run" --stop-at "$stop"
        grep -q "is lost" "$place/log" && fail "$residual: lost at step $stop" || ok "$residual: kept at step $stop"
    done
    same "$residual: digest after clean stops" "$(digest)" "${wanted[$residual]}"
done

# ---- snapshots, and other drives ----
run=$place/back
must train "${common[@]}" --drive "$place/d1/back.volume" --out "$run" --snapshot-every 5
must rollback "$run" step-000010
must train --resume "$run" --stop-at 15
grep -q "is lost" "$place/log" && fail "lost after going back" || ok "going back takes it along"
mkdir "$place/d3"
must drive add "$run" "$place/d3"
must train --resume "$run"
grep -q "is lost" "$place/log" && fail "lost with the drives" || ok "other drives change nothing"
same "digest after going back and moving" "$(digest)" "${wanted[host]}"

# ---- a drive behind a connection, whose far side dies again and again ----
printf '#!/bin/sh\nexec "%s" drive serve --stdio\n' "$LONGSHORE" >"$place/rsh"
chmod +x "$place/rsh"
export LONGSHORE_RSH=$place/rsh
for residual in host saved; do
    run=$place/far-$residual kills=0
    "$LONGSHORE" train "${common[@]}" --residual $residual --drive "ssh://far$place/d1/far-$residual.volume" \
        "$place/d2/near-$residual.volume" --out "$run" >"$place/log" 2>&1 </dev/null &
    background=$!
    while kill -0 $background 2>/dev/null && [ $kills -lt 6 ]; do
        nap 50000 $((limit * 1000))
        [ -s "$run/metrics.jsonl" ] || continue
        far=$(pgrep -P $background -f "drive serve --stdio") && kill -9 $far && kills=$((kills + 1))
    done
    wait $background
    same "far, $residual: exit code after $kills kills" $? 0
    background=
    same "far, $residual: digest after $kills kills" "$(digest)" "${wanted[$residual]}"
    grep -q "is lost" "$place/log" && fail "far, $residual: something is said to be lost" || ok "far, $residual: kept"
done

# ---- what stops a run and is no crash, with the residual on the host ----
run=$place/failing
must train "${common[@]}" --drive "$place/d1/failing.volume" --out "$run" --io threads --stop-at 5
for fault in "write 60 28 d1/failing.volume" "read 60 5 d1/failing.volume"; do
    FAIL_IO=$fault LD_PRELOAD=$FAIL_IO_SO run train --resume "$run" --io threads
    same "$fault: exit code" $rc 1
    must train --resume "$run" --stop-at $((${at:=5} + 3))
    at=$((at + 3))
    grep -q "is lost" "$place/log" && fail "$fault: lost" || ok "$fault: kept"
done
if [ "$(id -u)" = 0 ] && mkdir "$place/tiny" && mount -t tmpfs -o size=8M none "$place/tiny" 2>/dev/null; then
    mv "$run" "$place/tiny/run"
    dd if=/dev/zero of="$place/tiny/fill" bs=16k 2>/dev/null
    truncate -s -32K "$place/tiny/fill" # for the metrics, not for another residual
    must train --resume "$place/tiny/run" --stop-at 15
    rm "$place/tiny/fill"
    mv "$place/tiny/run" "$run"
    umount "$place/tiny"
else
    echo "no small file system may be mounted: a full one is left out"
fi
must train --resume "$run"
grep -q "is lost" "$place/log" && fail "no room for two residuals: lost" || ok "no room for two residuals: kept"
same "digest after what is no crash" "$(digest)" "${wanted[host]}"

# ---- a crash, with the residual on the host ----
run=$place/crashed
must train "${common[@]}" --drive "$place/d2/crashed.volume" --out "$run" --stop-at 10
cp "$run/residual-host" "$place/at-10"
"$LONGSHORE" train --resume "$run" >"$place/log" 2>&1 </dev/null &
background=$!
await steps_made "$run" 11
kill -9 $background
wait $background 2>/dev/null
background=
cp "$place/at-10" "$run/residual-host" # stale
must train --resume "$run"
if [ "$(metric "$run" step | tail -n 1)" = "$steps" ] && grep -q "the residual of compression is lost" "$place/log"; then
    ok "the loss is said"
else
    grep -q "the run is finished" "$place/log" && echo "the kill came after the last step" || fail "no word of the loss"
fi
grep -q "the residual of compression is lost" "$run/run.json" && ok "and recorded" || fail "the loss is not recorded"

# ---- a gradient that is not finite, skipped: as if its batch had never been there ----
# The norms of this model divide by next to nothing where a sequence begins with a token whose embedding is zero: a
# finite loss, gradients beyond any number. The text without that batch must give the same weights.
cat >"$place/llama.json" <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
 "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
 "vocab_size": 300, "hidden_act": "silu", "rms_norm_eps": 1e-37, "rope_theta": 10000.0, "tie_word_embeddings": false}
END
must train --init "$place/llama.json" --data "$place/text" --steps 1 --batch 4 --seq-len 64 --memory 512MiB \
    --drive "$place/d1/llama.volume" --out "$place/llama"
must export "$place/llama" --out "$place/odd"
header=$(od -An -tu8 -N8 "$place/odd/model.safetensors" | tr -d ' ')
at=$(head -c $((8 + header)) "$place/odd/model.safetensors" | grep -ao 'embed_tokens.weight": *{[^}]*}' |
    sed -E 's/.*data_offsets": *\[([0-9]+),.*/\1/')
width=$((2 * 64)) # bytes of a row in bf16
dd if=/dev/zero of="$place/odd/model.safetensors" bs=1 seek=$((8 + header + at + 126 * width)) count=$width conv=notrunc \
    status=none # that of '~'
tr '\n' ' ' <"$place/text" | head -c 2304 >"$place/even" # 9 batches of 256 bytes, the last one cut short
{
    head -c $((3 * 256 + 64)) "$place/even" # the fourth batch twice, once with a '~' where its second sequence begins
    printf '~'
    tail -c +$((3 * 256 + 66)) "$place/even" | head -c 191
    tail -c +$((3 * 256 + 1)) "$place/even"
} >"$place/uneven"
odd=(--model "$place/odd" --batch 4 --seq-len 64 --shuffle off --schedule constant --warmup 0 --lr 0.05 --optimizer sgd
     --momentum 0.9 --on-nonfinite skip --memory 512MiB --compress top5% --compress-after 2)
for how in "--residual host" "--residual saved" "--error-feedback off"; do
    read -ra flags <<<"$how"
    must train "${odd[@]}" "${flags[@]}" --data "$place/even" --steps 8 --drive "$place/d1/even.volume" --out "$place/even-run"
    must train "${odd[@]}" "${flags[@]}" --data "$place/uneven" --steps 9 --drive "$place/d1/uneven.volume" "$place/d2/uneven.volume" \
        --drive-speeds 2,1 --speculate on --out "$place/uneven-run" --stop-at 4
    grep -q "step 4 is skipped: its gradient norm is not finite" "$place/log" && ok "$how: skipped" ||
        fail "$how: step 4 is not skipped for its gradient"
    documented RUN/metrics.jsonl "$place/uneven-run/metrics.jsonl"
    must train --resume "$place/uneven-run"
    grep -q "is lost" "$place/log" && fail "$how: something is said to be lost" || ok "$how: nothing is lost"
    must export "$place/even-run" --out "$place/even-out"
    must export "$place/uneven-run" --out "$place/uneven-out"
    cmp -s "$place"/{even,uneven}-out/model.safetensors && ok "$how: the same weights" || fail "$how: other weights"
    must train "${odd[@]}" "${flags[@]}" --data "$place/uneven" --steps 9 --speculate off --drive ram: --out "$place/one-go"
    in_one_go=$(digest)
    must inspect "$place/uneven-run" --digest --deep
    same "$how: in one go, and with a stop behind it" "$(digest)" "$in_one_go"
    must remove "$place/even-run"
    must remove "$place/uneven-run"
    rm -rf "$place"/{even,uneven}-out "$place/one-go"
done

# ---- a damaged file is refused, and said where ----
run=$place/damaged
must train "${common[@]}" --drive "$place/d2/damaged.volume" --out "$run" --stop-at 10
cp "$run/residual-host" "$place/good"
for at in 70 5000 100000; do
    cp "$place/good" "$run/residual-host"
    printf '\x5a' | dd of="$run/residual-host" bs=1 seek=$at conv=notrunc status=none
    expect_failure 1 "a flipped byte at $at" "residual-host: is damaged at offset" train --resume "$run"
done
head -c 9000 "$place/good" >"$run/residual-host"
expect_failure 1 "a file cut short" "residual-host.*cut" train --resume "$run"
rm "$run/residual-host"
must train --resume "$run" --stop-at 12
grep -q "is lost" "$place/log" && ok "without the file, it is lost" || fail "without the file: not a word"

# ---- what belongs to the run's identity ----
for change in "--compress top2%" "--compress-after 4" "--error-feedback off" "--residual saved" "--grad-precision bf16"; do
    read -ra flags <<<"$change"
    refused "$change" "identity" train --resume "$run" "${flags[@]}"
done

# ---- what was removed ----
refused "values in fp32" "unknown flag --compress-values: it was removed: the elements that are sent are bf16" \
    train "${common[@]}" --compress-values fp32 --drive ram: --out "$place/none"
refused "a variance that stays" "unknown flag --compress-variance: it was removed: every step changes the variance" \
    train "${common[@]}" --compress-variance frozen --drive ram: --out "$place/none"
# The weights of a run that an earlier version made so are there for whoever reads them.
perl -0pi -e 's/,\s*"checksum": *"[0-9a-f]*"//' "$run/run.json"
cp "$run/run.json" "$place/run.json"
for what in "compress-values fp32" "compress-variance frozen"; do
    sed -E "s/(\"error-feedback\")/\"${what% *}\": \"${what#* }\", \1/" "$place/run.json" >"$run/run.json"
    refused "a run with $what" "the run uses $what, which this version no longer has: continue with the version that made the run" \
        train --resume "$run"
    must drive list "$run"
    must export "$run" --out "$place/exported"
    rm -rf "$place/exported"
done
sed -E 's/("error-feedback")/"compress-values": "bf16", "compress-variance": "live", \1/' "$place/run.json" >"$run/run.json"
must train --resume "$run"
done_testing
