"""The state machine of a step, from its first backward pass until it is durable.

    gathers        begin_pass(), backward, ...         make()                flush()                settle()
      0 passes ──────────────────────────► n passes ─────────► MADE ───────────────► COMMITTING ─────────────► DURABLE
        ▲                                     │                  │                       │
        ├────── drop(): forgets its gradients ┘                  └─ unmake(): the drives stay at the step before
        └────── discard(): and what the drives have of it

Two steps overlap: the next step gathers gradients while the drives commit the last one. `phase` belongs to the last
step; `backwards` counts the passes of the next one.
"""

import contextlib
import enum
import math
from dataclasses import dataclass
from typing import Any

from ..drives import recovery
from ..errors import LongshoreError, NotFiniteError, RankError
from ..interrupts import whole
from ..model import device
from ..native import lib
from . import commit_blob
from .sum_groups import MicroBatches


@dataclass
class StepResult:
    """What a step did.

    loss: the sum of the losses as backward() has divided them: their mean, if it divides by ``accumulate``; NaN if you
    called PyTorch's own loss.backward(). grad_norm: the norm of all gradients together, before clipping. step: its
    number. skipped: a gradient was not finite, and the state stayed as it was."""

    loss: float
    grad_norm: float
    step: int
    skipped: bool = False

    def __str__(self) -> str:
        loss = "" if math.isnan(self.loss) else f"  loss {self.loss:.4g}"
        return f"step {self.step}" + ("  skipped: not finite" if self.skipped else f"{loss}  norm {self.grad_norm:.4g}")


class Phase(enum.Enum):
    """Where the last step is."""

    MADE = "made"  # its updates are on the drives; a scheduler's step still belongs to it
    COMMITTING = "committing"  # the drives commit it
    DURABLE = "durable"


