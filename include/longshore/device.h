/* Devices: memory that is not the host's, and streams. A call on a stream may run long after it has returned.
 *
 * A program describes its device with six functions. Longshore moves data between host and device with them. It waits
 * for no transfer on the spot: it records an event behind it, and looks at the event later.
 *
 *     stream    put page 2 ── event ── put page 3 ── event
 *                               │ follow
 *     stream    ... layer 1 ────┴─ layer 2 ── get gradient ── event: until then the host may not look at it
 *
 * shore_shown_* show pages (longshore/pages.h) to a device, in buffers of its own: the next page is put there while
 * this one is computed with.
 *
 * Who looks at events: each call of the library that needs to know. A device may also have a watch, a thread of the
 * library's that waits for the events that others will ask for, one after the other. It calls the device's wait, takes
 * a lock of its own alone, and enters nothing else.
 *
 * Threading: one thread at a time, unless a function says otherwise.
 */
#ifndef LONGSHORE_DEVICE_H
#define LONGSHORE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* A moment of a stream: it has passed when every earlier call on the stream has run. */
struct shore_event {
    void *stream;      /* the device's; NULL: it has passed */
    uint64_t position; /* the device's: on one stream, a later event has a higher one */
};

struct shore_watch;

/* Addresses of the device are numbers; 0 is none. put, get and follow return 0, or a negative code if the call cannot
 * be made. Later errors come from wait. */
struct shore_device {
    size_t size; /* sizeof(struct shore_device) */
    void *ctx;
    /* Copy between the device and host memory that it can reach ("pinned"), on a stream. */
    int (*put)(void *ctx, void *stream, uint64_t to, const void *from, size_t bytes);
    int (*get)(void *ctx, void *stream, void *to, uint64_t from, size_t bytes);
    /* Records the present moment of a stream. */
    struct shore_event (*record)(void *ctx, void *stream);
    /* Later calls on the stream begin when the event has passed. */
    int (*follow)(void *ctx, void *stream, struct shore_event event);
    /* Waits until the event has passed: returns 0, or the first error of the stream's calls, which stays. -ETIMEDOUT:
     * it has not passed after timeout_ns; with 0 the call only looks. If the device has a watch, it may wait for
     * longer. Threading: any. */
    int (*wait)(void *ctx, struct shore_event event, uint64_t timeout_ns, struct shore_diag *diag);
    /* Widens bf16 values to fp32, both on the device, on a stream. from may be the upper half of to: the call reads a
     * value before it writes over it. NULL: no pool widens. */
    int (*widen)(void *ctx, void *stream, uint64_t to, uint64_t from, size_t elems);
    uint64_t timeout_ns; /* after which a device that does not go on is lost; 0: SHORE_DEVICE_TIMEOUT_NS */
    uint64_t lost;       /* 1: it is lost: shore_device_wait() says so, and waits no more */
    /* How often shore_device_wait() has waited. Waits for events of a watch are one until it is asked for others. */
    uint64_t waits;
    struct shore_watch *watch; /* the library's: NULL, or see shore_device_watch() */
};

#define SHORE_DEVICE_TIMEOUT_NS 300000000000 /* five minutes */

/* Waits for an event, no longer than the device's timeout, and not at all once the device is lost. With a watch, it
 * waits until the watch has noted the event, no longer than the timeout after the last one. Threading: any, if the
 * device's wait allows that. Errors: -ETIMEDOUT (the device is lost), those of its stream. */
int shore_device_wait(struct shore_device *device, struct shore_event event, struct shore_diag *diag);

/* Whether an event has passed: shore_device_wait() would not wait. Threading: as above. */
bool shore_device_passed(struct shore_device *device, struct shore_event event);

/* Gives the device a watch. It has none yet. Errors: -ENOMEM, -EAGAIN (the system has no thread). */
int shore_device_watch(struct shore_device *device, struct shore_diag *diag);

/* Ends the watch, if there is one, once the event that it waits for has passed, or the device's timeout is over. Nobody
 * waits for events. Threading: any. The device's wait may call it, too, on the watch's own thread, which ends later. */
void shore_device_unwatch(struct shore_device *device);

/* ---- pages on a device ------------------------------------------------------------------------------------------- */

struct shore_pages;
struct shore_shown;

/* Buffers on the device that pages use in turn; none: the device sees the host's memory, and pages are used where they
 * are. */
struct shore_shown_pool {
    const uint64_t *buffers;
    uint32_t nbuffers;
    bool widens; /* pages of bf16 become fp32 there, so that a buffer has twice the bytes of its page */
};

/* Zero-initialise. */
struct shore_shown_options {
    size_t size; /* sizeof(struct shore_shown_options) */
    struct shore_device *device;
    void *copying; /* the stream for putting pages, if there are buffers */
    uint32_t npools;
    const struct shore_shown_pool *pools;
    /* Where the device does not reach all memory of pages ("pinned"): the range that it reaches, and a ring elsewhere
     * in memory that it reaches. Pages outside of the range are copied into the ring by the caller's thread, in parts
     * of a quarter of it, and put from there. NULL: it reaches all. */
    const void *reached;
    uint64_t reached_bytes;
    void *ring;
    uint64_t ring_bytes;
};

/* Begins to show pages to a device. Ownership: *out is the caller's, for shore_shown_close(); pages, device and streams
 * are borrowed until then, as is the ring; options and their lists during the call. Errors: -EINVAL (options.size; a
 * pool widens, and the device cannot; a ring of less than 256 bytes), -ENOMEM. */
int shore_shown_open(struct shore_pages *pages, const struct shore_shown_options *options, struct shore_shown **out,
                     struct shore_diag *diag);

/* Releases every page, once it has been put. Calls on the streams may still run. NULL is allowed. */
void shore_shown_close(struct shore_shown *shown);

/* Gives a page to compute with on a stream, until its leave or its release. It may be given on several streams. *there:
 * its address on the device; 0 if the pool has no buffers: then *host is the page. Errors: -EBUSY (all buffers of the
 * pool are given), those of shore_pages_get(), and of the device. */
int shore_shown_get(struct shore_shown *shown, uint32_t pool, uint32_t page, void *stream, const void **host,
                    uint64_t *there, struct shore_diag *diag);

/* Begins to fetch a page and, if it is there, to put it into a buffer that is not given, as far as this needs no
 * waiting but for a part of the ring that is being put. */
void shore_shown_want(struct shore_shown *shown, uint32_t pool, uint32_t page);

/* No further calls compute with the page. Earlier ones may still run: what is put into its buffer next follows them, on
 * each stream that the page was given on. Until then the page stays in its buffer, and a get of the same step, or of a
 * later one into which the page was carried, puts nothing. */
void shore_shown_leave(struct shore_shown *shown, uint32_t pool, uint32_t page);

/* Leaves the page and forgets it, once it has been put: it may be updated. */
void shore_shown_release(struct shore_shown *shown, uint32_t pool, uint32_t page);

/* Waits until the device has all pages that are being put: no page is in use because of that. Pages that are given stay
 * so. */
void shore_shown_settle(struct shore_shown *shown);

/* Releases all pages. */
void shore_shown_release_all(struct shore_shown *shown);

#ifdef __cplusplus
}
#endif

#endif
