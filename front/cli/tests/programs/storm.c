/* Threads that each own mappings and blocks, and do random things to them for some seconds, while
 * signals arrive: writes, checks, madvise, mremap, mprotect, munmap, forks, files, pipes, malloc,
 * further threads. A model knows all contents. Prints the same line whatever the threads did.
 *
 * storm SEED SECONDS THREADS MIB: MIB of mappings and blocks in all threads together.
 */
#define _GNU_SOURCE
#include "area.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#define AREAS 4
#define BLOCKS 256
#define RUN_MAX 64
#define THREADS_MAX 64
#define SIGNAL_STACK (64ul << 10)
#define THREAD_STACK (128ul << 10)

/* A block of malloc, filled with one byte. */
struct block {
    unsigned char *at;
    size_t size;
    unsigned char filling;
};

struct thread {
    pthread_t handle;
    uint64_t random;
    uint64_t id;            /* identity of its first page; each area has 2^20 */
    size_t pages;           /* of each area */
    uint32_t version;       /* the last one given */
    struct area area[AREAS];
    struct block block[BLOCKS];
    unsigned char *scratch; /* RUN_MAX pages */
    int file;               /* an unlinked file */
    uint64_t done;
    /* Used by the signal handler alone: a page, and its version. */
    unsigned char *signal_page;
    uint32_t signal_version;
    atomic_bool ready;
};

static struct thread thread[THREADS_MAX];
static size_t threads;
static time_t end;
extern char **environ;
static __thread struct thread *self;

static size_t below(struct thread *own, size_t bound)
{
    return next_random(&own->random) % bound;
}

