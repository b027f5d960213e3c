/* Blocks of malloc of 1 byte to 64 KiB, every byte checked. See sections.h for usage; and
 * objects MIB abuse: frees a block twice, or one that was never allocated. */
#define _GNU_SOURCE
#include "sections.h"

#include <malloc.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { THREADS = 4, SHORT_THREADS = 300, BATCH = 64 };

/* A live block; its contents follow from `id`. */
struct block {
    unsigned char *at;
    uint32_t size, id;
};

struct blocks {
    struct block *all;
    size_t count, live;
    uint64_t random;
    uint32_t next_id;
};

/* Mostly small, as in real programs, but some of each order of magnitude. */
static uint32_t pick_size(uint64_t *random)
{
    uint64_t dice = next_random(random);
    uint32_t most = dice % 16 == 0 ? 65535 >> dice / 16 % 10 : 16u << dice / 16 % 5;
    return 1 + (uint32_t)(next_random(random) % most);
}

static void fill(const struct block *block)
{
    uint64_t state = block->id;
    uint32_t at = 0;
    for (; at + 8 <= block->size; at += 8) {
        uint64_t word = next_random(&state);
        memcpy(block->at + at, &word, 8);
    }
    memset(block->at + at, (int)(block->id & 0xff), block->size - at);
}

static void check(const struct block *block, uint32_t length, const char *where)
{
    uint64_t state = block->id, word;
    uint32_t at = 0;
    for (; at + 8 <= block->size; at += 8) {
        uint64_t expected = next_random(&state);
        if (at + 8 > length)
            return;
        memcpy(&word, block->at + at, 8);
        if (word != expected)
            die("%s: byte %u of %u at %p", where, at, block->size, (void *)block->at);
    }
    for (; at < length; at++)
        if (block->at[at] != (block->id & 0xff))
            die("%s: byte %u of %u at %p", where, at, block->size, (void *)block->at);
}

/* Allocates a block in one of the possible ways. */
static unsigned char *get(uint64_t *random, uint32_t size)
{
    size_t alignment = 8ul << next_random(random) % 12;
    void *at = NULL;
    switch (next_random(random) % 16) {
    case 0:
        MUST(at = calloc(size, 1));
        for (uint32_t i = 0; i < size; i++)
            if (((unsigned char *)at)[i] != 0)
                die("calloc: byte %u of %u is not 0", i, size);
        return at;
    case 1:
        MUST(posix_memalign(&at, alignment, size) == 0);
        break;
    case 2:
        MUST(at = memalign(alignment, size));
        break;
    default:
        alignment = 16;
        MUST(at = malloc(size));
    }
    if ((uintptr_t)at % alignment != 0)
        die("%p is not aligned to %zu", at, alignment);
    return at;
}

static void acquire(struct blocks *blocks, struct block *block)
{
    uint32_t size = pick_size(&blocks->random);
    *block = (struct block){get(&blocks->random, size), size, blocks->next_id++};
    if (malloc_usable_size(block->at) < size)
        die("malloc_usable_size %zu of %u", malloc_usable_size(block->at), size);
    fill(block);
    blocks->live += size;
}

static void release(struct blocks *blocks, struct block *block)
{
    check(block, block->size, "before free");
    blocks->live -= block->size;
    free(block->at);
    block->at = NULL;
}

static void resize(struct blocks *blocks, struct block *block)
{
    uint32_t size = pick_size(&blocks->random), old = block->size;
    MUST(block->at = realloc(block->at, size));
    check(block, size < old ? size : old, "after realloc");
    blocks->live += size - old;
    block->size = size;
    fill(block);
}

/* Allocates `most` bytes, then replaces random blocks. */
static void churn(struct blocks *blocks, size_t most, size_t rounds)
{
    for (size_t i = 0; i < blocks->count && blocks->live < most; i++)
        acquire(blocks, &blocks->all[i]);
    for (size_t round = 0; round < rounds; round++) {
        struct block *block = &blocks->all[next_random(&blocks->random) % blocks->count];
        if (block->at == NULL) {
            if (blocks->live < most)
                acquire(blocks, block);
        } else if (next_random(&blocks->random) % 4 == 0) {
            resize(blocks, block);
        } else {
            release(blocks, block);
        }
    }
}

static uint64_t finish(struct blocks *blocks)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < blocks->count; i++) {
        struct block *block = &blocks->all[i];
        if (block->at == NULL)
            continue;
        hash = mix(hash ^ block->id ^ (uint64_t)block->size << 32);
        release(blocks, block);
    }
    free(blocks->all);
    return hash;
}

