/* Possible failures where a thread serves its own faults: the program's own SIGBUS, a process
 * without descriptors, filters, small stacks, memory that is used while signals are blocked. Prints
 * its findings, which are the same without Highwater. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, NEED = 20 * MIB };

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

#define MUST(it)             \
    do {                     \
        if (!(it))           \
            die(#it);        \
    } while (0)

/* Larger than the budget, so that pages touched earlier are swapped out. */
static unsigned char *all;

static unsigned char value_of(size_t at, int seed)
{
    return (unsigned char)(at / PAGE * 7 + at + (size_t)seed);
}

static void fill(int seed)
{
    for (size_t at = 0; at < NEED; at += 512)
        all[at] = value_of(at, seed);
}

static size_t wrong(int seed)
{
    size_t wrong = 0;
    for (size_t at = 0; at < NEED; at += 512)
        wrong += all[at] != value_of(at, seed);
    return wrong;
}

static sigjmp_buf back;
static volatile sig_atomic_t signals, blocked_there;

static void on_bus(int signal, siginfo_t *info, void *context)
{
    (void)context;
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    blocked_there = sigismember(&now, SIGUSR2) && !sigismember(&now, SIGUSR1);
    signals += signal == SIGBUS && info->si_addr != NULL;
    siglongjmp(back, 1);
}

/* A file that was mapped and then truncated: the kernel's own SIGBUS, with the program's mask. */
static void cut_file(void)
{
    char name[] = "/tmp/in_thread.XXXXXX";
    int file = mkstemp(name);
    MUST(file >= 0 && unlink(name) == 0 && ftruncate(file, 64 * PAGE) == 0);
    char *mapped = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    /* Map the file over paged memory, too. */
    char *over = mmap(all + 4 * MIB, 64 * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0);
    MUST(mapped != MAP_FAILED && over == (char *)all + 4 * MIB);
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO}, before;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR2);
    MUST(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGBUS, NULL, &before) == 0);
    MUST(before.sa_sigaction == on_bus && sigismember(&before.sa_mask, SIGUSR2));
    MUST(ftruncate(file, 0) == 0);
    for (int i = 0; i < 6; i++)
        if (sigsetjmp(back, 1) == 0)
            (void)*(volatile char *)((i % 2 ? over : mapped) + i * PAGE);
    printf("a file that was cut: %d signals, blocked %d\n", signals, blocked_there);
    MUST(signal(SIGBUS, SIG_DFL) != SIG_ERR && close(file) == 0);
    MUST(mmap(over, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
              0) == over);
}

