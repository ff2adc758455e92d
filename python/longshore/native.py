"""Calls the engine's C functions: turns their codes into exceptions, waits for requests, converts sizes and texts.

It uses only ``include/longshore/*.h``. No drive thread calls back into Python: requests complete the engine's own
``shore_wait``. Only the watch of a device does, to wait for an event (``model/device.py``).
"""

import errno
import os
from typing import NamedTuple

from . import errors, forks
from ._native import ffi, lib
from .interrupts import whole

SEGMENT = lib.SHORE_SEGMENT_ELEMS

_BY_CODE = {
    lib.SHORE_EBUDGET: errors.BudgetError,
    lib.SHORE_EBUSY: errors.BusyError,
    lib.SHORE_EMISSING: errors.MissingError,
    lib.SHORE_EEXISTS: errors.ExistsError,
    lib.SHORE_ENONFINITE: errors.NotFiniteError,
    -errno.EREMOTEIO: errors.RankError,
}


# Advice about an error in Python's words; {} is the name that the library gives.
ADVICE = {
    lib.SHORE_ADVICE_OVERWRITE: "overwrite=True replaces what is there",
    lib.SHORE_ADVICE_GO_ON: "longshore.resume({!r}) goes on with it, overwrite=True replaces it",
    lib.SHORE_ADVICE_MOVED: "if it is elsewhere now, let its name lead there (a symbolic link, or HostName in "
    "~/.ssh/config)",
    lib.SHORE_ADVICE_ACCEPT_STEP: "longshore.resume(RUN, accept_step={}) goes on from there, if that step is whole",
    lib.SHORE_ADVICE_NOT_A_COPY: "if it is the run itself, `longshore snapshot {} NAME --not-a-copy` says so",
    lib.SHORE_ADVICE_MAKE_RUN: "longshore.wrap() makes one",
    lib.SHORE_ADVICE_THREADS: "let the kernel allow io_uring, or build without it",
    lib.SHORE_ADVICE_SNAPSHOTS: "`longshore snapshots {}` lists those there are",
    lib.SHORE_ADVICE_REMOVE_SNAPSHOT: "`longshore snapshot {} --remove` removes it",
    lib.SHORE_ADVICE_ROLL_BACK: "or `longshore rollback {} NAME` goes back to another snapshot",
    lib.SHORE_ADVICE_REMOVE_RUN: "`longshore remove {}` removes it",
    lib.SHORE_ADVICE_TOKENIZER: "put the tokenizer's files beside the model",
    lib.SHORE_ADVICE_DEVICE_TIMEOUT: "longshore.resume() goes on from there, and device_timeout= gives it longer",
}


def text(value):
    """A C string as str; None for NULL."""
    return None if value == ffi.NULL else ffi.string(value).decode("utf-8", "replace")


class Lane(NamedTuple):
    """What works at the same time as others during a step, in the words of lane.h."""

    name: str  # in metrics and JSON
    work: str  # for people: its work
    bound: str  # for people: what a step is bound by whose longest work this is


def bound(lane):
    """The Lane of a number; SHORE_LANES, where a step waits so that drives do not write too much in a day, too."""
    return Lane(*(text(say(lane)) for say in (lib.shore_lane_name, lib.shore_lane_work, lib.shore_lane_bound)))


LANES = tuple(map(bound, range(lib.SHORE_LANES)))


def new(struct_name, **members):
    """A zeroed struct with its ``size`` set, from which the library knows the struct's version."""
    struct = ffi.new(f"{struct_name} *")
    struct.size = ffi.sizeof(struct_name)
    for name, value in members.items():
        setattr(struct, name, value)
    return struct


def fail(code, diag=None, what=""):
    """Raises the exception of an error code, with the diagnostic's text and its advice in Python's words."""
    said = text(diag.text) if diag is not None else ""
    if not said:
        said = f"{what}: {text(lib.shore_error_text(code))}" if what else text(lib.shore_error_text(code))
    words = ADVICE.get(diag.advice) if diag is not None else None
    if words:
        said += "; " + words.format(text(diag.of))
    raise error_of(code, said)


def error_of(code, said):
    """The exception of an error code, which says this."""
    return _BY_CODE.get(code, errors.LongshoreError)(said, code)


