/* A report: what is escaped, how curves are thinned, what is read of metrics. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "page/page.h"

static void said(const char *text, const char *expected) {
    struct shore__page p = {0};
    shore__page_put(&p, "%s", "");
    shore__page_say(&p, text);
    assert_string_equal(p.text, expected);
    free(p.text);
}

static void strangers_say_no_markup(void **state) {
    said("", "");
    said("runs/a", "runs/a");
    said("<img src=x onerror='f(1)'>", "&lt;img src=x onerror=&#39;f(1)&#39;&gt;");
    said("a&lt;\"b\"", "a&amp;lt;&quot;b&quot;");
    said("l\xC3\xA4nge \xE2\x82\xAC \xF0\x9F\x9A\xA2", "l\xC3\xA4nge \xE2\x82\xAC \xF0\x9F\x9A\xA2");
    said("tab\tline\nend", "tab line end");
    said("\x1B[31m\x7F", "\xEF\xBF\xBD[31m\xEF\xBF\xBD");
    said("\xFFx\xC3", "\xEF\xBF\xBDx\xEF\xBF\xBD"); /* no UTF-8, and a character that breaks off */
    said("x\xE2\x80\xAEy", "x\xEF\xBF\xBDy");       /* what turns the direction of text */
    said("</script><!--", "&lt;/script&gt;&lt;!--");
}

static void a_page_grows(void **state) {
    struct shore__page p = {0};
    for (int i = 0; i < 20000; i++)
        shore__page_put(&p, "%05d", i), shore__page_say(&p, "<");
    assert_int_equal(p.bytes, 20000 * 9);
    assert_memory_equal(p.text + 9 * 12345, "12345&lt;", 9);
    assert_false(p.failed);
    free(p.text);
}

/* Whatever the length, a curve has at most so many spans, and nothing is lost of sums and extremes. */
static void long_curves_are_thinned(void **state) {
    for (uint64_t steps = 1; steps < 300000; steps = steps * 3 + 1) {
        struct shore__curve c;
        double sum = 0, most = 0;
        uint64_t n = 0;
        assert_int_equal(shore__curve_init(&c, 64), 0);
        for (uint64_t step = 1; step <= steps; step++)
            shore__curve_add(&c, step, step == steps / 2 ? 1e6 : (double)(step % 7));
        shore__curve_add(&c, steps, NAN);
        shore__curve_add(&c, steps, INFINITY);
        shore__curve_add(&c, steps, 1e300);
        assert_in_range(c.count, 1, 64);
        assert_true(c.count * c.steps_per_span > steps && (steps < 64 || c.count >= 32));
        for (uint32_t i = 0; i < c.count; i++) {
            const struct shore__values *v = &c.at[i];
            if (!v->n) continue;
            assert_true(v->least <= v->sum / (double)v->n && v->sum / (double)v->n <= v->most);
            n += v->n;
            sum += v->sum;
            most = fmax(most, v->most);
        }
        double expected = 0;
        for (uint64_t step = 1; step <= steps; step++)
            expected += step == steps / 2 ? 1e6 : (double)(step % 7);
        assert_true(n == steps && fabs(sum - expected) < 1e-3);
        assert_true(steps < 2 || most == 1e6); /* one step stands out however long the run is */
        shore__curve_fini(&c);
    }
}

static void take(struct shore__told *t, const char *text) {
    assert_int_equal(shore__told_take(t, text, strlen(text)), strlen(text));
}

static void damaged_lines_are_counted(void **state) {
    struct shore__told *t = malloc(sizeof *t);
    assert_int_equal(shore__told_begin(t, 64), 0);
    take(t, "{\"step\":1,\"loss\":3,\"step_seconds\":2,\"tokens\":10,\"charges\":{\"forward\":1.5,\"commit\":0.5}}\n");
    take(t, "no JSON\n\n[]\n{\"step\":\"2\"}\n{\"step\":-1}\n");
    take(t, "{\"step\":1,\"loss\":9}\n");           /* again */
    take(t, "{\"step\":90000000000,\"loss\":9}\n"); /* no step that could follow */
    take(t, "{\"step\":2,\"loss\":null,\"lost\":true}\n");
    take(t, "{\"step\":3,\"loss\":null,\"skipped\":true,\"step_seconds\":-1}\n");
    take(t, "{\"step\":4,\"loss\":2,\"val_loss\":2.5,\"step_seconds\":4,\"tokens\":10,\"resident_bytes\":1e99}\n");
    assert_int_equal(shore__told_take(t, "{\"step\":5", 9), 0); /* is being written */
    shore__told_end(t);
    assert_int_equal(t->steps, 4);
    assert_int_equal(t->bad, 7);
    assert_int_equal(t->lost, 1);
    assert_int_equal(t->skipped, 1);
    assert_int_equal(t->timed, 2);
    assert_true(t->last_loss == 2 && t->val_loss == 2.5 && t->seconds == 6 && t->resident_bytes == 0);
    assert_true(t->usual.charged && t->usual.of[SHORE__TOLD_STEP_SECONDS] == 3);
    assert_true(t->usual.charges[SHORE_CHARGE_FORWARD] == 0.75);
    shore__told_free(t);
    free(t);
}

