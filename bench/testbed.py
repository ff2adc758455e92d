#!/usr/bin/env python3
"""Trains one model on an emulated machine (longshore train --emulate), by number of drives: with the update on the host
as ZeRO-Infinity does it (base), and beside the drives with fp32 state and gradients (lossless), with 8-bit moments
(state8) and with 1 % of the gradients (top1). Times are the emulated machine's; everything else is really done.

MACHINE is a file as --emulate takes it, which also says what to train ("model": layers, width, inner, heads); otherwise
machines/smart-infinity.json, the machine of that paper, for which all rows take about half an hour. Rows go to standard
output, a JSON object on a line; with --out also to DIR/testbed.jsonl, and a picture to DIR/testbed.svg."""

import argparse
import html
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SMART_INFINITY = HERE.parent / "machines" / "smart-infinity.json"
LONGSHORE = os.environ.get("LONGSHORE", str(HERE.parent / "build/longshore"))
MODES = {"base": ["--update", "host"], "lossless": [], "state8": ["--moments", "8bit"], "top1": ["--compress", "top1%"]}
WARM_UP = 1  # steps that are not measured
SEQ_LEN = 32
PLACE_BYTES = 3 << 30  # the least room in which all volumes have a place
SIZE = re.compile(r"([0-9.]+)\s*([KMGT]?)(i?)B?$", re.I)

# Smart-Infinity, GPT-2 4.0B, A5000: speed over BASE with one drive, read from its plots (about 1 % of full scale).
PAPER_DRIVES = [1, 2, 4, 6, 8, 10]
PAPER = {
    "paper: BASE": ("#777777", [1, 1.55, 2.23, 2.25, 2.26, 2.27]),
    "paper: SmartUpdate": ("#9467bd", [0.80, 1.48, 2.55, 2.92, 3.25, 3.64]),
    "paper: with top-k": ("#8c564b", [0.89, 1.62, 2.80, 3.45, 3.75, 4.42]),
}
OURS = {
    "base": ("update on the host (BASE)", "#333333"),
    "lossless": ("lossless", "#1f77b4"),
    "state8": ("8-bit moments", "#2ca02c"),
    "top1": ("top 1 % of gradients", "#e6820e"),
}


def narrower(machine, share):
    """The machine with this share of its link."""
    link = {}
    for way, rate in machine["link"].items():
        number = SIZE.match(str(rate))
        power = " KMGT".index(number[2].upper() or " ")
        link[way] = round(float(number[1]) * (1024 if number[3] else 1000) ** power * share)
    return {**machine, "link": link}


def train(place, machine, mode, drives, steps):
    """The metrics of the measured steps."""
    row = place / "row"
    where = [row / f"drive{i}" for i in range(drives)]
    for drive in where:
        drive.mkdir(parents=True)
    (place / "machine.json").write_text(json.dumps(machine))
    # leaves out the last step, whose time includes no forward pass of a next one
    counts = [f"--steps={WARM_UP + steps + 1}", f"--seq-len={SEQ_LEN}", "--batch=1"]
    words = [LONGSHORE, "train", *MODES[mode], *counts, "--speculate=on", "--clip=1e6", "--quiet"]
    words += [f"--init={place}/model.json", f"--data={place}/text", f"--emulate={place}/machine.json"]
    words += [f"--out={row}/run", "--drive", *map(str, where)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().split("\n")[-1] or "no message"
        sys.exit(f"the training ended with {done.returncode}: {said}")
    lines = (row / "run/metrics.jsonl").read_text().split("\n")
    shutil.rmtree(row)
    return [json.loads(line) for line in lines[WARM_UP : WARM_UP + steps]]


def draw(path, machine, rows):
    """A line chart as SVG: speed over BASE with one drive, by number of drives, next to the paper's."""
    width, height, left, right, top, bottom = 860, 500, 70, 250, 64, 62
    lines = []  # label, colour, is it the paper's, points
    if machine.get("name") == "smart-infinity":
        lines += [(name, colour, True, list(zip(PAPER_DRIVES, ys))) for name, (colour, ys) in PAPER.items()]
    for mode, (label, colour) in OURS.items():
        points = [(r["drives"], r["speed_over_base1"]) for r in rows if r["mode"] == mode and r["link_share"] == 1]
        if points:
            lines.append((label, colour, False, points))
    ticks = sorted({r["drives"] for r in rows})
    most_x = 1.05 * max(x for *_, points in lines for x, _ in points)
    most_y = max(y for *_, points in lines for _, y in points)
    computing = sum(machine.get("compute", {}).values())
    alone = next(r["step_seconds"] for r in rows if r["mode"] == "base" and r["drives"] == 1) / (computing or math.inf)
    most_y = math.ceil(
        1.04 * (max(most_y, alone) if alone < 2 * most_y else most_y)
    )  # farther away, it flattens curves
    step = next(n for e in range(9) for n in (10**e, 2 * 10**e, 5 * 10**e) if most_y <= 12 * n)

    def at(x, y):
        return left + (width - left - right) * x / most_x, height - bottom - (height - top - bottom) * y / most_y

    def text(x, y, what, more=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(what)}</text>'

    def line(x1, y1, x2, y2, more):
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'

    title = f"Emulated testbed {machine.get('name', '')}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(left, 26, title, 'font-size="17" font-weight="bold"'),
        text(left, 46, f"rates and model divided by {machine.get('scale', 1)}, times kept", 'fill="#555"'),
        text((left + width - right) / 2, height - 20, "drives", 'text-anchor="middle"'),
        text(left, top - 6, "speed over BASE with one drive", 'fill="#555"'),
    ]
    for y in range(0, most_y + 1, step):
        out.append(line(*at(0, y), *at(most_x, y), 'stroke="#e4e4e4"'))
        out.append(text(left - 8, at(0, y)[1] + 4, str(y), 'text-anchor="end"'))
    out += [text(at(x, 0)[0], height - bottom + 20, str(x), 'text-anchor="middle"') for x in ticks]
    if 0 < alone <= most_y:
        out.append(line(*at(0, alone), *at(most_x, alone), 'stroke="#c33" stroke-dasharray="2 4"'))
        out.append(text(left + 10, at(0, alone)[1] - 6, "computing alone", 'fill="#c33"'))
    for n, (label, colour, papers, points) in enumerate(lines):
        stroke = f'fill="none" stroke="{colour}" stroke-width="2"' + (' stroke-dasharray="5 4"' if papers else "")
        places = [at(*point) for point in points]
        out.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}" {stroke}/>')
        fill = "#fff" if papers else colour
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}"/>' for x, y in places]
        x, y = width - right + 24, top + 14 + 24 * n
        out += [line(x, y, x + 32, y, stroke), text(x + 42, y + 4, label)]
    path.write_text("\n".join([*out, "</svg>\n"]))


