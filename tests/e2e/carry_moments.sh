#!/usr/bin/env bash
# export --moments and import: a run that begins with another's moments makes the step that the other would have made.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 32 2 32 300
printf 'a ship waits, and meets a pilot %.0s' {1..100} >"$place/text" # of 32 bytes: all sequences are one
mkdir "$place/d"
how=(--data "$place/text" --batch 2 --seq-len 32 --shuffle off --precision fp32 --lr 1e-3 --schedule constant --warmup 0
     --memory 512MiB --quiet)
export_of() { must export "$1" --out "$2" --dtype fp32 --moments --quiet; }
for optimizer in "adamw" "adam --beta2 0.9" "sgd --momentum 0.9" "sgd" "adagrad" "adamw --moments 8bit"; do
    name=${optimizer// /_}
    # shellcheck disable=SC2086
    must train --init "$place/config.json" "${how[@]}" --optimizer $optimizer --drive "$place/d/$name.volume" --out "$place/$name" \
        --steps 3 --stop-at 2
    export_of "$place/$name" "$place/$name.two"
    must train --resume "$place/$name" --quiet
    export_of "$place/$name" "$place/$name.three"
    # shellcheck disable=SC2086
    must import "$place/$name.two" "${how[@]}" --optimizer $optimizer --drive "$place/d/$name.other.volume" --out "$place/$name.other" --steps 1
    export_of "$place/$name.other" "$place/$name.again"
    if [ "$optimizer" != "adamw --moments 8bit" ]; then # these are rounded once more
        diff -r "$place/$name.two" "$place/$name.again" >"$place/log" 2>&1 && ok "$optimizer: what came is there" || fail "$optimizer: other files"
    fi
    must train --resume "$place/$name.other"
    export_of "$place/$name.other" "$place/$name.next"
    tolerance=0
    [ "$optimizer" != "adamw --moments 8bit" ] || tolerance=1e-4
    "$COMPARE" "$place/$name.three" "$place/$name.next" "$tolerance" >"$place/log" 2>&1 && ok "$optimizer: the same step" || fail "$optimizer: another step"
    cmp -s "$place/$name.three/optimizer/optimizer.json" "$place/$name.next/optimizer/optimizer.json" &&
        ok "$optimizer: updates are counted on" || fail "$optimizer: updates are counted anew"
done
must train --model "$place/adamw.two" "${how[@]}" --drive ram: --out "$place/direct" --steps 1
same "train begins with them, too" "$(digest | cut -d " " -f 2)" "$(must inspect "$place/adamw.other" --digest && grep -o '[0-9a-f]\{32\}' "$place/log")"

refused "moments of another optimizer" "moments of adamw, not of sgd" import "$place/adamw.two" --optimizer sgd --drive "$place/d/x.volume" --out "$place/x"
refused "momentum that the run has no room for" "sgd with momentum: train with momentum" import "$place/sgd_--momentum_0.9.two" --optimizer sgd --drive "$place/d/x.volume" --out "$place/x"
refused "no momentum where there is to be one" "sgd without momentum: train with momentum 0" import "$place/sgd.two" --optimizer sgd --momentum 0.9 \
    --drive "$place/d/x.volume" --out "$place/x"
refused "updates without moments" "updates-before needs" train --init "$place/config.json" "${how[@]}" --updates-before 2 --drive ram: --out "$place/x"
broken() { # NAME PATTERN: as $place/broken is now
    refused "$1" "$2" import "$place/broken" --drive "$place/d/x.volume" --out "$place/x"
    [ ! -e "$place/x/run.json" ] && [ ! -e "$place/d/x.volume" ] && ok "$1: nothing is left" || fail "$1: something is left"
    rm -r "$place/broken"
    cp -r "$place/adamw.two" "$place/broken"
}
said=$place/broken/optimizer/optimizer.json
cp -r "$place/adamw.two" "$place/broken"
for text in '{"optimizer": "adamw"}' '{"optimizer": "adamw", "updates": -1}' '{"optimizer": "adamw", "updates": "2"}' '{"updates": 2}' '{"optimizer": 3, "updates": 2}'; do
    echo "$text" >"$said"
    broken "$text" "optimizer.json: does not say which"
done
echo '{"optimizer": "adamw", "updates": 0}' >"$said" # as a run of PyTorch's says before its first step
must import "$place/broken" "${how[@]}" --drive "$place/d/none.volume" --out "$place/none"
echo '{"optimizer": "adamw", "updates": 2, "fewer": {"transformer.wte.weight": 1}}' >"$said"
broken "counts that differ" "some tensors have had fewer updates"
echo '{' >"$said"
broken "half a file" "optimizer.json"
rm -r "$place/broken/optimizer/exp_avg_sq"
broken "a moment is missing" "optimizer/exp_avg_sq"
rm -r "$place/broken/optimizer/exp_avg"
cp -r "$place/sgd.two/optimizer" "$place/broken/optimizer/exp_avg"
broken "no tensors" "optimizer/exp_avg"
# what a killed export of another run has left is no hindrance
mkdir -p "$place/late.partial/optimizer"
cp -r "$place/adagrad.two/optimizer/sum" "$place/late.partial/optimizer"
export_of "$place/adamw" "$place/late"
[ -e "$place/late/optimizer/exp_avg" ] && [ ! -e "$place/late/optimizer/sum" ] && ok "of this run alone" || fail "not of this run alone"
refused "no second export into it" "exists already" export "$place/adamw" --out "$place/late" --moments

done_testing
