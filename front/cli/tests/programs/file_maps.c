/* Mappings of large files, whose pages are unmapped while memory is short:   file_maps MIB
 *
 * Makes files of MIB in the working directory. Every store must be found again, in the mapping and
 * in the file, and memory that takes the place of a mapping must keep its contents. */
#define _GNU_SOURCE
#include "sections.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

static int make_file(const char *name, size_t pages)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char page[PAGE];
    MUST(fd >= 0);
    for (size_t at = 0; at < pages; at++) {
        fill_page(page, at, 1);
        MUST(write(fd, page, PAGE) == (ssize_t)PAGE);
    }
    return fd;
}

static char *map(int fd, size_t pages, int access, int kind)
{
    char *at = mmap(NULL, pages * PAGE, access, kind, fd, 0);
    MUST(at != MAP_FAILED);
    return at;
}

/* Stores to a shared mapping are in the file. */
static uint64_t writes(size_t pages)
{
    int fd = make_file("writes.data", pages);
    uint32_t *versions = calloc(pages, sizeof *versions);
    char *at = map(fd, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE), page[PAGE];
    uint64_t state = 1, hash = 0;
    MUST(versions);
    for (size_t step = 0; step < 6 * pages; step++) {
        size_t which = next_random(&state) % pages;
        check_page(at + which * PAGE, which, 1 + versions[which], "a page of the mapping");
        if (step % 3 == 0)
            fill_page(at + which * PAGE, which, 1 + ++versions[which]);
    }
    for (size_t which = 0; which < pages; which++) {
        MUST(pread(fd, page, PAGE, (off_t)(which * PAGE)) == (ssize_t)PAGE);
        check_page(page, which, 1 + versions[which], "a page of the file");
        hash = mix(hash ^ versions[which]);
    }
    MUST(munmap(at, pages * PAGE) == 0 && close(fd) == 0 && unlink("writes.data") == 0);
    return hash;
}

