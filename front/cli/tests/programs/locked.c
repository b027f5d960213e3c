/* Locked pages (mlock), which stay in memory while the pages around them are swapped out. */
#define _GNU_SOURCE
#include "sections.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

/* Pages [FIRST, END) of each area are locked. */
enum { AREA = 32, FIRST = 4, END = 12, AREAS = 8 };

static char *page(char *area, size_t index)
{
    return area + index * PAGE;
}

static void fill(char *area, uint64_t id, uint32_t version)
{
    for (size_t i = 0; i < AREA; i++)
        fill_page(page(area, i), id * AREA + i, version);
}

static uint64_t check(const char *area, uint64_t id, uint32_t version, const char *where)
{
    for (size_t i = 0; i < AREA; i++)
        check_page(area + i * PAGE, id * AREA + i, version, where);
    return hash_bytes(0, area, AREA * PAGE);
}

/* Writes to as many pages as the program needs in total. */
static uint64_t press(size_t pages)
{
    char *at = map_pages(pages);
    for (size_t i = 0; i < pages; i++)
        fill_page(at + i * PAGE, 1000000 + i, 1);
    for (size_t i = 0; i < pages; i++)
        check_page(at + i * PAGE, 1000000 + i, 1, "pages beside locked ones");
    uint64_t hash = hash_bytes(0, at, pages * PAGE);
    MUST(munmap(at, pages * PAGE) == 0);
    return hash;
}

static size_t locked_kib(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    MUST(status);
    char line[256];
    size_t kib = 0;
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmLck: %zu", &kib);
    MUST(fclose(status) == 0);
    return kib;
}

/* Locks by address and length in bytes, as programs do to lock one key; also by the other calls. */
static void lock(char *area, int way)
{
    char *from = page(area, FIRST) + 100;
    size_t len = (END - FIRST) * PAGE - 200;
    switch (way % 4) {
    case 0:
        MUST(mlock(from, len) == 0);
        break;
    case 1:
        MUST(mlock2(from, len, 0) == 0);
        break;
    case 2:
        MUST(syscall(SYS_mlock, from, len) == 0);
        break;
    default:
        MUST(mlock2(from, len, MLOCK_ONFAULT) == 0);
    }
}

/* Untouched pages, pages in memory, and pages that are swapped out. */
static uint64_t keys(size_t pages)
{
    char *area[AREAS];
    for (size_t i = 0; i < AREAS; i++) {
        area[i] = map_pages(AREA);
        if (i < AREAS / 2)
            fill(area[i], i, 1);
    }
    press(pages);
    for (size_t i = AREAS / 4; i < AREAS / 2; i++)
        check(area[i], i, 1, "before locks");
    size_t before = locked_kib();
    for (size_t i = 0; i < AREAS; i++)
        lock(area[i], (int)i);
    MUST(locked_kib() - before == AREAS * (END - FIRST) * PAGE / 1024);
    for (size_t i = 0; i < AREAS; i++)
        lock(area[i], (int)i + 1);
    MUST(locked_kib() - before == AREAS * (END - FIRST) * PAGE / 1024);
    uint64_t hash = 0;
    for (size_t i = 0; i < AREAS; i++) {
        if (i >= AREAS / 2) {
            for (size_t k = 0; k < AREA; k++)
                check_page(page(area[i], k), 0, 0, "locked untouched");
            fill(area[i], i, 1);
        }
    }
    press(pages);
    for (size_t i = 0; i < AREAS; i++) {
        hash += check(area[i], i, 1, "locked");
        if (i % 2)
            MUST(munlock(page(area[i], FIRST), (END - FIRST) * PAGE) == 0);
        MUST(munmap(area[i], AREA * PAGE) == 0);
    }
    MUST(locked_kib() == before);
    return hash + press(pages);
}

/* No store is lost while pages are locked. */
enum { ROUNDS = 200 };
static _Atomic int stop;

static void *count(void *area)
{
    uint64_t counted = 0;
    while (!atomic_load(&stop) || counted < 1000) {
        counted++;
        for (size_t i = FIRST; i < END; i++) {
            volatile uint64_t *word = (volatile uint64_t *)page(area, i);
            if (*word != counted - 1)
                die("page %zu has %llu instead of %llu", i, (unsigned long long)*word,
                    (unsigned long long)counted - 1);
            *word = counted;
        }
    }
    return NULL;
}

