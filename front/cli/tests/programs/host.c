/* The host swaps out pages that Highwater has in memory: the program calls MADV_PAGEOUT past the C
 * library, with swap of the kernel. See sections.h for usage. */
#define _GNU_SOURCE
#include "area.h"
#include "children.h"
#include "sections.h"

#include <fcntl.h>
#include <sys/syscall.h>

enum { ROUNDS = 3 };

/* Makes the host swap out the area's pages that it finds. */
static void page_out(const struct area *area)
{
    MUST(syscall(SYS_madvise, area->base, area->pages * PAGE, MADV_PAGEOUT) == 0);
}

/* Pages of the area that the host has swapped out. */
static size_t swapped_by_host(const struct area *area)
{
    size_t count = 0;
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    MUST(pagemap >= 0);
    for (size_t page = 0; page < area->pages; page++) {
        uint64_t word;
        off_t at = (off_t)(((uintptr_t)area->base / PAGE + page) * sizeof word);
        MUST(pread(pagemap, &word, sizeof word, at) == sizeof word);
        count += word >> 62 & 1;
    }
    close(pagemap);
    return count;
}

/* Swaps all pages in and others out, with the host at work between the two. */
static void churn(struct area *area, uint32_t version)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        page_out(area);
        for (size_t page = round % 3; page < area->pages; page += 3)
            area_fill(area, page, 1, version + round);
        page_out(area);
        area_check(area, "churn");
    }
}

/* ---- evicted: pages are evicted after the host has swapped them out ---- */

static uint64_t evicted(size_t pages)
{
    struct area area = area_map(pages, 1 << 20);
    area_fill(&area, 0, pages, 1);
    page_out(&area);
    MUST(swapped_by_host(&area) > 0);
    churn(&area, 2);
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- forked: before and after, in parent and child ---- */

static uint64_t forked(size_t pages)
{
    struct area area = area_map(pages, 2 << 20);
    area_fill(&area, 0, pages, 1);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        page_out(&area);
        pid_t child = must_fork();
        if (child == 0) {
            churn(&area, 40);
            _exit(0);
        }
        churn(&area, 10 * round);
        must_finish(child, "forked");
        area_check(&area, "forked");
    }
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- changed: moved, dropped and protected ---- */

static uint64_t changed(size_t pages)
{
    struct area area = area_map(pages, 3 << 20);
    area_fill(&area, 0, pages, 1);
    page_out(&area);
    area.base = mremap(area.base, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
    MUST(area.base != MAP_FAILED);
    area_check(&area, "changed: moved");
    page_out(&area);
    size_t part = pages / 4;
    MUST(madvise(area.base, part * PAGE, MADV_DONTNEED) == 0);
    area_zeroed(&area, 0, part);
    MUST(mprotect(area.base + part * PAGE, part * PAGE, PROT_NONE) == 0);
    MUST(mprotect(area.base + 2 * part * PAGE, part * PAGE, PROT_READ) == 0);
    page_out(&area);
    struct area other = area_map(pages, 4 << 20);
    area_fill(&other, 0, pages, 1);
    MUST(mprotect(area.base + part * PAGE, 2 * part * PAGE, PROT_READ | PROT_WRITE) == 0);
    area_check(&area, "changed: dropped and protected");
    area_check(&other, "changed: other");
    uint64_t hash = area_hash(&area);
    area_unmap(&other);
    MUST(munmap(area.base + pages * PAGE, pages * PAGE) == 0);
    area_unmap(&area);
    return hash;
}

/* ---- unprivileged: a child that may not open files of its own in /proc ---- */

static uint64_t unprivileged(size_t pages)
{
    struct area area = area_map(pages, 5 << 20);
    area_fill(&area, 0, pages, 1);
    MUST(setgid(65534) == 0 && setuid(65534) == 0);
    pid_t child = must_fork();
    if (child == 0) {
        MUST(open("/proc/self/pagemap", O_RDONLY) < 0);
        churn(&area, 2);
        _exit(0);
    }
    must_finish(child, "unprivileged");
    area_check(&area, "unprivileged: the parent");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

int main(int count, char **arguments)
{
    const struct section sections[] = {
        {"evicted", evicted}, {"forked", forked}, {"changed", changed},
        {"unprivileged", unprivileged}, {0},
    };
    return run_sections(sections, count, arguments);
}
