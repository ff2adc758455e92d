#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/diag.h"
#include "base/units.h"
#include "report/report.h"

void shore__progress_init(struct shore__progress *p, uint64_t last_step, uint64_t budget_bytes) {
    *p = (struct shore__progress){.last_step = last_step, .budget_bytes = budget_bytes};
}

__attribute__((format(printf, 4, 5))) static void append(char *out, size_t bytes, size_t *used, const char *format,
                                                         ...) {
    if (*used + 1 >= bytes) return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out + *used, bytes - *used, format, args);
    va_end(args);
    if (n > 0) *used = (size_t)n < bytes - *used ? *used + (size_t)n : bytes - 1;
}

static double percent(double part, double whole) {
    return whole > 0 ? 100.0 * part / whole : 0;
}

double shore__progress_jump(struct shore__progress *p, double norm) {
    const double weight = 0.1, far = 50;
    if (!isfinite(norm)) return 0;
    double times = p->mean_norm > 0 ? norm / p->mean_norm : 0;
    p->mean_norm = p->mean_norm > 0 ? (1 - weight) * p->mean_norm + weight * norm : norm;
    return times >= far ? times : 0;
}

bool shore__progress_due(struct shore__progress *p, const struct shore__pace *pace, uint64_t step, uint64_t now_ns) {
    bool first = p->logged_ns == 0, last = step == p->last_step;
    bool due = pace->steps ? step % pace->steps == 0 : (double)(now_ns - p->logged_ns) >= pace->seconds * 1e9;
    if (first || due) p->logged_ns = now_ns;
    return first || last || due;
}

const char *shore__progress_line(struct shore__progress *p, const struct shore_step_report *r, char *out,
                                 size_t bytes) {
    /* A plain mean at first, without the first step, which makes code and opens files. */
    uint64_t seen = p->steps++;
    double weight = seen < 2 ? 1 : seen < 10 ? 1.0 / (double)seen : 0.1;
    p->smooth_seconds = (1 - weight) * p->smooth_seconds + weight * r->step_seconds;
    size_t used = 0;
    if (bytes > 0) out[0] = 0;
    if (r->emulated) append(out, bytes, &used, "emulated ");
    append(out, bytes, &used, "step %llu/%llu", (unsigned long long)r->step, (unsigned long long)p->last_step);
    if (r->slow_drive) /* early: a terminal shows the start of the line */
        append(out, bytes, &used, "  slow: %s works %.1f times as long as the others", shore__shown(r->slow_drive).text,
               r->slow_factor);
    if (isnan(r->loss)) /* printf would show its sign, which means nothing */
        append(out, bytes, &used, "  loss nan");
    else
        append(out, bytes, &used, "  loss %.4f", r->loss);
    if (!isnan(r->val_loss)) append(out, bytes, &used, "  val %.4f", r->val_loss);
    append(out, bytes, &used, "  %s/step", shore__format_seconds(r->step_seconds).text);
    if (r->step < p->last_step)
        append(out, bytes, &used, "  ETA %s",
               shore__format_seconds(p->smooth_seconds * (double)(p->last_step - r->step)).text);
    append(out, bytes, &used, "  norm %.3g  lr %.3g", r->grad_norm, r->lr);
    if (!isnan(r->dropped_energy)) append(out, bytes, &used, "  dropped %.0f%%", 100 * r->dropped_energy);
    append(out, bytes, &used, "  %.0f tok/s", r->step_seconds > 0 ? (double)r->tokens / r->step_seconds : 0.0);
    append(out, bytes, &used, "  mem %s", shore__format_size(r->resident_bytes).text);
    if (p->budget_bytes) append(out, bytes, &used, " of %s", shore__format_size(p->budget_bytes).text);
    append(out, bytes, &used, "  wait %.0f%% commit %.0f%%", percent(r->wait_seconds, r->step_seconds),
           percent(r->commit_seconds, r->step_seconds));
    if (r->replays) append(out, bytes, &used, "  replays %u", r->replays);
    if (r->skipped) append(out, bytes, &used, "  skipped: not finite");
    return out;
}
