#!/usr/bin/env bash
# Runs that share a directory: each has a volume under a name of its own there, and making, overwriting, killing or
# removing one never touches another's.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 64 4 32 300
some_text "$place/text" 40
common=(--init "$place/config.json" --data "$place/text" --steps 20 --batch 2 --seq-len 32 --memory 256MiB --quiet)
d=$place/d
mkdir "$d" "$place/more" "$place/runs" "$place/other"
volumes() { find "$d" "$place/more" -type f | wc -l; }
must train "${common[@]}" --seed 1 --drive "$d" --out "$place/runs/b" --stop-at 3
b=$(digest)
must snapshot "$place/runs/b" kept
b_is_whole() {
    must inspect "$place/runs/b" --digest --deep
    same "$1: the other run's digest" "$(digest)" "$b"
}

# The documented examples one after the other, of the same base name too.
must train "${common[@]}" --seed 2 --drive "$d" --out "$place/runs/a" --stop-at 3
a=$(digest)
must train "${common[@]}" --seed 3 --drive "$d" --out "$place/other/a" --stop-at 3
same "three volumes and a snapshot" "$(volumes)" 4
b_is_whole "made beside"
must drive list "$place/runs/a"
grep -q "^$d: 100.0 %" "$place/log" && ok "the drive has the user's name" || fail "the drive is called otherwise"

# Overwriting replaces the run that is named, and nothing else.
refused "a run that is there" "holds a run; .*--overwrite" train "${common[@]}" --drive "$d" --out "$place/runs/a"
must train "${common[@]}" --seed 3 --drive "$d" --out "$place/runs/a" --overwrite --stop-at 3
same "overwritten: volumes" "$(volumes)" 4
[ "$(digest)" != "$a" ] && ok "overwritten" || fail "the old run is still there"
b_is_whole "overwriting"
volume=$(compgen -G "$d/longshore-b-*.volume")
refused "another's file" "$volume: holds the state of the run $place/runs/b, at step 3; name another path" \
    train "${common[@]}" --drive "$volume" --out "$place/runs/c" --overwrite
b_is_whole "named"

# Killed at every instant: the same command completes it, or there is none.
for i in $(seq "${KILLS:-8}"); do
    overwrite=
    [ $((i % 2)) = 0 ] || overwrite=--overwrite
    [ -n "$overwrite" ] || must remove "$place/runs/a"
    "$LONGSHORE" train "${common[@]}" --seed 2 --drive "$d" --out "$place/runs/a" $overwrite --stop-at 3 >/dev/null 2>&1 </dev/null &
    client=$!
    nap 0 250000
    kill -9 $client 2>/dev/null
    wait $client 2>/dev/null
    if [ -e "$place/runs/a/run.json" -o -e "$place/runs/a/making/made.json" -o -e "$place/runs/a/making/placed.json" ] && [ -z "$overwrite" ]; then
        must train --resume "$place/runs/a" --stop-at 3
    else
        must train "${common[@]}" --seed 2 --drive "$d" --out "$place/runs/a" $overwrite --stop-at 3
    fi
    same "killed: digest" "$(digest)" "$a"
    same "killed: volumes" "$(volumes)" 4
done
b_is_whole "killing"

# What becomes of one later.
must drive add "$place/runs/a" "$place/more" --drive-speeds 1,1
must drive move "$place/runs/a" "$place/more=$place/other" --drive-speeds 1,1
must drive remove "$place/runs/a" "$place/other"
must train --resume "$place/runs/a" --stop-at 4
must rollback "$place/runs/b" kept
b_is_whole "moving"
mv "$d" "$place/moved"
for run in runs/a other/a runs/b; do must train --resume "$place/$run" --drive "$d=$place/moved" --stop-at 4; done
must remove "$place/runs/a"
must remove "$place/other/a"
must rollback "$place/runs/b" kept
b_is_whole "removing"
must remove "$place/runs/b"
same "nothing is left" "$(find "$place/moved" "$place/more" -type f)" ""

# A run that was made when its volume was called longshore.volume opens, stays where it is, and is overwritten beside it.
must train "${common[@]}" --seed 1 --drive "$place/more/longshore.volume" --out "$place/old" --stop-at 3
must train "${common[@]}" --seed 2 --drive "$place/more" --out "$place/new" --stop-at 3
must train --resume "$place/old" --stop-at 3
same "an old one" "$(digest)" "$b"
must train "${common[@]}" --seed 2 --drive "$place/more" --out "$place/old" --overwrite --stop-at 3
same "an old one is overwritten" "$(digest) $(ls "$place/more" | wc -l)" "$a 2"
must remove "$place/old"
must inspect "$place/new" --digest --deep
same "the new one is whole" "$(digest)" "$a"
done_testing
