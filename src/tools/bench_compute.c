
#include "base/arena.h"
#include "compute/product_rate.h"
#include "tools/bench.h"

struct args {
    uint32_t threads, rows, d_model, slice;
    bool json;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(WHOLE, "width", d_model, "N", "the model's width; the default is that of GPT-2 124M", .is.least = 16,
           .is.most = 65536),
    OPTION(WHOLE, "rows", rows, "N", "tokens of a product", .is.least = 1, .is.most = 65536),
    OPTION(WHOLE, "slice", slice, "N", "rows of a slice of the vocabulary", .is.least = 1, .is.most = 262144),
    OPTION(WHOLE, "threads", threads, "N",
           "compute threads; otherwise one for each processor that a container's limits leave",
           .is.most = SHORE__THREADS_MOST),
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line"),
};

struct product {
    const char *name;
    size_t n, k;
    bool w_is_nk;
};
enum { PRODUCTS = 5, KINDS = 3 };
static const char *const kinds[KINDS] = {"forward", "backward_x", "backward_w"};

struct rates {
    double ours[PRODUCTS][KINDS], best[PRODUCTS][KINDS];
    double total_ours, total_best; /* all operations over all time */
};

static int measure(const struct args *a, const struct product *products, bool bf16, struct rates *out,
                   struct shore_diag *diag) {
    struct shore__compute *c;
    const struct shore__compute_options compute = {.products = bf16 ? SHORE__PRODUCTS_BF16 : SHORE__PRODUCTS_F32,
                                                   .threads = (int)a->threads};
    int rc = shore__compute_open(&compute, &c, diag);
    if (rc) return rc;
    double work = 0, ours_seconds = 0, best_seconds = 0;
    for (int p = 0; !rc && p < PRODUCTS; p++) {
        for (int kind = 0; !rc && kind < KINDS; kind++) {
            const struct product *q = &products[p];
            rc = shore__compute_bench(c, a->rows, q->n, q->k, q->w_is_nk, kind, &out->ours[p][kind]);
            if (!rc) rc = shore__compute_bench_best(c, a->rows, q->n, q->k, q->w_is_nk, kind, &out->best[p][kind]);
            if (rc) {
                shore__fail(diag, rc, "the product '%s' cannot be measured: %s", q->name, shore_error_text(rc));
                break;
            }
            double operations = 2.0 * a->rows * (double)q->n * (double)q->k;
            work += operations;
            ours_seconds += operations / (out->ours[p][kind] * 1e9);
            best_seconds += operations / (out->best[p][kind] * 1e9);
        }
    }
    if (!rc) {
        out->total_ours = work / ours_seconds / 1e9;
        out->total_best = work / best_seconds / 1e9;
    }
    c->ops->close(c);
    return rc;
}

static json_t *rates_json(const struct product *products, const struct rates *r) {
    json_t *o = json_pack("{s:f,s:f}", "gflops", r->total_ours, "best_gflops", r->total_best);
    for (int p = 0; p < PRODUCTS; p++) {
        json_t *one = json_object();
        for (int kind = 0; kind < KINDS; kind++)
            json_object_set_new(one, kinds[kind],
                                json_pack("{s:f,s:f}", "gflops", r->ours[p][kind], "best_gflops", r->best[p][kind]));
        json_object_set_new(o, products[p].name, one);
    }
    return o;
}

static void print_rates(const struct product *products, const char *title, const struct rates *r) {
    printf("%s: %.0f GFLOP/s over all (best %.0f)\n", title, r->total_ours, r->total_best);
    for (int p = 0; p < PRODUCTS; p++) {
        printf("  %-5s %6zu x %-6zu", products[p].name, products[p].n, products[p].k);
        for (int kind = 0; kind < KINDS; kind++)
            printf("  %s %4.0f (best %4.0f)", kinds[kind], r->ours[p][kind], r->best[p][kind]);
        putchar('\n');
    }
}

static int run(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    size_t d = a->d_model;
    const struct product products[PRODUCTS] = {
        {"qkv", 3 * d, d, true},   {"out", d, d, true},         {"up", 4 * d, d, true},
        {"down", d, 4 * d, false}, {"head", a->slice, d, true},
    };
    shore__heap_keep(true);
    struct rates bf16, f32;
    struct shore_diag diag = {0};
    int rc = measure(a, products, false, &f32, &diag);
    bool has_bf16 = shore__can_multiply_bf16();
    if (!rc && has_bf16) rc = measure(a, products, true, &bf16, &diag);
    if (rc) return shore__cli_fail_running(rc, &diag);
    const char *automatic = shore__products_for_this_processor() == SHORE__PRODUCTS_BF16 ? "bf16" : "fp32";
    if (a->json)
        return shore__cli_print_json(json_pack("{s:s,s:s,s:I,s:o*,s:o}", "processor", shore__processor_kind(),
                                               "products", automatic, "rows", (json_int_t)a->rows, "bf16",
                                               has_bf16 ? rates_json(products, &bf16) : NULL, "fp32",
                                               rates_json(products, &f32)));
    printf("%s, %u rows; --products auto takes %s\n", shore__processor_kind(), a->rows, automatic);
    if (has_bf16)
        print_rates(products, "bf16", &bf16);
    else
        puts("bf16: oneDNN has no such products for this processor");
    print_rates(products, "fp32", &f32);
    return SHORE__EXIT_DONE;
}

const struct shore__command_line shore__bench_compute = {
    .command = "bench compute",
    .synopsis = "bench compute [--width N] [--rows N] [--json]",
    .about =
        "Measures the matrix products of a layer and of the head, in billions of operations a second, as bf16 and as\n"
        "fp32 (what --products chooses between), beside the best that oneDNN reaches on the same shapes.",
    SHORE__OPTIONS(options),
    SHORE__RUNS(run, struct args, .rows = 1024, .d_model = 768, .slice = 2048),
};
