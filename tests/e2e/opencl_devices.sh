#!/usr/bin/env bash
# OpenCL devices that are not here, by the library that stands for them (tests/tools/fake_opencl.c): the same digest, what is
# refused before anything is made, and errors of the device during a step.
. "$(dirname "$0")/lib.sh"
run() { # as in lib.sh, with the library in front where FAKE_OPENCL names a device
    printf '$ longshore %s\n' "$*" >"$place/log"
    LD_PRELOAD=${FAKE_OPENCL:+$FAKE_OPENCL_SO} "${guard[@]}" "$LONGSHORE" "$@" >>"$place/log" 2>&1 </dev/null
    rc=$?
}
gpt2_config "$place/config.json" 2 64 4 64 500
some_text "$place/text" 300
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps 8 --batch 4 --seq-len 64 --lr 2e-3 --quiet)
mkdir "$place"/{a,b}
export XDG_CACHE_HOME=$place/cache
run train "${common[@]}" --drive "opencl:$place/b" --out "$place/first" --stop-at 1
if grep -q "no libOpenCL.so.1 here\|no platform here has a device" "$place/log"; then
    echo "skipped: $(sed 1d "$place/log" | tail -n 1)"
    exit 0
fi
same "a first run" $rc 0
grep -q "b/longshore.*: compiling kernels for the OpenCL device .* and testing it took" "$place/log" && ok "compile time" ||
    fail "compiling is not said"

# What PoCL and its compiler take is a part of the budget.
read -ra loud <<<"${common[*]/--quiet/}"
XDG_CACHE_HOME=$place/cold must train "${loud[@]}" --drive "opencl:$place/b" --out "$place/cold.run"
budget=$(bytes "$(sed -n 's/^memory: budget \(.*\), peak .*/\1/p' "$place/log")")
peak=$(bytes "$(sed -n 's/^memory: .* peak \([^;]*\);.*/\1/p' "$place/log")")
[ "$peak" -gt 0 ] && [ "$peak" -le "$budget" ] && ok "memory" || fail "a peak of $peak bytes with a budget of $budget"

must train "${common[@]}" --drive ram: --out "$place/plain"
wanted=$(digest)
must train "${common[@]}" --drive "opencl:$place/b" --precision fp32 --moments 8bit --compress 5% --residual saved --out "$place/two"
two=$(digest)
must train "${common[@]}" --drive "$place/a" --precision fp32 --moments 8bit --compress 5% --residual saved --out "$place/one"
same "coded all over" "$(digest)" "$two"
must verify --init "$place/config.json" --data "$place/text" --drive "$place/a" "opencl:$place/b" --steps 2 --batch 4 --seq-len 64

# Kernels that were kept and are damaged are compiled again: PoCL aborts at half a program.
kept=$(find "$place/cache/longshore/opencl" -type f -printf '%s %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2)
cp "$kept" "$place/kept"
for damage in "truncate -s -1000" "truncate -s 600" "truncate -s 0" "dd conv=notrunc bs=1 seek=5000 count=9000 if=/dev/zero status=none of="; do
    cp "$place/kept" "$kept"
    case $damage in
        dd*) $damage"$kept" ;;
        *) $damage "$kept" ;;
    esac
    rm -rf "$place/damaged"
    must train "${common[@]}" --drive "opencl:$place/b" --precision fp32 --moments 8bit --compress 5% --residual saved --out "$place/damaged"
    same "kept kernels, ${damage%% if*}" "$(digest)" "$two"
    same "kept again" "$(wc -c <"$kept")" "$(wc -c <"$place/kept")"
done

# The same program, as a binary.
tail -c "+$(($(grep -obaP '\x00' "$place/kept" | sed -n '1s/:.*//p') + 10))" "$place/kept" >"$place/program"
must train "${common[@]}" --drive "opencl:$place/b" --opencl "binary=$place/program" --out "$place/binary"
same "a binary" "$(digest)" "$wanted"

# ---- refused before anything is made ----
nothing() { [ ! -e "$place/none" ] && [ -z "$(ls -A "$place/e")" ] && ok "$1: nothing is made" || fail "$1: something was made"; }
bad() { # NAME PATTERN FLAGS...
    local name=$1 pattern=$2
    shift 2
    refused "$name" "$pattern" train "${common[@]}" --out "$place/none" "$@"
    nothing "$name"
}
mkdir "$place/e"
e=opencl:$place/e
bad "an unknown key" "takes device=NAME\|INDEX, memory=SIZE and binary=FILE.*'colour=red'" --drive "$e" --opencl colour=red
bad "too little memory" "1.00 MiB of memory on the OpenCL device .* is too little: at least [0-9.]+ MiB is needed" --drive "$e" --opencl memory=1MiB
bad "more than it has" "opencl memory=.*: the device .* has" --drive "$e" --opencl memory=900TiB
echo nothing >"$place/x.bin"
bad "a binary for another device" "x.bin: is no program for the device" --drive "$e" --opencl "binary=$place/x.bin"
mkfifo "$place/pipe"
bad "a binary that is no file" "pipe: cannot be read: Invalid argument" --drive "$e" --opencl "binary=$place/pipe"
bad "no such binary" "gone.bin: cannot be read" --drive "$e" --opencl "binary=$place/gone.bin"
bad "twice" "is given twice" --drive "$place/e" "$e"
XDG_CACHE_HOME=$place/x.bin bad "a cache that PoCL cannot write" "a platform is here, but it gives no device; PoCL .*POCL_CACHE_DIR" --drive "$e"
bad "a binary for another optimizer" "would differ; .* and this optimizer with binary=" --drive "$e" --opencl "binary=$place/program" --optimizer sgd
FAKE_OPENCL=flushing bad "no denormals" "does not keep denormal numbers" --drive "$e"
FAKE_OPENCL=wrong bad "other arithmetic" "computes other parameters than this program must" --drive "$e"

# ---- other devices, and errors of a device ----
for other in discrete p2p inexact; do
    FAKE_OPENCL=$other must train "${common[@]}" --drive "$e" --out "$place/$other"
    same "$other" "$(digest)" "$wanted"
done
errs() { # NAME FAKE PATTERN
    rm -rf "$place/errs"
    must train "${common[@]}" --drive "$e" --out "$place/errs" --stop-at 2
    FAKE_OPENCL=$2 run train --resume "$place/errs" --quiet
    same "$1: exit code" $rc 1
    sed 1d "$place/log" | grep -qE -- "e/longshore[^ ]*: OpenCL device .*: $3" && ok "$1" || fail "$1: no message like '$3'"
    grep -q "is committed.*--resume $place/errs" "$place/log" && ok "$1: go on" || fail "$1: how to go on is not said"
    must train --resume "$place/errs" --quiet
    same "$1: digest" "$(digest)" "$wanted"
}
errs "a kernel cannot start" clEnqueueNDRangeKernel=5:-5 "clEnqueueNDRangeKernel: CL_OUT_OF_RESOURCES \(-5\)"
errs "no memory there" clCreateBuffer=40:-4 "clCreateBuffer: CL_MEM_OBJECT_ALLOCATION_FAILURE \(-4\)"
errs "a device that is lost" lost=4:-9999 "running the kernel: an error \(-9999\)"
errs "a transfer fails" "discrete clEnqueueReadBuffer=9:-5" "clEnqueueReadBuffer: CL_OUT_OF_RESOURCES \(-5\)"
done_testing
