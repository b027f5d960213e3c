/* Random calls of process_vm_readv and process_vm_writev on a child's memory, most of which is
 * swapped out, against a model: how many bytes are transferred, and which.
 *
 *   transfers MIB ROUNDS   the child has MIB
 */
#define _GNU_SOURCE
#include "check.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { BUFFERS_MAX = 120, GAP = 64 };

static uint64_t state = 1;
static size_t area;
/* The child's memory, this process's memory, and the expected contents of the child's memory. */
static unsigned char *there, *here, *model;

static size_t below(size_t end)
{
    return next_random(&state) % end;
}

/* Buffers one after the other, some of them empty; returns their number. */
static int buffers(struct iovec *at, unsigned char *base, size_t longest)
{
    int count = (int)below(below(3) ? 6 : BUFFERS_MAX);
    size_t used = below(area / 4);
    for (int i = 0; i < count; i++) {
        size_t len = below(5) ? below(longest) : 0;
        if (used + len > area)
            len = 0;
        at[i] = (struct iovec){base + (used < area ? used : 0), len};
        used += len + below(GAP);
    }
    return count;
}

static size_t total(const struct iovec *at, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += at[i].iov_len;
    return bytes;
}

/* The next byte in a list of buffers. */
struct cursor {
    const struct iovec *at;
    size_t offset;
};

static unsigned char *next_byte(struct cursor *cursor)
{
    while (cursor->offset == cursor->at->iov_len)
        *cursor = (struct cursor){cursor->at + 1, 0};
    return (unsigned char *)cursor->at->iov_base + cursor->offset++;
}

static void transfer(pid_t child, int writes)
{
    static const size_t LONGEST[] = {200, 5000, 300000};
    struct iovec ours[BUFFERS_MAX], theirs[BUFFERS_MAX];
    size_t longest = LONGEST[below(3)];
    int count = buffers(ours, here, longest), other = buffers(theirs, there, longest);
    size_t bytes = total(ours, count), others = total(theirs, other);
    size_t expected = bytes < others ? bytes : others;
    if (writes)
        for (int i = 0; i < count; i++)
            memset(ours[i].iov_base, (int)below(256), ours[i].iov_len);
    ssize_t got = writes ? process_vm_writev(child, ours, (size_t)count, theirs, (size_t)other, 0)
                         : process_vm_readv(child, ours, (size_t)count, theirs, (size_t)other, 0);
    if (got != (ssize_t)expected)
        die("%zd of %zu bytes: %s", got, expected, strerror(errno));
    struct cursor our = {ours, 0}, their = {theirs, 0};
    for (size_t done = 0; done < expected; done++) {
        unsigned char *byte = next_byte(&our), *modelled = model + (next_byte(&their) - there);
        if (writes)
            *modelled = *byte;
        else if (*byte != *modelled)
            die("byte %zu of %zu is %02x instead of %02x", done, expected, *byte, *modelled);
    }
}

static void be_child(int ready)
{
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    for (size_t page = 0; page < area / PAGE; page++)
        fill_page(there + page * PAGE, page, 1);
    MUST(write(ready, "r", 1) == 1);
    for (;;)
        pause();
}

int main(int count, char **arguments)
{
    if (count != 3)
        die("usage: transfers MIB ROUNDS");
    area = number(arguments[1]) * MIB;
    there = map_pages(area / PAGE);
    here = map_pages(area / PAGE);
    model = mmap(NULL, area, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(model != MAP_FAILED);
    for (size_t page = 0; page < area / PAGE; page++)
        fill_page(model + page * PAGE, page, 1);
    int ready[2];
    MUST(pipe(ready) == 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0)
        be_child(ready[1]);
    char said;
    MUST(read(ready[0], &said, 1) == 1);
    for (size_t round = 0; round < number(arguments[2]); round++)
        transfer(child, (int)below(2));
    struct iovec all = {here, area}, its = {there, area};
    MUST(process_vm_readv(child, &all, 1, &its, 1, 0) == (ssize_t)area);
    MUST(memcmp(here, model, area) == 0);
    MUST(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    printf("%016llx\n", (unsigned long long)hash_bytes(0, model, area));
    return 0;
}