class StepCycle:
    """Takes one engine through its steps: gathers passes, makes the step, commits it."""

    def __init__(self, core, state):
        self.core, self.phase = core, Phase.DURABLE
        # what the last step commits with, until it is durable: (skipped, metrics, position, packed at the commit)
        self.commits: Any = None
        # what a script has stored into that step: (block, segment, count, masters), while drives may go and come back
        self.stored: list = []
        self.counts = [[state.step] * len(b.tensors) for b in state.layout.blocks]  # updates of each tensor so far
        self.counts_before = self.counts  # the same at the step before the last one
        self.backwards = 0  # backward passes of the step that gathers
        self.passes = 0  # the same, with those of a script's own loss.backward()
        self.micro_batches = MicroBatches(core)
        self.forwards = 0  # its forward passes in training
        self.losses: list = []  # of its micro-batches: (loss, how many of them make the step's), still on their device
        self.last, self.done = False, 0  # of the current pass, as expect() takes them
        self.changed_buffers: tuple = ()  # what RankBuffers.changed() says of the step on each rank
        self.several = False  # whether the step before had more than one pass
        # where random numbers and counts begin: the seed, and the number of steps made before this run
        self.lineage = [core.how["seed"], 0]
        self.position: dict = {}  # what a resumed run has saved for follow(), until its first step

    def open_state(self, asked):
        """Returns the state of the engine's run. Raises LongshoreError if the engine is closed. asked: the engine's
        name that needs the state."""
        return self.core.streams.open_state(f"engine.{asked}")

    def go_on_from(self, position, lineage, counts):
        """Continues from what a run has saved."""
        self.position, self.lineage, self.counts = position, lineage, counts

    @contextlib.contextmanager
    def changing(self, counts=None):
        """The context in which given values make a step, and not gradients. If it fails, nothing of it stays. counts:
        the new number of updates of each tensor; by default the same."""
        self.core.refuse_frozen("a change of parameters")
        before = self.lineage, self.counts
        self.counts_before, self.counts = self.counts, counts or self.counts
        try:
            yield
        except BaseException:
            self.lineage, self.counts = before
            self.discard()
            raise

    # ---- gathering

    def begin(self, keep=False):
        """Begins to gather the next step. keep: as Gradients.begin() takes it."""
        core = self.core
        self.several = self.backwards > 1
        core.streams.progress.end()
        self.count_anew()
        core.meter.drop()
        core.device_memory.step_ended(keep)
        core.gradients.begin(keep)

    def count_anew(self):
        """The next pass is the first one of the step."""
        self.backwards, self.passes, self.forwards, self.losses, self.last = 0, 0, 0, [], False
        self.micro_batches.clear()

    def end_pass(self, losses, parts):
        """A backward pass has gathered the gradients of these losses, one of each micro-batch: tensors of one element,
        of which the step's has 1 / parts."""
        self.losses += [(loss, parts) for loss in losses]
        self.backwards += len(losses)
        self.passes += len(losses)

    def place(self, n=None):
        """The Place of a micro-batch in the step. n: its number in this process; by default the pass is of it alone."""
        return self.micro_batches.place(self.passes + self.done if n is None else n, self.last)

    def place_of_end(self):
        """The Place of the pass's last micro-batch."""
        return self.place(self.passes + self.done + self.core.gradients.passes - 1)

    def expect(self, last, count=1, done=0):
        """The next backward pass is of this many micro-batches. last: whether make() follows it. done: so many came
        before it that end_pass() does not know yet."""
        self.last, self.core.gradients.passes, self.done = last, count, done

    @whole
    def begin_pass(self):
        """Prepares a backward pass."""
        gradients = self.core.gradients
        self.core.pace.before_pass()  # of a script that calls parts of the model alone
        self.core.state.charges.turn(lib.SHORE_CHARGE_BACKWARD)
        if self.micro_batches.shared is None:
            self.micro_batches.share("backward", *self.micro_batches.of_loop())
        gradients.hide()
        if self.core.state.away or self.core.ranks.size > 1 and not self.passes:
            self.settle()  # the new gradients use the memory of the last step's
        several = self.several or self.core.accumulate > 1 or self.backwards > 0 or not self.last
        if gradients.begin_pass(self.core, several) and self.last:
            self.settle()
            gradients.step.tell(lib.shore_step_fetch_state)

    def drop(self, keep=False):
        """Drops the gradients of the step that gathers. keep: as Gradients.begin() takes it."""
        if self.core.gradients.has_sent():
            self.settle()
        self.begin(keep)

    def discard(self):
        """Drops the gradients, and what the drives have written of the next step."""
        self.settle()
        self.core.gradients.discard()
        self.begin()

    # ---- the step

    def decide(self):
        """Returns the struct shore_clipping of the step (the norm of its gradients, and their coefficient), and the
        losses of its micro-batches, of all ranks in order. All ranks call it."""
        self.micro_batches.refuse_other("the step", self.passes)
        self.settle()
        core = self.core
        with core.state.charges.during(lib.SHORE_CHARGE_UPDATE):
            return self._decide(core)

    def _decide(self, core):
        values = device.numbers([loss for loss, _ in self.losses], core.streams.device)
        losses = [value / parts for value, (_, parts) in zip(values, self.losses)]
        told = losses, core.meter.told(core.ranks), core.buffers.changed()
        clipping, everyone = core.gradients.decide(core.how["clip"], told)
        of_ranks, metrics, self.changed_buffers = zip(*everyone)
        core.meter.take(metrics)
        return clipping, [loss for of_rank in of_ranks for loss in of_rank]

    def make(self):
        """Makes the step. Returns a StepResult, or None if a drive was lost and the caller must call again."""
        gradients = self.core.gradients
        if not gradients.has_any():
            raise LongshoreError(
                f"engine.step: there was no backward pass since step {self.core.state.step}; call "
                "engine.backward(loss) or loss.backward() before it"
            )
        clipping, losses = self.decide()
        self.core.device_memory.after_pass(True)
        before, grouped = self.counts, self.core.optimizer.group_of
        self.counts_before = before
        loss = sum(losses) if losses else math.nan
        gradients.step.tell(lib.shore_step_remember, clipping.norm)
        if not clipping.finite:
            return self._skip(loss, clipping.norm)
        changed = gradients.make()
        self.counts = [list(counts) for counts in before]
        for number in changed:
            for t in gradients.blocks[number].arrived:
                self.counts[number][t] += id(self.core.streams.blocks[number].parameters[t][0]) in grouped
        try:
            return self._finish(loss, clipping.norm, changed)
        except BaseException:
            if self.phase is not Phase.MADE:
                self.counts = before
            raise

    def _skip(self, loss, norm):
        """Drops gradients that are not finite. Raises NotFiniteError, or makes a step that changes nothing."""
        core = self.core
        core.gradients.end_gathering()
        self.drop(keep=True)
        core.streams.hide_unused()
        if core.how["on_nonfinite"] != "skip":
            raise NotFiniteError(
                f"step {core.state.step + 1}: the gradients are not finite (loss {loss:g}), and the step was not "
                "made; lower the learning rate, or wrap(..., on_nonfinite='skip')"
            )
        return recovery.persist(core, lambda: self._finish(loss, norm, None))

    def _finish(self, loss, norm, changed):
        """Closes the step and returns its StepResult. changed: as Gradients.make() returns it; None: skipped."""
        core, skipped = self.core, changed is None
        speculated = not skipped and core.gradients.step.tell(lib.shore_step_speculated)
        groups = core.optimizer.param_groups
        dropped = core.compression.dropped(changed or ()) if core.compression else math.nan
        metrics = core.meter.of_step(core, groups, loss, norm, dropped, speculated, skipped)
        if (most := core.device_memory.told()[2]) > 0:
            metrics["gpu_bytes"] = most
        if core.ranks.size > 1:
            metrics["rank_bytes"] = core.meter.rank_bytes
        core.meter.ended(core)
        core.buffers.take_rank_0s(self.changed_buffers)
        self.close(metrics, changed or (), True, skipped)
        self.position = {}  # follow() restores nothing from here on
        core.outlook.step_ended(metrics)
        return StepResult(loss, norm, core.state.step, skipped)

    def close(self, metrics, changed, made=False, skipped=False):
        """Moves to MADE once the drives have all of the step. changed: numbers of the changed blocks; made: whether
        gradients made it."""
        core = self.core
        if not made and not skipped:
            core.state.meet("a change of parameters")  # all ranks have read what it needs of the step before
        stored = commit_blob.store_buffers(core)
        if skipped and stored:
            core.gradients.make_empty()
        noted = commit_blob.begin(core)
        core.gradients.end_step(changed, made and (stored or not skipped))
        self.phase, self.commits = Phase.MADE, (skipped and not stored, metrics, noted)
        core.state.step += 1
        core.state.is_written = not self.commits[0]
        core.meter.restart(core.state)
        self.begin(keep=True)
        core.streams.after_step(changed)

    # ---- its commit

    def takes_changes(self):
        """Whether other values of parameters can still become part of the last step: its commit has not begun. A step
        that was skipped has no values."""
        return self.phase is Phase.MADE and not self.commits[0]

    def store_masters(self, block, segment, count, masters):
        """Stores other masters of segments into the last step, and again where it is sent again. masters: a Buffer."""
        change = block, segment, count, masters
        recovery.persist(self.core, lambda: self._store_masters(*change))
        if self.core.state.away:
            self.stored.append(change)

    def _store_masters(self, block, segment, count, masters):
        self.core.gradients.step.tell(lib.shore_step_forget_state, block)  # a step that is sent again holds it anew
        self.core.state.store_values(block, segment, count, master=masters, last=True)

    def changed(self, numbers):
        """Other values of these blocks became part of the last step."""
        names = [self.core.layout.blocks[number].name for number in numbers]
        self.commits[1]["written"] = sorted({*self.commits[1].get("written", ()), *names})

    @whole
    def flush(self):
        """Begins to commit the last step."""
        if self.phase is Phase.MADE:
            skipped, metrics, noted = self.commits
            commits = skipped, metrics, commit_blob.finish(self.core, noted)
            recovery.persist(self.core, lambda: self.core.state.commit(*commits))
            self.phase, self.commits = Phase.COMMITTING, commits
            if skipped:
                self.settle()  # so that pages find it

    @whole
    def settle(self):
        """Waits until the last step is durable. If it cannot be committed, the engine is at the step before it."""
        self.open_state("settle")
        recovery.persist(self.core, self._settle)
        self.durable()

    def durable(self):
        """The last step is durable."""
        self.phase, self.commits, self.stored = Phase.DURABLE, None, []
        self.core.state.is_written = True
        self.core.gradients.durable()

    def found_committed(self):
        """After drives were lost and came back: marks the last step durable if they were committing it."""
        if self.phase is Phase.COMMITTING:
            self.durable()

    def _settle(self):
        state = self.core.state
        try:
            self.flush()
            state.settle()
        except LongshoreError as failure:
            if failure.code == lib.SHORE_ELINK or isinstance(failure, RankError):
                raise
            if state.committed() < state.step:
                self.unmake()
                raise
            self.durable()
            raise LongshoreError(
                f"{failure}; step {state.step} is committed, and the engine goes on from it once that is mended",
                failure.code,
            ) from failure

    def send_again(self):
        """Sends the last step again, after its drives were lost. Returns whether its gradients were still in memory;
        if not, the step is undone."""
        core, state = self.core, self.core.state
        skipped = self.commits[0]
        state.step -= 1
        try:
            known = skipped or core.gradients.send_again()
            if known and not skipped:
                for number, block in enumerate(core.layout.blocks):
                    if block.buffers:
                        state.store_again(number)
        finally:
            state.step += 1
        if not known:
            self.unmake()
            return False
        for change in self.stored:
            self._store_masters(*change)
        if self.phase is Phase.COMMITTING:
            state.commit(*self.commits)
        return True

    def unmake(self):
        """Goes back to the step before the last one."""
        streams = self.core.streams
        self.phase, self.commits, self.stored = Phase.DURABLE, None, []
        self.core.state.step -= 1
        self.core.state.is_written = True
        self.counts = self.counts_before
        for streamed in streams.blocks:
            streams.hide(streamed)
            streamed.step = -1
        self.core.gradients.discard()
        self.begin()
        streams.after_step(range(len(streams.blocks)))

    def leave_to_parent(self):
        """In a forked process: forgets the run, and closes, commits and writes nothing."""
        self.phase, self.commits = Phase.DURABLE, None
        self.core.gradients.abandon()
        self.begin(keep=True)
