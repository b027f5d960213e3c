/* What system calls on paged memory once got wrong, each as a section:   gate_found [SECTION...]
 *
 * All memory of malloc is larger than what is small enough to stay unpaged; evict() swaps it out.
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>

extern char **environ;

static void evict(void)
{
    static unsigned char *filler;
    if (filler == NULL)
        filler = map_pages(40 * MIB / PAGE);
    for (size_t i = 0; i < 40 * MIB; i += PAGE)
        filler[i]++;
}

static void *block(size_t size)
{
    void *at = malloc(size);
    MUST(at != NULL);
    memset(at, 'A', size);
    return at;
}

static int status_of(pid_t child)
{
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A blocking write to a pipe writes all: it was cut after 1 MiB. */
static void long_write(void)
{
    int ends[2];
    size_t length = 4 * MIB;
    unsigned char *at = block(length);
    MUST(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        static char part[1 << 16];
        size_t total = 0;
        close(ends[1]);
        for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;)
            total += (size_t)got;
        _exit(total == length ? 0 : 1);
    }
    MUST(close(ends[0]) == 0 && write(ends[1], at, length) == (ssize_t)length);
    MUST(close(ends[1]) == 0 && status_of(child) == 0);
    int zeros = open("/dev/zero", O_RDONLY);
    MUST(read(zeros, at, length) == (ssize_t)length && close(zeros) == 0);
    free(at);
}

/* What another thread changes during poll stays: all of the array was copied back. */
static struct pollfd *watched;
static int wake[2], idle[2];

static void *change_later(void *unused)
{
    usleep(50000);
    watched[1].fd = -1;
    MUST(write(wake[1], "x", 1) == 1);
    return unused;
}

static void changed_poll(void)
{
    pthread_t thread;
    watched = block(1 << 16);
    MUST(pipe(wake) == 0 && pipe(idle) == 0);
    watched[0] = (struct pollfd){wake[0], POLLIN, 0};
    watched[1] = (struct pollfd){idle[0], POLLIN, 0};
    MUST(pthread_create(&thread, NULL, change_later, NULL) == 0);
    MUST(poll(watched, 2, 10000) == 1 && watched[1].fd == -1);
    MUST(pthread_join(thread, NULL) == 0);
    free(watched);
}

/* The C library passes the environment to the kernel itself, with all signals blocked. */
static void environment(void)
{
    char *variable = block(1 << 16), **moved = block(1 << 16);
    strcpy(variable, "A=seen");
    size_t count = 0;
    for (; environ[count] != NULL; count++)
        moved[count] = environ[count];
    moved[count] = variable, moved[count + 1] = NULL;
    environ = moved;
    evict();
    MUST(system("test \"$A\" = seen") == 0);
    FILE *pipe = popen("echo $A", "r");
    char answer[16] = "";
    MUST(pipe != NULL && fgets(answer, sizeof answer, pipe) != NULL && pclose(pipe) == 0);
    MUST(strcmp(answer, "seen\n") == 0);
}

/* Attributes of a spawned process were passed on while all signals were blocked. */
static void spawn_attributes(void)
{
    posix_spawnattr_t *attributes = block(1 << 16);
    char *arguments[] = {"true", NULL};
    sigset_t none;
    pid_t child;
    sigemptyset(&none);
    MUST(posix_spawnattr_init(attributes) == 0);
    MUST(posix_spawnattr_setsigmask(attributes, &none) == 0);
    MUST(posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK) == 0);
    MUST(posix_spawnp(&child, "true", NULL, attributes, arguments, environ) == 0);
    MUST(status_of(child) == 0);
    free(attributes);
}

/* The kernel reads pages of a spliced buffer after the call: copies were overwritten. */
static void spliced(void)
{
    int first[2], second[2];
    unsigned char *a = block(1 << 16), *b = block(1 << 16), got[PAGE];
    memset(b, 'B', 1 << 16);
    MUST(pipe(first) == 0 && pipe(second) == 0);
    struct iovec buffer = {a, PAGE};
    MUST(vmsplice(first[1], &buffer, 1, 0) == (ssize_t)PAGE);
    MUST(write(second[1], b, PAGE) == (ssize_t)PAGE);
    MUST(read(first[0], got, PAGE) == (ssize_t)PAGE);
    for (size_t i = 0; i < PAGE; i++)
        MUST(got[i] == 'A');
    free(a), free(b);
}

