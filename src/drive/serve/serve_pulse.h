/* Signs of life while a server works on a request before a drive is open, when no other thread writes. */
#ifndef SHORE_DRIVE_SERVE_SERVE_PULSE_H
#define SHORE_DRIVE_SERVE_SERVE_PULSE_H

#include "drive/serve/serve_session.h"

struct serve_pulse {
    struct session *session;
    pthread_t thread;
    pthread_mutex_t lock; /* also guards sending on the connection */
    pthread_cond_t due;
    bool stop;
};

int shore__serve_pulse_start(struct serve_pulse *p, struct session *s, struct shore_diag *diag);
/* Sends a frame in between. */
void shore__serve_pulse_send(struct serve_pulse *p, const struct shore__frame *frame);
/* Stops the signs of life: the caller may write again. */
void shore__serve_pulse_stop(struct serve_pulse *p);

#endif
