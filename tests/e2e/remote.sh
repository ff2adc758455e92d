#!/usr/bin/env bash
# Drives on other hosts: behind a socket, behind ssh (a server of its own on the loopback, with keys of its own), mixed
# with local ones; the same digest everywhere, also when the far side is killed. remote_faults.sh has what is said when it
# is not as it should be.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
steps=${STEPS:-12}
common=(--init "$place/config.json" --seed 3 --data "$place/text" --val-share 0.1 --eval-every 5 --steps "$steps"
        --batch 8 --seq-len 64 --lr 2e-3 --memory 512MiB --log-every 10)
must train "${common[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)

# check NAME: the run that was just trained.
check() {
    same "$1: exit code" $rc 0
    same "$1: digest" "$(digest)" "$wanted"
    run inspect "$place/$1" --digest --deep
    same "$1: every byte" "$(digest)" "$wanted"
    same "$1: steps" "$(metric "$place/$1" step | tr '\n' ' ')" "$(seq -s ' ' 1 "$steps") "
    same "$1: losses" "$(metric "$place/$1" loss | cksum)" "$(metric "$place/whole" loss | cksum)"
    same "$1: validation" "$(metric "$place/$1" val_loss | cksum)" "$(metric "$place/whole" val_loss | cksum)"
}

# ---- a socket ----
socket=$(mktemp -d "${TMPDIR:-/tmp}/longshore.XXXXXX")/s # the names of sockets are short
mkdir "$place/served" "$place/local"
"$LONGSHORE" drive serve --listen "$socket" --root "$place/served" --memory 128MiB 2>"$place/server.log" &
server=$!
sshd=
stop_servers() {
    kill $server 2>/dev/null
    [ -z "$sshd" ] || kill "$sshd" 2>/dev/null
    rm -rf "$(dirname "$socket")"
    [ -z "${keys:-}" ] || rm -rf "$keys"
    finish
}
trap stop_servers EXIT
await test -S "$socket"

must train "${common[@]}" --drive "unix:$socket:a.volume" --out "$place/unix"
check unix
must train "${common[@]}" --drive "unix:$socket:b.volume" "$place/local" --connections 3 --out "$place/several"
check several
pushd "$(dirname "$socket")" >/dev/null
must train "${common[@]}" --drive unix:s:relative.volume --stop-at 1 --out "$place/relative"
popd >/dev/null
must train --resume "$place/relative"
check relative
must eval "$place/unix" --data "$place/text"
must export "$place/unix" --out "$place/exported"
refused "outside of the root" "outside" train "${common[@]}" --drive "unix:$socket:$place/local/x.volume" --out "$place/x"
ln -s "$place/local" "$place/served/link"
refused "a link out of the root" "outside" train "${common[@]}" --drive "unix:$socket:link/x.volume" --out "$place/x"
refused "another run's state" "holds the state|exists" train "${common[@]}" --drive "unix:$socket:a.volume" --out "$place/x"
refused "nobody listens" "nobody serves" train "${common[@]}" --drive "unix:$socket.no:a.volume" --out "$place/x"
refused "a socket in a directory of others" "yours alone" drive serve --listen "/tmp/longshore-test-socket"
refused "a second server" "another server" drive serve --listen "$socket"
# A socket that somebody removed, and another server at its place: the end of the first one leaves that alone.
replaced=$(dirname "$socket")/r
listen() {
    "$LONGSHORE" drive serve --listen "$replaced" --root "$place/served" 2>/dev/null &
    await test -S "$replaced"
}
listen
first=$!
rm "$replaced"
listen
second=$!
kill $first
wait $first
must drive bench "unix:$replaced"
kill $second
wait $second
[ ! -e "$replaced" ] && ok "its own socket goes" || fail "a server leaves its socket"
must verify --init "$place/config.json" --data "$place/text" --drive "unix:$socket" --steps 1 --batch 2 --seq-len 16
must remove "$place/several"
[ ! -e "$place/served/b.volume" ] && ok "the far volume is removed" || fail "the far volume is left"