static uint64_t races(size_t pages)
{
    for (int round = 0; round < ROUNDS; round++) {
        char *area = map_pages(AREA);
        pthread_t thread;
        atomic_store(&stop, 0);
        MUST(pthread_create(&thread, NULL, count, area) == 0);
        lock(area, round);
        atomic_store(&stop, 1);
        MUST(pthread_join(thread, NULL) == 0);
        MUST(munmap(area, AREA * PAGE) == 0);
    }
    return press(pages);
}

static int readable(const char *at)
{
    int ends[2];
    MUST(pipe(ends) == 0);
    ssize_t written = write(ends[1], at, 1);
    MUST(written == 1 || errno == EFAULT);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    return written == 1;
}

static int writable(char *at)
{
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], at, 1) == 1);
    ssize_t got = read(ends[0], at, 1);
    MUST(got == 1 || errno == EFAULT);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    return got == 1;
}

/* Protections stay, and may change. */
static uint64_t protections(size_t pages)
{
    char *area = map_pages(AREA);
    fill(area, 1, 1);
    MUST(mprotect(page(area, FIRST), 2 * PAGE, PROT_READ) == 0);
    press(pages);
    lock(area, 0);
    for (size_t i = FIRST; i < END; i++) {
        MUST(readable(page(area, i)));
        MUST(writable(page(area, i)) == (i >= FIRST + 2));
    }
    MUST(mprotect(page(area, 0), AREA * PAGE, PROT_READ) == 0);
    press(pages);
    for (size_t i = 0; i < AREA; i++)
        MUST(!writable(page(area, i)));
    MUST(mprotect(page(area, 0), AREA * PAGE, PROT_READ | PROT_WRITE) == 0);
    uint64_t hash = check(area, 1, 1, "protected");
    fill(area, 1, 2);
    hash += check(area, 1, 2, "written again");
    MUST(munmap(area, AREA * PAGE) == 0);
    return hash;
}

/* A child has the same contents, except pages that it must find wiped. */
static uint64_t forks(size_t pages)
{
    char *area = map_pages(AREA);
    fill(area, 1, 1);
    MUST(madvise(page(area, FIRST), PAGE, MADV_WIPEONFORK) == 0);
    lock(area, 0);
    MUST(madvise(page(area, FIRST + 1), PAGE, MADV_WIPEONFORK) == 0);
    for (int generation = 0; generation < 3; generation++) {
        press(pages);
        pid_t child = fork();
        MUST(child >= 0);
        if (child != 0) {
            int status;
            MUST(waitpid(child, &status, 0) == child && status == 0);
            if (generation > 0)
                _exit(0);
            break;
        }
        for (size_t i = 0; i < AREA; i++) {
            int wiped = i == FIRST || i == FIRST + 1;
            check_page(page(area, i), AREA + i, !wiped, "in a child");
        }
        press(pages);
        if (generation == 2)
            _exit(0);
    }
    uint64_t hash = check(area, 1, 1, "in the parent");
    MUST(munmap(area, AREA * PAGE) == 0);
    return hash;
}

