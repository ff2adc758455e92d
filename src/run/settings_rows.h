/* All settings of a run, one row each. The flag, the key in run.json and in a --config file, and the line of the help
 * follow from the row. A new setting is a row here and a field in settings.h.
 *
 *   ROW(kind, name, field, role, default, chosen, least, most, value, help)
 *
 * kind: see value.h. role: its role when a run is resumed. chosen: the
 * default means "not given", and a value is chosen later. least, most: range of a number. value: name of the value in
 * the help; for a choice, its words in the order of the enum (off|on: a bool). Groups are those of the help.
 */
#ifndef SHORE_RUN_SETTINGS_ROWS_H
#define SHORE_RUN_SETTINGS_ROWS_H

#include "longshore/trace.h"
#include "run/value.h"

/* The value of a row, in .is = {...}, read as kind `how`, with the range or the words that the row's kind has. */
#define SHORE__VALUE_OF(how, kind_, field, least_, most_, words) \
    .kind = how, .bytes = sizeof((struct shore__settings *)0)->field, SHORE__##kind_##_RANGE(least_, most_, words)
#define SHORE__TEXT_RANGE(least_, most_, words) .choices = NULL
#define SHORE__LIST_RANGE SHORE__TEXT_RANGE
#define SHORE__PLACES_RANGE SHORE__TEXT_RANGE
#define SHORE__FLAG_RANGE SHORE__TEXT_RANGE
#define SHORE__WHOLE_RANGE(least_, most_, words) .least = least_, .most = most_
#define SHORE__SIZE_RANGE SHORE__WHOLE_RANGE
#define SHORE__PACE_RANGE SHORE__WHOLE_RANGE
#define SHORE__REAL_RANGE(least_, most_, words) .low = least_, .high = most_
#define SHORE__SHARE_RANGE SHORE__REAL_RANGE
#define SHORE__CHOICE_RANGE(least_, most_, words) .choices = words

// clang-format off
#define SHORE__SETTINGS_OF_MODEL(ROW) \
    ROW(TEXT, "model", model, IDENTITY, NULL, false, 0, 0, "DIR", \
        "a Hugging Face directory to start from: config.json, safetensors, tokenizer") \
    ROW(TEXT, "adapter", adapter, IDENTITY, NULL, false, 0, 0, "DIR", \
        "a PEFT adapter (LoRA, DoRA) to merge into the weights of --model as they are read") \
    ROW(TEXT, "init", init, IDENTITY, NULL, false, 0, 0, "NAME|FILE", \
        "random weights: gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1.5b, llama3-8b, llama3-70b, llama3-405b, " \
        "qwen3-0.6b, qwen3-8b, gemma3-1b, smollm3-3b, gpt2-tiny, gpt2-small, llama-tiny, or a config.json") \
    ROW(TEXT, "tokenizer", tokenizer, IDENTITY, NULL, false, 0, 0, "DIR|bytes", \
        "directory of a tokenizer, or bytes (ids 0-255, 256 ends a text); otherwise the model's; with --init, " \
        "which may have none, bytes") \
    ROW(TEXT, "lora", lora, IDENTITY, NULL, false, 0, 0, "r=N,alpha=X,target=NAME,...", \
        "adapters beside products of the layers are trained, and all of the model rests; target: names of modules " \
        "(q_proj,v_proj), or all-linear (default); r=8, alpha=8 and rslora=off, as in PEFT; export writes PEFT's " \
        "directory") \
    ROW(LIST, "freeze", freeze, IDENTITY, 0, false, 0, 0, "PATTERN...", \
        "tensors that are not trained, by their names in the model's files ('model.layers.[0-3].*', '*.mlp.*', " \
        "'embed_tokens*'): they take no gradients and no moments, and what only they need of backward is left out") \
    ROW(WHOLE, "seed", seed, IDENTITY, 0, false, 0, UINT64_MAX, "N", \
        "of random weights and of the shuffled order") \
    ROW(CHOICE, "precision", fp32, IDENTITY, 0, false, 0, 0, "bf16|fp32", \
        "what is stored and fetched of parameters and activations") \
    ROW(CHOICE, "products", products, IDENTITY, SHORE__PRODUCTS_AUTO, false, 0, 0, "auto|bf16|fp32", \
        "what matrix products run as with --precision bf16; auto: a fixed table by kind of processor")

