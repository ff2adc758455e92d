#!/usr/bin/env bash
# A run's state moves to more, fewer and other drives: the same digest, the same bits afterwards; kills at random
# instants of moves leave the old placement or the new one.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps 12 --batch 8 --seq-len 64 --lr 2e-3
        --memory 512MiB --quiet)
mkdir "$place"/d{1,2,3,4,5}
run=$place/run

must train "${common[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)
must train "${common[@]}" --drive "$place/d1" --out "$run" --stop-at 5
at5=$(digest)

# holds NAME WANTED: the digest of every byte, and how many volumes there are.
holds() {
    must inspect "$run" --digest --deep
    same "$1: digest" "$(digest)" "$at5"
    same "$1: volumes" "$(find "$place" -name '*.volume*' | wc -l)" "$2"
}
must drive add "$run" "$place/d2" "$place/d3" --drive-speeds 2,1,1
holds "three drives" 3
must drive list "$run"
grep -q "d1: 50" "$place/log" && ok "the shares given" || fail "shares that were given are not those of the drives"
must drive remove "$run" "$place/d1"
holds "without the first" 2
must drive add "$run" "$place/d1" "$place/d4" "$place/d5" --drive-speeds 1,3,1,2,1
holds "five drives" 5
must drive move "$run" "$place/d2=$place/d2/own.volume" --drive-speeds 1,1,1,1,1
holds "another file on the same drive" 5
must drive move "$run" --drive-speeds 5,1,1,1,1
holds "other shares" 5
must drive list "$run" --json
grep -q '"generation":6' "$place/log" && ok "generation" || fail "the placement's generation is not shown"
documented "drive list" "$place/log"
must drive remove "$run" "$place/d2/own.volume" "$place/d3" "$place/d1" "$place/d5"
holds "one drive" 1

# Moved by hand, in the way that needs no copy.
mv "$place/d4" "$place/d6"
run drive list "$run"
must train --resume "$run" --quiet --drive "$place/d4=$place/d6" --stop-at 6
must drive add "$run" "$place/d1" "$place/d2" --drive-speeds 1,1,1
must train --resume "$run" --quiet
same "training goes on with the same bits" "$(digest)" "$wanted"

# A name with a line break is one line.
odd=$place/$'two\nlines'
must train "${common[@]}" --drive "$place/odd.volume" --out "$odd" --stop-at 1
"$LONGSHORE" drive move "$odd" "$place/odd.volume=$place/even.volume" 2>/dev/null >"$place/log"
same "one line" "$(grep -c '' "$place/log")" 1
must remove "$odd"

# Names of the user's own that end as the program's do.
mkdir "$place"/disk.g{1,2}
must train "${common[@]}" --drive "$place/disk.g1" --out "$place/own" --stop-at 1
must drive move "$place/own" "$place/disk.g1=$place/disk.g2"
same "it went where it was told to" "$(find "$place"/disk.g? -type f)" "$(volume_in "$place/disk.g2")"
must drive list "$place/own"
grep -q "^$place/disk.g2: 100" "$place/log" && ok "its whole name" || fail "a directory is listed by another name"
must drive move "$place/own" "$place/disk.g2=$place/disk.g1/own.g3"
must drive move "$place/own" "$place/disk.g1/own.g3=$place/disk.g1/own.volume"
must drive add "$place/own" "$place/disk.g1/own.g3" --drive-speeds 1,1
must drive move "$place/own" --drive-speeds 1,2
same "each beside itself" "$(find "$place"/disk.g? -type f -printf '%f\n' | sort | tr '\n' ' ')" "own.g3.g6 own.volume.g6 "
must train --resume "$place/own" --quiet
same "the same bits under such names" "$(digest)" "$wanted"
must remove "$place/own"

# A file that was moved by hand has the name that lists show, and what the program has added to it.
mkdir "$place"/hand{1,2}
must train "${common[@]}" --drive "$place/hand1/own.volume" --out "$place/hand" --stop-at 1
cp "$place/hand1/own.volume" "$place/hand1/kept"
must drive add "$place/hand" "$place/hand2" --drive-speeds 1,1
# as if that had been killed at its end
printf '{"from": 1, "to": 2, "new": [], "old": ["%s"]}' "$place/hand1/kept" >"$place/hand/moving.json"
mv "$place/hand1" "$place/hand3"
must train --resume "$place/hand" --quiet --drive "$place/hand1/own.volume=$place/hand3/own.volume"
same "the same bits from there" "$(digest)" "$wanted"
mv "$place/hand3/own.volume.g2" "$place/hand3/other"
must train --resume "$place/hand" --quiet --drive "$place/hand3/own.volume=$place/hand3/other"
must remove "$place/hand"
same "no file of it" "$(find "$place"/hand? -type f)" ""

