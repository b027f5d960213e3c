/* What a forked child inherits besides contents: protections and other mappings. Each section
 * continues in a child of the child. See sections.h for usage. */
#define _GNU_SOURCE
#include "area.h"
#include "sections.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

enum { GENERATIONS = 3 };

static sigjmp_buf refused;

static void on_signal(int number)
{
    siglongjmp(refused, number);
}

/* The signal that an access gets, or 0. */
static int access_of(volatile unsigned char *at, int writes)
{
    int number = sigsetjmp(refused, 1);
    if (number == 0) {
        if (writes)
            *at = *at;
        else
            (void)*at;
    }
    return number;
}

/* Runs `act` in this process, its child and its grandchild; in the first two once more after their
 * child has ended. */
static void in_generations(void (*act)(struct area *, unsigned), struct area *area, unsigned now)
{
    act(area, now);
    if (now + 1 == GENERATIONS)
        return;
    fflush(NULL);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        in_generations(act, area, now + 1);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (status != 0)
        die("generation %u ended with status %#x", now + 1, status);
    act(area, now);
}

/* ---- protected: pages that cannot be written, and guard pages ---- */

/* Of every 16 pages, one is read-only, and one inaccessible. */
enum { STRIDE = 16, READ_ONLY = 3, GUARD = 9 };

static void expect(const struct area *area, size_t page, int writes, int wanted,
                   unsigned generation)
{
    int got = access_of(area->base + page * PAGE, writes);
    if (got != wanted)
        die("generation %u: %s page %zu: signal %d instead of %d", generation,
            writes ? "writing" : "reading", page, got, wanted);
}

