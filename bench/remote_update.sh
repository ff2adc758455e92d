#!/usr/bin/env bash
# UPDATE behind a socket beside UPDATE on the same drive, in turn; and behind ssh on the loopback with bf16 gradients,
# beside the smaller of the local speed and what ssh alone carries. PARAMS (default 124M).
. "$(dirname "$0")/lib.sh"
PARAMS=${PARAMS:-124M}
machine
mkdir "$work/served"
sockets=$(mktemp -d "${TMPDIR:-/tmp}/longshore.XXXXXX")
"$LONGSHORE" drive serve --listen "$sockets/s" --root "$work/served" 2>/dev/null &
server=$!
sshd=
trap 'kill $server $sshd 2>/dev/null; rm -rf "$work" "$sockets"' EXIT
for ((i = 0; i < 100; i++)); do [ -S "$sockets/s" ] && break; sleep 0.05; done

# speed DRIVE ARGS...: parameters a second
speed() {
    local drive=$1
    shift
    "$LONGSHORE" bench update --drive "$drive" --params "$PARAMS" --steps 5 --deliver --json --quiet "$@" >"$work/json" &&
        number params_per_second <"$work/json"
}
# turns NAME FILE_A DRIVE_A FILE_B DRIVE_B ARGS...
turns() {
    local name=$1 a=$2 drive_a=$3 b=$4 drive_b=$5
    shift 5
    : >"$work/$a"
    : >"$work/$b"
    for ((round = 1; round <= ROUNDS; round++)); do
        speed "$drive_a" "$@" >>"$work/$a"
        speed "$drive_b" "$@" >>"$work/$b"
        printf '%s, round %d: %.1f and %.1f million parameters/s\n' "$name" $round \
            "$(calc "$(tail -n 1 "$work/$a") / 1e6")" "$(calc "$(tail -n 1 "$work/$b") / 1e6")"
    done
}
turns "local and behind a socket" local "$work/served" unix "unix:$sockets/s"
verdict "UPDATE behind a Unix socket / local" "$(calc "$(median <"$work/unix") / $(median <"$work/local")")" 0.95

if [ ! -x /usr/sbin/sshd ]; then
    echo "no OpenSSH server here: the other figure is left out"
    exit 0
fi
ssh-keygen -q -t ed25519 -N '' -f "$sockets/host"
ssh-keygen -q -t ed25519 -N '' -f "$sockets/user"
port=$((20000 + RANDOM % 20000))
echo "[localhost]:$port $(cut -d' ' -f1,2 "$sockets/host.pub")" >"$sockets/known"
cat >"$sockets/sshd_config" <<CONFIG
Port $port
ListenAddress 127.0.0.1
HostKey $sockets/host
AuthorizedKeysFile $sockets/user.pub
PidFile none
StrictModes no
UsePAM no
SetEnv PATH=$(cd "$(dirname "$LONGSHORE")" && pwd):/usr/bin:/bin
CONFIG
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
/usr/sbin/sshd -D -f "$sockets/sshd_config" 2>/dev/null &
sshd=$!
ssh="ssh -F none -i $sockets/user -oIdentitiesOnly=yes -oUserKnownHostsFile=$sockets/known -oCiphers=aes128-gcm@openssh.com,aes256-gcm@openssh.com"
for ((i = 0; i < 60; i++)); do $ssh -oBatchMode=yes -p $port localhost true 2>/dev/null && break; sleep 0.1; done
export LONGSHORE_RSH="$ssh"
# what ssh alone carries, both ways at once in the proportion of 2 and 2 bytes: a parameter's gradient and its new value
carry() {
    local start end
    start=$(date +%s%N)
    head -c 1G /dev/zero | $ssh -p $port localhost cat >/dev/null
    end=$(date +%s%N)
    calc "1073741824 / ($end - $start) * 1e9 / 2"
}
: >"$work/alone"
for ((round = 1; round <= ROUNDS; round++)); do carry >>"$work/alone"; echo >>"$work/alone"; done
turns "local and behind ssh, bf16 gradients" local "$work/served" ssh "ssh://localhost:$port$work/served" --grad-precision bf16
bound=$(printf '%s\n%s\n' "$(median <"$work/local")" "$(grep . "$work/alone" | median)" | sort -g | sed -n 1p)
printf 'ssh alone carries %.1f million parameters/s\n' "$(calc "$(grep . "$work/alone" | median) / 1e6")"
verdict "UPDATE behind ssh, bf16 gradients / min(local, what ssh alone carries)" "$(calc "$(median <"$work/ssh") / $bound")" 0.85
