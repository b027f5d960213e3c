/* Children of fork that need inherited memory for the first time in different ways: each finds the
 * contents as they were at the fork. A quarter of the pages is unwritten and reads as zeros. See
 * sections.h for usage; MIB is what a process needs. */
#define _GNU_SOURCE
#include "area.h"
#include "children.h"
#include "sections.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>

enum { THREADS = 4 };

static struct area area;

static void must_be_whole(const char *where)
{
    area_check(&area, where);
}

/* ---- the first need of a child ---- */

static void reads(void)
{
    must_be_whole("reads");
}

static void writes(void)
{
    area_fill(&area, 0, area.pages, 3);
    must_be_whole("writes");
}

static void calls(void)
{
    int null = open("/dev/null", O_WRONLY);
    MUST(null >= 0);
    MUST(write(null, area.base, area.pages * PAGE) == (ssize_t)(area.pages * PAGE));
    must_be_whole("calls");
}

static void maps(void)
{
    struct area fresh = area_map(area.pages / 4, 2ull << 32);
    area_check(&fresh, "maps: new memory");
    area_fill(&fresh, 0, fresh.pages, 1);
    area_check(&fresh, "maps: new memory, written");
    must_be_whole("maps");
}

static void unmaps(void)
{
    size_t half = area.pages / 2;
    MUST(munmap(area.base, half * PAGE) == 0);
    memset(area.mapped, 0, half);
    must_be_whole("unmaps");
}

static void protects(void)
{
    MUST(mprotect(area.base, area.pages * PAGE, PROT_READ) == 0);
    must_be_whole("protects");
}

static void forks(void)
{
    pid_t child = must_fork();
    if (child == 0) {
        must_be_whole("forks: the grandchild");
        _exit(0);
    }
    must_finish(child, "forks");
    must_be_whole("forks");
}

static void vforks(void)
{
    pid_t child = vfork();
    if (child == 0) {
        must_be_whole("vforks: the child of vfork");
        _exit(0);
    }
    must_finish(child, "vforks");
    must_be_whole("vforks");
}

static void *check_in_thread(void *where)
{
    must_be_whole(where);
    return NULL;
}

static int check_in_c11_thread(void *where)
{
    must_be_whole(where);
    return 0;
}

static void threads(void)
{
    pthread_t started[THREADS];
    thrd_t others[THREADS];
    for (int i = 0; i < THREADS; i++) {
        MUST(pthread_create(&started[i], NULL, check_in_thread, "threads") == 0);
        MUST(thrd_create(&others[i], check_in_c11_thread, "threads of C11") == thrd_success);
    }
    for (int i = 0; i < THREADS; i++) {
        MUST(pthread_join(started[i], NULL) == 0);
        MUST(thrd_join(others[i], NULL) == thrd_success);
    }
}

static atomic_int stage;

static void stay_on(size_t cpu)
{
    cpu_set_t allowed, chosen;
    MUST(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    CPU_ZERO(&chosen);
    CPU_SET(cpu, &chosen);
    if (CPU_ISSET(cpu, &allowed))
        MUST(sched_setaffinity(0, sizeof chosen, &chosen) == 0);
}

static void spin(double seconds)
{
    struct timespec start, now;
    MUST(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
    do
        MUST(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    while (now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
}

static void *keep_cpu_busy(void *unused)
{
    stay_on(0);
    atomic_fetch_add(&stage, 1);
    spin(0.2);
    return unused;
}

static void *check_soon(void *where)
{
    stay_on(1);
    atomic_fetch_add(&stage, 1);
    while (atomic_load(&stage) < 3)
        sched_yield();
    spin(0.02);
    return check_in_thread(where);
}

/* Regression: a thread that waited for the one that starts the manager ran out of stack within some
 * milliseconds. Here the start gets next to no CPU time. */
static void slow_start(void)
{
    pthread_t hog, waiter;
    MUST(pthread_create(&waiter, NULL, check_soon, "slow start") == 0);
    MUST(pthread_create(&hog, NULL, keep_cpu_busy, NULL) == 0);
    while (atomic_load(&stage) < 2)
        sched_yield();
    stay_on(0);
    MUST(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}) == 0);
    atomic_store(&stage, 3);
    must_be_whole("slow start");
    MUST(pthread_join(waiter, NULL) == 0 && pthread_join(hog, NULL) == 0);
}

static void closes(void)
{
    closefrom(3);
    for (int descriptor = 3; descriptor < 2000; descriptor++)
        close(descriptor);
    must_be_whole("closes");
}

/* Without privileges this changes nothing. */
static void drops_rights(void)
{
    MUST(setuid(geteuid() == 0 ? 65534 : geteuid()) == 0);
    must_be_whole("drops rights");
}

static void drops_rights_by_number(void)
{
    MUST(syscall(SYS_setuid, geteuid() == 0 ? 65534 : geteuid()) == 0);
    must_be_whole("drops rights by number");
}

static void executes(void)
{
    char *words = strdup("true");
    execlp(words, words, "and", "nothing", "else", NULL);
    die("executes: %s", strerror(errno));
}

static void ends(void)
{
}

static void exits(void)
{
    exit(0);
}

static void (*const NEEDS[])(void) = {
    reads, writes, calls, maps, unmaps, protects, forks, vforks, threads, slow_start, closes,
    drops_rights, drops_rights_by_number, executes, ends, exits,
};

static struct area partly_written(size_t pages)
{
    struct area area = area_map(pages, 0);
    for (size_t page = 0; page < pages; page++)
        if (page % 4 != 3)
            area_fill(&area, page, 1, 1);
    return area;
}

static uint64_t once_each(size_t pages)
{
    area = partly_written(pages);
    for (size_t i = 0; i < sizeof NEEDS / sizeof *NEEDS; i++) {
        pid_t child = must_fork();
        if (child == 0) {
            NEEDS[i]();
            _exit(0);
        }
        /* While the child may still have no pages but those that it inherited. */
        area_fill(&area, i, area.pages / 2, 10 + (uint32_t)i);
        must_finish(child, "once each");
    }
    must_be_whole("once each: the parent");
    return area_hash(&area);
}

/* The child first needs its pages after its parent has ended, with all the parent's memory. */
static uint64_t orphan(size_t pages)
{
    int ended[2], said[2];
    MUST(pipe(ended) == 0 && pipe(said) == 0);
    pid_t parent = must_fork();
    if (parent == 0) {
        area = partly_written(pages);
        pid_t child = must_fork();
        if (child == 0) {
            char nothing, whole = 1;
            close(ended[1]);
            MUST(read(ended[0], &nothing, 1) == 0);
            must_be_whole("orphan");
            MUST(write(said[1], &whole, 1) == 1);
            _exit(0);
        }
        _exit(0);
    }
    close(ended[1]);
    close(said[1]);
    must_finish(parent, "orphan");
    char whole = 0;
    MUST(read(said[0], &whole, 1) == 1);
    return (uint64_t)whole;
}

static const struct section SECTIONS[] = {
    {"once-each", once_each}, {"orphan", orphan}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_sections(SECTIONS, count, arguments);
}