static struct blocks blocks_of(size_t bytes, uint64_t seed)
{
    size_t count = bytes / 512;
    struct block *all = calloc(count, sizeof *all);
    MUST(all);
    return (struct blocks){.all = all, .count = count, .random = seed, .next_id = 1};
}

/* ---- sections ---- */

static uint64_t family(size_t pages)
{
    struct blocks blocks = blocks_of(pages * PAGE, 1);
    churn(&blocks, pages * PAGE, pages * 4);
    return finish(&blocks);
}

struct part {
    struct blocks blocks;
    size_t most;
};

static void *churn_thread(void *argument)
{
    struct part *part = argument;
    churn(&part->blocks, part->most, part->most / PAGE * 4);
    return NULL;
}

/* Threads run concurrently; the first frees what the others leave. */
static uint64_t threads(size_t pages)
{
    struct part parts[THREADS];
    pthread_t ids[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        size_t most = pages * PAGE / THREADS;
        parts[i] = (struct part){blocks_of(most, 100 + i), most};
        MUST(pthread_create(&ids[i], NULL, churn_thread, &parts[i]) == 0);
    }
    uint64_t hash = 0;
    for (size_t i = 0; i < THREADS; i++)
        MUST(pthread_join(ids[i], NULL) == 0);
    for (size_t i = 0; i < THREADS; i++)
        hash ^= finish(&parts[i].blocks);
    return hash;
}

/* Many short-lived threads, with little memory. */
static void *short_thread(void *seed)
{
    struct blocks blocks = blocks_of(256 << 10, (uintptr_t)seed);
    churn(&blocks, 256 << 10, 300);
    return (void *)(uintptr_t)finish(&blocks);
}

static uint64_t short_threads(size_t pages)
{
    struct blocks others = blocks_of(pages * PAGE, 7);
    churn(&others, pages * PAGE, 0);
    uint64_t hash = 0;
    for (uintptr_t first = 0; first < SHORT_THREADS; first += THREADS) {
        pthread_t ids[THREADS];
        for (size_t i = 0; i < THREADS; i++)
            MUST(pthread_create(&ids[i], NULL, short_thread, (void *)(first + i)) == 0);
        for (size_t i = 0; i < THREADS; i++) {
            void *result;
            MUST(pthread_join(ids[i], &result) == 0);
            hash ^= (uintptr_t)result;
        }
    }
    return hash ^ finish(&others);
}

