#!/usr/bin/env bash
# bench testbed at a tiny scale: every mode trains, every row says what it is, the picture is drawn, nothing stays.
. "$(dirname "$0")/lib.sh"
cat >"$place/tiny.json" <<'END'
{"name": "tiny", "scale": 1000, "link": {"shared": "800GB"},
 "drives": [{"read": "60GB", "write": "30GB", "mixed": "80GB", "compute": "800GB", "memory": "40GB"}],
 "compute": {"forward": 0.02, "backward": 0.1}, "host-update": {"rate": "40GB", "buffers": 2},
 "model": {"layers": 4, "width": 128, "inner": 512, "heads": 4}}
END
mkdir "$place/tmp"
run bench testbed "$place/tiny.json" --drives 3,1 --dir "$place/tmp" --out "$place/out" --json --quiet
same "exit code" $rc 0
sed 1d "$place/log" >"$place/rows"
same "rows" "$(wc -l <"$place/rows")" 10
documented "bench testbed" "$place/rows"
same "the same in --out" "$(cksum <"$place/out/testbed-tiny.jsonl" | cut -d' ' -f2)" "$(cksum <"$place/rows" | cut -d' ' -f2)"
field() { sed -nE 's/.*"'"$1"'": ?("?)([^,"}]*)\1.*/\2/p' "$place/rows"; }
same "modes" "$(paste -d: <(field mode) <(field drives) <(field link_share) | xargs)" \
    "base:1:1.0 base:3:1.0 lossless:1:1.0 lossless:3:1.0 state8:1:1.0 state8:3:1.0 top1:1:1.0 top1:3:1.0 lossless:3:0.25 top1:3:0.25"
same "emulated" "$(field emulated | sort -u)" true
same "base is its own measure" "$(field speed_over_base1 | sed -n 1p)" 1.0
paste <(field step_seconds) <(field speed_over_base1) | awk 'NR == 1 {b = $1} {d = b / $1 - $2} d * d > 1e-12 {exit 1}' &&
    ok "speeds" || fail "speeds are not those of the times"
same "what bounds base" "$(field bound | sed -n 2p)" "host update"
same "what bounds lossless on one drive" "$(field bound | sed -n 3p)" "drive write"
same "nothing stays" "$(ls "$place/tmp")" ""
head -c 4 "$place/out/testbed-tiny.svg" | grep -q '<svg' && grep -q '</svg>' "$place/out/testbed-tiny.svg" &&
    ok "a picture" || fail "no picture"
grep -q 'Emulated testbed tiny' "$place/out/testbed-tiny.svg" && ok "it says emulated" || fail "the picture does not say it"

# A link with a limit in one direction has a share of that one.
sed 's/"shared": "800GB"/"out": "800GB"/' "$place/tiny.json" >"$place/out.json"
run bench testbed "$place/out.json" --drives 1 --modes lossless,top1 --dir "$place/tmp" --json --quiet --steps 1
sed 1d "$place/log" >"$place/rows"
same "shares of one direction" "$rc $(field link_share | xargs)" "0 1.0 1.0 0.25 0.25"

# For people; interrupted.
run bench testbed "$place/tiny.json" --drives 1 --modes lossless,base --dir "$place/tmp" --out "$place/out"
grep -q '^emulated: tiny, rates and model divided by 1000' "$place/log" && grep -qE '^lossless +1 +1 ' "$place/log" &&
    ok "a table" || fail "no table"
sed 's/"name": "tiny"/"name": "R\&D <\\"1\\">"/' "$place/tiny.json" >"$place/odd.json"
sed -i 's/"forward": 0.02, "backward": 0.1/"forward": 0.001, "backward": 0.001/' "$place/odd.json" # computing alone is far away
must bench testbed "$place/odd.json" --drives 1 --modes base --dir "$place/tmp" --out "$place/odd" --json
[ "$(grep -c 'text-anchor="end"' "$place/odd/"*.svg)" -le 13 ] && ok "its scale" || fail "too many lines across the picture"
grep -qF '"testbed":"R&D <\"1\">"' "$place/log" && grep -qF '>Emulated testbed R&amp;D &lt;"1">' "$place/odd/"*.svg &&
    ok "its name" || fail "a name is not shown as it is"
sed 's/"name": "tiny", //' "$place/tiny.json" >"$place/nameless.json"
cd "$place" || exit
must bench testbed ./nameless.json --drives 1 --modes base --dir tmp --out nameless
cd "$OLDPWD" || exit
same "called as its file" "$(ls "$place/nameless" | xargs)" "testbed-.-nameless.json.jsonl testbed-.-nameless.json.svg"
"$LONGSHORE" bench testbed "$place/tiny.json" --steps 200 --dir "$place/tmp" --json >"$place/log" 2>&1 &
background=$!
await pgrep -P $background >/dev/null
kill -INT $background
kill -INT -- $(pgrep -P $background) 2>/dev/null
wait $background
rc=$?
background=
same "interrupted" "$rc $(ls "$place/tmp")" "1 "

# A training that is killed, as by a kernel that is short of memory.
"$LONGSHORE" bench testbed "$place/tiny.json" --steps 200 --dir "$place/tmp" --json >"$place/log" 2>&1 &
background=$!
row_is_there() { [ -n "$(ls "$place/tmp"/*/row/drive0 2>/dev/null)" ]; }
await row_is_there
kill -KILL -- $(pgrep -P $background)
wait $background
same "killed" "$? $(ls "$place/tmp")" "1 "
background=
grep -q "the training was ended by signal 9 (Killed)" "$place/log" && ok "the signal is named" || fail "no signal is named"

refused "no testbed" 'which testbed' bench testbed
refused "an unknown one" 'did you mean smart-infinity' bench testbed smart-infinty
same "called as it was given" "$(sed -n 2p "$place/log" | cut -d' ' -f 1-6)" "longshore: smart-infinty is neither a file"
refused "an unknown mode" "not 'fast'" bench testbed smart-infinity --modes base,fast
refused "no number" "not '1,x'" bench testbed smart-infinity --drives 1,x
echo '{"link": {"shared": "8GB"}}' >"$place/bare.json"
refused "no model" 'has no "model"' bench testbed "$place/bare.json"
sed 's/"heads": 4/"heads": 128, "layers": 4097/; s/"layers": 4, //' "$place/tiny.json" >"$place/deep.json"
refused "a model of too many layers" 'deep.json: "model": "n_layer" is 4097' \
    bench testbed "$place/deep.json" --dir "$place/tmp" --out "$place/deep"
[ ! -e "$place/deep" ] && ok "nothing was made" || fail "a refused testbed has made $place/deep"
refused "no such place" 'no temporary directory can be made in' bench testbed smart-infinity --dir "$place/nowhere"
done_testing
