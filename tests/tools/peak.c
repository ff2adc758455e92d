/* peak PROGRAM ARGS...: runs a program and prints "peak BYTES" on stderr when it ends, with its exit code. The number
 * is the largest VmHWM that /proc showed, or what the kernel accounted, whichever is greater: as seen from outside.
 * posix_spawn, because the resident pages of a forked copy of this process would be counted as the program's. */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static volatile sig_atomic_t child;

static void pass_on(int signal_number) {
    if (child > 0) kill((pid_t)child, signal_number);
}

static unsigned long long proc_hwm_bytes(pid_t pid) {
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtoull(line + 6, NULL, 10);
    }
    fclose(file);
    return kib * 1024;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: peak PROGRAM ARGS...\n"), 2;
    pid_t pid;
    int rc = posix_spawnp(&pid, argv[1], NULL, NULL, argv + 1, environ);
    if (rc != 0) return fprintf(stderr, "peak: %s: %s\n", argv[1], strerror(rc)), 127;
    child = pid;
    signal(SIGINT, pass_on);
    signal(SIGTERM, pass_on);

    unsigned long long peak = 0;
    siginfo_t info;
    /* WNOWAIT: a process that has ended but is not yet collected still accounts what it used. */
    for (;;) {
        info.si_pid = 0;
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG) != 0 && errno != EINTR) break;
        unsigned long long now = proc_hwm_bytes(pid);
        if (now > peak) peak = now;
        if (info.si_pid == pid) break;
        usleep(2000);
    }
    int status;
    struct rusage usage;
    while (wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {
    }
    unsigned long long accounted = (unsigned long long)usage.ru_maxrss * 1024;
    fprintf(stderr, "peak %llu\n", accounted > peak ? accounted : peak);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
