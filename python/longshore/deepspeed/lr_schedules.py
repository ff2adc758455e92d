"""DeepSpeed's learning-rate schedules, with its formulas.

Each step() counts one step and writes `lr`, and with OneCycle also the momentum, into the optimizer's groups.
"""

from __future__ import annotations

import ast
import inspect
import math
from typing import Any

from ..integrations.deepspeed_config import say_once
from ..step.param_groups import put

LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR = "LRRangeTest", "OneCycle", "WarmupLR"
WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = "log", "linear"


def _parameter(text):
    """A parameter of a schedule. Scripts import its name: WARMUP_MIN_LR is "warmup_min_lr"."""
    name, _, default = text.partition("=")
    globals()[name.upper()] = name
    default = ast.literal_eval(default) if default else inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


class _Schedule:
    """The base of the schedules: takes parameters, counts steps and writes rates."""

    follows_the_step = True  # the script steps it after the engine's step
    takes = ""  # its parameters and their defaults, between optimizer and last_batch_iteration
    __signature__: inspect.Signature
    last_batch_iteration: Any

    def __init_subclass__(cls):
        texts = f"optimizer {cls.takes} last_batch_iteration=-1".split()
        cls.__signature__ = inspect.Signature([_parameter(text) for text in texts])

    def __init__(self, *values, **named):
        given = self.__signature__.bind(*values, **named)
        given.apply_defaults()
        vars(self).update(given.arguments)
        self._prepare()
        if self.last_batch_iteration == -1:
            self._write()

    def __getattr__(self, name: str) -> Any:  # of the parameters
        raise AttributeError(f"{type(self).__name__} has no {name}", name=name, obj=self)

    def _prepare(self):
        """Checks the parameters, and gives each group its own."""

    def _spread(self, *names):
        """Makes parameters lists with one value for each parameter group."""
        groups = len(self.optimizer.param_groups)
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)):
                value = [value] * groups
            if len(value) != groups:
                raise ValueError(f"{name}: {len(value)} values, and the optimizer has {groups} groups")
            setattr(self, name, list(value))

    def _refuse_zero(self, name):
        value = getattr(self, name)
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"{name}={value!r}: must be a whole number above 0")

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
        following = self.last_batch_iteration + 1
        self.last_batch_iteration = following if last_batch_iteration is None else last_batch_iteration
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

    takes = """lr_range_test_min_lr=0.001 lr_range_test_step_size=2000 lr_range_test_step_rate=1.0
        lr_range_test_staircase=False"""

    def _prepare(self):
        self._spread("lr_range_test_min_lr")
        self._refuse_zero("lr_range_test_step_size")

    def get_lr(self) -> list[float]:
        passed = float(self.last_batch_iteration + 1) / self.lr_range_test_step_size
        increase = 1 + self.lr_range_test_step_rate * (math.floor(passed) if self.lr_range_test_staircase else passed)
        return [rate * increase for rate in self.lr_range_test_min_lr]


class OneCycle(_Schedule):
    """Raises and lowers the rates once, and then lets them decay. The momentum goes the other way."""

    takes = """cycle_min_lr cycle_max_lr decay_lr_rate=0.0 cycle_first_step_size=2000 cycle_second_step_size=None
        cycle_first_stair_count=0 cycle_second_stair_count=None decay_step_size=0 cycle_momentum=True
        cycle_min_mom=0.8 cycle_max_mom=0.9 decay_mom_rate=0.0"""
    cycle_momentum: bool

    def _prepare(self):
        first, second, stairs = self.cycle_first_step_size, self.cycle_second_step_size, self.cycle_second_stair_count
        self.first, self.second = float(first), float(first if second is None else second)
        if self.first <= 0 or self.second < 0:
            raise ValueError("cycle_first_step_size must be above 0, and cycle_second_step_size 0 or more")
        self.total = self.first + self.second
        self.stairs = self.cycle_first_stair_count, self.cycle_first_stair_count if stairs is None else stairs
        self._spread("cycle_min_lr", "cycle_max_lr", "cycle_min_mom", "cycle_max_mom")
        self.cycle_momentum = self.cycle_momentum and "betas" in self.optimizer.defaults
        if self.last_batch_iteration == -1:
            self._write_momenta(self.cycle_min_mom)

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
            return _between(self.cycle_min_lr, self.cycle_max_lr, self._height())
        return [low / (1 + self.decay_lr_rate * decayed) for low in self.cycle_min_lr]

    def get_mom(self) -> list[tuple[float, float]]:
        """The betas of each group."""
        return [(momentum, 0.99) for momentum in self._momenta()]

    def _momenta(self):
        decayed = self._decayed()
        if decayed is None:
            return _between(self.cycle_max_mom, self.cycle_min_mom, self._height())
        return [high * (1 + self.decay_mom_rate * decayed) for high in self.cycle_max_mom]

    def step(self, batch_iteration: int | None = None) -> None:
        super().step(batch_iteration)
        self._write_momenta(self._momenta())


