"""What a forward pass draws, and where it leaves the random number generators of the script.

docs/python-internals.md has the rule under "Random numbers"."""

import collections
import ctypes
import hashlib
import itertools
import random
import sys
import threading

import torch

from . import device
from .forward_scope import checkpoint_that_saves

MOST_KNOWN = 1 << 14  # states of a generator that are remembered, over all engines


class _Torch:
    now, put = staticmethod(torch.get_rng_state), staticmethod(torch.set_rng_state)
    seed = staticmethod(torch.default_generator.manual_seed)

    @staticmethod
    def key(state):
        return ctypes.string_at(state.data_ptr(), state.nbytes)

    @staticmethod
    def move():
        torch.empty((), dtype=torch.int64, device="cpu").random_()


class _Python:
    now, put, seed, move = random.getstate, random.setstate, random.seed, random.random
    key = staticmethod(lambda state: state)


class _NumPy:
    @staticmethod
    def now():
        numpy = sys.modules.get("numpy")
        return numpy and numpy.random.get_state()

    @staticmethod
    def put(state):
        if state is not None:
            sys.modules["numpy"].random.set_state(state)

    @staticmethod
    def seed(number):
        numpy = sys.modules.get("numpy")
        if numpy is not None and numpy.random.get_state()[0] == "MT19937":
            numpy.random.seed(number % 2**32)

    @staticmethod
    def key(state):
        return state and (state[1].tobytes(), *state[2:])

    @staticmethod
    def move():
        sys.modules["numpy"].random.random_sample()


class _Devices:
    now, put = staticmethod(device.random_states), staticmethod(device.set_random_states)

    @staticmethod
    def seed(number):
        for kind in device.accelerators():
            getattr(torch, kind).manual_seed_all(number)

    @staticmethod
    def key(states):
        return tuple(_Torch.key(state) for each in states.values() for state in each)

    @classmethod
    def move(cls):
        cls.seed(_hashed(*cls.key(cls.now())))


_GENERATORS = (_Torch, _Python, _NumPy, _Devices)
# {hash of the state with which a pass began: the seed that the pass drew from; None: from that state itself}
_known: dict = {generator: collections.OrderedDict() for generator in _GENERATORS}


def _hashed(*parts):
    """A number below 2**56, the same in every process."""
    return int.from_bytes(hashlib.sha256(b"/".join(parts)).digest()[:7], "little")


def now():
    """The states of the random number generators of PyTorch, Python, NumPy and the devices."""
    return tuple(generator.now() for generator in _GENERATORS)


def put(states):
    """Restores what now() returned."""
    for generator, state in zip(_GENERATORS, states):
        generator.put(state)


def keys(states):
    """What now() returned, as values that can be compared."""
    return tuple(generator.key(state) for generator, state in zip(_GENERATORS, states))


def forget():
    """Forgets the states of passes: a run goes on with states of its own, on a way that passes may have gone before; or
    an engine opens, and no other is open."""
    for known in _known.values():
        known.clear()


def seed_of_run(taken):
    """The seed of a new run: PyTorch's, unless it is one of those taken."""
    first = torch.initial_seed()
    others = (_hashed(str(first).encode(), str(n).encode()) for n in itertools.count(1))
    return next(number for number in itertools.chain([first], others) if number not in taken)


def _seed(core, micro_batch):
    """The seed of a micro-batch's random numbers in the next step."""
    first, before = core.cycle.lineage
    return (first * 0x9E3779B97F4A7C15 + (before + core.state.step) * 0xBF58476D1CE4E5B9 + micro_batch) % 2**63


class _Draws:
    """What a pass draws from one generator."""

    def __init__(self, generator, number, known):
        """number: the seed to draw from if no earlier pass began with the generator's state; None: from the state.
        known: numbers of the generator's states, as in _known."""
        self.generator, self.before, self.known = generator, generator.now(), known
        self.key = self.begun = generator.key(self.before)
        if known and hash(self.key) in known:
            known.move_to_end(hash(self.key))
            number = known[hash(self.key)]
        self.number = number
        if number is not None:
            generator.seed(number)
            self.begun = generator.key(generator.now())

    def end(self, finished, outer):
        """Ends the pass. outer: the script's state meanwhile; None: the one before the pass, moved on if the pass drew.
        Returns whether it drew."""
        generator, own = self.generator, self.number is not None
        drew = finished and generator.key(generator.now()) != self.begun
        if drew:
            self.known[hash(self.key)] = self.number
            # in the ordinary loop, where those that end before have begun before, it begins with the state of now
            _known[generator][hash(self.key if outer is None else generator.key(outer))] = self.number
            if len(_known[generator]) > MOST_KNOWN:
                _known[generator].popitem(last=False)
        if own or outer is not None:
            generator.put(self.before if outer is None else outer)
            if drew:
                generator.move()
        return drew


