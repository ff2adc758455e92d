"""What a run will take, before it begins: memory by class, disk, time and what bounds it, what moves, and what a change
would buy.

A Case is all that decides it: the model's blocks, a Trace of its step, options, a machine and budgets."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any

from .. import native
from ..drives.layout import Layout
from ..errors import BudgetError
from ..model.trace import NEW_BYTES
from ..native import ffi, lib
from . import endurance, memory_plan, shared_budget
from .activation_plan import Activations, gradients_of
from .process_memory import OTHERS_BYTES, RESERVE_BYTES, ProcessBudget, reserve, with_reserve
from .step_program import ALL_BYTES, fate_of, sums_of, times_of

DAY_SECONDS = 86400
NO_FASTER = 1.01  # a budget is useful as long as more memory makes a step faster than this
USEFUL_PARTS = 32  # of which one is close enough
LORA_RANK = 16
# by the names of the program's rows: their class of memory
CLASS_OF = {
    **dict.fromkeys(["parameters", "pages of layers", "slots of layers", "staging"], "parameters"),
    **dict.fromkeys(["gradients", "gradients of a block", "gradients of groups", "landing gradients"], "gradients"),
    **dict.fromkeys(["state", "compression"], "optimizer"),
    "activations": "activations",
    "drives": "drives",
    "trace": "process",
}


class Forecast(dict):
    """What a run will take: the keys of `longshore plan --json`. str() is a table for people."""

    def __str__(self) -> str:
        table = lib.shore_plan_table(json.dumps(self).encode())
        return native.text(ffi.gc(table, lib.free)).rstrip("\n")


@dataclass(frozen=True)
class Case:
    """What a plan is made of."""

    name: str  # the model's
    blocks: list  # of the layout
    trace: Any
    how: dict  # options of wrap(), as a run records them, with "trace"
    machine: Any  # the Machine
    drives: list
    memory: int | None  # bytes; None: the default
    device: Any = None  # None: the CPU
    gpu_memory: Any = None  # the DeviceBudget
    pinned_memory: int | None = None
    room: int = 0  # for activations on the drives
    whole: Any = None  # the Trace of a step with memory_of="process"; None: the promise cannot be made
    once: frozenset = frozenset()  # names of layers that cannot be computed again

    def needs(self, shares=False):
        """What the engine needs, or with memory_of="process" a step; with blocks outside of layers in slots of layers
        if shares."""
        layout = Layout([replace(block) for block in self.blocks])
        if shares:
            layout.share_rest()
        how, whole = self.how, None
        if self.is_of_process():
            leave = how["activations"] != "memory"
            whole = Activations(self.whole, gradients_of(layout, self.whole, False), once=self.once, leave=leave)
            how = {**how, "activations": "memory"}
        memory = self.memory or self.default_bytes()
        args = (layout, self.drives, memory, how, self.device, self.pinned_memory, False, self.trace, whole)
        return memory_plan.Needs(*args)

    def host_bytes(self):
        """The machine's memory; None: no limit is given."""
        return self.machine.size("host", "memory") if self.machine.named else 2 * shared_budget.within()

    def default_bytes(self):
        """memory= by default: half of the machine's memory."""
        there = self.host_bytes()
        return there // 2 if there else shared_budget.within()

    def of_engine(self):
        """The least budget of an engine."""
        return min(self._engine().needs(shares).least() for shares in (False, True))

    def _engine(self):
        """The engine alone."""
        if not self.is_of_process():
            return self
        return replace(self, how={**self.how, "memory_of": "engine", "activations": "memory"})

    def shares(self, limit):
        """Whether blocks outside of layers share slots of layers."""
        return limit < self._engine().needs().least()

    def of_process(self):
        """The least budget with memory_of="process"."""
        if self.whole is None:
            return {}
        activations = self.how["activations"] if self.is_of_process() else "auto"
        case = replace(self, how={**self.how, "memory_of": "process", "activations": activations})
        beside = self.whole.inputs_bytes + OTHERS_BYTES
        whole, shared = (with_reserve(case.needs(shares).least() + beside) for shares in (False, True))
        # blocks share slots only where a model does not fit otherwise, whatever its batches
        return {"process_minimum_bytes": shared if case.shares(shared - reserve(shared)) else whole}

    def is_of_process(self):
        """Whether memory= is a promise about the whole process."""
        return self.how.get("memory_of") == "process" and self.whole is not None

    def at_least(self):
        """The least budget that works."""
        return self.of_process()["process_minimum_bytes"] if self.is_of_process() else self.of_engine()

    def figures(self):
        """The figures of a plan, without what other plans would say. Raises BudgetError."""
        if not self.is_of_process():
            budget = self.memory or max(self.default_bytes(), self.needs().least())
            return self._figures(budget, self.shares(budget))
        minimum = self.at_least()
        limit = self.memory or max(self.default_bytes(), minimum)
        if limit < minimum:
            raise ProcessBudget(limit, None).too_little(minimum, "this batch")
        left = limit - reserve(limit)
        out = self._figures(left - self.whole.inputs_bytes - OTHERS_BYTES, self.shares(left))
        comfortable = out["comfortable_bytes"] + limit - out["budget_bytes"]
        of_engine = {"minimum_bytes": minimum, "engine_minimum_bytes": self.of_engine()}
        return {**out, "budget_bytes": limit, "comfortable_bytes": comfortable, **of_engine}

    def _figures(self, budget, shares):
        """Those of what the engine holds, and of PyTorch's part beside it."""
        began, needs = time.perf_counter(), self.needs(shares)
        planned = needs.planned(budget, self._there(needs.layout), self.machine.handle(self.device))
        native.check(planned.code, planned.diag)
        made, fates, chosen, times = planned.made, planned.fates, planned.chosen, planned.times
        memory = self._memory(needs, planned.program, made)
        lanes: dict[str, float] = {}
        for lane, took in zip(native.LANES, times.lane_seconds):  # those of one name count as the busier one
            lanes[lane.name] = max(lanes.get(lane.name, 0.0), took)
        step = times.step_seconds
        return {
            "model": self.name,
            "rates": self.machine.said,
            "budget_bytes": budget,
            "minimum_bytes": needs.least(),
            "comfortable_bytes": planned.comfortable,
            "peak_bytes": sum(memory.values()),
            "memory": memory,
            "disk_bytes": needs.disk_bytes(self.room),
            "drives": len(self.drives),
            "link_bytes": self._link_bytes(needs, made, fates),
            "drive_read_bytes": times.drive_read_bytes,
            "drive_write_bytes": times.drive_write_bytes,
            "parameters": sum(t.elems for block in self.blocks for t in block.tensors if not block.buffers),
            "tokens": self.trace.tokens,
            "step_seconds": step,
            "tokens_per_second": self.trace.tokens / step if step else 0.0,
            "bound": native.bound(times.bound).name,
            "lanes": lanes,
            "activations": chosen.amounts if chosen else self._activations(),
            "written_bytes_per_day": _of_a_day(times.drive_write_bytes, step),
            "plan_seconds": time.perf_counter() - began,
        }

    def _link_bytes(self, needs, made, fates):
        """Bytes between the host and the drives, as metrics count them: elements, without the rest of their segments.
        What has memory takes other ways."""
        layout = needs.layout
        trained = [b for b, block in enumerate(layout.blocks) if block.trains]
        moves = {b for side in layout.sides() for b in side}
        if moves and fates["pages"].count >= len(layout.layers()):
            moves = set()  # each has a page of its own
        state = min(fates["spare"].bytes, needs.state)
        on_drives = 1 - state / needs.state if needs.state else 0.0
        gradients, padded = (4 * sum(map(of, trained)) for of in (lambda b: layout.c.blocks[b].elems, layout.elems))
        spilled = gradients * (1 - min(fates["gradients"].bytes / padded, 1)) if padded else 0
        handed_back, _ = self._fetched_bytes(needs, [b for b in trained if b not in moves])
        nbytes, segments = self._fetched_bytes(needs, moves)
        times = times_of(made)
        stay = sum(needs.page_bytes(b) for b in trained if b not in moves)
        fetched = (times.link_bytes - padded - stay) * nbytes / max(segments, 1)
        return int((gradients + spilled + handed_back) * on_drives + state + fetched)

    def _fetched_bytes(self, needs, blocks):
        """(bytes that are fetched of these, the same of their whole segments)."""
        layout, padded = needs.layout, [needs.fetched_bytes(b) for b in blocks]
        used = [n * layout.c.blocks[b].elems // layout.elems(b) for b, n in zip(blocks, padded)]
        return sum(used), sum(padded)

    def _there(self, layout):
        """Bytes of a device's memory for parameters, beside what PyTorch holds there."""
        if self.gpu_memory is None:
            return ALL_BYTES
        beside, least = sum(self.beside().values()) + self.gpu_memory.beside, layout.memory_bytes(0)
        if self.gpu_memory.limit < beside + least:
            what = f"{self.name} with {self.trace.tokens} tokens"
            raise BudgetError(self.gpu_memory.too_little(beside + least, what), lib.SHORE_EBUDGET)
        return max(self.gpu_memory.limit - beside, layout.memory_bytes(1))

    def _memory(self, needs, program, made):
        """Bytes by class when a step needs most: what the engine holds, and what PyTorch does."""
        out: dict[str, int] = {}
        for name, tensor in program.rows:
            fate = fate_of(made, tensor)
            if fate.way == lib.SHORE_WAY_KEEP and name in CLASS_OF:
                most = needs.state if name == "state" else fate.bytes * fate.count
                out[CLASS_OF[name]] = out.get(CLASS_OF[name], 0) + min(fate.bytes * fate.count, most)
        beside = self.beside()
        if self.is_of_process():
            beside = {"activations": sums_of(made).placed_bytes, "workspace": self.whole.inputs_bytes + OTHERS_BYTES}
        for name, nbytes in beside.items():
            out[name] = out.get(name, 0) + nbytes
        out["process"] = out.get("process", 0) + RESERVE_BYTES  # of PyTorch and Python beside tensors, after a step
        return out

    def beside(self):
        """What PyTorch holds at the worst moment of a step: saved activations, logits, and temporaries. A processor's
        allocator keeps what backward frees, for tensors that are smaller than NEW_BYTES."""
        trace, keeps, held, worst = self.trace, self.how["activations"] == "memory", 0, (0, 0, 0)
        small = [sum(size for size in unit.saved_sizes if size < NEW_BYTES) for unit in trace.units]
        freed = sum(small) * keeps * (self.device is None)
        large = {t.name for block in self.blocks for t in block.tensors if t.trains and 4 * t.elems >= NEW_BYTES}
        for unit, of in zip(trace.units, small):
            before, held = held * keeps, held * keeps + unit.saved_bytes  # what leaves comes back for its backward
            freed = max(freed - of, 0)
            forward, backward = unit.forward_temporary_bytes, unit.backward_temporary_bytes
            behind = held + (freed if large.intersection(unit.parameters) else max(freed - backward, 0))
            for kept, temporary in ((before, forward), (behind, backward)):
                worst = max(worst, (kept + temporary, kept, temporary))
        _, kept, temporary = worst
        logits = min(trace.logits_bytes, temporary)
        workspace = temporary - logits + trace.inputs_bytes
        return {"activations": kept, "logits": logits, "workspace": workspace}

    def _activations(self):
        saved, keeps = self.trace.saved_bytes, self.how["activations"] == "memory"
        return {"kept": saved * keeps, "recomputed": 0, "offloaded": saved * (not keeps)}


# ---- what a change would buy -----------------------------------------------------------------------------------------
# Each returns what it changes in a case; None: it is so already, or cannot be.


def _more_memory(case):
    return {"memory": 2 * case.memory}


def _more_drives(case):
    def add(described):
        if described.get("drives"):
            described["drives"].append({**described["drives"][-1], "device": ""})

    most = case.how.get(endurance.NAME, [])  # the new one may write as much as the last one
    how = {**case.how, endurance.NAME: most + most[-1:]} if len(most) > 1 else case.how
    return {"drives": [*case.drives, case.drives[-1]], "machine": case.machine.changed(add), "how": how}


def _faster_link(case):
    def double(described):
        for part in ("link", "bus"):
            for key, rate in described.get(part, {}).items():
                described[part][key] = 2 * native.size(rate, key)

    return {"machine": case.machine.changed(double)}


def _smaller_moments(case):
    has = case.how.get("trains", True) and case.how["optimizer"] != "sgd" and case.how["moments"] != "8bit"
    return {"how": {**case.how, "moments": "8bit"}} if has else None


def _compressed(case):
    may = case.how.get("trains", True) and not case.how["compress"] and not case.is_of_process()
    return {"how": {**case.how, "compress": 0.01}} if may else None


def _larger_batch(case):
    return {"trace": case.trace.times(2), "whole": case.whole and case.whole.times(2)}


def _lora(case):
    if not all(block.trains or block.buffers for block in case.blocks):
        return None
    return adapted(case, LORA_RANK)


CHANGES = {
    "twice the memory, {memory}": _more_memory,
    "one more drive, {drives}": _more_drives,
    "a link twice as fast": _faster_link,
    "8-bit moments": _smaller_moments,
    "compressed gradients, 1 %": _compressed,
    "a batch twice as large": _larger_batch,
    f"LoRA of rank {LORA_RANK}": _lora,
}


def adapted(case, rank):
    """What changes in a case if adapters of this rank are trained, and the model is frozen."""
    blocks, trace = with_adapters(case.blocks, case.trace, rank)
    return {"blocks": blocks, "trace": trace, "whole": case.whole and with_adapters(case.blocks, case.whole, rank)[1]}


def with_adapters(blocks, trace, rank):
    """(blocks, trace) of a model that is frozen, with adapters of this rank beside the matrices of layers."""
    out, of_layer = [], {}
    for block in blocks:
        out.append(replace(block, tensors=[replace(t, trains=False) for t in block.tensors], trains=False))
        added = [
            replace(t, name=f"{t.name}.lora{side}", names=[], shape=(rank, t.shape[side]), trains=True)
            for t in block.tensors
            for side in range(2)
            if block.layer and len(t.shape) == 2
        ]
        if added:
            out.append(replace(block, name=f"{block.name}.lora", tensors=added, trains=True))
            of_layer.setdefault(block.module, []).extend(t.name for t in added)
    units = [
        replace(
            unit,
            parameters=[*unit.parameters, *of_layer.get(unit.name, ())],
            backward=[w for w in unit.backward if w.kind != "product_weight"],
        )
        for unit in trace.units
    ]
    return out, replace(trace, units=units)


def _with_budget(cases, parts):
    """The cases, each with the budget that it has got."""
    return [replace(case, memory=part["budget_bytes"]) for case, part in zip(cases, parts)]


def what_if(cases, parts):
    """[{"change", "step_seconds", "tokens_per_second", "budget_bytes"}] of each change that can be made."""
    out, cases = [], _with_budget(cases, parts)
    said = {"memory": native.readable(2 * sum(c.memory for c in cases)), "drives": len(cases[0].drives) + 1}
    for text, change in CHANGES.items():
        changes = [change(case) for case in cases]
        if not any(changes):
            continue
        try:
            found = together([replace(case, **(c or {})).figures() for case, c in zip(cases, changes)])
        except BudgetError:
            continue
        told = {key: found[key] for key in ("step_seconds", "tokens_per_second", "budget_bytes")}
        out.append({"change": text.format(**said), **told})
    return out


def useful_bytes(case, figures):
    """The budget above which a step gets no faster, by a few plans."""
    least, enough = figures["minimum_bytes"], max(figures["comfortable_bytes"], figures["minimum_bytes"])

    def step(memory):
        return replace(case, memory=memory).figures()["step_seconds"]

    limit = step(enough) * NO_FASTER
    if step(least) <= limit:
        return least
    while enough - least > enough // USEFUL_PARTS:
        middle = (least + enough) // 2
        least, enough = (least, middle) if step(middle) <= limit else (middle, enough)
    return enough


def _of_a_day(nbytes, seconds):
    """Bytes of a day, of so many in each step."""
    return int(nbytes / seconds * DAY_SECONDS) if seconds else 0


def together(parts):
    """The figures of models that compute one after the other in each step."""
    if len(parts) == 1:
        return parts[0]
    first, out = parts[0], {}
    for key, value in first.items():
        each = [part[key] for part in parts]
        if isinstance(value, dict):
            out[key] = {name: sum(of.get(name, 0) for of in each) for of in each for name in of}
        elif isinstance(value, (int, float)) and key not in ("tokens", "drives"):
            out[key] = sum(each)
        else:
            out[key] = value
    out["model"] = " and ".join(part["model"] for part in parts)
    waits = [part["bound"] for part in parts if part["bound"] == endurance.NAME]
    out["bound"] = waits[0] if waits else max(out["lanes"], key=out["lanes"].get)
    out["tokens_per_second"] = out["tokens"] / out["step_seconds"] if out["step_seconds"] else 0.0
    out["written_bytes_per_day"] = _of_a_day(out["drive_write_bytes"], out["step_seconds"])
    out["memory"]["process"] -= (len(parts) - 1) * RESERVE_BYTES  # they share one
    out["peak_bytes"] = sum(out["memory"].values())
    return out


def beyond_the_machine(cases, figures):
    """Says that a step on a CPU needs more than the machine's memory. (memory= bounds the engine's part alone.)"""
    there, peak = cases[0].host_bytes(), figures["peak_bytes"]
    if cases[0].device is not None or not there or peak <= there:
        return
    beside = 0 if cases[0].is_of_process() else RESERVE_BYTES + sum(sum(case.beside().values()) for case in cases)
    helps = []
    if figures["minimum_bytes"] <= there - beside < figures["budget_bytes"]:
        helps.append(f"memory={native.readable(there - beside)}")
    if not cases[0].is_of_process() and figures.get("process_minimum_bytes", ALL_BYTES) <= there:
        helps.append('memory_of="process"')
    yield (
        f"with PyTorch's part a step needs {native.readable(peak, up=True)}, and the machine has "
        f"{native.readable(there)}: {', '.join([*helps, 'gradient checkpointing'])} or a smaller batch helps"
    )


def forecast(cases, tbw=None):
    """The whole Forecast of cases, of models that compute one after the other in each step. tbw: bytes that a drive may
    write in its life."""
    began = time.perf_counter()
    parts = [{**case.figures(), "minimum_bytes": case.at_least()} for case in cases]
    figures = {**together(parts), **(cases[0].of_process() if len(cases) == 1 else {})}
    figures["useful_bytes"] = sum(useful_bytes(case, part) for case, part in zip(cases, parts))
    if tbw is not None:
        each = figures["written_bytes_per_day"] / len(cases[0].drives)
        figures.update({"days_until_tbw": tbw / each} if each else {})
    figures["notes"] = [*beyond_the_machine(cases, figures), *(note for case in cases for note in case.trace.notes())]
    figures["what_if"] = what_if(cases, parts)
    if len(cases) > 1:
        figures["models"] = parts
    figures["plan_seconds"] = time.perf_counter() - began
    return Forecast(figures)