static time_t now(void)
{
    struct timespec time;
    MUST(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return time.tv_sec;
}

/* A run of pages of an area. */
struct run {
    struct area *area;
    size_t from, count;
};

static struct run draw(struct thread *own)
{
    struct area *area = &own->area[below(own, AREAS)];
    size_t from = below(own, area->pages);
    size_t most = area->pages - from < RUN_MAX ? area->pages - from : RUN_MAX;
    return (struct run){area, from, 1 + below(own, most)};
}

static unsigned char *address(struct run run)
{
    return run.area->base + run.from * PAGE;
}

static void fill(struct thread *own)
{
    struct run run = draw(own);
    area_fill(run.area, run.from, run.count, ++own->version);
}

static void check(struct thread *own)
{
    struct run run = draw(own);
    area_check_part(run.area, run.from, run.count, "check");
}

/* Touches single pages, far apart. */
static void touch(struct thread *own)
{
    for (int i = 0; i < 32; i++) {
        struct run run = draw(own);
        area_check_part(run.area, run.from, 1, "touch");
        if (i % 4 == 0)
            area_fill(run.area, run.from, 1, ++own->version);
    }
}

static void drop(struct thread *own)
{
    struct run run = draw(own);
    MUST(madvise(address(run), run.count * PAGE, MADV_DONTNEED) == 0);
    area_zeroed(run.area, run.from, run.count);
}

static void map_anew(struct thread *own)
{
    struct run run = draw(own);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    void *at = mmap(address(run), run.count * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    MUST(at == address(run));
    area_zeroed(run.area, run.from, run.count);
}

static void unmap(struct thread *own)
{
    struct area *area = &own->area[below(own, AREAS)];
    MUST(munmap(area->base, area->pages * PAGE) == 0);
    area->base = map_pages(area->pages);
    area_zeroed(area, 0, area->pages);
}

/* A mapping grows, perhaps at another address, and shrinks. */
static void move(struct thread *own)
{
    size_t bytes = RUN_MAX * PAGE;
    struct area area = area_with_room(RUN_MAX, 2 * RUN_MAX, own->id + (AREAS << 20));
    area_fill(&area, 0, RUN_MAX, ++own->version);
    MUST((area.base = mremap(area.base, bytes, 2 * bytes, MREMAP_MAYMOVE)) != MAP_FAILED);
    area.pages = 2 * RUN_MAX;
    area_zeroed(&area, RUN_MAX, RUN_MAX);
    area_check(&area, "a mapping that grew");
    MUST(mremap(area.base, 2 * bytes, bytes, 0) == area.base);
    area.pages = RUN_MAX;
    area_check(&area, "a mapping that shrank");
    area_unmap(&area);
}

static void protect(struct thread *own)
{
    struct run run = draw(own);
    size_t bytes = run.count * PAGE;
    MUST(mprotect(address(run), bytes, PROT_READ) == 0);
    area_check_part(run.area, run.from, run.count, "read-only");
    MUST(mprotect(address(run), bytes, PROT_NONE) == 0);
    MUST(mprotect(address(run), bytes, PROT_READ | PROT_WRITE) == 0);
    area_check_part(run.area, run.from, run.count, "writable again");
    area_fill(run.area, run.from, 1, ++own->version);
}

/* Pages that were copied from the first of a run. */
static void check_copy(const unsigned char *at, struct run run, size_t count, const char *where)
{
    for (size_t i = 0; i < count; i++)
        check_page(at + i * PAGE, run.area->id + run.from + i, run.area->version[run.from + i],
                   where);
}

/* Through a file, and back into memory that holds other contents. */
static void through_file(struct thread *own)
{
    struct run run = draw(own);
    size_t bytes = run.count * PAGE;
    MUST(pwrite(own->file, address(run), bytes, 0) == (ssize_t)bytes);
    MUST(pread(own->file, own->scratch, bytes, 0) == (ssize_t)bytes);
    check_copy(own->scratch, run, run.count, "read from a file");
    /* A mapping of a file that is open for reading only may be paged. */
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", own->file);
    int reader = open(name, O_RDONLY | O_CLOEXEC);
    MUST(reader >= 0);
    unsigned char *mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, reader, 0);
    MUST(mapped != MAP_FAILED && close(reader) == 0);
    check_copy(mapped, run, run.count, "a mapped file");
    MUST(munmap(mapped, bytes) == 0);
}

/* In three parts that end within pages, at most as much as a socket holds without a reader. */
static void through_socket(struct thread *own)
{
    struct run run = draw(own);
    size_t count = run.count < 8 ? run.count : 8, bytes = count * PAGE;
    size_t first = 1 + below(own, bytes / 2), second = 1 + below(own, bytes / 4);
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    struct iovec from[] = {{address(run), first}, {address(run) + first, second},
                           {address(run) + first + second, bytes - first - second}};
    MUST(writev(ends[0], from, 3) == (ssize_t)bytes);
    struct iovec to[] = {{own->scratch, second}, {own->scratch + second, bytes - second}};
    struct msghdr message = {.msg_iov = to, .msg_iovlen = 2};
    MUST(recvmsg(ends[1], &message, MSG_WAITALL) == (ssize_t)bytes);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    check_copy(own->scratch, run, count, "read from a socket");
}

/* At most as much as a pipe holds without a reader. */
static void through_pipe(struct thread *own)
{
    struct run run = draw(own);
    int ends[2];
    size_t count = run.count, done = 0;
    MUST(pipe2(ends, O_CLOEXEC) == 0);
    int room = fcntl(ends[1], F_GETPIPE_SZ);
    MUST(room >= (int)PAGE);
    if (count > (size_t)room / PAGE)
        count = (size_t)room / PAGE;
    MUST(write(ends[1], address(run), count * PAGE) == (ssize_t)(count * PAGE));
    while (done < count * PAGE) {
        ssize_t got = read(ends[0], own->scratch + done, count * PAGE - done);
        MUST(got > 0);
        done += (size_t)got;
    }
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    check_copy(own->scratch, run, count, "read from a pipe");
}

static void check_block(const struct block *block)
{
    for (size_t i = 0; i < block->size; i++)
        if (block->at[i] != block->filling)
            die("a block of %zu bytes: %02x instead of %02x at %zu", block->size, block->at[i],
                block->filling, i);
}

static size_t draw_size(struct thread *own)
{
    switch (below(own, 4)) {
    case 0: return 1 + below(own, 64);
    case 1: return 1 + below(own, 4096);
    case 2: return 1 + below(own, 32 << 10);
    default: return 1 + below(own, 256 << 10);
    }
}

static void allocate(struct thread *own)
{
    struct block *block = &own->block[below(own, BLOCKS)];
    if (block->at)
        check_block(block);
    size_t size = draw_size(own);
    if (block->at && below(own, 2) == 0) {
        size_t kept = size < block->size ? size : block->size;
        MUST(block->at = realloc(block->at, size));
        block->size = kept;
        check_block(block);
    } else {
        free(block->at);
        MUST(block->at = malloc(size));
    }
    block->size = size;
    block->filling = (unsigned char)next_random(&own->random);
    memset(block->at, block->filling, size);
}

static void expect_end(pid_t child, const char *what)
{
    int status;
    pid_t got;
    while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR)
        ;
    MUST(got == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("%s: status %x", what, status);
}

/* The child sees this thread's contents as they were, and writes; so does the parent. One child of
 * four forks a child of its own before it checks. */
static void fork_off(struct thread *own)
{
    struct run run = draw(own);
    bool again = below(own, 4) == 0;
    pid_t child = fork();
    MUST(child >= 0);
    area_fill(run.area, run.from, run.count, ++own->version + (child == 0 ? 1000000 : 0));
    if (child == 0) {
        pid_t grandchild = again ? fork() : 0;
        MUST(grandchild >= 0);
        for (int i = 0; i < AREAS; i++)
            area_check(&own->area[i], again && grandchild == 0 ? "in a grandchild" : "in a child");
        if (grandchild > 0)
            expect_end(grandchild, "a child");
        _exit(0);
    }
    area_check_part(run.area, run.from, run.count, "after a fork");
    expect_end(child, "a child");
    area_check_part(run.area, run.from, run.count, "after a child");
}

static void spawn_off(struct thread *own)
{
    char *arguments[] = {"true", NULL};
    pid_t child;
    (void)own;
    MUST(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
    expect_end(child, "true");
}

static void *look(void *of)
{
    area_check_part(of, 0, ((struct area *)of)->pages / 8, "in another thread");
    free(malloc(100000));
    return NULL;
}

/* Half of them on stacks in paged memory. */
static void start_threads(struct thread *own)
{
    enum { OTHERS = 4 };
    pthread_t other[OTHERS];
    pthread_attr_t attributes[OTHERS];
    void *stack[OTHERS];
    for (int i = 0; i < OTHERS; i++) {
        MUST(pthread_attr_init(&attributes[i]) == 0);
        MUST((stack[i] = aligned_alloc(PAGE, THREAD_STACK)) != NULL);
        if (i % 2 == 0)
            MUST(pthread_attr_setstack(&attributes[i], stack[i], THREAD_STACK) == 0);
        MUST(pthread_create(&other[i], &attributes[i], look, &own->area[i % AREAS]) == 0);
    }
    for (int i = 0; i < OTHERS; i++) {
        MUST(pthread_join(other[i], NULL) == 0);
        MUST(pthread_attr_destroy(&attributes[i]) == 0);
        free(stack[i]);
    }
}

/* Checks and writes paged memory. In a forked child, too, where it is the child's own copy. */
static void on_signal(int number)
{
    int error = errno;
    struct thread *own = self;
    (void)number;
    if (own && own->signal_page) {
        check_page(own->signal_page, own->id - 1, own->signal_version, "in a signal handler");
        fill_page(own->signal_page, own->id - 1, ++own->signal_version);
    }
    errno = error;
}

static const struct {
    void (*act)(struct thread *);
    unsigned weight;
} OPERATIONS[] = {
    {fill, 20}, {check, 20}, {touch, 20}, {allocate, 20}, {drop, 4}, {map_anew, 4}, {protect, 4},
    {through_file, 4}, {through_pipe, 4}, {through_socket, 4}, {move, 2}, {unmap, 1},
    {start_threads, 1}, {fork_off, 1}, {spawn_off, 1},
};

static void operate(struct thread *own)
{
    enum { KINDS = sizeof OPERATIONS / sizeof *OPERATIONS };
    unsigned sum = 0;
    for (size_t i = 0; i < KINDS; i++)
        sum += OPERATIONS[i].weight;
    size_t left = below(own, sum), i = 0;
    while (left >= OPERATIONS[i].weight)
        left -= OPERATIONS[i++].weight;
    OPERATIONS[i].act(own);
    own->done++;
}

static void set_up(struct thread *own)
{
    char name[] = "stormXXXXXX";
    MUST((own->file = mkostemp(name, O_CLOEXEC)) >= 0 && unlink(name) == 0);
    for (int i = 0; i < AREAS; i++)
        own->area[i] = area_map(own->pages, own->id + ((uint64_t)i << 20));
    MUST(own->scratch = malloc(RUN_MAX * PAGE));
    unsigned char *page = map_pages(1);
    stack_t stack = {.ss_sp = malloc(SIGNAL_STACK), .ss_size = SIGNAL_STACK};
    /* Half of the threads take signals on a stack in paged memory. */
    MUST(stack.ss_sp);
    if (below(own, 2) == 0)
        MUST(sigaltstack(&stack, NULL) == 0);
    own->signal_page = page;
    self = own;
    atomic_store(&own->ready, true);
}

static void *run(void *of)
{
    struct thread *own = of;
    set_up(own);
    while (now() < end)
        operate(own);
    atomic_store(&own->ready, false);
    for (int i = 0; i < AREAS; i++)
        area_check(&own->area[i], "at the end");
    for (int i = 0; i < BLOCKS; i++)
        if (own->block[i].at)
            check_block(&own->block[i]);
    return NULL;
}

/* A signal for a thread every 2 ms. */
static void *disturb(void *unused)
{
    uint64_t random = 1;
    struct timespec pause = {.tv_nsec = 2000000};
    (void)unused;
    while (now() < end) {
        struct thread *victim = &thread[next_random(&random) % threads];
        /* The thread may have ended since; older C libraries report that. */
        int error = atomic_load(&victim->ready) ? pthread_kill(victim->handle, SIGUSR1) : 0;
        MUST(error == 0 || error == ESRCH);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

int main(int count, char **argument)
{
    if (count != 5)
        die("storm SEED SECONDS THREADS MIB");
    uint64_t seed = number(argument[1]);
    end = now() + (time_t)number(argument[2]);
    threads = number(argument[3]);
    MUST(threads > 0 && threads <= THREADS_MAX);
    size_t pages = number(argument[4]) * MIB / PAGE / threads / AREAS;
    MUST(pages > 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    for (size_t i = 0; i < threads; i++) {
        thread[i] = (struct thread){.random = mix(seed + i), .id = (i + 1) << 24, .pages = pages};
        MUST(pthread_create(&thread[i].handle, NULL, run, &thread[i]) == 0);
    }
    pthread_t signals;
    MUST(pthread_create(&signals, NULL, disturb, NULL) == 0);
    uint64_t done = 0;
    MUST(pthread_join(signals, NULL) == 0);
    for (size_t i = 0; i < threads; i++) {
        MUST(pthread_join(thread[i].handle, NULL) == 0);
        done += thread[i].done;
    }
    fprintf(stderr, "%llu operations\n", (unsigned long long)done);
    printf("all contents were right\n");
    return 0;
}
