/* A program with a malloc of its own, and paged memory. Its free gets the blocks of strdup and
 * strndup, so these must come from the program's pool. The pool is mapped with the malloc's lock
 * held, as in other mallocs: a thread that calls this malloc to serve that mapping deadlocks. A
 * fork holds the lock, too. Usage: own_malloc MIB. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

enum { POOL = 16 << 20, STRINGS = 1000 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *pool;
static size_t used;

static int is_own(const void *at)
{
    return pool && (const unsigned char *)at >= pool && (const unsigned char *)at < pool + POOL;
}

/* Never reuses memory. A block's size is in the word before it. */
void *malloc(size_t size)
{
    size_t whole = (size + 31) / 16 * 16;
    pthread_mutex_lock(&lock);
    if (!pool)
        pool = map_pages(POOL / PAGE);
    size_t at = used;
    used += at + whole > POOL ? 0 : whole;
    pthread_mutex_unlock(&lock);
    if (at + whole > POOL)
        return NULL;
    *(size_t *)(pool + at) = size;
    return pool + at + 16;
}

void *calloc(size_t count, size_t size)
{
    /* The pool is zero until it is used, and no part of it is used twice. */
    return malloc(count * size);
}

void free(void *at)
{
    if (at && !is_own(at))
        die("free of %p, which is not of this malloc", at);
}

void *realloc(void *at, size_t size)
{
    void *new = malloc(size);
    if (at && new) {
        size_t had = ((size_t *)at)[-2];
        memcpy(new, at, had < size ? had : size);
    }
    return new;
}

static void hold(void) { pthread_mutex_lock(&lock); }
static void let_go(void) { pthread_mutex_unlock(&lock); }

static void check_pages(const unsigned char *paged, size_t pages, const char *whose)
{
    for (size_t i = 0; i < pages; i++)
        check_page(paged + i * PAGE, i, 1, whose);
}

int main(int count, char **arguments)
{
    MUST(count == 2);
    size_t pages = number(arguments[1]) * MIB / PAGE;
    /* Maps the pool, the first paged memory. */
    MUST(is_own(malloc(1)));
    unsigned char *paged = map_pages(pages);
    for (size_t i = 0; i < pages; i++)
        fill_page(paged + i * PAGE, i, 1);
    for (int i = 0; i < STRINGS; i++) {
        char text[32];
        snprintf(text, sizeof text, "string %d of many", i);
        char *whole = strdup(text), *part = strndup(text, 8);
        MUST(whole && part && is_own(whole) && is_own(part));
        MUST(strcmp(whole, text) == 0 && strncmp(part, text, 8) == 0 && strlen(part) <= 8);
        free(whole);
        free(part);
    }
    MUST(pthread_atfork(hold, let_go, let_go) == 0);
    pid_t child = fork();
    MUST(child >= 0);
    check_pages(paged, pages, child ? "parent" : "child");
    if (child == 0)
        _exit(0);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    printf("%d strings of a malloc of its own\n", STRINGS);
    return 0;
}
