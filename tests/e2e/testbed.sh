#!/usr/bin/env bash
# bench/testbed.py at a tiny scale: every mode trains, every row says what it is, the picture is drawn, nothing stays.
. "$(dirname "$0")/lib.sh"
cat >"$place/tiny.json" <<'JSON'
{"name": "R&D <1>", "scale": 1000, "link": {"shared": "800GB"},
 "drives": [{"read": "60GB", "write": "30GB", "mixed": "80GB", "compute": "800GB", "memory": "40GB"}],
 "compute": {"forward": 0.02, "backward": 0.1}, "host-update": {"rate": "40GB", "buffers": 2},
 "model": {"layers": 4, "width": 128, "inner": 512, "heads": 4}}
JSON
mkdir "$place/tmp"
testbed() {
    LONGSHORE=$LONGSHORE "$tests/../bench/testbed.py" "$place/tiny.json" --dir "$place/tmp" "$@" >"$place/rows" 2>"$place/log"
    rc=$?
}
testbed --drives 3,1 --out "$place/out"
same "exit code" $rc 0
field() { sed -nE 's/.*"'"$1"'": ?("?)([^,"}]*)\1.*/\2/p' "$place/rows"; }
same "modes" "$(paste -d: <(field mode) <(field drives) <(field link_share) | xargs)" \
    "base:1:1.0 base:3:1.0 lossless:1:1.0 lossless:3:1.0 state8:1:1.0 state8:3:1.0 top1:1:1.0 top1:3:1.0 lossless:3:0.25 top1:3:0.25"
same "base is its own measure" "$(field speed_over_base1 | sed -n 1p)" 1.0
same "what bounds base" "$(field bound | sed -n 2p)" "host update"
same "what bounds lossless on one drive" "$(field bound | sed -n 3p)" "drive write"
paste <(field mode) <(field drives) <(field link_share) <(field link) |
    awk '{s[$1 $2 $3] = $4} END {q = s["lossless30.25"] / s["lossless31.0"]; exit !(q > 3.5 && q < 4.5)}' &&
    ok "a quarter of the link" || fail "a quarter of the link is not busy four times as long"
same "rows in --out" "$(wc -l <"$place/out/testbed.jsonl")" 10
same "drives in the picture" "$(grep -o 'text-anchor="middle">[13]<' "$place/out/testbed.svg" | wc -l)" 2
grep -qF '>Emulated testbed R&amp;D &lt;1&gt;<' "$place/out/testbed.svg" && ok "it says emulated" || fail "the picture does not say it"
same "nothing stays" "$(ls "$place/tmp")" ""

sed -i 's/"heads": 4/"heads": 5/' "$place/tiny.json"
testbed --drives 1
same "a model that cannot be" "$rc $(ls "$place/tmp") $(cat "$place/rows")" "1  "
grep -q 'the training ended with 2: longshore: .*"n_head" is 5' "$place/log" && ok "why" || fail "the training's reason is missing"
done_testing
