/* Uses memory under a limit on all memory.
 *
 *   limit compressible MIB   fills MIB of pages that compress well, and checks them four times in
 *                            another order each time
 *   limit beside MIB SHARED  fills MIB of pages, then SHARED MiB of shared memory, which cannot be
 *                            paged, one in 60 ms, and checks a part of the pages each time, and all
 *                            of them at the end
 *   limit over MIB SHARED    the same, with shared memory over addresses that were reserved before
 *   limit forks MIB          fills MIB of pages, and forks ten children, one after the other, that
 *                            check some of them for 50 ms
 *   limit saves MIB          fills MIB of pages, and forks a child that checks all of them while
 *                            the parent checks pages and changes every eighth of these
 *   limit parts MIB WRITER   fills MIB of pages, and forks; WRITER, parent or child, changes all of
 *                            them, one MiB in 5 ms, while the other waits; then both check theirs
 */
#include "check.h"
#include <sys/wait.h>
#include <time.h>

/* Eight words in a row are equal. */
static uint64_t word_of(size_t page, size_t word)
{
    return mix((page * WORDS + word) / 8);
}

static void compressible(size_t mib)
{
    size_t pages = mib * MIB / PAGE;
    uint64_t *words = map_pages(pages), seed = 1;
    for (size_t word = 0; word < pages * WORDS; word++)
        words[word] = word_of(word / WORDS, word % WORDS);
    for (size_t round = 0; round < 4 * pages; round++) {
        size_t page = next_random(&seed) % pages;
        for (size_t word = 0; word < WORDS; word++)
            if (words[page * WORDS + word] != word_of(page, word))
                die("page %zu, word %zu", page, word);
    }
}

static void beside(size_t mib, size_t shared_mib, int over)
{
    int fixed = over ? MAP_FIXED : 0;
    char *reserved = NULL;
    if (over)
        reserved = mmap(NULL, shared_mib * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(reserved != MAP_FAILED);
    size_t pages = mib * MIB / PAGE, step = pages / shared_mib;
    char *paged = map_pages(pages);
    for (size_t page = 0; page < pages; page++)
        fill_page(paged + page * PAGE, page, 1);
    char *shared = mmap(reserved, shared_mib * MIB, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | fixed, -1, 0);
    MUST(shared != MAP_FAILED);
    for (size_t at = 0; at < shared_mib; at++) {
        memset(shared + at * MIB, 1, MIB);
        for (size_t page = at * step; page < (at + 1) * step; page++)
            check_page(paged + page * PAGE, page, 1, "a page");
        nanosleep(&(struct timespec){.tv_nsec = 60000000}, NULL);
    }
    for (size_t page = 0; page < pages; page++)
        check_page(paged + page * PAGE, page, 1, "a page at the end");
}

static void forks(size_t mib)
{
    size_t pages = mib * MIB / PAGE;
    char *paged = map_pages(pages);
    for (size_t page = 0; page < pages; page++)
        fill_page(paged + page * PAGE, page, 1);
    for (int child = 0; child < 10; child++) {
        if (fork() == 0) {
            for (size_t page = 0; page < pages; page += 64)
                check_page(paged + page * PAGE, page, 1, "a child");
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
            _exit(0);
        }
        int status;
        MUST(wait(&status) > 0 && status == 0);
    }
}

static void saves(size_t mib)
{
    size_t pages = mib * MIB / PAGE;
    char *paged = map_pages(pages);
    unsigned *version = calloc(pages, sizeof *version);
    uint64_t seed = 1;
    MUST(version);
    for (size_t page = 0; page < pages; page++)
        fill_page(paged + page * PAGE, page, 0);
    pid_t child = fork();
    if (child == 0) {
        for (size_t page = 0; page < pages; page++)
            check_page(paged + page * PAGE, page, 0, "as it was at the fork");
        _exit(0);
    }
    int status;
    for (size_t round = 0; waitpid(child, &status, WNOHANG) == 0; round++) {
        size_t page = next_random(&seed) % pages;
        check_page(paged + page * PAGE, page, version[page], "as it is now");
        if (round % 8 == 0)
            fill_page(paged + page * PAGE, page, ++version[page]);
    }
    MUST(status == 0);
    for (size_t page = 0; page < pages; page++)
        check_page(paged + page * PAGE, page, version[page], "at the end");
}

/* Changes all pages, and checks them once the other process has been told to go on. */
static void change(char *paged, size_t pages, int tell)
{
    for (size_t page = 0; page < pages; page++) {
        fill_page(paged + page * PAGE, page, 2);
        if (page % (MIB / PAGE) == 0)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    MUST(write(tell, "", 1) == 1);
    for (size_t page = 0; page < pages; page++)
        check_page(paged + page * PAGE, page, 2, "what was written");
}

/* Checks that pages are as they were at the fork, after the other process has changed all. */
static void keep(char *paged, size_t pages, int told)
{
    char byte;
    MUST(read(told, &byte, 1) == 1);
    for (size_t page = 0; page < pages; page++)
        check_page(paged + page * PAGE, page, 1, "as it was at the fork");
}

static void parts(size_t mib, int child_writes)
{
    size_t pages = mib * MIB / PAGE;
    char *paged = map_pages(pages);
    int ends[2], status;
    MUST(pipe(ends) == 0);
    for (size_t page = 0; page < pages; page++)
        fill_page(paged + page * PAGE, page, 1);
    pid_t child = fork();
    if ((child == 0) == child_writes)
        change(paged, pages, ends[1]);
    else
        keep(paged, pages, ends[0]);
    if (child == 0)
        _exit(0);
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "compressible"))
        compressible(number(argv[2]));
    else if (argc == 4 && (!strcmp(argv[1], "beside") || !strcmp(argv[1], "over")))
        beside(number(argv[2]), number(argv[3]), !strcmp(argv[1], "over"));
    else if (argc == 3 && !strcmp(argv[1], "forks"))
        forks(number(argv[2]));
    else if (argc == 3 && !strcmp(argv[1], "saves"))
        saves(number(argv[2]));
    else if (argc == 4 && !strcmp(argv[1], "parts"))
        parts(number(argv[2]), !strcmp(argv[3], "child"));
    else
        die("usage: limit compressible MIB | beside MIB SHARED | forks MIB | saves MIB | "
            "parts MIB WRITER");
    puts("ok");
    return 0;
}
