/* Names of a hub, and addresses, given where something on this machine is meant. */
#ifndef SHORE_FILES_HUB_H
#define SHORE_FILES_HUB_H

#include "longshore/error.h"

enum shore__hub_kind { SHORE__HUB_MODEL, SHORE__HUB_DATA };

/* SHORE_EMISSING, with what gets it, if nothing is at path and it looks like a name of a hub ("Qwen/Qwen2.5-0.5B"; of a
 * model also one without a slash) or an address ("https://..."). Otherwise 0: who opens it says what is wrong. flag:
 * "--model", or "" of a plain word. */
int shore__hub_refuse(const char *flag, const char *path, enum shore__hub_kind kind, struct shore_diag *diag);

#endif
