/* For how long something has had work: the union of what overlaps. */
#ifndef SHORE_BASE_BUSY_H
#define SHORE_BASE_BUSY_H

#include <pthread.h>
#include <stdint.h>

struct shore__busy {
    pthread_mutex_t lock;
    uint64_t under_way, since_ns, busy_ns;
};

void shore__busy_init(struct shore__busy *busy);
void shore__busy_fini(struct shore__busy *busy);
/* Threading: any, here and below. Each begin has its end. */
void shore__busy_begin(struct shore__busy *busy);
void shore__busy_end(struct shore__busy *busy);
/* Until now, with what is under way. */
uint64_t shore__busy_ns(struct shore__busy *busy);

#endif
