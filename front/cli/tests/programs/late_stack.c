/* A thread is in a signal handler when the manager starts. The return from the handler restores the
 * signal stack that was set before. Then the thread runs a coroutine on a stack of malloc, and
 * overflows its own stack with a signal stack of the program.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

enum { DEPTH = 60, FRAME = 3000 };

static unsigned char *volatile memory;
static volatile int is_in_handler;
static sigjmp_buf before;
static ucontext_t thread, coroutine;

static void wait_for_memory(int signal)
{
    (void)signal;
    is_in_handler = 1;
    while (!memory)
        usleep(1000);
    for (size_t at = 0; at < 8 * MIB; at += PAGE)
        memory[at]++;
}

static void overflowed(int signal)
{
    (void)signal;
    siglongjmp(before, 1);
}

/* Returns the sum of 1 to `depth`, with a stack frame for each. */
static int deep(int depth)
{
    volatile unsigned char frame[FRAME];
    memset((void *)frame, depth & 0xff, sizeof frame);
    return depth == 0 ? 0 : deep(depth - 1) + frame[FRAME / 2];
}

static void descend(void)
{
    MUST(deep(DEPTH) == DEPTH * (DEPTH + 1) / 2);
    puts("descended");
}

static void *run(void *argument)
{
    MUST(pthread_kill(pthread_self(), SIGUSR1) == 0);
    MUST(getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = malloc(MIB);
    coroutine.uc_stack.ss_size = MIB;
    coroutine.uc_link = &thread;
    makecontext(&coroutine, descend, 0);
    MUST(swapcontext(&thread, &coroutine) == 0);

    stack_t alternate = {.ss_sp = malloc(64 << 10), .ss_size = 64 << 10};
    struct sigaction action = {.sa_handler = overflowed, .sa_flags = SA_ONSTACK};
    MUST(sigaltstack(&alternate, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
    if (sigsetjmp(before, 1) == 0)
        deep(1 << 30);
    puts("overflowed");
    return argument;
}

int main(void)
{
    pthread_t other;
    MUST(signal(SIGUSR1, wait_for_memory) != SIG_ERR);
    MUST(pthread_create(&other, NULL, run, NULL) == 0);
    while (!is_in_handler)
        usleep(1000);
    unsigned char *large = malloc(48 * MIB);
    MUST(large != NULL);
    for (size_t at = 0; at < 48 * MIB; at += PAGE)
        large[at] = 1;
    memory = large;
    MUST(pthread_join(other, NULL) == 0);
    for (size_t at = 0; at < 48 * MIB; at += PAGE)
        MUST(large[at] == 1 + (at < 8 * MIB));
    puts("end");
    return 0;
}
