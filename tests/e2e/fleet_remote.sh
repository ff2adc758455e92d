#!/usr/bin/env bash
# Moves, snapshots and rollbacks where drives are behind a server: the same digest, also after the server was killed in
# the middle.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps 12 --batch 8 --seq-len 64 --memory 512MiB --quiet)
mkdir "$place"/d{1,2,3,4}
run=$place/run socket=$(mktemp -d)/s
there() { echo "unix:$socket:$place/$1"; }
volumes() { find "$place" -name '*.volume*' | wc -l; }
bytes_of_volumes() { find "$place" -name '*.volume*' -exec cksum {} +; }
holds() { # NAME DIGEST VOLUMES
    local before
    before=$(bytes_of_volumes)
    must inspect "$run" --digest --deep
    same "$1: reading writes nothing" "$(bytes_of_volumes)" "$before"
    same "$1: digest" "$(digest)" "$2"
    same "$1: volumes" "$(volumes)" "$3"
}

must train "${common[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)
serve
must train "${common[@]}" --drive "$place/d1" --out "$run" --stop-at 4
at4=$(digest)
must drive add "$run" "$(there d2)" --drive-speeds 1,2
holds "one drive behind a server" "$at4" 2
must snapshot "$run" four
same "a copy beside each volume" "$(find "$place"/d[12] -name '*.snapshot-four' | wc -l)" 2
must drive move "$run" "$place/d1=$(there d3)"
holds "both behind a server" "$at4" 4
must train --resume "$run"
same "the same bits" "$(digest)" "$wanted"
must rollback "$run" four
holds "back" "$at4" 4
# What is told of drives there is what is told of those here, and a far side that is away is one line of it.
must drive list "$run" --json
grep -q '"generation":3.*"segments":[0-9].*"size_bytes":[0-9].*"in_use":false,"step":4' "$place/log" &&
    ok "what a drive there holds" || fail "what a drive there holds is not told"
must drive list "$run"
same "both are listed" "$(grep -c "% of the state ([0-9]* segments), .*placement 3, step 4, epoch .*, speed [12]$" "$place/log")" 2
must inspect "$run"
same "inspect says the same" "$(grep -c "% of the state ([0-9]* segments), .*placement 3, step 4, epoch .*, speed [12]$" "$place/log")" 2
must drive move "$run" "$(there d3)=$place/d1" --drive-speeds 1,2
stop_serving
must drive list "$run"
same "the one that is here" "$(grep -c "^$place/d1: .*% of the state" "$place/log")" 1
same "the one that cannot be asked" "$(grep -c "^unix:$socket:$place/d2: .*nobody serves" "$place/log")" 1
serve
must drive move "$run" "$place/d1=$(there d3)" --drive-speeds 1,2
must drive add "$run" "$place/d1" "$(there d4)" --drive-speeds 1,1,1,1
must train --resume "$run"
same "the same bits on more drives" "$(digest)" "$wanted"
must rollback "$run" four

