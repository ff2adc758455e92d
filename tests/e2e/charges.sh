#!/usr/bin/env bash
# The charges of a step name what holds it up, add up to it, and each drive's share lies beside them.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 3 128 4 64 600
some_text "$place/text" 300
mkdir "$place"/d{1,2}
d=("$place"/d{1,2})
common=(--init "$place/config.json" --seed 7 --data "$place/text" --batch 12 --seq-len 64 --clip 100)
charges=(before_forward forward again backward update bus link drive commit)

# charged RUN: "SECONDS CHARGE" of all steps but the first, the longest first; fails where a step's do not add up to it
charged() {
    awk -v names="${charges[*]}" '
        {
            n = split(names, name, " "); sum = 0
            if (!match($0, /"charges":\{[^}]*\}/)) bad = 1
            object = substr($0, RSTART + 11, RLENGTH - 12)
            if (split(object, pair, ",") != n) bad = 1
            for (i = 1; i <= n; i++) {
                split(pair[i], half, ":")
                if (half[1] != "\"" name[i] "\"" || half[2] + 0 < 0) bad = 1
                sum += half[2]
                if (NR > 1) total[i] += half[2]
            }
            match($0, /"step_seconds":[0-9.e-]+/); step = substr($0, RSTART + 15, RLENGTH - 15)
            if (sum - step > 1e-6 || step - sum > 1e-6) bad = 1
        }
        END { for (i in total) print total[i], name[i]; exit bad }' "$1/metrics.jsonl" | sort -rg
    return "${PIPESTATUS[0]}"
}

