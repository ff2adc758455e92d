#!/usr/bin/env bash
# A far side that is not as it should be: no way there, another's state or an older one, a full disk, bytes that are lost
# on the way, silence. One sentence names the drive and what to do; nothing hangs, and nothing is lost.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
common=(--init "$place/config.json" --data "$place/text" --steps 20 --batch 8 --seq-len 64 --memory 512MiB --quiet)
export LONGSHORE_SILENCE=1
mkdir "$place/far" "$place/other" "$place/rsh"
server=
stop_server() {
    [ -z "$server" ] || kill "$server" 2>/dev/null
    rm -rf "${socket:+$(dirname "$socket")}"
    finish
}
trap stop_server EXIT

# stand_in NAME SCRIPT: what is run instead of ssh; the script's $serve is the server.
serve="$LONGSHORE drive serve --stdio"
stand_in() {
    printf '#!/bin/sh\nserve="%s"\n%s\n' "$serve" "$2" >"$place/rsh/$1"
    chmod +x "$place/rsh/$1"
}
# quick NAME START: nothing that is refused takes long.
quick() { if [ $((SECONDS - $2)) -lt 120 ]; then ok "$1 is quick"; else fail "$1 took $((SECONDS - $2)) s"; fi; }

# ---- no way there ----
while IFS='|' read -r name pattern script; do
    pattern=${pattern/LOGIN/"refuses the login.*set up a key so that '.*-p 77 me@far true' works"}
    pattern=${pattern/VERSION/"install the same version on both hosts"}
    stand_in "$name" "$script"
    # only who has nothing more to say is given up soon: a busy machine starts a script late
    case $name in asks* | silent | trickling) LONGSHORE_SILENCE=5 ;; *) LONGSHORE_SILENCE=20 ;; esac
    start=$SECONDS
    refused "$name" "ssh://me@far:77/x: .*$pattern" train "${common[@]}" --rsh "$place/rsh/$name" --drive ssh://me@far:77/x --out "$place/x"
    quick "$name" $start
    [ ! -e "$place/x" ] || fail "$name: something was made"
