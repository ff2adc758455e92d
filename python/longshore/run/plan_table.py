"""A plan as a table for people, in the words and numbers of `longshore plan`."""

from __future__ import annotations

import textwrap

from .. import native
from ..native import ffi, lib

DAY_SECONDS = 86400
WIDTH = 66  # of a row's text, beside its label


def table(figures):
    """The figures as a table, in the form of the program's."""
    size, rate = native.readable, figures["tokens_per_second"]
    kept, again, away = (size(figures["activations"][key]) for key in ("kept", "recomputed", "offloaded"))
    moved = [size(figures[key]) for key in ("link_bytes", "drive_read_bytes", "drive_write_bytes")]
    least, useful = (size(figures[key], up=True) for key in ("minimum_bytes", "useful_bytes"))
    lines = [
        *_row("model", f"{figures['model']}: {figures['parameters']:,} parameters"),
        *_row("batch", f"{figures['tokens']:,} tokens"),
        *_row("machine", figures["rates"]),
        *_row("budget", f"{size(figures['budget_bytes'])}; at least {least}; no faster from {useful} on"),
        *_row("memory", f"{size(figures['peak_bytes'])} at most, with PyTorch's part"),
        *(f"  {name:12}{size(nbytes):>14}" for name, nbytes in figures["memory"].items() if nbytes),
        *_row("activations", f"{kept} kept, {again} computed again, {away} on drives"),
        *_row("disk", size(figures["disk_bytes"])),
        *_row("a step", f"{seconds(figures['step_seconds'])}, bound by {native.lane_named(figures['bound']).bound}"),
        *_pairs(
            [(native.lane_named(lane).work, seconds(took)) for lane, took in figures["lanes"].items() if took >= 0.0005]
        ),
        *_row("tokens", f"{number(rate)} a second, {number(rate * DAY_SECONDS)} a day"),
        *_row("moved", "{} over the link, {} read, {} written".format(*moved)),
        *_row("wear", f"{size(figures['written_bytes_per_day'])} written a day"),
    ]
    if "days_until_tbw" in figures:
        lines += _row("", f"the drive that wears fastest lasts {number(figures['days_until_tbw'])} days")
    for note in figures["notes"]:
        lines += _row("note", note)
    lines += ["", "What a change would buy, in tokens a second:"]
    for change in figures["what_if"]:
        took, fast = seconds(change["step_seconds"]), change["tokens_per_second"]
        gain = fast / rate if rate else 0
        lines.append(f"  {change['change']:40}{took:>14} a step{number(fast):>9}{gain:6.2f}x")
    return "\n".join(lines)


def _row(label, text):
    """A label and a sentence, in lines of a terminal."""
    parts = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [f"{label if not i else '':12}{part}" for i, part in enumerate(parts)]


def _pairs(parts):
    """Names and their values, two on a line."""
    told = [f"{name:20}{value:>12}" for name, value in parts]
    return [" " * 12 + "    ".join(told[i : i + 2]) for i in range(0, len(told), 2)]


def seconds(value):
    """A time for people, as the program writes it."""
    out = ffi.new("char[]", 32)
    return native.text(lib.shore_seconds_say(value, out, len(out)))


def number(value):
    """A number for people: whole, or of three digits."""
    if 0 < value < 0.001:
        return "less than 0.001"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
