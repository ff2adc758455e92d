# Shared by the end-to-end tests: a place to work, running the program, reading what it wrote. Sourced, not run.
# LONGSHORE, COMPARE and PEAK are the programs, FAIL_IO_SO is preloaded; without them, those of build/.
set -uo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(cd "$tests/.." && pwd)/build
LONGSHORE=${LONGSHORE:-$build/longshore}
COMPARE=${COMPARE:-$build/tool_compare_safetensors}
PEAK=${PEAK:-$build/tool_peak}
FAIL_IO_SO=${FAIL_IO_SO:-$build/libtool_fail_io.so}
FAKE_OPENCL_SO=${FAKE_OPENCL_SO:-$build/fake_opencl/libOpenCL.so.1}
for tool in LONGSHORE COMPARE PEAK FAIL_IO_SO FAKE_OPENCL_SO; do
    if grep -q "\$$tool" "$0" && [ ! -e "${!tool}" ]; then
        echo "${!tool} is not built: run 'scripts/build release' first (make builds the program alone)" >&2
        exit 1
    fi
done
export LC_ALL=C OMP_WAIT_POLICY=passive
export LONGSHORE_MACHINE=none # whatever is kept of this machine

# What is random follows SEED. Not in $(...): bash begins anew there.
RANDOM=${SEED:=$RANDOM}
echo "SEED=$SEED"
# nap LEAST SPAN: sleeps for LEAST microseconds and up to SPAN more
nap() {
    local us=$(($1 + (RANDOM * 32768 + RANDOM) % ($2 + 1))) seconds
    printf -v seconds '%d.%06d' $((us / 1000000)) $((us % 1000000))
    sleep "$seconds"
}

# await COMMAND...: waits until it succeeds, however busy the machine is, or the $background that is to bring it about has
# ended. Five minutes are too long for anything but a fault.
await() {
    local last=$((SECONDS + 300))
    until "$@"; do
        [ -z "${background:-}" ] || kill -0 "$background" 2>/dev/null || return
        [ $SECONDS -lt $last ] || { fail "waited in vain: $*"; return; }
        sleep 0.01
    done
}
# steps_made RUN N: it has made more than N of them
steps_made() { [ -s "$1/metrics.jsonl" ] && [ "$(wc -l <"$1/metrics.jsonl")" -gt "$2" ]; }

# Beside the program, not in /tmp: a file system in memory takes no direct I/O.
place=$(mktemp -d "$(dirname "$LONGSHORE")/e2e.XXXXXX")
failures=0
checks=0
device= # a loop device that a test has taken; what it mounts is $place/mnt
finish() {
    local rc=$?
    [ ! -d "$place/mnt" ] || umount "$place/mnt" 2>/dev/null
    [ -z "$device" ] || losetup -d "$device"
    [ -z "${background:-}" ] || kill -9 "$background" 2>/dev/null
    if [ "$failures" = 0 ] && [ "$rc" = 0 ] && [ -z "${KEEP:-}" ]; then rm -rf "$place"; else echo "kept: $place"; fi
}
trap finish EXIT
done_testing() {
    echo "$checks checks, $failures failures"
    [ "$failures" = 0 ] && [ "$checks" != 0 ]
    exit
}

ok() { checks=$((checks + 1)); [ -z "${VERBOSE:-}" ] || echo "ok: $*"; }
fail() {
    checks=$((checks + 1))
    failures=$((failures + 1))
    echo "FAILED: $*"
    [ ! -s "$place/log" ] || sed 's/^/    | /' "$place/log" | tail -n 12
}
same() { if [ "$2" = "$3" ]; then ok "$1"; else fail "$1: '$2' is not '$3'"; fi; }

