/* madvise about large pages: the result of each call, and contents kept.   collapse MIB */
#define _GNU_SOURCE
#include "area.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { BLOCK = 512 };

static void answer(const char *what, void *at, size_t pages, int advice)
{
    int failed = madvise(at, pages * PAGE, advice) == 0 ? 0 : errno;
    printf("%s: %s\n", what, failed == 0 ? "done" : strerrorname_np(failed));
}

int main(int count, char **arguments)
{
    if (count != 2)
        die("usage: collapse MIB");
    struct area area = area_map(number(arguments[1]) * MIB / PAGE, 0);
    area_fill(&area, 0, area.pages, 1);
    size_t skip = (2 * MIB - (uintptr_t)area.base % (2 * MIB)) % (2 * MIB) / PAGE;
    unsigned char *block = area.base + skip * PAGE;
    answer("hugepage", block, BLOCK, MADV_HUGEPAGE);
    answer("collapse", block, BLOCK, MADV_COLLAPSE);
    area_check(&area, "after the first");
    answer("nohugepage", block, BLOCK, MADV_NOHUGEPAGE);
    answer("unaligned", block + 1, BLOCK, MADV_COLLAPSE);
    MUST(munmap(block + PAGE, PAGE) == 0);
    area.mapped[skip + 1] = 0;
    answer("with a gap", block, BLOCK, MADV_COLLAPSE);
    area_check(&area, "after all");
    return 0;
}
