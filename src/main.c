#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "cli/cli.h"

static const struct shore__subcommand commands[] = {
    {"train", NULL, "train a model whose state lives on drives, or go on with a run", NULL, shore__cli_train},
    {"plan", NULL, "say what a training would take, before it: memory, disk, time, wear", NULL, shore__cli_plan},
    {"eval", &shore__cli_eval, "loss and perplexity of a run or a model on a text", NULL, NULL},
    {"generate", &shore__cli_generate, "continue a text", NULL, NULL},
    {"render", &shore__cli_render, "show rows of messages as a model's chat template writes them", NULL, NULL},
    {"verify", NULL, "prove on this machine that budgets, chunks and placements give the same bits", NULL,
     shore__cli_verify},
    {"import", NULL, "put a Hugging Face model on drives, as a run at step 0", NULL, shore__cli_import},
    {"export", &shore__cli_export, "write a run as a Hugging Face directory, or as GGUF", NULL, NULL},
    {"inspect", &shore__cli_inspect, "explain a run, its volumes and its identity; digest of its state", NULL, NULL},
    {"report", &shore__cli_report, "write a page about runs: loss, times, memory, wear, plan against truth", NULL,
     NULL},
    {"curves", &shore__cli_curves, "draw losses and throughputs of runs as one SVG", NULL, NULL},
    {"top", &shore__cli_top, "show how a run goes, each second anew", NULL, NULL},
    {"trace", &shore__cli_trace, "write what worked when in the last steps, for Perfetto", NULL, NULL},
    {"remove", &shore__cli_remove, "delete a run with its volumes", NULL, NULL},
    {"snapshot", &shore__cli_snapshot, "keep a named copy of a run's committed state, or remove one", NULL, NULL},
    {"rollback", &shore__cli_rollback, "put a run back to a snapshot", NULL, NULL},
    {"snapshots", &shore__cli_snapshots, "list the snapshots of a run", NULL, NULL},
    {"drive", NULL, "list, measure, add, remove, replace or serve the drives of a run", NULL, shore__cli_drive},
    {"bench", NULL, "measure UPDATE on a drive, the drive itself, rows of a table, or the processor", NULL,
     shore__cli_bench},
    {"machine", &shore__cli_machine, "measure how fast this machine is, for plans; or describe another", NULL, NULL},
    {"doctor", &shore__cli_doctor, "check what this machine has for training, and say what to improve", NULL, NULL},
    {.name = "help"}, /* only for suggestions */
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void overview(void) {
    puts("longshore: trains language models whose state lives on drives, inside a memory budget.\n"
         "\n"
         "usage: longshore COMMAND ...\n");
    for (size_t i = 0; i < COMMANDS - 1; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    puts("\n"
         "'longshore COMMAND --help' explains a command with all its flags and their defaults.\n"
         "'longshore --version' lists what this build contains.\n"
         "\n"
         "A first run:\n"
         "  longshore train --init gpt2-tiny --data book.txt --drive . --memory 512MiB --steps 20 --out "
         "runs/a\n"
         "  longshore generate runs/a --prompt \"It was\"\n"
         "  longshore train --resume runs/a --steps 40\n"
         "\n"
         "Sizes read as people write them: 2GiB, 500M (K, M, G, T and KiB.. are powers of 1,024; KB.. of 1,000).\n"
         "Results go to standard output, messages and progress to standard error.\n"
         "Exit codes: 0 done; 1 failed while running, the committed state is good; 2 wrong usage or input, memory\n"
         "budget or disk space short: nothing was touched, nothing new was made.");
}

/* Makes OpenMP's threads sleep after a short spin. By default they spin at every barrier, and take the processor from
 * the thread they wait for as soon as anything else runs, such as the drives' threads. Threads that sleep at once wake
 * late for each of the thousands of operations of a step. So they spin for some 30 microseconds, which only GNU's
 * runtime supports; others sleep at once. The runtime reads the variable before main begins, hence the second start. A
 * variable that the user sets stays. */
static void let_threads_sleep(char **argv) {
    char path[PATH_MAX];
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return;
    path[n] = 0;
    if (setenv("OMP_WAIT_POLICY", "passive", 0) == 0 && setenv("GOMP_SPINCOUNT", "2000", 0) == 0) execv(path, argv);
}

/* Opens a closed standard stream, which would otherwise become the next opened file and receive the output. An output
 * stream becomes one that cannot be written to: results that nobody gets are still an error. */
static void keep_streams(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) _exit(2);
}

int main(int argc, char **argv) {
    keep_streams();
    let_threads_sleep(argv);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit then fails, and is reported */
    mallopt(M_ARENA_MAX, 1);  /* an arena per thread would not fit small budgets */
    shore__heap_keep(false);
    if (argc < 2) {
        shore__cli_say("a command is missing: 'longshore --help' lists what there is");
        return SHORE__EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0) {
        shore__cli_version();
        return shore__cli_finish(SHORE__EXIT_DONE);
    }
    bool help = strcmp(word, "help") == 0;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (help && argc < 3)) {
        overview();
        return shore__cli_finish(SHORE__EXIT_DONE);
    }
    char *ask_help[] = {argv[2], (char *)"--help", NULL};
    return shore__cli_finish(shore__cli_dispatch(commands, COMMANDS, "command",
                                                 "'longshore --help' lists what there is", help ? 2 : argc - 1,
                                                 help ? ask_help : argv + 1));
}
