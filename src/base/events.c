/* Waits for events of devices, with a time limit: an event of a lost device never passes. */
#include <errno.h>

#include "base/diag.h"
#include "longshore/device.h"

static uint64_t timeout_of(const struct shore_device *device) {
    return device->timeout_ns ? device->timeout_ns : SHORE_DEVICE_TIMEOUT_NS;
}

int shore_device_wait(struct shore_device *device, struct shore_event event, struct shore_diag *diag) {
    if (!event.stream) return 0;
    int rc = device->lost ? -ETIMEDOUT : device->wait(device->ctx, event, timeout_of(device), diag);
    if (rc != -ETIMEDOUT) return rc;
    device->lost = true;
    shore__fail(
        diag, rc,
        "the device is lost: it has not finished its work within %g seconds; the state stays at the last commit",
        (double)timeout_of(device) * 1e-9);
    return shore__advise(diag, rc, SHORE_ADVICE_DEVICE_TIMEOUT, NULL);
}

bool shore_device_passed(struct shore_device *device, struct shore_event event) {
    if (!event.stream) return true;
    return !device->lost && device->wait(device->ctx, event, 0, NULL) != -ETIMEDOUT;
}
