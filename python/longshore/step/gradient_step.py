"""What becomes of the gradients of one open run's steps: include/longshore/step.h. A block is a unit of it, and a
page."""

from .. import forks, native
from ..interrupts import whole
from ..native import ffi, lib


@ffi.callback("void(void *, uint32_t)")
def _leave(ctx, number):
    step = ffi.from_handle(ctx)
    step.kept(lambda: step.streams.part_with(number))


@ffi.callback("int(void *, uint32_t, uint32_t, struct shore_update *, struct shore_diag *)")
def _encode(ctx, number, segment, update, diag):
    step = ffi.from_handle(ctx)
    return step.kept(lambda: step.encode(number, update))


class Step:
    # encode(number, request): fills what is sent instead of a block's gradients; SHORE_STEP_WHOLE: they go
    encode = None

    def __init__(self, streams, state, encode=None, **options):
        """streams: whose pages are open. options: as of struct shore_step_options."""
        self.streams, self.encode, self._failure = streams, encode, None
        units = ffi.new("struct shore_step_unit[]", len(streams.blocks))
        for number, unit in enumerate(units):
            count = state.layout.segments[number]
            unit.block, unit.count, unit.nparts = number, count, 1
            unit.part[0].page, unit.part[0].count = number, count
        self._handle = ffi.new_handle(self)
        options = native.new(
            "struct shore_step_options", units=units, nunits=len(units), keeps_made=state.away, leave=_leave,
            encode=_encode if encode else ffi.NULL, ctx=self._handle, **options)
        self.c = ffi.gc(native.made("struct shore_step *", lib.shore_step_open, state.fleet, streams.pages, options),
                        lib.shore_step_close)
        forks.leave_in_children(self)

    def leave_to_parent(self):
        ffi.gc(self.c, None)

    def close(self):
        ffi.release(self.c)
        self._handle = None

    def kept(self, what):
        """what(), called from within the library, which no exception passes through: call() raises it."""
        try:
            return what()
        except BaseException as failure:
            self._failure = self._failure or failure
            return lib.SHORE_EUSAGE

    @whole
    def call(self, function, *arguments):
        """Raises what it failed with, or what was raised within."""
        try:
            with self.streams.lock:
                native.call(function, self.c, *arguments, what="the step cannot be made")
        finally:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    @whole
    def tell(self, function, *arguments):
        """The same of what does not fail. Returns what it returns."""
        with self.streams.lock:
            return function(self.c, *arguments)

    def add(self, number, gather, more):
        """gather: all of a block's gradients, as of State.gather(). more: another pass changes them."""
        items, count = gather
        gradient = native.new("struct shore_step_gradient", gather=items, ngather=count, more=more)
        self.call(lib.shore_step_add, number, gradient)

    def groups(self, number, hypers):
        native.check(self.tell(lib.shore_step_groups, number, hypers, len(hypers)))

    def complete(self, number, more_bytes):
        """Whether a block's gradients leave memory."""
        way = ffi.new("enum shore_step_way *")
        self.call(lib.shore_step_complete, number, more_bytes, way)
        return way[0] == lib.SHORE_STEP_ASIDE

    def is_aside(self, number):
        """Whether a block's gradients lie on the drives, when those that leave memory have left."""
        aside = ffi.new("bool *")
        self.call(lib.shore_step_aside, number, aside)
        return aside[0]

    def send_again(self):
        """Whether the step that was made last was known still, and has been sent once more."""
        known = ffi.new("bool *")
        self.call(lib.shore_step_send_again, known)
        return known[0]
