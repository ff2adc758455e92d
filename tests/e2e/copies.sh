#!/usr/bin/env bash
# A run's directory that is renamed stays the run, and its copies never take its volumes: wherever the run is now,
# whether the copy lies where the run was, and also while the run is being made.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 64 4 32 300
some_text "$place/text" 40
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps 9 --batch 2 --seq-len 32 --memory 256MiB)
mkdir "$place/d" "$place/runs" "$place/other" "$place/extra"
runs=$place/runs
make_run() { must train "${common[@]}" --drive "$place/d" --out "$runs/a" --stop-at 2; }
volumes_stay() { [ -s "$(volume_in "$place/d")" ] && ok "$1" || fail "$1: the volume is gone"; }
# not_its_own WHY RUN: nothing that would take the run's volumes is done for it
not_its_own() {
    refused "remove: $1" "$1" remove "$2"
    refused "overwrite: $1" "$1" train "${common[@]}" --drive "$place/d" --out "$2" --overwrite
    [ "${3:-}" = "put back" ] || refused "drive add: $1" "$1" drive add "$2" "$place/extra"
    [ "${3:-}" = "put back" ] || refused "rollback: $1" "$1" rollback "$2" one
    [ "${3:-}" = "put back" ] || refused "snapshot --remove: $1" "$1" snapshot "$2" one --remove
    volumes_stay "$1"
}
make_run
must snapshot "$runs/a" one
must train --resume "$runs/a" --stop-at 4

# The run where it was, the copy anywhere.
cp -a "$runs/a" "$place/other/copy"
not_its_own "is a copy of the run $runs/a" "$place/other/copy"
must train --resume "$place/other/copy" --stop-at 5
grep -q "is a copy of the run $runs/a and has its volumes" "$place/log" || fail "training the copy says nothing"

# The run renamed: it stays the run, and the copy a copy, also one that takes the run's place.
mv "$runs/a" "$runs/b"
not_its_own "is a copy of the run $runs/b" "$place/other/copy"
cp -a "$runs/b" "$runs/a"
not_its_own "is a copy of the run $runs/b" "$runs/a"
run remove "$runs/a" --not-a-copy
same "what is known to be a copy" $rc 2
run train --resume "$runs/b" --stop-at 6
same "the run, renamed, with a copy in its place" $rc 0
grep -q copy "$place/log" && fail "the run is called a copy"
# Renamed to where nobody looks: what is a copy is not known any more, and nothing is taken.
mkdir "$place/other/deep"
mv "$runs/b" "$place/other/deep/b"
not_its_own "it was put back, is a copy of a run that is elsewhere now, or" "$runs/a" "put back"
mv "$runs/a" "$runs/c"
not_its_own "nothing tells whether it was moved here" "$runs/c"
run train --resume "$runs/c" --stop-at 7
grep -q "say once that it is not a copy" "$place/log" || fail "training what may be a copy says nothing"
# The run itself goes on and is removed with its volumes, whatever its copies are.
must train --resume "$place/other/deep/b" --stop-at 8
must drive add "$place/other/deep/b" "$place/extra"
must drive remove "$place/other/deep/b" "$place/extra"
must rollback "$place/other/deep/b" one
must remove "$place/other/deep/b"
same "remove" "$(ls -A "$place/d" "$place/extra" | grep "[.]volume")" ""
rm -r "$runs/c" "$place/other"

# Moved by copying, as between file systems: one word says that it is the run, and says it once.
make_run
must snapshot "$runs/a" one
mkdir "$place/far"
cp -r "$runs/a" "$place/far/a" && rm -r "$runs/a"
not_its_own "nothing tells whether it was moved here" "$place/far/a"
must train --resume "$place/far/a" --not-a-copy --stop-at 3
must train --resume "$place/far/a" --stop-at 4
grep -q "not-a-copy" "$place/log" && fail "the word is asked for again"
must drive add "$place/far/a" "$place/extra"
must remove "$place/far/a"
same "remove of what was moved" "$(ls -A "$place/d" "$place/extra" | grep "[.]volume")" ""

