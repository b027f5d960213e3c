/* Reserves memory as Java's heap does: at low addresses if there is room, else anywhere. Then maps
 * the part that it uses.
 */
#define _GNU_SOURCE
#include "check.h"

#define RESERVED (64 * MIB)
#define USED (40 * MIB)

int main(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = MAP_FAILED;
    for (uintptr_t place = 1UL << 28; at == MAP_FAILED && place < 1UL << 35; place += 1UL << 30)
        at = mmap((void *)place, RESERVED, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED)
        at = mmap(NULL, RESERVED, PROT_NONE, flags, -1, 0);
    MUST(at != MAP_FAILED);
    int access = PROT_READ | PROT_WRITE;
    MUST(mmap(at, USED, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    size_t sum = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t page = 0; page < USED / PAGE; page++) {
            size_t *word = (size_t *)((char *)at + page * PAGE);
            MUST(*word == page * (size_t)round);
            *word += page;
            sum += *word;
        }
    }
    MUST(munmap(at, RESERVED) == 0);
    printf("%zu\n", sum);
    return 0;
}
