/* Pages that are replaced while other threads use them:   replaced SECONDS [past]
 *
 * Reservers map over pages of their areas with MAP_FIXED, again and again, while a reader uses the
 * same pages: it never faults, and sees the written contents or zeros. Mappers map and unmap pieces
 * of all sizes meanwhile: the new memory is zero, and stays theirs. With `past`, pieces are
 * sometimes protected and unmapped past the functions that a library may replace.
 */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { RESERVERS = 2, MAPPERS = 3, AREA = 24, PIECE = 40 };

static const int PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS, BOTH = PROT_READ | PROT_WRITE;
static atomic_int over;
static int (*protect)(void *, size_t, int);

struct area {
    unsigned char *at;
    uint64_t tag;
};

static void *read_area(void *argument)
{
    struct area *area = argument;
    while (!over)
        for (size_t i = 0; i < AREA; i++) {
            uint64_t seen = *(volatile uint64_t *)(area->at + i * PAGE);
            if (seen != 0 && seen != area->tag + i)
                die("page %zu of an area shows %lx, not %lx", i, seen, area->tag + i);
        }
    return NULL;
}

static void *reserve(void *argument)
{
    struct area *area = argument;
    uint64_t random = area->tag;
    while (!over) {
        size_t first = next_random(&random) % AREA;
        size_t pages = 1 + next_random(&random) % (AREA - first);
        unsigned char *part = area->at + first * PAGE;
        void *got = mmap(part, pages * PAGE, BOTH, PRIVATE | MAP_FIXED, -1, 0);
        if (got != part)
            die("MAP_FIXED: %s", strerror(errno));
        for (size_t i = 0; i < pages; i++) {
            uint64_t *word = (uint64_t *)(part + i * PAGE);
            if (*word != 0)
                die("page %zu that was mapped anew shows %lx", first + i, *word);
            *word = area->tag + first + i;
        }
    }
    return NULL;
}

static void *map_pieces(void *argument)
{
    uint64_t tag = (uint64_t)argument, random = tag;
    while (!over) {
        size_t pages = 1 + next_random(&random) % PIECE;
        unsigned char *piece = mmap(NULL, pages * PAGE, BOTH, PRIVATE, -1, 0);
        MUST(piece != MAP_FAILED);
        for (size_t i = 0; i < pages; i++) {
            uint64_t *word = (uint64_t *)(piece + i * PAGE);
            if (*word != 0)
                die("page %zu of a new mapping shows %lx", i, *word);
            *word = tag + i;
        }
        for (size_t i = 0; i < pages; i++)
            if (*(uint64_t *)(piece + i * PAGE) != tag + i)
                die("page %zu of a mapping was lost", i);
        if (protect && next_random(&random) % 4 == 0)
            MUST(protect(piece, pages * PAGE, PROT_READ | PROT_EXEC) == 0);
        MUST(munmap(piece, pages * PAGE) == 0);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2 && count != 3)
        die("usage: replaced SECONDS [past]");
    if (count == 3) {
        protect = (int (*)(void *, size_t, int))dlsym(dlopen("libc.so.6", RTLD_NOW), "mprotect");
        MUST(protect);
    }
    struct area areas[RESERVERS];
    pthread_t threads[2 * RESERVERS + MAPPERS];
    size_t made = 0;
    for (size_t i = 0; i < RESERVERS; i++) {
        areas[i].at = mmap(NULL, AREA * PAGE, BOTH, PRIVATE, -1, 0);
        areas[i].tag = (i + 1) << 32;
        MUST(areas[i].at != MAP_FAILED);
        MUST(pthread_create(&threads[made++], NULL, reserve, &areas[i]) == 0);
        MUST(pthread_create(&threads[made++], NULL, read_area, &areas[i]) == 0);
    }
    for (size_t i = 0; i < MAPPERS; i++) {
        void *tag = (void *)((i + 100) << 32);
        MUST(pthread_create(&threads[made++], NULL, map_pieces, tag) == 0);
    }
    nanosleep(&(struct timespec){ .tv_sec = (time_t)number(arguments[1]) }, NULL);
    over = 1;
    while (made > 0)
        MUST(pthread_join(threads[--made], NULL) == 0);
    printf("all pages were whose they should be\n");
    return 0;
}