# Runs of earlier versions have no mark: where they are at home they are the run, and get one.
make_run
sed -i -e '/"directory"/d' -e '/"checksum"/d' "$runs/a/run.json" && sed -i -z 's/,\n}/\n}/' "$runs/a/run.json"
must train --resume "$runs/a" --stop-at 3
grep -q '"directory": "' "$runs/a/run.json" && ok "a mark is recorded" || fail "no mark is recorded"
mv "$runs/a" "$runs/b"
must remove "$runs/b"

# Where statx() is refused, as in a container, the time of birth is not known: nothing is said of a copy.
refusing() { FAIL_IO="statx 0 1 $runs" LD_PRELOAD=$FAIL_IO_SO "$@"; }
make_run
refusing must train --resume "$runs/a" --stop-at 3
grep -q "copy" "$place/log" && fail "statx is refused, and the run is called a copy"
refusing must train "${common[@]}" --drive "$place/d" --out "$runs/a" --overwrite --stop-at 2
must train --resume "$runs/a" --stop-at 3
must train "${common[@]}" --drive "$place/d" --out "$runs/a" --overwrite --stop-at 2
mv "$runs/a" "$runs/b"
cp -a "$runs/b" "$runs/a"
FAIL_IO="statx 0 1 $runs" LD_PRELOAD=$FAIL_IO_SO refused "a copy, without statx" "is a copy of the run $runs/b" remove "$runs/a"
rm -r "$runs/a"
refusing must remove "$runs/b"

# A backup by hard links never moves with the run: its volumes are refused by name, and its small files are parted.
make_run
cp -al "$place/d" "$place/links"
cp -al "$runs/a" "$place/links/a"
volume=$(volume_in "$place/d")
kept=$(sha256sum "$place/links"/*.volume "$place/links"/a/{metrics.jsonl,committed,run.json})
refused "a volume of two names" "$volume: is one file under 2 names" train --resume "$runs/a" --stop-at 3
must inspect "$runs/a" --digest --deep
cp "$volume" "$volume.own" && mv "$volume.own" "$volume"
must train --resume "$runs/a" --stop-at 4
must snapshot "$runs/a" one
must rollback "$runs/a" one
same "the backup stays" "$(sha256sum "$place/links"/*.volume "$place/links"/a/{metrics.jsonl,committed,run.json})" "$kept"
must remove "$runs/a"
# and a run that is overwritten or removed leaves them
make_run
rm -r "$place/links" && cp -al "$place/d" "$place/links"
kept=$(sha256sum "$place/links"/*.volume)
must train "${common[@]}" --drive "$place/d" --out "$runs/a" --overwrite --stop-at 1
same "the backup of an overwritten run stays" "$(sha256sum "$place/links"/*.volume)" "$kept"
must remove "$runs/a"
rm -r "$place/links"

cut_off() { # ends the process in the making of runs/a, when the first bytes are in its volume
    FAIL_IO="die 0 0 d/longshore-a" LD_PRELOAD=$FAIL_IO_SO run train "${common[@]}" --io threads --drive "$place/d" --out "$runs/a"
    same "the making is cut off" $rc 9
}
# A copy of a making that was not finished.
cut_off
cp -r "$runs/a" "$place/far/a"
refused "remove of a making's copy" "is a copy of the run $runs/a" remove "$place/far/a"
refused "the same command for the copy" "is a copy of the run $runs/a" train "${common[@]}" --drive "$place/d" --out "$place/far/a"
must train "${common[@]}" --drive "$place/d" --out "$runs/a" --stop-at 1
refused "remove, once the run is made" "is a copy of the run $runs/a" remove "$place/far/a"
mv "$runs/a" "$place/other"
refused "remove, once the run is moved" "nothing tells whether" remove "$place/far/a"
volumes_stay "copies of a making"
must inspect "$place/other" --deep
must remove "$place/other"

# The making itself may be moved; a copy that is the making now, by the user's word.
cut_off
mv "$runs/a" "$runs/b"
must train "${common[@]}" --drive "$place/d" --out "$runs/b" --stop-at 1
must remove "$runs/b"
cut_off
rm -r "$place/far/a" && cp -r "$runs/a" "$place/far/a" && rm -r "$runs/a"
must remove "$place/far/a" --not-a-copy
same "remove of a making that was moved" "$(ls -A "$place/d")" ""
done_testing