# The same where the old volume is still there under the name that is given: the one of this placement counts.
mkdir "$place/hand5"
must train "${common[@]}" --drive "$place/hand5/own.volume" --out "$place/hand" --stop-at 1
cp "$place/hand5/own.volume" "$place/kept"
must drive move "$place/hand" --drive-speeds 1
mv "$place/kept" "$place/hand5/own.volume"
printf '{"from": 1, "to": 2, "new": [], "old": ["%s"]}' "$place/hand5/own.volume" >"$place/hand/moving.json"
mv "$place/hand5" "$place/hand6"
must train --resume "$place/hand" --quiet --drive "$place/hand5/own.volume=$place/hand6/own.volume"
same "the same bits beside the old volume" "$(digest)" "$wanted"
same "the old volume goes" "$(ls "$place/hand6")" own.volume.g2
must remove "$place/hand"

# A name with no room for what is added to it.
long=$place/$(printf 'n%.0s' {1..248}).volume
must train "${common[@]}" --drive "$long" --out "$place/named" --stop-at 1
refused "no name for another volume" "g2: cannot be examined: File name too long" drive move "$place/named" \
    --drive-speeds 1
refused "no name for a snapshot" "snapshot-one: cannot be examined: File name too long" snapshot "$place/named" one
same "nothing is left of both" "$(find "$place/named" -name 'moving*' -o -name 'one*')" ""
must remove "$place/named"

# What makes no sense is refused, and nothing changes.
before=$(cksum <"$run/run.json")
refused "the last drive" "last one|needs a drive" drive remove "$run" "$place/d6" "$place/d1" "$place/d2"
refused "a drive that is not there" "no such drive" drive remove "$run" "$place/d9"
refused "a drive of another name" "no such drive" drive move "$run" "$place/d9=$place/d3"
refused "a drive twice" "twice" drive add "$run" "$place/d3" "$place/d3/" --drive-speeds 1,1,1,1,1
refused "a drive that is in it" "already" drive add "$run" "$place/d1"
refused "two into one" "twice" drive move "$run" "$place/d1=$place/d2"
refused "memory" "keeps nothing" drive add "$run" ram: --drive-speeds 1,1,1,1
refused "no word of where" "OLD=NEW" drive move "$run" "$place/d1"
refused "to nowhere" "to where" drive move "$run" "$place/d1="
refused "a directory that is not there" "does not exist" drive add "$run" "$place/none/none" --drive-speeds 1,1,1,1
refused "a drive of no kind" "null: a special file" drive add "$run" /dev/null --drive-speeds 1,1,1,1
same "said once" "$(grep -c '^longshore:' "$place/log")" 1
refused "too few speeds" "2 speeds for 4 drives" drive add "$run" "$place/d3" --drive-speeds 1,2
refused "not a speed" "not a speed" drive add "$run" "$place/d3" --drive-speeds 1,2,fast,1
refused "speed 0" "not a speed" drive add "$run" "$place/d3" --drive-speeds 1,2,0,1
refused "no drive" "which drives" drive add "$run"
refused "no run" "not a run" drive add "$place/d1" "$place/d2"
refused "no run at all" "which run" drive add
refused "a run in memory" "in memory" drive add "$place/whole" "$place/d3"
refused "speeds with --resume" "drive move" train --resume "$run" --drive-speeds 2,1,1 --steps 20
refused "speeds without drives" "speeds for" train "${common[@]}" --drive "$place/d3" --drive-speeds 2,1 --out "$place/no"
same "run.json as before" "$(cksum <"$run/run.json")" "$before"
same "no file is left" "$(find "$place" -name '*.volume*' | wc -l)" 3
mkdir "$place/other"
cp "$place/d1/"longshore*.volume* "$place/d3/a.volume"
refused "a volume that is there" "already|exists" drive add "$run" "$place/d3/a.volume" --drive-speeds 1,1,1,1
[ -s "$place/d3/a.volume" ] && ok "it stays" || fail "a refused move has removed what was there"
rm "$place/d3/a.volume"

