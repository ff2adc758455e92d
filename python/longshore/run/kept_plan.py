"""RUN/plan.json: what the plan says of the steps that an engine makes (docs/outputs.md)."""

import contextlib
import json
import logging
import os

from ..errors import LongshoreError
from ..model.fates import only_once
from . import forecast

_log = logging.getLogger("longshore")


def keep(core, trace, machine):
    """Writes the plan of a step, in place of the one before. trace: what the step computes. machine: the Machine by
    whose rates it is made."""
    state, streams, plan = core.state, core.streams, core.plan
    of_process = plan.process is not None and not trace.why
    case = forecast.Case(
        name=type(core.module).__name__,
        blocks=core.layout.blocks,
        trace=trace,
        how={**core.how, "trace": plan.trace_steps},
        machine=machine,
        drives=state.drives,
        memory=plan.budget_bytes if plan.process is None else plan.process.limit,
        device=None if streams.device is None else streams.device.device,
        gpu_memory=plan.gpu_memory,
        pinned_memory=core.how.get("pinned_memory"),
        room=state.scratch_bytes,
        whole=trace if of_process else None,
        once=only_once(core.module, trace) if of_process else frozenset(),
    )
    path = os.path.join(state.path, "plan.json")
    beside = f"{path}.new"
    try:
        text = json.dumps(dict(forecast.forecast([case]))) + "\n"
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except (LongshoreError, OSError) as failure:
        _log.warning("the plan is not kept: %s", failure)
        with contextlib.suppress(OSError):
            os.remove(beside)
