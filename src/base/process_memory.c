/* Reads this process's resident memory from the kernel. */
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/units.h"

static uint64_t status_kib(const char *status, const char *key) {
    const char *line = strstr(status, key);
    return line ? strtoull(line + strlen(key), NULL, 10) * 1024 : 0;
}

void shore__resident_bytes(uint64_t *now, uint64_t *peak) {
    char status[4096];
    bool known = shore__read_text("/proc/self/status", status, sizeof status);
    if (now) *now = known ? status_kib(status, "\nVmRSS:") : 0;
    if (peak) *peak = known ? status_kib(status, "\nVmHWM:") : 0;
}