# A server with another socket: what it serves is found there, the snapshot's parts too.
moved=()
for d in d2 d3 d4; do moved+=("$(there $d)=unix:$socket.moved:$place/$d"); done
mv "$socket" "$socket.moved"
must train --resume "$run" --stop-at 4 --drive "${moved[@]}"
must rollback "$run" four
holds "back from behind another socket" "$at4" 6
mv "$socket.moved" "$socket"
for i in "${!moved[@]}"; do moved[i]=${moved[i]#*=}=${moved[i]%%=*}; done
must train --resume "$run" --stop-at 4 --drive "${moved[@]}"

# The server dies when the first file is there: what was begun behind it goes once it is back.
mkdir "$place/d5"
there_or_ended() { compgen -G "$1" >/dev/null || ! kill -0 $client 2>/dev/null; }
dies_at() { # PATTERN ARGS...
    local file=$1
    shift
    "$LONGSHORE" "$@" >"$place/log" 2>&1 </dev/null &
    client=$!
    await there_or_ended "$file"
    stop_serving
    wait $client 2>/dev/null
    serve
    must train --resume "$run" --stop-at 4
    same "after '$1 $2' lost the server" "$(digest)" "$at4"
}
for _ in 1 2 3; do
    dies_at "$place/d5/longshore*.volume" drive move "$run" "$place/d1=$(there d5)" --drive-speeds 1,1,1,1
    same "no volume is left over" "$(volumes)" 6
    [ ! -e "$(volume_in "$place/d5")" ] || must drive move "$run" "$(there d5)=$place/d1" --drive-speeds 1,1,1,1
    dies_at "$place/d2/*.snapshot-cut.partial" snapshot "$run" cut
    "$LONGSHORE" snapshots "$run" | grep -q "^cut:" && must snapshot "$run" cut --remove
    same "no part of a snapshot is left over" "$(volumes)" 6
done

# A server that has not begun with the snapshot that its client asked for when it was killed makes it later.
stop_serving
FAIL_IO='stop 0 0 .snapshot-held' LD_PRELOAD=$FAIL_IO_SO serve
"$LONGSHORE" snapshot "$run" held >"$place/log" 2>&1 </dev/null &
client=$!
stopped() { for far in $(pgrep -P "$server"); do ! grep -q ') T ' "/proc/$far/stat" 2>/dev/null || echo "$far"; done; }
is_stopped() { [ -n "$(stopped)" ]; }
await is_stopped
[ -n "$(stopped)" ] && ok "servers wait with a snapshot" || fail "no server waits with a snapshot"
kill -9 $client
wait $client 2>/dev/null
refused "it has the volumes" "in use" train --resume "$run" --stop-at 4
[ -e "$run/snapshots/held.partial" ] && ok "it is not forgotten" || fail "it is forgotten"
kill -CONT $(stopped)
nobody_serves() { [ -z "$(pgrep -P "$server")" ]; }
await nobody_serves
[ -n "$(find "$place" -name '*.snapshot-held')" ] && ok "it was made all the same" || fail "nothing was made"
must train --resume "$run" --stop-at 4
same "and is removed" "$(find "$place" -name '*held*')" ""
stop_serving
serve

# The server dies in the middle; with a new one, the run is where it was, or where it was to go.
for i in $(seq "${KILLS:-6}"); do
    case $((i % 3)) in
    0) words=(rollback "$run" four) ;;
    1) words=(drive remove "$run" "$(there d4)" --drive-speeds 1,1,1) ;;
    2) words=(drive add "$run" "$(there d4)" --drive-speeds 1,1,1,1) ;;
    esac
    "$LONGSHORE" "${words[@]}" --quiet >"$place/log" 2>&1 </dev/null &
    client=$!
    nap 0 250000
    stop_serving
    kill -9 $client 2>/dev/null
    wait $client 2>/dev/null
    serve
    must inspect "$run" --digest --deep
    same "after the server died ($i)" "$(digest)" "$at4"
done
speeds=$("$LONGSHORE" drive list "$run" --json | grep -q d4 && echo 1,1,1,1 || echo 1,1,1)
must drive move "$run" --drive-speeds "$speeds"
must snapshot "$run" four --remove
same "volumes and nothing else" "$(volumes)" "$("$LONGSHORE" drive list "$run" --json | grep -o '"drive":' | wc -l)"
must train --resume "$run"
same "the same bits after all" "$(digest)" "$wanted"
# A move that is killed in the middle, and no other command between it and the removal.
"$LONGSHORE" drive move "$run" "$place/d1=$(there d5)" --drive-speeds "$speeds" >"$place/log" 2>&1 </dev/null &
client=$!
await there_or_ended "$place/d5/*.volume"
kill -9 $client 2>/dev/null
wait $client 2>/dev/null
must remove "$run"
same "nothing is left" "$(volumes)" 0

