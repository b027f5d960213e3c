/*
 * Counts words in a hash table of 32 MiB, with a budget of 8 MiB. Each of two threads uses one half
 * of the table. The table is accessed at random, so nothing is read ahead.
 *
 *     cc -pthread hash_table.c $(pkg-config --cflags --libs highwater) -o hash_table
 *     ./hash_table [MEMORY] [SWAP]
 */
#include <highwater.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 2
#define SLOTS_BITS 20
#define SLOTS ((size_t)1 << SLOTS_BITS)
#define KEYS ((uint64_t)40000)
#define ROUNDS 2

struct slot {
    uint64_t key; /* 0: free */
    uint64_t count;
};

struct half {
    struct slot *slots;
    uint64_t first_key;
};

static void expect(highwater_status status, const char *what)
{
    if (status != HIGHWATER_OK) {
        fprintf(stderr, "hash_table: %s: %s\n", what, highwater_error_message());
        exit(1);
    }
}

/* The slot of a key, or the free slot where the key belongs. */
static struct slot *find(struct slot *slots, uint64_t key)
{
    /* Fibonacci hashing: the upper bits of the product. */
    size_t at = (size_t)((key * 0x9e3779b97f4a7c15u) >> (64 - SLOTS_BITS));
    while (slots[at].key != 0 && slots[at].key != key)
        at = (at + 1) % SLOTS;
    return &slots[at];
}

static void *count(void *argument)
{
    const struct half *half = argument;
    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t key = half->first_key; key < half->first_key + KEYS; key++) {
            struct slot *slot = find(half->slots, key);
            slot->key = key;
            slot->count += key % 7;
        }
    }
    return NULL;
}

/* The number of keys that have a wrong count. */
static uint64_t wrong(const struct half *half)
{
    uint64_t found = 0;
    for (uint64_t key = half->first_key; key < half->first_key + KEYS; key++) {
        const struct slot *slot = find(half->slots, key);
        found += slot->key != key || slot->count != key % 7 * ROUNDS;
    }
    return found;
}

int main(int argc, char **argv)
{
    highwater_options *options = highwater_options_new();
    highwater_options_set(options, "memory", argc > 1 ? argv[1] : "8M");
    if (argc > 2)
        highwater_options_set(options, "swap", argv[2]);
    highwater_memory *memory;
    expect(highwater_open(options, &memory), "open");
    highwater_options_free(options);

    size_t size = SLOTS * sizeof(struct slot);
    void *table;
    expect(highwater_alloc(memory, THREADS * size, &table), "table");
    expect(highwater_advise(memory, table, THREADS * size, HIGHWATER_ADVICE_RANDOM), "advise");
    pthread_t threads[THREADS];
    struct half halves[THREADS];
    for (size_t at = 0; at < THREADS; at++) {
        halves[at].slots = (struct slot *)table + at * SLOTS;
        halves[at].first_key = 1 + at * KEYS;
        if (pthread_create(&threads[at], NULL, count, &halves[at]) != 0)
            return 1;
    }
    uint64_t errors = 0;
    for (size_t at = 0; at < THREADS; at++) {
        pthread_join(threads[at], NULL);
        errors += wrong(&halves[at]);
    }
    uint64_t major;
    expect(highwater_counter(memory, "pgmajfault", &major), "counter");
    printf("%d keys, %" PRIu64 " with a wrong count; %" PRIu64 " faults read from swap\n",
           (int)(THREADS * KEYS), errors, major);
    expect(highwater_close(memory), "close");
    return errors != 0;
}