/* Other calls on locked pages. */
static uint64_t changes(size_t pages)
{
    char *area = map_pages(AREA);
    fill(area, 1, 1);
    lock(area, 0);
    MUST(madvise(page(area, FIRST), PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    MUST(munlock(page(area, FIRST), PAGE) == 0);
    MUST(madvise(page(area, FIRST), PAGE, MADV_DONTNEED) == 0);
    check_page(page(area, FIRST), 0, 0, "dropped");
    MUST(mmap(page(area, FIRST + 1), PAGE, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page(area, FIRST + 1));
    check_page(page(area, FIRST + 1), 0, 0, "mapped over");
    MUST(munmap(page(area, FIRST + 2), PAGE) == 0);
    MUST(mlock(page(area, FIRST), 3 * PAGE) == -1 && errno == ENOMEM);
    MUST(!readable(page(area, FIRST + 2)));
    char *moved = mremap(page(area, FIRST + 3), PAGE, 2 * PAGE, MREMAP_MAYMOVE);
    MUST(moved != MAP_FAILED);
    check_page(moved, AREA + FIRST + 3, 1, "moved");
    fill_page(moved + PAGE, 7, 1);
    press(pages);
    check_page(moved, AREA + FIRST + 3, 1, "moved");
    check_page(moved + PAGE, 7, 1, "grown");
    MUST(munmap(moved, 2 * PAGE) == 0);
    for (size_t i = FIRST + 4; i < AREA; i++)
        check_page(page(area, i), AREA + i, 1, "left");
    uint64_t hash = hash_bytes(0, page(area, FIRST + 4), (AREA - FIRST - 4) * PAGE);
    MUST(munmap(area, AREA * PAGE) == 0);
    return hash;
}

/* Threads that lock keys in the same page, and other calls on it, wait for each other. */
enum { KEYS = 100 };
static _Atomic int turn;

static void *lock_key(void *at)
{
    for (int round = 0; round < KEYS; round++) {
        while (atomic_load(&turn) < round)
            ;
        char *key = (char *)at + (size_t)round * PAGE;
        MUST(mlock(key, 32) == 0);
        MUST(mprotect(key, PAGE, PROT_READ | PROT_WRITE) == 0);
        MUST(madvise(key, PAGE, MADV_DONTDUMP) == 0);
        MUST(key[0] == 1);
    }
    return NULL;
}

static uint64_t neighbours(size_t pages)
{
    char *area = map_pages(KEYS);
    for (size_t i = 0; i < KEYS; i++)
        *page(area, i) = 1;
    uint64_t hash = press(pages);
    pthread_t threads[2];
    atomic_store(&turn, -1);
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&threads[i], NULL, lock_key, area) == 0);
    for (int round = 0; round < KEYS; round++) {
        atomic_store(&turn, round);
        usleep(100);
    }
    for (int i = 0; i < 2; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    MUST(munmap(area, KEYS * PAGE) == 0);
    return hash;
}

/* Whether core files leave a page out. */
static int is_left_out(const char *at)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    MUST(maps);
    char line[512];
    int inside = 0, found = -1;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from <= (uintptr_t)at && (uintptr_t)at < to;
        if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, " dd") != NULL;
    }
    MUST(fclose(maps) == 0 && found >= 0);
    return found;
}

/* Core files omit keys, also after pages around them were used, and in a child. */
static uint64_t excluded(size_t pages)
{
    char *area = map_pages(AREA);
    lock(area, 0);
    char *keys = page(area, FIRST);
    MUST(madvise(keys, PAGE, MADV_DONTDUMP) == 0);
    *page(area, 0) = 1;
    uint64_t hash = press(pages);
    MUST(is_left_out(keys) && !is_left_out(page(area, FIRST + 1)));
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        *page(area, 0) = 2;
        press(pages);
        MUST(is_left_out(keys) && !is_left_out(page(area, FIRST + 1)));
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(munmap(area, AREA * PAGE) == 0);
    return hash;
}

/* Locks the stack that the caller runs on: the call may be refused, but returns. */
static ucontext_t back, there;

static void lock_here(void)
{
    volatile char key[64];
    key[0] = 7;
    MUST(mlock((const void *)key, sizeof key) == 0 || errno == ENOMEM);
    MUST(key[0] == 7);
}

static uint64_t coroutine(size_t pages)
{
    char *stack = map_pages(AREA);
    MUST(getcontext(&there) == 0);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = AREA * PAGE;
    there.uc_link = &back;
    makecontext(&there, lock_here, 0);
    MUST(swapcontext(&back, &there) == 0);
    MUST(munmap(stack, AREA * PAGE) == 0);
    return press(pages);
}

static const struct section SECTIONS[] = {
    {"keys", keys},
    {"races", races},
    {"protections", protections},
    {"forks", forks},
    {"changes", changes},
    {"neighbours", neighbours},
    {"excluded", excluded},
    {"coroutine", coroutine},
    {NULL, NULL},
};

/* "more MIB": locks more than a program in a budget may, and says what it got. */
static int more(size_t mib)
{
    char *area = map_pages(mib * MIB / PAGE);
    memset(area, 1, mib * MIB);
    int locked = mlock(area, mib * MIB);
    int error = errno;
    for (size_t i = 0; i < mib * MIB; i += PAGE)
        MUST(area[i] == 1);
    printf("%s\n", locked == 0 ? "locked" : strerror(error));
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 3 && strcmp(arguments[1], "more") == 0)
        return more(number(arguments[2]));
    return run_sections(SECTIONS, count, arguments);
}
