/* Timings of single operations, for `longshore bench compute`. */
#ifndef SHORE_COMPUTE_PRODUCT_RATE_H
#define SHORE_COMPUTE_PRODUCT_RATE_H

#include "compute/compute.h"

enum shore__bench_kind { SHORE__BENCH_FORWARD, SHORE__BENCH_BACKWARD_X, SHORE__BENCH_BACKWARD_W };

/* The best rate of a linear layer's product (CPU backend only), over about a tenth of a second, as the backend runs it.
 * Calls make, with a workspace that is gone afterwards. Units: 1e9 operations a second, 2 rows n k a product.
 * Errors: -ENOMEM, -ENOTSUP. */
int shore__compute_bench(struct shore__compute *c, size_t rows, size_t n, size_t k, bool w_is_nk, int kind,
                         double *gflops);
/* The same product with operands in the layouts that oneDNN likes best (packed beforehand): what can be reached. */
int shore__compute_bench_best(struct shore__compute *c, size_t rows, size_t n, size_t k, bool w_is_nk, int kind,
                              double *gflops);

#endif
