/*
 * Random reads and updates of the pages of a mapped file, for demo/peers.py.
 *
 *     random_pages FILE MEMORY_MIB THREADS uniform|skewed SECONDS [SETTING]
 *
 * The file is mapped by UMap (compiled with -DUMAP), by Highwater (-DHIGHWATER), or by mmap.
 * SETTING: threads of UMap that read, and as many that evict; for Highwater, the threads that serve
 * faults. The first word of a page is its number, the last word the inverse of it, and the second
 * word counts updates. Each access checks the page, and at the end the file must have all updates.
 *
 * Many threads fill the memory first, since reads of one thread take long. Then prints what the
 * threads asked for did in SECONDS: accesses, elapsed seconds, CPU seconds, pages read from the
 * disk, pages written.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(UMAP)
#include <umap/umap.h>
#elif defined(HIGHWATER)
#include <highwater.h>
#endif

#define PAGE ((size_t)4096)
#define WORDS (PAGE / 8)
#define BLOCK ((size_t)1 << 20)
#define THREADS_MAX 32

static uint64_t *pages;
static uint64_t page_count;
static int skewed;
static int stop;

struct worker {
    pthread_t thread;
    uint64_t random, accesses_max, accesses, updates;
    char pad[64]; /* workers write to cache lines of their own */
} workers[THREADS_MAX];