# The budget: the client's, and the server's for each drive.
budget=$(minimum "${common[@]}" --drive "unix:$socket:c.volume" --out "$place/budget" | head -n 1)
run train "${common[@]}" --memory "$budget" --drive "unix:$socket:c.volume" --out "$place/budget"
[ -z "$budget" ] || check budget

# ---- a far side that dies ----
cat >"$place/rsh" <<RSH
#!/bin/sh
echo "Last login: never"
shift
exec "$LONGSHORE" drive serve --stdio
RSH
chmod +x "$place/rsh"
killed=$place/killed
kill_far_side "$killed" "${KILLS:-6}" 400 train "${common[@]}" --rsh "$place/rsh" \
    --drive "ssh://far$place/served/k.volume" "$place/local/k.volume"
export LONGSHORE_RSH="$place/rsh"
check killed
[ $kills -gt 0 ] && ok "$kills kills" || fail "nothing was killed"
grep -q "connected again" "$place/log" || true
grep -q "$place/rsh" "$killed/run.json" && fail "--rsh is kept in the run" || ok "--rsh is not kept in the run"

# A drive over there gets what its link carries: here a few megabytes a second, so next to nothing.
cat >"$place/rsh-slow" <<RSH
#!/bin/sh
while dd bs=65536 count=1 of="$place/piece" 2>/dev/null && [ -s "$place/piece" ]; do cat "$place/piece"; sleep 0.02; done |
    "$LONGSHORE" drive serve --stdio
RSH
chmod +x "$place/rsh-slow"
must train "${common[@]}" --rsh "$place/rsh-slow" --drive "$place/local/n.volume" "ssh://far$place/served/n.volume" --out "$place/narrow"
grep -q "measured for placement: .*/local/n.volume .*/s, ssh://far.*/s (its link .*/s)" "$place/log" && ok "the link is measured" ||
    fail "the link is not measured"
check narrow
must drive list "$place/narrow" --json
shares=$(grep -o '"share":[0-9.]*' "$place/log" | cut -d: -f2 | tr '\n' ' ')
awk -v shares="$shares" 'BEGIN { split(shares, s, " "); exit !(s[1] > 0.8 && s[2] < 0.2) }' && ok "shares by the link" ||
    fail "shares by the link: $shares"
# With half of the state it holds the others up, and is named.
gpt2_config "$place/wide.json" 2 192 4 64 600
must train --init "$place/wide.json" --data "$place/text" --steps 4 --batch 2 --seq-len 64 --memory 512MiB --log-every 1 \
    --rsh "$place/rsh-slow" --drive "$place/local/w.volume" "ssh://far$place/served/w.volume" --drive-speeds 1,1 --out "$place/crawls"
grep -q "step 4/4  slow: ssh://far.*/w.volume works .* times as long" "$place/log" && ok "a drive that crawls is named" ||
    fail "a drive that crawls is not named"
must train "${common[@]}" --drive "$place/local/e.volume" "unix:$socket:e.volume" --stop-at 1 --out "$place/equal"
grep -q "measured for placement" "$place/log" && fail "what shares a device is measured" || ok "what shares a device is not measured"

# It stays away: the run gives up with a message, and resumes later.
must train "${common[@]}" --drive "ssh://far$place/served/away.volume" --stop-at 3 --out "$place/away"
cat >"$place/rsh-once" <<RSH
#!/bin/sh
[ ! -e "$place/gone" ] || exit 1
"$LONGSHORE" drive serve --stdio | { dd bs=4096 count=400 2>/dev/null; touch "$place/gone"; }
RSH
chmod +x "$place/rsh-once"
run train --resume "$place/away" --rsh "$place/rsh-once" --reconnect-timeout 1
if [ $rc = 1 ] && grep -q "gave up after" "$place/log" && grep -q -- "--resume" "$place/log"; then
    ok "a far side that stays away"
else
    fail "a far side that stays away: exit code $rc"
fi
must train --resume "$place/away"
check away

unset LONGSHORE_RSH

