#!/usr/bin/env bash
# A run that several processes share, with all their volumes in one directory: the commands see one run, also after one of
# the processes was killed and before anybody opens it again; and they say what they do with eight volumes of one drive.
. "$(dirname "$0")/lib.sh"
maker=${MAKE_RUN:-$(dirname "$LONGSHORE")/tool_make_run}
export OMP_NUM_THREADS=1
mkdir "$place"/d{1,2,3}
run=$place/run
volumes=()
for i in 0 1 2 3 4 5 6 7; do volumes+=("$place/d1/longshore-run-0c0ffee1.rank$i.volume"); done
# made N RUN STEPS DRIVE...: by N processes; what the first one ends with in $line, as digest has it
made() {
    printf '$ make_run --parts %s\n' "$*" >"$place/log"
    "$maker" --parts "$@" >"$place/out" 2>>"$place/log" </dev/null || fail "make_run --parts $*"
    line=$(sed -n '$s/^step \(.*\) digest /\1 /p' "$place/out")
}
gone() { ! kill -0 "$1" 2>/dev/null; }
in_directory() { find "$1" -name '*.volume*' | wc -l; }

# ---- as one process has it -------------------------------------------------------------------------------------------
for steps in 3 6; do
    "$maker" "$place/alone" $steps "$place/d2" >"$place/out" 2>"$place/log" || fail "alone"
    declare "alone$steps=$(sed -n '$s/^step \(.*\) digest /\1 /p' "$place/out")"
done
must remove "$place/alone"
made 8 "$run" 3 "${volumes[@]}"
# shellcheck disable=SC2154 # declared above
same "eight processes" "$line" "$alone3"
must inspect "$run" --digest --deep
same "one run" "$(digest)" "$alone3"
must drive list "$run"
same "a directory with eight volumes" "$(grep -c "^$place/d1: .* in $place/d1/longshore-run-0c0ffee1.rank[0-7].volume, placement 1, step 3, epoch 1$" "$place/log")" 8
# said RUN DIR: what inspect says of it, but for the names
said() { must inspect "$1" && sed -e "s|$1|RUN|g; s|$2|DIR|g" "$place/log"; }
"$maker" "$place/one" 3 "${volumes[@]/#"$place/d1"/"$place/d3"}" >"$place/out" 2>"$place/log" || fail "one"
same "as if one process had made it" "$(said "$run" "$place/d1")" "$(said "$place/one" "$place/d3")"
must remove "$place/one"
must inspect "$run" --json
same "eight volumes" "$(grep -o '"place":[0-7]' "$place/log" | sort -u | wc -l)" 8
must snapshot "$run" three
made 3 "$run" 4 "${volumes[@]}"
made 2 "$run" 6 "${volumes[@]}"
# shellcheck disable=SC2154 # declared above
same "other numbers of processes" "$line" "$alone6"
must export "$run" --out "$place/own"
same "tensors" "$("$COMPARE" --sum "$place/own")" "tensors 7 elements 147809"

# ---- killed, before anybody opens it ---------------------------------------------------------------------------------
kills=0
for _ in $(seq 12); do
    "$maker" --parts 4 "$run" 100000 "${volumes[@]}" >"$place/out" 2>"$place/log" </dev/null &
    background=$!
    await grep -q "^rank 3 is " "$place/out"
    await steps_made "$run" "$(wc -l <"$run/metrics.jsonl")"
    nap 1000 60000
    processes=("$background" $(awk '$1 == "rank" {print $4}' "$place/out"))
    kill -9 "${processes[RANDOM % 4]}" && kills=$((kills + 1))
    wait $background 2>/dev/null
    background=
    for process in "${processes[@]}"; do await gone "$process"; done
    LIMIT=60 run inspect "$run" --digest
    [ $rc = 0 ] && ok "one run after a kill" || fail "inspect --digest after a kill"
    step=$(sed -n '$s/^step \([0-9]*\) .*/\1/p' "$place/log")
    hint=$(cat "$run/committed")
    { [ "$hint" -le "$step" ] && [ "$step" -le $((hint + 1)) ]; } || fail "the hint is $hint at step $step"
done
same "kills" "$kills" 12
made 4 "$run" "$step" "${volumes[@]}"
same "one line a step" "$(metric "$run" step | cksum)" "$(seq "$step" | cksum)"
rm -rf "$place/alone"
"$maker" "$place/alone" "$step" "$place/d2" >"$place/out" 2>"$place/log" || fail "alone"
same "as alone" "$line" "$(sed -n '$s/^step \(.*\) digest /\1 /p' "$place/out")"
must remove "$place/alone"

# ---- other drives ----------------------------------------------------------------------------------------------------
must rollback "$run" three
must drive move "$run" "$place/d1=$place/d2"
same "said once" "$(grep -c "a part of snapshot three stays on $place/d1, which the run no longer uses" "$place/log")" 1
same "all of them moved" "$(in_directory "$place/d2")" 8
must drive list "$run"
same "numbered" "$(grep -c "^$place/d2: .* in $place/d2/longshore-run-[0-9a-f]*\(.rank[1-7]\)\?.volume, placement 2" "$place/log")" 8
must inspect "$run" --digest
same "the same bits" "$(digest)" "$alone3"
one=$(find "$place/d2" -name '*.rank3.volume')
must drive move "$run" "$one=$place/d3"
same "one of them moved" "$(in_directory "$place/d2") $(in_directory "$place/d3")" "7 1"
refused "a volume that is not there" "this run has no such drive" drive remove "$run" "$place/d2/longshore-run-0c0ffee1.rank9.volume"
refused "a drive that it has" "is a drive of this run already" drive add "$run" "$place/d2"
must drive remove "$run" "$place/d2"
same "all of them removed" "$(in_directory "$place/d2") $(in_directory "$place/d3")" "0 1"
refused "the last" "a run needs a drive" drive remove "$run" "$place/d3"
must inspect "$run" --digest
same "the same bits" "$(digest)" "$alone3"
made 4 "$run" 6 # of one volume: three have none
same "and on" "$line" "$alone6"
must rollback "$run" three
must remove "$run"
[ -z "$(find "$place" -name '*.volume*')" ] && [ ! -e "$run" ] && ok "nothing is left" || fail "something is left"

# ---- in RUN itself ---------------------------------------------------------------------------------------------------
volumes=("${volumes[@]/#"$place/d1"/"$run"}")
made 8 "$run" 3 "${volumes[@]}"
must inspect "$run" --digest
same "in RUN itself" "$(digest)" "$alone3"
must remove "$run"
[ ! -e "$run" ] && ok "nothing is left" || fail "something is left"
done_testing
