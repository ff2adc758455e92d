/* The kernel `update` for FPGAs: UPDATE of whole segments, for high-level synthesis. README.md has the picture and the
 * intervals. Any C++ compiler builds it, too, and then it is a function that C calls. */
#ifndef SHORE_NEAR_HLS_KERNEL_H
#define SHORE_NEAR_HLS_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a port moves at a clock: 512 bits. Little-endian, aligned to its size. */
struct shore__word {
    uint32_t lane[16];
} __attribute__((aligned(64)));

/* Constants of a parameter group as struct rule in opencl/update.cl has them; floats as their bits. */
struct shore__kernel_rule {
    uint32_t coefficient, lr, eps, weight_decay, decay, momentum, m_weight, beta2, one_minus_beta2, step_size;
    uint32_t inv_sqrt_bias2, from_gradient, decays_gradient, first_step, frozen, with_momentum;
} __attribute__((aligned(64)));

/* Where the moments of 256 elements of one tensor lie, as struct shore__engine_block has it. */
struct shore__kernel_block {
    uint32_t group;     /* with SHORE__KERNEL_CODED if its moments are 8-bit codes */
    uint32_t at;        /* in planes M and V of the chunk: byte of the first code, or index of the first fp32 moment */
    uint32_t absmax;    /* index of the codes' fp32 absmax there */
    uint32_t nonfinite; /* out: a new value is not finite. 0 before */
};
#define SHORE__KERNEL_CODED 0x80000000u

/* Its first arguments are those of update_sparse() in opencl/update.cl, in its order: a gradient in any form; starts of
 * sparse codes; state, of planes that begin at its bytes 0, lo_at, m_at and v_at; the new parameters; blocks, 256 a
 * segment; rules, by group; both codes of moments.
 * A port reads or writes, and only one thing. So the state comes again for each plane that is read (hi, lo, m, v) and
 * that is written (lo_out, m_out, v_out), and the blocks come again to be read.
 * Units: form: enum shore_gradient_form. planes: mask of those that are stored. moment_words: 64 bytes each, of a
 * segment's M or V. All offsets are multiples of 64. */
void update(const struct shore__word *gradient, const uint32_t *starts, struct shore__word *state, uint32_t lo_at,
            uint32_t m_at, uint32_t v_at, struct shore__word *params, uint32_t params_form,
            struct shore__kernel_block *blocks, const struct shore__kernel_rule *rules, const uint32_t *codes,
            const struct shore__word *hi, const struct shore__word *lo, const struct shore__word *m,
            const struct shore__word *v, struct shore__word *lo_out, struct shore__word *m_out,
            struct shore__word *v_out, const struct shore__kernel_block *blocks_in, uint32_t form, uint32_t optimizer,
            uint32_t planes, uint32_t moment_words, uint32_t segments);

#ifdef __cplusplus
}
#endif

#endif