/* A child on a paged stack began in the page of the gate. */
static int child_reads(void *at)
{
    int zeros = open("/dev/zero", O_RDONLY);
    return read(zeros, at, PAGE) == (ssize_t)PAGE ? 7 : 8;
}

static void cloned(void)
{
    unsigned char *stack = map_pages(MIB / PAGE), *at = block(1 << 16);
    int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    MUST(status_of(clone(child_reads, stack + MIB, flags, at)) == 7);
    MUST(munmap(stack, MIB) == 0);
    free(at);
}

/* These set masks, too: a trapped call ended the process when SIGSYS was blocked. */
static ucontext_t here;

static void masks(void)
{
    char *at = block(1 << 16);
    volatile int rounds = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    int before = sigblock(~0);
    MUST(syscall(SYS_access, strcpy(at, "/"), 0) == 0);
    sigsetmask(~0);
    MUST(syscall(SYS_access, at, 0) == 0);
    sigsetmask(before);
#pragma GCC diagnostic pop
    MUST(getcontext(&here) == 0);
    if (rounds++ == 0) {
        sigfillset(&here.uc_sigmask);
        MUST(setcontext(&here) == 0);
    }
    MUST(syscall(SYS_access, at, 0) == 0);
    free(at);
    sigset_t none;
    sigemptyset(&none);
    MUST(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
}

/* Signals while coroutines run on paged stacks, of which the lower pages are missing; and exec with
 * strings on such a stack, after a directory of PATH without the program. */
enum { COROUTINES = 100, STACK = 1 << 16 };

static ucontext_t caller, coroutines[COROUTINES];
static volatile int ticks;

static void tick(int signal)
{
    ticks += signal == SIGALRM;
}

static void turn(int id)
{
    for (;;) {
        for (volatile int i = 0; i < 200000; i++)
            continue;
        MUST(swapcontext(&coroutines[id], &caller) == 0);
    }
}

static void make_coroutine(ucontext_t *coroutine, void (*run)(void), int id)
{
    MUST(getcontext(coroutine) == 0);
    coroutine->uc_stack.ss_sp = block(STACK);
    coroutine->uc_stack.ss_size = STACK - (size_t)(id * 131) % 4000;
    coroutine->uc_link = &caller;
    makecontext(coroutine, run, 1, id);
}

static void interrupted_coroutines(void)
{
    struct sigaction action = {.sa_handler = tick};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    for (int id = 0; id < COROUTINES; id++)
        make_coroutine(&coroutines[id], (void (*)(void))turn, id);
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int round = 0; round < 5; round++) {
        evict();
        for (int id = 0; id < COROUTINES; id++)
            MUST(swapcontext(&caller, &coroutines[id]) == 0);
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    MUST(ticks > 10);
}

static void run_program(void)
{
    char *arguments[] = {"sh", "-c", strdup("test \"$B\" = 5"), NULL};
    execvp("sh", arguments);
    _exit(126);
}

static void exec_of_coroutine(void)
{
    pid_t child = fork();
    if (child == 0) {
        ucontext_t *coroutine = &coroutines[0];
        MUST(setenv("PATH", "/nonexistent:/usr/bin:/bin", 1) == 0 && setenv("B", "5", 1) == 0);
        make_coroutine(coroutine, run_program, 0);
        swapcontext(&caller, coroutine);
        _exit(125);
    }
    MUST(status_of(child) == 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} SECTIONS[] = {
    {"long_write", long_write}, {"changed_poll", changed_poll},
    {"spawn_attributes", spawn_attributes}, {"spliced", spliced}, {"cloned", cloned},
    {"masks", masks}, {"interrupted_coroutines", interrupted_coroutines},
    {"exec_of_coroutine", exec_of_coroutine}, {"environment", environment},
};

int main(int count, char **arguments)
{
    for (size_t i = 0; i < sizeof SECTIONS / sizeof *SECTIONS; i++) {
        if (count > 1 && strcmp(arguments[1], SECTIONS[i].name) != 0)
            continue;
        evict();
        SECTIONS[i].run();
        printf("%s: ok\n", SECTIONS[i].name);
        fflush(stdout);
    }
    return 0;
}
