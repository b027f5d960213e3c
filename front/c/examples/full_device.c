/*
 * A device that becomes full: RLIMIT_FSIZE keeps the swap file from growing beyond 8 MiB, as a full
 * file system would. highwater_write returns an error, where a store would end the process. All
 * data that was written can be read, and after some of it is dropped there is room again.
 *
 *     cc full_device.c $(pkg-config --cflags --libs highwater) -o full_device
 *     ./full_device DIRECTORY
 */
#include <highwater.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define CHUNK ((size_t)64 << 10)
#define SIZE ((size_t)48 << 20)

static void expect(highwater_status status, const char *what)
{
    if (status != HIGHWATER_OK) {
        fprintf(stderr, "full_device: %s: %s\n", what, highwater_error_message());
        exit(1);
    }
}

static void limit_files(rlim_t size)
{
    struct rlimit limit = {size, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        exit(1);
}

/* Writes chunks until one is refused; returns the bytes written. */
static size_t write_chunks(highwater_memory *memory, char *paged, char *chunk)
{
    for (size_t at = 0; at < SIZE; at += CHUNK) {
        memset(chunk, (int)(at / CHUNK % 251), CHUNK);
        highwater_status status = highwater_write(memory, paged + at, chunk, CHUNK);
        if (status != HIGHWATER_OK) {
            printf("%s after %zu MiB: %s\n", highwater_status_name((int)status), at >> 20,
                   highwater_error_message());
            return status == HIGHWATER_ERROR_OUT_OF_MEMORY ? at : 0;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: full_device DIRECTORY\n");
        return 2;
    }
    char swap[4096];
    snprintf(swap, sizeof swap, "dir:%s:64M", argv[1]);
    highwater_options *options = highwater_options_new();
    highwater_options_set(options, "memory", "8M");
    highwater_options_set(options, "swap", swap);
    highwater_memory *memory;
    expect(highwater_open(options, &memory), "open");
    highwater_options_free(options);

    void *paged;
    expect(highwater_alloc(memory, SIZE, &paged), "alloc");
    limit_files(8 << 20);
    static char chunk[CHUNK], expected[CHUNK];
    size_t written = write_chunks(memory, paged, chunk);
    if (written == 0) {
        fprintf(stderr, "full_device: the device does not fill\n");
        return 1;
    }

    /* The device has enough free slots, but accepts no pages. */
    void *more;
    if (highwater_alloc(memory, 32 << 20, &more) != HIGHWATER_ERROR_FULL) {
        fprintf(stderr, "full_device: there is no room for more\n");
        return 1;
    }
    printf("alloc: %s\n", highwater_error_message());
    /* Pages from swap need frames, and no dirty page can be evicted: the last 2 MiB are freed, so
       that their frames can be used. */
    size_t kept = written - ((size_t)2 << 20);
    expect(highwater_resize(memory, paged, kept, &paged), "resize");
    for (size_t at = 0; at < kept; at += CHUNK) {
        memset(expected, (int)(at / CHUNK % 251), CHUNK);
        expect(highwater_read(memory, chunk, (char *)paged + at, CHUNK), "read");
        if (memcmp(chunk, expected, CHUNK) != 0) {
            fprintf(stderr, "full_device: wrong contents at %zu\n", at);
            return 1;
        }
    }
    expect(highwater_advise(memory, paged, kept, HIGHWATER_ADVICE_DONTNEED), "drop");
    memset(chunk, 1, CHUNK);
    expect(highwater_write(memory, paged, chunk, CHUNK), "write again");
    expect(highwater_close(memory), "close");
    return 0;
}