/* SIGBUS sent by a process, and the default action. */
static void sent(void)
{
    signals = 0;
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_RESETHAND};
    MUST(sigaction(SIGBUS, &action, NULL) == 0);
    if (sigsetjmp(back, 1) == 0)
        kill(getpid(), SIGBUS);
    MUST(sigaction(SIGBUS, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    pid_t child = fork();
    if (child == 0) {
        fill(9);
        raise(SIGBUS);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    signal(SIGBUS, SIG_IGN);
    raise(SIGBUS);
    printf("sent: %d signals, a child that ended by %d\n", signals, WTERMSIG(status));
    signal(SIGBUS, SIG_DFL);
}

/* A thread, and its children, are served with all signals blocked. */
static void *with_all_blocked(void *found)
{
    sigset_t every;
    sigfillset(&every);
    MUST(sigprocmask(SIG_SETMASK, &every, NULL) == 0);
    *(size_t *)found = wrong(1);
    return found;
}

static void blocked(void)
{
    fill(1);
    size_t *found = malloc(sizeof *found);
    pthread_t *thread = malloc(sizeof *thread);
    pthread_attr_t *small = malloc(sizeof *small);
    MUST(pthread_attr_init(small) == 0 && pthread_attr_setstacksize(small, 32 << 10) == 0);
    MUST(wrong(1) == 0 && pthread_create(thread, small, with_all_blocked, found) == 0);
    MUST(wrong(1) == 0 && pthread_join(*thread, NULL) == 0);
    printf("with signals blocked, on a small stack: %zu wrong\n", *found);
}

/* A child of vfork closes everything and then uses swapped-out memory. */
static void without_descriptors(void)
{
    fill(2);
    static volatile size_t found;
    found = 1;
    pid_t child = vfork();
    if (child == 0) {
        syscall(SYS_close_range, 3, ~0u, 0);
        found = wrong(2);
        _exit(3);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    fill(3);
    printf("without descriptors: %zu wrong, then %zu\n", found, wrong(3));
}

/* posix_spawn: its arguments are swapped out, and it uses them with signals blocked. */
static void spawn(void)
{
    extern char **environ;
    posix_spawn_file_actions_t *actions = malloc(sizeof *actions);
    posix_spawnattr_t *attributes = malloc(sizeof *attributes);
    pid_t *child = malloc(sizeof *child);
    char **line = malloc(4 * sizeof *line);
    line[0] = strdup("sh"), line[1] = strdup("-c"), line[2] = strdup("exit $((3 + 4))");
    line[3] = NULL;
    MUST(posix_spawn_file_actions_init(actions) == 0 && posix_spawnattr_init(attributes) == 0);
    MUST(posix_spawn_file_actions_addopen(actions, 9, "/dev/null", O_RDONLY, 0) == 0);
    MUST(posix_spawn_file_actions_adddup2(actions, 9, 8) == 0);
    MUST(posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP) == 0);
    for (int i = 0; i < 5; i++) {
        int status;
        fill(4 + i);
        MUST(posix_spawnp(child, "sh", actions, attributes, line, environ) == 0);
        MUST(wrong(4 + i) == 0 && waitpid(*child, &status, 0) == *child);
        printf("spawned: %d\n", WEXITSTATUS(status));
    }
}

/* A filter in a child, which allows a thread only a few system calls. */
static void filter(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sigaltstack, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    fill(11);
    for (int by_number = 0; by_number < 2; by_number++) {
        pid_t child = fork();
        if (child == 0) {
            MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
            MUST((by_number ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
                            : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) == 0);
            _exit(wrong(11) ? 1 : 42);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        printf("filtered: %d, signal %d\n", WEXITSTATUS(status), WTERMSIG(status));
    }
}

/* A thread that the C library did not make: no signal stack, no wrapper. */
static int raw_thread(void *found)
{
    *(volatile size_t *)found = wrong(12);
    return 0;
}

static void raw(void)
{
    static volatile size_t found = 1;
    fill(12);
    char *stack = mmap(NULL, MIB, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    MUST(stack != MAP_FAILED);
    int child = clone(raw_thread, stack + MIB, CLONE_VM | CLONE_FS | SIGCHLD, (void *)&found);
    MUST(child > 0 && waitpid(child, NULL, 0) == child);
    printf("a task of clone: %zu wrong\n", found);
}

/* Signals that arrive while faults are served: their handlers fault, too, and jump. */
static void on_alarm(int signal)
{
    (void)signal;
    signals++;
    size_t at = (size_t)signals * 77777 % (NEED / 512) * 512;
    if (all[at] != value_of(at, 13))
        _exit(9);
    if (signals % 3 == 0)
        siglongjmp(back, 1);
}

static void interrupted(int by)
{
    fill(13);
    signals = 0;
    struct sigaction action = {.sa_handler = on_alarm};
    MUST(sigaction(by, &action, NULL) == 0);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = by};
    struct itimerspec often = {{0, 300000}, {0, 300000}}, never = {{0, 0}, {0, 0}};
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    MUST(timer_settime(timer, 0, &often, NULL) == 0);
    sigsetjmp(back, 1);
    volatile size_t found = 0;
    while (signals < 600)
        found += wrong(13);
    MUST(timer_settime(timer, 0, &never, NULL) == 0 && timer_delete(timer) == 0);
    MUST(signal(by, SIG_IGN) != SIG_ERR);
    printf("interrupted: %zu wrong\n", found);
}

/* A timer's function: the C library calls it with all signals blocked. */
static volatile int timed;

static void on_time(union sigval value)
{
    timed += value.sival_int == 77 && wrong(14) == 0;
}

static void timer_thread(void)
{
    fill(14);
    timer_t timer;
    struct sigevent *event = calloc(1, sizeof *event);
    event->sigev_notify = SIGEV_THREAD;
    event->sigev_notify_function = on_time;
    event->sigev_value.sival_int = 77;
    struct itimerspec soon = {{0, 0}, {0, 1000000}};
    MUST(timer_create(CLOCK_MONOTONIC, event, &timer) == 0);
    MUST(timer_settime(timer, 0, &soon, NULL) == 0);
    for (int i = 0; i < 2000 && !timed; i++)
        usleep(5000);
    printf("a timer's thread: %d\n", timed);
}

/* A thread is cancelled at its cancellation points, not where it faults. Regression: a read by the
 * manager was a cancellation point, and pages and locks stayed held. */
static volatile int finished[16];

static void *fault_on(void *number)
{
    unsigned draw = (unsigned)(uintptr_t)number;
    for (int i = 0; i < 1200; i++) {
        draw = draw * 1664525 + 1013904223;
        __atomic_fetch_add(&all[(draw >> 2) % 256 * PAGE + 1], 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&all[((draw >> 2) % (NEED / PAGE)) * PAGE + 2], 1, __ATOMIC_RELAXED);
    }
    finished[(uintptr_t)number] = 1;
    pthread_testcancel();
    return NULL;
}

static void cancelled(void)
{
    int early = 0;
    for (int round = 0; round < 10; round++) {
        pthread_t threads[16];
        memset((void *)finished, 0, sizeof finished);
        for (uintptr_t i = 0; i < 16; i++)
            MUST(pthread_create(&threads[i], NULL, fault_on, (void *)i) == 0);
        usleep(1000);
        for (int i = 0; i < 16; i++)
            pthread_cancel(threads[i]);
        for (int i = 0; i < 16; i++)
            MUST(pthread_join(threads[i], NULL) == 0);
        for (int i = 0; i < 16; i++)
            early += !finished[i];
    }
    fill(15);
    printf("cancelled: %d early, %zu wrong\n", early, wrong(15));
}

/* Before anything is paged: a signal stack that is too small to serve a fault on, and a process
 * that is never served. */
static void begin_small(void)
{
    stack_t small = {.ss_size = 8192};
    char *at = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED && mprotect(at, PAGE, PROT_NONE) == 0);
    small.ss_sp = at + PAGE;
    MUST(sigaltstack(&small, NULL) == 0);
}

static void never_served(void)
{
    char name[] = "/tmp/in_thread.XXXXXX";
    int file = mkstemp(name);
    MUST(file >= 0 && unlink(name) == 0 && ftruncate(file, PAGE) == 0);
    char *mapped = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
    MUST(mapped != MAP_FAILED && ftruncate(file, 0) == 0);
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGBUS, &action, NULL) == 0);
    if (sigsetjmp(back, 1) == 0)
        (void)*(volatile char *)mapped;
    _exit(signals == 1 ? 21 : 22);
}