# What cannot be removed now is removed by a later command, and holds nothing up until then; parts of other drives have the
# same name.
mkdir "$place"/e{1,2}
must train "${common[@]}" --drive "$(there e2)" "$place/e1" --drive-speeds 1,1 --out "$run" --stop-at 4
at4=$(digest)
must snapshot "$run" one
must snapshot "$run" two
two=$(compgen -G "$place/e2/*.snapshot-two")
must drive remove "$run" "$(there e2)" --drive-speeds 1
stop_serving
must snapshot "$run" one --remove
grep -q "part of snapshot one stays: .*e2/longshore[^ ]*volume.snapshot-one: nobody serves" "$place/log" && ok "which file stays" ||
    fail "not a word of what stays"
refused "the same name" "choose another name" snapshot "$run" one
must train --resume "$run" --stop-at 4
same "the run is not held up" "$(digest)" "$at4"
serve
must train --resume "$run" --stop-at 4
same "the part goes when its drive is back" "$(find "$place/e2" -name '*.snapshot-*')" \
    "$two"
# as a server does that goes on copying when its client is gone
part=$two
mv "$part" "$part.partial"
mv "$run/snapshots/two.json" "$run/snapshots/two.partial"
exec 8<"$part.partial"
flock -x 8
must train --resume "$run" --stop-at 4
grep -q "snapshot-two.partial: .*in use" "$place/log" && ok "what is still written" || fail "not a word of what is still written"
mv "$part.partial" "$part"
exec 8<&-
must train --resume "$run" --stop-at 4
same "what was put in its place afterwards goes too" "$(find "$place/e2" "$run/snapshots" -type f)" ""
mkdir "$place/e3"
must drive add "$run" "$(there e2)" --drive-speeds 1,1
cp "$(volume_in "$place/e2")" "$place/e3/old"
must drive remove "$run" "$(there e2)" --drive-speeds 1
# as if the far side had been away at the end of that move
printf '{"from": 3, "to": 4, "new": [], "old": ["%s"]}' "$(there e3/old)" >"$run/moving.json"
stop_serving
must train --resume "$run" --stop-at 4
grep -q "e3/old: nobody serves.*the volume stays there" "$place/log" && ok "which volume stays" || fail "not a word of what stays"
exec 8<"$run"
flock -x 8
must inspect "$run" # who only reads does not wait for it
exec 8<&-
must drive move "$run" "$place/e1=$place/e2"
serve
must train --resume "$run" --stop-at 4
same "it goes when its drive is back" "$(ls "$place/e3" "$run" | grep -c 'old\|moving')" 0
same "the state is whole" "$(digest)" "$at4"

# A directory there that is called like a file of the placement keeps its name.
next=$(($(sed -nE 's/.*"generation": ?([0-9]+).*/\1/p' "$run/run.json") + 1))
mkdir "$place/e4.g$next"
must drive add "$run" "$(there "e4.g$next")" --drive-speeds 1,1
must drive list "$run"
same "its name" "$(grep -c "^unix:$socket:$place/e4.g$next: .*% of the state" "$place/log")" 1
must drive remove "$run" "$(there "e4.g$next")" --drive-speeds 1
must train --resume "$run" --stop-at 4
same "it is gone" "$(digest) $(ls "$place/e4.g$next")" "$at4 "

# Two runs in one directory there: each has names of its own, and what one does is nothing to the other.
for name in run other; do
    must train "${common[@]}" --drive "$(there e3)" --out "$place/$name" --overwrite --stop-at 1
    must drive move "$place/$name" --drive-speeds 1
done
same "each has a volume" "$(cd "$place/e3" && echo * | sed 's/-[0-9a-f]*\.volume/.volume/g')" \
    "longshore-other.volume.g2 longshore-run.volume.g2"
must drive move "$place/other" --drive-speeds 2
must remove "$run"
must remove "$place/other"
stop_serving
rm -rf "$(dirname "$socket")"
done_testing
