/* fork while pages are in memory: parent, child and grandchild share each page until one of them
 * writes to it, or until it must be evicted. See sections.h for usage; MIB is what each process
 * needs. */
#define _GNU_SOURCE
#include "area.h"
#include "children.h"
#include "sections.h"

#include <pthread.h>
#include <stdatomic.h>

/* Writes every `stride`th page, from `first` on. */
static void write_some(struct area *area, size_t first, size_t stride, uint32_t version)
{
    for (size_t page = first; page < area->pages; page += stride)
        area_fill(area, page, 1, version);
}

/* Uses other memory, so that pages of the area are evicted. */
static void press(size_t pages, uint64_t id)
{
    struct area other = area_map(pages, id);
    area_fill(&other, 0, pages, 7);
    area_check(&other, "pressure");
    area_unmap(&other);
}

/* ---- generations: each one writes, runs short of memory, forks, and checks its contents ---- */

static void generation(struct area *area, uint32_t level)
{
    area_check(area, "generations: inherits");
    write_some(area, level, 3, 10 + level);
    if (level < 3) {
        pid_t child = must_fork();
        if (child == 0) {
            generation(area, level + 1);
            _exit(0);
        }
        write_some(area, level + 1, 5, 20 + level);
        press(area->pages, (uint64_t)(8 + level) << 32);
        area_check(area, "generations: under pressure");
        must_finish(child, "generations");
    } else {
        press(area->pages, 15ull << 32);
    }
    area_check(area, "generations: at the end");
}

static uint64_t generations(size_t pages)
{
    struct area area = area_map(pages / 2, 1ull << 32);
    area_fill(&area, 0, area.pages, 1);
    generation(&area, 0);
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- holes: pages never touched, dropped, and without access lie between the others ---- */

static void make_holes(struct area *area)
{
    for (size_t page = 0; page < area->pages; page++)
        if (page % 7 != 3 && page % 600 > 20)
            area_fill(area, page, 1, 1);
    for (size_t page = 64; page + 8 <= area->pages; page += 101) {
        MUST(madvise(area->base + page * PAGE, 8 * PAGE, MADV_DONTNEED) == 0);
        area_zeroed(area, page, 8);
    }
    for (size_t page = 512; page < area->pages; page += 512)
        MUST(mprotect(area->base + page * PAGE, PAGE, page % 1024 ? PROT_READ : PROT_NONE) == 0);
}

static void open_holes(struct area *area)
{
    for (size_t page = 512; page < area->pages; page += 512)
        MUST(mprotect(area->base + page * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
}

static void use_holes(struct area *area, uint32_t version)
{
    open_holes(area);
    area_check(area, "holes");
    size_t half = area->pages / 2;
    MUST(madvise(area->base, half * PAGE, MADV_DONTNEED) == 0);
    area_zeroed(area, 0, half);
    area_check(area, "holes: half of them dropped");
    write_some(area, version, 2, version);
    /* New memory is zero, at any address. */
    struct area fresh = area_map(area->pages, 5ull << 32);
    area_check(&fresh, "holes: new memory");
    area_unmap(&fresh);
    area_check(area, "holes: written");
}

static uint64_t holes(size_t pages)
{
    struct area area = area_map(pages / 2, 2ull << 32);
    make_holes(&area);
    pid_t child = must_fork();
    if (child == 0) {
        use_holes(&area, 30);
        pid_t grandchild = must_fork();
        if (grandchild == 0) {
            use_holes(&area, 31);
            _exit(0);
        }
        must_finish(grandchild, "holes: the child");
        area_check(&area, "holes: the child");
        _exit(0);
    }
    must_finish(child, "holes");
    use_holes(&area, 32);
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- beside: fork while threads map, protect, fill and unmap memory ---- */

enum { BUSY = 2, FORKS = 25 };

static atomic_int stop;

static void *map_and_unmap(void *argument)
{
    size_t pages = (size_t)argument;
    for (uint64_t round = 1; !atomic_load(&stop) || round < 3; round++) {
        struct area area = area_map(pages, round << 20);
        area_fill(&area, 0, pages / 2, 1);
        MUST(mprotect(area.base, pages / 4 * PAGE, PROT_READ) == 0);
        area_check(&area, "beside: the thread");
        MUST(mprotect(area.base, pages / 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
        area_fill(&area, pages / 8, pages / 8, 2);
        area_check(&area, "beside: the thread, later");
        area_unmap(&area);
    }
    return NULL;
}

static uint64_t beside(size_t pages)
{
    struct area area = area_map(pages / 2, 3ull << 32);
    area_fill(&area, 0, area.pages, 1);
    pthread_t threads[BUSY];
    for (size_t i = 0; i < BUSY; i++)
        MUST(pthread_create(&threads[i], NULL, map_and_unmap, (void *)(pages / 8)) == 0);
    for (uint32_t i = 0; i < FORKS; i++) {
        pid_t child = must_fork();
        if (child == 0) {
            struct area fresh = area_map(pages / 8, 4ull << 32);
            area_check(&fresh, "beside: new memory of the child");
            write_some(&area, 0, 2, 40);
            area_check(&area, "beside: the child");
            _exit(0);
        }
        write_some(&area, i, 9, 50 + i);
        must_finish(child, "beside");
    }
    atomic_store(&stop, 1);
    for (size_t i = 0; i < BUSY; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    area_check(&area, "beside: the parent");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

static const struct section SECTIONS[] = {
    {"generations", generations}, {"holes", holes}, {"beside", beside}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_sections(SECTIONS, count, arguments);
}