def measure(args, machine, place):
    model = machine["model"]
    config = {"model_type": "gpt2", "vocab_size": 257, "n_positions": SEQ_LEN, "n_layer": model["layers"]}
    config |= {"n_embd": model["width"], "n_inner": model["inner"], "n_head": model["heads"]}
    (place / "model.json").write_text(json.dumps(config))
    letters = random.Random(1)  # the text does not affect the times
    (place / "text").write_text("\n".join("".join(letters.choices("abcdefgh", k=63)) for _ in range(1024)))
    todo = [(mode, drives, 1.0) for mode in MODES if mode in args.modes for drives in args.drives]
    if 0 < args.link_share < 1 and machine.get("link"):
        todo += [(mode, args.drives[-1], args.link_share) for mode in ("lossless", "top1") if mode in args.modes]
    rows, seconds = [], {}
    for mode, drives, share in todo:
        print(f"emulating {mode}, drives: {drives} (row {len(rows) + 1} of {len(todo)})", file=sys.stderr)
        on = machine if share == 1 else narrower(machine, share)
        steps = train(place, on, mode, drives, args.steps)
        busy = {part: statistics.mean(s["busy"][part] for s in steps) for part in steps[0]["busy"]}
        taken = seconds[mode, drives, share] = statistics.median(s["step_seconds"] for s in steps)
        # both ways of a drive only if neither of them alone takes as long
        bound = max(busy, key=lambda part: busy[part] * (0.999 if part == "drive_mixed" else 1))
        base1, base = (seconds.get(("base", *of)) for of in ((1, 1.0), (drives, share)))
        row = {"testbed": machine.get("name", args.machine), "mode": mode, "drives": drives, "link_share": share}
        row |= {"step_seconds": taken, "bound": bound.replace("_", " "), "emulated": True}
        row |= {"scale": machine.get("scale", 1), "speed_over_base1": base1 and base1 / taken}
        row |= {"speed_over_base": base and base / taken, "busy_seconds": busy}
        rows.append(row)
        print(json.dumps(row, separators=(",", ":")), flush=True)
    return rows


def stop(number, frame):
    sys.exit(f"ended by {signal.Signals(number).name}; what was temporary is removed")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("machine", nargs="?", default=str(SMART_INFINITY), metavar="MACHINE")
    numbers = p.add_argument("--drives", default="1,2,4,6,8,10", metavar="N,N...", help="numbers of drives")
    modes = p.add_argument("--modes", default=",".join(MODES), metavar="MODE,...", help="otherwise all of them")
    p.add_argument("--steps", type=int, default=2, help="steps that are measured")
    help_of_share = "further rows with this share of the link and the most drives, for lossless and top1; 0: none"
    p.add_argument("--link-share", type=float, default=0.25, help=help_of_share)
    p.add_argument("--dir", help="where temporary volumes go; otherwise /dev/shm if it has room, or TMPDIR")
    p.add_argument("--out", type=pathlib.Path, metavar="DIR", help="where rows and picture go, too")
    args = p.parse_args()
    args.modes = args.modes.split(",")
    if set(args.modes) - set(MODES):
        p.error(str(argparse.ArgumentError(modes, f"not of {', '.join(MODES)}")))
    try:
        args.drives = sorted({int(n) for n in args.drives.split(",")})
    except ValueError:
        p.error(str(argparse.ArgumentError(numbers, "not numbers")))
    machine = json.loads(pathlib.Path(args.machine).read_text())
    if "model" not in machine:
        p.error(f'{args.machine} has no "model" to train')
    shm = "/dev/shm" if shutil.disk_usage("/dev/shm").free >= PLACE_BYTES else None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    with tempfile.TemporaryDirectory(prefix="longshore-testbed.", dir=args.dir or shm) as place:
        rows = measure(args, machine, pathlib.Path(place))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "testbed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if any(row["mode"] == "base" and row["drives"] == 1 for row in rows):
            draw(args.out / "testbed.svg", machine, rows)


main()
