#!/usr/bin/env bash
# Moments of 8 bits: the same bits wherever the state lies, after kills, and close to what fp32 moments learn.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 3 128 4 64 1500
some_text "$place/text" 400
steps=6
common=(--init "$place/config.json" --seed 7 --data "$place/text" --steps $steps --batch 20 --seq-len 64 --lr 3e-3
        --warmup 1 --log-every 1)
d1=$place/d1 all=("$place"/d{1,2,3})

way() { # name, flags: a run of its own; its digest in $found
    local name=$1
    shift
    rm -rf "$place/run" "${all[@]}"
    mkdir "${all[@]}"
    case " $* " in *" --memory "*) ;; *) set -- --memory 512MiB "$@" ;; esac
    run train "${common[@]}" --out "$place/run" "$@"
    found=$(digest)
    [ $rc = 0 ] || fail "$name: exit code $rc"
}
agrees() {
    way "$@"
    same "$1" "$found" "$wanted"
}

way "fp32" --drive ram: --clip 100
fp32=$found fp32_loss=$(metric "$place/run" loss | tail -n 1)
how=(--moments 8bit --clip 100)
way "in memory" --drive ram: "${how[@]}"
wanted=$found
norm=$(metric "$place/run" grad_norm | sort -g | sed -n 3p)
loss=$(metric "$place/run" loss | tail -n 1)
[ "$wanted" != "$fp32" ] && ok "other bits than fp32" || fail "8bit moments change nothing"
awk -v a="$loss" -v b="$fp32_loss" 'BEGIN {exit !(a / b < 1.02 && a / b > 0.98)}' &&
    ok "the loss is close" || fail "loss $loss is far from $fp32_loss of fp32"
agrees "one drive" --drive "$d1" "${how[@]}"
agrees "three drives" --drive "${all[@]}" "${how[@]}"
agrees "two unequal drives" --drive "$d1" "$place/d2" --drive-speeds 3,1 "${how[@]}"
agrees "chunks of one segment" --drive "$d1" "$place/d2" --chunk-size 384KiB "${how[@]}"
agrees "large chunks" --drive "$d1" --chunk-size 24MiB --io threads "${how[@]}"
agrees "speculating" --drive "$d1" --speculate on "${how[@]}"
least=$(minimum train "${common[@]}" --out "$place/none" --drive "${all[@]}" "${how[@]}")
agrees "the least budget, ${least:-not named}" --drive "${all[@]}" "${how[@]}" --memory "${least:-1GiB}"

# With what else changes the path of a step.
for extra in "--compress top2%" "--grad-precision bf16"; do
    # shellcheck disable=SC2206
    with=(--moments 8bit $extra)
    way "$extra in memory" --drive ram: "${with[@]}"
    whole=$found
    way "$extra on two drives" --drive "$d1" "$place/d2" "${with[@]}"
    same "$extra on two drives" "$found" "$whole"
done
mkdir -m 700 "$place/socket"
mkdir "$place/far"
"$LONGSHORE" drive serve --listen "$place/socket/s" --root "$place/far" >/dev/null 2>&1 &
background=$!
await test -S "$place/socket/s"
agrees "behind a socket" --drive "unix:$place/socket/s:v.volume" "${how[@]}"
kill $background
wait $background 2>/dev/null
background=
agrees "one drive" --drive "$d1" "${how[@]}"

# inspect names them; every byte is as the tables say.
must inspect "$place/run"
grep -qE '^ +moments +8bit' "$place/log" && ok "inspect names them" || fail "inspect does not name the moments"
must inspect "$place/run" --digest --deep
same "every byte" "$(digest)" "$wanted"

# Clipping in some of the steps: speculation fails and UPDATE runs again from the committed codes.
way "clipped in memory" --drive ram: --moments 8bit --clip "$norm" --speculate off
wanted=$found
agrees "clipped, speculating" --drive "$d1" "$place/d2" --moments 8bit --clip "$norm" --speculate on

for optimizer in adam sgd adagrad; do
    how=(--optimizer $optimizer --moments 8bit)
    [ $optimizer != sgd ] || how+=(--momentum 0.9)
    way "$optimizer in memory" --drive ram: "${how[@]}"
    wanted=$found
    agrees "$optimizer on two drives" --drive "$d1" "$place/d2" "${how[@]}"
done

# kill -9 at random instants, again and again.
rm -rf "$place/run" "${all[@]}"
killable=(--init "$place/config.json" --seed 7 --data "$place/text" --steps 30 --batch 20 --seq-len 64 --lr 3e-3
          --memory 512MiB)
must train "${killable[@]}" --moments 8bit --drive ram: --out "$place/whole"
wanted=$(digest)
mkdir "${all[@]}"
kill_and_resume "$place/run" 8 500 "${killable[@]}" --moments 8bit --drive "$d1" "$place/d2"
same "exit code after $kills kills" $rc 0
must inspect "$place/run" --digest --deep
same "digest after $kills kills" "$(digest)" "$wanted"

# Part of the identity: it cannot change, and other volumes are not taken for it.
refused "another kind of moments" "identity" train --resume "$place/run" --moments fp32
refused "an unknown kind" "fp32.*8bit" train "${killable[@]}" --moments 4bit --drive ram: --out "$place/none"

# Export and import: parameters travel, moments begin anew.
must export "$place/run" --out "$place/model"
must import "$place/model" --drive "$place/d3" --out "$place/imported" --moments 8bit --memory 512MiB
must inspect "$place/imported"
grep -qE '^ +moments +8bit' "$place/log" && ok "imported" || fail "the import does not say 8bit"
must export "$place/imported" --out "$place/again"
"$COMPARE" "$place/model" "$place/again" 0 >"$place/log" 2>&1 &&
    ok "the same parameters" || fail "the parameters differ"

must verify --init "$place/config.json" --data "$place/text" --drive "$d1" --steps 2 --batch 4 --seq-len 32 --moments 8bit
grep -q "the same bits everywhere" "$place/log" && ok "verify" || fail "verify does not say: the same bits"
done_testing
