#!/usr/bin/env bash
# A volume that was changed behind our back: a flipped byte anywhere is either not used or named, a truncated,
# replaced or old file is named; and what is not damaged ends with the right digest.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 1 64 4 32 300
some_text "$place/text" 100
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps 6 --batch 2 --seq-len 32 --memory 512MiB)
mkdir "$place/d"
must train "${common[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)
must train "${common[@]}" --drive "$place/d/state.volume" --out "$place/run" --stop-at 3
cp -r "$place/run" "$place/run.kept"
cp --sparse=always "$place/d/state.volume" "$place/volume.kept"
size=$(stat -c %s "$place/volume.kept")
restore() {
    rm -rf "$place/run"
    cp -r "$place/run.kept" "$place/run"
    cp --sparse=always "$place/volume.kept" "$place/d/state.volume"
}
flip() { # OFFSET: inverts one byte
    local byte
    byte=$(od -An -tu1 -j "$1" -N 1 "$place/d/state.volume" | tr -d ' ')
    printf "\\$(printf %03o $((byte ^ 255)))" | dd of="$place/d/state.volume" bs=1 seek="$1" conv=notrunc status=none
}
# Everything that is not zero may matter; the start (superblock, records, tables) gets a dense look.
offsets=()
for ((i = 0; i < 10; i++)); do offsets+=($((RANDOM % 4096)) $(((RANDOM * 32768 + RANDOM) % (262144 < size ? 262144 : size)))); done
for ((i = 0; i < 30; i++)); do offsets+=($(((RANDOM * 32768 + RANDOM) % size))); done
for record in 65536 131072 4096 8192; do [ "$record" -lt "$size" ] && offsets+=($record); done
named=0
for offset in "${offsets[@]}"; do
    restore
    flip "$offset"
    run train --resume "$place/run"
    if [ $rc = 0 ]; then
        same "byte $offset flipped, not in use" "$(digest)" "$wanted"
    elif sed 1d "$place/log" | grep -q "volume"; then
        ok "byte $offset flipped: named"
        named=$((named + 1))
    else
        fail "byte $offset flipped: exit code $rc, and the volume is not named"
    fi
done
echo "$named of ${#offsets[@]} flipped bytes were in use and named"
[ $named -gt 0 ] || fail "no flipped byte was noticed"

named_as() { # NAME PATTERN
    run train --resume "$place/run"
    if [ $rc = 0 ]; then fail "$1: it went on"; elif sed 1d "$place/log" | grep -qiE "$2"; then ok "$1"; else fail "$1: no '$2'"; fi
}
restore
truncate -s $((size / 2)) "$place/d/state.volume"
named_as "truncated" "volume"
restore
rm "$place/d/state.volume"
named_as "missing" "volume"
restore
head -c "$size" /dev/zero >"$place/d/state.volume"
named_as "replaced by zeros" "volume"
restore
for place_of in 16 32; do dd if=/dev/zero of="$place/d/state.volume" bs=4096 seek=$place_of count=1 conv=notrunc status=none; done
named_as "without records" "volume: both commit records are gone"
must inspect "$place/run"
if grep -q "d/state.volume: .*; both commit records are gone" "$place/log"; then ok "inspect says so"; else fail "inspect says nothing"; fi
restore
merge common --seed 4
must train "${merged[@]}" --drive "$place/d/other.volume" --out "$place/otherrun" --stop-at 3
cp "$place/d/other.volume" "$place/d/state.volume"
named_as "another run's volume" "volume"

# A fleet put back from an older copy is refused.
restore
must train --resume "$place/run" --stop-at 5
cp --sparse=always "$place/volume.kept" "$place/d/state.volume"
named_as "older than the run says" "older|step 3|copy"

# Moved.
restore
mv "$place/d/state.volume" "$place/d/moved.volume"
must train --resume "$place/run" --drive "$place/d/state.volume=$place/d/moved.volume"
same "moved" "$(digest)" "$wanted"

# Directories that cannot be synced: a file system that has no such thing is used all the same, a failing one is not.
mkdir "$place/plain" "$place/plain/d"
export FAIL_IO="dirsync 0 22 /" LD_PRELOAD=$FAIL_IO_SO
must train "${common[@]}" --drive "$place/plain/v.volume" --out "$place/plain/run"
same "no directory can be synced: digest" "$(digest)" "$wanted"
must snapshot "$place/plain/run" one
must drive move "$place/plain/run" "$place/plain/v.volume=$place/plain/d"
must rollback "$place/plain/run" one
must remove "$place/plain/run"
same "no directory can be synced: nothing is left" "$(ls "$place/plain")" d
FAIL_IO="dirsync 0 5 plain" expect_failure 1 "a directory's sync fails" "plain.*cannot be made durable" \
    train "${common[@]}" --drive "$place/plain/v.volume" --out "$place/plain/run"