class WarmupLR(_Schedule):
    """Raises the rates from the least to the largest, and keeps them there."""

    takes = "warmup_min_lr=0.0 warmup_max_lr=None warmup_num_steps=1000 warmup_type='log'"
    warmup_num_steps: int
    warmup_max_lr: Any

    def _prepare(self):
        self._refuse_zero("warmup_num_steps")
        self.warmup_num_steps = max(2, self.warmup_num_steps)
        if self.warmup_type not in ("log", "linear"):
            say_once(f"warmup_type: {self.warmup_type!r} is neither log nor linear: log is used, as DeepSpeed does")
        self._prepare_rates([float(group["lr"]) for group in self.optimizer.param_groups])

    def _prepare_rates(self, own):
        """own: the rates that the groups have."""
        self.warmup_max_lr = own if self.warmup_max_lr is None else self.warmup_max_lr
        self._spread("warmup_min_lr", "warmup_max_lr")

    def _progress(self):
        """The progress of the warmup, 0 to 1, and then what follows it, 1 to 0."""
        if self.last_batch_iteration >= self.warmup_num_steps:
            return self._after(self.last_batch_iteration - self.warmup_num_steps)
        if self.warmup_type == "linear":
            return self.last_batch_iteration / self.warmup_num_steps
        return 1.0 / math.log(self.warmup_num_steps) * math.log(self.last_batch_iteration + 1)

    def _after(self, steps):
        return 1.0

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < 0:
            return list(self.warmup_min_lr)
        return _between(self.warmup_min_lr, self.warmup_max_lr, self._progress())


class WarmupDecayLR(WarmupLR):
    """Raises the rates like WarmupLR, and then lowers them to 0 by total_num_steps."""

    takes = "total_num_steps warmup_min_lr=0.0 warmup_max_lr=0.001 warmup_num_steps=1000 warmup_type='log'"

    def _after(self, steps):
        of = self.total_num_steps - self.warmup_num_steps
        return max(0.0, float(of - steps) / float(max(1.0, of)))


class WarmupCosineLR(WarmupLR):
    """Raises the rates from a fraction of the optimizer's own up to these, and then lowers them along a cosine."""

    takes = """total_num_steps warmup_min_ratio=0.0 warmup_num_steps=1000 cos_min_ratio=0.0001
        warmup_type='log'"""

    def _prepare_rates(self, own):
        self.org_lrs = own

    def get_lr_ratio(self) -> float:
        if self.last_batch_iteration < 0:
            return 0.0
        if self.last_batch_iteration < self.warmup_num_steps:
            return self.warmup_min_ratio + self._progress() * (1.0 - self.warmup_min_ratio)
        passed = self.last_batch_iteration - self.warmup_num_steps + 1
        progress = min(1.0, passed / max(1, self.total_num_steps - self.warmup_num_steps))
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * (1 + math.cos(math.pi * progress)) / 2)

    def get_lr(self) -> list[float]:
        return [rate * self.get_lr_ratio() for rate in self.org_lrs]
