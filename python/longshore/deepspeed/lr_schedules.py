"""DeepSpeed's learning-rate schedules, with its formulas.

Each step() counts one step and writes `lr`, and with OneCycle also the momentum, into the optimizer's groups.
"""

from __future__ import annotations

import math
from typing import Any

from ..integrations.deepspeed_config import say_once
from ..step.param_groups import put

LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR = "LRRangeTest", "OneCycle", "WarmupLR"
WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
# the names of the schedules' parameters, which scripts import: WARMUP_MIN_LR is "warmup_min_lr"
globals().update(
    {
        name.upper(): name
        for name in (
            "lr_range_test_min_lr",
            "lr_range_test_step_rate",
            "lr_range_test_step_size",
            "lr_range_test_staircase",
            "cycle_min_lr",
            "cycle_max_lr",
            "cycle_first_step_size",
            "cycle_second_step_size",
            "cycle_first_stair_count",
            "cycle_second_stair_count",
            "decay_lr_rate",
            "decay_step_size",
            "cycle_min_mom",
            "cycle_max_mom",
            "decay_mom_rate",
            "warmup_min_lr",
            "warmup_max_lr",
            "warmup_num_steps",
            "warmup_type",
            "total_num_steps",
            "warmup_min_ratio",
            "cos_min_ratio",
        )
    }
)
WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = "log", "linear"


def _of_groups(optimizer, value, name):
    """A list with one value for each parameter group."""
    if isinstance(value, (list, tuple)):
        if len(value) != len(optimizer.param_groups):
            raise ValueError(f"{name}: {len(value)} values, and the optimizer has {len(optimizer.param_groups)} groups")
        return list(value)
    return [value] * len(optimizer.param_groups)


def _positive(value, name):
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name}={value!r}: must be a whole number above 0")
    return value


class _Schedule:
    """The base of the schedules: counts steps and writes rates."""

    follows_the_step = True  # the script steps it after the engine's step
    get_lr: Any  # get_lr(): the rates at last_batch_iteration

    def _begin(self, optimizer, last_batch_iteration, rates):
        """rates: those of the first step, written if no step was made before."""
        self.optimizer, self.last_batch_iteration = optimizer, last_batch_iteration
        if last_batch_iteration == -1:
            self._write(rates)

    def _write(self, rates):
        for group, rate in zip(self.optimizer.param_groups, rates):
            put(group, "lr", rate)
        self._last_lr = list(rates)

    def get_last_lr(self) -> list[float]:
        """The present rates, one for each group."""
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        self.last_batch_iteration = (
            self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        )
        self._write(self.get_lr())

    def state_dict(self) -> dict:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict) -> None:
        self.last_batch_iteration = state["last_batch_iteration"]
        if self.last_batch_iteration >= 0:
            self._write(self.get_lr())


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
        self._begin(optimizer, last_batch_iteration, self.min_lr)

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
        self.step_ratio = first / self.total
        self.stairs = (
            cycle_first_stair_count,
            cycle_first_stair_count if cycle_second_stair_count is None else cycle_second_stair_count,
        )
        self.decay_step_size = decay_step_size
        self.min_lrs = _of_groups(optimizer, cycle_min_lr, "cycle_min_lr")
        self.max_lrs = _of_groups(optimizer, cycle_max_lr, "cycle_max_lr")
        self.decay_lr_rate, self.decay_mom_rate = decay_lr_rate, decay_mom_rate
        self.cycle_momentum = cycle_momentum and "betas" in optimizer.defaults
        self.min_moms = _of_groups(optimizer, cycle_min_mom, "cycle_min_mom")
        self.max_moms = _of_groups(optimizer, cycle_max_mom, "cycle_max_mom")
        self._begin(optimizer, last_batch_iteration, self.min_lrs)
        if last_batch_iteration == -1 and self.cycle_momentum:
            self._write_momenta(self.min_moms)

    def _write_momenta(self, momenta):
        for group, momentum in zip(self.optimizer.param_groups, momenta):
            group["betas"] = (momentum, 0.99)

    def _height(self):
        """The position between the lowest and the highest rate, 0 to 1."""
        at = self.last_batch_iteration + 1
        within = 1.0 + at / self.total - math.floor(1 + at / self.total)
        ratio = self.step_ratio
        rises = within <= ratio
        height, stairs = (within / ratio, self.stairs[0]) if rises else ((within - 1) / (ratio - 1), self.stairs[1])
        if stairs > 0:
            at = at % self.total
            height = (
                math.floor(at * stairs / self.first if at <= self.first else (self.total - at) * stairs / self.second)
                / stairs
            )
        return height

    def _decayed(self):
        """Decay intervals since the cycle ended; None during the cycle."""
        if self.last_batch_iteration < self.total:
            return None
        return (self.last_batch_iteration - self.total + 1) / self.decay_step_size if self.decay_step_size else 0.0

    def get_lr(self) -> list[float]:
        decayed = self._decayed()
        if decayed is None:
            height = self._height()
            return [low + (high - low) * height for low, high in zip(self.min_lrs, self.max_lrs)]
        return [low / (1 + self.decay_lr_rate * decayed) for low in self.min_lrs]

    def get_mom(self) -> list[tuple[float, float]]:
        """The betas of each group."""
        return [(momentum, 0.99) for momentum in self._momenta()]

    def _momenta(self):
        decayed = self._decayed()
        if decayed is None:
            height = self._height()
            return [high - (high - low) * height for low, high in zip(self.min_moms, self.max_moms)]
        return [high * (1 + self.decay_mom_rate * decayed) for high in self.max_moms]

    def step(self, batch_iteration: int | None = None) -> None:
        super().step(batch_iteration)
        if self.cycle_momentum:
            self._write_momenta(self._momenta())


class _Warmup(_Schedule):
    """The base of schedules that begin with a warmup."""

    def _begin_warmup(self, steps, kind):
        self.warmup_num_steps = max(2, _positive(steps, "warmup_num_steps"))
        if kind not in ("log", "linear"):
            say_once(f"warmup_type: {kind!r} is neither log nor linear: log is used, as DeepSpeed does")
            kind = "log"
        self.warmup_type = kind

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
        self._begin(optimizer, last_batch_iteration, self.min_lrs)

    def _after(self):
        return 1.0

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < 0:
            return list(self.min_lrs)
        warmed = self._warmed()
        gamma = self._after() if warmed is None else warmed
        return [low + (high - low) * gamma for low, high in zip(self.min_lrs, self.max_lrs)]


class WarmupDecayLR(WarmupLR):
    """Raises the rates like WarmupLR, and then lowers them to 0 by total_num_steps."""

    def __init__(
        self,
        optimizer,
        total_num_steps,
        warmup_min_lr=0.0,
        warmup_max_lr=0.001,
        warmup_num_steps=1000,
        warmup_type="log",
        last_batch_iteration=-1,
    ):
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration)
        self.total_num_steps = total_num_steps

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
        self.total_num_steps, self.warmup_min_ratio, self.cos_min_ratio = (
            total_num_steps,
            warmup_min_ratio,
            cos_min_ratio,
        )
        self.org_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self._begin(optimizer, last_batch_iteration, [0.0] * len(self.org_lrs))

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