done <<'TABLE'
absent|not installed on me@far.*install it|echo 'sh: 1: longshore: not found' >&2; exit 127
absent-csh|not installed on me@far.*install it|echo 'longshore: Command not found.' >&2; exit 1
not-executable|cannot be run.*install one|echo 'sh: 1: longshore: Permission denied' >&2; exit 126
old|too old to serve.*VERSION|echo "longshore: unknown command 'drive': there are train, eval" >&2; exit 2
older|too old.*VERSION|printf '\211LongshoreDrive\n\000\000\000\000\000\000\000\000'; exec sleep 5
newer|too new.*VERSION|printf '\211LongshoreDrive\n\143\000\000\000\142\000\000\000'; exec sleep 5
denied|LOGIN|echo 'me@far: Permission denied (publickey,password).' >&2; exit 255
asks|LOGIN|printf "me@far's password: " >&2; exec sleep 60
asks-for-key|LOGIN|printf "Enter passphrase for key '/home/me/.ssh/id': " >&2; exec sleep 60
unknown|host key of me@far.*run '.*-p 77 me@far' by hand|printf 'Host key verification failed.\r\n' >&2; exit 255
down|cannot be reached .*refused.*see that '.*-p 77 me@far true' works|echo 'ssh: connect to host far port 77: Connection refused' >&2; exit 255
nowhere|cannot be reached .*resolve.*see that|echo 'ssh: Could not resolve hostname far: Name or service not known' >&2; exit 255
no-account|no longshore answers.*it said: This account.*see what|echo 'This account is not available.'; exit 1
killed|no longshore answers.*has closed.*see what|kill -9 $$
wordy|no longshore answers.*\(first of many 0.*see what|printf 'first of many %0250d\n' 0 >&2; exit 3
silent|no longshore answers.*silent for 5 s.*see what|exec sleep 60
chatty|65536 bytes of other text.*login scripts must be quiet|while :; do echo 'Welcome to far, home of everything'; done
trickling|not a longshore drive server.*login scripts must be quiet|while :; do echo .; sleep 0.2; done
TABLE
refused "no such command" "cannot be started.*LONGSHORE_RSH" train "${common[@]}" --rsh "$place/rsh/nothing" --drive ssh://far/x --out "$place/x"
LONGSHORE_CONNECTIONS=9 refused "too many connections" "LONGSHORE_CONNECTIONS: .*takes a whole number from 1 to 8" \
    drive bench ssh://far/x --rsh "$place/rsh/absent"
refused "no address, where it is read" "ssh:far/x: a drive on another host is ssh://" \
    train "${common[@]}" --dry-run --drive "$place" ssh:far/x --out "$place/x"
refused "a blank command" "far/x: LONGSHORE_RSH is blank: name" drive bench ssh://far/x --rsh " "

# ---- what is there is not what was left there ----
stand_in plain 'exec $serve'
export LONGSHORE_RSH="$place/rsh/plain"
far=ssh://far$place/far
must train "${common[@]}" --drive ram: --seed 3 --out "$place/whole"
wanted=$(digest)
must train "${common[@]}" --seed 4 --drive "ssh://far$place/other" --out "$place/others" --stop-at 2
must train "${common[@]}" --seed 3 --drive "$far" --out "$place/run" --stop-at 2
volume=$(volume_in "$place/far")
cp "$volume" "$place/at2"
must train --resume "$place/run" --stop-at 4
cp "$volume" "$place/at4"
cp -r "$place/run" "$place/run4"
while IFS='|' read -r name pattern change; do
    (cd "$place" && eval "$change")
    refused "$name" "$far.*$pattern" train --resume "$place/run"
    cp "$place/at4" "$volume"
done <<'TABLE'
another run's state|belongs to another run.*put|cp "$(volume_in other)" "$volume"
zeros|not a longshore volume.*check the path|head -c 9000000 /dev/zero >"$volume"
cut off|not a longshore volume.*check the path|truncate -s 100 "$volume"
gone|is missing.*--drive|rm "$volume"
an old copy|at step 2 but step 4 was committed.*put the newest state back|cp at2 "$volume"
TABLE

# ---- the connection breaks in the middle ----
export LONGSHORE_SILENCE=5 # on a busy machine, a second passes without a word of either side
# again NAME PATIENCE FIRST THEN: the run goes on from step 4; the server runs as FIRST until it has lost something, later
# as THEN.
again() {
    rm -rf "$place/run" "$place/served"
    cp -r "$place/run4" "$place/run"
    cp "$place/at4" "$volume"
    stand_in changing "
        cd '$place'
        if [ -e served ]; then $4; fi
        # passes N reads on, and loses a byte
        lose() { dd bs=4096 count=\$1 2>/dev/null; [ -z \"\$(dd bs=1 count=1 2>/dev/null | od)\" ] || touch served; }
        $3"
    start=$SECONDS
    run train --resume "$place/run" --rsh "$place/rsh/changing" --reconnect-timeout "$2"
    quick "$1" $start
}
while IFS='~' read -r name patience code pattern first then; do
    again "$name" "$patience" "$first" "$then"
    same "$name: exit code" $rc "$code"
    if sed 1d "$place/log" | grep -qE -- "$pattern"; then ok "$name"; else fail "$name: no '$pattern'"; fi
    same "$name: said once" "$(grep -c "waiting for it" "$place/log")" 1
    grep "waiting for it" "$place/log" | grep -q "$far[^ ]*: " || fail "$name: the drive is not named"
    if [ $rc = 0 ]; then
        same "$name: digest" "$(digest)" "$wanted"
    else # the state is still good
        case $name in *state* | *copy*) cp "$place/kept" "$volume" ;; esac
        must train --resume "$place/run"
        same "$name: digest in the end" "$(digest)" "$wanted"
    fi
done <<'TABLE'
cut off~60~0~connected again~$serve | lose 600~exec $serve
a byte lost on the way here~60~0~waiting~$serve | { lose 600; exec cat; }~exec $serve
a byte lost on the way there~60~0~broke the protocol~{ lose 1500; exec cat; } | $serve~exec $serve
another's state~60~1~another volume is there.*put~$serve | lose 600~cp far/longshore*.volume kept; cp other/longshore*.volume far/longshore*.volume; exec $serve
an old copy~60~1~at step 2 but step [0-9]+ was committed.*put~$serve | lose 600~cp far/longshore*.volume kept; cp at2 far/longshore*.volume; exec $serve
refused~60~1~refuses the login~$serve | lose 600~echo 'Permission denied (publickey).' >&2; exit 255
down~1~1~gave up after.*cannot be reached.*--resume~$serve | lose 600~echo 'ssh: Connection refused' >&2; exit 255
TABLE

# A far side that each step ends: no run waits for it for ever.
stand_in fatal '$serve | dd bs=4096 count=300 2>/dev/null'
cp "$place/at4" "$volume"
rm -rf "$place/run"
cp -r "$place/run4" "$place/run"
expect_failure 1 "a far side that every step ends" "gave up, since a drive was lost 21 times in step 5.*state is good" \
    train --resume "$place/run" --rsh "$place/rsh/fatal"
must train --resume "$place/run"
same "the digest after that" "$(digest)" "$wanted"

# A command that had begun has failed while running; one that could not begin is refused.
mkdir "$place/far/codes"
run=$place/codes
codes=ssh://far$place/far/codes
must train "${common[@]}" --seed 3 --drive "$codes" --out "$run" --stop-at 2
must snapshot "$run" two
at2=$(digest)
must train --resume "$run" --stop-at 4
at4=$(digest)
stand_in breaking "\$serve | dd bs=4096 count=30 2>/dev/null"
stand_in barely "\$serve | dd bs=4096 count=1 2>/dev/null"
stand_in dies "export FAIL_IO='die 0 0 .snapshot-' LD_PRELOAD='$FAIL_IO_SO'; exec \$serve"
stand_in answers-once "[ ! -e '$place/asked' ] || exit 255; touch '$place/asked'; exec \$serve"
mkdir "$place/here"
while IFS='|' read -r how words advice; do
    read -ra words <<<"$words"
    expect_failure 1 "$how: ${words[0]}" "$codes" "${words[@]}" --rsh "$place/rsh/$how"
    grep -qE -- "$advice" "$place/log" && ok "$how: ${words[0]}: advice" || fail "$how: ${words[0]}: no '$advice'"
    refused "barely: ${words[0]}" "$codes" "${words[@]}" --rsh "$place/rsh/barely"
    must inspect "$run" --digest --deep
    same "after ${words[0]}" "$(digest)" "$at4"
done <<TABLE
breaking|eval $run --data $place/text|the same command can be given again
breaking|generate $run --prompt the|the same command can be given again
breaking|export $run --out $place/exported|the same command can be given again
breaking|rollback $run two|the state is where it was
breaking|drive move $run $codes=$place/here|the state is where it was
dies|snapshot $run cut|the same command can be given again
TABLE
refused "a part of a snapshot" "snapshot-two: .*cannot be reached|$codes.*exit code 255" rollback "$run" two --rsh "$place/rsh/answers-once"
! grep -q "snapshot-two=NEW" "$place/log" && ok "it is no drive" || fail "it is taken for a drive"
rm "$place/asked"
# A rollback that another command goes on with is work, too.
echo '{"snapshot": "two", "from": 4, "committed": false}' >"$run/rollback.json"
refused "a rollback that cannot go on" "going back to snapshot two was interrupted.*$codes" inspect "$run" --rsh "$place/rsh/barely"
expect_failure 1 "a rollback that is cut off again" "going back to snapshot two was interrupted.*$codes" \
    inspect "$run" --rsh "$place/rsh/breaking"
must inspect "$run" --digest --deep
same "it goes on" "$(digest)" "$at2"
expect_failure 1 "a volume that is not removed" "$codes" remove "$run" --rsh "$place/rsh/answers-once"
grep -q "removed already: .*the same command goes on" "$place/log" && ok "how to go on" || fail "how to go on is not said"
must remove "$run"

# The server is gone as soon as the last step is durable, before it can say so: that step counts as well.
last=
for n in $(seq 6 16); do
    rm -rf "$place/run"
    mkdir -p "$place/far/$n"
    stand_in dies "[ ! -e '$place/far/$n/died' ] || exec \$serve
        FAIL_IO='die $n 0 far/' LD_PRELOAD='$FAIL_IO_SO' \$serve
        [ \$? != 9 ] || touch '$place/far/$n/died'"
    merge common --steps 3 --memory 512MiB
    run train "${merged[@]/--quiet/--log-every=1}" --seed 3 --io threads --rsh "$place/rsh/dies" --drive "ssh://far$place/far/$n" --out "$place/run"
    grep -q "connected again" "$place/log" || continue
    same "died after flush $n: the steps" "$(grep -oE 'at the last of [0-9]+' "$place/log")" "at the last of 3"
    same "died after flush $n: said" "$(grep -cE '^[0-9:]{8} step [0-9]+/3' "$place/log")" 3
    ! grep -q "going on from step 3" "$place/log" || last=$(sed -nE 's/.*, ([0-9.]+) at the last of .*/\1/p' "$place/log")
done
must train "${merged[@]/--quiet/--log-every=1}" --seed 3 --drive ram: --out "$place/run" --overwrite
same "its loss" "$last" "$(sed -nE 's/.*, ([0-9.]+) at the last of .*/\1/p' "$place/log")"

# ---- silence ----
export LONGSHORE_SILENCE=1
socket=$(mktemp -d "${TMPDIR:-/tmp}/longshore.XXXXXX")/s # the names of sockets are short
"$LONGSHORE" drive serve --listen "$socket" --root "$place/far" 2>"$place/server.log" &
server=$!
await test -S "$socket"
# log_says TEXT: the server's.
log_says() {
    await grep -q "$1" "$place/server.log"
    if grep -q "$1" "$place/server.log"; then ok "the server says: $1"; else fail "the server does not say: $1"; fi
}
lines() { if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi; }
# started RUN ARGS...: in the background, some steps ahead.
started() {
    local run=$1 before
    shift
    before=$(lines "$run/metrics.jsonl")
    printf '$ longshore %s\n' "$*" >"$place/log"
    "$LONGSHORE" "$@" >>"$place/log" 2>&1 </dev/null &
    background=$!
    await steps_made "$run" $((before + 2))
}
ended() {
    wait $background 2>/dev/null
    rc=$?
    background=
}
merge common --steps 100
must train "${merged[@]}" --seed 3 --drive ram: --out "$place/whole100"
wanted=$(digest)
started "$place/silent" train "${merged[@]}" --seed 3 --drive "unix:$socket:silent.volume" --out "$place/silent"
kill -STOP $background
log_says "silent.volume: the client is gone: the other side has been silent"
kill -CONT $background
ended
same "a client that was stopped: exit code" $rc 0
same "a client that was stopped: digest" "$(digest)" "$wanted"
grep -q "connected again" "$place/log" && ok "it came back" || fail "it never lost the connection"
started "$place/killed" train "${merged[@]}" --seed 3 --drive "unix:$socket:killed.volume" --out "$place/killed"
kill -9 $background
ended
log_says "killed.volume: the client is gone: the other side has closed"
must inspect "$place/killed" --digest --deep
# A server may hold the volume for a moment yet: who makes one there waits, as who opens it does.
held=("${common[@]}" --seed 3 --drive "unix:$socket:held.volume" --out "$place/held" --stop-at 1)
must train "${held[@]}"
flock -x "$place/far/held.volume" sleep 1.5 &
must train "${held[@]}" --overwrite
wait $!

# A run on a host that cannot be reached is overwritten all the same: what stays there is named.
stand_in gone 'echo "ssh: connect to host far port 22: Connection refused" >&2; exit 255'
mkdir "$place/far/off"
must train "${common[@]}" --seed 3 --rsh "$place/rsh/plain" --drive "ssh://far$place/far/off" "$place/near.volume" \
    --drive-speeds 1,1 --out "$place/off" --stop-at 1
must snapshot "$place/off" one --rsh "$place/rsh/plain"
must train "${common[@]}" --seed 3 --rsh "$place/rsh/gone" --drive "$place/other" --out "$place/off" --stop-at 1 --overwrite
grep -q "ssh://far$place/far/off.*: .*the volume of the run that was overwritten stays there and is yours to remove" \
    "$place/log" && ok "the volume that stays" || fail "no word of the volume that stays"
grep -q "a part of snapshot one stays: ssh://far$place/far/off/longshore[^ ]*volume.snapshot-one: " "$place/log" &&
    grep -q "what is said to stay is yours to remove" "$place/log" && ok "the part that stays" ||
    fail "no word of the part that stays"
[ ! -e "$place/near.volume" ] && ok "the rest goes" || fail "a volume that is at hand is left"
must remove "$place/off"

# A volume that has to be written takes longer there than silence is borne.
mkdir "$place/far/slow"
stand_in slow "export FAIL_IO='slow 0 250 far/slow/' LD_PRELOAD='$FAIL_IO_SO'; exec \$serve"
start=$SECONDS
must train "${common[@]}" --seed 3 --rsh "$place/rsh/slow" --drive "ssh://far$place/far/slow" --out "$place/slow" --stop-at 1
[ $((SECONDS - start)) -ge 3 ] && ok "making it was slow" || fail "making it was not slow"

# What a making that was killed has left: the removal takes a volume without a header, and nobody else's file.
mkdir -p "$place/begun/making"
printf '{"fleet": "%032d", "volumes": ["unix:%s:begun", "unix:%s:letter"]}' 7 "$socket" "$socket" \
    >"$place/begun/making/plan.json"
truncate -s 1M "$place/far/begun"
echo "dear sir" >"$place/far/letter"
must remove "$place/begun"
[ ! -e "$place/far/begun" ] && ok "the volume that was begun is removed" || fail "the volume that was begun is left"
[ -s "$place/far/letter" ] && ok "the letter stays" || fail "the letter is gone"

stand_in stopping "echo \$\$ >'$place/pid'; exec \$serve"
started "$place/killed" train --resume "$place/killed" --drive "unix:$socket:killed.volume=ssh://far$place/far/killed.volume" --rsh "$place/rsh/stopping"
kill -STOP "$(cat "$place/pid")"
ended
same "a far side that was stopped: exit code" $rc 0
same "a far side that was stopped: digest" "$(digest)" "$wanted"
grep -q "silent for 1 s.*waiting" "$place/log" && ok "its silence is noticed" || fail "its silence is not noticed"
kill -CONT "$(cat "$place/pid")" 2>/dev/null

# One drive is lost while another comes back: what it held when it was opened says nothing any more.
stand_in both "
    echo \$\$ >'$place/pid.'\$1
    if [ \$1 = b ] && [ -e '$place/lost' ] && mkdir '$place/a.lost' 2>/dev/null; then kill -9 \$(cat '$place/pid.a'); sleep 0.3; fi
    exec \$serve"
mkdir "$place/far/a" "$place/far/b"
must train "${merged[@]}" --seed 3 --rsh "$place/rsh/both" --drive "ssh://a$place/far/a" "ssh://b$place/far/b" \
    --out "$place/two" --stop-at 2
started "$place/two" train --resume "$place/two" --rsh "$place/rsh/both"
touch "$place/lost"
kill -9 "$(cat "$place/pid.b")"
ended
[ -e "$place/a.lost" ] && ok "both were lost" || fail "only one was lost"
same "one after the other: exit code" $rc 0
same "one after the other: digest" "$(digest)" "$wanted"

# ---- a full disk there, if a small file system may be mounted ----
if [ "$(id -u)" = 0 ] && mkdir "$place/tiny" && mount -t tmpfs -o size=20M none "$place/tiny" 2>/dev/null; then
    tiny=ssh://far$place/tiny
    must train "${common[@]}" --seed 3 --drive "$tiny" --out "$place/full" --stop-at 2
    refused "no room for another volume" "ssh://far.*needs .* (has|have) .*free space" \
        train "${common[@]}" --drive "$tiny/second.volume" --out "$place/x"
    dd if=/dev/zero of="$place/tiny/filler" bs=65536 2>/dev/null
    refused "no room for a snapshot" "$tiny.*needs .* free space" snapshot "$place/full" two
    must train --resume "$place/full" --snapshot-every 15
    grep -q "no snapshot of step 15: $tiny.*free space" "$place/log" && ok "training goes on" || fail "no snapshot, and not a word"
    wanted=$(digest)
    must train "${common[@]}" --seed 3 --drive ram: --out "$place/whole20"
    same "a full disk: digest" "$wanted" "$(digest)"
    same "nothing is left" "$(ls "$place/tiny")" "$(printf 'filler\n%s' "$(basename "$(volume_in "$place/tiny")")")"
    umount "$place/tiny"
fi
done_testing
