/* What waits for events tells a device's watch of them: see longshore/device.h. */
#ifndef SHORE_BASE_EVENTS_H
#define SHORE_BASE_EVENTS_H

#include "longshore/device.h"

/* The watch of the device, if it has one, waits for this event, too. Events are noted in the order of these calls. */
void shore__device_expect(struct shore_device *device, struct shore_event event);

#endif