/* Charges of the usual step add up as those of each step do, and a pause counts for nothing. */
static void the_usual_step_is_in_the_middle(void **state) {
    struct shore__told *t = malloc(sizeof *t);
    char line[256];
    assert_int_equal(shore__told_begin(t, 64), 0);
    for (int step = 1; step <= 400; step++) {
        double seconds = step % 10 ? 1 + step % 3 * 0.25 : 1000;
        snprintf(line, sizeof line, "{\"step\":%d,\"step_seconds\":%g,\"charges\":{\"forward\":%g,\"drive\":%g}}\n",
                 step, seconds, seconds * 0.75, seconds * 0.25);
        take(t, line);
    }
    shore__told_end(t);
    const struct shore__told_step *u = &t->usual;
    assert_true(u->of[SHORE__TOLD_STEP_SECONDS] > 1 && u->of[SHORE__TOLD_STEP_SECONDS] < 1.6);
    assert_true(fabs(u->charges[SHORE_CHARGE_FORWARD] + u->charges[SHORE_CHARGE_DRIVE] -
                     u->of[SHORE__TOLD_STEP_SECONDS]) < 1e-9);
    shore__told_free(t);
    free(t);
}

/* Lines of a grid lie within their plot, and what is written beside them differs, whatever the values are. */
static void ticks_stay_within_and_differ(void **state) {
    const double values[][2] = {{3.4, 3.4}, {7.3166, 7.3197}, {3.4, 7.3},     {0, 1e-9},
                                {-5, 3.5},  {99.96, 100.01},  {1e6, 1e6 + 9}, {1e-6, 4e5}};
    for (size_t k = 0; k < 4096 + sizeof values / sizeof *values; k++) {
        double least = k < 8 ? values[k][0] : (double)(k * 7919 % 4093) / 100,
               range = pow(10, (double)(k % 64) / 8 - 4);
        double last = -INFINITY, y, label;
        struct shore__page p = {0};
        struct shore__curve c;
        assert_int_equal(shore__curve_init(&c, 8), 0);
        shore__curve_add(&c, 1, least);
        shore__curve_add(&c, 4, k < 8 ? values[k][1] : least + range);
        const struct shore__series s = {.curve = &c};
        assert_true(shore__figure_draw(&p, "t", "a", &s, 1, false, 0) == SHORE__DRAWN_HIGH);
        int lines = 0, labels = 0;
        for (const char *at = strstr(p.text, "class=\"grid\""), *end = strstr(at, "/>");
             (at = strchr(at, 'M')) && at < end; at++, lines++)
            assert_true(sscanf(at, "M%*f %lfH", &y) == 1 && y > 43.9 && y < 294.1);
        for (const char *at = p.text; (at = strstr(at, "text-anchor=\"end\">")) && labels < lines; labels++) {
            char text[32], *to = text;
            for (at += 18; *at != '<'; at++)
                if (*at != ',' && to < text + sizeof text - 1) *to++ = *at;
            *to = 0;
            label = strtod(text, NULL);
            assert_true(label > last);
            last = label;
        }
        assert_in_range(lines, 3, 7);
        assert_int_equal(labels, lines);
        /* neither value has a neighbour */
        const char *line = strstr(p.text, "class=\"dots"), *first = strstr(line, "h0M");
        assert_true(first && strstr(first + 3, "h0\"/>"));
        shore__curve_fini(&c);
        free(p.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_say_no_markup),         cmocka_unit_test(a_page_grows),
        cmocka_unit_test(long_curves_are_thinned),         cmocka_unit_test(damaged_lines_are_counted),
        cmocka_unit_test(the_usual_step_is_in_the_middle), cmocka_unit_test(ticks_stay_within_and_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