#define SHORE__SETTINGS_OF_DATA(ROW) \
    ROW(LIST, "data", data, IDENTITY, 0, false, 0, 0, "FILE...", \
        "UTF-8 text; records in .jsonl, .ndjson or .json; llm.c's token .bin files (16 and 32 bit); each also " \
        "with .gz or .zst; or a directory, or a quoted pattern such as 'data/*.jsonl'") \
    ROW(LIST, "mix", mix, IDENTITY, 0, false, 0, 0, "NAME=WEIGHT...", \
        "instead of --data: several files, directories or patterns, from which sequences come by weight, each of " \
        "which begins anew at its end") \
    ROW(LIST, "val-data", val_data, IDENTITY, 0, false, 0, 0, "FILE...", \
        "text to validate on") \
    ROW(TEXT, "text-field", text_field, IDENTITY, "text", false, 0, 0, "NAME", \
        "key of the text in a record") \
    ROW(CHOICE, "loss-on", all_count, IDENTITY, 0, false, 0, 0, "completion|all", \
        "of records with \"prompt\" and \"completion\", or with \"messages\": only the completions and answers count " \
        "in the loss, or all tokens") \
    ROW(CHOICE, "pack", packs, IDENTITY, true, false, 0, 0, "off|on", \
        "records are joined and cut into sequences; off: each is a sequence, cut or padded to --seq-len") \
    ROW(CHOICE, "bad-rows", skip_bad_rows, IDENTITY, 0, false, 0, 0, "stop|skip", \
        "at a record that is not valid JSON or has no such text: stop and name it, or leave it out and count") \
    ROW(REAL, "val-share", val_share, IDENTITY, 0, false, 0, 0.9, "X", \
        "share of the data, from its end, to validate on instead") \
    ROW(CHOICE, "special-tokens", parse_special, IDENTITY, 0, false, 0, 0, "text|parse", \
        "in the data; parse: those of the tokenizer get their ids, as in chats that a template has rendered; " \
        "never do so with text that strangers wrote") \
    ROW(WHOLE, "seq-len", seq_len, IDENTITY, 0, true, 1, SHORE__TOKENS_MOST, "N", \
        "tokens of a sequence; otherwise the model's, at most 1024") \
    ROW(WHOLE, "batch", batch, IDENTITY, 8, false, 1, SHORE__TOKENS_MOST, "N", \
        "sequences per step") \
    ROW(CHOICE, "shuffle", shuffle, IDENTITY, true, false, 0, 0, "off|on", \
        "sequences in an order that follows from the seed alone")

#define SHORE__SETTINGS_OF_STATE(ROW) \
    ROW(PLACES, "drive", drives, MADE, 0, false, 0, 0, "PATH...", \
        "for each drive a directory or block device that is there, or a file (new ones have a suffix: " \
        "state.volume); or ram:; with --resume OLD=NEW: where a drive is now") \
    ROW(TEXT, "drive-speeds", drive_speeds, MADE, NULL, false, 0, 0, "A,B,...", \
        "speeds of the drives (2,1 or 2.8GB,1.4GB), which decide their shares; otherwise measured") \
    ROW(SIZE, "memory", memory_bytes, RESOURCE, 0, false, 0, UINT64_MAX, "SIZE", \
        "the budget, a promise about resident memory; otherwise half of the machine's, or less if all fits") \
    ROW(TEXT, "max-writes-per-day", max_writes, RESOURCE, NULL, false, 0, 0, "SIZE", \
        "what the drives may write in a day, together (2TB), or each (2TB,1TB): the plan saves writes, and steps " \
        "wait where that is not enough; none: any")

#define SHORE__SETTINGS_OF_LENGTH(ROW) \
    ROW(WHOLE, "steps", steps, SCHEDULE, 0, true, 1, SHORE__STEPS_MOST, "N", \
        "optimizer steps; the schedule ends there; otherwise 1000") \
    ROW(REAL, "epochs", epochs, MADE, 0, false, 0, 1e9, "X", \
        "passes over the data, instead of --steps") \
    ROW(WHOLE, "snapshot-every", snapshot_every, RESOURCE, 0, false, 0, SHORE__STEPS_MOST, "N", \
        "keep a snapshot every N steps, named step-000100 and so on: see longshore rollback") \
    ROW(WHOLE, "keep", keep, RESOURCE, 0, false, 0, 1u << 20, "K", \
        "of those, the newest K; otherwise all") \
    ROW(FLAG, "keep-best", keep_best, RECORDED, 0, false, 0, 0, NULL, \
        "keep a snapshot named best of the state with the least validation loss so far, each time that --eval-every " \
        "finds one") \
    ROW(WHOLE, "stop-after-no-gain", stop_after_no_gain, RECORDED, 0, false, 0, SHORE__STEPS_MOST, "N", \
        "a clean stop once the last N validation losses of --eval-every, counted over resumes, are not below the " \
        "least; 0: no such stop") \
    ROW(WHOLE, "stop-at", stop_at, RESOURCE, 0, false, 0, SHORE__STEPS_MOST, "STEP", \
        "a clean stop after this step, the schedule unchanged")

