/* Names in Hugging Face's Trainer and TRL, nanoGPT, llm.c, DeepSpeed, Megatron-LM, torchtune, axolotl, LLaMA-Factory,
 * unsloth and llama.cpp. If two rows have a name, the first one with a flag that the command takes answers. */
#include "cli/other_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define ACTIVATIONS "what backward needs of activations is kept, moved to drives or computed again, as --memory allows"
#define WHOLE_BATCH ", the sequences of a whole step, computed a few at a time: nothing is to be accumulated"
#define NO_ADAPTERS "all parameters are trained: there are no adapters here, and nothing is frozen"
#define NO_DOWNLOADS "Longshore does not download, and runs no code that comes with a model"
#define ONE_PROCESS "one process computes, with the threads of --threads; its drives may be on other hosts"
#define NO_GPU "Longshore computes on the processor; the GPU backend is being built"
#define OFFLOADED "state lies on the drives of --drive and takes the memory of --memory: there is nothing to set up"
#define QUANTIZED "weights are bf16 or fp32 (--precision); --moments 8bit makes the optimizer's state smaller"
#define CHECKPOINTS "every step is a checkpoint already; --snapshot-every N keeps named copies"
#define SHAPE " FILE, a config.json that says so"

const struct shore__other_name shore__other_names[] = {
    /* the model */
    {"model-name-or-path|model-name|model-path|model-id|model-dir|base-model|pretrained-model-name-or-path|pretrained|"
     "from-pretrained|init-from|load|checkpoint|hf-model|model-weights",
     "model", " DIR, a directory that is on this machine"},
    {"config-name|config-overrides|model-config|model-type|model-preset|arch|architecture", "init",
     " NAME or FILE, a config.json"},
    {"n-layer|n-layers|num-layers|num-hidden-layers|n-head|n-heads|num-heads|num-attention-heads|num-key-value-heads|"
     "num-query-groups|n-embd|d-model|hidden-size|ffn-hidden-size|intermediate-size|vocab-size|rope-theta|"
     "max-position-embeddings",
     "init", SHAPE},
    {"tokenizer-name|tokenizer-name-or-path|tokenizer-path|tokenizer-dir|tokenizer-model|tokenizer-file|tokenizer-type|"
     "vocab-file|merge-file|merges-file",
     "tokenizer", " DIR, a directory with tokenizer.json"},
    {"torch-dtype", "dtype", NULL}, /* of export */
    {"bf16|bfloat16|use-bf16|bf16-full-eval|pure-bf16", "precision", " bf16, which is the default"},
    {"fp32|float32|full-precision", "precision", " fp32"},
    {"dtype|torch-dtype|mixed-precision|amp|half-precision-backend", "precision", NULL},
    {"fp16|half|float16|fp16-opt-level|fp16-full-eval|loss-scale|initial-scale-power", NULL,
     "nothing is computed in fp16, so that no loss is scaled: --precision bf16 is the default"},
    {"tf32", NULL, "products in fp32 are exact fp32; --precision and --products choose between that and bf16"},
    {"load-in-4bit|load-in-8bit|quantization|quantization-bit|quantize|use-qlora|qlora|bnb-4bit-compute-dtype|fp8|"
     "use-double-quant",
     NULL, QUANTIZED},
    {"attn-implementation|flash-attention|flash-attn|use-flash-attn|use-flash-attention|use-flash-attention-2|"
     "sdp-attention|xformers-attention|use-sdpa",
     NULL, "attention keeps no matrix of scores here: there is nothing to choose"},
    {"dropout|attention-dropout|hidden-dropout|resid-pdrop|embd-pdrop|attn-pdrop|label-smoothing|"
     "label-smoothing-factor|neftune-noise-alpha|noisy-embedding-alpha",
     NULL, "the loss is plain cross entropy: there is no dropout, no smoothing of labels and no noise"},
    {"compress-values", NULL, "it was removed: the elements that are sent are bf16; leave it out"},
    {"compress-variance", NULL, "it was removed: every step changes the variance; leave it out"},
    {"lora|use-lora|use-peft|peft|adapter|finetuning-type|lora-r|lora-rank|lora-alpha|lora-dropout|lora-target|"
     "lora-target-modules|lora-target-linear|lora-modules-to-save|lora-path|lora-bias|lora-attn-modules|"
     "apply-lora-to-mlp|target-modules|use-rslora|use-dora|freeze|freeze-layers|freeze-trainable-layers|"
     "unfrozen-parameters|use-galore",
     NULL, NO_ADAPTERS},
    {"trust-remote-code|cache-dir|model-revision|revision|token|hf-token|hub-token|use-auth-token|hf-hub-token|"
     "download|local-files-only|low-cpu-mem-usage",
     NULL, NO_DOWNLOADS},

    /* the data */
    {"train-file|train-files|train-data|train-data-path|training-data|train-path|train-bin|input-bin|input|input-file|"
     "dataset|datasets|dataset-name|dataset-path|dataset-dir|data-path|data-dir|data-file|data-files|text-file|corpus",
     "data", " FILE..., files that are on this machine"},
    {"validation-file|validation-files|validation-data|val-file|val-files|val-bin|val-path|eval-file|eval-data|"
     "eval-dataset|valid-data|dev-file|test-file|test-data|test-datasets",
     "val-data", " FILE..."},
    {"eval-file|eval-data|test-file|test-data|validation-file|val-data|val-file", "data", " FILE..."}, /* of eval */
    {"val-size|val-split|val-set-size|val-fraction|validation-split|validation-fraction|test-size|eval-split|split",
     "val-share", ", from 0 to 1"},
    {"validation-split-percentage", "val-share", ", from 0 to 1 and not in percent"},
    {"block-size|max-seq-length|max-seq-len|max-length|sequence-len|sequence-length|seq-length|cutoff-len|"
     "model-max-length|max-model-length|max-source-length|max-target-length|context-length|context-len|context-size|"
     "ctx-len|ctx-size|n-ctx|n-positions|max-len|ctx",
     "seq-len", ", in tokens"},
    {"packing|sample-packing|eval-sample-packing|pad-to-sequence-len|pad-to-max-length|packed|neat-packing|"
     "group-by-length|length-column-name|group-texts|padding|padding-side",
     NULL,
     "documents are joined by the tokenizer's end of text, and cut into sequences of --seq-len tokens: nothing is "
     "padded"},
    {"dataset-text-field|text-column|text-column-name|text-key|json-key|json-keys|input-key|content-field|column",
     "text-field", " NAME"},
    {"chat-template|template|prompt-template|apply-chat-template|parse-special", "special-tokens",
     " parse, for chats to which their template was applied before"},
    {"train-on-inputs|train-on-prompt|train-on-input|assistant-only-loss|completion-only-loss|"
     "mask-prompt|train-on-responses-only|roles-to-train|conversation-column|remove-unused-columns|"
     "label-names",
     NULL, "text is trained on as it stands, every token of it: apply a template to it first"},
    {"num-workers|dataloader-num-workers|preprocessing-num-workers|dataset-num-proc|num-proc|dataset-processes|"
     "dataloader-pin-memory|pin-memory|dataloader-prefetch-factor|prefetch-factor|dataloader-persistent-workers|"
     "dataloader-drop-last|streaming|dataset-streaming|overwrite-cache|dataset-prepared-path|use-fast-tokenizer|"
     "keep-linebreaks|ignore-data-skip",
     NULL, "text becomes tokens once, before the first step, with all threads: no loader is there to set up"},
    {"max-train-samples|max-samples", NULL, "all of --data is trained on; --steps says how much of it"},
    {"limit|eval-iters|eval-batches|max-eval-samples|max-eval-batches|val-max-steps|eval-max-steps|eval-tokens",
     "max-tokens", NULL}, /* of eval */
    {"eval-iters|eval-batches|max-eval-samples|max-eval-batches|val-max-steps|eval-max-steps|eval-tokens|"
     "limit-val-batches",
     NULL, "validation takes the first 65,536 tokens of its data; 'longshore eval' takes as many as it is told"},

    /* batch and length */
    {"batch-size|train-batch-size|per-device-train-batch-size|per-device-batch-size|per-gpu-train-batch-size|"
     "per-gpu-batch-size|per-device-bs|global-batch-size|total-batch-size|effective-batch-size|device-batch-size|bs|"
     "micro-batch|micro-batch-size|microbatch-size|train-micro-batch-size-per-gpu|train-micro-batch-size|device-train-"
     "microbatch-"
     "size",
     "batch", WHOLE_BATCH},
    {"gradient-accumulation-steps|gradient-accumulation|grad-accum|grad-accum-steps|grad-accumulation|grad-acc-steps|"
     "gas|accumulate-grad-batches|accumulation-steps|update-freq|auto-find-batch-size|average-tokens-across-devices",
     NULL, "--batch is the whole batch of a step, computed a few sequences at a time: no accumulation is needed"},
    {"batch-size|per-device-eval-batch-size|per-gpu-eval-batch-size|eval-batch-size|val-batch-size|eval-accumulation-"
     "steps|"
     "eval-micro-batch-size",
     NULL, "measuring takes as many sequences at once as --memory allows: there is nothing to set"},
    {"max-steps|max-iters|max-iterations|train-iters|train-steps|num-steps|num-iters|num-iterations|num-train-steps|"
     "num-training-steps|max-train-steps|total-steps|total-iters|iterations|iters|n-steps|max-updates",
     "steps", NULL},
    {"num-train-epochs|num-epochs|n-epochs|max-epochs|train-epochs|epoch|n-epoch|total-epochs", "epochs", NULL},
    {"max-steps-per-epoch|max-train-time|max-time|time-limit|stop-after", "stop-at", ", a step"},

    /* optimizer and schedule */
    {"learning-rate|max-lr|peak-lr|base-lr|init-lr|max-learning-rate|initial-learning-rate|step-size|optimizer.lr",
     "lr", NULL},
    {"lr-scheduler-type|lr-scheduler|lr-schedule|lr-decay-style|scheduler|scheduler-type|learning-rate-schedule|"
     "lr-policy|decay-lr|decay-schedule|lr-scheduler-name",
     "schedule", NULL},
    {"warmup-steps|warmup-iters|warmup-iterations|num-warmup-steps|lr-warmup-steps|lr-warmup-iters|warmup-updates|"
     "warmup-num-steps|n-warmup|warm-up|warm-up-steps",
     "warmup", ", in steps"},
    {"warmup-ratio|warmup-fraction|warmup-frac|lr-warmup-fraction|lr-warmup-ratio|warmup-proportion|pct-start",
     "warmup", ", in steps and not as a share of them"},
    {"lr-decay-iters|lr-decay-steps|lr-scheduler-kwargs|num-decay-steps|decay-steps|lr-wsd-decay-iters|num-cycles",
     NULL, "the schedule ends where --steps does, at --min-lr"},
    {"min-learning-rate|lr-min|lr-end|final-lr|end-lr|eta-min|learning-rate-end|final-learning-rate", "min-lr", NULL},
    {"min-lr-ratio|min-lr-rate|min-lr-frac|cosine-min-lr-ratio|final-lr-frac|final-learning-rate-fraction|"
     "learning-rate-decay-frac|lr-decay-frac|final-lr-ratio",
     "min-lr", ", a rate and not a share of --lr"},
    {"optim|optimizer-type|optimizer-name|optim-type|opt|optimiser", "optimizer", "; with 8-bit state: --moments 8bit"},
    {"optim-args|optimizer-kwargs|optim-target-modules", NULL,
     "the optimizer's numbers are --lr, --beta1, --beta2, --eps, --momentum and --weight-decay"},
    {"adam8bit|adam-8bit|adamw-8bit|use-8bit-adam|use-adam8bit|use-8bit-optimizer|optim-bits|optimizer-bits", "moments",
     " 8bit"},
    {"adam-beta1|adam-b1|b1|optimizer-beta1", "beta1", NULL},
    {"adam-beta2|adam-b2|b2|optimizer-beta2", "beta2", NULL},
    {"betas|adam-betas|optimizer-betas", "beta1", " and --beta2"},
    {"adam-epsilon|adam-eps|adam-e|epsilon|optimizer-eps|optimizer-epsilon", "eps", NULL},
    {"sgd-momentum|optimizer-momentum", "momentum", NULL},
    {"wd|l2|adam-weight-decay|decay|optimizer-weight-decay|weight-decay-rate", "weight-decay", NULL},
    {"max-grad-norm|max-gradient-norm|grad-clip|clip-grad|clip-grad-norm|gradient-clipping|gradient-clip-val|"
     "grad-clip-norm|gradient-clip-norm|clip-norm|clip-gradients|clip-value|max-norm|global-clip-norm",
     "clip", ", the largest norm of all gradients together"},
    {"random-seed|manual-seed|data-seed|sampler-seed|global-seed|torch-seed|rng-seed|random-state|train-seed|"
     "full-determinism|deterministic",
     "seed", NULL},

    /* where it goes */
    {"output-dir|out-dir|output|output-path|output-directory|save-dir|save-path|save-directory|checkpoint-dir|"
     "checkpoint-path|checkpoint-folder|ckpt-dir|run-dir|run-name|experiment-name|exp-name|project-dir|log-dir|"
     "output-log-dir|results-dir|save|outfile|outdir",
     "out", NULL},
    {"overwrite-output-dir|overwrite-output|force", "overwrite", NULL},
    {"resume-from-checkpoint|resume-from|resume-path|resume-training|resume-ckpt|resume-checkpoint|auto-resume|"
     "auto-resume-from-checkpoints|continue-from|continue-training|from-checkpoint|load-checkpoint|load-dir|restart",
     "resume", " RUN"},
    {"save-steps|save-every|save-interval|save-freq|save-frequency|save-every-n-steps|checkpoint-every|"
     "checkpoint-interval|checkpoint-freq|checkpointing-steps|ckpt-every|ckpt-interval|model-save-every|"
     "checkpoint-every-n-steps",
     "snapshot-every", "; every step is a checkpoint without it"},
    {"save-total-limit|save-limit|keep-last|keep-last-n|keep-last-n-checkpoints|keep-checkpoints|max-checkpoints|"
     "max-checkpoints-to-keep|num-checkpoints|checkpoints-total-limit|nkeep",
     "keep", ", with --snapshot-every"},
    {"save-strategy|always-save-checkpoint|save-model|save-only-model|save-safetensors|save-on-each-node|"
     "saves-per-epoch|save-optimizer|save-last|async-save|no-save|save-adapter-weights-only|save-final-model",
     NULL, CHECKPOINTS},
    {"load-best-model-at-end|metric-for-best-model|greater-is-better|early-stopping|early-stopping-patience|patience|"
     "early-stopping-threshold|keep-best|save-best",
     NULL, "the newest state is kept; --snapshot-every N keeps others, and 'longshore rollback' goes back to one"},
    {"push-to-hub|hub-model-id|hub-strategy|hub-private-repo|hf-repo|hub-repo", NULL,
     "nothing is uploaded; 'longshore export RUN --out DIR' makes a Hugging Face directory that can be"},

    /* memory and drives */
    {"max-memory|max-memory-mb|memory-limit|memory-budget|max-ram|ram|host-memory|cpu-memory|mem|mem-limit|"
     "gpu-memory-utilization",
     "memory", NULL},
    {"nvme-path|nvme|nvme-dir|offload-dir|offload-folder|offload-path|swap-dir|swap-folder|disk|disks|ssd|drives|"
     "storage|storage-path|drive-path",
     "drive", " PATH..."},
    {"deepspeed|deepspeed-config|deepspeed-config-file|ds-config|zero|zero-stage|zero-optimization|stage|fsdp|"
     "fsdp-config|use-fsdp|fsdp-transformer-layer-cls-to-wrap|fsdp-cpu-offload|offload-optimizer|offload-param|"
     "offload-optimizer-device|offload-param-device|offload-params|cpu-offload|optimizer-in-bwd|"
     "optimizer-cpu-offload|use-distributed-optimizer|fsdp-final-state-dict-type|aio|zero3-init-flag|"
     "stage3-gather-16bit-weights-on-model-save|reduce-bucket-size|accelerate-config|accelerator-config|use-cpu-"
     "initialization",
     NULL, OFFLOADED},
    {"gradient-checkpointing|gradient-checkpointing-kwargs|use-gradient-checkpointing|activation-checkpointing|"
     "enable-activation-checkpointing|enable-activation-offloading|activation-offloading|recompute|"
     "recompute-activations|recompute-granularity|recompute-method|recompute-num-layers|checkpoint-activations|remat|"
     "cpu-checkpointing|disable-gradient-checkpointing",
     NULL, ACTIVATIONS},

    /* the machine */
    {"num-threads|n-threads|nthreads|cpu-threads|num-cpus|n-cpus|num-cpu-threads-per-process|omp-num-threads|cores|"
     "num-cores",
     "threads", NULL},
    {"device|devices|device-map|cuda|no-cuda|use-cpu|use-cuda|gpu|gpus|gpu-id|gpu-ids|n-gpu|num-gpus|ngpu|accelerator|"
     "device-type|n-gpu-layers|ngl|use-mps-device",
     NULL, NO_GPU},
    {"local-rank|local-world-size|world-size|rank|nproc-per-node|nnodes|num-nodes|node-rank|num-processes|num-machines|"
     "master-addr|master-port|main-process-port|multi-gpu|distributed|distributed-backend|ddp|ddp-backend|"
     "ddp-find-unused-parameters|ddp-timeout|ddp-bucket-cap-mb|tensor-parallel-size|tensor-model-parallel-size|"
     "pipeline-parallel-size|pipeline-model-parallel-size|context-parallel-size|expert-model-parallel-size|"
     "sequence-parallel|sequence-parallel-degree|data-parallel-size|dp-size|tp-size|pp-size",
     NULL, ONE_PROCESS},
    {"compile|torch-compile|torch-compile-backend|torch-compile-mode|jit|jit-mode-eval|use-liger-kernel|liger|"
     "enable-liger-kernel|use-unsloth|use-ipex|fused",
     NULL,
     "nothing is compiled or to be fused: kernels are chosen for the processor ('longshore --version' names them)"},

    /* what is shown */
    {"logging-steps|log-interval|log-steps|log-freq|log-every-n-steps|logging-interval|print-every|print-freq|"
     "steps-per-print|report-every|logging-strategy|logging-first-step",
     "log-every", NULL},
    {"eval-steps|eval-interval|eval-freq|eval-every-n-steps|evaluation-steps|val-interval|val-every|val-loss-every|"
     "validation-interval|val-check-interval|evals-per-epoch|eval-strategy|evaluation-strategy|eval-iter",
     "eval-every", ", with --val-data or --val-share"},
    {"sample-interval|sample-steps|generate-every|sample-freq", "sample-every", NULL},
    {"disable-tqdm|no-progress|no-progress-bar|silent|no-verbose", "quiet", NULL},
    {"report-to|wandb|use-wandb|wandb-log|wandb-project|wandb-entity|wandb-run-name|wandb-run-id|wandb-name|"
     "tensorboard|tensorboard-dir|use-tensorboard|logging-dir|log-file|metric-logger|mlflow-tracking-uri|use-comet|"
     "plot-loss|log-level|wall-clock-breakdown|include-num-input-tokens-seen|swanlab-project|trackio-space-id",
     NULL, "RUN/metrics.jsonl gets one JSON object for each step: what draws curves reads that"},
    {"do-train|do-eval|do-predict|eval-only|evaluate-only|train-only|task", NULL,
     "'longshore train' trains, 'longshore eval' measures, 'longshore generate' continues a text"},

    /* generate and export */
    {"max-new-tokens|n-predict|num-tokens|max-length|max-gen-len|gen-length|n-tokens|length|tokens", "max-tokens",
     NULL},
    {"temp", "temperature", NULL},
    {"do-sample|greedy", "temperature", " X; 0 takes the most likely token"},
    {"start|text|prefix", "prompt", " TEXT"},
    {"max-shard-size", "shard-size", NULL},

    /* llm.c */
    {"-i", "data", " FILE..."},
    {"-j", "val-data", " FILE..."},
    {"-e", "model", " DIR, or --init"},
    {"-o", "out", " RUN"},
    {"-b", "batch", WHOLE_BATCH},
    {"-d", "batch", ", in sequences"},
    {"-t", "seq-len", NULL},
    {"-x", "steps", NULL},
    {"-l", "lr", NULL},
    {"-k", "schedule", NULL},
    {"-u", "warmup", NULL},
    {"-q", "min-lr", ", a rate and not a share of --lr"},
    {"-c", "weight-decay", NULL},
    {"-v", "eval-every", NULL},
    {"-s", "sample-every", NULL},
    {"-n", "snapshot-every", "; every step is a checkpoint without it"},
    {"-nk", "keep", ", with --snapshot-every"},
    {"-y", "resume", " RUN"},
    {"-z", NULL, OFFLOADED},
    {"-r", NULL, ACTIVATIONS},
};
const size_t shore__other_names_count = sizeof shore__other_names / sizeof *shore__other_names;

static char plain(char c) {
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

static bool is_one_of(const char *names, const char *name) {
    size_t length = strlen(name), n;
    for (const char *at = names;; at += n + 1) {
        size_t same = 0;
        n = strcspn(at, "|");
        while (n == length && same < n && plain(name[same]) == at[same])
            same++;
        if (n == length && same == n) return true;
        if (!at[n]) return false;
    }
}

static bool takes(const struct shore__command_line *line, const char *flag) {
    int i = shore__option_find(line, flag);
    return i >= 0 && shore__option_taken(line, &line->options[i]);
}

const char *shore__other_name_hint(const struct shore__command_line *line, const char *name, const char *dashes,
                                   char *out, size_t bytes) {
    for (size_t i = 0; i < shore__other_names_count; i++) {
        const struct shore__other_name *row = &shore__other_names[i];
        if (!is_one_of(row->names, name) || (row->flag && !takes(line, row->flag))) continue;
        if (row->flag)
            snprintf(out, bytes, "here it is %s%s%s", dashes, row->flag, row->more ? row->more : "");
        else
            snprintf(out, bytes, "%s", row->more);
        return out;
    }
    return NULL;
}
