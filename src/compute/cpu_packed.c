/* Keeps weights packed, in the order that products read, until they change. */
#include "compute/cpu.h"

void shore__cpu_weights_changed(struct shore__compute *base) {
    struct shore__packed *p = &shore__cpu_of(base)->packed;
    p->count = 0;
    p->used = 0;
}

bool shore__same_product(const struct shore__product *a, const struct shore__product *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->a_transposed == b->a_transposed &&
           a->b_transposed == b->b_transposed && a->bias == b->bias && a->accumulate == b->accumulate &&
           a->f32_out == b->f32_out && a->pack == b->pack;
}

char *shore__cpu_packed_room(struct shore__cpu *c, const struct shore__product *of, const void *plain, size_t bytes,
                             bool *there) {
    struct shore__packed *p = &c->packed;
    *there = true;
    for (size_t i = 0; i < p->count; i++)
        if (p->of[i].plain == plain && shore__same_product(&p->of[i].product, of)) return p->of[i].packed;
    *there = false;
    if (of->pack != SHORE__PACK_WEIGHTS || p->count == SHORE__PACKED_MOST || bytes > p->bytes - p->used)
        return c->workspace;
    char *room = p->memory + p->used;
    p->used += bytes;
    p->of[p->count].product = *of;
    p->of[p->count].plain = plain;
    p->of[p->count++].packed = room;
    return room;
}
