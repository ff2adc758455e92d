/* The lanes of a run's last step that was traced: RUN/trace.spans as rows of spans, one below another. */
#include <stdlib.h>

#include "page/page.h"
#include "report/trace_file.h"

#define TRACE_BYTES_MOST (UINT64_C(256) << 20)
#define WIDE 2000u /* of a row, in its own units; shorter gaps are closed */
enum { ROWS_MOST = 24 };

static uint64_t lane_of(const struct shore__work_span *s) {
    return s->kind == SHORE__SPAN_CHARGE ? 0 : 1 + ((uint64_t)s->what << 32 | s->drive);
}

/* By lane, then charge (of the first lane), then time. */
static int compare(const void *a, const void *b) {
    const struct shore__work_span *x = a, *y = b;
    uint64_t lanes[2] = {lane_of(x), lane_of(y)};
    if (lanes[0] != lanes[1]) return lanes[0] < lanes[1] ? -1 : 1;
    return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

static void put_row(struct shore__page *p, const struct shore__trace_read *t, const struct shore__work_span *s,
                    size_t n, const struct shore__work_span *step) {
    bool charges = s->kind == SHORE__SPAN_CHARGE;
    double scale = WIDE / (double)(step->end_ns - step->begin_ns);
    shore__page_put(p, "<tr><th>");
    shore__page_say(p, charges ? "charged to" : shore__trace_name(t, "lanes", s->what));
    if (!charges && s->drive != SHORE__NO_DRIVE) shore__page_put(p, " %u", s->drive + 1);
    shore__page_put(p, "</th><td><svg viewBox=\"0 0 %u 10\" preserveAspectRatio=\"none\">", WIDE);
    for (size_t i = 0; i < n;) {
        uint32_t what = s[i].what;
        uint64_t begin = s[i].begin_ns, end = s[i].end_ns;
        for (i++; i < n && s[i].what == what && (double)s[i].begin_ns * scale < (double)end * scale + 1; i++)
            if (s[i].end_ns > end) end = s[i].end_ns;
        if (begin < step->begin_ns) begin = step->begin_ns;
        if (end > step->end_ns) end = step->end_ns;
        shore__page_put(p, "<rect class=\"%s\" x=\"%.1f\" width=\"%.1f\" height=\"10\"><title>",
                        charges ? shore__charge_style(what) : "k0", (double)(begin - step->begin_ns) * scale,
                        (double)(end - begin) * scale);
        shore__page_say(p, shore__trace_name(t, charges ? "charges" : "lanes", what));
        shore__page_put(p, ", %s</title></rect>", shore__format_seconds((double)(end - begin) * 1e-9).text);
    }
    shore__page_put(p, "</svg></td></tr>");
}

static void put_lanes(struct shore__page *p, const struct shore__trace_read *t) {
    const struct shore__work_span *last = NULL;
    size_t n = 0, rows = 0;
    for (size_t i = 0; i < t->count; i++)
        if (t->spans[i].kind == SHORE__SPAN_STEP && t->spans[i].end_ns > t->spans[i].begin_ns &&
            (!last || t->spans[i].begin_ns > last->begin_ns))
            last = &t->spans[i];
    if (!last) return;
    const struct shore__work_span step = *last;
    for (size_t i = 0; i < t->count; i++)
        if (t->spans[i].kind != SHORE__SPAN_STEP && t->spans[i].begin_ns < step.end_ns &&
            t->spans[i].end_ns > step.begin_ns)
            t->spans[n++] = t->spans[i];
    qsort(t->spans, n, sizeof *t->spans, compare);
    shore__page_put(p,
                    "<section><h3>Lanes of step %llu</h3><p>What worked when, from the beginning of the step to its "
                    "end, after %s.</p><table class=\"lanes\">",
                    (unsigned long long)step.amount,
                    shore__format_seconds((double)(step.end_ns - step.begin_ns) * 1e-9).text);
    size_t i = 0;
    for (size_t end; i < n && rows++ < ROWS_MOST; i = end) {
        for (end = i; end < n && lane_of(&t->spans[end]) == lane_of(&t->spans[i]);)
            end++;
        put_row(p, t, &t->spans[i], end - i, &step);
    }
    shore__page_put(p, "</table>%s</section>",
                    i < n ? "<p class=\"none\">The lanes of further drives are left out.</p>" : "");
}

void shore__page_lanes(struct shore__page *p, const char *run) {
    struct shore__trace_read read;
    struct shore_diag why;
    int rc = shore__trace_load(run, TRACE_BYTES_MOST, &read, &why);
    if (!rc) put_lanes(p, &read);
    if (rc && rc != SHORE_EMISSING)
        shore__page_put(p, "<ul class=\"notes\"><li>The trace of its last steps is damaged, or too large.</li></ul>");
    shore__trace_free(&read);
}