# ---- OpenSSH ----
if ! command -v /usr/sbin/sshd >/dev/null || ! command -v ssh >/dev/null; then
    echo "no OpenSSH server here: left out"
    done_testing
fi
keys=$(mktemp -d "${TMPDIR:-/tmp}/longshore-ssh.XXXXXX")
ssh-keygen -q -t ed25519 -N '' -f "$keys/host" && ssh-keygen -q -t ed25519 -N '' -f "$keys/user"
port=$(perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1:0")->sockport')
cp "$keys/user.pub" "$keys/authorized"
echo "[localhost]:$port $(cut -d' ' -f1,2 "$keys/host.pub")" >"$keys/known"
cat >"$keys/sshd_config" <<CONFIG
Port $port
ListenAddress 127.0.0.1
ListenAddress ::1
HostKey $keys/host
AuthorizedKeysFile $keys/authorized
PidFile $keys/pid
StrictModes no
UsePAM no
PasswordAuthentication yes
KbdInteractiveAuthentication no
PermitRootLogin yes
SetEnv PATH=$(dirname "$LONGSHORE"):/usr/bin:/bin
CONFIG
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
/usr/sbin/sshd -D -e -f "$keys/sshd_config" 2>"$keys/log" &
sshd=$!
ssh="ssh -F none -i $keys/user -oIdentitiesOnly=yes -oUserKnownHostsFile=$keys/known -oStrictHostKeyChecking=yes"
up=
for _ in $(seq 60); do
    $ssh -oBatchMode=yes -p $port localhost true 2>>"$keys/log" && up=1 && break
    kill -0 $sshd 2>/dev/null || break
    sleep 0.1
done
if [ -z "$up" ]; then
    [ "$(id -u)" = 0 ] && [ -n "${CI:-}" ] && { sed 's/^/    | /' "$keys/log"; fail "no ssh server could be started"; }
    echo "no ssh server can be started here: left out"
    done_testing
fi
export LONGSHORE_RSH="$ssh"
must train "${common[@]}" --drive "ssh://localhost:$port$place/served/s1.volume" --out "$place/ssh"
check ssh
must train "${common[@]}" --connections 2 --out "$place/mixed" \
    --drive "$place/local/m.volume" "unix:$socket:m.volume" "ssh://$(id -un)@localhost:$port$place/served/m2.volume"
check mixed
refused "no such directory there" "no such directory" train "${common[@]}" --drive "ssh://localhost:$port/nowhere/at/all" --out "$place/x"
# a key that may do one thing only
echo "restrict,command=\"$LONGSHORE drive serve --stdio --root $place/served --memory 128MiB\" $(cat "$keys/user.pub")" >"$keys/authorized"
must train "${common[@]}" --drive "ssh://localhost:$port$place/served/s2.volume" --out "$place/forced"
check forced
refused "a forced command's root" "outside" train "${common[@]}" --drive "ssh://localhost:$port$place/local/s3.volume" --out "$place/x"
# no_way NAME PATTERN PORT: where ssh itself says no.
no_way() {
    refused "$1" "ssh://localhost:$3$place/served/s4.volume: .*$2" \
        train "${common[@]}" --drive "ssh://localhost:$3$place/served/s4.volume" --out "$place/x"
}
echo "command=\"no-longshore-here drive serve --stdio\" $(cat "$keys/user.pub")" >"$keys/authorized"
no_way "no longshore there" "not installed on localhost.*install it there" "$port"
echo "command=\"echo Welcome; sleep 1; echo 'Have a nice day' >&2\" $(cat "$keys/user.pub")" >"$keys/authorized"
no_way "something else there" "no longshore answers.*Welcome.*Have a nice day" "$port"
no_way "nobody listens" "cannot be reached .*refused.*see that '.* -p 1 localhost true' works" 1
: >"$keys/authorized"
no_way "a password is wanted" "refuses the login.*password.*set up a key" "$port"
: >"$keys/known"
no_way "a host key that is not known" "host key of localhost.*by hand" "$port"
done_testing
