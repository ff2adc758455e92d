/* Modes of activations and activation functions, for kernels and their callers. */
#ifndef SHORE_KERNEL_MODE_H
#define SHORE_KERNEL_MODE_H

enum shore__mode { SHORE__F32, SHORE__BF16, SHORE__BF16_IN_F32 };

enum shore__act_fn { SHORE__GELU_TANH, SHORE__GELU_ERF, SHORE__RELU, SHORE__SILU };

#endif
