"""DeepSpeed's learning-rate schedules, with its formulas.

Each step() counts one step and writes `lr`, and with OneCycle also the momentum, into the optimizer's groups.
"""

from __future__ import annotations

import inspect
import math

from ..integrations.deepspeed_config import say_once
from ..step.param_groups import put

LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR = "LRRangeTest", "OneCycle", "WarmupLR"
WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = "log", "linear"


def _of_groups(optimizer, value, name):
    """A list with one value for each parameter group."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * groups
    if len(value) != groups:
        raise ValueError(f"{name}: {len(value)} values, and the optimizer has {groups} groups")
    return list(value)


def _positive(value, name):
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name}={value!r}: must be a whole number above 0")
    return value


class _Schedule:
    """The base of the schedules: counts steps and writes rates."""

    follows_the_step = True  # the script steps it after the engine's step

    def _begin(self, optimizer, last_batch_iteration):
        self.optimizer, self.last_batch_iteration = optimizer, last_batch_iteration
        if last_batch_iteration == -1:
            self._write()

    def _write(self):
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr):
            put(group, "lr", rate)

    def get_lr(self) -> list[float]:
        """The rates at last_batch_iteration, one for each group."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """The present rates, one for each group."""
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        self.last_batch_iteration = (
            self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        )
        self._write()

    def state_dict(self) -> dict:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict) -> None:
        self.last_batch_iteration = state["last_batch_iteration"]
        if self.last_batch_iteration >= 0:
            self._write()


def _between(lows, highs, height):
    """The values at a height between the lows, 0, and the highs, 1."""
    return [low + (high - low) * height for low, high in zip(lows, highs)]


class LRRangeTest(_Schedule):
    """Raises the rates step by step, to find the largest that works."""

    def __init__(
        self,
        optimizer,
        lr_range_test_min_lr=1e-3,
        lr_range_test_step_size=2000,
        lr_range_test_step_rate=1.0,
        lr_range_test_staircase=False,
        last_batch_iteration=-1,
    ):
        self.min_lr = _of_groups(optimizer, lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size = _positive(lr_range_test_step_size, "lr_range_test_step_size")
        self.step_rate, self.staircase = lr_range_test_step_rate, lr_range_test_staircase
        self._begin(optimizer, last_batch_iteration)

    def get_lr(self) -> list[float]:
        passed = float(self.last_batch_iteration + 1) / self.step_size
        increase = 1 + self.step_rate * (math.floor(passed) if self.staircase else passed)
        return [rate * increase for rate in self.min_lr]


class OneCycle(_Schedule):
    """Raises and lowers the rates once, and then lets them decay. The momentum goes the other way."""

    def __init__(
        self,
        optimizer,
        cycle_min_lr,
        cycle_max_lr,
        decay_lr_rate=0.0,
        cycle_first_step_size=2000,
        cycle_second_step_size=None,
        cycle_first_stair_count=0,
        cycle_second_stair_count=None,
        decay_step_size=0,
        cycle_momentum=True,
        cycle_min_mom=0.8,
        cycle_max_mom=0.9,
        decay_mom_rate=0.0,
        last_batch_iteration=-1,
    ):
        first = float(cycle_first_step_size)
        second = first if cycle_second_step_size is None else float(cycle_second_step_size)
        if first <= 0 or second < 0:
            raise ValueError("cycle_first_step_size must be above 0, and cycle_second_step_size 0 or more")
        self.first, self.second, self.total = first, second, first + second
        second_stairs = cycle_first_stair_count if cycle_second_stair_count is None else cycle_second_stair_count
        self.stairs, self.decay_step_size = (cycle_first_stair_count, second_stairs), decay_step_size
        self.min_lrs = _of_groups(optimizer, cycle_min_lr, "cycle_min_lr")
        self.max_lrs = _of_groups(optimizer, cycle_max_lr, "cycle_max_lr")
        self.min_moms = _of_groups(optimizer, cycle_min_mom, "cycle_min_mom")
        self.max_moms = _of_groups(optimizer, cycle_max_mom, "cycle_max_mom")
        self.decay_lr_rate, self.decay_mom_rate = decay_lr_rate, decay_mom_rate
        self.cycle_momentum = cycle_momentum and "betas" in optimizer.defaults
        self._begin(optimizer, last_batch_iteration)
        if last_batch_iteration == -1:
            self._write_momenta(self.min_moms)

    def _write_momenta(self, momenta):
        for group, momentum in zip(self.optimizer.param_groups, momenta if self.cycle_momentum else ()):
            group["betas"] = (momentum, 0.99)

    def _height(self):
        """The position between the lowest and the highest rate, 0 to 1."""
        at, ratio = self.last_batch_iteration + 1, self.first / self.total
        within = 1.0 + at / self.total - math.floor(1 + at / self.total)
        rises = within <= ratio
        height, stairs = (within / ratio, self.stairs[0]) if rises else ((within - 1) / (ratio - 1), self.stairs[1])
        if stairs <= 0:
            return height
        at = at % self.total
        passed = at * stairs / self.first if at <= self.first else (self.total - at) * stairs / self.second
        return math.floor(passed) / stairs

    def _decayed(self):
        """Decay intervals since the cycle ended; None during the cycle."""
        if self.last_batch_iteration < self.total:
            return None
        return (self.last_batch_iteration - self.total + 1) / self.decay_step_size if self.decay_step_size else 0.0

    def get_lr(self) -> list[float]:
        decayed = self._decayed()
        if decayed is None:
            return _between(self.min_lrs, self.max_lrs, self._height())
        return [low / (1 + self.decay_lr_rate * decayed) for low in self.min_lrs]

    def get_mom(self) -> list[tuple[float, float]]:
        """The betas of each group."""
        return [(momentum, 0.99) for momentum in self._momenta()]

    def _momenta(self):
        decayed = self._decayed()
        if decayed is None:
            return _between(self.max_moms, self.min_moms, self._height())
        return [high * (1 + self.decay_mom_rate * decayed) for high in self.max_moms]

    def step(self, batch_iteration: int | None = None) -> None:
        super().step(batch_iteration)
        self._write_momenta(self._momenta())


class _Warmup(_Schedule):
    """The base of schedules that begin with a warmup. _after(): what follows it, 1 to 0."""

    def _begin_warmup(self, steps, kind):
        self.warmup_num_steps = max(2, _positive(steps, "warmup_num_steps"))
        if kind not in ("log", "linear"):
            say_once(f"warmup_type: {kind!r} is neither log nor linear: log is used, as DeepSpeed does")
        self.warmup_type = "linear" if kind == "linear" else "log"

    def _warmed(self):
        """The progress of the warmup, 0 to 1; None after it."""
        if self.last_batch_iteration >= self.warmup_num_steps:
            return None
        if self.warmup_type == "log":
            return 1.0 / math.log(self.warmup_num_steps) * math.log(self.last_batch_iteration + 1)
        return self.last_batch_iteration / self.warmup_num_steps


class WarmupLR(_Warmup):
    """Raises the rates from the least to the largest, and keeps them there."""

    def __init__(
        self,
        optimizer,
        warmup_min_lr=0.0,
        warmup_max_lr=None,
        warmup_num_steps=1000,
        warmup_type="log",
        last_batch_iteration=-1,
    ):
        self._begin_warmup(warmup_num_steps, warmup_type)
        if warmup_max_lr is None:
            warmup_max_lr = [float(group["lr"]) for group in optimizer.param_groups]
        self.min_lrs = _of_groups(optimizer, warmup_min_lr, "warmup_min_lr")
        self.max_lrs = _of_groups(optimizer, warmup_max_lr, "warmup_max_lr")
        self._begin(optimizer, last_batch_iteration)

    def _after(self):
        return 1.0

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < 0:
            return list(self.min_lrs)
        warmed = self._warmed()
        return _between(self.min_lrs, self.max_lrs, self._after() if warmed is None else warmed)


class WarmupDecayLR(WarmupLR):
    """Raises the rates like WarmupLR, and then lowers them to 0 by total_num_steps."""

    def __init__(self, optimizer, total_num_steps, warmup_min_lr=0.0, warmup_max_lr=0.001, *others, **named):
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, *others, **named)

    def _after(self):
        left, of = self.total_num_steps - self.last_batch_iteration, self.total_num_steps - self.warmup_num_steps
        return max(0.0, float(left) / float(max(1.0, of)))


class WarmupCosineLR(_Warmup):
    """Raises the rates from a fraction of the optimizer's own up to these, and then lowers them along a cosine."""

    def __init__(
        self,
        optimizer,
        total_num_steps,
        warmup_min_ratio=0.0,
        warmup_num_steps=1000,
        cos_min_ratio=0.0001,
        warmup_type="log",
        last_batch_iteration=-1,
    ):
        self._begin_warmup(warmup_num_steps, warmup_type)
        self.total_num_steps = total_num_steps
        self.warmup_min_ratio, self.cos_min_ratio = warmup_min_ratio, cos_min_ratio
        self.org_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self._begin(optimizer, last_batch_iteration)

    def get_lr_ratio(self) -> float:
        if self.last_batch_iteration < 0:
            return 0.0
        warmed = self._warmed()
        if warmed is not None:
            return self.warmup_min_ratio + warmed * (1.0 - self.warmup_min_ratio)
        passed = self.last_batch_iteration - self.warmup_num_steps + 1
        progress = min(1.0, passed / max(1, self.total_num_steps - self.warmup_num_steps))
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * (1 + math.cos(math.pi * progress)) / 2)

    def get_lr(self) -> list[float]:
        return [rate * self.get_lr_ratio() for rate in self.org_lrs]


# the names of the schedules' parameters, which scripts import: WARMUP_MIN_LR is "warmup_min_lr"
for _kind in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR):
    globals().update((name.upper(), name) for name in inspect.signature(_kind).parameters)
