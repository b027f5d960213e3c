/*
 * Contents of four times the budget: resize, advice, copies, pins, the budget, counters. Prints its
 * peak resident memory beyond the budget, in KiB.
 */
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#define BUDGET ((size_t)8 << 20)
#define SIZE (4 * BUDGET)
#define WORDS (SIZE / sizeof(uint64_t))
#define PAGE ((size_t)4096)

static long kib(const char *name)
{
    char line[256];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            value = strtol(line + strlen(name), NULL, 10);
    fclose(file);
    return value;
}

static void contents(highwater_memory *memory, uint64_t *words)
{
    for (size_t at = 0; at < WORDS; at++) {
        CHECK(words[at] == 0);
        words[at] = at * at;
    }
    for (size_t at = 0; at < WORDS; at++)
        CHECK(words[at] == at * at);
    uint64_t part[1000];
    OK(highwater_read(memory, part, words + 12345, sizeof part));
    for (size_t at = 0; at < 1000; at++)
        CHECK(part[at] == (at + 12345) * (at + 12345));
    OK(highwater_write(memory, words + 3, part, sizeof part));
    CHECK(memcmp(words + 3, part, sizeof part) == 0);
    CHECK(words[2] == 4 && words[1003] == 1003 * 1003);
}

static uint64_t *sizes(highwater_memory *memory, uint64_t *words)
{
    void *between = alloc(memory, PAGE), *moved = words;
    size_t size;
    OK(highwater_resize(memory, words, SIZE + PAGE, &moved));
    words = moved;
    CHECK(words[WORDS] == 0 && words[WORDS - 1] == (WORDS - 1) * (WORDS - 1));
    words[WORDS] = 5;
    OK(highwater_resize(memory, words, SIZE / 2, &moved));
    words = moved;
    OK(highwater_size(memory, words, &size));
    CHECK(size == SIZE / 2);
    OK(highwater_resize(memory, words, SIZE, &moved));
    words = moved;
    CHECK(words[WORDS / 2 - 1] == (WORDS / 2 - 1) * (WORDS / 2 - 1) && words[WORDS / 2] == 0);
    OK(highwater_free(memory, between));
    return words;
}

/* Reads all pages; stores how many faults waited for swap, and how many pages were read. */
static void scan(highwater_memory *memory, const char *bytes, uint64_t *faults, uint64_t *pages)
{
    uint64_t before[2], after[2];
    OK(highwater_counter(memory, "pgmajfault", &before[0]));
    OK(highwater_counter(memory, "pswpin", &before[1]));
    for (size_t page = 0; page < SIZE; page += PAGE)
        CHECK(bytes[page] == 1);
    OK(highwater_counter(memory, "pgmajfault", &after[0]));
    OK(highwater_counter(memory, "pswpin", &after[1]));
    *faults = after[0] - before[0];
    *pages = after[1] - before[1];
    CHECK(*pages > SIZE / 2 / PAGE);
}

static void advice(highwater_memory *memory, char *bytes)
{
    static const int patterns[] = {HIGHWATER_ADVICE_RANDOM, HIGHWATER_ADVICE_SEQUENTIAL,
                                   HIGHWATER_ADVICE_NORMAL, HIGHWATER_ADVICE_WILLNEED};
    uint64_t faults, pages;
    memset(bytes, 9, 5 * PAGE);
    for (size_t at = 0; at < 4; at++)
        OK(highwater_advise(memory, bytes + 100, 4 * PAGE, patterns[at]));
    OK(highwater_advise(memory, bytes + 100, 4 * PAGE, HIGHWATER_ADVICE_DONTNEED));
    for (size_t at = 0; at < 5 * PAGE; at++)
        CHECK(bytes[at] == (at < 100 || at >= 4 * PAGE + 100 ? 9 : 0));
    /* With random advice a fault reads one page; otherwise it reads neighbouring pages, too. */
    memset(bytes, 1, SIZE);
    OK(highwater_advise(memory, bytes, SIZE, HIGHWATER_ADVICE_RANDOM));
    scan(memory, bytes, &faults, &pages);
    CHECK(pages == faults);
    OK(highwater_advise(memory, bytes, SIZE, HIGHWATER_ADVICE_SEQUENTIAL));
    scan(memory, bytes, &faults, &pages);
    CHECK(pages > 2 * faults);
}

/* With a readahead of one page, a fault reads only its own page. */
static void no_readahead(const char *swap)
{
    uint64_t faults, pages;
    highwater_options *options = highwater_options_new();
    highwater_memory *memory;
    OK(highwater_options_set_number(options, "memory", BUDGET));
    OK(highwater_options_set_number(options, "readahead", 1));
    OK(highwater_options_set(options, "swap", swap));
    OK(highwater_open(options, &memory));
    highwater_options_free(options);
    char *bytes = alloc(memory, SIZE);
    memset(bytes, 1, SIZE);
    scan(memory, bytes, &faults, &pages);
    CHECK(pages == faults);
    OK(highwater_close(memory));
}

