/*
 * A mapped file of four times the budget: stores, sync, length, locks, and plain reads of the file
 * afterwards. The argument is a directory.
 */
#include "check.h"
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

#define SIZE ((size_t)32 << 20)
#define WORDS (SIZE / sizeof(uint64_t))

static char path[4096];

/* A word of the file, by read(2). */
static uint64_t in_file(size_t at)
{
    uint64_t word;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK(pread(fd, &word, sizeof word, (off_t)(at * sizeof word)) == sizeof word);
    close(fd);
    return word;
}

static void *mapped(highwater_memory *memory, int access)
{
    void *address;
    OK(highwater_map_file(memory, path, access, &address));
    return address;
}

static void refusals(highwater_memory *memory, void *writer)
{
    void *none;
    for (int access = HIGHWATER_ACCESS_READ; access <= HIGHWATER_ACCESS_WRITE; access++) {
        highwater_status status = highwater_map_file(memory, path, access, &none);
        CHECK(failed(status, HIGHWATER_ERROR_IN_USE, "mapped elsewhere") && !none);
    }
    CHECK(failed(highwater_map_file(memory, "/nonexistent/a", HIGHWATER_ACCESS_READ, &none),
                 HIGHWATER_ERROR_FILE, "/nonexistent/a"));
    CHECK(failed(highwater_map_file(memory, path, 7, &none), HIGHWATER_ERROR_INVALID, "7"));
    CHECK(failed(highwater_create_file(memory, path, 0, &none), HIGHWATER_ERROR_INVALID, "bytes"));
    CHECK(failed(highwater_advise(memory, writer, 4096, HIGHWATER_ADVICE_DONTNEED),
                 HIGHWATER_ERROR_INVALID, "file"));
    highwater_pin *pin;
    OK(highwater_pin_range(memory, writer, 1, HIGHWATER_ACCESS_WRITE, &pin));
    CHECK(failed(highwater_sync(memory, writer, SIZE), HIGHWATER_ERROR_BUSY, "pinned"));
    highwater_unpin(pin);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    snprintf(path, sizeof path, "%s/numbers", argv[1]);
    highwater_memory *memory = open_memory("ram:16M");
    void *address;
    OK(highwater_create_file(memory, path, SIZE, &address));
    uint64_t *words = address;
    for (size_t at = 0; at < WORDS; at++)
        words[at] += at * at;
    refusals(memory, words);
    OK(highwater_sync(memory, words + 1000, 8));
    CHECK(in_file(1000) == 1000 * 1000);
    OK(highwater_sync(memory, words, SIZE));
    for (size_t at = 0; at < WORDS; at += 511)
        CHECK(in_file(at) == at * at);
    void *moved;
    OK(highwater_resize(memory, words, SIZE + 8, &moved));
    words = moved;
    CHECK(words[WORDS] == 0 && words[WORDS - 1] == (WORDS - 1) * (WORDS - 1));
    words[WORDS] = 7;
    OK(highwater_free(memory, words));
    CHECK(in_file(WORDS) == 7);

    const uint64_t *read = mapped(memory, HIGHWATER_ACCESS_READ);
    const uint64_t *again = mapped(memory, HIGHWATER_ACCESS_READ);
    size_t size;
    OK(highwater_size(memory, read, &size));
    CHECK(size == SIZE + 8 && read != again);
    for (size_t at = 0; at < WORDS; at++)
        CHECK(read[at] == at * at);
    uint64_t word = 1;
    CHECK(failed(highwater_write(memory, (void *)read, &word, sizeof word),
                 HIGHWATER_ERROR_READ_ONLY, "reading only"));
    CHECK(failed(highwater_resize(memory, (void *)read, 1, &moved), HIGHWATER_ERROR_READ_ONLY,
                 "reading only"));
    OK(highwater_free(memory, (void *)again));
    OK(highwater_free(memory, (void *)read));

    words = mapped(memory, HIGHWATER_ACCESS_WRITE);
    words[5] = 99;
    highwater_close(memory);
    CHECK(in_file(5) == 99);
    return 0;
}