class OwnRandom(threading.local):
    """The random numbers of the forward passes of an engine, in one thread."""

    turns = None  # the turns of micro-batches that run together; this thread computes one of them
    passes = 0  # numbered forward passes of that micro-batch
    known: dict = {}  # as _known, of that micro-batch alone
    _draws: tuple = ()  # of the pass that runs
    apart = False  # whether others take turns with that pass, so that the script's states wait in turns.outer_random
    numbered = False  # whether that pass has a number in its step
    first: tuple = None, ()  # a step, and the script's states when its first pass began
    left: tuple = ()  # the script's states after the last numbered pass

    def begin(self, core, training, forwards):
        """A forward pass of the whole model begins. forwards: its number in its step, if it is in training and has
        gradients; otherwise None, and it draws from the script's generators."""
        self.end(False)  # of an interrupted forward pass
        turns, self.numbered = self.turns, forwards is not None
        if turns is not None and not turns.sequential:
            if (
                training
                and turns.core.together.draws is not False
                and (forwards is None or checkpoint_that_saves() is not None or self._is_told(turns))
            ):
                turns.sequential = True  # the order of what passes and the script draw is that of the ordinary loop
            elif forwards is None:
                return
        begins_step = turns is None and forwards == 0
        if begins_step:
            self._again(core)
        if turns is not None and forwards is not None:
            forwards = turns.local.number + turns.count * self.passes
            self.passes += 1
        number = None if forwards is None else _seed(core, core.cycle.micro_batches.number(forwards))
        self.apart = turns is not None and not turns.sequential
        if self.apart and not self.known:
            self.known = {generator: collections.OrderedDict() for generator in _GENERATORS}
        known = self.known if self.apart else _known
        self._draws = tuple(_Draws(generator, number, known[generator]) for generator in _GENERATORS)
        before = tuple(draws.before for draws in self._draws)
        if begins_step:
            self.first, self.left = (core.state.step, before), ()
        if self.apart:
            turns.outer_random = before

    def take(self, turns):
        """This thread computes one of the micro-batches of these turns."""
        self.turns = turns

    def begin_step(self, core):
        """The passes of a whole step begin, which run in threads of their own."""
        self._again(core)
        self.first, self.left = (core.state.step, now()), ()

    def end_step(self):
        """Their forward passes have ended."""
        self.left = now()

    def _again(self, core):
        """If the step that begins has begun before, was dropped, and the script has not touched its states since, it
        begins with the same states again: a step that is run again has the same bits."""
        step, states = self.first
        if step == core.state.step and keys(now()) == keys(self.left):
            put(states)

    def _is_told(self, turns):
        """Whether the script has drawn numbers or set a state since the last pass that was not this micro-batch's."""
        states = keys(now())
        others = any(
            hash(key) in _known[generator] and hash(key) not in self.known.get(generator, ())
            for generator, key in zip(_GENERATORS, states)
        )
        return others or states != turns.quiet and not self.known

    def end(self, finished):
        """The pass ends. Returns whether it drew any number; None if none has begun. finished: whether it has an
        output; otherwise the script's states are as before."""
        all_draws, self._draws = self._draws, ()
        outer = self.turns.outer_random if self.apart else [None] * len(all_draws)
        drew = [draws.end(finished, state) for draws, state in zip(all_draws, outer)]
        if self.numbered and finished and all_draws:
            self.left = tuple(draws.generator.now() if d else draws.before for draws, d in zip(all_draws, drew))
        if self.apart:
            self.apart, self.turns.outer_random = False, now()
            self.turns.quiet = keys(self.turns.outer_random)
        return any(drew) if all_draws else None


_copies = OwnRandom()  # of models that are copies of an engine's


def begin_copy(module, args, kwargs):
    """The forward of a copy of an engine's model begins."""
    _copies.begin(None, module.training, None)


def end_copy(module, args, output):
    """The forward of a copy of an engine's model ends."""
    _copies.end(output is not None)
