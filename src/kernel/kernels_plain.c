/* The kernels for any processor: vectors of four, no fused multiply-add. */
#include "kernel/kernels.h"

#define VL 4
#define FMA(a, b, c) ((a) * (b) + (c))
#define KERNELS shore__kernels_plain
#include "kernel/kernels_vector_body.h"

#include "kernel/kernels_attention_body.h"
#include "kernel/kernels_element_body.h"
#include "kernel/kernels_row_body.h"
#include "kernel/kernels_table_body.h"
