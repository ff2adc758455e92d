
#include <string.h>

#include "cli/cli.h"
#include "plan/transfers.h"

struct args {
    char *out, *snapshot;
    unsigned dtype;
    bool gguf;
    struct shore__strings moved;
    uint64_t memory, shard;
    bool moments, quiet;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
#define CHOICE(...) SHORE__CHOICE(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(TEXT, "out", out, "DIR|FILE", "the directory or file to make; it appears whole or not at all"),
    CHOICE("format", gguf, "hf|gguf",
           "hf: a Hugging Face directory, as transformers loads it; gguf: one file for llama.cpp and Ollama, with "
           "tokenizer and chat template"),
    CHOICE("dtype", dtype, "bf16|fp32|fp16",
           "bf16: the rounded weights that the run computes with (ties away from zero); fp32: the exact master "
           "weights; fp16: these rounded to nearest, with an error if one is too large; without it, a run of another "
           "program keeps that program's type of each tensor"),
    OPTION(TEXT, "snapshot", snapshot, "NAME", "the state of this snapshot, also while the run is trained"),
    OPTION(FLAG, "moments", moments, NULL,
           "also write the optimizer's moments, in fp32, to DIR/optimizer: import and the Python package's wrap() "
           "continue with them"),
    OPTION(SIZE, "shard-size", shard, "SIZE", "of the files that the weights are split into (default 5GiB)"),
    OPTION(SIZE, "memory", memory, "SIZE", "the budget; otherwise little is taken"),
    SHORE__MOVED_OPTION(struct args, moved),
    OPTION(FLAG, "quiet", quiet, NULL, "no progress"),
};

static int buffers_within(const struct args *a, uint64_t *buffers, struct shore_diag *diag) {
    uint64_t now, peak;
    *buffers = 0; /* the default of export */
    if (!a->memory) return 0;
    shore__resident_bytes(&now, &peak);
    uint64_t beside = shore__export_beside_bytes(now, peak);
    int rc = shore__budget_measured(a->memory, beside + SHORE__EXPORT_LEAST_BYTES, diag);
    if (!rc) *buffers = a->memory - beside;
    return rc;
}

static int check_gguf(const struct args *a, const struct shore__opened *o, struct shore_diag *diag) {
    const char *path = o->run->path;
    if (a->moments || a->shard)
        return shore__fail(diag, SHORE_EUSAGE, "--format gguf makes one file without moments: leave out --%s",
                           a->moments ? "moments" : "shard-size");
    if (!o->model)
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: was made by %.60s, and GGUF is written for models of the program: export without "
                           "--format, and convert that with llama.cpp's convert_hf_to_gguf.py",
                           path, shore__contents_maker(o->run->contents));
    if (o->model->adapters.count)
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: trains adapters alone: export them without --format to DIR, import their model with "
                           "--adapter DIR, and export that run",
                           path);
    const struct shore__arch *arch = &o->model->arch;
    if (arch->kinds[0].window && arch->kinds[0].window < arch->max_positions)
        shore__cli_say("llama.cpp knows no window of attention for %s: beyond %u tokens it attends to all",
                       arch->model_type, arch->kinds[0].window);
    return 0;
}

static const char *last_word(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static int export(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *path = parsed->positional[0];
    static const enum shore__st_type types[] = {SHORE__ST_BF16, SHORE__ST_F32, SHORE__ST_F16};
    static const char *const names[] = {"bf16", "fp32", "fp16"};
    struct shore_diag diag = {0};
    struct shore__opened o;
    uint64_t buffers;
    if (!a->out) return shore__cli_fail(shore__fail(&diag, SHORE_EUSAGE, "where to? Give --out DIR"), &diag);
    if (!shore__is_run(path) && !shore__run_is_half_replaced(path))
        return shore__cli_fail(shore__not_a_run(path, &diag), &diag);
    int rc = shore__cli_open_run(path, &a->moved, a->snapshot, true, &o, &diag);
    if (rc) return shore__cli_fail(rc, &diag);
    bool given = shore__option_given(&shore__cli_export, parsed, "dtype"), typed = o.model || given;
    /* adapters are small, and go on being trained: fp32 */
    unsigned dtype = !given && o.model && o.model->adapters.count ? 1 : a->dtype;
    rc = a->gguf ? check_gguf(a, &o, &diag) : 0;
    if (!rc) rc = buffers_within(a, &buffers, &diag);
    if (!rc) shore__cli_catch_signals("longshore: stopping; once more stops at once\n");
    if (!rc && !o.model && a->moments)
        rc = shore__fail(
            &diag, SHORE_EUSAGE,
            "%s: was made by %.60s; only that program knows how many updates each moment has seen, so save them there",
            path, shore__contents_maker(o.run->contents));
    if (!rc) {
        const struct shore__exporting e = {
            .fleet = o.fleet,
            .contents = o.run->contents,
            .step = o.step,
            .settings = &o.run->settings,
            .type = typed ? &types[dtype] : NULL,
            .moments = a->moments,
            .updates = o.run->settings.updates_before + o.step,
            .memory_bytes = buffers,
            .shard_bytes = a->shard,
            .progress = shore__cli_work,
            .progress_ctx = a->quiet ? NULL : (void *)"exporting",
        };
        rc = a->gguf   ? shore__export_gguf(&e, o.model, o.tokenizer, last_word(o.run->path), a->out, &diag)
             : o.model ? shore__export(&e, o.model, o.tokenizer, a->out, &diag)
                       : shore__export_recorded(&e, a->out, &diag);
    }
    shore__cli_progress_end();
    const char *as = typed ? names[dtype] : "recorded";
    if (!rc) printf("step %llu exported as %s to %s\n", (unsigned long long)o.step, as, a->out);
    char *lacks = !rc && !o.model ? shore__export_lacks(o.run->contents, path, a->out) : NULL;
    if (lacks) fprintf(stderr, "longshore: %s\n", lacks);
    free(lacks);
    shore__cli_close(&o);
    return rc ? shore__cli_fail_opened(rc, &diag) : SHORE__EXIT_DONE;
}

const struct shore__command_line shore__cli_export = {
    .command = "export",
    .remote = true,
    .synopsis = "export RUN --out DIR [--dtype bf16|fp32|fp16] [--snapshot NAME] [--moments]\n"
                "export RUN --format gguf --out FILE [--dtype bf16|fp32|fp16] [--snapshot NAME]",
    .about =
        "Writes the committed state of a run as a Hugging Face directory (config.json, model.safetensors, tokenizer)\n"
        "that transformers loads. The weights are streamed: memory does not grow with the model. Of a run from Python "
        "it\n"
        "writes the configuration that the run has recorded, and says what is missing. Of a run with --lora it writes "
        "the\n"
        "adapters alone, as PEFT's directory, in fp32 without --dtype.",
    SHORE__OPTIONS(options),
    .positional = 1,
    .missing = "which run? longshore export RUN --out DIR",
    SHORE__RUNS(export, struct args, 0),
};
