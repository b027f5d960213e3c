/* Times the ways to make a process, with some memory in use. Prints a line "OPERATION
 * MICROSECONDS" for each: the median of many.
 *
 *   forks MIB TIMES
 *
 * Once in 16 forks the child of "fork" checks a word of each page. */
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static uint64_t *words;
static size_t pages;
static char *const command[] = {"/bin/true", NULL};

enum { WORDS_OF_A_PAGE = 512, TIMES_MAX = 10000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void die(const char *what) {
    perror(what);
    exit(2);
}

static void reap(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) die("waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "forks: a child ended with status %#x\n", status);
        exit(1);
    }
}

static int wrong_pages(void) {
    size_t wrong = 0;
    for (size_t page = 0; page < pages; page++) wrong += words[page * WORDS_OF_A_PAGE] != page + 1;
    return wrong > 100 ? 100 : (int)wrong;
}

/* fork alone: until it returns in the parent. */
static double forked(int round) {
    double start = now();
    pid_t child = fork();
    if (child == 0) _exit(round % 16 == 0 ? wrong_pages() : 0);
    double took = now() - start;
    if (child < 0) die("fork");
    reap(child);
    return took;
}

static double forked_and_reaped(int round) {
    (void)round;
    double start = now();
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0) die("fork");
    reap(child);
    return now() - start;
}

/* The child writes one page and reads one. */
static double forked_and_touched(int round) {
    double start = now();
    pid_t child = fork();
    if (child == 0) {
        size_t page = (size_t)round % pages;
        words[page * WORDS_OF_A_PAGE]++;
        _exit(words[page * WORDS_OF_A_PAGE] != page + 2);
    }
    if (child < 0) die("fork");
    reap(child);
    return now() - start;
}

static double forked_and_executed(int round) {
    (void)round;
    double start = now();
    pid_t child = fork();
    if (child == 0) {
        execv(command[0], command);
        _exit(99);
    }
    if (child < 0) die("fork");
    reap(child);
    return now() - start;
}

static double vforked_and_executed(int round) {
    (void)round;
    double start = now();
    pid_t child = vfork();
    if (child == 0) {
        execv(command[0], command);
        _exit(99);
    }
    if (child < 0) die("vfork");
    reap(child);
    return now() - start;
}

static double spawned(int round) {
    (void)round;
    double start = now();
    pid_t child;
    if (posix_spawn(&child, command[0], NULL, NULL, command, environ) != 0) die("posix_spawn");
    reap(child);
    return now() - start;
}

static void measure(const char *name, double (*once)(int), int times) {
    static double took[TIMES_MAX];
    for (int round = 0; round < times; round++) took[round] = once(round);
    qsort(took, times, sizeof *took, compare);
    printf("%s %.1f\n", name, took[times / 2]);
    fflush(stdout);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: forks MIB TIMES\n");
        return 2;
    }
    pages = strtoul(arguments[1], NULL, 10) * 256;
    int times = atoi(arguments[2]);
    if (pages == 0 || times < 1 || times > TIMES_MAX) {
        fprintf(stderr, "forks: MIB from 1 on, TIMES from 1 to %d\n", TIMES_MAX);
        return 2;
    }
    words = aligned_alloc(4096, pages * 4096);
    if (!words) die("aligned_alloc");
    for (size_t page = 0; page < pages; page++) words[page * WORDS_OF_A_PAGE] = page + 1;
    measure("fork", forked, times);
    measure("fork+exit+wait", forked_and_reaped, times);
    measure("fork+write+exit+wait", forked_and_touched, times);
    measure("fork+exec+wait", forked_and_executed, times);
    measure("vfork+exec+wait", vforked_and_executed, times);
    measure("posix_spawn+wait", spawned, times);
    return wrong_pages();
}
