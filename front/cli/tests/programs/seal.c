/* Fills memory with pages that begin with a marker, waits for a line, and checks the pages, also in
 * a forked child: between the two steps a test reads and changes the pages on disk.
 *
 *     seal MIB
 */
#include "check.h"
#include <sys/wait.h>

static const char marker[16] = "highwater-marker";

static void fill(unsigned char *page, uint64_t seed)
{
    memcpy(page, marker, sizeof marker);
    for (size_t at = sizeof marker; at < PAGE; at += 8) {
        uint64_t word = next_random(&seed);
        memcpy(page + at, &word, 8);
    }
}

static uint64_t check(unsigned char *memory, size_t pages, uint64_t seed)
{
    unsigned char expected[PAGE];
    uint64_t sum = 0;
    for (size_t page = 0; page < pages; page++) {
        fill(expected, seed + page);
        if (memcmp(memory + page * PAGE, expected, PAGE))
            die("page %zu is not what was written", page);
        sum = mix(sum ^ expected[PAGE - 1]);
    }
    return sum;
}

int main(int count, char **arguments)
{
    MUST(count == 2);
    size_t pages = strtoul(arguments[1], NULL, 10) * MIB / PAGE;
    unsigned char *memory = malloc(pages * PAGE);
    MUST(memory);
    for (size_t page = 0; page < pages; page++)
        fill(memory + page * PAGE, page);
    puts("filled");
    fflush(stdout);
    MUST(getchar() == '\n');
    printf("%016lx\n", check(memory, pages, 0));
    fflush(stdout);
    /* Each child checks what its parent wrote before the fork, while the parent writes new
     * contents. */
    for (uint64_t round = 1; round <= 3; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            check(memory, pages, (round - 1) * pages);
            _exit(0);
        }
        for (size_t page = 0; page < pages; page++)
            fill(memory + page * PAGE, round * pages + page);
        int status;
        MUST(waitpid(child, &status, 0) == child);
        MUST(status == 0);
        printf("%016lx\n", check(memory, pages, round * pages));
        fflush(stdout);
    }
    return 0;
}
