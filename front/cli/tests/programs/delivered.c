/* Signal handlers run on the stack that the signal interrupts, where a garbage collector looks for
 * a thread's stack pointer, even if a coroutine has a stack in paged memory.   delivered
 *
 *   main --- swapcontext --> coroutine on a paged stack: raises signals; a timer interrupts it
 *        --- pthread_kill -> a thread on its own stack
 */
#define _GNU_SOURCE
#include "check.h"
#include "registers.h"
#include "thread_stack.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unwind.h>

enum { PAGES = 4096, STACK = 256 << 10, TICKS = 100, SIGNALS = 50 };

/* Larger than the budget, so that pages touched earlier are swapped out. */
static unsigned char *all;
static ucontext_t outside, inside;

struct stack {
    char *low, *end;
};
static struct stack coroutines;
static _Thread_local struct stack threads;
static _Thread_local int in_coroutine;

static _Thread_local volatile int handled, nested;
static sigjmp_buf back;
static char *closed;

static void expect_stack(const char *who, const char *at)
{
    struct stack stack = in_coroutine ? coroutines : threads;
    if (at < stack.low || at >= stack.end)
        die("%s at %p, not on the stack %p-%p", who, at, stack.low, stack.end);
}

static void expect_here(const char *who)
{
    char here;
    expect_stack(who, &here);
}

static void read_all(const char *who)
{
    for (size_t page = 0; page < PAGES; page++)
        check_page(all + page * PAGE, page, 1, who);
}

static int is_blocked(int signal)
{
    sigset_t mask;
    MUST(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0);
    return sigismember(&mask, signal);
}

static void on_usr2(int signal)
{
    expect_here("a nested handler");
    MUST(signal == SIGUSR2 && is_blocked(SIGUSR1) && is_blocked(SIGUSR2));
    nested++;
}

static _Unwind_Reason_Code look(struct _Unwind_Context *frame, void *found)
{
    if (_Unwind_FindEnclosingFunction((void *)_Unwind_GetIP(frame)) == *(void **)found)
        *(void **)found = NULL;
    return _URC_NO_REASON;
}

/* Set while the signal interrupts this thread. */
static _Thread_local void *volatile interrupted;

/* Blocks SIGALRM; lets the frame's pages be swapped out before it returns. */
static void on_usr1(int signal, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    expect_here("a handler");
    MUST(signal == SIGUSR1 && info->si_signo == SIGUSR1 && info->si_pid == getpid());
    expect_stack("the interrupted code", (char *)at->uc_mcontext.gregs[REG_RSP]);
    MUST(is_blocked(SIGUSR1) && is_blocked(SIGALRM) && !is_blocked(SIGUSR2));
    int before = nested;
    MUST(pthread_kill(pthread_self(), SIGUSR2) == 0 && nested == before + 1);
    void *found = interrupted;
    if (found) {
        _Unwind_Backtrace(look, &found);
        MUST(found == NULL);
        read_all("in a handler");
    }
    handled++;
}

static void expect_action(int signal, void *handler, int flags)
{
    const int known = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER | (int)SA_RESETHAND;
    struct sigaction set;
    MUST(sigaction(signal, NULL, &set) == 0);
    MUST((void *)set.sa_sigaction == handler && (set.sa_flags & known) == flags);
    MUST(sigismember(&set.sa_mask, SIGALRM) == (handler == (void *)on_usr1));
    MUST(!sigismember(&set.sa_mask, SIGCHLD));
}

static void set_usr1(void)
{
    struct sigaction action = {.sa_sigaction = on_usr1, .sa_flags = SA_SIGINFO | SA_RESTART}, had;
    MUST(sigaddset(&action.sa_mask, SIGALRM) == 0);
    MUST(sigaction(SIGUSR1, &action, &had) == 0 && sigaction(SIGUSR1, &action, &had) == 0);
    MUST(had.sa_sigaction == on_usr1 && sigismember(&had.sa_mask, SIGALRM));
    struct sigaction other = {.sa_handler = on_usr2};
    MUST(sigaction(SIGUSR1, &other, &had) == 0 && had.sa_sigaction == on_usr1);
    MUST(sigaction(SIGUSR1, &action, &had) == 0 && had.sa_handler == on_usr2);
}

__attribute__((noinline)) static void raise_and_return(void)
{
    interrupted = (void *)raise_and_return;
    MUST(pthread_kill(pthread_self(), SIGUSR1) == 0);
    interrupted = NULL;
}

