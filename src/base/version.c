#include "longshore/version.h"

#define TEXT(x) #x
#define JOINED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *shore_version(void) {
    return JOINED(SHORE_VERSION_MAJOR, SHORE_VERSION_MINOR, SHORE_VERSION_PATCH);
}