# run ARGS...: output in $place/log, exit code in $rc. A run that hangs is ended and fails with 124.
guard=(timeout -k 5 "${LIMIT:-400}")
run() {
    printf '$ longshore %s\n' "$*" >"$place/log"
    "${guard[@]}" "$LONGSHORE" "$@" >>"$place/log" 2>&1 </dev/null
    rc=$?
}
# merge ARRAY FLAGS...: into $merged, the array's words with these flags instead of its own.
merge() {
    local -n from=$1
    local drop= word flag
    shift
    merged=()
    for word in "${from[@]}"; do
        if [[ $word == --* ]]; then
            drop=
            for flag in "$@"; do [ "${flag%%=*}" != "$word" ] || drop=1; done
        fi
        [ -n "$drop" ] || merged+=("$word")
    done
    merged+=("$@")
}
# must ARGS...: run that has to succeed.
must() {
    run "$@"
    if [ $rc = 0 ]; then ok "$*"; else fail "exit code $rc: longshore $*"; fi
}
# serve ARGS...: a server on $socket, in $server; what it says goes to $place/server.log.
serve() {
    rm -f "$socket"
    "$LONGSHORE" drive serve --listen "$socket" "$@" >"$place/server.log" 2>&1 </dev/null &
    server=$!
    background=$server
    await test -S "$socket"
}
stop_serving() {
    kill -9 $server 2>/dev/null
    wait $server 2>/dev/null
    background=
}
# kill_far_side RUN MOST PAUSE_MS ARGS...: longshore ARGS, which make RUN, and SIGKILL for the servers that it has
# started, MOST at most, 20 ms and up to PAUSE_MS more apart; how many in $kills, exit code in $rc.
kill_far_side() {
    local made=$1 most=$2 pause=$3 far
    shift 3
    printf '$ longshore %s\n' "$*" >"$place/log"
    "$LONGSHORE" "$@" --out "$made" >>"$place/log" 2>&1 </dev/null &
    background=$!
    await test -s "$made/metrics.jsonl"
    kills=0
    while [ $kills -lt "$most" ] && kill -0 $background 2>/dev/null; do
        # the first at once: on a fast machine the run is soon over
        [ $kills = 0 ] || nap 20000 $((pause * 1000))
        far=$(pgrep -P $background -f "drive serve --stdio") && kill -9 $far 2>/dev/null && kills=$((kills + 1))
    done
    wait $background
    rc=$?
    background=
}
# kill_and_resume RUN MOST LIMIT_MS ARGS...: makes RUN by `train ARGS`, kills it with SIGKILL after random times, and
# starts again until it ends; no more than MOST kills. Exit code in $rc, how many kills in $kills.
kill_and_resume() {
    local run=$1 most=$2 limit=$3 starts args
    shift 3
    kills=0
    for ((starts = 0; starts < most + 40; starts++)); do
        args=(train --resume "$run")
        # A run that was killed while it was being made is made again by the same command.
        [ -s "$run/metrics.jsonl" ] || "$LONGSHORE" inspect "$run" >/dev/null 2>&1 || args=(train "$@" --out "$run")
        printf '$ %s\n' "${args[*]}" >"$place/log"
        "$LONGSHORE" "${args[@]}" >>"$place/log" 2>&1 </dev/null &
        background=$!
        if [ $kills -lt "$most" ]; then
            nap 10000 $((limit * 1000))
            kill -9 $background 2>/dev/null && kills=$((kills + 1))
        fi
        wait $background 2>/dev/null
        rc=$?
        background=
        [ $rc = 137 ] || return
    done
}
# refused NAME PATTERN ARGS...: exit code 2, a message that matches, without regard to case.
refused() { expect_failure 2 "$@"; }
expect_failure() {
    local code=$1 name=$2 pattern=$3
    shift 3
    run "$@"
    if [ $rc != "$code" ]; then
        fail "$name: exit code $rc, not $code"
    elif ! sed 1d "$place/log" | grep -qiE -- "$pattern"; then
        fail "$name: no message like '$pattern'"
    else
        ok "$name"
    fi
}
# The digest that the last run printed: "step N digest HEX".
digest() { sed -nE 's/^step ([0-9]+) digest ([0-9a-f]+).*$/\1 \2/p' "$place/log" | tail -n 1; }
# metric RUN KEY: the values of one key, a line per step.
metric() { sed -nE 's/.*"'"$2"'": ?("?)([^,"}]*)\1.*/\2/p' "$1/metrics.jsonl"; }
# documented SECTION[|SECTION...] FILE: docs/outputs.md has every key of the JSON in FILE in one of these sections.
documented() {
    local page keys key
    page=$(awk -v names="^## ($1)\$" '/^## / {inside = $0 ~ names} inside' "$tests/../docs/outputs.md")
    keys=$(sed -E 's/"(model|settings|program)":\{[^}]*\}/"\1":0/g' "$2" | grep -oE '"[a-z0-9_]+":' | tr -d '":' | sort -u)
    [ -n "$keys" ] || fail "$1: no JSON"
    for key in $keys; do
        [[ $page == *"\`$key\`"* ]] && ok "$1: $key" || fail "docs/outputs.md, $1: $key is missing"
    done
}

# bytes SIZE: what "397.00 MiB" means, as longshore reads it.
bytes() {
    awk -v text="$1" 'BEGIN {
        number = text + 0; unit = text; sub(/^[0-9.]+ */, "", unit); unit = toupper(unit)
        power = index("KMGT", substr(unit, 1, 1)); if (unit == "" || unit == "B") power = 0
        base = (length(unit) == 2 && substr(unit, 2) == "B") ? 1000 : 1024
        printf "%.0f\n", number * base ^ power }'
}
# minimum ARGS...: the size that the refusal of a tiny budget names; empty if there is none.
minimum() {
    run "$@" --memory 1MiB
    sed -nE 's/.*minimum ([0-9.]+ ?[KMGT]?i?B?).*/\1/p' "$place/log" | sed -n 1p
}