def check(code, diag=None, what=""):
    """Raises the exception of an error code; 0 is success."""
    if code:
        fail(code, diag, what)


def call(function, *arguments, what=""):
    """Calls a C function whose last parameter is a diagnostic. Raises if it fails."""
    diag = ffi.new("struct shore_diag *")
    check(function(*arguments, diag), diag, what)


def made(kind, function, *arguments):
    """Calls a C function that makes an object, and returns the object: the parameter before the diagnostic."""
    out = ffi.new(f"{kind} *")
    call(function, *arguments, out)
    return out[0]


def filled(kind, function, *arguments):
    """Calls a C function whose last parameter is a struct to fill in, and returns the struct."""
    out = new(kind)
    check(function(*arguments, out))
    return out


def ask(function, *arguments):
    """Calls a C function that returns a number, and returns it. A negative number is an error, and raises."""
    diag = ffi.new("struct shore_diag *")
    answer = function(*arguments, diag)
    if answer < 0:
        fail(answer, diag)
    return answer


class Wait:
    """A pending request, which keeps alive the memory that it uses. ``result()`` waits for it; ``done`` does not."""

    __slots__ = ("_wait", "_keeps", "_what", "_process", "_charges", "_lane")

    def __init__(self, submit, *arguments, keeps=(), what="", charges=None, lane=lib.SHORE_LANE_DRIVE_READ):
        """charges: the Charges of the run whose drives it asks. lane: that a wait for it is charged to."""
        self._process, self._wait, self._charges, self._lane = os.getpid(), None, charges, lane
        self._keeps, self._what = (arguments, keeps), what
        wait = ffi.new("struct shore_wait *")
        with whole:  # a signal between submit() and the assignment would leave a request that nobody waits for
            lib.shore_wait_init(wait)
            code = submit(*arguments, lib.shore_wait_completion(wait))
            if code:
                lib.shore_wait_end(wait, code)
                lib.shore_wait(wait, ffi.NULL)
            else:
                self._wait = wait
        if code:
            fail(code, None, what)

    @property
    def done(self):
        return self._wait is None or bool(lib.shore_wait_is_done(self._wait))

    def result(self):
        """Waits for the request. Raises if it failed."""
        if self._wait is None:
            return
        if self._process != os.getpid():
            forks.refuse(self._what or "a request")
        diag = ffi.new("struct shore_diag *")
        check(self._end(diag), diag, self._what)

    @whole
    def _end(self, diag):
        meter = ffi.NULL if self._charges is None else self._charges.meter
        code = lib.shore_meter_wait(meter, self._lane, self._wait, diag)
        self._wait = self._keeps = None
        return code

    def settle(self):
        """Waits, and returns the error code instead of raising it. In a forked child it returns 0 at once."""
        if self._wait is None or self._process != os.getpid():
            return 0
        return self._end(ffi.NULL)

    def __del__(self):
        # the request's memory must outlive the request
        if getattr(self, "_wait", None) is not None:
            self.settle()


def size(value, name="memory"):
    """Bytes of a number or a text such as "8GiB", "512MiB", "1.5G". Raises ValueError for other values."""
    whole_number = isinstance(value, float) and value.is_integer()
    nbytes = ffi.new("uint64_t *")
    code = lib.shore_size_parse(str(int(value) if whole_number else value).strip().encode(), nbytes)
    if code or not 0 < nbytes[0] < 2**63:
        raise ValueError(
            f"{name}={value!r} is not a size; write '8GiB', '512MiB' or a number of bytes, larger than 0 and smaller "
            "than 8 EiB"
        )
    return nbytes[0]


def readable(number, up=False):
    """A size for people: "1.50 GiB". up: never rounded down, for minimums."""
    out = ffi.new("char[]", 32)
    return text(lib.shore_size_say(int(number), up, out, len(out)))


def seconds(value):
    """A time for people: "1.2 s"."""
    out = ffi.new("char[]", 32)
    return text(lib.shore_seconds_say(value, out, len(out)))


def first_line(failure):
    """What an exception of PyTorch's says, without the places in its code that follow."""
    return str(failure).strip().partition("\n")[0]


def path_bytes(path):
    return os.fsencode(os.fspath(path))
