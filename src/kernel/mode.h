/* Modes of activations and activation functions, for kernels and their callers. */
#ifndef SHORE_KERNEL_MODE_H
#define SHORE_KERNEL_MODE_H

enum shore__mode { SHORE__F32, SHORE__BF16, SHORE__BF16_IN_F32 };

/* SHORE__SWIGLU_CLAMPED is gpt-oss's, always gated: gates and ups alternate in a row, both are clamped. */
enum shore__act_fn { SHORE__GELU_TANH, SHORE__GELU_ERF, SHORE__RELU, SHORE__SILU, SHORE__SWIGLU_CLAMPED };

/* SHORE__RMS_NORM_FROM_1: the gain is 1 + weight (Gemma). */
enum shore__norm_kind { SHORE__LAYER_NORM, SHORE__RMS_NORM, SHORE__RMS_NORM_FROM_1 };

#endif
