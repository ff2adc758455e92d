/* The kernels for any processor: vectors of four, no fused multiply-add. */
#include "compute/kernels.h"

#define VL 4
#define FMA(a, b, c) ((a) * (b) + (c))
#define KERNELS shore__kernels_plain
#include "compute/kernels_vector_body.h"

#include "compute/kernels_attention_body.h"
#include "compute/kernels_element_body.h"
#include "compute/kernels_row_body.h"
#include "compute/kernels_table_body.h"