static void look_at_protected(struct area *area, unsigned generation)
{
    for (size_t from = 0; from + STRIDE <= area->pages; from += STRIDE) {
        expect(area, from + READ_ONLY, 0, 0, generation);
        expect(area, from + READ_ONLY, 1, SIGSEGV, generation);
        expect(area, from + GUARD, 0, SIGSEGV, generation);
        expect(area, from + GUARD, 1, SIGSEGV, generation);
        expect(area, from + GUARD + 1, 1, 0, generation);
        size_t guard = from + GUARD;
        area_check_part(area, from, GUARD, "protected: before the guard");
        /* The guarded page is unchanged, and the guard is the child's own. */
        MUST(mprotect(area->base + guard * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
        area_check_part(area, guard, STRIDE - GUARD, "protected: from the guard on");
        MUST(mprotect(area->base + guard * PAGE, PAGE, PROT_NONE) == 0);
    }
}

static uint64_t protected(size_t pages)
{
    struct area area = area_map(pages, 0);
    area_fill(&area, 0, pages, 1);
    uint64_t hash = area_hash(&area);
    for (size_t from = 0; from + STRIDE <= pages; from += STRIDE) {
        MUST(mprotect(area.base + (from + READ_ONLY) * PAGE, PAGE, PROT_READ) == 0);
        MUST(mprotect(area.base + (from + GUARD) * PAGE, PAGE, PROT_NONE) == 0);
    }
    in_generations(look_at_protected, &area, 0);
    area_unmap(&area);
    return hash;
}

/* ---- shared: a shared mapping over a part of another one, seen by all generations ---- */

enum { SHARED = 64 };

static void look_at_shared(struct area *area, unsigned generation)
{
    static unsigned seen = GENERATIONS;
    int child_ended = seen == generation;
    unsigned char *first = area->base + area->pages / 2 * PAGE;
    unsigned char *last = first + (SHARED - 1) * PAGE;
    area_check(area, "shared: around it");
    check_page(first, SHARED, 1, "shared: what the first wrote");
    if (generation + 1 == GENERATIONS)
        fill_page(last, SHARED, 2);
    else
        check_page(last, SHARED, child_ended ? 2 : 0, "shared: what the last wrote");
    seen = generation;
}

static uint64_t shared(size_t pages)
{
    struct area area = area_map(pages, 0);
    area_fill(&area, 0, pages, 1);
    uint64_t hash = area_hash(&area);
    size_t from = pages / 2;
    int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
    void *at = area.base + from * PAGE;
    MUST(mmap(at, SHARED * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == at);
    memset(area.mapped + from, 0, SHARED);
    fill_page(at, SHARED, 1);
    in_generations(look_at_shared, &area, 0);
    memset(area.mapped + from, 1, SHARED);
    area_unmap(&area);
    return hash;
}

/* ---- descriptors: a child does not have its parent's private descriptors ---- */

enum { CHILDREN = 6, NUMBERS = 4096, FILE_PAGES = 64 };

/* A child that needs no manager yet has other descriptors, so make each child need it first. */
static unsigned open_descriptors(void)
{
    unsigned found = 0;
    MUST(munmap(map_pages(1), PAGE) == 0);
    for (int number = 0; number < NUMBERS; number++)
        found += fcntl(number, F_GETFD) >= 0;
    return found;
}

/* A generation may have one descriptor for its parent's swap file, and one that reports the
 * parent's end. */
enum { EACH_GENERATION = 2 };

static void count_descriptors(struct area *area, unsigned generation)
{
    static unsigned first;
    area_check_part(area, 0, 1, "descriptors: the first page");
    unsigned found = open_descriptors();
    if (generation == 1 && first == 0)
        first = found;
    if (generation == 2 && found > first + EACH_GENERATION)
        die("descriptors: %u in the second generation, %u in the first", found, first);
}

/* Children that live at the same time: how many descriptors each has. */
static void among_siblings(struct area *area)
{
    int gate[2], counts[2];
    unsigned found[CHILDREN];
    pid_t children[CHILDREN];
    MUST(pipe(gate) == 0 && pipe(counts) == 0);
    for (size_t i = 0; i < CHILDREN; i++) {
        MUST((children[i] = fork()) >= 0);
        if (children[i] == 0) {
            char byte;
            area_check_part(area, 0, 1, "descriptors: the first page");
            unsigned mine = open_descriptors();
            close(gate[1]);
            MUST(write(counts[1], &mine, sizeof mine) == sizeof mine);
            MUST(read(gate[0], &byte, 1) == 0);
            _exit(0);
        }
        MUST(read(counts[0], &found[i], sizeof found[i]) == sizeof found[i]);
    }
    close(gate[0]), close(gate[1]), close(counts[0]), close(counts[1]);
    for (size_t i = 0; i < CHILDREN; i++) {
        int status;
        MUST(waitpid(children[i], &status, 0) == children[i]);
        if (status != 0 || found[i] != found[0])
            die("descriptors: child %zu: %u, the first %u, status %#x", i, found[i], found[0],
                status);
    }
}

/* A file that is mapped for reading, and that no other descriptor refers to. */
static const unsigned char *map_file(void)
{
    static unsigned char page[PAGE];
    char name[] = "inherits.XXXXXX";
    int fd = mkstemp(name);
    MUST(fd >= 0);
    for (size_t i = 0; i < FILE_PAGES; i++) {
        fill_page(page, i, 1);
        MUST(write(fd, page, PAGE) == (ssize_t)PAGE);
    }
    close(fd);
    MUST((fd = open(name, O_RDONLY)) >= 0);
    const unsigned char *mapped = mmap(NULL, FILE_PAGES * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    MUST(mapped != MAP_FAILED);
    close(fd), unlink(name);
    return mapped;
}

static uint64_t descriptors(size_t pages)
{
    struct area area = area_map(pages, 0);
    area_fill(&area, 0, pages, 1);
    const unsigned char *mapped = map_file();
    check_page(mapped + PAGE, 1, 1, "descriptors: a mapped file");
    in_generations(count_descriptors, &area, 0);
    among_siblings(&area);
    check_page(mapped + 2 * PAGE, 2, 1, "descriptors: the file after forks");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

static const struct section SECTIONS[] = {
    {"protected", protected}, {"shared", shared}, {"descriptors", descriptors}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    struct sigaction action = {.sa_handler = on_signal};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    return run_sections(SECTIONS, count, arguments);
}