static void on_once(int signal)
{
    expect_here("a handler that is set once");
    handled++;
    if (signal == SIGUSR2 && handled < 3) {
        MUST(!is_blocked(signal));
        raise(signal);
    }
}

static void set_in_other_ways(void)
{
    handled = 0;
    MUST(signal(SIGUSR2, on_once) == on_usr2);
    MUST(signal(SIGUSR2, SIG_IGN) == on_once && signal(SIGUSR2, on_usr2) == SIG_IGN);
    struct sigaction action = {.sa_handler = on_once, .sa_flags = SA_NODEFER};
    MUST(sigaction(SIGUSR2, &action, NULL) == 0);
    expect_action(SIGUSR2, (void *)on_once, SA_NODEFER);
    MUST(raise(SIGUSR2) == 0 && handled == 3);
    action.sa_flags = (int)SA_RESETHAND;
    MUST(sigaction(SIGHUP, &action, NULL) == 0 && raise(SIGHUP) == 0 && handled == 4);
    expect_action(SIGHUP, (void *)SIG_DFL, (int)SA_RESETHAND);
    MUST(sysv_signal(SIGHUP, on_once) == SIG_DFL && raise(SIGHUP) == 0 && handled == 5);
    MUST(signal(SIGHUP, SIG_DFL) == SIG_DFL);
    MUST(sigaction(SIGKILL, &action, NULL) == -1 && errno == EINVAL);
    MUST(sigaction(65, &action, NULL) == -1 && sigaction(0, &action, NULL) == -1);
    MUST(sigaction(32, &action, NULL) == -1 && errno == EINVAL);
    MUST(signal(SIGUSR2, on_usr2) == on_once);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    expect_here("a handler of faults");
    read_all("in a handler of faults");
    handled++;
    if (signal == SIGILL)
        at->uc_mcontext.gregs[REG_RIP] += 2;
    else if (info->si_addr == closed)
        MUST(mprotect(closed, PAGE, PROT_READ | PROT_WRITE) == 0);
    else
        siglongjmp(back, 1);
}

static void fault(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGILL, &action, NULL) == 0);
    handled = 0;
    __asm__ volatile("ud2");
    MUST(mprotect(closed, 2 * PAGE, PROT_NONE) == 0);
    *(volatile char *)closed = 1;
    if (sigsetjmp(back, 1) == 0)
        *(volatile char *)(closed + PAGE) = 1;
    MUST(handled == 3 && !is_blocked(SIGSEGV));
    MUST(signal(SIGSEGV, SIG_DFL) != SIG_ERR && signal(SIGILL, SIG_DFL) != SIG_ERR);
}

static void on_the_signal_stack(int signal)
{
    char here;
    stack_t set;
    (void)signal;
    MUST(sigaltstack(NULL, &set) == 0 && set.ss_flags == SS_ONSTACK);
    MUST(&here < coroutines.low || &here >= coroutines.end);
    handled++;
}

static void use_the_signal_stack(void)
{
    static char area[64 << 10];
    stack_t stack = {.ss_sp = area, .ss_size = sizeof area}, none = {.ss_flags = SS_DISABLE};
    struct sigaction action = {.sa_handler = on_the_signal_stack, .sa_flags = SA_ONSTACK};
    handled = 0;
    MUST(sigaltstack(&stack, NULL) == 0 && sigaction(SIGHUP, &action, NULL) == 0);
    expect_action(SIGHUP, (void *)on_the_signal_stack, SA_ONSTACK);
    MUST(raise(SIGHUP) == 0 && handled == 1);
    MUST(sigaltstack(&none, NULL) == 0);
    action.sa_handler = on_once;
    MUST(sigaction(SIGHUP, &action, NULL) == 0 && raise(SIGHUP) == 0 && handled == 2);
    MUST(signal(SIGHUP, SIG_DFL) == on_once);
}

/* The signal comes at the end of the call, with known contents of all registers. */
static void keep_registers(void)
{
    uint64_t seed = 1;
    handled = 0;
    for (int i = 1; i <= 50; i++) {
        long result = call_with_registers(&seed, SYS_tkill, (void *)(uintptr_t)gettid(), SIGUSR1,
                                          0, NULL);
        MUST(result == 0 && handled == i);
    }
}

static volatile int ticks;

static void on_tick(int signal)
{
    (void)signal;
    expect_here("a handler of a timer");
    check_page(all + (size_t)ticks % PAGES * PAGE, (uint64_t)ticks % PAGES, 1, "at a tick");
    ticks++;
}

