/* The malloc family for 64 KiB to 50 MiB, with contents checked. See sections.h for usage. */
#define _GNU_SOURCE
#include "sections.h"

#include <malloc.h>
#include <pthread.h>

enum { SLOTS = 48, THREADS = 4 };
#define SMALLEST (64ul << 10)
#define LARGEST (50 * MIB)

/* A live allocation. Its contents follow from (id, version). */
struct block {
    unsigned char *at;
    size_t size;
    uint64_t id;
};

struct heap {
    struct block blocks[SLOTS];
    size_t live, most; /* bytes */
    uint64_t random, next_id, hash;
};

/* Each order of magnitude is equally likely. */
static size_t pick_size(struct heap *heap)
{
    size_t size = SMALLEST << next_random(&heap->random) % 10;
    size += next_random(&heap->random) % size;
    return size < LARGEST ? size : LARGEST;
}

static void block_fill(const struct block *block)
{
    size_t pages = block->size / PAGE;
    for (size_t page = 0; page < pages; page++)
        fill_page(block->at + page * PAGE, block->id + page, 1);
    expect_bytes(block->at + pages * PAGE, block->id + pages, 1, 0, block->size % PAGE);
}

/* The first `length` bytes. */
static void block_check(const struct block *block, size_t length, const char *where)
{
    unsigned char rest[PAGE];
    size_t pages = length / PAGE;
    for (size_t page = 0; page < pages; page++)
        check_page(block->at + page * PAGE, block->id + page, 1, where);
    expect_bytes(rest, block->id + pages, 1, 0, length % PAGE);
    if (memcmp(block->at + pages * PAGE, rest, length % PAGE) != 0)
        die("%s: the last bytes of %zu at %p differ", where, length, (void *)block->at);
}

static void must_be_zeros(const unsigned char *at, size_t size, const char *where)
{
    for (size_t page = 0; page < size / PAGE; page++)
        check_page(at + page * PAGE, 0, 0, where);
    for (size_t i = size / PAGE * PAGE; i < size; i++)
        if (at[i] != 0)
            die("%s: byte %zu of %zu at %p is %d", where, i, size, (const void *)at, at[i]);
}

static void *must_align(void *at, size_t alignment, const char *where)
{
    if (at == NULL || (uintptr_t)at % alignment != 0)
        die("%s: %p is not aligned to %zu", where, at, alignment);
    return at;
}

/* Allocates in one of the possible ways. */
static unsigned char *get(struct heap *heap, size_t size)
{
    size_t alignment = 16ul << next_random(&heap->random) % 18;
    void *at = NULL;
    switch (next_random(&heap->random) % 8) {
    case 0:
    case 1:
        MUST(at = calloc(size / 8 + 1, 8));
        must_be_zeros(at, size, "calloc");
        return at;
    case 2:
        return must_align(memalign(alignment, size), alignment, "memalign");
    case 3:
        size = (size + alignment - 1) / alignment * alignment;
        return must_align(aligned_alloc(alignment, size), alignment, "aligned_alloc");
    case 4:
        MUST(posix_memalign(&at, alignment, size) == 0);
        return must_align(at, alignment, "posix_memalign");
    case 5:
        MUST(at = reallocarray(NULL, size / 8 + 1, 8));
        return at;
    default:
        return must_align(malloc(size), 16, "malloc");
    }
}

static void release(struct heap *heap, struct block *block)
{
    block_check(block, block->size, "before free");
    heap->hash = hash_bytes(heap->hash, block->at, block->size);
    heap->live -= block->size;
    free(block->at);
    block->at = NULL;
}

/* All usable bytes belong to the caller. */
static void use_slack(struct block *block)
{
    size_t usable = malloc_usable_size(block->at);
    if (usable < block->size)
        die("malloc_usable_size %zu of a block of %zu", usable, block->size);
    memset(block->at + block->size, 0xa5, usable - block->size);
}

static void acquire(struct heap *heap, struct block *block)
{
    size_t size = pick_size(heap);
    if (heap->live + size > heap->most)
        return;
    heap->next_id += LARGEST / PAGE + 1;
    *block = (struct block){get(heap, size), size, heap->next_id};
    heap->live += size;
    use_slack(block);
    block_fill(block);
}

/* realloc keeps the bytes that fit. */
static void resize(struct heap *heap, struct block *block)
{
    size_t size = pick_size(heap), old = block->size;
    if (heap->live - old + size > heap->most)
        return;
    unsigned char *at = realloc(block->at, size);
    MUST(at);
    block->at = at;
    block->size = size;
    heap->live += size - old;
    block_check(block, size < old ? size : old, "after realloc");
    use_slack(block);
    block_fill(block);
}

static void churn(struct heap *heap, size_t rounds)
{
    for (size_t round = 0; round < rounds; round++) {
        struct block *block = &heap->blocks[next_random(&heap->random) % SLOTS];
        if (block->at == NULL)
            acquire(heap, block);
        else if (next_random(&heap->random) % 3 == 0)
            resize(heap, block);
        else
            release(heap, block);
    }
}

static uint64_t finish(struct heap *heap)
{
    for (size_t i = 0; i < SLOTS; i++)
        if (heap->blocks[i].at)
            release(heap, &heap->blocks[i]);
    return heap->hash;
}

/* ---- sections ---- */

static uint64_t family(size_t pages)
{
    struct heap heap = {.most = pages * PAGE, .random = 1};
    churn(&heap, 250);
    return finish(&heap);
}

static void *churn_thread(void *heap)
{
    churn(heap, 80);
    return NULL;
}

/* Threads allocate concurrently; memory of one thread is freed by another. */
static uint64_t threads(size_t pages)
{
    struct heap heaps[THREADS] = {0};
    pthread_t ids[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        heaps[i].most = pages * PAGE / THREADS;
        heaps[i].random = 100 + i;
        MUST(pthread_create(&ids[i], NULL, churn_thread, &heaps[i]) == 0);
    }
    uint64_t hash = 0;
    for (size_t i = 0; i < THREADS; i++)
        MUST(pthread_join(ids[i], NULL) == 0);
    for (size_t i = 0; i < THREADS; i++)
        hash ^= finish(&heaps[i]);
    return hash;
}

/* A volatile size, because compilers know these calls and remove them. */
static uint64_t refusals(size_t pages)
{
    volatile size_t huge = SIZE_MAX / 2, half = SIZE_MAX / 2 + 1;
    void *at = (void *)1;
    MUST(malloc(huge) == NULL && errno == ENOMEM);
    MUST(calloc(half, 2) == NULL && errno == ENOMEM);
    MUST(reallocarray(NULL, half, 2) == NULL && errno == ENOMEM);
    MUST(posix_memalign(&at, 48, MIB) == EINVAL);
    struct block block = {malloc(pages * PAGE), pages * PAGE, 1};
    MUST(block.at);
    block_fill(&block);
    MUST(realloc(block.at, huge) == NULL && errno == ENOMEM);
    block_check(&block, block.size, "after a refused realloc");
    uint64_t hash = hash_bytes(0, block.at, block.size);
    free(block.at);
    free(NULL);
    return hash;
}

static const struct section SECTIONS[] = {
    {"family", family}, {"threads", threads}, {"refusals", refusals}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_sections(SECTIONS, count, arguments);
}