#define SHORE__SETTINGS_OF_OPTIMIZER(ROW) \
    ROW(CHOICE, "optimizer", optimizer, IDENTITY, SHORE_ADAMW, false, 0, 0, SHORE__OPTIMIZERS, \
        "weight decay applies to matrices only") \
    ROW(CHOICE, "moments", moments, IDENTITY, 0, false, 0, 0, "fp32|8bit", \
        "8bit: 12 bytes moved a parameter instead of 24; bitsandbytes' block-wise codes, small tensors in fp32") \
    ROW(WHOLE, "updates-before", updates_before, IDENTITY, 0, false, 0, SHORE__STEPS_MOST, "N", \
        "updates that moments have seen before the first step, for their bias; otherwise what the model's " \
        "directory says that holds them (see export --moments)") \
    ROW(REAL, "lr", lr, SCHEDULE, NAN, true, 0, 1e6, "X", \
        "learning rate; otherwise chosen for optimizer and model (AdamW: 0.0003, 0.00005 with --model)") \
    ROW(REAL, "min-lr", min_lr, SCHEDULE, NAN, true, 0, 1e6, "X", \
        "where cosine and linear end; otherwise a tenth of --lr") \
    ROW(WHOLE, "warmup", warmup, SCHEDULE, SHORE__WARMUP_CHOSEN, true, 0, SHORE__STEPS_MOST, "N", \
        "steps of linear warm-up; otherwise 2 % of the steps; with --init 100 at least, or a third of fewer " \
        "than 300") \
    ROW(CHOICE, "schedule", schedule, SCHEDULE, SHORE__COSINE, false, 0, 0, "constant|linear|cosine", \
        "after the warm-up") \
    ROW(REAL, "beta1", beta1, SCHEDULE, 0.9, false, 0, SHORE__BELOW_ONE, "X", \
        "Adam, AdamW") \
    ROW(REAL, "beta2", beta2, SCHEDULE, NAN, true, 0, SHORE__BELOW_ONE, "X", \
        "Adam, AdamW (default 0.95, with --compress 0.999)") \
    ROW(REAL, "eps", eps, SCHEDULE, 1e-8, false, 1e-37, 1, "X", \
        "Adam, AdamW, AdaGrad") \
    ROW(REAL, "momentum", momentum, SCHEDULE, 0, false, 0, SHORE__BELOW_ONE, "X", \
        "SGD") \
    ROW(REAL, "weight-decay", weight_decay, SCHEDULE, 0.1, false, 0, 1e3, "X", \
        "of tensors of two or more dimensions") \
    ROW(REAL, "clip", clip, SCHEDULE, 1, false, 0, 1e30, "X", \
        "largest norm of all gradients together; 0: no clipping") \
    ROW(CHOICE, "on-nonfinite", skip_nonfinite, SCHEDULE, 0, false, 0, 0, "stop|skip", \
        "when a loss or gradient is not finite")

#define SHORE__SETTINGS_OF_GRADIENTS(ROW) \
    ROW(CHOICE, "grad-precision", gradient_bf16, IDENTITY, 0, false, 0, 0, "fp32|bf16", \
        "of gradients that are sent whole") \
    ROW(SHARE, "compress", compress, IDENTITY, 0, false, 0, 1, "SHARE", \
        "send only the largest elements of each block's gradient: top1% (or 0.01)") \
    ROW(WHOLE, "compress-after", compress_after, IDENTITY, 0, false, 0, SHORE__STEPS_MOST, "N", \
        "send whole gradients in the first N steps") \
    ROW(CHOICE, "error-feedback", error_feedback, IDENTITY, true, false, 0, 0, "off|on", \
        "add what was not sent to the next gradient") \
    ROW(CHOICE, "residual", residual_saved, IDENTITY, 0, false, 0, 0, "host|saved", \
        "where that is kept: in memory, lost at a crash; or on the drives, as safe as the weights")

