#include "drive/link.h"

#include "drive/fleet/fleet.h"

void shore__link_count(struct shore_fleet *f, uint32_t drive, enum shore__link_class what, uint64_t bytes) {
    if (!(f->drives[drive]->ops->caps & SHORE__DRIVE_COUNTS_LINK)) f->link[what] += bytes;
}

void shore__link_ledger(const struct shore_fleet *f, struct shore_ledger *out) {
    out->link_in_gradients = f->link[SHORE__LINK_IN_GRADIENTS];
    out->link_in_compressed = f->link[SHORE__LINK_IN_COMPRESSED];
    out->link_out_params = f->link[SHORE__LINK_OUT_PARAMS];
    out->link_activations = f->link[SHORE__LINK_ACTIVATIONS];
    out->link_in_state = f->link[SHORE__LINK_IN_STATE];
    out->link_out_state = f->link[SHORE__LINK_OUT_STATE];
    out->link_out_gradients = f->link[SHORE__LINK_OUT_GRADIENTS];
    out->link_control = f->link[SHORE__LINK_CONTROL];
}