/* Pins a page more often than the library permits. */
static void many_pins(const char *swap)
{
    static highwater_pin *pins[5000];
    size_t count = 0;
    highwater_options *options = highwater_options_new();
    highwater_memory *memory;
    OK(highwater_options_set(options, "memory", "64M"));
    OK(highwater_options_set(options, "swap", swap));
    OK(highwater_open(options, &memory));
    highwater_options_free(options);
    char *bytes = alloc(memory, 1);
    while (highwater_pin_range(memory, bytes, 1, HIGHWATER_ACCESS_WRITE, &pins[count]) ==
           HIGHWATER_OK)
        CHECK(++count < 5000);
    CHECK(count == 4096 && strstr(highwater_error_message(), "4096 pins at most"));
    while (count > 0)
        highwater_unpin(pins[--count]);
    OK(highwater_close(memory));
}

/* Reads in a loop: a read may end early if a signal or a finished transfer of the thread is
   pending. */
static void read_all(int file, char *to, size_t size)
{
    while (size > 0) {
        ssize_t got = read(file, to, size);
        CHECK(got > 0 && (size_t)got <= size);
        to += got;
        size -= got;
    }
}

static void pins(highwater_memory *memory, char *bytes)
{
    highwater_pin *pin, *more;
    const highwater_status busy = HIGHWATER_ERROR_BUSY;
    void *moved = bytes;
    const size_t size = BUDGET / 8;
    OK(highwater_pin_range(memory, bytes + PAGE + 1, size, HIGHWATER_ACCESS_WRITE, &pin));
    /* All other pages are used; system calls may still write to the pinned range. */
    memset(bytes + PAGE + size + PAGE, 3, SIZE - 2 * PAGE - size);
    int zeros = open("/dev/zero", O_RDONLY);
    CHECK(zeros >= 0);
    read_all(zeros, bytes + PAGE + 1, size);
    close(zeros);
    CHECK(bytes[PAGE] == 1 && bytes[PAGE + 1] == 0 && bytes[PAGE + size] == 0);
    CHECK(failed(highwater_free(memory, bytes), busy, "are pinned"));
    CHECK(failed(highwater_resize(memory, bytes, 1, &moved), busy, "bytes 4096 to 1056768"));
    CHECK(failed(highwater_close(memory), busy, "are pinned"));
    CHECK(failed(highwater_advise(memory, bytes + 10, PAGE, HIGHWATER_ADVICE_DONTNEED), busy,
                 "are pinned"));
    OK(highwater_advise(memory, bytes, PAGE, HIGHWATER_ADVICE_DONTNEED));
    CHECK(failed(highwater_pin_range(memory, bytes, SIZE, HIGHWATER_ACCESS_READ, &more),
                 HIGHWATER_ERROR_PINNED, "may be pinned") && !more);
    OK(highwater_pin_range(memory, bytes + PAGE, size, HIGHWATER_ACCESS_READ, &more));
    highwater_unpin(pin);
    CHECK(failed(highwater_free(memory, bytes), busy, "are pinned"));
    highwater_unpin(more);
}

static void budget(highwater_memory *memory, const char *bytes)
{
    uint64_t size, resident;
    OK(highwater_set_budget(memory, BUDGET / 2));
    OK(highwater_budget(memory, &size));
    OK(highwater_counter(memory, "nr_resident", &resident));
    CHECK(size == BUDGET / 2 && resident * PAGE <= size);
    CHECK(bytes[SIZE - 1] == 3);
    OK(highwater_set_budget(memory, BUDGET));
    void *rest;
    OK(highwater_left(memory, &size));
    CHECK(failed(highwater_alloc(memory, size + 1, &rest), HIGHWATER_ERROR_FULL, "left"));
    rest = alloc(memory, size);
    CHECK(failed(highwater_set_budget(memory, BUDGET / 2), HIGHWATER_ERROR_FULL, "left"));
    OK(highwater_free(memory, rest));
}

static void counters(highwater_memory *memory)
{
    size_t count = highwater_counter_count(), found = 0;
    uint64_t *values = malloc(count * sizeof *values), value;
    OK(highwater_counters(memory, values, count));
    for (size_t at = 0; at < count; at++) {
        OK(highwater_counter(memory, highwater_counter_name(at), &value));
        CHECK(value >= values[at] || strncmp(highwater_counter_name(at), "pg", 2) != 0);
        found += strcmp(highwater_counter_name(at), "pswpout") == 0 && values[at] > SIZE / PAGE;
    }
    CHECK(found == 1 && highwater_counter_name(count) == NULL);
    free(values);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    highwater_memory *memory = open_memory(argv[1]);
    uint64_t *words = alloc(memory, SIZE);
    contents(memory, words);
    words = sizes(memory, words);
    advice(memory, (char *)words);
    pins(memory, (char *)words);
    budget(memory, (char *)words);
    counters(memory);
    printf("%ld\n", kib("VmHWM:") - (long)(BUDGET >> 10));
    OK(highwater_close(memory));
    many_pins(argv[1]);
    no_readahead(argv[1]);
    return 0;
}
