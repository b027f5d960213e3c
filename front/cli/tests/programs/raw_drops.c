/* Threads fill pages, check them, and drop them by madvise system calls that the C library does not
 * make, as Go's runtime does, while other pages are evicted. A dropped page may have its old
 * contents or zeros, and is filled again before it is read.
 *
 * raw_drops ROUNDS
 */
#include "check.h"
#include <pthread.h>
#include <sys/syscall.h>

enum { THREADS = 4, EACH = 1024, RUN_MAX = 64 };

static char *memory;
/* 0: not filled since the page was dropped. */
static uint32_t versions[THREADS * EACH];
static int rounds;

static void drop(char *at, size_t len)
{
#ifdef __x86_64__
    long result = SYS_madvise;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(at), "S"(len), "d"((long)MADV_DONTNEED)
                     : "rcx", "r11", "memory");
    MUST(result == 0);
#else
    MUST(madvise(at, len, MADV_DONTNEED) == 0);
#endif
}

static void *work(void *own)
{
    size_t first = (size_t)own * EACH;
    uint64_t state = first;
    for (int round = 1; round <= rounds; round++) {
        uint64_t drawn = next_random(&state);
        size_t from = drawn % EACH, run = 1 + (drawn >> 20) % RUN_MAX;
        size_t end = first + (from + run < EACH ? from + run : EACH);
        uint32_t version = (uint32_t)round;
        if (drawn >> 62 == 0) {
            drop(memory + (first + from) * PAGE, (end - first - from) * PAGE);
            version = 0;
        }
        for (size_t page = first + from; page < end; page++) {
            if (drawn >> 62 == 1)
                fill_page(memory + page * PAGE, page, version);
            else if (drawn >> 62 > 1 && versions[page] > 0)
                check_page(memory + page * PAGE, page, versions[page], "a page that was kept");
            if (drawn >> 62 < 2)
                versions[page] = version;
        }
    }
    return NULL;
}

int main(int count, char **arguments)
{
    MUST(count == 2);
    rounds = atoi(arguments[1]);
    memory = mmap(NULL, THREADS * EACH * PAGE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    pthread_t threads[THREADS];
    for (size_t thread = 0; thread < THREADS; thread++)
        MUST(pthread_create(&threads[thread], NULL, work, (void *)thread) == 0);
    for (size_t thread = 0; thread < THREADS; thread++)
        MUST(pthread_join(threads[thread], NULL) == 0);
    for (size_t page = 0; page < THREADS * EACH; page++)
        if (versions[page] > 0)
            check_page(memory + page * PAGE, page, versions[page], "at the end");
    puts("ok");
    return 0;
}
