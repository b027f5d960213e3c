/* Requests that fail, and leave memory as it was. See sections.h for usage. */
#define _GNU_SOURCE
#include "area.h"
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

/* ---- populated: pages that may not be touched are not ---- */

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

int main(int count, char **arguments)
{
    const struct section sections[] = {
        {"growth", growth}, {"populated", populated}, {0},
    };
    return run_sections(sections, count, arguments);
}