struct totals {
    uint64_t accesses, read_bytes, written_bytes;
    double wall, cpu;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

#if defined(UMAP)
static void map(const char *path, const char *memory_mib, const char *setting)
{
    char buffer_pages[32];
    snprintf(buffer_pages, sizeof buffer_pages, "%ld", atol(memory_mib) * 256);
    setenv("UMAP_BUFSIZE", buffer_pages, 1);
    setenv("UMAP_PAGESIZE", "4096", 1);
    if (setting) {
        setenv("UMAP_PAGE_FILLERS", setting, 1);
        setenv("UMAP_PAGE_EVICTORS", setting, 1);
    }
    int file = open(path, O_RDWR | O_DIRECT);
    pages = umap(NULL, page_count * PAGE, PROT_READ | PROT_WRITE, UMAP_PRIVATE, file, 0);
    if (file < 0 || pages == UMAP_FAILED)
        fail("umap");
}

static void unmap(void)
{
    uunmap(pages, page_count * PAGE);
}
#elif defined(HIGHWATER)
static highwater_memory *memory;

static void expect(highwater_status status)
{
    if (status != HIGHWATER_OK) {
        fprintf(stderr, "highwater: %s\n", highwater_error_message());
        exit(1);
    }
}

static void map(const char *path, const char *memory_mib, const char *setting)
{
    highwater_options *options = highwater_options_new();
    expect(highwater_options_set_number(options, "memory", strtoull(memory_mib, NULL, 10) << 20));
    expect(highwater_options_set(options, "swap", "ram:4M"));
    if (setting)
        expect(highwater_options_set(options, "faults", setting));
    expect(highwater_open(options, &memory));
    highwater_options_free(options);
    void *address;
    expect(highwater_map_file(memory, path, HIGHWATER_ACCESS_WRITE, &address));
    expect(highwater_advise(memory, address, page_count * PAGE, HIGHWATER_ADVICE_RANDOM));
    pages = address;
}

static void unmap(void)
{
    expect(highwater_close(memory));
}
#else
static void map(const char *path, const char *memory_mib, const char *setting)
{
    (void)memory_mib, (void)setting; /* a cgroup limits the page cache */
    int file = open(path, O_RDWR);
    pages = mmap(NULL, page_count * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || pages == MAP_FAILED || madvise(pages, page_count * PAGE, MADV_RANDOM))
        fail("mmap");
}

static void unmap(void)
{
    if (msync(pages, page_count * PAGE, MS_SYNC) || munmap(pages, page_count * PAGE))
        fail("msync");
}
#endif

static void check(const uint64_t *page, uint64_t number)
{
    if (page[0] != number || page[WORDS - 1] != ~number) {
        fprintf(stderr, "page %" PRIu64 " has number %" PRIu64 "\n", number, page[0]);
        exit(3);
    }
}

/*
 * The updates that the file counts. Checks all pages of the file, which are read past the page
 * cache. Pages of an earlier run leave the cache: no cgroup would count them.
 */
static uint64_t updates_in_file(const char *path)
{
    uint64_t sum = 0, number = 0;
    uint64_t *block = aligned_alloc(PAGE, BLOCK);
    int file = open(path, O_RDONLY | O_DIRECT);
    ssize_t got;
    while ((got = read(file, block, BLOCK)) > 0)
        for (uint64_t *page = block; page < block + got / 8; page += WORDS) {
            check(page, number++);
            sum += page[1];
        }
    if (got < 0 || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) || close(file))
        fail(path);
    free(block);
    return sum;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Skewed: 80 of 100 accesses go to a fifth of the pages, which are spread over the file. */
static uint64_t choose_page(uint64_t *random)
{
    uint64_t from = next_random(random);
    if (skewed && next_random(random) % 10 < 8)
        return from % (page_count / 5) * 5;
    return from % page_count;
}

static void *work(void *argument)
{
    struct worker *self = argument;
    while (self->accesses < self->accesses_max && !__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        uint64_t number = choose_page(&self->random);
        uint64_t *page = pages + number * WORDS;
        check(page, number);
        if (next_random(&self->random) % 10 < 2) {
            __atomic_fetch_add(&page[1], 1, __ATOMIC_RELAXED);
            self->updates++;
        }
        __atomic_store_n(&self->accesses, self->accesses + 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void start(int threads, uint64_t accesses_max)
{
    for (int at = 0; at < threads; at++) {
        workers[at].accesses_max = accesses_max;
        workers[at].random += at + 1;
        if (pthread_create(&workers[at].thread, NULL, work, &workers[at]))
            fail("pthread_create");
    }
}

/* The updates that the threads have made since they were created. */
static uint64_t join(int threads)
{
    uint64_t updates = 0;
    for (int at = 0; at < threads; at++) {
        pthread_join(workers[at].thread, NULL);
        updates += workers[at].updates;
        workers[at].updates = workers[at].accesses = 0;
    }
    return updates;
}

static struct totals totals(int threads)
{
    struct totals found = {0};
    for (int at = 0; at < threads; at++)
        found.accesses += __atomic_load_n(&workers[at].accesses, __ATOMIC_RELAXED);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    found.wall = now.tv_sec + now.tv_nsec / 1e9;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    found.cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec;
    found.cpu += (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    FILE *io = fopen("/proc/self/io", "r");
    char line[100];
    while (io && fgets(line, sizeof line, io)) {
        sscanf(line, "read_bytes: %" SCNu64, &found.read_bytes);
        sscanf(line, "write_bytes: %" SCNu64, &found.written_bytes);
    }
    if (!io || fclose(io))
        fail("/proc/self/io");
    return found;
}

int main(int argc, char **argv)
{
    struct stat file;
    int threads = argc > 5 ? atoi(argv[3]) : 0;
    if (threads < 1 || threads > THREADS_MAX || stat(argv[1], &file)) {
        fprintf(stderr, "random_pages FILE MEMORY_MIB THREADS uniform|skewed SECONDS [SETTING]\n");
        return 2;
    }
    page_count = file.st_size / PAGE;
    skewed = !strcmp(argv[4], "skewed");
    uint64_t expected = updates_in_file(argv[1]);
    map(argv[1], argv[2], argv[6]);
    start(THREADS_MAX, 2 * atol(argv[2]) * (BLOCK / PAGE) / THREADS_MAX);
    expected += join(THREADS_MAX);
    start(threads, UINT64_MAX);
    struct totals before = totals(threads);
    sleep(atoi(argv[5]));
    struct totals after = totals(threads);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    expected += join(threads);
    unmap();
    uint64_t found = updates_in_file(argv[1]);
    if (found != expected) {
        fprintf(stderr, "%" PRIu64 " updates in the file, not %" PRIu64 "\n", found, expected);
        return 3;
    }
    printf("%" PRIu64 " %.3f %.3f %" PRIu64 " %" PRIu64 "\n", after.accesses - before.accesses,
           after.wall - before.wall, after.cpu - before.cpu,
           (after.read_bytes - before.read_bytes) / PAGE,
           (after.written_bytes - before.written_bytes) / PAGE);
    return 0;
}
