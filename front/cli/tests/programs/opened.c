/* Libraries that are opened after the start, while memory is short:   opened SECONDS LIBRARY ...
 *
 * The first library stays open, and one of its constants is patched. The others are opened and
 * closed again and again, by a thread each, so that one is mapped where another one was. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

enum { CONSTANTS = 8 << 20, POINTERS = 64 << 10, HEAP = 48 << 20 };

static atomic_int ended;

struct library {
    void *handle;
    const unsigned char *constants;
};

static struct library open_library(const char *path)
{
    struct library library = { .handle = dlopen(path, RTLD_NOW | RTLD_LOCAL) };
    MUST(library.handle);
    const unsigned char *(*all)(void) = dlsym(library.handle, "all_constants");
    size_t (*right)(void) = dlsym(library.handle, "right_pointers");
    MUST(all && right && right() == POINTERS);
    library.constants = all();
    return library;
}

static void check(const struct library *library, size_t patched)
{
    for (size_t at = 0; at < CONSTANTS; at += 512)
        if (library->constants[at] != (at == patched ? 9 : 7))
            die("constant %zu is %d", at, library->constants[at]);
}

static void *open_and_close(void *path)
{
    while (!ended) {
        struct library library = open_library(path);
        check(&library, CONSTANTS);
        MUST(dlclose(library.handle) == 0);
    }
    return NULL;
}

/* Writes to a constant as programs do that patch their code. */
static void patch(const struct library *library, size_t at)
{
    unsigned char *byte = (unsigned char *)(uintptr_t)(library->constants + at);
    void *page = (void *)((uintptr_t)byte / PAGE * PAGE);
    MUST(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
    *byte = 9;
    MUST(mprotect(page, PAGE, PROT_READ) == 0);
}

static void check_in_child(const struct library *library, size_t patched)
{
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        check(library, patched);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
    MUST(argc >= 3);
    struct library stays = open_library(argv[2]);
    pthread_t threads[argc];
    for (int at = 3; at < argc; at++)
        MUST(pthread_create(&threads[at], NULL, open_and_close, argv[at]) == 0);
    char *heap = malloc(HEAP);
    MUST(heap);
    size_t patched = CONSTANTS, half = CONSTANTS / 2;
    time_t start = time(NULL), end = start + atoi(argv[1]);
    for (int round = 0; time(NULL) < end; round++) {
        memset(heap, round, HEAP);
        check(&stays, patched);
        if (round % 4 == 0)
            check_in_child(&stays, patched);
        if (patched != half && time(NULL) > start + (end - start) / 2)
            patch(&stays, patched = half);
        for (size_t at = 0; at < HEAP; at += PAGE)
            if (heap[at] != (char)round)
                die("byte %zu is %d", at, heap[at]);
    }
    ended = 1;
    for (int at = 3; at < argc; at++)
        MUST(pthread_join(threads[at], NULL) == 0);
    puts("right");
}