/* One thread allocates and another frees, through a ring that holds most of the memory. */
struct ring {
    struct block *blocks;
    size_t size, put, taken, total;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static void *produce(void *argument)
{
    struct ring *ring = argument;
    struct blocks blocks = {.random = 5, .next_id = 1};
    for (size_t done = 0; done < ring->total; done += BATCH) {
        struct block batch[BATCH];
        for (size_t i = 0; i < BATCH; i++)
            acquire(&blocks, &batch[i]);
        MUST(pthread_mutex_lock(&ring->lock) == 0);
        while (ring->put + BATCH - ring->taken > ring->size)
            MUST(pthread_cond_wait(&ring->changed, &ring->lock) == 0);
        for (size_t i = 0; i < BATCH; i++)
            ring->blocks[ring->put++ % ring->size] = batch[i];
        MUST(pthread_cond_signal(&ring->changed) == 0);
        MUST(pthread_mutex_unlock(&ring->lock) == 0);
    }
    return NULL;
}

static uint64_t handover(size_t pages)
{
    size_t size = pages * 2 / BATCH * BATCH;
    struct ring ring = {calloc(size, sizeof(struct block)), size, 0, 0, 4 * size,
                        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
    struct blocks blocks = {0};
    pthread_t producer;
    uint64_t hash = 0;
    MUST(pthread_create(&producer, NULL, produce, &ring) == 0);
    for (size_t done = 0; done < ring.total; done += BATCH) {
        struct block batch[BATCH];
        MUST(pthread_mutex_lock(&ring.lock) == 0);
        while (ring.put - ring.taken < size && ring.put < ring.total)
            MUST(pthread_cond_wait(&ring.changed, &ring.lock) == 0);
        for (size_t i = 0; i < BATCH; i++)
            batch[i] = ring.blocks[ring.taken++ % size];
        MUST(pthread_cond_signal(&ring.changed) == 0);
        MUST(pthread_mutex_unlock(&ring.lock) == 0);
        for (size_t i = 0; i < BATCH; i++) {
            hash = mix(hash ^ batch[i].size);
            release(&blocks, &batch[i]);
        }
    }
    MUST(pthread_join(producer, NULL) == 0);
    free(ring.blocks);
    return hash;
}

/* Parent and children continue with their own copies. The C library resets open files in the child,
 * before any fork handler of a library runs. */
static uint64_t forks(size_t pages)
{
    struct blocks blocks = blocks_of(pages * PAGE / 2, 9);
    FILE *file = tmpfile();
    MUST(file);
    churn(&blocks, pages * PAGE / 2, pages);
    for (int i = 0; i < 3; i++) {
        fflush(stdout);
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            MUST(fprintf(file, "%d\n", i) > 0 && fflush(file) == 0);
            churn(&blocks, pages * PAGE / 2, pages);
            pthread_t thread;
            void *result;
            MUST(pthread_create(&thread, NULL, short_thread, (void *)5) == 0);
            MUST(pthread_join(thread, &result) == 0);
            finish(&blocks);
            _exit(0);
        }
        churn(&blocks, pages * PAGE / 2, pages);
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (status != 0)
            die("child %d: status %x", i, status);
    }
    MUST(ftell(file) >= 0 && fclose(file) == 0);
    return finish(&blocks);
}

/* Frees blocks that were swapped out long ago; their records are not paged. */
static uint64_t unread(size_t pages)
{
    static void *all[1 << 19];
    size_t count = pages * PAGE / 112;
    if (count > sizeof all / sizeof *all)
        die("unread: no room for %zu blocks", count);
    for (size_t i = 0; i < count; i++) {
        MUST(all[i] = malloc(100));
        memset(all[i], (int)i, 100);
    }
    for (size_t i = 0; i < count; i++)
        free(all[i]);
    return count;
}

/* Threads allocate concurrently from the start on, and keep their blocks. */
static pthread_barrier_t gather;

static void *ask(void *bytes)
{
    enum { SIZE = 1000 };
    size_t count = (uintptr_t)bytes / SIZE;
    static _Thread_local void *all[1 << 16];
    MUST(count <= sizeof all / sizeof *all);
    pthread_barrier_wait(&gather);
    for (size_t i = 0; i < count; i++)
        MUST((all[i] = malloc(SIZE)) && memset(all[i], 1, SIZE));
    pthread_barrier_wait(&gather);
    for (size_t i = 0; i < count; i++)
        free(all[i]);
    return NULL;
}

static uint64_t together(size_t pages)
{
    pthread_t ids[THREADS];
    MUST(pthread_barrier_init(&gather, NULL, THREADS) == 0);
    for (size_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&ids[i], NULL, ask, (void *)(pages * PAGE / THREADS)) == 0);
    for (size_t i = 0; i < THREADS; i++)
        MUST(pthread_join(ids[i], NULL) == 0);
    return 0;
}

/* Objects cached by another thread at the fork can be allocated in the child. */
enum { LEFT = 6, LEFT_SIZE = 5000 };
static void *left[LEFT];

static void *leave(void *nothing)
{
    for (size_t i = 0; i < LEFT; i++)
        MUST(left[i] = malloc(LEFT_SIZE));
    for (size_t i = 0; i < LEFT; i++)
        free(left[i]);
    pthread_barrier_wait(&gather);
    pthread_barrier_wait(&gather);
    return nothing;
}

static uint64_t warm_up(void);

/* On one CPU, because each CPU allocates from slabs of its own. */
static uint64_t orphans(size_t pages)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    MUST(sched_setaffinity(0, sizeof one, &one) == 0);
    uint64_t hash = warm_up();
    pthread_t thread;
    MUST(pthread_barrier_init(&gather, NULL, 2) == 0);
    MUST(pthread_create(&thread, NULL, leave, NULL) == 0);
    pthread_barrier_wait(&gather);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        size_t met = 0;
        for (size_t i = 0; i < pages; i++) {
            void *at = malloc(LEFT_SIZE);
            MUST(at);
            for (size_t k = 0; k < LEFT; k++)
                met += at == left[k];
        }
        _exit(met == LEFT ? 0 : 10 + (int)met);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (status != 0)
        die("the child met %d of %d", WEXITSTATUS(status) - 10, LEFT);
    pthread_barrier_wait(&gather);
    MUST(pthread_join(thread, NULL) == 0);
    return hash;
}

/* A timer's handler forks wherever its thread is, mostly in malloc. The children read blocks, and
 * end or execute another program; contents stay right in parent and child. */
enum { INTERRUPTIONS = 60 };
static struct block seen[16];
static volatile int interruptions;