static int deep(int depth)
{
    volatile char frame[512];
    frame[0] = (char)depth;
    return depth == 0 ? 0 : deep(depth - 1) + frame[0] - (char)depth + 1;
}

static void be_interrupted(void)
{
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    double sum = 0;
    MUST(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (ticks = 0; ticks < TICKS;) {
        read_all("between ticks");
        MUST(deep(200) == 200);
        sum = 0;
        for (int i = 1; i < 1000; i++)
            sum += 1.0 / i;
        MUST(sum > 7.48 && sum < 7.49);
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

/* Makes a call, too, with a pointer to the stack. */
static void on_tick_of_sleeper(int signal)
{
    struct timespec moment = {0, 1000};
    (void)signal;
    expect_here("a handler that interrupts a call");
    read_all("in a handler that interrupts a call");
    MUST(nanosleep(&moment, NULL) == 0);
    ticks++;
    if (ticks % 10 == 0)
        siglongjmp(back, 1);
}

/* The signals interrupt calls with pointers to the stack. */
static void sleep_and_be_interrupted(void)
{
    struct sigaction action = {.sa_handler = on_tick_of_sleeper};
    struct itimerval soon = {{0, 0}, {0, 500}};
    volatile int interrupted_calls = 0;
    uint64_t seed = 2;
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    ticks = 0;
    sigsetjmp(back, 1);
    while (ticks < TICKS) {
        struct timespec pause = {0, 20000000};
        MUST(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        long result = call_with_registers(&seed, SYS_nanosleep, &pause, 0, 0, NULL);
        MUST(result == 0 || result == -EINTR);
        interrupted_calls += result == -EINTR;
        check_page(all, 0, 1, "after a call");
    }
    MUST(interrupted_calls > TICKS / 2);
}

static void coroutine(void)
{
    in_coroutine = 1;
    MUST(write(STDOUT_FILENO, "coroutine\n", 10) == 10);
    set_usr1();
    MUST(signal(SIGUSR2, on_usr2) != SIG_ERR);
    expect_action(SIGUSR1, (void *)on_usr1, SA_SIGINFO | SA_RESTART);
    for (int i = 0; i < 5; i++)
        raise_and_return();
    MUST(handled == 5);
    set_in_other_ways();
    fault();
    use_the_signal_stack();
    keep_registers();
    be_interrupted();
    sleep_and_be_interrupted();
    in_coroutine = 0;
    MUST(swapcontext(&inside, &outside) == 0);
}

static atomic_int is_ready, stop;

/* The timer's signals are for the other thread: the kernel chooses this one while they are blocked
   there, and their handler would jump to the other thread's stack. */
static void *be_stopped(void *unused)
{
    sigset_t timer;
    MUST(sigemptyset(&timer) == 0 && sigaddset(&timer, SIGALRM) == 0);
    MUST(pthread_sigmask(SIG_BLOCK, &timer, NULL) == 0);
    find_stack(&threads.low, &threads.end);
    is_ready = 1;
    while (!stop)
        usleep(100);
    MUST(handled > 0 && handled <= SIGNALS && nested == handled);
    return unused;
}

int main(void)
{
    pthread_t thread;
    find_stack(&threads.low, &threads.end);
    all = map_pages(PAGES);
    closed = map_pages(2);
    for (size_t page = 0; page < PAGES; page++)
        fill_page(all + page * PAGE, page, 1);
    set_usr1();
    MUST(signal(SIGUSR2, on_usr2) != SIG_ERR);
    raise_and_return();
    MUST(pthread_create(&thread, NULL, be_stopped, NULL) == 0);
    while (!is_ready)
        usleep(100);

    coroutines.low = map_pages(STACK / PAGE), coroutines.end = coroutines.low + STACK;
    MUST(getcontext(&inside) == 0);
    inside.uc_stack = (stack_t){.ss_sp = coroutines.low, .ss_size = STACK};
    inside.uc_link = &outside;
    makecontext(&inside, coroutine, 0);
    handled = 0;
    MUST(swapcontext(&outside, &inside) == 0);
    handled = 0;
    raise_and_return();
    MUST(handled == 1);
    for (int i = 0; i < SIGNALS; i++) {
        MUST(pthread_kill(thread, SIGUSR1) == 0);
        usleep(200);
    }
    stop = 1;
    MUST(pthread_join(thread, NULL) == 0);
    puts("ok");
    return 0;
}
