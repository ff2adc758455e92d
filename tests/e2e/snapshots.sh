#!/usr/bin/env bash
# Named copies of a run's state, and going back to them: the same digest, the same bits afterwards, on the same drives or
# others; kills at random instants leave a snapshot whole or not there, and a rollback undone or done.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
common=(--init "$place/config.json" --seed 3 --data "$place/text" --val-share 0.1 --eval-every 5 --steps 20 --batch 8
        --seq-len 64 --lr 2e-3 --memory 512MiB --quiet)
mkdir "$place"/d{1,2,3,4}
run=$place/run
volumes() { find "$place" -name '*.volume*' | wc -l; }
steps() { metric "$run" step | tr '\n' ' '; }
losses() { metric "$run" loss | cksum; }

must train "${common[@]}" --drive "$place/d1" "$place/d2" --out "$run" --stop-at 5
at5=$(digest)
cp -r "$run" "$place/twin"
must snapshot "$run" five
same "what was kept" "$(digest)" "$at5"
refused "a part that this copy of the run has not made" "snapshot-five: is there already, .*choose another name" \
    snapshot "$place/twin" five
rm -r "$place/twin"
must train --resume "$run" --stop-at 10
at10=$(digest)
must snapshot "$run" ten
must train --resume "$run"
at20=$(digest) all=$(losses)
must snapshots "$run"
grep -q "^five: step 5.*${at5#* }" "$place/log" && ok "listed" || fail "no snapshot five with its digest in the list"
must snapshots "$run" --json
grep -q '"snapshots":\[{"name":"five","step":5,' "$place/log" && ok "as JSON" || fail "no snapshots as JSON"
documented snapshots "$place/log"
must inspect "$run"
grep -q "ten: step 10" "$place/log" && ok "inspect shows it" || fail "inspect does not show the snapshots"

