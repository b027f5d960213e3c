/* System calls with pointers into paged memory run on the thread's own stack, where a garbage
 * collector looks for the stack pointer, and leave registers as the kernel does.   own_stack
 *
 *   a thread that blocks <-- signals -- another one
 *        \-- handler: is it on the thread's stack? reads what is swapped out; jumps, or returns
 */
#define _GNU_SOURCE
#include "check.h"
#include "registers.h"
#include "thread_stack.h"

#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

enum { PAGES = 8192, DEEP = 2 << 20, JUMPS = 12, SIGNALS_PER_JUMP = 3, ROUNDS = 400 };

/* Larger than the budget, so that pages touched earlier are swapped out. */
static unsigned char *all;

/* The events that the calls wait for, none of which occurs; in paged memory. */
static struct waits {
    struct timespec time;
    uint32_t word;
    sem_t semaphore;
    struct sockaddr_in address;
    socklen_t address_length;
    struct pollfd polled;
    char buffer[100];
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    int said;
} *waits;
static int listener, empty[2];

static sigjmp_buf back;
static char *stack_low, *stack_end;
static atomic_int handled, jumps, stop;

static void on_signal(int signal)
{
    char here;
    int error = errno, count = atomic_fetch_add(&handled, 1) + 1;
    (void)signal;
    if (&here < stack_low || &here >= stack_end)
        die("a handler at %p, not on the stack %p-%p", &here, stack_low, stack_end);
    for (size_t i = 0; i < 8; i++) {
        size_t page = (size_t)mix((uint64_t)count * 8 + i) % PAGES;
        check_page(all + page * PAGE, page, 1, "in a handler");
    }
    errno = error;
    if (jumps && count % SIGNALS_PER_JUMP == 0)
        siglongjmp(back, 1);
}

static void sleep_long(void)
{
    nanosleep(&waits->time, NULL);
}

static void sleep_on_a_clock(void)
{
    clock_nanosleep(CLOCK_MONOTONIC, 0, &waits->time, NULL);
}

static void wait_on_a_word(void)
{
    syscall(SYS_futex, &waits->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static void wait_on_a_semaphore(void)
{
    sem_wait(&waits->semaphore);
}

static void accept_a_connection(void)
{
    waits->address_length = sizeof waits->address;
    accept(listener, (struct sockaddr *)&waits->address, &waits->address_length);
}

static void read_a_pipe(void)
{
    syscall(SYS_read, empty[0], waits->buffer, sizeof waits->buffer);
}

static void poll_a_pipe(void)
{
    syscall(SYS_poll, &waits->polled, 1, -1);
}

static const struct {
    const char *name;
    void (*block)(void);
} CALLS[] = {
    {"nanosleep", sleep_long},
    {"clock_nanosleep", sleep_on_a_clock},
    {"futex", wait_on_a_word},
    {"sem_wait", wait_on_a_semaphore},
    {"accept", accept_a_connection},
    {"read", read_a_pipe},
    {"poll", poll_a_pipe},
};

static void *disturb(void *thread)
{
    while (!stop) {
        usleep(1000);
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
    }
    return NULL;
}

/* A signal may come before the first call and after the last one, too. */
static void block_and_leave(void (*block)(void))
{
    volatile int jumped = 0;
    if (sigsetjmp(back, 1) != 0)
        jumped++;
    jumps = 1;
    while (jumped < JUMPS)
        block();
    jumps = 0;
}

static void block_in_each(const char *where)
{
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
        block_and_leave(CALLS[i].block);
        printf("%s, %s: left by jumps\n", where, CALLS[i].name);
    }
}

__attribute__((noinline))
static void block_deep(const char *where)
{
    volatile char deep[DEEP];
    deep[0] = deep[DEEP - 1] = 1;
    block_in_each(where);
    MUST(deep[0] + deep[DEEP - 1] == 2);
}

static void *broadcast(void *nothing)
{
    int before = handled;
    while (handled < before + 10)
        usleep(1000);
    MUST(pthread_mutex_lock(&waits->mutex) == 0);
    waits->said = 1;
    MUST(pthread_cond_broadcast(&waits->condition) == 0);
    MUST(pthread_mutex_unlock(&waits->mutex) == 0);
    return nothing;
}

static void wait_on_a_condition(const char *where)
{
    pthread_t thread;
    waits->said = 0;
    MUST(pthread_create(&thread, NULL, broadcast, NULL) == 0);
    MUST(pthread_mutex_lock(&waits->mutex) == 0);
    while (!waits->said)
        MUST(pthread_cond_wait(&waits->condition, &waits->mutex) == 0);
    MUST(pthread_mutex_unlock(&waits->mutex) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    printf("%s: a condition is seen\n", where);
}

/* Short calls, each with other contents of all registers. */
static void keep_registers(const char *where, struct timespec *pause, uint32_t *word)
{
    uint64_t seed = 1;
    *pause = (struct timespec){0, 20000}, *word = 7;
    for (int i = 0; i < ROUNDS; i++) {
        long result = i % 2 ? call_with_registers(&seed, SYS_nanosleep, pause, 0, 0, NULL)
                            : call_with_registers(&seed, SYS_futex, word, FUTEX_WAIT, 7, pause);
        long expected = i % 2 ? 0 : -ETIMEDOUT;
        if (result != expected && result != -EINTR)
            die("round %d: %ld", i, result);
    }
    printf("%s: registers are kept\n", where);
}

/* One call after the other, all of which are trapped. */
static void make_short_calls(const char *where)
{
    int before = handled;
    while (handled < before + 200) {
        MUST(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &waits->time) == 0);
        MUST(syscall(SYS_write, empty[0], waits->buffer, 1) == -1 && errno == EBADF);
    }
    printf("%s: short calls are right\n", where);
}

static void *in_a_thread(void *name)
{
    const char *where = name;
    pthread_t self = pthread_self(), other;
    find_stack(&stack_low, &stack_end);
    keep_registers(where, &waits->time, &waits->word);
    stop = 0;
    MUST(pthread_create(&other, NULL, disturb, &self) == 0);
    keep_registers(where, &waits->time, &waits->word);
    make_short_calls(where);
    wait_on_a_condition(where);
    waits->time = (struct timespec){1000, 0}, waits->word = 0;
    block_in_each(where);
    block_deep(where);
    stop = 1;
    MUST(pthread_join(other, NULL) == 0);
    return NULL;
}

/* The stack is too small: the calls still give right results. */
static void *on_a_small_stack(void *name)
{
    keep_registers(name, &waits->time, &waits->word);
    return NULL;
}

static void begin(void)
{
    all = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(all != MAP_FAILED);
    waits = calloc(1, sizeof *waits);
    for (size_t i = 0; i < PAGES; i++)
        fill_page(all + i * PAGE, i, 1);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    MUST(waits && listener >= 0 && listen(listener, 1) == 0 && pipe(empty) == 0);
    waits->polled = (struct pollfd){empty[0], POLLIN, 0};
    MUST(sem_init(&waits->semaphore, 0, 0) == 0 && pthread_mutex_init(&waits->mutex, NULL) == 0);
    MUST(pthread_cond_init(&waits->condition, NULL) == 0);
    struct sigaction action = {.sa_handler = on_signal};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
}

int main(void)
{
    pthread_t thread;
    pthread_attr_t small;
    begin();
    in_a_thread("the first thread");
    MUST(pthread_create(&thread, NULL, in_a_thread, "a thread") == 0);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 32 << 10) == 0);
    MUST(pthread_create(&thread, &small, on_a_small_stack, "a small stack") == 0);
    MUST(pthread_join(thread, NULL) == 0);
    return 0;
}
