/*
 * Sorts 32 MiB of random numbers with a budget of 16 MiB and checks the result: qsort sorts runs of
 * 1 MiB, which are then merged from one mapping into another.
 *
 *     cc merge_sort.c $(pkg-config --cflags --libs highwater) -o merge_sort
 *     ./merge_sort [MEMORY] [SWAP]
 */
#include <highwater.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT ((size_t)4 << 20)
#define RUN ((size_t)128 << 10)

static void expect(highwater_status status, const char *what)
{
    if (status != HIGHWATER_OK) {
        fprintf(stderr, "merge_sort: %s: %s\n", what, highwater_error_message());
        exit(1);
    }
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Fills the array with numbers of Knuth's MMIX generator; returns their sum. */
static uint64_t fill(uint64_t *numbers)
{
    uint64_t state = 1, sum = 0;
    for (size_t at = 0; at < COUNT; at++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        numbers[at] = state >> 16;
        sum += numbers[at];
    }
    return sum;
}

static void merge(const uint64_t *from, uint64_t *to, size_t start, size_t middle, size_t end)
{
    size_t left = start, right = middle;
    for (size_t at = start; at < end; at++) {
        if (right == end || (left < middle && from[left] <= from[right]))
            to[at] = from[left++];
        else
            to[at] = from[right++];
    }
}

/* Sorts; returns the array that has the result. */
static uint64_t *sort(uint64_t *numbers, uint64_t *other)
{
    for (size_t start = 0; start < COUNT; start += RUN)
        qsort(numbers + start, RUN, sizeof *numbers, compare);
    for (size_t run = RUN; run < COUNT; run *= 2) {
        for (size_t start = 0; start < COUNT; start += 2 * run)
            merge(numbers, other, start, start + run, start + 2 * run);
        uint64_t *merged = other;
        other = numbers;
        numbers = merged;
    }
    return numbers;
}

int main(int argc, char **argv)
{
    highwater_options *options = highwater_options_new();
    highwater_options_set(options, "memory", argc > 1 ? argv[1] : "16M");
    if (argc > 2)
        highwater_options_set(options, "swap", argv[2]);
    highwater_memory *memory;
    /* Also fails if a setting was refused above. */
    expect(highwater_open(options, &memory), "open");
    highwater_options_free(options);

    void *numbers, *other;
    expect(highwater_alloc(memory, COUNT * sizeof(uint64_t), &numbers), "numbers");
    expect(highwater_alloc(memory, COUNT * sizeof(uint64_t), &other), "room to merge");
    uint64_t sum = fill(numbers);
    const uint64_t *sorted = sort(numbers, other);
    for (size_t at = 0; at < COUNT; at++) {
        sum -= sorted[at];
        if (at > 0 && sorted[at - 1] > sorted[at]) {
            fprintf(stderr, "merge_sort: number %zu is out of order\n", at);
            return 1;
        }
    }
    if (sum != 0) {
        fprintf(stderr, "merge_sort: the numbers are not those of before\n");
        return 1;
    }
    uint64_t in, out;
    expect(highwater_counter(memory, "pswpin", &in), "counter");
    expect(highwater_counter(memory, "pswpout", &out), "counter");
    printf("%zu numbers sorted; %" PRIu64 " pages read from swap, %" PRIu64 " written\n", COUNT,
           in, out);
    expect(highwater_close(memory), "close");
    return 0;
}