# largest PATTERN WHAT FLAGS...: the largest charge of a training matches, and what comes before forward is next to nothing
largest() {
    local list
    rm -rf "$place"/run "$place"/d[12]/*
    merge common --steps 3 --out "$place/run" "${@:3}"
    must train "${merged[@]}"
    list=$(charged "$place/run") && ok "$2: they add up" || fail "$2: do not add up: $list"
    [[ ${list%%$'\n'*} =~ \ ($1)$ ]] && ok "$2" || fail "$2: not $1, but ${list//$'\n'/, }"
    awk '{all += $1} $2 == "before_forward" {before = $1} END {exit !(before < 0.05 * all)}' <<<"$list" &&
        ok "$2: before forward" || fail "$2: before forward: ${list//$'\n'/, }"
}
# held_up PATTERN WHAT MACHINE FLAGS...: the same on that machine
held_up() {
    echo "$3" >"$place/machine.json"
    largest "$1" "$2" --emulate "$place/machine.json" "${@:4}"
}

link='{"link": {"shared": "20MB"}}'
drive='{"drives": [{"mixed": "20MB"}]}'
processor='{"compute": {"forward": 0.2, "backward": 0.5}}'
products='{"compute": {"products": {"fp32": "4GB", "bf16": "4GB"}}}'
least=$(minimum train "${common[@]}" --steps 3 --drive "${d[0]}" --out "$place/run")
for memory in 512MiB "$least"; do
    held_up link "link, $memory" "$link" --memory "$memory" --drive "${d[0]}"
    held_up drive "drive, $memory" "$drive" --memory "$memory" --drive "${d[0]}"
    held_up 'forward|backward' "processor, $memory" "$processor" --memory "$memory" --drive "${d[0]}"
    held_up 'forward|backward' "products, $memory" "$products" --memory "$memory" --drive "${d[0]}"
done
# What backward computes again has its own charge; where everything is kept, there is none.
for memory in 512MiB "$least"; do
    rm -rf "$place"/run "$place"/d[12]/*
    must train "${common[@]}" --steps 3 --offload off --memory "$memory" --drive "${d[0]}" --out "$place/run"
    again=$(charged "$place/run" | awk '$2 == "again" {a = $1} $2 == "forward" {f = $1} END {print (a > f / 10 ? "some" : "none")}')
    same "computed again, $memory" "$again" "$([ "$memory" = 512MiB ] && echo none || echo some)"
done
held_up link "link, update host" "$link" --memory 512MiB --update host --drive "${d[@]}"
held_up drive "drive, update host" "$drive" --memory 512MiB --update host --drive "${d[@]}"
held_up update "update on the host" '{"host-update": {"rate": "2MB", "buffers": 2}}' --memory 512MiB --update host --drive "${d[0]}"
held_up drive "the slower drive" '{"drives": [{"write": "900MB"}, {"write": "10MB"}]}' --memory 512MiB --drive "${d[@]}" \
    --drive-speeds 1,1
held_up drive "computing beside a drive" '{"drives": [{"compute": "2MB"}]}' --memory 512MiB --drive "${d[0]}"
held_up link "a link before drives" '{"link": {"shared": "20MB"}, "drives": [{"mixed": "2GB"}], "compute": {"forward": 0.01, "backward": 0.02}}' \
    --memory 512MiB --drive "${d[0]}"
held_up drive "drives behind a link" '{"link": {"shared": "2GB"}, "drives": [{"mixed": "20MB"}], "compute": {"forward": 0.01, "backward": 0.02}}' \
    --memory 512MiB --drive "${d[0]}"

# The same of a drive on another host, without emulation: a link of 20 MB/s each way, then a drive whose requests take 30 ms.
cat >"$place/throttle" <<'END'
import subprocess, sys, threading, time
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def pass_on(of, to):
    while data := of.read1(65536):
        time.sleep(len(data) / 20e6)
        to.write(data)
        to.flush()
    to.close()
there = threading.Thread(target=pass_on, args=(sys.stdin.buffer, child.stdin), daemon=True)
there.start()
pass_on(child.stdout, sys.stdout.buffer)
END
# far COMMAND...: how the far side serves
far() {
    printf '#!/bin/sh\nshift\nexec %s "%s" drive serve --stdio\n' "$*" "$LONGSHORE" >"$place/rsh"
    chmod +x "$place/rsh"
}
export LONGSHORE_RSH="$place/rsh"
far python3 "$place/throttle"
gpt2_config "$place/wide.json" 3 256 4 64 600
largest link "a slow link to another host" --init "$place/wide.json" --memory 512MiB --drive "ssh://far${d[0]}"
far env "LD_PRELOAD=$FAIL_IO_SO" "FAIL_IO='slow 0 30 volume'"
largest drive "a slow drive on another host" --io threads --memory 512MiB --drive "ssh://far${d[0]}"

# steps_of FILE: the steps of its lines
steps_of() { sed -nE 's/^\{"step":([0-9]+),.*\}$/\1/p' "$1" | xargs; }
# each FILE KEY: the sum of a key over all lines
each() { grep -oE "\"$2\":[0-9]+" "$1" | awk -F: '{s += $2} END {print s + 0}'; }

# A fleet of 64 drives: the line of metrics stays short, and each drive's share lies beside it.
rm -rf "$place"/run "$place"/d[12]/*
many=()
for i in {1..64}; do many+=("ram:"); done
must train "${common[@]}" --steps 2 --memory 2GiB --drive "${many[@]}" --out "$place/many"
[ "$(awk '{print length}' "$place/many/metrics.jsonl" | sort -n | tail -n 1)" -lt 2000 ] && ok "short lines" || fail "long lines"
same "64 drives" "$(sed -n 2p "$place/many/drives.jsonl" | grep -o '"drive":' | wc -l)" 64
same "paths are said once" "$(grep -c '"path":' "$place/many/drives.jsonl")" 1
documented RUN/drives.jsonl "$place/many/drives.jsonl"

must train "${common[@]}" --steps 6 --stop-at 2 --memory 512MiB --drive "${d[@]}" --out "$place/run"
must snapshot "$place/run" two
must train --resume "$place/run" --stop-at 4
grep -qE '^of a step of [0-9.]+ m?s: [a-z_]+ [0-9]+ %(, [a-z_]+ [0-9]+ %)*$' "$place/log" && ok "summary" || fail "no summary"
same "a line for each step" "$(steps_of "$place/run/drives.jsonl")" "1 2 3 4"
for key in read_bytes write_bytes; do
    awk -v a="$(each "$place/run/drives.jsonl" $key)" -v b="$(each "$place/run/metrics.jsonl" drive_$key)" \
        'BEGIN {exit !(a > 0.98 * b && a < 1.02 * b)}' && ok "$key" || fail "$key do not add up to drive_$key"
done

# A start cuts off what is beyond its step, and what is torn.
cp "$place/run/drives.jsonl" "$place/four"
{ echo '{"step":5,"drives":[]}'; echo '{"step":6,"drives":[]}'; printf '{"step":7,"dri'; } >>"$place/run/drives.jsonl"
must train --resume "$place/run" --stop-at 5
same "cut back" "$(steps_of "$place/run/drives.jsonl")" "1 2 3 4 5"
cmp -s "$place/four" <(head -n 4 "$place/run/drives.jsonl") && ok "what was there stays" || fail "lines were changed"
must rollback "$place/run" two
must train --resume "$place/run" --stop-at 3
same "rolled back" "$(steps_of "$place/run/drives.jsonl")" "1 2 3"
head -c 3000000 /dev/zero | tr '\0' x >"$place/run/drives.jsonl"
must train --resume "$place/run" --stop-at 4
same "damaged" "$(steps_of "$place/run/drives.jsonl")" 4

# A run from before: no charges, and no such file.
sed -i -E 's/"charges":\{[^}]*\},//' "$place/run/metrics.jsonl"
rm "$place/run/drives.jsonl"
must inspect "$place/run"
grep -q '^of a step' "$place/log" && fail "inspect knows charges" || ok "an older run's inspect"
must inspect "$place/run" --json
grep -q '"charges"' "$place/log" && fail "inspect --json knows charges" || ok "an older run's inspect --json"
must train --resume "$place/run" --stop-at 5
same "an older run" "$(grep -c charges "$place/run/metrics.jsonl")" 1
same "an older run's drives" "$(steps_of "$place/run/drives.jsonl")" 5
must inspect "$place/run"
grep -q '^of a step of ' "$place/log" && ok "inspect" || fail "inspect says no charges"
must inspect "$place/run" --json
documented 'inspect|drive list|snapshots' "$place/log"
must remove "$place/run"
[ ! -e "$place/run" ] && ok "removed" || fail "files stay: $(ls "$place/run")"
done_testing
