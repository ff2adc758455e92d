#!/usr/bin/env bash
# `longshore curves` draws runs beside one another as one SVG that needs nothing else, whatever their files hold.
. "$(dirname "$0")/lib.sh"
some_text "$place/text" 200
mkdir "$place/d"
cd "$place" || exit 1
shape=(--init gpt2-tiny --data text --drive d --batch 2 --seq-len 32 --memory 256MiB --quiet)

# whole FILE: XML that asks for nothing and runs nothing, with words inside of it; "ok", or what is wrong
whole() {
    python3 - "$1" <<'PY'
import re, sys
from xml.etree import ElementTree
text = open(sys.argv[1], encoding="utf-8").read()
root, wrong = ElementTree.fromstring(text), []
NAMES = {"svg", "style", "rect", "title", "path", "text", "tspan"}
for node in root.iter():
    name = node.tag.replace("{http://www.w3.org/2000/svg}", "")
    if name not in NAMES: wrong.append(name)
    if any(k.startswith("on") or "href" in k for k in node.attrib): wrong.append(f"{name} {node.attrib}")
    for key in ("x", "y", "d"):
        for number in re.findall(r"-?[\d.]+(?:e[-+]\d+)?", node.get(key, "")):
            if not -100 <= float(number) <= 5000: wrong.append(f"{name} {key}={number}")
if root.tag != "{http://www.w3.org/2000/svg}svg": wrong.append(root.tag)
for word in ("https:", "url(", "@import", "<script", "javascript:", "NaN", "nan", "inf ", "var("):
    if word in text: wrong.append(word)
if text.count("http:") != 1 or "prefers-color-scheme: dark" not in text: wrong.append("style")
if len(text) > 500_000: wrong.append("size")
print(wrong or "ok")
PY
}
says() { if grep -qF -- "$2" "$3"; then ok "$1"; else fail "$1: no '$2' in $3"; fi; }
lacks() { if grep -qF -- "$2" "$3"; then fail "$1: '$2' in $3"; else ok "$1"; fi; }

must train "${shape[@]}" --out a --steps 6 --val-share 0.2 --eval-every 2
must train "${shape[@]}" --out '<b>"x&y"</b>' --steps 3
must curves a
same "a drawing" "$(whole curves.svg)" ok
for word in ">Loss<" ">Validation loss<" ">Throughput<" "tokens a second, by step" ">a<"; do says "it has" "$word" curves.svg; done
must curves a '<b>"x&y"</b>' -o two.svg
grep -qE "^two.svg: 2 runs, [0-9.]+ KiB$" "$place/log" && ok "said" || fail "not said"
same "two runs" "$(whole two.svg)" ok
says "a name with markup" '>&lt;b&gt;&quot;x&amp;y&quot;&lt;/b&gt;<' two.svg
must curves '<b>"x&y"</b>' -o alone.svg
lacks "no validation, no chart of it" "Validation" alone.svg

# of the same name, damaged, of an older version, without a step, in use
mkdir copies && cp -r a copies/a
cp -r a damaged
{ head -n 2 a/metrics.jsonl; printf 'x<script>\n\0\xff\n{"step":3\n'; tail -n 2 a/metrics.jsonl; printf '{"step":99,"lo'; } >damaged/metrics.jsonl
cp -r a older
sed -i 's/"charges":{[^}]*},//; s/"tokens":[0-9]*,//' older/metrics.jsonl
cp -r a none
rm none/metrics.jsonl
cp -r a wild
printf '{"step":1,"loss":1e30,"val_loss":-1e29,"step_seconds":1e-9,"tokens":1}\n{"step":2,"loss":null,"val_loss":null}\n' >wild/metrics.jsonl
must curves a copies/a damaged older none wild -o all.svg
same "all of them" "$(whole all.svg)" ok
says "a run's path" ">copies/a<" all.svg
says "damaged lines" ">damaged lines: 3<" all.svg
says "no step" ">no step yet<" all.svg
says "rates of older runs" "steps a second, by step" all.svg
must curves none -o none.svg
same "nothing to draw" "$(whole none.svg) $(grep -c "None was measured" none.svg)" "ok 1"
awk 'BEGIN { for (i = 1; i <= 100000; i++) printf "{\"step\":%d,\"loss\":%.4f,\"val_loss\":%.4f,\"step_seconds\":%.3f,\"tokens\":64}\n", i, 3 + 900 / (i + 300), 3.1, 0.1 + i % 7 / 50 }' >wild/metrics.jsonl
must curves wild a -o long.svg
same "a long run" "$(whole long.svg) $(($(wc -c <long.svg) < 100000))" "ok 1"
exec 9<a
flock -x 9
must curves a -o used.svg
says "in use" ">in use<" used.svg
flock -u 9

# what is refused leaves what is there
refused "no such run" "not a run" curves nothing
refused "no run" "which run" curves
refused "a run twice" "twice" curves a ./a
echo mine >mine.svg
refused "another file" "no drawing of curves" curves a -o mine.svg
same "another file stays" "$(cat mine.svg)" mine
must report a -o page.html
refused "a page" "no drawing of curves" curves a -o page.html
refused "a drawing for a page" "no report" report a -o curves.svg
refused "no directory" "^longshore: nowhere/x.svg: cannot create it: its directory is not there" curves a -o nowhere/x.svg
same "nothing is left" "$(find . -name '.*partial' | wc -l)" 0
done_testing
