/* What a forked child has of its parent beside contents: what may be done to which page, what else
 * is mapped there. Each section goes on in a child of the child. See sections.h for usage. */
#define _GNU_SOURCE
#include "area.h"
#include "sections.h"

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

/* Runs `act` in this process, in its child, and in the child of that; in those that have a child
 * once more after its end. */
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

/* Of every 16 pages, one may only be read, and one not even that. */
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
        /* What it guards is still there, and the guard is a child's own. */
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

/* ---- shared: a mapping over a part of another, which all generations share ---- */

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

static const struct section SECTIONS[] = {
    {"protected", protected}, {"shared", shared}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    struct sigaction action = {.sa_handler = on_signal};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    return run_sections(SECTIONS, count, arguments);
}
