/* Follows an array of pointers to pages in random order, up and down, and sums the values found.
 *
 * pointers PAGES ROUNDS: prints the sum.
 */
#include "check.h"

static void *map(size_t size)
{
    void *got = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED)
        die("mmap of %zu bytes", size);
    return got;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        die("usage: pointers PAGES ROUNDS");
    size_t pages = strtoul(argv[1], NULL, 10), rounds = strtoul(argv[2], NULL, 10);
    char *data = map(pages * PAGE);
    uint64_t **array = map(pages * sizeof *array), seed = 1, sum = 0;
    for (size_t i = 0; i < pages; i++) {
        array[i] = (uint64_t *)(data + i * PAGE + i % 500 * 8);
        *array[i] = i * i;
    }
    for (size_t i = pages - 1; i > 0; i--) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t j = (seed >> 33) % (i + 1);
        uint64_t *swapped = array[i];
        array[i] = array[j];
        array[j] = swapped;
    }
    for (size_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < pages; i++)
            sum = sum * 31 + *array[round % 2 ? pages - 1 - i : i];
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
