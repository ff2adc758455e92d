/* Refuses a hub's names and addresses where a path on this machine is expected. */
#ifndef SHORE_FILES_HUB_H
#define SHORE_FILES_HUB_H

#include "longshore/error.h"

enum shore__hub_kind { SHORE__HUB_MODEL, SHORE__HUB_DATA };

/* SHORE_EMISSING, with the command that downloads it, if nothing is at path and it looks like a hub's name
 * ("Qwen/Qwen2.5-0.5B"; for a model also without a slash) or an address ("https://..."). Otherwise 0: opening it
 * reports any other error. flag: "--model", or "" for a plain word. */
int shore__hub_refuse(const char *flag, const char *path, enum shore__hub_kind kind, struct shore_diag *diag);

#endif