# A run that is in use.
exec 9<"$run"
flock -x 9
refused "a run in use" "another process" drive add "$run" "$place/d3" --drive-speeds 1,1,1,1
flock -u 9

# kill -9 at random instants of moves between two placements; whoever opens the run next mends it.
must inspect "$run" --digest
at=$(digest)
a=("$place/d1=$place/d3" "$place/d2=$place/d5") b=("$place/d3=$place/d1" "$place/d5=$place/d2")
start=$(date +%s%N)
must drive move "$run" "${a[@]}"
limit=$((($(date +%s%N) - start) / 1000 * 12 / 10))
must drive move "$run" "${b[@]}"
kills=0
for i in $(seq "${KILLS:-24}"); do
    words=("${a[@]}")
    "$LONGSHORE" drive list "$run" 2>/dev/null | grep -q "$place/d3:" && words=("${b[@]}")
    "$LONGSHORE" drive move "$run" "${words[@]}" >"$place/log" 2>&1 </dev/null &
    background=$!
    nap 0 "$limit"
    kill -9 $background 2>/dev/null && kills=$((kills + 1))
    wait $background 2>/dev/null
    background=
    case $((i % 3)) in
    0) run inspect "$run" --digest --deep ;;
    1) run drive list "$run" && run inspect "$run" --digest ;;
    2) run train --resume "$run" --quiet ;;
    esac
    found=$(digest)
    [ "$found" = "$at" ] || fail "after kill $i: '$found' is not '$at'"
    [ "$(find "$place" -name '*.volume*' | wc -l)" = 3 ] || fail "after kill $i: volumes are left over"
    [ ! -e "$run/moving.json" ] || fail "after kill $i: moving.json is left"
done
ok "$kills kills"
# A drive that holds the other one up is named, and not the other one.
gpt2_config "$place/wide.json" 2 192 4 64 600
echo '{"drives": [{"mixed": "400MB"}, {"mixed": "40MB"}]}' >"$place/rates.json"
slow=(--init "$place/wide.json" --seed 3 --data "$place/text" --steps 6 --batch 2 --seq-len 64 --memory 512MiB
      --log-every 1 --emulate "$place/rates.json")
must train "${slow[@]}" --drive "$place/d1/slow.volume" "$place/d2/slow.volume" --drive-speeds 1,1 --out "$place/slow"
grep -q "slow: .*d2/slow.volume works" "$place/log" && ok "the slow drive is named" || fail "the slow drive is not named"
grep -q "slow: .*d1/slow.volume works" "$place/log" && fail "the fast drive is named" || ok "the fast one is not"
must remove "$place/slow"

must remove "$run"
same "nothing is left" "$(find "$place" -name '*.volume*' | wc -l)" 0
# What is said before anything is written: on what each drive lies, and what is odd about that.
says() { grep -qE -- "$1" "$place/log" && ok "said: $1" || fail "not said: $1"; }
merge common --stop-at 1
told=()
for word in "${merged[@]}"; do [ "$word" = --quiet ] || told+=("$word"); done
mkdir "$place"/told{1,2}
must train "${told[@]}" --drive "$place/told1" "$place/told2/own.volume" --out "$place/told"
says "^longshore: drive $place/told1: .*\([a-z0-9.]+ on /.*\), [0-9.]+ [KMGT]?i?B free$"
says "^longshore: warning: drives $place/told1 and $place/told2/own.volume lie on one device"
must remove "$place/told"
must train "${merged[@]}" --drive "$place/told1" "$place/told2" --out "$place/told"
grep -q "$place/told1" <(sed 1d "$place/log") && fail "--quiet says something" || ok "--quiet says nothing"
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && memory=$(mktemp -d /dev/shm/longshore-told.XXXXXX); then
    must train "${told[@]}" --drive "$memory" --out "$place/in-memory"
    says "warning: drive $memory lies in memory \(tmpfs\)"
    rm -r "$memory"
fi
socket=$(mktemp -d)/s
serve --root "$place"
must train "${told[@]}" --drive "unix:$socket:told1/a.volume" "unix:$socket:told2/b.volume" --out "$place/far-told"
says "drive unix:$socket:told1/a.volume: behind a socket, room for [0-9.]+ "
says "warning: drives unix:$socket:told1/a.volume and unix:$socket:told2/b.volume lie on one device"
stop_serving
rm -r "${socket%/s}"

done_testing
