/* Random checked accesses by many threads:   threads THREADS SECONDS MIB
 *
 * Every word holds its address' hash above a 16-bit version, so each read can be checked whatever
 * thread wrote last; one access in five writes. Prints accesses per second.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static _Atomic uint64_t *words;
static size_t pages;
static atomic_int stop;

static uint64_t fixed_part(size_t index)
{
    return mix(index) << 16;
}

/* Returns the number of accesses. */
static void *run(void *seed)
{
    uint64_t random = (uint64_t)(uintptr_t)seed;
    size_t done = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint64_t dice = next_random(&random);
        size_t index = dice % (pages * WORDS);
        uint64_t word = atomic_load_explicit(&words[index], memory_order_relaxed);
        if (word >> 16 != fixed_part(index) >> 16)
            die("word %zu is %016llx", index, (unsigned long long)word);
        if (dice >> 32 < UINT32_MAX / 5)
            atomic_store_explicit(&words[index], fixed_part(index) | ((word + 1) & 0xffff),
                                  memory_order_relaxed);
        done++;
    }
    return (void *)done;
}

int main(int count, char **arguments)
{
    if (count != 4)
        die("usage: threads THREADS SECONDS MIB");
    size_t threads = number(arguments[1]);
    struct timespec span = {.tv_sec = (time_t)number(arguments[2])};
    pages = number(arguments[3]) * MIB / PAGE;
    words = map_pages(pages);
    for (size_t index = 0; index < pages * WORDS; index++)
        atomic_store_explicit(&words[index], fixed_part(index), memory_order_relaxed);
    pthread_t *ids = calloc(threads, sizeof *ids);
    MUST(ids);
    struct timespec start, end;
    MUST(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
    for (size_t i = 0; i < threads; i++)
        MUST(pthread_create(&ids[i], NULL, run, (void *)(uintptr_t)(i + 1)) == 0);
    MUST(nanosleep(&span, NULL) == 0);
    atomic_store(&stop, 1);
    size_t total = 0;
    for (size_t i = 0; i < threads; i++) {
        void *done;
        MUST(pthread_join(ids[i], &done) == 0);
        total += (size_t)done;
    }
    MUST(clock_gettime(CLOCK_MONOTONIC, &end) == 0);
    free(ids);
    double took = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
    printf("%.0f accesses/s\n", (double)total / took);
    return 0;
}