static void set_timer(void)
{
    struct itimerval soon = {.it_value = {.tv_usec = 200 + interruptions * 7 % 50}};
    MUST(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

static void fork_here(int signal)
{
    int before = errno, status;
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < 16; i++)
            check(&seen[i], seen[i].size, "in a handler's child");
        if (interruptions % 2)
            execl("/bin/true", "true", (char *)NULL);
        _exit(signal == SIGALRM ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        abort();
    if (++interruptions < INTERRUPTIONS)
        set_timer();
    errno = before;
}

static void leave_here(int signal)
{
    _exit(signal == SIGALRM ? 42 : 1);
}

/* Mostly malloc and free, with sizes of which a thread caches only few objects. */
static void hammer(volatile int *count, int most)
{
    static unsigned char *all[64];
    uint64_t random = 5;
    while (*count < most) {
        unsigned char **one = &all[next_random(&random) % 64];
        free(*one);
        MUST(*one = malloc(1 + next_random(&random) % 65000));
        **one = 1;
    }
    for (size_t i = 0; i < 64; i++) {
        free(all[i]);
        all[i] = NULL;
    }
}

static uint64_t interrupted(size_t pages)
{
    struct blocks blocks = blocks_of(pages * PAGE, 8);
    churn(&blocks, MIB, 5000);
    for (size_t i = 0; i < 16; i++) {
        seen[i] = (struct block){malloc(1000 * i + 1), (uint32_t)(1000 * i + 1), (uint32_t)i};
        fill(&seen[i]);
    }
    struct sigaction action = {.sa_handler = fork_here};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    set_timer();
    hammer(&interruptions, INTERRUPTIONS);
    action.sa_handler = leave_here;
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    for (int i = 0; i < INTERRUPTIONS / 2; i++) {
        int status;
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            interruptions = i;
            set_timer();
            hammer(&(volatile int){0}, 1);
        }
        MUST(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 42)
            die("a handler that ends its process: status %x", status);
    }
    churn(&blocks, 2 * MIB, 5000);
    return finish(&blocks);
}

/* Objects that are never freed: 1000 of 1700 bytes, 37 of 30,000. */
static uint64_t leaks(size_t pages)
{
    enum { SMALL = 1000, LARGE = 37 };
    static void *volatile small[2 * SMALL], *volatile large[LARGE];
    uint64_t hash = warm_up() + 0 * pages;
    for (size_t i = 0; i < 2 * SMALL; i++)
        MUST(small[i] = malloc(1700));
    for (size_t i = 0; i < LARGE; i++)
        MUST(large[i] = malloc(30000));
    for (size_t i = 0; i < 2 * SMALL; i += 2)
        free(small[i]);
    return hash;
}

static uint64_t leaks_and_leaves(size_t pages)
{
    leaks(pages);
    _exit(0);
}

/* The statistics are published every 100 ms. */
static uint64_t killed(size_t pages)
{
    leaks(pages);
    sleep(1);
    return (uint64_t)raise(SIGKILL);
}

/* ---- misuse ---- */

static void *free_it(void *at)
{
    free(at);
    return NULL;
}

static uint64_t warm_up(void)
{
    struct blocks blocks = blocks_of(MIB, 3);
    churn(&blocks, 4 * MIB, 10000);
    return finish(&blocks);
}

static uint64_t twice(size_t pages)
{
    char *volatile at = malloc(100 + 0 * pages + warm_up() % 2);
    free(at);
    free(at);
    return 0;
}

static uint64_t twice_elsewhere(size_t pages)
{
    char *volatile at = malloc(100 + 0 * pages + warm_up() % 2);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, free_it, at) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    free(at);
    return 0;
}

static uint64_t foreign(size_t pages)
{
    volatile uintptr_t at = (uintptr_t)malloc(100 + 0 * pages + warm_up() % 2);
    free((void *)(at + 16));
    return 0;
}

static uint64_t large_twice(size_t pages)
{
    char *volatile at = malloc(MIB + 0 * pages + warm_up() % 2);
    at[0] = 1;
    free(at);
    free(at);
    return 0;
}

static const struct section SECTIONS[] = {
    {"family", family},
    {"threads", threads},
    {"short_threads", short_threads},
    {"handover", handover},
    {"forks", forks},
    {"unread", unread},
    {"together", together},
    {"orphans", orphans},
    {"leaks", leaks},
    {"interrupted", interrupted},
    {NULL, NULL},
};

static const struct section ABUSES[] = {
    {"twice", twice},
    {"twice_elsewhere", twice_elsewhere},
    {"foreign", foreign},
    {"large_twice", large_twice},
    {"leaks_and_leaves", leaks_and_leaves},
    {"killed", killed},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[2], "abuse") == 0) {
        char *rest[] = {arguments[0], arguments[1], arguments[3]};
        return run_sections(ABUSES, 3, rest);
    }
    return run_sections(SECTIONS, count, arguments);
}
