/* Constants of a program are unmapped while memory is short, and keep what the program writes to
 * them.
 *
 *   constants MIB    reads 8 MiB of constants once, then uses MIB of paged memory until most of
 *                    them are unmapped. Then it changes two pages of them, one by mprotect and one
 *                    by mmap, and uses the paged memory for longer than Highwater waits between
 *                    looks. Status 1 if any contents are wrong, or the constants stay mapped
 */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <time.h>

enum { PAGES = 2048, PATIENCE_S = 60, LATER_S = 2 };

/* Each word of a page is the number of the page, from 1 on. */
__asm__(".section .rodata\n"
        ".balign 4096\n"
        "constants:\n"
        ".set page, 0\n"
        ".rept 2048\n"
        ".set page, page + 1\n"
        ".fill 512, 8, page\n"
        ".endr\n"
        ".text\n");
extern const volatile uint64_t constants[PAGES * WORDS];

static const size_t changed = 100, replaced = 200;

static void check_constants(uint64_t of_changed, uint64_t of_replaced)
{
    for (size_t page = 0; page < PAGES; page++) {
        uint64_t expected = page + 1;
        if (page == changed)
            expected = of_changed;
        if (page == replaced)
            expected = of_replaced;
        for (size_t word = 0; word < WORDS; word++)
            if (constants[page * WORDS + word] != expected)
                die("constant page %zu has %lx", page, constants[page * WORDS + word]);
    }
}

/* The number of pages of constants that are mapped. */
static size_t mapped(void)
{
    static uint64_t words[PAGES];
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    off_t at = (off_t)((uintptr_t)constants / PAGE * sizeof *words);
    size_t found = 0;
    MUST(pread(pagemap, words, sizeof words, at) == sizeof words);
    MUST(close(pagemap) == 0);
    for (size_t page = 0; page < PAGES; page++)
        found += words[page] >> 63;
    return found;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Writes new contents to each page, and checks the page. */
static void use(char *paged, size_t pages)
{
    static uint32_t version;
    version++;
    for (size_t page = 0; page < pages; page++)
        fill_page(paged + page * PAGE, page, version);
    for (size_t page = 0; page < pages; page++)
        check_page(paged + page * PAGE, page, version, "a page");
}

static void change_constants(void)
{
    char *first = (char *)(uintptr_t)&constants[changed * WORDS];
    char *second = (char *)(uintptr_t)&constants[replaced * WORDS];
    int both = PROT_READ | PROT_WRITE, anonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    MUST(mprotect(first, PAGE, both) == 0);
    memset(first, 0x77, PAGE);
    MUST(mprotect(first, PAGE, PROT_READ) == 0);
    MUST(mmap(second, PAGE, both, anonymous, -1, 0) == second);
    memset(second, 0x88, PAGE);
}

int main(int argc, char **argv)
{
    MUST(argc == 2);
    size_t pages = strtoul(argv[1], NULL, 10) * MIB / PAGE;
    char *paged = malloc(pages * PAGE);
    MUST(paged != NULL);
    check_constants(changed + 1, replaced + 1);
    MUST(mapped() == PAGES);
    double start = now();
    while (mapped() > PAGES / 8) {
        if (now() - start > PATIENCE_S)
            die("%zu of %d pages of constants are mapped", mapped(), PAGES);
        use(paged, pages);
    }
    check_constants(changed + 1, replaced + 1);
    change_constants();
    for (start = now(); now() - start < LATER_S;)
        use(paged, pages);
    check_constants(0x7777777777777777, 0x8888888888888888);
    printf("constants are right\n");
    return 0;
}
