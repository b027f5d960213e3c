/* Gives mmap hints for everything, as mimalloc, V8 and Chromium do: frees what it got elsewhere
 * once it has used it, and reserves pools that must be aligned to their length. Then uses memory
 * of both kinds.
 */
#define _GNU_SOURCE
#include "check.h"

#define HINT ((uintptr_t)4 << 40)
#define USED (20 * MIB)
#define POOL ((size_t)32 << 30)

static char *map(uintptr_t hint, size_t len, int access)
{
    char *at = mmap((void *)hint, len, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

/* A pool at an aligned address: others are given up, as Chromium does. */
static char *pool(void)
{
    for (uintptr_t hint = HINT; hint < 2 * HINT; hint += POOL) {
        char *at = map(hint, POOL, PROT_NONE);
        if ((uintptr_t)at % POOL == 0)
            return at;
        MUST(munmap(at, POOL) == 0);
    }
    die("no place is aligned");
    return NULL;
}

int main(void)
{
    for (size_t round = 0; round < 8; round++) {
        char *segment = map(HINT + round * (64 * MIB), 4 * MIB, PROT_READ | PROT_WRITE);
        segment[round * PAGE] = 1;
        MUST(munmap(segment, 4 * MIB) == 0);
    }
    char *parts[] = {map(HINT, USED, PROT_READ | PROT_WRITE), pool()};
    MUST(mprotect(parts[1], USED, PROT_READ | PROT_WRITE) == 0);
    size_t sum = 0;
    for (size_t round = 0; round < 3; round++) {
        for (size_t page = 0; page < 2 * USED / PAGE; page++) {
            size_t *word = (size_t *)(parts[page % 2] + page / 2 * PAGE);
            MUST(*word == page * round);
            *word += page;
            sum += *word;
        }
    }
    MUST(munmap(parts[0], USED) == 0 && munmap(parts[1], POOL) == 0);
    printf("%zu\n", sum);
    return 0;
}
