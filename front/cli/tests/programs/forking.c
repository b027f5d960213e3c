/* fork while other threads, signal handlers or stacks of the program's own interfere. See
 * sections.h for usage. */
#define _GNU_SOURCE
#include "area.h"
#include "children.h"
#include "sections.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <ucontext.h>

/* ---- handlers: a signal handler closes, duplicates and forks, wherever its thread is ---- */

enum { INTERRUPTIONS = 200 };
static volatile int interruptions;

static void set_timer(void)
{
    struct itimerval soon = {.it_value = {.tv_usec = 100 + interruptions * 7 % 50}};
    MUST(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

/* Uses the numbers `at` and the next one, too. */
static void use_descriptors(int at)
{
    int fd = open("/dev/null", O_RDONLY);
    MUST(fd >= 0 && dup2(fd, at) == at && close(at) == 0);
    unsigned next = (unsigned)at + 1;
    MUST(dup3(fd, at + 1, O_CLOEXEC) == at + 1 && close_range(next, next, 0) == 0);
    MUST(close(fd) == 0 && close(-1) < 0);
}

static void on_alarm(int signal)
{
    int before = errno;
    use_descriptors(700);
    if (interruptions % 8 == 0) {
        pid_t child = fork();
        if (child == 0) {
            use_descriptors(700);
            _exit(signal != SIGALRM);
        }
        must_finish(child, "handlers");
    }
    if (++interruptions < INTERRUPTIONS)
        set_timer();
    errno = before;
}

static uint64_t handlers(size_t pages)
{
    struct area area = area_map(pages, 1 << 20);
    area_fill(&area, 0, pages, 1);
    struct sigaction action = {.sa_handler = on_alarm};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    set_timer();
    uint64_t random = 7;
    while (interruptions < INTERRUPTIONS) {
        use_descriptors(600);
        area_check_part(&area, next_random(&random) % pages, 1, "handlers");
        void *block = malloc(70000);
        MUST(block);
        free(block);
    }
    area_check(&area, "handlers");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- coroutine, thread: fork on a stack in paged memory ---- */

enum { STACK = 256 << 10, GENERATIONS = 3 };

struct coroutine {
    ucontext_t main, own;
    struct area *area;
};

/* Each level uses some pages of the stack, and forks. */
__attribute__((noinline))
static void fork_deep(struct area *area, int level)
{
    volatile uint64_t words[1500];
    for (size_t i = 0; i < 1500; i++)
        words[i] = mix(i + (size_t)level);
    area_check(area, "stacks: before");
    pid_t child = must_fork();
    if (child == 0) {
        for (size_t i = 0; i < 1500; i++)
            MUST(words[i] == mix(i + (size_t)level));
        area_check(area, "stacks: the child");
        if (level < GENERATIONS)
            fork_deep(area, level + 1);
        _exit(0);
    }
    must_finish(child, "stacks");
    for (size_t i = 0; i < 1500; i++)
        MUST(words[i] == mix(i + (size_t)level));
}

static void enter(unsigned low, unsigned high)
{
    struct coroutine *coroutine = (void *)((uintptr_t)high << 32 | low);
    fork_deep(coroutine->area, 0);
}

static void on_own_stack(struct area *area)
{
    struct coroutine coroutine = {.area = area};
    unsigned char *stack = malloc(STACK);
    MUST(stack && getcontext(&coroutine.own) == 0);
    coroutine.own.uc_stack.ss_sp = stack;
    coroutine.own.uc_stack.ss_size = STACK;
    coroutine.own.uc_link = &coroutine.main;
    uintptr_t at = (uintptr_t)&coroutine;
    makecontext(&coroutine.own, (void (*)(void))enter, 2, (unsigned)at, (unsigned)(at >> 32));
    MUST(swapcontext(&coroutine.main, &coroutine.own) == 0);
    free(stack);
}

static void *in_thread(void *area)
{
    fork_deep(area, 0);
    return NULL;
}

static void on_threads_stack(struct area *area)
{
    pthread_attr_t attributes;
    pthread_t thread;
    unsigned char *stack;
    MUST(posix_memalign((void **)&stack, PAGE, STACK) == 0);
    MUST(pthread_attr_init(&attributes) == 0);
    MUST(pthread_attr_setstack(&attributes, stack, STACK) == 0);
    MUST(pthread_create(&thread, &attributes, in_thread, area) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attributes);
    free(stack);
}

static uint64_t on_stack(size_t pages, void (*act)(struct area *))
{
    struct area area = area_map(pages, 2 << 20);
    area_fill(&area, 0, pages, 1);
    act(&area);
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

static uint64_t coroutine(size_t pages)
{
    return on_stack(pages, on_own_stack);
}

static uint64_t thread(size_t pages)
{
    return on_stack(pages, on_threads_stack);
}

/* ---- streams: threads use streams with buffers in paged memory, and flush them all ---- */

enum { FORKS = 40, BUFFER = 1 << 20 };
static atomic_int stop;

/* Writes through a buffer whose pages are swapped in and out. */
static void *print(void *unused)
{
    FILE *stream = fopen("/dev/null", "w");
    char *buffer = map_pages(BUFFER / PAGE);
    MUST(stream && setvbuf(stream, buffer, _IOFBF, BUFFER) == 0);
    char text[600];
    memset(text, 'x', sizeof text);
    while (!atomic_load(&stop)) {
        for (size_t i = 0; i < BUFFER / sizeof text; i++)
            MUST(fwrite(text, 1, sizeof text, stream) == sizeof text);
        MUST(fflush(stream) == 0);
        MUST(madvise(buffer, BUFFER, MADV_DONTNEED) == 0);
    }
    MUST(fclose(stream) == 0);
    return unused;
}

static void *flush_all(void *unused)
{
    while (!atomic_load(&stop)) {
        MUST(fflush(NULL) == 0);
        usleep(50);
    }
    return unused;
}

static void *allocate(void *unused)
{
    uint64_t random = 11;
    while (!atomic_load(&stop)) {
        unsigned char *block = malloc(1 + next_random(&random) % 100000);
        MUST(block);
        *block = 1;
        free(block);
    }
    return unused;
}

static uint64_t streams(size_t pages)
{
    struct area area = area_map(pages, 3 << 20);
    area_fill(&area, 0, pages, 1);
    void *(*const acts[])(void *) = {print, print, flush_all, allocate};
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        MUST(pthread_create(&threads[i], NULL, acts[i], NULL) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            area_check_part(&area, (size_t)i, 1, "streams: the child");
            MUST(printf("%s", "") == 0 && fflush(stdout) == 0);
            _exit(0);
        }
        must_finish(child, "streams");
    }
    atomic_store(&stop, 1);
    for (size_t i = 0; i < 4; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    area_check(&area, "streams");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* Forks a child that checks the area, and changes all of it. */
static void fork_and_change(struct area *area, uint32_t version, const char *where)
{
    pid_t child = must_fork();
    if (child == 0) {
        area_check(area, where);
        area_fill(area, 0, area->pages, version);
        area_check(area, where);
        _exit(0);
    }
    must_finish(child, where);
}

/* ---- few: the process cannot open any more descriptors ---- */

static uint64_t few(size_t pages)
{
    struct area area = area_map(pages, 4 << 20);
    area_fill(&area, 0, pages, 1);
    struct rlimit before, low;
    MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
    low = before;
    low.rlim_cur = 3;
    MUST(setrlimit(RLIMIT_NOFILE, &low) == 0);
    fork_and_change(&area, 2, "few: the child");
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    area_check(&area, "few");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- root: the process has another root directory, which lacks the directory of its swap ---- */

static uint64_t root(size_t pages)
{
    struct area area = area_map(pages, 5 << 20);
    area_fill(&area, 0, pages, 1);
    MUST(chroot("/usr") == 0 && chdir("/") == 0);
    for (uint32_t version = 2; version < 4; version++)
        fork_and_change(&area, version, "root: the child");
    area_check(&area, "root");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

int main(int count, char **arguments)
{
    const struct section sections[] = {
        {"handlers", handlers}, {"coroutine", coroutine}, {"thread", thread},
        {"streams", streams}, {"few", few}, {"root", root}, {0},
    };
    return run_sections(sections, count, arguments);
}
