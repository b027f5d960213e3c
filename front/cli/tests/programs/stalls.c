/* Fills memory, waits for a line, and checks and changes all pages in random order several times.
 * Prints a sum of everything read, and the longest time that a page took, in microseconds.
 *
 *     stalls MIB
 */
#include "check.h"
#include <time.h>

enum { ROUNDS = 8 };

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000ull + time.tv_nsec / 1000;
}

static void fill(uint64_t *page, uint64_t seed)
{
    for (size_t at = 0; at < PAGE / 8; at++)
        page[at] = next_random(&seed);
}

int main(int count, char **arguments)
{
    MUST(count == 2);
    size_t pages = strtoul(arguments[1], NULL, 10) * MIB / PAGE;
    uint64_t(*memory)[PAGE / 8] = malloc(pages * PAGE);
    uint32_t *order = malloc(pages * sizeof *order);
    MUST(memory && order);
    for (size_t page = 0; page < pages; page++) {
        fill(memory[page], page);
        order[page] = page;
    }
    puts("filled");
    fflush(stdout);
    MUST(getchar() == '\n');
    uint64_t random = 1, sum = 0, longest = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (size_t left = pages; left > 1; left--) {
            size_t other = next_random(&random) % left;
            uint32_t page = order[left - 1];
            order[left - 1] = order[other];
            order[other] = page;
        }
        for (size_t at = 0; at < pages; at++) {
            uint64_t expected[PAGE / 8], seed = round * pages + order[at], began = now();
            uint64_t *page = memory[order[at]];
            fill(expected, seed);
            if (memcmp(page, expected, PAGE))
                die("page %u is not what was written", order[at]);
            sum = mix(sum ^ page[PAGE / 8 - 1]);
            fill(page, seed + pages);
            uint64_t took = now() - began;
            longest = took > longest ? took : longest;
        }
    }
    printf("%016lx\n%lu\n", sum, longest);
    return 0;
}
