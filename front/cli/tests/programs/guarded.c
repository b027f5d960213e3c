/* First writes to pages that a fork has shared, while memory is short: by stores, by reads from a
 * pipe and a socket, and on pages whose protection changes, or that are dropped, moved and
 * unmapped.
 *
 *   guarded MIB ROUNDS   in each round, a process with MIB of pages forks a child, which forks one,
 *                        too. Each changes its pages, and checks them; the parent by two threads,
 *                        beside a vfork. The second child checks first that it has all pages
 */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { WAYS = 8, AREA_PAGES = 64 };

static size_t pages;
static char *paged;
/* The version of a page in this process. */
static uint32_t *version;

/* The pages of a thread of the parent: every second one. */
struct work {
    uint32_t next;
    size_t first, step;
};

static void through(int ends[2], char *to, size_t page, uint32_t next)
{
    char filled[PAGE] __attribute__((aligned(8)));
    fill_page(filled, page, next);
    MUST(write(ends[1], filled, PAGE) == (ssize_t)PAGE);
    MUST(read(ends[0], to, PAGE) == (ssize_t)PAGE);
}

static void change(size_t page, uint32_t next, int pipes[2], int sockets[2])
{
    char *at = paged + page * PAGE;
    switch (page / 2 % WAYS) {
    case 0:
        through(pipes, at, page, next);
        break;
    case 1:
        through(sockets, at, page, next);
        break;
    case 2:
        MUST(mprotect(at, PAGE, PROT_READ) == 0);
        check_page(at, page, version[page], "a protected page");
        MUST(mprotect(at, PAGE, PROT_READ | PROT_WRITE) == 0);
        fill_page(at, page, next);
        break;
    case 3:
        MUST(madvise(at, PAGE, MADV_DONTNEED) == 0);
        check_page(at, page, 0, "a dropped page");
        fill_page(at, page, next);
        break;
    case 4:
        MUST(munmap(at, PAGE) == 0);
        MUST(mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                  0) == at);
        check_page(at, page, 0, "a new page");
        fill_page(at, page, next);
        break;
    case 5:
        return;
    default:
        fill_page(at, page, next);
    }
    version[page] = next;
}

static void *change_some(void *argument)
{
    struct work work = *(struct work *)argument;
    int pipes[2], sockets[2];
    MUST(pipe(pipes) == 0);
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
    for (size_t page = work.first; page < pages; page += work.step)
        change(page, work.next, pipes, sockets);
    for (int end = 0; end < 2; end++)
        MUST(close(pipes[end]) == 0 && close(sockets[end]) == 0);
    return NULL;
}

static void check_all(const char *when)
{
    for (size_t page = 0; page < pages; page++)
        check_page(paged + page * PAGE, page, version[page], when);
}

/* A mapping that only this process uses grows, so that it moves. */
static char *move(char *area, size_t round)
{
    size_t len = AREA_PAGES * PAGE;
    for (size_t page = 0; page < AREA_PAGES; page += 2)
        fill_page(area + page * PAGE, page, (uint32_t)round + 1);
    area = mremap(area, len, 2 * len, MREMAP_MAYMOVE);
    MUST(area != MAP_FAILED);
    for (size_t page = 0; page < AREA_PAGES; page += 2)
        check_page(area + page * PAGE, page, (uint32_t)round + 1, "a moved page");
    MUST(munmap(area + len, len) == 0);
    return area;
}

static void change_and_end(uint32_t next)
{
    change_some(&(struct work){next, 0, 1});
    check_all("in a child");
    _exit(0);
}

static void child(uint32_t next)
{
    int status;
    pid_t own = fork();
    if (own == 0) {
        check_all("in the second child");
        change_and_end(next + 1);
    }
    change_some(&(struct work){next, 0, 1});
    MUST(waitpid(own, &status, 0) == own && status == 0);
    check_all("in the first child");
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        die("usage: guarded MIB ROUNDS");
    size_t mib = (size_t)atol(argv[1]), rounds = (size_t)atol(argv[2]);
    pages = mib * MIB / PAGE;
    paged = map_pages(pages);
    version = calloc(pages, sizeof *version);
    char *area = map_pages(AREA_PAGES);
    MUST(version != NULL);
    for (size_t page = 0; page < pages; page++)
        fill_page(paged + page * PAGE, page, version[page] = 1);
    for (size_t round = 0; round < rounds; round++) {
        uint32_t next = (uint32_t)(3 * round + 2);
        int status;
        pthread_t thread;
        pid_t first = fork();
        if (first == 0)
            child(next + 1);
        struct work others = {next, 1, 2};
        MUST(pthread_create(&thread, NULL, change_some, &others) == 0);
        pid_t spawned = vfork();
        if (spawned == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        MUST(waitpid(spawned, &status, 0) == spawned && status == 0);
        area = move(area, round);
        change_some(&(struct work){next, 0, 2});
        MUST(pthread_join(thread, NULL) == 0);
        check_all("in the parent");
        MUST(waitpid(first, &status, 0) == first && status == 0);
    }
    puts("ok");
    return 0;
}
