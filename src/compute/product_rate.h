/* Timings of single operations, for `longshore bench compute`. */
#ifndef SHORE_COMPUTE_PRODUCT_RATE_H
#define SHORE_COMPUTE_PRODUCT_RATE_H

#include "compute/compute.h"

enum shore__bench_kind { SHORE__BENCH_FORWARD, SHORE__BENCH_BACKWARD_X, SHORE__BENCH_BACKWARD_W };

/* Measures the best rate of a linear layer's product as the backend runs it (CPU backend only), for about a tenth of a
 * second. Calls make with a workspace that is gone afterwards. Unit: 1e9 operations per second; a product has 2 rows n
 * k operations. Errors: -ENOMEM, -ENOTSUP. */
int shore__compute_bench(struct shore__compute *c, size_t rows, size_t n, size_t k, bool w_is_nk, int kind,
                         double *gflops);
/* Measures the same product with operands in oneDNN's preferred layouts, packed in advance: the rate that can be
 * reached. */
int shore__compute_bench_best(struct shore__compute *c, size_t rows, size_t n, size_t k, bool w_is_nk, int kind,
                              double *gflops);

#endif