unset FAIL_IO LD_PRELOAD
must train "${common[@]}" --drive "$place/plain/v.volume" --out "$place/plain/run"
same "a directory's sync fails: made again" "$(digest)" "$wanted"

# A volume that the limit of file sizes does not allow.
guard=(prlimit --fsize=1048576 "${guard[@]}")
FAIL_IO="rmdir 0 39 limited" LD_PRELOAD=$FAIL_IO_SO refused "over the limit of file sizes" \
    "small.volume: .*too large; raise the limit of file sizes" train "${common[@]}" --drive "$place/small.volume" --out "$place/limited"
guard=("${guard[@]:2}")
if [ -e "$place/small" ] || [ -e "$place/limited" ]; then fail "over the limit of file sizes: something was made"; fi

# The run's directory is full when its state stands already: nothing is left of it.
full_at_the_end() { # NAME COMMAND...
    local name=$1
    shift
    FAIL_IO="write 0 28 $name/making/.made.json" LD_PRELOAD=$FAIL_IO_SO refused "full at the end: $1" \
        "made.json: .*No space left" "$@" --drive "$place/$name.volume" --out "$place/$name"
    [ ! -e "$place/$name" ] && [ ! -e "$place/$name.volume" ] || fail "full at the end: $1: something is left"
    must "$@" --drive "$place/$name.volume" --out "$place/$name"
}
full_at_the_end late train "${common[@]}"
same "full at the end: digest" "$(digest)" "$wanted"
must export "$place/late" --out "$place/model"
full_at_the_end imported import "$place/model" --data "$place/text" --memory 512MiB

# Where a user may have few processes, the kernel cancels what it finds no thread for: that is no wish to stop.
other=(setpriv --reuid $((100000 + $$)) --regid $((100000 + $$)) --clear-groups)
chmod 711 "$place"
if [ "$(id -u)" = 0 ] && "${other[@]}" "$LONGSHORE" --version >/dev/null 2>&1; then
    mkdir -m 777 "$place/few"
    kept=("${guard[@]}")
    for limit in 2 3 4 5 6 7 8 9 $((40 + $(nproc))); do
        guard=(prlimit --nproc=$limit "${other[@]}" "${kept[@]}")
        run train "${common[@]}" --drive "$place/few/v$limit.volume" --out "$place/few/run$limit"
        if [ $rc = 0 ]; then same "at most $limit processes" "$(digest)" "$wanted"; else ok "too few: $limit processes"; fi
    done
    same "$limit processes are enough" $rc 0
    # A volume that may not be read may be the run's.
    chmod 0 "$place/few/v$limit.volume"
    guard=("${other[@]}" "${kept[@]}")
    refused "a volume that may not be read" "v$limit.volume: cannot be read: Permission denied; nothing was removed" \
        remove "$place/few/run$limit"
    guard=("${kept[@]}")
    chmod 600 "$place/few/v$limit.volume"
    must remove "$place/few/run$limit"
fi

# A full disk, if a small file system may be mounted.
if [ "$(id -u)" = 0 ] && mkdir "$place/tiny" && mount -t tmpfs -o size=4M none "$place/tiny" 2>/dev/null; then
    refused "no room" "needs .* (has|have) " train "${common[@]}" --drive "$place/tiny" --out "$place/noroom"
    [ -z "$(ls -A "$place/tiny")" ] || fail "the refused volume stays: $(ls "$place/tiny")"
    umount "$place/tiny"
    # what is overwritten counts as free, on each of several drives
    run train "${common[@]}" --drive "$place/d" "$place/tiny" --dry-run
    need=$(($(bytes "$(sed -n 's/^disk: //p' "$place/log")") >> 20))
    mount -t tmpfs -o size=$((need + 1))M none "$place/tiny"
    mkdir "$place/tiny/a" "$place/tiny/b"
    for _ in once again; do
        must train "${common[@]}" --drive "$place/tiny/a" "$place/tiny/b" --out "$place/shared" --overwrite
    done
    umount "$place/tiny"
fi
done_testing
