/* Requests that fail, and leave memory as it was. See sections.h for usage. */
#define _GNU_SOURCE
#include "area.h"
#include "children.h"
#include "sections.h"

/* ---- growth: realloc of more than memory and swap takes no addresses ---- */

static uint64_t growth(size_t pages)
{
    struct area area = area_map(pages, 1 << 20);
    area_fill(&area, 0, pages, 1);
    unsigned char *block = malloc(100000);
    MUST(block);
    memset(block, 7, 100000);
    for (int bits = 40; bits >= 28; bits -= 4)
        for (int i = 0; i < 20; i++) {
            unsigned char *grown = realloc(block, 1ul << bits);
            if (grown)
                MUST(block = realloc(grown, 100000));
        }
    MUST(block[0] == 7 && block[99999] == 7);
    void *others[4];
    for (int i = 0; i < 4; i++)
        MUST(others[i] = malloc(70 * MIB));
    for (int i = 0; i < 4; i++)
        free(others[i]);
    free(block);
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- crowded: the kernel has no mapping left to split another mapping by a protection ---- */

enum { CROWD = 1 << 17, CHANGED = 8 };

/* Protects every second page until the kernel refuses. */
static void crowd(unsigned char *pages)
{
    for (size_t page = 0; page < CROWD; page += 2)
        if (mprotect(pages + page * PAGE, PAGE, PROT_READ) != 0)
            return;
}

/* Moves an area if it can be moved; its contents are in one of the two places. */
static void move(struct area *area)
{
    int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    size_t len = area->pages * PAGE;
    unsigned char *moved = mremap(area->base, len, len, flags, NULL);
    if (moved == MAP_FAILED)
        return;
    MUST(munmap(area->base, len) == 0);
    area->base = moved;
}

static uint64_t crowded(size_t pages)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    struct area area = area_map(pages, 2 << 20), moving = area_map(64, 3 << 20);
    area_fill(&area, 0, pages, 1);
    area_fill(&moving, 0, 64, 1);
    MUST(mprotect(moving.base, 64 * PAGE, PROT_READ) == 0);
    unsigned char *many = mmap(NULL, CROWD * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    MUST(many != MAP_FAILED);
    crowd(many);
    int refused = mprotect(area.base + CHANGED * PAGE, PAGE, PROT_READ) != 0;
    move(&moving);
    area_check(&moving, "crowded: moved, or not");
    MUST(munmap(many, CROWD * PAGE) == 0);
    pid_t child = must_fork();
    if (child == 0) {
        if (refused)
            area_fill(&area, CHANGED, 1, 2);
        area_check(&area, "crowded: the child");
        _exit(0);
    }
    must_finish(child, "crowded");
    area_check(&area, "crowded");
    uint64_t hash = hash_bytes(area_hash(&area), moving.base, 64 * PAGE);
    area_unmap(&moving);
    area_unmap(&area);
    return hash;
}

/* ---- populated: pages that may not be touched stay untouched ---- */

static uint64_t populated(size_t pages)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    unsigned char *at = mmap(NULL, pages * PAGE, PROT_NONE, flags, -1, 0);
    MUST(at != MAP_FAILED);
    MUST(madvise(at, pages * PAGE, MADV_POPULATE_READ) != 0);
    MUST(madvise(at, pages * PAGE, MADV_POPULATE_WRITE) != 0);
    MUST(munmap(at, pages * PAGE) == 0);
    return 0;
}

/* ---- keys: protections that pkey_mprotect sets ---- */

static uint64_t keys(size_t pages)
{
    struct area area = area_map(pages, 4 << 20), other = area_map(pages, 5 << 20);
    area_fill(&area, 0, pages, 1);
    size_t half = pages / 2, some = 256;
    area_check_part(&area, half - some, 2 * some, "keys: before");
    MUST(pkey_mprotect(area.base, half * PAGE, PROT_NONE, -1) == 0);
    MUST(pkey_mprotect(area.base + half * PAGE, (pages - half) * PAGE, PROT_READ, -1) == 0);
    area_fill(&other, 0, pages, 1);
    MUST(pkey_mprotect(area.base, pages * PAGE, PROT_READ | PROT_WRITE, -1) == 0);
    area_check(&area, "keys");
    area_fill(&area, 0, pages, 2);
    area_check(&other, "keys: other");
    uint64_t hash = area_hash(&area);
    area_unmap(&other);
    area_unmap(&area);
    return hash;
}

int main(int count, char **arguments)
{
    const struct section sections[] = {
        {"growth", growth}, {"crowded", crowded}, {"populated", populated}, {"keys", keys}, {0},
    };
    return run_sections(sections, count, arguments);
}
