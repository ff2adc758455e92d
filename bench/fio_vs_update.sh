#!/usr/bin/env bash
# UPDATE beside raw mixed direct I/O of fio on the same file system: the same block sizes (the planes of a chunk of 4
# segments), as many requests in flight, as much read as written, on extents that were written before. In turn.
. "$(dirname "$0")/lib.sh"
PARAMS=${PARAMS:-124M}
DEPTH=${DEPTH:-20} # UPDATE: 6 chunks of 4 planes in the ring, one of them computing
machine
size=${FIO_SIZE:-3g}
fio_rate() {
    fio --name=mixed --filename="$work/fio" --size=$size --rw=rw --rwmixread=50 --bssplit=512k/50:1m/50 --direct=1 \
        --ioengine="${FIO_ENGINE:-io_uring}" --iodepth="$DEPTH" --fixedbufs --registerfiles --overwrite=1 \
        --end_fsync=1 --output-format=json 2>/dev/null |
        awk '/"read" : \{/ {part = "r"} /"write" : \{/ {part = "w"} /"trim" : \{/ {part = ""}
             part && /"io_bytes"/ {gsub(/[^0-9]/, ""); bytes += $0; next}
             part && /"runtime"/ {gsub(/[^0-9]/, ""); if ($0 + 0 > ms) ms = $0 + 0}
             END {printf "%.0f\n", bytes / ms * 1000}'
}
fio --name=fill --filename="$work/fio" --size=$size --rw=write --bs=4m --direct=1 --end_fsync=1 --output="$work/fill" >/dev/null
: >"$work/a"
: >"$work/b"
for ((round = 1; round <= ROUNDS; round++)); do
    fio_rate >>"$work/a"
    "$LONGSHORE" bench update --drive "$work" --params "$PARAMS" --steps 5 --chunk-size 3MiB --ring-size 24MiB --json --quiet \
        >"$work/json"
    number bytes_per_second <"$work/json" >>"$work/b"
    number bytes_per_param <"$work/json" >"$work/per"
    printf 'round %d: fio %.0f MB/s, UPDATE %.0f MB/s\n' $round "$(calc "$(tail -n 1 "$work/a") / 1e6")" \
        "$(calc "$(tail -n 1 "$work/b") / 1e6")"
done
verdict "UPDATE / raw mixed direct I/O" "$(calc "$(median <"$work/b") / $(median <"$work/a")")" 0.95
verdict "bytes read and written per parameter and step" "$(cat "$work/per")" 24.24 most