#define SHORE__SETTINGS_OF_MACHINE(ROW) \
    ROW(WHOLE, "threads", threads, SCHEDULE, 0, false, 0, SHORE__THREADS_MOST, "N", \
        "compute threads; otherwise one for each processor that a container's limits leave") \
    ROW(SIZE, "chunk-size", chunk_bytes, RESOURCE, 0, false, 0, SHORE__CHUNK_BYTES_MOST, "SIZE", \
        "bytes that UPDATE reads at once; otherwise chosen; never changes a bit") \
    ROW(CHOICE, "io", io, RESOURCE, SHORE_IO_AUTO, false, 0, 0, "auto|uring|threads|buffered", \
        "how drives are read and written") \
    ROW(REAL, "reconnect-timeout", reconnect_seconds, RESOURCE, SHORE_PATIENCE_SECONDS, false, 0, 1e7, "SECONDS", \
        "how long to wait for a drive on another host that is gone; the step is then computed again") \
    ROW(CHOICE, "speculate", speculate, RESOURCE, SHORE__AUTO, false, 0, 0, "auto|on|off", \
        "update before the gradient norm is known") \
    ROW(CHOICE, "offload", offload, RESOURCE, SHORE__AUTO, false, 0, 0, "auto|on|off", \
        "inner activations that memory has no room for go to the drives and come back, instead of being " \
        "computed again; auto: where the plan says that a step takes less time so; the volumes are made with " \
        "room for them, up to 12 bytes a parameter") \
    ROW(CHOICE, "gather", gather, RESOURCE, SHORE__AUTO, false, 0, 0, "auto|on|off", \
        "of an untied embedding, forward fetches the rows that a batch looks up, instead of the whole table, and " \
        "backward sends the gradients of these rows (with --compress or --update host, of the whole table); auto: " \
        "where the plan says that a step takes less time so") \
    ROW(CHOICE, "update", host_update, RESOURCE, 0, false, 0, 0, "drive|host", \
        "where UPDATE runs; host: state and gradients cross the link, as in ZeRO-Infinity, for comparison") \
    ROW(TEXT, "emulate", emulate, RECORDED, NULL, false, 0, 0, "FILE", \
        "take as long as the machine would that FILE describes, or one that 'longshore machine --list' names; with " \
        "--resume, none ends it")

#define SHORE__SETTINGS_OF_REPORTS(ROW) \
    ROW(WHOLE, "eval-every", eval_every, RESOURCE, 0, false, 0, SHORE__STEPS_MOST, "N", \
        "measure the validation loss every N steps, and at the end") \
    ROW(WHOLE, "sample-every", sample_every, RESOURCE, 0, false, 0, SHORE__STEPS_MOST, "N", \
        "show generated text every N steps") \
    ROW(PACE, "log-every", log_every, RESOURCE, 10, false, 1, SHORE__STEPS_MOST, "N|TIME", \
        "steps (10) or time (30s, 5m) between progress lines where there is no terminal; the first and the last " \
        "step always have one") \
    ROW(TEXT, "tensorboard", tensorboard, RECORDED, NULL, false, 0, 0, "DIR", \
        "write event files of TensorBoard there: losses, norm, learning rate, tokens a second; with --resume, none " \
        "ends it") \
    ROW(WHOLE, "trace", trace, RESOURCE, 0, false, 0, SHORE_TRACE_STEPS_MOST, "N", \
        "record what worked when in the last N steps, for 'longshore trace RUN'; 0: no more") \
    ROW(FLAG, "quiet", quiet, RESOURCE, 0, false, 0, 0, NULL, \
        "no progress and no summary")

/* No flags any more; runs of earlier versions may have them. */
#define SHORE__SETTINGS_OF_BEFORE(ROW) \
    ROW(CHOICE, "compress-values", compress_fp32, GONE, 0, false, 0, 0, "bf16|fp32", NULL) \
    ROW(CHOICE, "compress-variance", frozen_variance, GONE, 0, false, 0, 0, "live|frozen", NULL)

// clang-format on
#define SHORE__SETTINGS(ROW)          \
    SHORE__SETTINGS_OF_MODEL(ROW)     \
    SHORE__SETTINGS_OF_DATA(ROW)      \
    SHORE__SETTINGS_OF_STATE(ROW)     \
    SHORE__SETTINGS_OF_LENGTH(ROW)    \
    SHORE__SETTINGS_OF_OPTIMIZER(ROW) \
    SHORE__SETTINGS_OF_GRADIENTS(ROW) \
    SHORE__SETTINGS_OF_BEFORE(ROW)    \
    SHORE__SETTINGS_OF_MACHINE(ROW)   \
    SHORE__SETTINGS_OF_REPORTS(ROW)

#endif
