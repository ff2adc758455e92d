#!/usr/bin/env bash
# `longshore report` writes a page about runs that needs nothing else, whatever their files hold.
. "$(dirname "$0")/lib.sh"
some_text "$place/text" 300
mkdir "$place/d"
cd "$place" || exit 1
shape=(--init gpt2-tiny --data text --drive d --batch 2 --seq-len 32 --quiet)

# whole FILE: HTML whose tags are closed, which asks for nothing and runs nothing; "ok", or what is wrong
whole() {
    python3 - "$1" <<'PY'
import re, sys
from html.parser import HTMLParser
text = open(sys.argv[1], encoding="utf-8").read()
EMPTY = {"meta", "br", "path", "rect"}  # the last two close themselves
class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.wrong = [], []
    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        if tag in ("script", "img", "link", "iframe", "object") or any(n.startswith("on") or n in ("src", "srcset") for n in names):
            self.wrong.append(f"<{tag} {names}>")
        if any(n == "href" and not v.startswith("#") for n, v in attrs) or len(set(names)) != len(names):
            self.wrong.append(f"attributes of {tag}")
        if tag not in EMPTY: self.open.append(tag)
    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY: self.open.pop()
    def handle_endtag(self, tag):
        if tag in EMPTY: return
        if not self.open or self.open.pop() != tag: self.wrong.append(f"</{tag}>")
page = Page()
page.feed(text)
page.close()
for word in ("http:", "https:", "url(", "@import", "<script", "javascript:", "NaN", " nan", "inf ", '"inf'):
    if word in text: page.wrong.append(word)
if page.open: page.wrong.append(f"open: {page.open}")
if len(text) > 2_000_000: page.wrong.append("size")
print(page.wrong or "ok")
PY
}
says() { if grep -qF -- "$2" "$3"; then ok "$1"; else fail "$1: no '$2' in $3"; fi; }

must train "${shape[@]}" --out a --steps 6 --val-share 0.2 --eval-every 2 --trace 2
must train "${shape[@]}" --out '<b>"x&y"</b>' --steps 3 --memory 256MiB
for key in peak_bytes step_seconds what_if memory budget_bytes; do
    says "plan.json has $key" "\"$key\"" a/plan.json
done
must report a --tbw 600TB
same "a page" "$(whole report.html)" ok
for word in "Loss" "Validation loss" "Throughput" "Where a step" "backward" "Memory" "Bytes and wear" "days." "Plan and truth" "What to buy" "step 6 of 6" "Lanes of step 6" "charged to" "drive_read 1"; do
    says "the page" "$word" report.html
done
must report a '<b>"x&y"</b>' -o two.html
same "a page of two runs" "$(whole two.html)" ok
says "a name with markup" '&lt;b&gt;&quot;x&amp;y&quot;&lt;/b&gt;' two.html
says "runs are compared" "<h1>2 runs</h1>" two.html

cp -r a measured
sed -i 's/"step_seconds"/"mfu":0.413,&/' measured/metrics.jsonl
must report measured -o measured.html
says "MFU" "<span>MFU</span><b>41 %</b>" measured.html
same "none where it is unknown" "$(grep -c MFU report.html)" 0

# of the same name: their paths tell them apart
mkdir copies && cp -r a copies/a
must report a copies/a -o same.html
says "a run's path" "copies/a" same.html
# damaged, older, empty, without a plan, without a step
cp -r a damaged
{ head -n 2 a/metrics.jsonl; printf 'x<script>\n\0\xff\n{"step":3\n'; tail -n 2 a/metrics.jsonl; printf '{"step":99,"lo'; } >damaged/metrics.jsonl
printf '{"memory": {"<script>": 1e300, "logits": -1}, "what_if": 3' >damaged/plan.json
head -c 4000 /dev/urandom >damaged/trace.spans
must report damaged -o damaged.html
same "a damaged run" "$(whole damaged.html)" ok
says "damaged lines" "3 lines of metrics.jsonl are damaged" damaged.html
says "a damaged trace" "trace of its last steps is damaged" damaged.html
says "a damaged plan" "plan.json cannot be read" damaged.html
cp -r a older
sed -i 's/"charges":{[^}]*},//' older/metrics.jsonl
rm older/plan.json
must report older -o older.html
same "an older run" "$(whole older.html)" ok
says "an older run's step" "waiting for drives" older.html
cp -r a none
rm none/metrics.jsonl
must report none -o none.html
same "a run without a step" "$(whole none.html)" ok
says "a run without a step" "No step has been made yet." none.html
# long: thinned
cp -r a long
awk 'BEGIN { for (i = 1; i <= 100000; i++) printf "{\"step\":%d,\"loss\":%.4f,\"val_loss\":%.4f,\"step_seconds\":%.3f,\"tokens\":64}\n", i, 3 + 900 / (i + 300), 3.1, 0.1 + i % 7 / 50 }' >long/metrics.jsonl
must report long a -o long.html
same "a long run" "$(whole long.html)" ok
same "is thinned" "$(($(wc -c <long.html) < 300000))" 1
# in use
"$LONGSHORE" train "${shape[@]}" --out b --steps 100000 >"$place/background.log" 2>&1 </dev/null &
background=$!
await steps_made b 2
must report b a -o used.html
says "a run in use" "<b>in use</b>" used.html
same "a page of a run in use" "$(whole used.html)" ok
kill -9 $background
wait $background 2>/dev/null
background=

# what is refused leaves what is there
refused "no such run" "not a run" report nothing
refused "no run" "which run" report
refused "a run twice" "twice" report a ./a
refused "a forgotten unit" "rated to write" report a --tbw 600
echo mine >mine.html
refused "another file" "no report" report a -o mine.html
same "another file stays" "$(cat mine.html)" mine
refused "a directory" "no report" report a -o d
mkfifo pipe && refused "a pipe" "no report" report a -o pipe
: >empty.html && must report a -o empty.html
must report --help
grep -qE "otherwise report.html$" "$place/log" && ok "help names the default" || fail "help names no default"
refused "no directory" "^longshore: nowhere/x.html: cannot create it: its directory is not there" report a -o nowhere/x.html
same "nothing is left" "$(find . -name '.*partial' | wc -l)" 0

# plan.json goes with its run, and is no other file's place
must train "${shape[@]}" --out a --steps 2 --overwrite
same "the new run's plan" "$([ -s a/plan.json ] && echo there)" there
must remove a
same "removed whole" "$([ -e a ] || echo gone)" gone
mkdir own && echo mine >own/plan.json
refused "a file named plan.json" "holds plan.json" train "${shape[@]}" --out own --steps 2
same "it stays" "$(cat own/plan.json)" mine
done_testing
