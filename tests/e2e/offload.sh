#!/usr/bin/env bash
# Inner activations that go to the drives and come back instead of being computed again: the same bits; reads and writes
# that fail, and far sides that die, in the middle of it; and a drive that is too slow for them is spared by a new plan.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 6 256 4 256 600
some_text "$place/text" 300
steps=8
# 6 layers and a unit of 1,024 rows, at least 9 widths of 2 bytes in each; those that left last are in memory still
least=$((4 * 1024 * 256 * 9 * 2))
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps $steps --batch 8 --seq-len 128 --lr 2e-3
        --clip 0 --speculate on --offload on --quiet --io threads)
mkdir "$place"/d{1,2} "$place/far"

# budget DRIVE...: the least one, in MiB, in which inner activations go there; into $budget
budget() {
    local least
    least=$(minimum train "${common[@]}" --out "$place/none" --drive "$@")
    for budget in $(seq $((($(bytes "$least") >> 20) + 16)) 300); do # above a ring's
        run train "${common[@]}" --out "$place/none" --drive "$@" --memory "${budget}MiB" --dry-run
        grep -q "kept for 0 of 6 .*stored on the drives for [1-9]" "$place/log" && return
    done
    fail "no budget in which inner activations go to $*"
}
# came_back RUN: how many steps had them back from the drives; the last step's line has no forward pass in it
came_back() { metric "$1" link_activations | awk -v least=$least '$1 >= least { n++ } END { print n + 0 }'; }

must train "${common[@]}" --drive ram: --memory 1GiB --out "$place/whole"
wanted=$(digest)

# ---- they go there, and come back ----
budget "$place/d1"
merge common --offload off
must train "${merged[@]}" --drive "$place/d1" --memory "${budget}MiB" --out "$place/again"
same "computed again: digest" "$(digest)" "$wanted"
same "not stored" "$(came_back "$place/again")" 0
run train --resume "$place/again" --offload on --steps 9 # its volume has no room for them
same "no room: exit code" $rc 0
same "no room: not stored" "$(came_back "$place/again")" 0
must remove "$place/again"
must train "${common[@]}" --drive "$place/d1" --memory "${budget}MiB" --out "$place/stored"
same "stored: digest" "$(digest)" "$wanted"
same "all steps store them" "$(came_back "$place/stored")" $steps
must remove "$place/stored"
for more in 10 27; do # some are in memory
    must train "${common[@]}" --drive "$place/d1" --memory $((budget + more))MiB --out "$place/some"
    same "some stored: digest" "$(digest)" "$wanted"
    same "some stored: no replay" "$(metric "$place/some" replays | sort -u)" 0
    must remove "$place/some"
done
# Where products read fp32, what is stored is narrowed first; in fp32, it is stored as it is, of half as many.
kept=("${common[@]}")
for way in "--products fp32" "--precision fp32"; do
    # shellcheck disable=SC2086
    common=("${kept[@]}" $way)
    must train "${common[@]}" --drive ram: --memory 1GiB --out "$place/whole" --overwrite --stop-at 2
    there=$(digest)
    budget "$place/d1"
    must train "${common[@]}" --drive "$place/d1" --memory "${budget}MiB" --out "$place/wide" --stop-at 2
    same "$way: digest" "$(digest)" "$there"
    same "$way: it stores them" "$(came_back "$place/wide")" 2
    must remove "$place/wide"
done
common=("${kept[@]}")
two=("$place/d1" "$place/d2")
budget "${two[@]}"
must train "${common[@]}" --drive "${two[@]}" --memory "${budget}MiB" --out "$place/run" --stop-at 2
cp -r "$place/run" "$place/kept.run" && cp -r --sparse=always "$place"/d{1,2} "$place/kept.run/"

# ---- faults on the way ----
for fault in "read 30 5 d2/" "read 90 5 d1/" "write 3 5 d1/" "write 90 28 d2/"; do
    FAIL_IO=$fault LD_PRELOAD=$FAIL_IO_SO run train --resume "$place/run" --quiet
    failed_on "$fault" "Input/output error|No space left"
    run train --resume "$place/run" --quiet
    same "$fault: digest" "$(digest)" "$wanted"
    rm -rf "$place/run" "$place"/d{1,2}
    cp -r "$place/kept.run" "$place/run" && mv "$place"/run/d{1,2} "$place/"
done

# ---- a drive that is too slow ----
# What moves is the plan's. Where its rates were assumed, and the first steps show that the drive is much slower, another
# plan spares it.
merge common --offload auto --steps 30
auto=("${merged[@]}")
must train "${auto[@]}" --drive ram: --memory 1GiB --out "$place/whole" --overwrite
there=$(digest)
mkdir "$place/d3"
for budget in $(seq "$budget" 4 150); do # in which the plan moves some by itself
    run train "${auto[@]}" --out "$place/none" --drive "$place/d3" --memory "${budget}MiB" --dry-run
    ! grep -q "stored on the drives for [1-9]" "$place/log" || break
done
must train "${auto[@]}" --drive "$place/d3" --memory "${budget}MiB" --out "$place/slow" --stop-at 3
FAIL_IO="slow 0 10 d3/" LD_PRELOAD=$FAIL_IO_SO must train --resume "$place/slow" --quiet
same "slow: digest" "$(digest)" "$there"
same "slow: planned again" "$(grep -cE 'planned again, since .*/d3/.* takes [0-9.]+ times as long as planned' "$place/log")" 1
moved=($(metric "$place/slow" link_activations)) # after 6 steps of this start, and the one under way
same "slow: until then as planned" "$(printf '%s\n' "${moved[@]:4:5}" | sort -u | wc -l)" 1
[ "${moved[28]}" -lt "${moved[8]}" ] && ok "a slow drive is spared" || fail "a slow drive is not spared: ${moved[*]}"

# ---- a far side that dies ----
cat >"$place/rsh" <<RSH
#!/bin/sh
shift
exec "$LONGSHORE" drive serve --stdio
RSH
chmod +x "$place/rsh"
export LONGSHORE_RSH="$place/rsh"
budget "ssh://far$place/far/k.volume"
kill_far_side "$place/killed" 6 400 train "${common[@]}" --drive "ssh://far$place/far/k.volume" --memory "${budget}MiB"
same "killed: exit code" $rc 0
[ $kills -gt 0 ] && ok "$kills kills" || fail "nothing was killed"
same "killed: digest" "$(digest)" "$wanted"
done_testing
