#!/usr/bin/env bash
# The same bits wherever the state lies and however it is moved: every way of running prints the same digest.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 3 128 4 64 1500
some_text "$place/text" 400
steps=5
common=(--init "$place/config.json" --seed 7 --data "$place/text" --steps $steps --batch 20 --seq-len 64 --lr 3e-3
        --warmup 1 --log-every 1)

# way NAME ARGS...: a run of its own; its digest in $found.
way() {
    local name=$1
    shift
    rm -rf "$place/run" "$place"/d[1-5]
    mkdir "$place"/d{1,2,3,4,5}
    run train "${common[@]}" --out "$place/run" "$@"
    found=$(digest)
    [ $rc = 0 ] || fail "$name: exit code $rc"
    [ -n "$found" ] || fail "$name: no line 'step N digest HEX'"
}
# agrees NAME ARGS...
agrees() {
    way "$@"
    same "$1" "$found" "$wanted"
}
d1=$place/d1 all=("$place"/d{1,2,3,4,5})

for precision in bf16 fp32; do
    how=(--precision $precision --memory 1GiB --clip 100)
    way "$precision in memory" --drive ram: "${how[@]}"
    wanted=$found
    agrees "$precision one drive" --drive "$d1" "${how[@]}"
    agrees "$precision five drives" --drive "${all[@]}" "${how[@]}"
done

how=(--precision bf16 --memory 1GiB --clip 100)
way "in memory" --drive ram: "${how[@]}"
wanted=$found
same "the digest is of the last step" "${wanted%% *}" $steps
norms=$(metric "$place/run" grad_norm | sort -g)
agrees "in memory again" --drive ram: "${how[@]}"
agrees "two in memory" --drive ram: ram: "${how[@]}"
agrees "two drives" --drive "$d1" "$place/d2" "${how[@]}"
if [ -w /dev/shm ] && [ "$(stat -c %d /dev/shm)" != "$(stat -c %d "$place")" ]; then # another device: measured
    agrees "drives of different speeds" --drive "$d1" "/dev/shm/longshore-test.$$" "${how[@]}"
    grep -q "measured for placement" "$place/log" && ok "measured" || fail "speeds are not measured"
    rm -f "/dev/shm/longshore-test.$$"
fi
agrees "unequal shares" --drive "$d1" "$place/d2" "$place/d3" --drive-speeds 5,1,3 "${how[@]}"
agrees "a file of its own" --drive "$d1/volume.volume" "${how[@]}"
for io in uring threads buffered; do
    agrees "io $io" --drive "$d1" --io $io "${how[@]}"
done
for chunk in 768KiB 1536KiB 2304KiB 48MiB; do # one segment is 768 KiB of state
    agrees "chunks of $chunk" --drive "$d1" "$place/d2" --chunk-size $chunk "${how[@]}"
done
for speculate in on off auto; do
    agrees "speculate $speculate" --drive "$d1" --speculate $speculate "${how[@]}"
done
least=$(minimum train "${common[@]}" --out "$place/none" --drive "$d1" --clip 100)
if [ -n "$least" ]; then
    agrees "the least budget, $least" --drive "$d1" --clip 100 --memory "$least"
    least=$(minimum train "${common[@]}" --out "$place/none" --drive "${all[@]}" --clip 100)
    agrees "five drives in the least budget, $least" --drive "${all[@]}" --clip 100 --memory "$least"
    agrees "unequal shares in the least budget" --drive "${all[@]}" --drive-speeds 9,1,1,4,2 --clip 100 --memory "$least"
    agrees "a little more" --drive "$d1" --clip 100 --memory "$(($(bytes "$least") + 9000000))"
else
    fail "no 'minimum SIZE' in the refusal of a budget of 1 MiB"
fi

# Threads belong to the identity: those that there are, whatever OpenMP was asked for elsewhere.
OMP_NUM_THREADS=99999 agrees "more threads than there can be" --drive ram: "${how[@]}"
OMP_DYNAMIC=true agrees "as many threads as OpenMP likes" --drive ram: "${how[@]}"
all_threads=$wanted
way "one thread" --drive ram: --threads 1 "${how[@]}"
wanted=$found
for limit in OMP_THREAD_LIMIT=1 OMP_MAX_ACTIVE_LEVELS=0; do
    export "${limit?}"
    agrees "$limit" --drive "$d1" "${how[@]}"
    must inspect "$place/run"
    grep -q "last trained on.*, 1 threads" "$place/log" && ok "$limit is recorded" || fail "$limit is not recorded"
    refused "$limit, two asked for" "--threads 2: OpenMP gives 1" train "${common[@]}" --drive ram: --threads 2 "${how[@]}" \
        --out "$place/none"
    unset "${limit%%=*}"
done
wanted=$all_threads

# Stopped and gone on, with another budget and other threads of I/O.
way "stopped" --drive "$d1" --stop-at 2 "${how[@]}"
same "it stopped at step 2" "${found%% *}" 2
must train --resume "$place/run" --memory 700MiB
same "stopped and gone on" "$(digest)" "$wanted"
must inspect "$place/run" --digest
same "inspect says the same" "$(digest)" "$wanted"
must inspect "$place/run" --digest --deep
same "and so does every byte" "$(digest)" "$wanted"

# Clipping: always, and in some of the steps, so that speculation fails in all or some.
middle=$(echo "$norms" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}')
for clip in 0.01 "$middle"; do
    how=(--memory 1GiB --clip "$clip")
    way "clip $clip in memory" --drive ram: --speculate off "${how[@]}"
    wanted=$found
    for speculate in on off auto; do
        agrees "clip $clip, speculate $speculate" --drive "$d1" --speculate $speculate "${how[@]}"
    done
    least=$(minimum train "${common[@]}" --out "$place/none" --drive "$d1" --clip "$clip" --speculate on)
    agrees "clip $clip, speculate on, $least" --drive "$d1" --clip "$clip" --speculate on --memory "${least:-1GiB}"
    agrees "clip $clip, two drives" --drive "$d1" "$place/d2" --speculate on "${how[@]}"
done

# Other optimizers have other planes.
for optimizer in adam sgd adagrad; do
    how=(--memory 1GiB --optimizer $optimizer)
    [ $optimizer != sgd ] || how+=(--momentum 0.9)
    way "$optimizer in memory" --drive ram: "${how[@]}"
    wanted=$found
    agrees "$optimizer on two drives" --drive "$d1" "$place/d2" "${how[@]}"
done
done_testing
