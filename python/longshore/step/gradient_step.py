"""Python's side of the C library's step (include/longshore/step.h), which holds, spills and sends gradients.

A block of the model is one page, and what this process's drives have of it is one unit of the step."""

from .. import forks, native
from ..interrupts import whole
from ..native import ffi, lib


@ffi.callback("void(void *, uint32_t)")
def _leave(ctx, number):
    step = ffi.from_handle(ctx)
    step.guard(lambda: step.streams.before_update(number))


@ffi.callback("int(void *, uint32_t, uint32_t, struct shore_update *, struct shore_diag *)")
def _encode(ctx, number, segment, update, diag):
    step = ffi.from_handle(ctx)
    return step.guard(lambda: step.encode(number, update))


@ffi.callback("int(void *, uint32_t, uint64_t, struct shore_diag *)")
def _landed(ctx, number, tag, diag):
    step = ffi.from_handle(ctx)
    return step.guard(lambda: step.landed(tag)) or lib.SHORE_STEP_TAKEN


class Step:
    """An open struct shore_step."""

    # encode(number, request): fills in codes to send for a block; returns SHORE_STEP_WHOLE to send its gradients
    encode = None
    # landed(tag): a gradient that land() was called for is here
    landed = None

    def __init__(self, streams, state, encode=None, landed=None, **options):
        """streams: their pages are open. options: fields of struct shore_step_options."""
        self.streams, self.encode, self.landed, self._failure = streams, encode, landed, None
        units = ffi.new("struct shore_step_unit[]", len(streams.blocks))
        for number, unit in enumerate(units):
            segment, count = state.own(number)
            unit.block, unit.segment, unit.count, unit.nparts = number, segment, count, 1
            unit.part[0].page, unit.part[0].segment, unit.part[0].count = number, segment, count
        self._handle = ffi.new_handle(self)
        options = native.new(
            "struct shore_step_options",
            units=units,
            nunits=len(units),
            keeps_made=state.away,
            leave=_leave,
            encode=_encode if encode else ffi.NULL,
            device=streams.device.c if streams.device else ffi.NULL,
            landed=_landed if landed else ffi.NULL,
            ctx=self._handle,
            **options,
        )
        self.c = ffi.gc(
            native.made("struct shore_step *", lib.shore_step_open, state.fleet, streams.pages, options),
            lib.shore_step_close,
        )
        forks.leave_in_children(self)

    def leave_to_parent(self):
        ffi.gc(self.c, None)

    def close(self):
        ffi.release(self.c)
        self._handle = None

    def guard(self, what):
        """Calls what() for a callback of the library. No exception may pass through C: call() raises it later."""
        try:
            return what()
        except BaseException as failure:
            self._failure = self._failure or failure
            return lib.SHORE_EUSAGE

    @whole
    def call(self, function, *arguments):
        """Calls a function of step.h that can fail. Raises its error, or the exception of a callback."""
        try:
            with self.streams.lock:
                native.call(function, self.c, *arguments, what="the step cannot be made")
        finally:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def land_at(self, nbytes):
        """Waits for room in landing_bytes. Returns its offset, which the next land() takes."""
        at = ffi.new("uint64_t *")
        self.call(lib.shore_step_land_at, nbytes, at)
        return at[0]

    def land(self, number, tag, until):
        """A gradient of a block is on its way, and here once the event has passed."""
        self.call(lib.shore_step_land, number, native.new("struct shore_step_landing", tag=tag, until=until))

    @whole
    def tell(self, function, *arguments):
        """Calls a function of step.h that cannot fail. Returns its result."""
        with self.streams.lock:
            return function(self.c, *arguments)

    def add(self, number, gather, more):
        """Adds a block's gradients. gather: as State.gather() returns them; more: whether another pass changes them."""
        items, count = gather
        gradient = native.new("struct shore_step_gradient", gather=items, ngather=count, more=more)
        self.call(lib.shore_step_add, number, gradient)

    def groups(self, number, hypers):
        """Sets the hyperparameters of a block's tensors: struct shore_hyper of each."""
        native.check(self.tell(lib.shore_step_groups, number, hypers, len(hypers)))

    def complete(self, number, more_bytes):
        """All of a block's gradients were added. more_bytes: as in step.h. Returns whether they are being spilled."""
        way = ffi.new("enum shore_step_way *")
        self.call(lib.shore_step_complete, number, more_bytes, way)
        return way[0] == lib.SHORE_STEP_ASIDE

    def is_spilled(self, number):
        """Waits for a spill of a block's gradients to end. Returns whether they are on the drives."""
        aside = ffi.new("bool *")
        self.call(lib.shore_step_aside, number, aside)
        return aside[0]

    def send_again(self):
        """Sends the last step once more, if its gradients are still known. Returns whether they were."""
        known = ffi.new("bool *")
        self.call(lib.shore_step_send_again, known)
        return known[0]
