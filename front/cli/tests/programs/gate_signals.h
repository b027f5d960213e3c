/* Signals, threads and coroutines. Not run by the frame: each part checks its own results, which
 * do not depend on timing. */
#ifndef GATE_SIGNALS_H
#define GATE_SIGNALS_H

#include "gate_errors.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdatomic.h>

enum { JUMPS = 200, JUMPS_PER_EVICTION = 20, WORKERS = 4, OWN = 100000 };

static volatile sig_atomic_t handled;
static unsigned char *paged_line;
static int said[2];
static sigjmp_buf back;

static void count_signal(int signal)
{
    (void)signal;
    handled++;
}

/* Writes to a pipe from paged memory. */
static void write_in_handler(int signal)
{
    int error = errno;
    (void)signal;
    if (write(said[1], paged_line, 6000) != 6000)
        die("write in a handler: %s", strerror(errno));
    handled++;
    errno = error;
}

static void jump(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

static void handle(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigfillset(&action.sa_mask);
    MUST(sigaction(signal, &action, NULL) == 0);
}

/* Sends SIGALRM after some time, and every `again_us` after that, because it may arrive before a
 * call begins. */
static void signal_in(long first_us, long again_us)
{
    struct itimerval times = {{0, again_us}, {0, first_us}};
    MUST(setitimer(ITIMER_REAL, &times, NULL) == 0);
}

static void *write_later(void *end)
{
    usleep(30000);
    MUST(write(*(int *)end, "late", 4) == 4);
    return NULL;
}

/* The time left of 100 s, after an interruption. A pending signal ends the sleep at once, and then
 * the time left includes the slack of the timer: some microseconds more than 100 s. */
static int is_left_of_100_s(const struct timespec *left)
{
    return left->tv_sec == 99 || (left->tv_sec == 100 && left->tv_nsec < 1000000);
}

static void interrupted_calls(unsigned char *at)
{
    int ends[2];
    pthread_t thread;
    MUST(pipe(ends) == 0);
    handle(SIGALRM, count_signal, 0);
    evict(at, 20 * PAGE);
    signal_in(5000, 5000);
    MUST(read(ends[0], at + PAGE - 2, 5000) == -1 && errno == EINTR && handled > 0);
    struct timespec *pause = (void *)(at + 3 * PAGE - 8), *left = (void *)(at + 5 * PAGE - 8);
    *pause = (struct timespec){100, 0};
    evict(at, 20 * PAGE);
    signal_in(5000, 5000);
    MUST(nanosleep(pause, left) == -1 && errno == EINTR && is_left_of_100_s(left));
    *left = (struct timespec){0, 0};
    evict(at, 20 * PAGE);
    MUST(clock_nanosleep(CLOCK_MONOTONIC, 0, pause, left) == EINTR && is_left_of_100_s(left));
    struct pollfd *polled = (void *)(at + 7 * PAGE - 4);
    *polled = (struct pollfd){ends[0], POLLIN, 0};
    evict(at, 20 * PAGE);
    MUST(poll(polled, 1, -1) == -1 && errno == EINTR);
    signal_in(0, 0);
    handle(SIGALRM, count_signal, SA_RESTART);
    evict(at, 20 * PAGE);
    MUST(pthread_create(&thread, NULL, write_later, &ends[1]) == 0);
    signal_in(3000, 5000);
    MUST(read(ends[0], at + PAGE - 2, 5000) == 4 && memcmp(at + PAGE - 2, "late", 4) == 0);
    signal_in(0, 0);
    MUST(pthread_join(thread, NULL) == 0);
    close_both(ends);
    printf("interrupted calls: ok\n");
}

static void blocked_signals(unsigned char *at)
{
    static unsigned char wanted[70000];
    sigset_t all, before;
    sigfillset(&all);
    MUST(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    for (int i = 0; i < 3; i++) {
        evict(at, sizeof wanted);
        int file = data_file(O_RDONLY);
        MUST(pread(file, at + 9, 60000, 11) == 60000 && pread(file, wanted, 60000, 11) == 60000);
        MUST(memcmp(at + 9, wanted, 60000) == 0 && close(file) == 0);
    }
    MUST(pthread_sigmask(SIG_SETMASK, &before, &all) == 0);
    sigset_t wanted_set;
    sigfillset(&wanted_set);
    /* SIGSYS and SIGBUS belong to the gate: no mask contains them. */
    for (int signal = 1; signal < SIGSYS; signal++) {
        int never = signal == SIGKILL || signal == SIGSTOP || signal == SIGBUS;
        if (!never && !sigismember(&all, signal))
            die("signal %d was not blocked", signal);
    }
    printf("blocked signals: ok\n");
}

static void handlers_that_write(unsigned char *at)
{
    static unsigned char found[6000];
    int ends[2];
    MUST(pipe(said) == 0 && pipe(ends) == 0);
    paged_line = at + 10 * PAGE - 40;
    fill_pattern(paged_line, 6000, 21);
    handle(SIGALRM, write_in_handler, 0);
    for (int i = 0; i < 10; i++) {
        evict(at, 20 * PAGE);
        handled = 0;
        signal_in(2000, 50000);
        MUST(read(ends[0], at + PAGE - 2, 5000) == -1 && errno == EINTR && handled > 0);
        signal_in(0, 0);
        evict(at, 20 * PAGE);
        int before = handled;
        MUST(raise(SIGALRM) == 0 && handled == before + 1);
        for (; handled > 0; handled--)
            MUST(read(said[0], found, 6000) == 6000 && memcmp(found, paged_line, 6000) == 0);
    }
    close_both(said);
    close_both(ends);
    printf("handlers that write: ok\n");
}

/* Jumps out of a handler that interrupted a read into paged memory. */
static void jumps(unsigned char *at)
{
    int ends[2];
    volatile int jumped = 0;
    MUST(pipe(ends) == 0);
    handle(SIGALRM, jump, 0);
    while (jumped < JUMPS) {
        if (sigsetjmp(back, 1) != 0) {
            jumped++;
            MUST(write(ends[1], "jumped", 6) == 6);
            MUST(read(ends[0], at + 2 * PAGE - 3, 100) == 6);
            MUST(memcmp(at + 2 * PAGE - 3, "jumped", 6) == 0);
            continue;
        }
        if (jumped % JUMPS_PER_EVICTION == 0)
            evict(at, 20 * PAGE);
        signal_in(300 + jumped * 5, 0);
        ssize_t got = read(ends[0], at + jumped % 16 * PAGE + PAGE - 2, 5000);
        die("read %zd of an empty pipe: %s", got, strerror(errno));
    }
    handle(SIGALRM, SIG_DFL, 0);
    close_both(ends);
    printf("jumps: %d: ok\n", jumped);
}

static void alternate_stack(void)
{
    size_t pages = 32;
    unsigned char *at = map_pages(pages);
    stack_t *stack = (void *)(arena + PAGE - 8), *old = (void *)(arena + 3 * PAGE - 8);
    paged_line = arena + 9 * PAGE - 30;
    fill_pattern(paged_line, 6000, 22);
    static unsigned char found[6000];
    MUST(pipe(said) == 0);
    *stack = (stack_t){.ss_sp = at, .ss_size = pages * PAGE};
    evict(arena, 4 * PAGE);
    MUST(sigaltstack(stack, old) == 0 && sigaltstack(NULL, old) == 0);
    MUST(old->ss_sp == at && old->ss_size == pages * PAGE);
    handle(SIGUSR1, write_in_handler, SA_ONSTACK);
    for (int i = 0; i < 10; i++) {
        fill_page(at + (pages - 2) * PAGE, 1, 1);
        evict(at, pages * PAGE);
        handled = 0;
        MUST(raise(SIGUSR1) == 0 && handled == 1);
        MUST(read(said[0], found, 6000) == 6000 && memcmp(found, paged_line, 6000) == 0);
    }
    *stack = (stack_t){.ss_flags = SS_DISABLE};
    MUST(sigaltstack(stack, NULL) == 0 && munmap(at, pages * PAGE) == 0);
    handle(SIGUSR1, SIG_DFL, 0);
    close_both(said);
    printf("an alternate stack: ok\n");
}

/* ---- threads that wait for each other on words in paged memory ---- */

struct shared {
    atomic_uint turn;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    sem_t ping, pong;
    int value;
};

enum { TURNS = 60 };

static void wait_for_turn(struct shared *shared, unsigned seen, int flag)
{
    struct timespec *limit = (struct timespec *)((unsigned char *)shared + 4 * PAGE - 8);
    *limit = (struct timespec){1, 0};
    while (atomic_load(&shared->turn) == seen)
        syscall(SYS_futex, &shared->turn, flag, seen, limit, NULL, 0);
}

static void take_turns(struct shared *shared, unsigned parity)
{
    for (unsigned turn = parity; turn < TURNS; turn += 2) {
        int flag = turn % 4 < 2 ? 128 : 0;
        unsigned seen;
        while ((seen = atomic_load(&shared->turn)) < turn)
            wait_for_turn(shared, seen, flag);
        if (turn % 10 == 0)
            evict((unsigned char *)shared, sizeof *shared);
        atomic_store(&shared->turn, turn + 1);
        syscall(SYS_futex, &shared->turn, 1, 10, NULL, NULL, 0);
        syscall(SYS_futex, &shared->turn, 129, 10, NULL, NULL, 0);
    }
    for (int i = 0; i < TURNS; i++) {
        MUST(pthread_mutex_lock(&shared->mutex) == 0);
        while (shared->value % 2 != (int)parity)
            MUST(pthread_cond_wait(&shared->changed, &shared->mutex) == 0);
        shared->value++;
        if (parity == 0 && i % 10 == 0)
            evict((unsigned char *)shared, sizeof *shared);
        MUST(pthread_cond_signal(&shared->changed) == 0);
        MUST(pthread_mutex_unlock(&shared->mutex) == 0);
    }
    for (int i = 0; i < TURNS; i++) {
        MUST(sem_post(parity ? &shared->ping : &shared->pong) == 0);
        if (parity == 0 && i % 10 == 0)
            evict((unsigned char *)shared, sizeof *shared);
        MUST(sem_wait(parity ? &shared->pong : &shared->ping) == 0);
    }
}

static void *other_turns(void *shared)
{
    take_turns(shared, 1);
    return NULL;
}

static void waits(void)
{
    struct shared *shared = (void *)(arena + 5 * PAGE - 64);
    pthread_mutexattr_t attributes;
    pthread_t thread;
    memset(shared, 0, sizeof *shared);
    MUST(pthread_mutexattr_init(&attributes) == 0);
    MUST(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    MUST(pthread_mutex_init(&shared->mutex, &attributes) == 0);
    MUST(pthread_cond_init(&shared->changed, NULL) == 0);
    MUST(sem_init(&shared->ping, 1, 0) == 0 && sem_init(&shared->pong, 1, 0) == 0);
    uint32_t *word = (uint32_t *)&shared->turn;
    struct timespec *limit = (void *)(arena + 8 * PAGE - 8);
    *limit = (struct timespec){0, 1000000};
    evict(arena, 10 * PAGE);
    MUST(syscall(SYS_futex, word, 128, 7, NULL, NULL, 0) == -1 && errno == EAGAIN);
    evict(arena, 10 * PAGE);
    MUST(syscall(SYS_futex, word, 128, 0, limit, NULL, 0) == -1 && errno == ETIMEDOUT);
    evict(arena, 10 * PAGE);
    MUST(syscall(SYS_futex, word, 0, 0, limit, NULL, 0) == -1 && errno == ETIMEDOUT);
    MUST(pthread_create(&thread, NULL, other_turns, shared) == 0);
    take_turns(shared, 0);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(shared->turn == TURNS && shared->value == 2 * TURNS);
    printf("waits: ok\n");
}

/* ---- threads that transfer, while another one evicts ---- */

static atomic_int stop;

static void *work(void *argument)
{
    uint64_t seed = (uintptr_t)argument;
    unsigned char *mine = malloc(2 * OWN), *copy = mine + OWN, *wanted = shared_edges;
    int file = data_file(O_RDONLY), ends[2];
    MUST(mine && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    wanted += seed * 2 * EDGE;
    MUST(pread(file, wanted, OWN, 0) == OWN);
    for (uint64_t round = 0; !atomic_load(&stop); round++) {
        size_t skip = next_random(&seed) % 9000, length = 1 + next_random(&seed) % 60000;
        if (round % 2)
            MUST(pread(file, mine + skip / 2, length, (off_t)skip) == (ssize_t)length);
        else
            MUST(lseek(file, (off_t)skip, SEEK_SET) == (off_t)skip
                 && read(file, mine + skip / 2, length) == (ssize_t)length);
        MUST(write(ends[0], mine + skip / 2, length) == (ssize_t)length);
        MUST(recv(ends[1], copy + skip / 3, length, MSG_WAITALL) == (ssize_t)length);
        if (memcmp(copy + skip / 3, wanted + skip, length) != 0)
            die("round %llu: other bytes", (unsigned long long)round);
    }
    close_both(ends);
    MUST(close(file) == 0);
    free(mine);
    return NULL;
}

static void workers(void)
{
    pthread_t threads[WORKERS];
    struct timespec begin, at;
    for (size_t i = 0; i < WORKERS; i++)
        MUST(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    MUST(clock_gettime(CLOCK_MONOTONIC, &begin) == 0);
    do {
        for (size_t i = 0; i < FILLER; i += PAGE)
            ((volatile unsigned char *)filler)[i]++;
        MUST(clock_gettime(CLOCK_MONOTONIC, &at) == 0);
    } while (at.tv_sec * 1000000000 + at.tv_nsec < (begin.tv_sec + 1) * 1000000000 + begin.tv_nsec);
    atomic_store(&stop, 1);
    for (size_t i = 0; i < WORKERS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    printf("%d threads: ok\n", WORKERS);
}

/* ---- coroutines: the stack itself is paged ---- */

static ucontext_t coroutine, caller;
static int rounds;

static void on_paged_stack(void)
{
    unsigned char buffer[9000], wanted[9000];
    for (int i = 0;; i++) {
        struct stat about;
        struct timespec at;
        int ends[2], file = data_file(O_RDONLY);
        MUST(pipe(ends) == 0 && fstat(file, &about) == 0 && about.st_size == DATA_SIZE);
        MUST(swapcontext(&coroutine, &caller) == 0);
        MUST(pread(file, buffer, sizeof buffer, i * 100) == sizeof buffer);
        fill_pattern(wanted, sizeof wanted, 1 + (uint64_t)i * 25 / 2);
        if (i % 2 == 0 && memcmp(buffer, wanted, sizeof buffer) != 0)
            die("other bytes on a paged stack");
        MUST(write(ends[1], buffer, sizeof buffer) == sizeof buffer);
        MUST(read(ends[0], wanted, sizeof wanted) == sizeof wanted);
        MUST(memcmp(buffer, wanted, sizeof buffer) == 0);
        MUST(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &at) == 0);
        close_both(ends);
        MUST(close(file) == 0);
        rounds++;
    }
}

enum { STACK_SIZE = 65536 };

static void run_coroutine(unsigned char *stack)
{
    MUST(stack && getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = STACK_SIZE;
    makecontext(&coroutine, on_paged_stack, 0);
    for (int i = 0; i < 15; i++) {
        MUST(swapcontext(&caller, &coroutine) == 0);
        evict(stack, STACK_SIZE);
    }
}

static void coroutines(void)
{
    unsigned char *mapped = map_pages(STACK_SIZE / PAGE), *allocated = malloc(STACK_SIZE);
    run_coroutine(mapped);
    run_coroutine(allocated);
    MUST(munmap(mapped, STACK_SIZE) == 0);
    free(allocated);
    printf("coroutines: %d rounds: ok\n", rounds);
}

struct cancelled {
    int socket;
    unsigned char *at;
    int receives, cleaned;
};

static void clean(void *cancelled)
{
    ((struct cancelled *)cancelled)->cleaned = 1;
}

static void *wait_for_bytes(void *argument)
{
    struct cancelled *cancelled = argument;
    pthread_cleanup_push(clean, cancelled);
    if (cancelled->receives)
        (void)!recv(cancelled->socket, cancelled->at, 5000, 0);
    else
        (void)!read(cancelled->socket, cancelled->at, 5000);
    pthread_cleanup_pop(0);
    return NULL;
}

/* A thread that waits in a call with a paged buffer can be cancelled, and its handlers run. */
static void cancelled_threads(unsigned char *at)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    for (int receives = 0; receives < 2; receives++) {
        struct cancelled cancelled = {ends[0], at + 7, receives, 0};
        pthread_t thread;
        void *result;
        evict(at, 5000);
        MUST(pthread_create(&thread, NULL, wait_for_bytes, &cancelled) == 0);
        MUST(usleep(50000) == 0 && pthread_cancel(thread) == 0);
        MUST(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        MUST(cancelled.cleaned == 1);
    }
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    printf("cancelled threads: ok\n");
}

static void signals_and_threads(void)
{
    current = NULL;
    interrupted_calls(arena);
    blocked_signals(arena);
    handlers_that_write(arena);
    jumps(arena);
    alternate_stack();
    waits();
    cancelled_threads(arena);
    coroutines();
    workers();
}

#endif
