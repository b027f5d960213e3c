/* Very many small mappings:   regions COUNT [alternate]
 *
 * Maps COUNT regions of a page each, writes and verifies all, and unmaps them in random order,
 * verifying each just before. With `alternate` every second region goes first, which leaves more
 * separate mappings than a kernel allows by default if COUNT is over 131,060.
 */
#define _GNU_SOURCE
#include "check.h"

#include <time.h>

static double seconds(void)
{
    struct timespec now;
    MUST(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t look(unsigned char *region, size_t id, const char *where)
{
    check_page(region, id, 1, where);
    return hash_bytes(0, region, PAGE);
}

/* An order to unmap in. */
static void arrange(size_t *order, size_t count, int alternate)
{
    for (size_t i = 0; i < count; i++)
        order[i] = alternate ? (i * 2 < count ? i * 2 : (i - (count + 1) / 2) * 2 + 1) : i;
    if (alternate)
        return;
    uint64_t random = count;
    for (size_t i = count; i > 1; i--) {
        size_t other = next_random(&random) % i, kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

int main(int count, char **arguments)
{
    if (count != 2 && count != 3)
        die("usage: regions COUNT [alternate]");
    size_t regions = number(arguments[1]);
    unsigned char **at = calloc(regions, sizeof *at);
    size_t *order = calloc(regions, sizeof *order);
    MUST(at && order);
    arrange(order, regions, count == 3);

    double start = seconds();
    for (size_t i = 0; i < regions; i++)
        at[i] = map_pages(1);
    double mapped = seconds();
    for (size_t i = 0; i < regions; i++)
        fill_page(at[i], i, 1);
    uint64_t hash = 0;
    for (size_t i = 0; i < regions; i++)
        hash ^= mix(look(at[i], i, "all there") ^ i);
    double verified = seconds();
    for (size_t i = 0; i < regions; i++) {
        size_t region = order[i];
        hash += mix(look(at[region], region, "before unmapping") + region);
        if (munmap(at[region], PAGE) != 0)
            die("munmap number %zu: %s", i, strerror(errno));
    }
    double unmapped = seconds();
    printf("%zu regions %016llx\n", regions, (unsigned long long)hash);
    fprintf(stderr, "map %.2f s, write and verify %.2f s, verify and unmap %.2f s\n",
            mapped - start, verified - mapped, unmapped - verified);
    free(at), free(order);
    return 0;
}