# Back, and forth; with another schedule in between, which does not stay.
kept() { cat "$place"/d{1,2}/*.snapshot-five | cksum; }
five=$(kept)
must rollback "$run" five
must inspect "$run" --digest --deep
same "back at step 5" "$(digest)" "$at5"
must export "$run" --out "$place/back" --dtype fp32 --moments
same "a snapshot is only read" "$(kept)" "$five"
same "the metrics follow" "$(steps)" "1 2 3 4 5 "
must train --resume "$run" --stop-at 12 --lr 1e-3
[ "$(digest)" != "$at10" ] && ok "another rate" || fail "the learning rate did not change"
must rollback "$run" ten
same "the metrics of that time" "$(steps)" "$(seq -s ' ' 1 10) "
must train --resume "$run"
same "the same bits as before" "$(digest)" "$at20"
same "the same losses as before" "$(losses)" "$all"

# A rollback that was interrupted after its commit: a wrong place for a drive is not recorded.
must rollback "$run" five
echo '{"snapshot": "five", "from": 20, "committed": true}' >"$run/rollback.json"
refused "an empty place" "there is no volume in .*d3: .*d3/longshore[^ ]*volume is missing" \
    train --resume "$run" --drive "$place/d1=$place/d3"
: >"$place/d3/longshore.volume"
refused "a wrong place" "interrupted.*d3/longshore.volume: not a longshore volume" \
    train --resume "$run" --drive "$place/d1=$place/d3"
rm "$place/d3/longshore.volume"
must train --resume "$run"
same "the drive is where it was" "$(digest)" "$at20"

# A kill between a commit and its line, then a snapshot: what is measured at that step is not lost with the rollback.
validation=$(metric "$run" val_loss | cksum)
sed -i '$d' "$run/metrics.jsonl"
echo 19 >"$run/committed"
must snapshot "$run" cut
must rollback "$run" cut
must train --resume "$run"
same "the validation loss is back" "$(metric "$run" val_loss | cksum)" "$validation"
must snapshot "$run" cut --remove

# Other drives, and a snapshot of them.
must drive move "$run" "$place/d1=$place/d3" "$place/d2=$place/d4"
grep -q "snapshot five stays on .*/d1" "$place/log" && ok "where its parts stay" || fail "no word of parts that stay"
must rollback "$run" five
must inspect "$run" --digest --deep
same "back on other drives" "$(digest)" "$at5"
must drive remove "$run" "$place/d4"
must train --resume "$run" --stop-at 10
same "the same bits on other drives" "$(digest)" "$at10"
must snapshot "$run" again
must drive add "$run" "$place/d1" "$place/d4" --drive-speeds 1,2,1
must rollback "$run" again
must inspect "$run" --digest
same "from one drive to three" "$(digest)" "$at10"
must train --resume "$run"
same "and on" "$(digest)" "$at20"
must snapshot "$run" again --remove
must snapshot "$run" ten --remove
same "volumes and those of one snapshot" "$(volumes)" 5

# Moved by hand: the copies lie beside the volumes.
mv "$place/d3" "$place/d5"
must train --resume "$run" --drive "$place/d3=$place/d5"

must snapshot "$run" moved
mv "$place/d5" "$place/d6"
must train --resume "$run" --drive "$place/d5=$place/d6"
same "a part went with its drive" "$(find "$place/d6" -name '*.snapshot-moved' | wc -l)" 1
must snapshot "$run" moved --remove
same "they go from where they are" "$(find "$place" -name '*.snapshot-moved' | wc -l)" 0

# Descriptions that cannot be read hold nothing up.
mkdir "$place/torn"
must train "${common[@]}" --drive "$place/torn" --out "$place/damaged" --stop-at 1
damaged=$(basename "$(volume_in "$place/torn")")
for name in one two three; do must snapshot "$place/damaged" $name; done
echo '{' >"$place/damaged/snapshots/one.json"
echo '{}' >"$place/damaged/snapshots/two.json"
refused "a list with a damaged one" "json" snapshots "$place/damaged"
must snapshot "$place/damaged" one --remove
grep -q "snapshot one is damaged.*snapshot-one" "$place/log" && ok "what stays" || fail "not a word of what stays"
echo '{' >"$place/damaged/snapshots/cut.partial"
must inspect "$place/damaged" --digest
touch "$place/damaged/".{run,moving,rollback}.json.partial "$place/damaged/snapshots/.four.partial.partial" # killed
must remove "$place/damaged"
grep -q "snapshot two is damaged.*snapshot-two" "$place/log" && ok "what stays" || fail "not a word of what stays"
same "only what nobody names stays" "$(cd "$place/torn" && echo *)" \
    "$damaged.snapshot-one $damaged.snapshot-two"
[ ! -e "$place/damaged" ] && ok "the run is gone" || fail "the directory is left: $(find "$place/damaged")"
rm "$place/torn"/*
making=("${common[@]}" --drive "$place/mine" --out "$place/moving" --snapshot-every 2 --keep 1)
mkdir "$place"/mine
must train "${making[@]}" --stop-at 4
must snapshot "$place/moving" four
moving=$(basename "$(volume_in "$place/mine")")
mv "$place/mine" "$place/yours"
must train --resume "$place/moving" --drive "$place/mine=$place/yours" --stop-at 6
same "automatic ones that moved" "$(cd "$place/yours" && echo *)" \
    "$moving $moving.snapshot-four $moving.snapshot-step-000006"
mv "$place/yours" "$place/mine"
# A kill while it is made: the next start makes it again.
mv "$place"/moving/snapshots/step-000006.{json,partial}
must train --resume "$place/moving" --drive "$place/yours=$place/mine" --stop-at 6
at6=$(digest)
must snapshots "$place/moving"
grep -q "^step-000006: step 6,.* automatic,.* digest ${at6#* }" "$place/log" && ok "one that a kill interrupted" ||
    fail "a snapshot that a kill interrupted is not made on resume"
must rollback "$place/moving" four
must train --resume "$place/moving" --stop-at 6
! grep -q "no snapshot of" "$place/log" && ok "one of the same step" || fail "one of the same step is not made again"
must rollback "$place/moving" step-000006
moving=$(basename "$(volume_in "$place/mine")")
mv "$place/mine" "$place/yours"
must train --resume "$place/moving" --drive "$place/mine=$place/yours" --stop-at 6
must remove "$place/moving"
same "nothing stays where it moved to" "$(ls "$place/yours")" ""


# Moved by hand, and then left by the state: the parts of its snapshots stay where they went.
mkdir "$place"/leave{1,2,4,5}
leaving=$place/leaving
must train "${common[@]}" --drive "$place"/leave{1,2} --drive-speeds 1,1 --out "$leaving" --stop-at 5
must snapshot "$leaving" five
must train --resume "$leaving" --stop-at 6
mv "$place/leave1" "$place/leave3"
mv "$place/leave2" "$place/leave1" # where another one was
must train --resume "$leaving" --drive "$place/leave1=$place/leave3" "$place/leave2=$place/leave1" --stop-at 6
must drive move "$leaving" "$place/leave1=$place/leave4" "$place/leave3=$place/leave5"
grep -q "snapshot five stays on $place/leave3," "$place/log" && ok "where its parts are" || fail "its parts are elsewhere"
must rollback "$leaving" five
same "back to parts that moved" "$(digest)" "$at5"
must remove "$leaving"
same "no part stays behind" "$(find "$place"/leave* -type f)" ""

# What makes no sense.
refused "a name twice" "already" snapshot "$run" five
refused "a name with a slash" "a snapshot cannot be called" snapshot "$run" ../five
refused "a name with a dot first" "a snapshot cannot be called" snapshot "$run" .five
refused "a name of what is not made yet" "a snapshot cannot be called" snapshot "$run" five.partial
refused "a long name" "a snapshot cannot be called" snapshot "$run" "$(printf 'x%.0s' {1..65})"
refused "no name" "which snapshot" snapshot "$run"
refused "no run" "which run" rollback
refused "no such snapshot" "has no snapshot" rollback "$run" six
refused "nothing to remove" "has no snapshot" snapshot "$run" six --remove
refused "snapshots of no run" "not a run" snapshots "$place/d1"
refused "keep without snapshots" "snapshot-every" train "${common[@]}" --drive "$place/d1/x" --out "$place/no" --keep 3
refused "snapshots of memory" "drives that keep their data" train "${common[@]}" --drive ram: --out "$place/no" --snapshot-every 3
exec 9<"$run"
flock -x 9
refused "a run in use" "another process" snapshot "$run" six
must export "$run" --snapshot five --out "$place/out" --dtype fp32 --moments
grep -q "^step 5 exported" "$place/log" && ok "of its step" || fail "of another step"
diff -r "$place/back" "$place/out" >"$place/log" 2>&1 && ok "what the run was then" || fail "not what the run was then"
refused "a snapshot that is not there" "has no snapshot" export "$run" --snapshot six --out "$place/none"
refused "going back in a run in use" "another process" rollback "$run" five
flock -u 9
at=$at20
rm -f "$place/whole"
part=$(compgen -G "$place/d2/*.snapshot-five")
cp "$part" "$place/whole"
rm "$part"
refused "a part that is missing" "missing.*snapshot five" rollback "$run" five
truncate -s 1M "$part"
run rollback "$run" five
[ $rc != 0 ] && ok "a part of zeros" || fail "a part of zeros was taken for a snapshot"
cp "$place/whole" "$part"
offset=$(($(stat -c %s "$place/whole") / 3 / 4096 * 4096)) # in the planes of its only slot
printf 'x' | dd of="$part" bs=1 seek=$((offset + 77)) conv=notrunc status=none
run rollback "$run" five
[ $rc != 0 ] && grep -q "checksum" "$place/log" && ok "a damaged part" || fail "a damaged part was put back"
must inspect "$run" --digest --deep
same "nothing has changed" "$(digest)" "$at"
cp "$place/whole" "$part"
must rollback "$run" five

# Automatic ones: the newest K stay, and what the user made.
must train --resume "$run" --snapshot-every 3 --keep 2
same "automatic snapshots" "$(find "$run/snapshots" -name '*.json' -printf '%f ' | tr ' ' '\n' | sort | tr '\n' ' ')" \
    "five.json step-000015.json step-000018.json "
same "bits with snapshots" "$(digest)" "$at20"
must rollback "$run" step-000018
must train --resume "$run"
same "from an automatic one" "$(digest)" "$at20"
same "and their volumes" "$(volumes)" $((3 + 2 + 3 + 3))

# What compression keeps on the host goes with a snapshot.
squeezed=("${common[@]}" --compress top5%)
must train "${squeezed[@]}" --drive ram: --out "$place/squeezed-whole"
squeezed_wanted=$(digest)
must train "${squeezed[@]}" --drive "$place/d1/squeezed.volume" --out "$place/squeezed" --snapshot-every 8
must rollback "$place/squeezed" step-000008
must train --resume "$place/squeezed" --snapshot-every 0
same "the same bits with a residual" "$(digest)" "$squeezed_wanted"
! grep -q "is lost" "$place/log" && ok "the residual came back" || fail "the residual was lost on the way back"
must remove "$place/squeezed"

# kill -9 at random instants.
killed() { # LIMIT_US ARGS...
    local limit=$1
    shift
    "$LONGSHORE" "$@" >"$place/log" 2>&1 </dev/null &
    background=$!
    nap 0 "$limit"
    kill -9 $background 2>/dev/null
    wait $background 2>/dev/null
    background=
}
start=$(date +%s%N)
must rollback "$run" five
limit=$((($(date +%s%N) - start) / 1000 * 12 / 10))
must rollback "$run" step-000018
must inspect "$run" --digest
at18=$(digest)
for i in $(seq "${KILLS:-16}"); do
    killed $limit rollback "$run" "$([ $((i % 2)) = 0 ] && echo step-000018 || echo five)"
    [ $((i % 4)) != 3 ] || killed $limit inspect "$run" --digest
    if [ $((i % 3)) = 0 ]; then run train --resume "$run" --stop-at 1; else run inspect "$run" --digest --deep; fi
    case "$(digest)" in
    "$at5" | "$at18" | "$at20") ok "after kill $i" ;;
    *) fail "after kill $i: '$(digest)' is neither of the states" ;;
    esac
    [ ! -e "$run/rollback.json" ] || fail "after kill $i: rollback.json is left"
    [ "$(metric "$run" step | tail -n 1)" = "$(digest | cut -d' ' -f1)" ] || fail "after kill $i: the metrics do not fit"
done
must rollback "$run" five
must train --resume "$run" --snapshot-every 0
same "the same bits after all" "$(digest)" "$at20"
same "the same losses after all" "$(losses)" "$all"
must snapshot "$run" step-000015 --remove
must snapshot "$run" step-000018 --remove
start=$(date +%s%N)
must snapshot "$run" timed
limit=$((($(date +%s%N) - start) / 1000 * 12 / 10))
must snapshot "$run" timed --remove
for i in $(seq "${KILLS:-16}"); do
    killed $limit snapshot "$run" "new$i"
    [ $((i % 2)) = 0 ] || killed $limit snapshot "$run" "new$i" --remove
    if "$LONGSHORE" snapshots "$run" | grep -q "^new$i:"; then
        must rollback "$run" "new$i"
        same "snapshot $i is whole" "$(digest)" "$at20"
        must snapshot "$run" "new$i" --remove
    else
        must snapshot "$run" "new$i"
        must snapshot "$run" "new$i" --remove
    fi
done
same "nothing is left over" "$(volumes) $(find "$run/snapshots" -name 'new*' | wc -l)" "5 0"
# A run that takes the place of this one leaves nothing of it.
must train "${common[@]}" --drive "$place/d4" --out "$run" --overwrite --stop-at 1
same "overwriting takes all of it" "$(volumes) $(ls "$run" | grep -c snapshots)" "1 0"
must remove "$run"
same "remove takes them all" "$(volumes)" 0
[ ! -e "$run" ] && ok "the directory too" || fail "the run's directory is left: $(ls -R "$run")"

# Back at the end of a run that was extended since: it goes on with more steps alone.
must train "${common[@]}" --drive "$place/d4" --out "$place/longer"
must snapshot "$place/longer" end
must train --resume "$place/longer" --steps 21
must rollback "$place/longer" end
grep -q "go on with: longshore train --resume $place/longer --steps N$" "$place/log" && ok "more steps" || fail "no word of --steps"
done_testing