static void small_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "in_thread", "small", (char *)NULL);
        _exit(23);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("a child that is not served: %d\n", WEXITSTATUS(status));
}

static int fails(ssize_t result)
{
    return result == -1 && errno == EFAULT;
}

/* Protections and mappings change between calls with the same buffers. */
static void changes(void)
{
    enum { PAGES = 64 };
    int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    MUST(zero >= 0 && null >= 0);
    const int both = PROT_READ | PROT_WRITE, plain = MAP_PRIVATE | MAP_ANONYMOUS;
    int right = 0;
    for (int round = 0; round < 20; round++) {
        char *at = mmap(NULL, PAGES * PAGE, both, plain, -1, 0);
        char *page = at + (5 + round) * PAGE;
        MUST(at != MAP_FAILED);
        for (int i = 0; i < 3 * PAGES; i++)
            right += read(zero, at + i % PAGES * PAGE + 7, 100) == 100;
        MUST(mprotect(page, PAGE, PROT_NONE) == 0);
        right += fails(read(zero, page, 9)) + fails(access(page, F_OK));
        MUST(mprotect(page, PAGE, PROT_READ) == 0);
        right += fails(read(zero, page, 9)) + (write(null, page, 9) == 9);
        MUST(mprotect(page, PAGE, both) == 0);
        for (int i = 0; i < 20; i++)
            right += read(zero, page, 9) == 9;
        MUST(munmap(page, PAGE) == 0);
        right += fails(read(zero, page, 9));
        MUST(mmap(page, PAGE, both, plain | MAP_FIXED, -1, 0) == page);
        for (int i = 0; i < 20; i++)
            right += read(zero, page, 9) == 9;
        MUST(munmap(at, PAGES * PAGE) == 0);
        right += fails(read(zero, page, 9)) + fails(read(zero, at, 9));
    }
    printf("changes between calls: %d right\n", right);
    close(zero), close(null);
}

int main(int count, char **arguments)
{
    if (count > 1 && !strcmp(arguments[1], "small"))
        never_served();
    begin_small();
    all = mmap(NULL, NEED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(all != MAP_FAILED);
    fill(0);
    cut_file();
    sent();
    blocked();
    without_descriptors();
    spawn();
    raw();
    interrupted(SIGALRM);
    interrupted(SIGSEGV);
    timer_thread();
    cancelled();
    small_child();
    changes();
    filter();
    return 0;
}
