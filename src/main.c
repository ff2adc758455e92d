#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/suggest.h"
#include "cli/cli.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"train", shore__cli_train, "train a model whose state lives on drives, or go on with a run"},
    {"eval", shore__cli_eval, "loss and perplexity of a run or a model on a text"},
    {"generate", shore__cli_generate, "continue a text"},
    {"verify", shore__cli_verify, "prove on this machine that budgets, chunks and placements give the same bits"},
    {"import", shore__cli_import, "put a Hugging Face model on drives, as a run at step 0"},
    {"export", shore__cli_export, "write a run as a Hugging Face directory"},
    {"inspect", shore__cli_inspect, "explain a run, its volumes and its identity; digest of its state"},
    {"remove", shore__cli_remove, "delete a run with its volumes"},
    {"snapshot", shore__cli_snapshot, "keep a named copy of a run's committed state, or remove one"},
    {"rollback", shore__cli_rollback, "put a run back to a snapshot"},
    {"snapshots", shore__cli_snapshots, "list the snapshots of a run"},
    {"drive", shore__cli_drive, "the drives of a run: what they are, how fast, more of them, fewer, other ones"},
    {"bench", shore__cli_bench, "measure UPDATE on a drive, the drive itself, or the processor"},
    {"doctor", shore__cli_doctor, "what this machine has for training, and what to do about what it has not"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void overview(void) {
    puts("longshore: trains language models whose state lives on drives, inside a memory budget.\n"
         "\n"
         "usage: longshore COMMAND ...\n");
    for (size_t i = 0; i < COMMANDS; i++)
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

static int unknown_command(const char *word) {
    const char *names[COMMANDS + 1];
    for (size_t i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    names[COMMANDS] = "help";
    const char *near = shore__suggest(word, names, COMMANDS + 1);
    char escaped[128];
    shore__escape(word, strlen(word), escaped, sizeof escaped);
    if (near)
        shore__cli_say("unknown command '%s': did you mean %s?", escaped, near);
    else
        shore__cli_say("unknown command '%s': 'longshore --help' lists what there is", escaped);
    return SHORE__EXIT_USAGE;
}

/* OpenMP's threads spin at every barrier unless told otherwise, and take the processor from the thread they wait for as
 * soon as anything else runs: the drives' threads do. But those that sleep at once wake late for each of the thousands
 * of operations of a step. So they spin for some 30 microseconds (which only GNU's runtime can be told; others sleep at
 * once). The runtime reads this before main begins, hence the second start. Who sets it knows better. */
static void let_threads_sleep(char **argv) {
    char path[PATH_MAX];
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return;
    path[n] = 0;
    if (setenv("OMP_WAIT_POLICY", "passive", 0) == 0 && setenv("GOMP_SPINCOUNT", "2000", 0) == 0) execv(path, argv);
}

/* A standard stream that is closed would be the next file that is opened, and get what is printed. For output, one that
 * cannot be written to: results that nobody gets are still an error. */
static void keep_streams(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) _exit(2);
}

int main(int argc, char **argv) {
    keep_streams();
    let_threads_sleep(argv);
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit of its size is a failed write, which is named */
    mallopt(M_ARENA_MAX, 1);  /* an arena for each thread would not fit small budgets */
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
    char *ask_help[] = {(char *)"--help", NULL};
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, help ? argv[2] : word) != 0) continue;
        return shore__cli_finish(help ? commands[i].run(1, ask_help) : commands[i].run(argc - 2, argv + 2));
    }
    return unknown_command(help ? argv[2] : word);
}
