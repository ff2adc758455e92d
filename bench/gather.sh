#!/usr/bin/env bash
# Rows of 256 bytes, 65,536 asked for of 1,048,576, from a drive behind a network of 1 Gbit/s (throttled by --emulate): the
# host reads their pages and picks, or the drive gathers. The volume lies in memory where there is room, so that only the
# throttle counts.
[ -n "${DRIVE:-}" ] || { [ ! -w /dev/shm ] || DRIVE=/dev/shm/longshore-bench; }
. "$(dirname "$0")/lib.sh"
machine
echo '{"name": "a drive behind 1 Gbit/s", "link": {"in": "118MB", "out": "118MB"}, "drives": [{"read": "3GB", "write": "2GB"}]}' \
    >"$work/link.json"
measured() {
    "$LONGSHORE" bench gather --drive "$work" --size 256MiB --emulate "$work/link.json" --quiet "$@" 2>/dev/null
}
measured --passes 1 # the curve for people
measured --passes "$ROUNDS" --json >"$work/last"
# of KEY: the value for rows of 256 bytes.
of() {
    grep -o '{"row_bytes":256,[^}]*}' "$work/last" | grep -o "\"$1\":[0-9.e+-]*" | cut -d: -f2
}
verdict "GATHER, 256 bytes a row: link bytes, whole pages / gathered" "$(calc "$(of pages_link_bytes) / $(of gathered_link_bytes)")" 10
verdict "the same: seconds, whole pages / gathered" "$(calc "$(of pages_seconds) / $(of gathered_seconds)")" 4
verdict "the same: page reads / distinct pages" "$(calc "$(of page_reads) / $(of distinct_pages)")" 1.0
[ "$DRIVE" != /dev/shm/longshore-bench ] || trap 'rm -rf "$work"; rmdir "$DRIVE" 2>/dev/null' EXIT