# most_memory: bytes from which on everything is kept, as the last run's --dry-run said
most_memory() { bytes "$(sed -n 's/^memory: everything kept from \([0-9.]* [KMG]iB\) on$/\1/p' "$place/log")"; }

# for_ways: the models, tokens, flags and directories of `way`, `alike` and `killed_alike`: $place/gpt2.json and llama.json,
# $place/tokens.bin, "${common[@]}", $place/d1 to d3.
for_ways() {
    gpt2_config "$place/gpt2.json" 3 64 4 64 2500
    cat >"$place/llama.json" <<JSON
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 96, "intermediate_size": 160,
 "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
 "vocab_size": 2500, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}
JSON
    skewed_tokens "$place/tokens.bin" 2500
    common=(--seed 7 --data "$place/tokens.bin" --steps 4 --batch 20 --seq-len 64 --lr 3e-3 --warmup 1 --clip 0.5)
    mkdir "$place"/d{1,2,3}
}

# way ARGS...: a run of its own, with "${common[@]}", in $place/run and below $place/d1 to d3; its digest in $found.
way() {
    rm -rf "$place/run" "$place"/d[1-3]/*
    run train "${common[@]}" --out "$place/run" "$@"
    found=$(digest)
    [ $rc = 0 ] && [ -n "$found" ] || fail "exit code $rc: $*"
}

# alike ARGS...: one digest wherever the state lies and whatever memory there is; and it is that of no others.
seen=" "
alike() {
    local wanted least
    least=$(minimum train "${common[@]}" --out "$place/run" "$@" --drive "$place/d1")
    way "$@" --drive ram:
    wanted=$found
    [[ $seen == *" $wanted "* ]] && fail "$*: as with others" || ok "$*: its own digest"
    seen+="$wanted "
    way "$@" --drive "$place/d1" --memory "$least"
    same "$*: within $least" "$found" "$wanted"
    way "$@" --drive "$place"/d{1,2,3} --memory 512MiB --speculate on
    same "$*: three drives" "$found" "$wanted"
    way "$@" --drive "$place/d1" --update host
    same "$*: updated on the host" "$found" "$wanted"
}

# killed_alike ARGS...: 20 steps have one digest, whether $place/whole makes them at once or $place/killed is killed meanwhile.
killed_alike() {
    local merged wanted
    merge common "$@" --steps 20
    must train "${merged[@]}" --drive ram: --out "$place/whole"
    wanted=$(digest)
    kill_and_resume "$place/killed" 6 700 "${merged[@]}" --drive "$place/d2"
    same "digest after $kills kills" "$(digest)" "$wanted"
    run inspect "$place/killed" --digest --deep
    same "every byte after $kills kills" "$(digest)" "$wanted"
}

# skewed_tokens FILE VOCAB: 40,000 tokens, few of which are frequent, so that each unit looks up segments of its own
skewed_tokens() {
    perl -e 'print pack("V256", 20240520, 1, 40000, (0) x 253); my $s = 1;
        for (1 .. 40000) { $s = $s * 16807 % 2147483647; print pack "v", int($ARGV[0] ** ($s / 2147483647)) }' "$2" >"$1"
}
# volume_in DIR: the file of the one run that has a volume in this directory
volume_in() { compgen -G "$1/longshore*.volume" || echo "$1/longshore.volume"; }
# failed_on FAULT WHAT: the last run ended with 1, and named the drive of this FAIL_IO and what its system said
failed_on() {
    same "$1: exit code" $rc 1
    sed 1d "$place/log" | grep -qE "${1##* }longshore[^ ]*volume: (reading|writing) .*($2)" &&
        ok "$1" || fail "$1: the drive is not named"
}
# gpt2_config FILE LAYERS WIDTH HEADS POSITIONS VOCAB
gpt2_config() {
    cat >"$1" <<JSON
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": $2, "n_embd": $3, "n_head": $4,
 "n_positions": $5, "vocab_size": $6, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
 "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
JSON
}
# some_text FILE LINES: prose enough to learn from, the same everywhere.
some_text() {
    awk -v lines="$2" 'BEGIN {
        split("the a one every old new small great", det, " "); split("ship crane port tide load rope pilot anchor", noun, " ")
        split("moves lifts waits turns holds meets leaves finds", verb, " "); seed = 12345
        for (i = 0; i < lines; i++) {
            s = ""
            for (j = 0; j < 3; j++) {
                seed = (seed * 1103515245 + 12345) % 2147483648
                a = int(seed / 65536) % 8 + 1; b = int(seed / 1024) % 8 + 1; c = int(seed / 128) % 8 + 1
                s = s det[a] " " noun[b] " " verb[c] " " det[b] " " noun[c] (j < 2 ? ", " : ".")
            }
            print s
        } }' >"$1"
}
