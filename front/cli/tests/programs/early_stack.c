/* A thread sets a signal stack before the process is served. The stack is in use when the thread
 * first faults, and is unmapped later, as Rust's library does at the end of main.
 *
 *   early_stack
 */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1u << 31)
#endif

enum { PAGES = 6144, LEN = 4 * PAGE };

static char *memory;

static void check_all(const char *where)
{
    for (size_t page = 0; page < PAGES; page++)
        check_page(memory + page * PAGE, page, 1, where);
}

static void on_usr1(int signal)
{
    (void)signal;
    check_all("on the signal stack");
}

/* The first request of the process. */
static void *make(void *unused)
{
    memory = malloc(PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++)
        fill_page(memory + page * PAGE, page, 1);
    return unused;
}

/* Where the thread first faults: outside of handlers, or in a handler on either stack. */
enum first { NO_HANDLER, ON_THE_STACK, ON_THE_THREADS };

static void use(enum first first, int stack_flags)
{
    char *area = mmap(NULL, PAGE + LEN, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    MUST(area != MAP_FAILED && mprotect(area, PAGE, PROT_NONE) == 0);
    stack_t stack = {.ss_sp = area + PAGE, .ss_size = LEN, .ss_flags = stack_flags};
    stack_t none = {.ss_flags = SS_DISABLE}, set;
    MUST(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = on_usr1, .sa_flags = SA_ONSTACK};
    if (first == ON_THE_THREADS)
        action.sa_flags = 0;
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);

    pthread_t maker;
    MUST(pthread_create(&maker, NULL, make, NULL) == 0);
    MUST(pthread_join(maker, NULL) == 0);
    if (first != NO_HANDLER)
        MUST(raise(SIGUSR1) == 0);
    check_all("with a signal stack");
    MUST(raise(SIGUSR1) == 0);
    MUST(sigaltstack(NULL, &set) == 0);
    MUST(set.ss_sp == stack.ss_sp && set.ss_size == LEN && set.ss_flags == stack_flags);

    MUST(sigaltstack(&none, NULL) == 0 && munmap(area, PAGE + LEN) == 0);
    check_all("without a signal stack");
    MUST(raise(SIGUSR1) == 0);
    MUST(sigaltstack(NULL, &set) == 0 && set.ss_flags == SS_DISABLE);
}

int main(void)
{
    const int flags[] = {0, (int)SS_AUTODISARM};
    for (int way = 0; way < 6; way++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            use(way / 2, flags[way % 2]);
            _exit(0);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (status != 0)
            die("way %d: a child's status is %x", way, status);
    }
    puts("ok");
    return 0;
}
