/* Anonymous memory of one process, checked against a model: mappings, holes, moves, protections,
 * discarding, threads, signals, other programs. See sections.h for usage. */
#define _GNU_SOURCE
#include "area.h"
#include "sections.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/time.h>
#include <sys/wait.h>

extern char **environ;

/* ---- maps: holes, MAP_FIXED into holes and over pieces ---- */

static void map_fixed(struct area *area, size_t from, size_t count)
{
    void *want = area->base + from * PAGE;
    void *got = mmap(want, count * PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (got != want)
        die("MAP_FIXED at %p gave %p: %s", want, got, strerror(errno));
    area_zeroed(area, from, count);
}

static uint64_t maps(size_t pages)
{
    struct area area = area_map(pages, 1 << 20);
    area_check(&area, "maps: new");
    area_fill(&area, 0, pages, 1);
    area_check(&area, "maps: filled");
    size_t eighth = pages / 8, hole = eighth / 4;
    for (size_t i = 0; i < 8; i++) {
        size_t from = i * eighth + hole;
        MUST(munmap(area.base + from * PAGE, hole * PAGE) == 0);
        memset(area.mapped + from, 0, hole);
    }
    area_check(&area, "maps: around holes");
    for (size_t i = 0; i < 8; i += 2)
        map_fixed(&area, i * eighth + hole, hole);
    for (size_t i = 1; i < 8; i += 2)
        map_fixed(&area, i * eighth + 3 * hole, hole / 2);
    area_check(&area, "maps: after MAP_FIXED");
    for (size_t i = 0; i < 8; i++)
        area_fill(&area, i * eighth + hole / 2, eighth - hole, 2);
    area_check(&area, "maps: filled again");
    void *taken = mmap(area.base, PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (taken != MAP_FAILED || errno != EEXIST)
        die("maps: MAP_FIXED_NOREPLACE over a mapping gave %p: %s", taken, strerror(errno));
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- remap: grow in place, move, shrink, onto an address, out of a middle ---- */

/* mremap to `pages`; new pages are zeros. */
static void resize(struct area *area, size_t pages, int flags, void *onto)
{
    void *got = mremap(area->base, area->pages * PAGE, pages * PAGE, flags, onto);
    if (got == MAP_FAILED)
        die("mremap %zu -> %zu pages: %s", area->pages, pages, strerror(errno));
    if (!(flags & MREMAP_MAYMOVE) && got != area->base)
        die("mremap moved though it may not");
    if ((flags & MREMAP_FIXED) && got != onto)
        die("mremap went to %p instead of %p", got, onto);
    if (pages > area->pages)
        area_zeroed(area, area->pages, pages - area->pages);
    area->base = got;
    area->pages = pages;
}

/* Makes sure that `area` cannot grow in place, and that the refusal changes nothing. */
static void *block_growth(const struct area *area)
{
    unsigned char *end = area->base + area->pages * PAGE;
    void *got = mmap(end, PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == MAP_FAILED)
        MUST(errno == EEXIST);
    size_t bytes = area->pages * PAGE;
    if (mremap(area->base, bytes, 2 * bytes, 0) != MAP_FAILED || errno != ENOMEM)
        die("mremap in place over a neighbour: %s", strerror(errno));
    return got;
}

static uint64_t remap(size_t pages)
{
    size_t quarter = pages / 4;
    struct area area = area_with_room(pages, pages, 2 << 20);
    area_fill(&area, 0, quarter, 1);
    resize(&area, quarter, 0, NULL);
    area_check(&area, "remap: shrunk");
    resize(&area, 2 * quarter, 0, NULL);
    area_check(&area, "remap: grown in place");
    area_fill(&area, quarter / 2, quarter, 2);
    area_check(&area, "remap: filled");
    void *blocker = block_growth(&area);
    area_check(&area, "remap: refused");
    resize(&area, 3 * quarter, MREMAP_MAYMOVE, NULL);
    area_check(&area, "remap: moved");
    area_fill(&area, 2 * quarter, quarter, 3);
    struct area target = area_map(pages, 3 << 20);
    area_fill(&target, 3 * quarter, quarter, 1);
    resize(&area, 3 * quarter, MREMAP_MAYMOVE | MREMAP_FIXED, target.base);
    memset(target.mapped, 0, 3 * quarter);
    area_check(&area, "remap: onto an address");
    area_check_part(&target, 3 * quarter, quarter, "remap: beside the address");
    resize(&area, quarter + 1, MREMAP_MAYMOVE, NULL);
    area_check(&area, "remap: shrunk again");
    size_t middle = quarter / 2;
    unsigned char *out = mremap(area.base + middle * PAGE, 8 * PAGE, 16 * PAGE, MREMAP_MAYMOVE);
    MUST(out != MAP_FAILED);
    for (size_t i = 0; i < 16; i++)
        check_page(out + i * PAGE, area.id + middle + i, i < 8 ? area.version[middle + i] : 0,
                   "remap: out of a middle");
    memset(area.mapped + middle, 0, 8);
    area_check(&area, "remap: around the middle");
    uint64_t hash = area_hash(&area) ^ area_hash(&target);
    MUST(munmap(out, 16 * PAGE) == 0);
    if (blocker != MAP_FAILED)
        MUST(munmap(blocker, PAGE) == 0);
    free(area.version), free(area.mapped);
    area_unmap(&target);
    return hash;
}

/* ---- protect and stale: forbidden accesses fail at the right address ---- */

static sigjmp_buf trap_return;
static void *volatile trapped_at;

static void on_trap(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    trapped_at = info->si_addr;
    siglongjmp(trap_return, 1);
}

static void catch_traps(void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    if (handler == NULL)
        action = (struct sigaction){.sa_handler = SIG_DFL};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0);
    MUST(sigaction(SIGBUS, &action, NULL) == 0);
}

enum access { READ, WRITE };

/* The access must raise a signal with this address. */
static void must_trap(volatile unsigned char *at, enum access access, const char *where)
{
    if (sigsetjmp(trap_return, 1) == 0) {
        if (access == WRITE)
            *at = 1;
        else
            (void)*at;
        die("%s: no signal at %p", where, (void *)at);
    }
    if (trapped_at != at)
        die("%s: the signal names %p instead of %p", where, trapped_at, (void *)at);
}

/* System calls respect protections too. */
static void must_efault(unsigned char *at, enum access access, const char *where)
{
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    ssize_t moved = access == WRITE ? read(ends[0], at, 1) : write(ends[1], at, 1);
    if (moved != -1 || errno != EFAULT)
        die("%s: a system call moved %zd bytes: %s", where, moved, strerror(errno));
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
}

enum { BLOCK = 16 };
static const int PROTECTIONS[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};

/* Reads all accessible pages, and tries forbidden accesses. */
static void check_protections(const struct area *area, const char *where)
{
    for (size_t block = 0; block < area->pages / BLOCK; block++) {
        size_t page = block * BLOCK + block % BLOCK;
        unsigned char *at = area->base + page * PAGE + block % PAGE;
        int protection = PROTECTIONS[block % 3];
        if (protection & PROT_READ)
            area_check_part(area, block * BLOCK, BLOCK, where);
        else
            must_trap(at, READ, where);
        if (!(protection & PROT_WRITE))
            must_trap(at, WRITE, where);
        if (block % 64 < 3 && protection != (PROT_READ | PROT_WRITE))
            must_efault(at, protection == PROT_NONE ? READ : WRITE, where);
    }
}

/* Reserves addresses first and fills them later, as runtimes do. */
static uint64_t reserve_then_commit(size_t pages)
{
    unsigned char *at = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    must_trap(at + PAGE, WRITE, "protect: reserved");
    MUST(mprotect(at, pages / 2 * PAGE, PROT_READ | PROT_WRITE) == 0);
    uint64_t hash = 0;
    for (size_t page = 0; page < pages / 2; page++) {
        check_page(at + page * PAGE, 0, 0, "protect: committed");
        fill_page(at + page * PAGE, page, 7);
        hash = hash_bytes(hash, at + page * PAGE, PAGE);
    }
    must_trap(at + pages / 2 * PAGE, READ, "protect: still reserved");
    MUST(mprotect(at, pages / 2 * PAGE, PROT_NONE) == 0);
    must_trap(at + pages / 4 * PAGE, READ, "protect: withdrawn");
    MUST(munmap(at, pages * PAGE) == 0);
    return hash;
}

static uint64_t protect(size_t pages)
{
    struct area area = area_map(pages, 4 << 20);
    area_fill(&area, 0, pages, 1);
    for (size_t block = 0; block < pages / BLOCK; block++)
        MUST(mprotect(area.base + block * BLOCK * PAGE, BLOCK * PAGE, PROTECTIONS[block % 3]) == 0);
    catch_traps(on_trap);
    check_protections(&area, "protect: split");
    check_protections(&area, "protect: back from swap");
    MUST(mprotect(area.base, pages * PAGE, PROT_READ) == 0);
    area_check(&area, "protect: all readable");
    must_trap(area.base + pages / 2 * PAGE, WRITE, "protect: none writable");
    MUST(mprotect(area.base, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
    area_fill(&area, 0, pages, 2);
    area_check(&area, "protect: writable again");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    hash ^= reserve_then_commit(pages / 4);
    catch_traps(NULL);
    return hash;
}

static uint64_t stale(size_t pages)
{
    struct area area = area_map(pages, 5 << 20);
    area_fill(&area, 0, pages, 1);
    uint64_t hash = area_hash(&area);
    catch_traps(on_trap);
    size_t half = pages / 2;
    MUST(munmap(area.base + half * PAGE, (pages - half) * PAGE) == 0);
    for (size_t i = 0; i < 16; i++) {
        must_trap(area.base + (half + i * (half / 16)) * PAGE, READ, "stale: read");
        must_trap(area.base + (half + i * (half / 16)) * PAGE + 8, WRITE, "stale: write");
    }
    must_efault(area.base + (pages - 1) * PAGE, READ, "stale: system call");
    area.pages = half;
    area_check(&area, "stale: the rest");
    catch_traps(NULL);
    area_unmap(&area);
    return hash;
}

/* ---- discard: discarded pages are zeros, pages with hints stay ---- */

static uint64_t discard(size_t pages)
{
    struct area area = area_map(pages, 6 << 20);
    area_fill(&area, 0, pages, 1);
    for (size_t page = 0; page + 40 < pages; page += 100) {
        size_t count = 1 + page % 37;
        MUST(madvise(area.base + page * PAGE, count * PAGE, MADV_DONTNEED) == 0);
        area_zeroed(&area, page, count);
    }
    area_check(&area, "discard: zeros and neighbours");
    area_fill(&area, 0, pages / 2, 2);
    area_check(&area, "discard: filled again");
    static const int HINTS[] = {MADV_WILLNEED, MADV_RANDOM, MADV_SEQUENTIAL, MADV_NORMAL,
                                MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLD, MADV_PAGEOUT};
    size_t part = pages / 8;
    for (size_t i = 0; i < 8; i++)
        if (madvise(area.base + i * part * PAGE, part * PAGE, HINTS[i]) != 0)
            MUST(errno == EINVAL);
    area_check(&area, "discard: after hints");
    uint64_t hash = area_hash(&area);
    if (madvise(area.base, part * PAGE, MADV_FREE) == 0) {
        for (size_t page = 0; page < part; page++) {
            int gone = *(volatile uint64_t *)(area.base + page * PAGE) == 0;
            check_page(area.base + page * PAGE, area.id + page, gone ? 0 : 2, "discard: free");
            area.version[page] = gone ? 0 : 2;
        }
        area_fill(&area, 0, part, 3);
    }
    MUST(madvise(area.base + part * PAGE, (pages - part) * PAGE, MADV_DONTNEED) == 0);
    area_zeroed(&area, part, pages - part);
    area_check(&area, "discard: all");
    area_unmap(&area);
    return hash;
}

/* ---- sparse: more address space than the program says it will use ---- */

static uint64_t sparse(size_t pages)
{
    enum { SPREAD = 4 };
    size_t bytes = SPREAD * pages * PAGE;
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(at != MAP_FAILED);
    for (size_t page = 0; page < pages; page++)
        fill_page(at + SPREAD * page * PAGE, page, 1);
    uint64_t hash = 0;
    for (size_t page = 0; page < pages; page++) {
        check_page(at + SPREAD * page * PAGE, page, 1, "sparse");
        hash = hash_bytes(hash, at + SPREAD * page * PAGE, PAGE);
        if (page % 64 == 0)
            check_page(at + (SPREAD * page + 1) * PAGE, page, 0, "sparse: between");
    }
    MUST(munmap(at, bytes) == 0);
    return hash;
}

/* ---- threads and signals ---- */

struct share {
    struct area *area;
    size_t from, count, rounds;
    uint64_t random;
};

static void *rewrite_share(void *argument)
{
    struct share *share = argument;
    for (size_t i = 0; i < share->rounds; i++) {
        size_t page = share->from + next_random(&share->random) % share->count;
        area_check_part(share->area, page, 1, "threads");
        area_fill(share->area, page, 1, share->area->version[page] + 1);
    }
    return NULL;
}

/* Each of `count` threads uses random pages of its own share. */
static uint64_t share_out(size_t pages, size_t count)
{
    struct area area = area_map(pages, 7 << 20);
    area_fill(&area, 0, pages, 1);
    pthread_t *threads = calloc(count, sizeof *threads);
    struct share *shares = calloc(count, sizeof *shares);
    MUST(threads && shares);
    size_t each = pages / count;
    for (size_t i = 0; i < count; i++) {
        shares[i] = (struct share){&area, i * each, each, 2 * each, i};
        MUST(pthread_create(&threads[i], NULL, rewrite_share, &shares[i]) == 0);
    }
    for (size_t i = 0; i < count; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    area_check(&area, "threads: after");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    free(threads), free(shares);
    return hash;
}

static uint64_t threads4(size_t pages) { return share_out(pages, 4); }
static uint64_t threads32(size_t pages) { return share_out(pages, 32); }

static struct area *signal_area;
static volatile size_t signals_seen;
enum { SIGNAL_PAGES = 64 };

/* Reads and writes pages of its own, far apart, most of them swapped out. */
static void on_alarm(int signal)
{
    (void)signal;
    size_t stride = signal_area->pages / SIGNAL_PAGES;
    size_t page = signals_seen % SIGNAL_PAGES * stride;
    area_check_part(signal_area, page, 1, "signals: in the handler");
    area_fill(signal_area, page, 1, signal_area->version[page] + 1);
    signals_seen++;
}

static uint64_t signals(size_t pages)
{
    struct area area = area_map(pages, 8 << 20);
    area_fill(&area, 0, pages, 1);
    signal_area = &area;
    signals_seen = 0;
    /* The kernel writes signal frames into paged memory. */
    stack_t stack = {.ss_sp = malloc(4 * MIB), .ss_size = 4 * MIB};
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_ONSTACK | SA_RESTART};
    MUST(stack.ss_sp && sigaltstack(&stack, NULL) == 0);
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
    size_t stride = pages / SIGNAL_PAGES;
    for (uint32_t round = 2; round < 4 || signals_seen < SIGNAL_PAGES; round++)
        for (size_t page = 0; page < pages; page++) {
            if (page % stride == 0)
                continue;
            area_check_part(&area, page, 1, "signals: under the timer");
            area_fill(&area, page, 1, round < 4 ? round : 4);
        }
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    signal(SIGALRM, SIG_DFL);
    area_check(&area, "signals: after");
    stack_t none = {.ss_flags = SS_DISABLE};
    MUST(sigaltstack(&none, NULL) == 0);
    free(stack.ss_sp);
    area_fill(&area, 0, pages, 5);
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- spawn: other programs, with arguments and results in paged memory ---- */

static int finish(pid_t child)
{
    int status;
    MUST(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static uint64_t spawn(size_t pages)
{
    struct area area = area_map(pages, 9 << 20);
    area_fill(&area, 0, pages, 1);
    char *command = (char *)area.base + 3 * PAGE - 5, *answer = (char *)area.base + PAGE - 4;
    area.mapped[0] = area.mapped[1] = area.mapped[2] = area.mapped[3] = 0;
    strcpy(command, "exit 7");
    area_fill(&area, 4, pages - 4, 2);
    char *arguments[] = {"sh", "-c", command, NULL};
    pid_t child = vfork();
    if (child == 0) {
        execv("/bin/sh", arguments);
        _exit(127);
    }
    MUST(child > 0 && finish(child) == 7);
    area_check(&area, "spawn: after vfork");
    MUST(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
    MUST(finish(child) == 7);
    area_check(&area, "spawn: after posix_spawn");
    MUST(WEXITSTATUS(system(command)) == 7);
    strcpy(command, "echo out of a pipe");
    area_fill(&area, 4, pages - 4, 3);
    FILE *pipe = popen(command, "r");
    MUST(pipe && fgets(answer, 32, pipe) && pclose(pipe) == 0);
    MUST(strcmp(answer, "out of a pipe\n") == 0);
    area_check(&area, "spawn: after popen");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

static const struct section SECTIONS[] = {
    {"maps", maps}, {"remap", remap}, {"protect", protect}, {"stale", stale},
    {"discard", discard}, {"sparse", sparse}, {"threads4", threads4}, {"threads32", threads32},
    {"signals", signals}, {"spawn", spawn}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_sections(SECTIONS, count, arguments);
}