/* Memory of the process's own at the addresses of a mapping that has gone. */
static uint64_t replaced(size_t pages)
{
    int fd = make_file("replaced.data", pages);
    for (int turn = 0; turn < 12; turn++) {
        char *at = map(fd, pages, PROT_READ, turn % 2 ? MAP_SHARED : MAP_PRIVATE);
        for (size_t which = 0; which < pages; which++)
            check_page(at + which * PAGE, which, 1, "a page of the file");
        size_t first = pages / 4, count = 512;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        char *own = at + first * PAGE;
        if (turn % 3 == 0)
            MUST(munmap(own, count * PAGE) == 0);
        MUST(mmap(own, count * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == own);
        for (size_t which = 0; which < count; which++)
            fill_page(own + which * PAGE, which, 2);
        for (size_t which = 0; which < pages; which++)
            if (which < first || which >= first + count)
                check_page(at + which * PAGE, which, 1, "a page around");
        for (size_t which = 0; which < count; which++)
            check_page(own + which * PAGE, which, 2, "a page of its own");
        MUST(munmap(at, pages * PAGE) == 0);
    }
    MUST(close(fd) == 0 && unlink("replaced.data") == 0);
    return mix(pages);
}

/* A private mapping that becomes writable keeps what is stored. */
static uint64_t changed(size_t pages)
{
    int fd = make_file("changed.data", pages);
    char *at = map(fd, pages, PROT_READ, MAP_PRIVATE);
    size_t first = pages / 2, count = 256;
    check_page(at, 0, 1, "the first page");
    MUST(mprotect(at + first * PAGE, count * PAGE, PROT_READ | PROT_WRITE) == 0);
    for (size_t which = first; which < first + count; which++)
        fill_page(at + which * PAGE, which, 2);
    MUST(mprotect(at + first * PAGE, count * PAGE, PROT_READ) == 0);
    for (int turn = 0; turn < 6; turn++)
        for (size_t which = 0; which < pages; which++) {
            int is_own = which >= first && which < first + count;
            check_page(at + which * PAGE, which, is_own ? 2 : 1, "a page");
        }
    MUST(munmap(at, pages * PAGE) == 0 && close(fd) == 0 && unlink("changed.data") == 0);
    return mix(pages);
}

static int thread_fd, is_done;

/* Reads a mapping all the time, so that pages of all mappings are unmapped. */
static void *presses(void *argument)
{
    size_t pages = (size_t)argument;
    char *at = map(thread_fd, pages, PROT_READ, MAP_SHARED);
    while (!__atomic_load_n(&is_done, __ATOMIC_RELAXED))
        for (size_t which = 0; which < pages; which++)
            check_page(at + which * PAGE, which, 1, "a page of the file");
    MUST(munmap(at, pages * PAGE) == 0);
    return NULL;
}

/* Pages of private mappings become writable while pages are unmapped, also in mappings that have
 * just been resized. A byte stands for its page. */
static uint64_t late(size_t pages)
{
    pthread_t other;
    thread_fd = make_file("late.data", pages);
    is_done = 0;
    MUST(pthread_create(&other, NULL, presses, (void *)pages) == 0);
    for (uint32_t turn = 0; turn < 16; turn++) {
        size_t mapped = turn % 2 ? pages : pages / 2;
        char *at = map(thread_fd, mapped, PROT_READ, MAP_PRIVATE);
        check_page(at, 0, 1, "the first page");
        at = mremap(at, mapped * PAGE, pages * PAGE, MREMAP_MAYMOVE);
        MUST(at != MAP_FAILED);
        for (size_t which = turn; which < pages; which += 101) {
            check_page(at + which * PAGE, which, 1, "a page");
            MUST(mprotect(at + which * PAGE, 1, PROT_READ | PROT_WRITE) == 0);
            fill_page(at + which * PAGE, which, 2);
        }
        for (size_t which = 0; which < pages; which++) {
            int is_own = which >= turn && (which - turn) % 101 == 0;
            check_page(at + which * PAGE, which, is_own ? 2 : 1, "a page");
        }
        MUST(munmap(at, pages * PAGE) == 0);
    }
    __atomic_store_n(&is_done, 1, __ATOMIC_RELAXED);
    MUST(pthread_join(other, NULL) == 0 && close(thread_fd) == 0 && unlink("late.data") == 0);
    return mix(pages);
}

/* Reads a whole file again and again, beside memory that is swapped. */
static uint64_t scans(size_t pages)
{
    int fd = make_file("scans.data", pages);
    char *own = malloc(pages / 4 * PAGE);
    MUST(own);
    for (size_t which = 0; which < pages / 4; which++)
        fill_page(own + which * PAGE, which, 2);
    for (int turn = 0; turn < 24; turn++) {
        char *at = map(fd, pages, PROT_READ, MAP_SHARED);
        for (size_t which = 0; which < pages; which++)
            check_page(at + which * PAGE, which, 1, "a page of the file");
        MUST(munmap(at, pages * PAGE) == 0);
        for (size_t which = (size_t)turn; which < pages / 4; which += 24)
            check_page(own + which * PAGE, which, 2, "a page of its own");
    }
    free(own);
    MUST(close(fd) == 0 && unlink("scans.data") == 0);
    return mix(pages);
}

/* Pages that are locked, and files in memory: their pages stay mapped. */
static uint64_t stay(size_t pages)
{
    size_t few = pages / 16;
    int fd = make_file("stay.data", few), memory = memfd_create("stay", MFD_CLOEXEC);
    char *locked = map(fd, few, PROT_READ, MAP_SHARED);
    MUST(mlock(locked, few * PAGE) == 0 && ftruncate(memory, (off_t)(few * PAGE)) == 0);
    char *shared = map(memory, few, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (size_t which = 0; which < few; which++)
        fill_page(shared + which * PAGE, which, 1);
    scans(pages);
    for (size_t which = 0; which < few; which++) {
        check_page(locked + which * PAGE, which, 1, "a locked page");
        check_page(shared + which * PAGE, which, 1, "a page of shared memory");
    }
    MUST(munmap(locked, few * PAGE) == 0 && munmap(shared, few * PAGE) == 0);
    MUST(close(fd) == 0 && close(memory) == 0 && unlink("stay.data") == 0);
    return mix(pages);
}

/* A mapping that grows and moves. */
static uint64_t moved(size_t pages)
{
    int fd = make_file("moved.data", pages);
    char *at = map(fd, pages / 4, PROT_READ | PROT_WRITE, MAP_SHARED);
    size_t now = pages / 4;
    for (uint32_t turn = 2; turn < 8; turn++) {
        size_t next = turn % 2 ? pages / 2 : pages;
        at = mremap(at, now * PAGE, next * PAGE, MREMAP_MAYMOVE);
        MUST(at != MAP_FAILED);
        now = next;
        for (size_t which = 0; which < pages / 4; which++) {
            check_page(at + which * PAGE, which, turn - 1, "a page");
            fill_page(at + which * PAGE, which, turn);
        }
        for (size_t which = pages / 4; which < now; which++)
            check_page(at + which * PAGE, which, 1, "a page of the rest");
    }
    MUST(munmap(at, now * PAGE) == 0 && close(fd) == 0 && unlink("moved.data") == 0);
    return mix(pages);
}

/* Parent and child store to one mapping. */
static uint64_t forks(size_t pages)
{
    int fd = make_file("forks.data", pages), status;
    char *at = map(fd, pages, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (uint32_t turn = 1; turn < 4; turn++) {
        char *own = malloc(4 * MIB);
        memset(own, (int)turn, 4 * MIB);
        pid_t child = fork();
        MUST(child >= 0);
        for (size_t which = child == 0; which < pages; which += 2) {
            check_page(at + which * PAGE, which, turn, "a page");
            fill_page(at + which * PAGE, which, turn + 1);
        }
        for (size_t byte = 0; byte < 4 * MIB; byte += 512)
            if (own[byte] != (char)turn)
                die("byte %zu of the heap", byte);
        if (child == 0)
            _exit(0);
        MUST(waitpid(child, &status, 0) == child && status == 0);
        free(own);
    }
    for (size_t which = 0; which < pages; which++)
        check_page(at + which * PAGE, which, 4, "a page at the end");
    MUST(munmap(at, pages * PAGE) == 0 && close(fd) == 0 && unlink("forks.data") == 0);
    return mix(pages);
}

/* Maps, reads, unmaps, and takes memory at once, which may lie at the addresses of the mapping. */
static void *comes_and_goes(void *argument)
{
    uint64_t state = (uintptr_t)argument;
    for (int turn = 0; turn < 40; turn++) {
        size_t count = 300 + next_random(&state) % 2000;
        char *at = map(thread_fd, count, PROT_READ, turn % 2 ? MAP_SHARED : MAP_PRIVATE);
        for (size_t which = 0; which < count; which++)
            check_page(at + which * PAGE, which, 1, "a page of the file");
        MUST(munmap(at, count * PAGE) == 0);
        char *own = mmap(at, count * PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        MUST(own != MAP_FAILED);
        for (size_t which = 0; which < count; which += 7)
            fill_page(own + which * PAGE, which, 3);
        for (size_t which = 0; which < count; which += 7)
            check_page(own + which * PAGE, which, 3, "a page of its own");
        MUST(munmap(own, count * PAGE) == 0);
    }
    return NULL;
}

static uint64_t threads(size_t pages)
{
    pthread_t all[3];
    thread_fd = make_file("threads.data", pages);
    char *at = map(thread_fd, pages, PROT_READ, MAP_SHARED);
    for (size_t i = 0; i < 3; i++)
        MUST(pthread_create(&all[i], NULL, comes_and_goes, (void *)(i + 1)) == 0);
    for (int turn = 0; turn < 4; turn++)
        for (size_t which = 0; which < pages; which++)
            check_page(at + which * PAGE, which, 1, "a page");
    for (size_t i = 0; i < 3; i++)
        MUST(pthread_join(all[i], NULL) == 0);
    MUST(munmap(at, pages * PAGE) == 0 && close(thread_fd) == 0 && unlink("threads.data") == 0);
    return mix(pages);
}

int main(int count, char **arguments)
{
    static const struct section sections[] = {
        { "writes", writes },   { "replaced", replaced }, { "changed", changed },
        { "late", late },       { "moved", moved },       { "forks", forks },
        { "threads", threads }, { "scans", scans },       { "stay", stay },
        { NULL, NULL },
    };
    return run_sections(sections, count, arguments);
}
