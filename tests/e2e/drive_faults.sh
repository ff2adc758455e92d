#!/usr/bin/env bash
# Drives that vanish, fail, fill, come back with old data or as another one: each is named with what to do, nothing is
# lost, and with the right drive back the run ends with the same digest.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps 12 --batch 8 --seq-len 64 --lr 2e-3
        --memory 512MiB --quiet --io threads)
mkdir "$place"/d{1,2,3,4} "$place/far"
run=$place/run
socket=$(mktemp -d)/s
serve --root "$place/far"
must train "${common[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)
must train "${common[@]}" --drive "$place/d3" --out "$place/other" --stop-at 3

# ---- while it runs ----
keep() { # what is restored
    rm -rf "$place/kept"
    mkdir "$place/kept"
    cp -r --sparse=always "$run" "$place"/d1 "$place"/d2 "$place/far" "$place/kept/"
}
restore() {
    rm -rf "$run" "$place"/d1 "$place"/d2 "$place"/far/*
    cp -r --sparse=always "$place"/kept/{run,d1,d2} "$place/"
    cp -r --sparse=always "$place"/kept/far/. "$place/far/"
}
# ends_right NAME: with what it has now, the run goes on to the right end.
ends_right() {
    run train --resume "$run" --quiet
    same "$1: digest" "$(digest)" "$wanted"
}
# failing NAME 'KIND COUNT CODE PATH' PATTERN: resumes with that fault; the sentence names the drive, another one says
# how to go on, exit code 1; and then it goes on.
failing() {
    FAIL_IO=$2 LD_PRELOAD=$FAIL_IO_SO run train --resume "$run" --quiet
    same "$1: exit code" $rc 1
    sed 1d "$place/log" | grep -qE -- "$3" && ok "$1" || fail "$1: no message like '$3'"
    [ "${4-}" = start ] || { grep -q "is committed.*--resume $run" "$place/log" && ok "$1: go on" || fail "$1: how to go on is not said"; }
    ends_right "$1"
    restore
}
must train "${common[@]}" --drive "$place/d1" "$place/d2" --out "$run" --stop-at 3
keep
failing "reads fail" "read 60 5 d2/" "d2/longshore[^ ]*volume: reading .*Input/output error; check the drive"
failing "writes fail" "write 60 5 d1/" "d1/longshore[^ ]*volume: writing .*Input/output error; check the drive"
failing "the drive is full" "write 60 28 d2/" "d2/longshore[^ ]*volume: writing .*No space left on device; free space on its drive, or remove a snapshot"
failing "a flush fails" "flush 7 5 d2/" "d2/longshore[^ ]*volume: a flush failed: Input/output error.*check the drive"
failing "a flush finds no room" "flush 7 122 d2/" "d2/longshore[^ ]*volume: a flush failed: Disk quota exceeded.*free space on its drive"
failing "a limit of file sizes" "write 60 27 d1/" "d1/longshore[^ ]*volume: writing .*File too large; raise the limit of file sizes"
failing "it is always busy" "read 60 11 d2/" "d2/longshore[^ ]*volume: reading .*Resource temporarily unavailable; check the drive"
failing "writes are cancelled there" "write 60 125 d1/" "d1/longshore[^ ]*volume: writing .*Resource temporarily unavailable"
failing "a flush is cancelled there" "flush 7 125 d2/" "d2/longshore[^ ]*volume: a flush failed: Resource temporarily unavailable"
failing "reads fail from the start on" "read 0 5 d2/" "d2/longshore[^ ]*volume: reading .*Input/output error; check the drive" start

vanishes() { # NAME FILE PATTERN
    "$LONGSHORE" train --resume "$run" --steps 4000 --stop-at 4000 >"$place/log" 2>&1 </dev/null &
    background=$!
    await steps_made "$run" 4
    rm "$2"
    wait $background
    same "$1: exit code" $? 1
    background=
    grep -qE -- "$3" "$place/log" && ok "$1" || fail "$1: no message like '$3'"
    refused "$1: missing" "$2 is missing.*--drive" train --resume "$run"
}
vanishes "a drive vanishes" "$(volume_in "$place/d2")" "d2/longshore[^ ]*volume: was deleted or replaced.*bring it back"
restore

# ---- at the start ----
before=$(cksum <"$run/run.json")
mv "$place/d2" "$place/away"
for command in "train --resume $run" "inspect $run --digest" "eval $run --data $place/text" "snapshot $run x" \
    "drive add $run $place/d4" "drive remove $run $place/d2"; do
    # shellcheck disable=SC2086
    refused "missing: $command" "$place/d2.* (is missing: mount its drive.*--drive $place/d2/longshore[^ ]*volume=NEW|does not exist)" $command
done
mkdir "$place/d2" # not mounted
refused "an empty mount point" "$place/d2/longshore[^ ]*volume is missing: mount its drive.*--drive $place/d2/longshore[^ ]*volume=NEW" train --resume "$run"
must drive list "$run"
grep -q "d1: 50.0 %.*step 3" "$place/log" && grep -q "d2: no volume is there" "$place/log" && ok "list" || fail "list: not both drives"
rmdir "$place/d2"
refused "nothing at the new place" "no/no does not exist" train --resume "$run" --drive "$place/d2=$place/no/no"
refused "an empty new place" "there is no volume in $place/d4: $place/d4/longshore[^ ]*volume is missing" train --resume "$run" --drive "$place/d2=$place/d4"
refused "another run's drive" "$place/d3/longshore[^ ]*volume belongs to another run" \
    train --resume "$run" --drive "$place/d2=$(volume_in "$place/d3")"
refused "the drive that it has" "$place/d1/longshore[^ ]*volume is given twice" train --resume "$run" --drive "$place/d2=$place/d1"
cp -r "$place/d1" "$place/copy"
refused "a copy of the other" "copy/longshore[^ ]*volume is drive 0 of its fleet, and so is $place/d1/longshore[^ ]*volume" \
    train --resume "$run" --drive "$place/d2=$place/copy"
rm -r "$place/copy"
same "none of it is recorded" "$(cksum <"$run/run.json")" "$before"
must train --resume "$run" --drive "$place/d2=$place/away" --quiet
same "elsewhere: digest" "$(digest)" "$wanted"
rm -r "$place/away"
restore

mv "$place/d1" "$place/x" && mv "$place/d2" "$place/d1" && mv "$place/x" "$place/d2"
ends_right "swapped"
restore

# ---- old data ----
must train --resume "$run" --stop-at 5 --quiet
cp -r "$place/d1" "$place/new"
rm -r "$place/d1"
cp -r "$place/kept/d1" "$place/d1"
refused "one older drive" "$place/d1/longshore[^ ]*volume is at step 3 but the other drives are at step 5: it was put back" \
    train --resume "$run"
rm -r "$place/d1"
mv "$place/new" "$place/d1"
mkdir "$place/new"
mv "$place/d1" "$place/d2" "$place/new/"
cp -r "$place"/kept/d1 "$place"/kept/d2 "$place/"
for command in "train --resume $run" "inspect $run --digest" "drive add $run $place/d4" "snapshot $run x"; do
    # shellcheck disable=SC2086
    refused "all older: $command" "is at step 3 but step 5 was committed: .*older copy; put the newest" $command
done
rm "$run/committed"
refused "all older, without the hint" "is at step 3 but step 5 was committed: .*older copy" train --resume "$run"
echo 99999 >"$run/committed"
refused "all older, with a wrong hint" "is at step 3 but step 99999 was committed: .*older copy" train --resume "$run"
rm "$run/committed"
rm -r "$place/d1" "$place/d2"
mv "$place"/new/* "$place/"
ends_right "the newest back"
restore

# ---- twice, another run's ----
ln -s "$place/d4" "$place/link"
for again in "$place/d4/" "$place/link"; do
    refused "twice: $again" "given twice" train "${common[@]}" --drive "$place/d4" "$again" --out "$place/none"
done
refused "twice behind a server" "given twice" \
    train "${common[@]}" --drive "unix:$socket:a.volume" "unix:$socket:$place/far/a.volume" --out "$place/none"
refused "twice as a file" "given twice" train "${common[@]}" --drive "$place/d4/a.volume" "$place/link/a.volume" --out "$place/none"
other=$(volume_in "$place/d3")
for overwrite in "" --overwrite; do
    refused "another run's $overwrite" "$other: holds the state of the run $place/other, at step 3; name another path" \
        train "${common[@]}" --drive "$place/d4" "$other" --out "$place/none" $overwrite
done
for command in "add $run $other" "move $run $place/d1=$other"; do
    # shellcheck disable=SC2086
    refused "another run's: $command" "$other: holds the state of the run $place/other, at step 3" drive $command
    same "$command: said in one line" "$(sed 1d "$place/log" | wc -l)" 1
done
same "nothing new" "$(ls "$place/d4" "$place/far" "$place/none" 2>/dev/null | grep -c "[.]volume")" 0
run inspect "$place/other" --digest --deep
same "the other run is whole" $rc 0

# ---- no room, if a small file system may be mounted ----
if [ "$(id -u)" = 0 ] && mkdir "$place/tiny" && mount -t tmpfs -o size=2M none "$place/tiny" 2>/dev/null; then
    before=$(cksum <"$run/run.json")
    for command in "add $run $place/tiny --drive-speeds 1,1,1" "move $run $place/d1=$place/tiny --drive-speeds 1,1"; do
        # shellcheck disable=SC2086
        refused "no room: $command" "tiny/longshore[^ ]*volume: needs .*has .*free space" drive $command
    done
    umount "$place/tiny"
    same "no room: run.json" "$(cksum <"$run/run.json")" "$before"
    same "no room: no volume is left" "$(find "$place"/d[12] -name '*.volume*' | wc -l)" 2
    mount -t tmpfs -o size=16M none "$place/tiny"
    must train "${common[@]}" --drive "$place/tiny" --out "$place/narrow" --stop-at 3
    refused "no room for a snapshot" "tiny/longshore[^ ]*volume.snapshot-x.*: needs .*has .*free space" snapshot "$place/narrow" x
    must snapshots "$place/narrow"
    grep -q "no snapshots" "$place/log" && ok "no snapshot is left" || fail "a snapshot is listed that has no room"
    must train --resume "$place/narrow" --quiet --snapshot-every 4
    grep -q "warning: no snapshot of step 4: .*needs" "$place/log" && ok "a snapshot without room is said" || fail "a snapshot without room is not said"
    same "no room for snapshots: digest" "$(digest)" "$wanted"
    echo "{\"quiet\": false}" >"$place/loud.json"
    must train --resume "$place/narrow" --snapshot-every 13 --steps 13 --config "$place/loud.json"
    grep -q "^snapshots: 1 could not be made" "$place/log" && ok "it stands in the summary" || fail "the summary has no missed snapshot"
    umount "$place/tiny"
fi
ends_right "after what was refused"
restore
# room that is there and then is not
FAIL_IO="write 6 28 d4/" LD_PRELOAD=$FAIL_IO_SO run drive add "$run" "$place/d4" --drive-speeds 1,1,1
grep -q "d4/longshore[^ ]*volume: writing .*No space left on device; free space on its drive" "$place/log" && [ $rc = 2 ] &&
    ok "it fills while the state moves" || fail "it fills while the state moves: exit code $rc"
same "it fills: nothing is left" "$(ls "$place/d4")" ""
FAIL_IO="write 6 5 d4/" LD_PRELOAD=$FAIL_IO_SO run drive add "$run" "$place/d4" --drive-speeds 1,1,1
grep -q "d4/longshore[^ ]*volume: writing .*Input/output error; check the drive" "$place/log" && [ $rc = 1 ] &&
    ok "it fails while the state moves" || fail "it fails while the state moves: exit code $rc"
grep -q "the state is where it was" "$place/log" && ok "and where the state is" || fail "where the state is, is not said"
# a far side that is cut off in the middle of the copy
cat >"$place/rsh" <<RSH
#!/bin/sh
dd bs=65536 count=30 2>/dev/null | "$LONGSHORE" drive serve --stdio
RSH
chmod +x "$place/rsh"
for command in "add $run ssh://far$place/far/cut.volume --drive-speeds 1,1,4" "move $run $place/d1=ssh://far$place/far/cut.volume --drive-speeds 1,1"; do
    # shellcheck disable=SC2086
    run drive $command --rsh "$place/rsh"
    grep -q "ssh://far$place/far/cut.volume: .*closed the connection" "$place/log" && grep -q "the state is where it was" "$place/log" &&
        [ $rc != 0 ] && ok "cut off: $command" || fail "cut off: $command: exit code $rc"
    same "cut off: nothing is left there" "$(ls "$place/far")" ""
    [ ! -e "$run/moving.json" ] && ok "cut off: settled" || fail "cut off: moving.json is left"
done
# and then is out of reach: what it may have made counts as made
cat >"$place/rsh" <<RSH
#!/bin/sh
echo >>"$place/calls"
case \$(wc -l <"$place/calls") in
1 | 2) exec "$LONGSHORE" drive serve --stdio ;;
3) "$LONGSHORE" drive serve --stdio | dd bs=65536 count=1 2>/dev/null ;;
*) exit 1 ;;
esac
RSH
expect_failure 1 "cut off while it makes" "far/cut.volume: .*; the volume stays there: the next command" \
    drive add "$run" "ssh://far$place/far/cut.volume" --drive-speeds 1,1,4 --rsh "$place/rsh"
[ -e "$run/moving.json" ] && ok "and remembered" || fail "what may be there is forgotten"
restore
stop_serving
serve
refused "a drive that it has, by another name" "is a drive of this run already" \
    drive add "$run" "unix:$socket:$place/d1" --drive-speeds 1,1,1
same "said in one line" "$(sed 1d "$place/log" | wc -l)" 1
stop_serving
serve --root "$place/far"
ends_right "after failed moves"

# ---- what cannot be removed is not forgotten ----
stays() { # NAME PATH PATTERN EXIT_CODE ARGS...
    local name=$1 path=$2 pattern=$3 code=$4
    shift 4
    FAIL_IO="unlink 0 5 $path" LD_PRELOAD=$FAIL_IO_SO run "$@"
    same "$name stays: exit code" $rc "$code"
    grep -q "$path.*: cannot be removed: Input/output error$pattern" "$place/log" && ok "$name stays" || fail "$name: no word that it stays"
}
must snapshot "$run" held
stays "a snapshot's part" "$(basename "$(volume_in "$place/d2")").snapshot-held" "; the next command that opens the run" 0 snapshot "$run" held --remove
must train --resume "$run" --quiet
same "a snapshot's part went" "$(find "$place"/d[12] -name '*.snapshot-*')" ""
stays "a drive's old volume" d2/longshore "; the volume stays there: the next command" 0 \
    drive move "$run" "$place/d2=$place/d4" --drive-speeds 1,1
must train --resume "$run" --quiet
same "a drive's old volume went" "$(ls "$place/d2")" ""
stays "a file of the run" run/metrics.jsonl "" 1 remove "$run"
must remove "$run"
[ ! -e "$run" ] && ok "the run went" || fail "the run is still there: $(ls "$run")"

# ---- behind a server ----
rm -rf "${place:?}"/d1/* "${place:?}"/d2/*
there=unix:$socket:a.volume
must train "${common[@]}" --drive "$place/d1" "$there" --out "$run" --stop-at 3
stop_serving
keep
FAIL_IO="write 60 5 far/" LD_PRELOAD=$FAIL_IO_SO serve --root "$place/far"
expect_failure 1 "writes fail there" "$there: .*far/a.volume: writing .*Input/output error; check the drive" train --resume "$run" --quiet
grep -q "is committed.*--resume $run" "$place/log" && ok "how to go on" || fail "how to go on is not said"
stop_serving
serve --root "$place/far"
ends_right "writes failed there"
restore
vanishes "a drive vanishes there" "$place/far/a.volume" "$there: .*far/a.volume: was deleted or replaced.*bring it back"
restore
before=$(cksum <"$run/run.json")
mv "$place/far/a.volume" "$place/far/b.volume"
refused "missing there" "$there: .*far/a.volume is missing there: mount its drive.*--drive $there=NEW" train --resume "$run"
must train --resume "$run" --drive "$there=unix:$socket:b.volume" --quiet
same "elsewhere there: digest" "$(digest)" "$wanted"
rm "$place/far/b.volume"
restore
cp "$place/far/a.volume" "$place/older"
must train --resume "$run" --stop-at 5 --quiet
mv "$place/far/a.volume" "$place/newest"
mv "$place/older" "$place/far/a.volume"
refused "older there" "$there.*is at step 3 but the other drives are at step 5" train --resume "$run"
mv "$place/newest" "$place/far/a.volume"
stop_serving
refused "nobody serves" "$there: nobody serves drives there.*drive serve --listen $socket.*--drive $there=NEW" train --resume "$run"
# its state in a place of this host
must train --resume "$run" --drive "$there=$place/far/a.volume" --quiet
same "on this host: digest" "$(digest)" "$wanted"
refused "a file as root" "is not a directory" drive serve --listen "$socket" --root "$place/far/a.volume"
refused "no root" "No such file" drive serve --listen "$socket" --root "$place/far/none"
must remove "$run" --not-a-copy # which was put back from a copy above
rm -rf "$(dirname "$socket")"
done_testing
