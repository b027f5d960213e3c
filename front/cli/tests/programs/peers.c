/* Processes that read and write each other's memory (process_vm_readv, process_vm_writev), most of
 * which is swapped out, as MPI does for large messages.
 *
 *   peers MIB [SIDE IN OUT]
 *               two processes with MIB each, in rounds: each reads all of the other's, checks it
 *               and writes a part anew, with buffers of odd sizes and places. SIDE: only this
 *               one, 0 or 1, which finds the other by two named pipes
 */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { ROUNDS = 4, STRETCH = 48, EXTRA = 777, MANY = 1000 };

static size_t pages;
static char *own;
static pid_t peer;

/* The pages of two processes differ. */
static uint64_t id_of(int side, size_t page)
{
    return (uint64_t)(side + 1) * 1000000 + page;
}

static uint32_t version_of(int round, size_t page)
{
    return page / STRETCH % 3 == 0 ? (uint32_t)round + 1 : 1;
}

static void say(int to, char what)
{
    MUST(write(to, &what, 1) == 1);
}

static void hear(int from)
{
    char what;
    if (read(from, &what, 1) != 1)
        die("the other process has ended");
}

/* Two buffers on this side, three on the other. */
static ssize_t transfer(int writes, char *here, char *there, size_t len)
{
    size_t cut = len / 3;
    struct iovec ours[] = {{here, cut + 1}, {here + cut + 1, len - cut - 1}};
    struct iovec theirs[] = {{there, cut}, {there + cut, 0}, {there + cut, len - cut}};
    return writes ? process_vm_writev(peer, ours, 2, theirs, 3, 0)
                  : process_vm_readv(peer, ours, 2, theirs, 3, 0);
}

static void read_all(int side, int round, char *buffer, char *there)
{
    for (size_t page = 0; page < pages; page += STRETCH) {
        size_t count = page + STRETCH < pages ? STRETCH : pages - page;
        MUST(transfer(0, buffer, there + page * PAGE, count * PAGE) == (ssize_t)(count * PAGE));
        for (size_t k = 0; k < count; k++)
            check_page(buffer + k * PAGE, id_of(!side, page + k), version_of(round, page + k),
                       "the other's page");
    }
}

static void write_some(int side, int round, char *buffer, char *there)
{
    for (size_t page = 0; page < pages; page += STRETCH) {
        if (version_of(round, page) == 1)
            continue;
        size_t count = page + STRETCH < pages ? STRETCH : pages - page;
        for (size_t k = 0; k < count; k++)
            fill_page(buffer + k * PAGE, id_of(!side, page + k), (uint32_t)round + 1);
        MUST(transfer(1, buffer, there + page * PAGE, count * PAGE) == (ssize_t)(count * PAGE));
    }
}

/* As in the kernel: up to the first page without access, and nothing if that page is the first. */
static void at_the_end(char *buffer, char *there, uint64_t *many)
{
    MUST(transfer(0, buffer, there + (pages - 2) * PAGE, 4 * PAGE) == (ssize_t)(2 * PAGE));
    MUST(transfer(0, buffer, there + pages * PAGE, PAGE) == -1 && errno == EFAULT);
    MUST(transfer(1, buffer, there + pages * PAGE, PAGE) == -1 && errno == EFAULT);
    /* Many small buffers; those of the other process are not in ascending order. */
    struct iovec ours[MANY], theirs[MANY];
    for (size_t i = 0; i < MANY; i++) {
        ours[i] = (struct iovec){buffer + i * 24, 24};
        theirs[i] = (struct iovec){there + (i * 7 % MANY) % pages * PAGE + i % 2 * 48, 24};
    }
    MUST(process_vm_readv(peer, ours, MANY, theirs, MANY, 0) == MANY * 24);
    *many = hash_bytes(*many, buffer, MANY * 24);
    struct iovec one = {buffer, EXTRA}, none = {there, 0};
    MUST(process_vm_readv(peer, &one, 1, &none, 1, 0) == 0);
    MUST(process_vm_readv(peer, &one, 1, &one, 1, 1) == -1 && errno == EINVAL);
    MUST(process_vm_readv(1 << 30, &one, 1, &one, 1, 0) == -1 && errno == ESRCH);
}

static uint64_t side_of(int side, int in, int out)
{
    char *buffer = map_pages(2 * STRETCH), *there;
    for (size_t page = 0; page < pages; page++)
        fill_page(own + page * PAGE, id_of(side, page), 1);
    MUST(write(out, &own, sizeof own) == sizeof own);
    MUST(read(in, &there, sizeof there) == sizeof there);
    for (int round = 0; round < ROUNDS; round++) {
        read_all(side, round, buffer, there);
        say(out, 'r');
        hear(in);
        write_some(side, round + 1, buffer + 100, there);
        say(out, 'w');
        hear(in);
        for (size_t page = 0; page < pages; page += 7)
            check_page(own + page * PAGE, id_of(side, page), version_of(round + 1, page),
                       "an own page");
        say(out, 'c');
        hear(in);
    }
    uint64_t many = 0;
    at_the_end(buffer, there, &many);
    say(out, 'e');
    hear(in);
    peer = getpid();
    for (size_t page = 0; page + STRETCH <= pages; page += STRETCH) {
        MUST(transfer(0, buffer, own + page * PAGE, STRETCH * PAGE) == (ssize_t)(STRETCH * PAGE));
        for (size_t k = 0; k < STRETCH; k++)
            check_page(buffer + k * PAGE, id_of(side, page + k), version_of(ROUNDS, page + k),
                       "an own page");
    }
    return hash_bytes(many, own, pages * PAGE);
}

/* Behind the process's pages is a page without access. */
static void map_own(const char *mib)
{
    pages = number(mib) * MIB / PAGE;
    own = map_pages(pages + 1);
    MUST(mprotect(own + pages * PAGE, PAGE, PROT_NONE) == 0);
}

/* The other process is unrelated: the two find each other by two named pipes. */
static int one_side(int side, const char *in_path, const char *out_path)
{
    int out = side == 0 ? open(out_path, O_WRONLY) : -1;
    int in = open(in_path, O_RDONLY);
    if (side != 0)
        out = open(out_path, O_WRONLY);
    pid_t self = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    MUST(write(out, &self, sizeof self) == sizeof self);
    MUST(read(in, &peer, sizeof peer) == sizeof peer);
    printf("%016llx\n", (unsigned long long)side_of(side, in, out));
    return 0;
}

static int both_sides(const char *mib)
{
    int there[2], back[2];
    MUST(pipe(there) == 0 && pipe(back) == 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t parent = getpid(), child = fork();
    MUST(child >= 0);
    peer = child ? child : parent;
    map_own(mib);
    if (child == 0) {
        close(there[1]);
        close(back[0]);
        side_of(1, there[0], back[1]);
        _exit(0);
    }
    close(there[0]);
    close(back[1]);
    uint64_t hash = side_of(0, back[0], there[1]);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    printf("%016llx\n", (unsigned long long)hash);
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 2)
        return both_sides(arguments[1]);
    if (count != 5)
        die("usage: peers MIB [SIDE IN OUT]");
    map_own(arguments[1]);
    return one_side((int)number(arguments[2]), arguments[3], arguments[4]);
}
