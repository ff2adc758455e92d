# Shared by the benchmarks: where they work, running longshore, medians and verdicts. Sourced, not run.
# DRIVE: a directory on the drive to measure (default runs/bench). ROUNDS: how often A and B take
# turns (default 3).
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
LONGSHORE=${LONGSHORE:-$here/../build/longshore}
WATCH=${WATCH:-$here/../build/tool_peak}
DRIVE=${DRIVE:-$here/../runs/bench}
ROUNDS=${ROUNDS:-3}
mkdir -p "$DRIVE"
DRIVE=$(cd "$DRIVE" && pwd)
work=$(mktemp -d "$DRIVE/bench.XXXXXX")
trap 'rm -rf "$work"' EXIT

machine() {
    printf '# %s, commit %s\n' "$(date -u +%F)" "$(git -C "$here" describe --always --dirty 2>/dev/null || echo unknown)"
    printf '# %s, %s processors, %s MiB; %s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p)" "$(nproc)" \
        "$(awk '/MemTotal/{print int($2 / 1024)}' /proc/meminfo)" "$(grep -qw amx_tile /proc/cpuinfo && echo AMX || echo "no AMX")"
}
median() { sort -g | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
# number KEY: of one line of JSON on stdin
number() { sed -nE 's/.*"'"$1"'": ?([-0-9.e+]+).*/\1/p' | tail -n 1; }
# metric RUN KEY: a line per step
metric() { sed -nE 's/.*"'"$2"'": ?("?)([^,"}]*)\1.*/\2/p' "$1/metrics.jsonl"; }
calc() { awk "BEGIN {printf \"%.4g\", $*}"; }
# verdict NAME VALUE LIMIT [most]: "at least" unless the fourth word says "most"
verdict() {
    local word=least
    [ "${4:-}" != most ] || word=most
    awk -v name="$1" -v v="$2" -v l="$3" -v w=$word 'BEGIN {
        good = w == "least" ? v >= l : v <= l
        printf "%-72s %10.4g   (at %s %s) %s\n", name, v, w, l, good ? "ok" : "MISSED" }'
}
# random_tokens FILE: a token stream over GPT-2's vocabulary in llm.c's format, the same everywhere, by Zipf's law: 4,096
# tokens touch three quarters of the table's segments (of English text: 56 %)
random_tokens() {
    perl -e 'print pack("V256", 20240520, 1, 200000, (0) x 253); my $s = 1;
        for (1 .. 200000) { $s = $s * 16807 % 2147483647; print pack "v", int(50257 ** ($s / 2147483647)) }' >"$1"
}
# gone RUN: removes it, if it is there, and says only what goes wrong
gone() {
    [ ! -e "$1" ] || "$LONGSHORE" remove "$1" >"$work/removed" 2>&1 || { cat "$work/removed" >&2; return 1; }
}
# train OUT ARGS...: a run on random tokens; its output in $work/log
train() {
    local out=$1
    shift
    gone "$out"
    "$LONGSHORE" train --data "$work/tokens.bin" --out "$out" --shuffle off --quiet "$@" >"$work/log" 2>&1 </dev/null ||
        { cat "$work/log" >&2; return 1; }
}
# seconds RUN FIRST LAST: median time of these steps
seconds() { metric "$1" step_seconds | sed -n "$2,$3p" | median; }
size_bytes() {
    awk -v text="$1" 'BEGIN {p = match(text, /[KMGT]/) ? index("KMGT", substr(text, RSTART, 1)) : 0; printf "%.0f", (text + 0) * 1024 ^ p}'
}
