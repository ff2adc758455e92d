#!/usr/bin/env bash
# --tensorboard DIR: event files that say what metrics.jsonl says, over resumes and rollbacks, and whatever the disk does.
# TensorBoard's own reader reads them too, where it is installed.
. "$(dirname "$0")/lib.sh"
some_text "$place/text" 200
mkdir "$place/d"
cd "$place" || exit 1
shape=(--init gpt2-tiny --data text --val-share 0.1 --eval-every 2 --drive d --batch 2 --seq-len 32 --memory 256MiB --quiet)

# read_events DIR: its steps, after the restarts that the files tell, compared with a's metrics; "ok", or what is wrong
read_events() {
    python3 - "$1" "${2:-a/metrics.jsonl}" <<'PY'
import json, math, os, struct, sys
TABLE = []
for n in range(256):
    for _ in range(8): n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)
def crc(data):
    c = 0xFFFFFFFF
    for byte in data: c = TABLE[(c ^ byte) & 255] ^ c >> 8
    return c ^ 0xFFFFFFFF
assert crc(b"123456789") == 0xE3069283
mask = lambda c: ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF
def records(data):
    at = 0
    while at < len(data):
        head, (bytes_,) = data[at:at + 8], struct.unpack("<Q", data[at:at + 8])
        body = data[at + 12:at + 12 + bytes_]
        assert struct.unpack("<I", data[at + 8:at + 12])[0] == mask(crc(head)), "length"
        assert struct.unpack("<I", data[at + 12 + bytes_:at + 16 + bytes_])[0] == mask(crc(body)), "data"
        yield body
        at += 16 + bytes_
def fields(data):
    at = 0
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]; at += 1
            value |= (byte & 127) << shift; shift += 7
            if byte < 128: return value
    while at < len(data):
        key = varint()
        if key & 7 == 0: yield key >> 3, varint(); continue
        n = varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
        yield key >> 3, data[at:at + n]
        at += n
seen = {}
for name in sorted(os.listdir(sys.argv[1])):
    assert name.startswith("events.out.tfevents."), name
    first = True
    for record in records(open(os.path.join(sys.argv[1], name), "rb").read()):
        event = dict(fields(record))
        assert first == (event.get(3) == b"brain.Event:2"), "version"
        first, step = False, event.get(2, 0)
        if 7 in event:
            assert dict(fields(event[7])) == {1: 1}
            seen = {k: v for k, v in seen.items() if k < step}
        if 5 in event:
            assert step not in seen, f"step {step} twice"
            values = [dict(fields(v)) for f, v in fields(event[5])]
            seen[step] = {v[1].decode(): struct.unpack("<f", v[2])[0] for v in values}
wrong = []
lines = [json.loads(line) for line in open(sys.argv[2])]
if sorted(seen) != [x["step"] for x in lines]: wrong.append(f"steps {sorted(seen)}")
for x in lines:
    told, got = {k: x.get(k) for k in ("loss", "grad_norm", "lr")}, seen.get(x["step"], {})
    if "val_loss" in x: told["val_loss"] = x["val_loss"]
    told["tokens_per_second"] = x["tokens"] / x["step_seconds"]
    if set(told) != set(got): wrong.append(f"{x['step']}: {sorted(got)}")
    elif not all(math.isnan(got[k]) if told[k] is None else math.isclose(got[k], told[k], rel_tol=1e-6) for k in told): wrong.append(f"{x['step']}: {got}")
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None
if EventAccumulator:
    reader = EventAccumulator(sys.argv[1])
    reader.Reload()
    if [e.step for e in reader.Scalars("loss")] != [x["step"] for x in lines]: wrong.append("TensorBoard's steps")
    if [round(e.value, 4) for e in reader.Scalars("val_loss")] != [round(x["val_loss"], 4) for x in lines if "val_loss" in x]: wrong.append("TensorBoard's val_loss")
print(wrong or "ok")
PY
}

must train "${shape[@]}" --out a --steps 9 --stop-at 3 --tensorboard board
same "as the metrics" "$(read_events board)" ok
cd d || exit 1 # the path of the run is whole
must train --resume ../a --stop-at 6
cd ..
same "after a resume" "$(read_events board)" ok
same "a file for each start" "$(find board -type f | wc -l)" 2
must snapshot a six
must train --resume a
same "to the end" "$(read_events board)" ok
must train --resume a
same "no step, no file" "$(find board -type f | wc -l)" 3
# A rollback: steps are made again, with other values, and count once.
must rollback a six
must train --resume a --lr 1e-3 --stop-at 8
same "after a rollback" "$(read_events board)" ok
must train --resume a --steps 10 --tensorboard none
same "none more" "$(find board -type f | wc -l)" 4

# Two runs in one directory are one to TensorBoard.
grep -q "event files already" "$place/log" && fail "its own files are no warning" || ok "its own files"
must train "${shape[@]}" --out other --steps 1 --tensorboard board
grep -q "warning: $place/board holds event files already" "$place/log" && ok "those of another run" || fail "no warning of another run's files"

# A disk that fills ends neither the run nor the file, and is said once.
must train "${shape[@]}" --out full --steps 6 --tensorboard full-board --stop-at 1
FAIL_IO="write 4 28 tfevents" LD_PRELOAD=$FAIL_IO_SO must train --resume full
same "said once" "$(grep -c "warning: TensorBoard lacks step 4, and others if that goes on: .*No space left" "$place/log")" 1
head -n 3 full/metrics.jsonl >until.jsonl
same "whole as far as it goes" "$(read_events full-board until.jsonl)" ok
FAIL_IO="write 0 28 tfevents" LD_PRELOAD=$FAIL_IO_SO must train --resume full --steps 7
same "no file without an event" "$(find full-board -type f | wc -l)" 2

# An imported run keeps the flag for its first resume, which may begin elsewhere.
must export a --out exported
must import exported --data text --drive d --out b --batch 2 --seq-len 32 --memory 256MiB --tensorboard imported --steps 2
cd d || exit 1
must train --resume ../b
cd ..
same "of an import" "$(read_events imported b/metrics.jsonl)" ok
refused "where nothing is shown" "does not go with verify" verify "${shape[@]}" --tensorboard board

# Refused before anything is made.
refused "a file" "text/board: " train "${shape[@]}" --out no --steps 1 --tensorboard text/board
refused "a directory that is not there" "nowhere/board: the directory for TensorBoard cannot be made: the one that is to hold it" train "${shape[@]}" --out no --steps 1 --tensorboard nowhere/board
refused "no directory" "text: no event file of TensorBoard can be made there: Not a directory" train "${shape[@]}" --out no --steps 1 --tensorboard text
refused "a place without files" "no event file of TensorBoard can be made there" train "${shape[@]}" --out no --steps 1 --tensorboard /proc/self
refused "no words" "tensorboard" train "${shape[@]}" --out no --steps 1 --tensorboard
same "nothing was made" "$(find . -name no)" ""
done_testing
