"""The Core of an engine: its parts, and what it remembers from step to step."""

import contextlib
import os
import weakref
from typing import Any

import torch

from .. import forks, native
from ..errors import LongshoreError, NotFiniteError, RankError
from ..interrupts import whole
from ..model import placement, random_numbers
from ..model.forward_scope import Hook
from ..native import lib
from ..ranks.launch import ranks
from ..step import commit_blob, layer_major
from ..step.compression import Compression
from ..step.gradients import Gradients
from ..step.optimizers import Optimizer
from ..step.param_groups import NUMBERS, defaults_of
from ..step.rank_buffers import RankBuffers
from ..step.step_cycle import StepCycle
from ..step.sum_groups import groups_of
from ..torch_internals import in_backward
from . import endurance, memory, open_engines, shared_budget
from .device_memory import DeviceMemory
from .metrics import Meter
from .options import refuse_ranks
from .outlook import Outlook
from .process_memory import ProcessMemory


class Core:
    """What stands behind an Engine. Modules of the package get it from core_of(); a script sees the Engine alone."""

    closed_at = None  # (run, last step) of a closed engine
    gone = None  # the error, if lost drives did not come back
    lent = None  # the Loan of another engine to this one

    def __init__(self, engine, model, streams, state, how, groups, plan):
        """how: wrap()'s options, as the run records them. groups: as torch.optim takes them. plan: how the budget is
        divided."""
        self.engine, self.module, self.how, self.plan = engine, model, how, plan
        self.streams, streams.core = streams, weakref.ref(self)
        self.ranks = ranks()
        self.device_memory = DeviceMemory(streams, plan) if plan.process is None else ProcessMemory(streams, plan)
        self.cycle = StepCycle(self, state)
        self.buffers = RankBuffers(self)
        self.gradients = streams.gradients = Gradients(streams, plan.gradient_bytes)
        self.compression = (
            Compression(self.gradients, how["compress"], how["compress_after"]) if how.get("compress") else None
        )
        self.begin_training(how, groups)
        self.together = layer_major.Together(self)
        self.reconnect_timeout = native.lib.SHORE_PATIENCE_SECONDS
        self.patience = native.new("struct shore_patience")  # the wait for lost drives
        forks.leave_in_children(self.cycle)
        self.process_at_wrap_bytes = memory.process_bytes()
        if self.trains and not open_engines.training():
            random_numbers.forget()
        self.own_random, self.meter, self.outlook = random_numbers.OwnRandom(), Meter(), Outlook(self)
        self.pace = endurance.Pace(self)
        self.cycle.begin(keep=True)
        model.register_forward_pre_hook(
            Hook(self._before_forward, random_numbers.begin_copy), prepend=True, with_kwargs=True
        )
        model.register_forward_hook(Hook(self._after_forward, random_numbers.end_copy), always_call=True)
        self.gradients.hook()

    def begin_training(self, how, groups):
        """Takes the options of a training, and makes its optimizer: at wrap(), or where a model is trained again."""
        numbers = {k: tuple(how[k]) if k == "betas" else commit_blob.back(how[k]) for k in NUMBERS if k in how}
        self.how, self.accumulate, self.lr_scheduler = how, 1, None
        self.followed = {}  # by name: objects whose state commits with every step
        self.optimizer = Optimizer(self, groups, defaults_of(how["optimizer"], numbers))

    def change(self, **how):
        """Changes options of wrap() that hold for this engine alone (clip, on_nonfinite), or come with another run."""
        self.how.update(how)

    @property
    def trains(self):
        """False: the model is frozen, and the run holds its parameters alone."""
        return self.how.get("trains", True)

    def refuse_frozen(self, what):
        """Raises LongshoreError if the model is frozen. what: begins the message."""
        if not self.trains:
            raise LongshoreError(
                f"{what}: this {type(self.module).__name__} was wrapped with trains=False, so nothing changes its "
                "parameters, and its run has no steps; to train it, wrap it without trains=False"
            )

    @property
    def state(self) -> Any:
        """The State of the open run, also while the engine sleeps; None: the engine is closed."""
        asleep = self.streams.asleep
        return self.streams.state if asleep is None else asleep.state

    @property
    def layout(self):
        """The layout of the run, also of a closed one."""
        return self.streams.layout

    def open(self, state):
        """Opens the pages of a run: the parameters can be used from here on."""
        state.begin_trace(self.plan.trace_steps)
        self.streams.layout = state.layout
        self.streams.open(state)
        placement.put(self.module, placement.copies_beside(self.module, self.streams.places.device))
        self.buffers.take_rank_0s([self.buffers.changed()])

    def settle_for(self, asked):
        """Settles for what a sleeping engine can do, too, which has settled. asked: the engine's name of it."""
        if self.streams.asleep is None:
            self.cycle.open_state(asked)
            self.cycle.settle()

    def go_on(self, state, run):
        """Opens a run of this model in place of the one before, and goes on from its committed step. If that fails, the
        run is closed. run: named in messages."""
        try:
            state.layout.continue_as(self.layout, run)
            if self.compression and not state.made.residual:
                raise LongshoreError(
                    f"{run}: was made without compress, and has no room for the gradients that compression leaves out; "
                    "resume without compress, or make a new run"
                )
            self.change(sum_groups=groups_of(state.program["engine"]))
            if self.trains:
                refuse_ranks(os.fspath(run), self.how)
            self.open(state)
            commit_blob.restore(self, commit_blob.of(state), state)
            open_engines.add(self)
        except BaseException as failure:
            state.fail(failure)
            self.streams.end()
            state.close()
            raise

    # ---- forward

    @whole
    def leave_forward(self):
        """Ends this thread's forward pass where an exception interrupted it."""
        self.streams.inside.abort()
        self.own_random.end(False)

    def _before_forward(self, module, args, kwargs):
        """Prepares a forward pass. In training, random numbers follow from the run's seed, the step and the pass,
        so that they do not depend on the order in which micro-batches run."""
        self.cycle.open_state("forward")
        self.cycle.flush()
        self.gradients.look()
        self.device_memory.before_pass((args, kwargs), torch.is_grad_enabled())
        counts = torch.is_grad_enabled() and not in_backward()
        numbered = counts and self.trains and module.training
        if numbered:
            self.outlook.before_step()
        if counts:
            self.meter.start(self.state)
            self.pace.before_pass()
        if self.ranks.size > 1 and self.streams.turns is None and not in_backward():
            with self.state.charges.waiting(lib.SHORE_CHARGE_LINK):
                self.ranks.come("a forward pass")
        given = self.device_memory.given(args, kwargs)
        self.own_random.begin(self, module.training, self.cycle.forwards if numbered else None)
        if numbered:
            self.outlook.before_pass((args, kwargs))
            self.meter.forward(self.state, args, kwargs)
            self.streams.progress.begin(
                self.state.step + 1, len(self.streams.layers), self.accumulate, self.gradients.passes
            )
        if counts:
            self.state.charges.turn(lib.SHORE_CHARGE_FORWARD)
        return given

    def _after_forward(self, module, args, output):
        drew = self.own_random.end(output is not None)
        if not in_backward():
            if drew is not None and self.own_random.numbered and output is not None:
                self.together.drew(drew)
                self.cycle.forwards += 1
            self.meter.forward_ended(output)
            if output is not None and not torch.is_grad_enabled():
                self.device_memory.after_pass(False)
            if output is None and torch.is_grad_enabled() and self.state is not None:  # an exception ended the pass
                self.state.charges.turn(lib.SHORE_CHARGE_BETWEEN)

    # ---- the end of a step, and of the engine

    @whole
    def drop_gradients(self, passes=True):
        """Drops the gradients that backward passes have gathered since the last step. passes: and that there were any;
        otherwise a step of nothing may follow, as in PyTorch."""
        self.leave_forward()
        self.gradients.has_pass &= not passes
        self.cycle.drop()
        if self.state is not None:
            self.state.charges.turn(lib.SHORE_CHARGE_BETWEEN)
        self.streams.hide_unused()
        if self.streams.activations is not None:
            self.streams.activations.settle()  # those of a pass that failed need no memory of the device any more

    @contextlib.contextmanager
    def undoing(self, failure):
        """The context in which what a pass or a step that has failed has done is undone. The other ranks hear of a
        failure that is not theirs, too; with them nothing can be undone then."""
        if not isinstance(failure, NotFiniteError):
            self.ranks.fail(failure)
        with contextlib.suppress(RankError):
            yield

    def let_go(self):
        """Releases the run: the parameters cannot be used from here on."""
        state = self.state
        self.closed_at = state.path, state.step
        self.streams.end()
        self.cycle.begin()
        state.close()
        shared_budget.give_back(self)
