#!/usr/bin/env bash
# --emulate takes the time of another machine, says so wherever it shows, and changes no bit.
. "$(dirname "$0")/lib.sh"
gpt2_config "$place/config.json" 3 128 4 64 600
some_text "$place/text" 300
mkdir "$place"/d{1,2,3}
d=("$place"/d{1,2,3})
common=(--init "$place/config.json" --seed 7 --data "$place/text" --batch 12 --seq-len 64 --clip 100 --log-every 1
        --memory 512MiB)
must train "${common[@]}" --steps 4 --drive ram: --out "$place/plain"
wanted=$(digest)
metric "$place/plain" emulated | grep -q true && fail "a plain run says emulated" || ok "a plain run"

# 0.5 s of computing a step, more than the drives and the link take.
cat >"$place/rack.json" <<'END'
{"name": "rack", "scale": 100, "link": {"shared": "20GB"},
 "drives": [{"read": "20GB", "write": "12GB", "mixed": "24GB", "compute": "60GB", "memory": "400MB"}, {"read": "5GB"}],
 "compute": {"forward": 0.1, "backward": 0.4}, "host-update": {"rate": "20GB", "buffers": 2}}
END
for update in drive host; do
    rm -rf "$place"/run "$place"/d[123]/*
    must train "${common[@]}" --steps 4 --update $update --emulate "$place/rack.json" --drive "${d[@]}" --out "$place/run"
    same "$update: digest" "$(digest)" "$wanted"
    grep -qE '^step 4 digest [0-9a-f]+ emulated$' "$place/log" && ok "last line" || fail "the last line does not say it"
    grep -qE '^[0-9:]{8} emulated step 3/4' "$place/log" && ok "progress" || fail "progress does not say it"
    grep -q 'times are those of rack, rates and model divided by 100' "$place/log" && ok "note" || fail "no note"
    same "$update: metrics" "$(metric "$place/run" emulated | sort | uniq -c | xargs)" "4 true"
    documented RUN/metrics.jsonl "$place/run/metrics.jsonl"
    metric "$place/run" step_seconds | sed -n 2,3p | awk '$1 < 0.49 {exit 1}' && ok "$update: a step takes its time" ||
        fail "$update: steps are faster than the machine: $(metric "$place/run" step_seconds | xargs)"
    run inspect "$place/run"
    grep -q '^emulated: .*rack.json' "$place/log" && ok "inspect" || fail "inspect does not say it"
done

grep -q "computes more slowly" "$place/log" && fail "a slow machine is called fast" || ok "a slower machine"

# A faster machine cannot be emulated, and that is said.
echo '{"name": "fast", "compute": {"forward": 0.0001, "backward": 0.0001}}' >"$place/fast.json"
rm -rf "$place"/run "$place"/d[123]/*
must train "${common[@]}" --steps 4 --emulate "$place/fast.json" --drive "${d[0]}" --out "$place/run"
same "a faster machine: said once" "$(grep -c "emulated: this machine computes more slowly than fast" "$place/log")" 1

# A slow link bounds the step: 32 bytes a parameter at 100 MB/s.
echo '{"link": {"shared": "100MB"}}' >"$place/link.json"
rm -rf "$place"/run "$place"/d[123]/*
must train "${common[@]}" --steps 3 --update host --emulate "$place/link.json" --drive "${d[0]}" --out "$place/run"
# Over all steps: what is fetched ahead at the end of one is counted there, and may cross in the next.
total() { metric "$place/run" "$1" | awk '{s += $1} END {print s}'; }
# paced BYTES SECONDS_BUSY RATE WHAT: as long as they take, and the steps take as long, however busy this machine is
paced() {
    awk -v l="$1" -v b="$2" -v r="$3" 'BEGIN {exit !(b > 0.99 * l / r && b < 1.01 * l / r)}' &&
        ok "$4: what is counted is what is paced" || fail "$4: busy for $2 s with $1 bytes"
    awk -v s="$(total step_seconds)" -v b="$2" 'BEGIN {exit !(s > 0.95 * b)}' && ok "$4: steps" ||
        fail "$4: busy for $2 s in steps of $(total step_seconds) s"
}
paced "$(total link_bytes)" "$(total link)" 1e8 link

# Writing at 20 MB/s: 12 bytes a parameter beside the drive, on one of two equal drives half of it.
echo '{"drives": [{"write": "20MB"}]}' >"$place/drive.json"
for n in 1 2; do
    rm -rf "$place"/run "$place"/d[123]/*
    must train "${common[@]}" --steps 3 --speculate on --emulate "$place/drive.json" --drive "${d[@]:0:n}" --out "$place/run"
    busy=$(total drive_write)
    [ $n = 1 ] && alone=$busy && paced "$(total drive_write_bytes)" "$busy" 2e7 "one drive"
done
awk -v a="$alone" -v b="$busy" 'BEGIN {exit !(b > 0.49 * a && b < 0.7 * a)}' && ok "each writes its part" ||
    fail "one drive wrote for $alone s, of two the busier for $busy s"

# A drive that gets three times slower after step 2, also where a start goes on after it.
echo '{"drives": [{"write": "60MB", "slower-after": 2, "slower-by": 3}]}' >"$place/slower.json"
rm -rf "$place"/run "$place"/d[123]/*
must train "${common[@]}" --steps 4 --stop-at 3 --speculate on --emulate "$place/slower.json" --drive "${d[0]}" --out "$place/run"
must train --resume "$place/run"
same "slower: digest" "$(digest)" "$wanted"
# rate FIRST LAST WANTED: bytes a second that were written in those steps
rate() {
    paste <(metric "$place/run" drive_write_bytes) <(metric "$place/run" drive_write) |
        awk -v f="$1" -v l="$2" -v w="$3" 'NR >= f && NR <= l {b += $1; s += $2}
            END {exit !(b / s > 0.98 * w && b / s < 1.02 * w)}' && ok "slower: steps $1 to $2" ||
        fail "steps $1 to $2 do not write $3 bytes a second"
}
rate 1 1 6e7 # a commit runs into the next step
rate 4 4 2e7

# A plan for that machine says how long its steps take, whatever bounds them.
planned() { # JSON WHAT
    echo "$1" >"$place/slow.json"
    rm -rf "$place"/run "$place"/d[123]/*
    must plan "${common[@]}" --speculate on --machine "$place/slow.json" --drive "${d[0]}" --json
    local seconds
    seconds=$(grep -oE '"step_seconds":[0-9.]+' "$place/log" | sed -n '1s/.*://p') # not those of a change
    must train "${common[@]}" --steps 5 --speculate on --emulate "$place/slow.json" --drive "${d[0]}" --out "$place/run"
    metric "$place/run" step_seconds | sed -n 2,4p | sort -n | sed -n 2p |
        awk -v p="$seconds" '{exit !(p > 0.85 * $1 && p < 1.15 * $1)}' && ok "$2: planned" ||
        fail "$2: a plan of $seconds s, and steps of $(metric "$place/run" step_seconds | xargs)"
}
planned '{"compute": {"forward": 0.5, "backward": 1}}' "compute"
planned '{"drives": [{"mixed": "12MB"}], "compute": {"forward": 0.2, "backward": 0.4}}' "drive"

# It may begin and end with a start, and the run remembers.
rm -rf "$place"/run "$place"/d[123]/*
must train "${common[@]}" --steps 4 --stop-at 1 --drive "${d[0]}" --out "$place/run"
cd "$place" || exit
must train --resume "$place/run" --emulate rack.json --stop-at 2
cd "$OLDPWD" || exit
grep -q 'from step 1 on: emulate none -> ' "$place/log" && ok "change" || fail "the change is not said"
must train --resume "$place/run" --stop-at 3
must train --resume "$place/run" --emulate none
same "resumed" "$(digest)" "$wanted"
same "of which steps" "$(metric "$place/run" emulated | wc -l | xargs)" 2
cd "$place" || exit
must train "${common[@]}" --steps 2 --stop-at 1 --emulate rack.json --drive "${d[1]}" --out "$place/there"
cd "$OLDPWD" || exit
must train --resume "$place/there"
mv "$place/rack.json" "$place/gone.json"
refused "a file that is gone" '/rack.json is not a file' train --resume "$place/there" --steps 3
must remove "$place/there"
mv "$place/gone.json" "$place/rack.json"

# Machines that come with the program have names.
rm -rf "$place"/d[123]/*
must train "${common[@]}" --steps 1 --emulate gpu-24gb --drive "${d[0]}" --out "$place/named"
grep -q 'times are those of gpu-24gb' "$place/log" && ok "a known machine" || fail "not the known machine's times"

# What cannot be.
echo '{"link": {"shard": "8GB"}}' >"$place/bad.json"
refused "unknown key" 'did you mean "shared"' train "${common[@]}" --emulate "$place/bad.json" --drive "${d[0]}/x" --out "$place/no"
echo '{"link": ' >"$place/bad.json"
refused "no JSON" 'bad.json:' train "${common[@]}" --emulate "$place/bad.json" --drive "${d[0]}/x" --out "$place/no"
refused "no such file" 'no-machine is not a file' train "${common[@]}" --emulate no-machine --drive "${d[0]}/x" --out "$place/no"
refused "in memory" 'ram: does neither' train "${common[@]}" --emulate "$place/rack.json" --drive ram: --out "$place/no"
refused "verify" 'verify compares bits alone' verify "${common[@]}" --emulate "$place/rack.json" --drive "${d[0]}"
[ ! -e "$place/no" ] && [ ! -e "${d[0]}/x" ] && ok "nothing is made" || fail "something was made"
done_testing
