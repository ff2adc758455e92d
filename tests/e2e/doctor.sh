#!/usr/bin/env bash
# What `doctor` says of a machine, whatever it has: the form, the exit code, and that it leaves nothing.
. "$(dirname "$0")/lib.sh"

drive=$place/drive
mkdir "$drive"
echo keep >"$drive/file"
listing() { (cd "$place" && find drive other -printf '%p %s %y\n' 2>/dev/null | sort); }
mkdir "$place/other"
before=$(listing)
left_nothing() { same "$1 leaves nothing" "$(listing)" "$before"; }
says() { if grep -qE -- "$2" "$place/log"; then ok "$1"; else fail "$1: no '$2'"; fi; }

# ---- the machine ----
must doctor
same "every line says how it is" "$(sed '1d;$d' "$place/log" | grep -cvE '^(OK   |WARN |FAIL ) [A-Za-z_ ]+: .')" 0
for check in processor threads memory "locked memory" "open files" "huge pages" io_uring GPU ssh; do
    says "$check" "^(OK|WARN) +$check: "
done
says "the result" "^everything that is needed works"
threads=$(sed -nE 's/^OK +threads: ([0-9]+) .*/\1/p' "$place/log")
OMP_NUM_THREADS=1 must doctor
taskset -c "$(taskset -cp $$ | sed -E 's/.*: ([0-9]+).*/\1/')" "$LONGSHORE" doctor >"$place/log"
says "one processor is one thread" "^OK +threads: 1 "
[ "$threads" -ge 1 ] && [ "$threads" -le "$(nproc --all)" ] && ok "threads" || fail "$threads threads"

# ---- drives ----
must doctor --drive "$drive" "$drive/new.volume" ram:
says "a directory" "^(OK|WARN) +$drive: .* free; (direct|buffered) I/O \((uring|threads)\); reads [0-9.]+ [KMGT]?i?B/s, writes [0-9.]+ .*/s, both at once [0-9.]+ .*/s; snapshots (share|are)"
says "a new file on the same device" "^WARN +$drive/new.volume: .*it shares its device"
left_nothing "measuring"
expect_failure 1 "no such directory" "^FAIL +$place/none/x: cannot be examined: No such file or directory; make the directory" \
    doctor --drive "$place/none/x"
says "what does not work" "^does not work, and is needed: $place/none/x\$"
expect_failure 1 "a name without a suffix" "^FAIL +$place/none: is not there" doctor --drive "$place/none"
mkfifo "$place/pipe"
expect_failure 1 "a pipe" "a special file" doctor --drive "$place/pipe"
refused "an empty name" "--drive" doctor --drive ""
refused "a word" "unexpected word" doctor "$drive"
if [ -d /dev/shm ] && [ "$(stat -f -c %T /dev/shm)" = tmpfs ]; then
    run doctor --drive /dev/shm
    says "memory" "^(WARN|FAIL) +/dev/shm: "
fi

# ---- other hosts: a shell stands in for ssh ----
printf '#!/bin/sh\nshift\nexec %q drive serve --stdio\n' "$LONGSHORE" >"$place/rsh"
printf '#!/bin/sh\nexit 127\n' >"$place/no-rsh"
chmod +x "$place/rsh" "$place/no-rsh"
must doctor --rsh "$place/rsh" --drive "ssh://there$drive"
says "a drive over there" "^OK +ssh://there$drive: longshore answers; room for .*updates .*/s, its link carries "
left_nothing "measuring over there"
expect_failure 1 "no longshore over there" "^FAIL +ssh://there$drive: " doctor --rsh "$place/no-rsh" --drive "ssh://there$drive"

# ---- JSON ----
json() { "$LONGSHORE" doctor --json "$@" >"$place/json" 2>"$place/log" </dev/null; rc=$?; }
json --drive "$drive" --rsh "$place/rsh"
same "one line" "$(wc -l <"$place/json")" 1
same "nothing else is said" "$(wc -c <"$place/log")" 0
same "JSON: exit code" $rc 0
perl -MJSON::PP -e 'local $/; my $j = decode_json(<>); my %seen = map { $_->{check} => $_ } @{$j->{checks}};
    die "ok" unless $j->{ok}; /^(ok|warn|fail)$/ or die $_ for map { $_->{status} } @{$j->{checks}};
    die "text" if grep { !length $_->{text} } @{$j->{checks}};
    for (qw(processor threads memory io_uring)) { $seen{$_} or die $_ }
    $seen{threads}{threads} >= 1 && $seen{memory}{memory_bytes} > 0 or die "figures";
    my ($drive) = grep { exists $_->{room_bytes} } @{$j->{checks}};
    $drive->{$_} > 0 or die $_ for qw(room_bytes read_bytes_per_second write_bytes_per_second update_bytes_per_second)' \
    "$place/json" 2>"$place/log" && ok "JSON" || fail "JSON"
documented doctor "$place/json"
json --drive "ssh://there$drive" --rsh "$place/rsh"
documented doctor "$place/json"
json --drive "$place/none/x" "$drive"
same "JSON of what does not work: exit code" $rc 1
grep -qE '"ok": ?false' "$place/json" && ok "not ok" || fail "not ok"

odd=$place/odd$(printf '\001\033[1m\377.d')
json --drive "$odd/x.volume"
perl -MJSON::PP -e 'local $/; my $j = decode_json(<>); die if $j->{ok}' "$place/json" && ok "an odd name" || fail "an odd name"
mkdir "$odd"
must doctor --drive "$odd"
same "no control character is printed" "$(sed 1d "$place/log" | LC_ALL=C tr -d '\n' | LC_ALL=C grep -c '[[:cntrl:]]')" 0
rmdir "$odd"

# ---- ended in the middle ----
for signal in INT TERM KILL KILL KILL KILL; do
    "$LONGSHORE" doctor --drive "$drive" "$place/other" "$drive" "$place/other" >"$place/log" 2>&1 </dev/null &
    background=$!
    await grep -q ssh "$place/log"
    nap 0 150000
    kill -$signal $background 2>/dev/null
    wait $background 2>/dev/null
    background=
    left_nothing "SIG$signal"
done

# ---- without rights, and where nothing of the kernel's is shown ----
other=(setpriv --reuid $((100000 + $$)) --regid $((100000 + $$)) --clear-groups)
if [ "$(id -u)" = 0 ] && "${other[@]}" true 2>/dev/null; then
    chmod 755 "$place"
    plain=("${guard[@]}")
    guard+=("${other[@]}")
    must doctor
    expect_failure 1 "no right to write" "^FAIL +$drive: .*cannot be created: Permission denied" doctor --drive "$drive"
    left_nothing "another user"
    guard=("${plain[@]}")
fi
if unshare -m sh -c 'mount -t tmpfs none /sys && mount -t tmpfs none /proc' 2>/dev/null; then
    unshare -m sh -c 'mount -t tmpfs none /sys && mount -t tmpfs none /proc && exec "$@"' sh \
        "$LONGSHORE" doctor --drive "$drive" >"$place/log" 2>&1
    same "without /proc and /sys" $? 0
    says "the drive without /proc" "^(OK|WARN) +$drive: .* free; "
fi

done_testing
