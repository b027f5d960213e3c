/* A program that brings its own malloc, and paged memory beside it: what strdup and strndup return
 * is freed by that malloc's free, so it must be of its pool. Usage: own_malloc MIB. */
#include "check.h"

enum { POOL = 16 << 20, STRINGS = 1000 };
static _Alignas(16) unsigned char pool[POOL];
static size_t used;

static int is_own(const void *at)
{
    return (const unsigned char *)at >= pool && (const unsigned char *)at < pool + POOL;
}

/* Never gives anything back. The bytes of a block are in the word before it. */
void *malloc(size_t size)
{
    size_t whole = (size + 31) / 16 * 16;
    size_t at = __atomic_fetch_add(&used, whole, __ATOMIC_RELAXED);
    if (at + whole > POOL)
        return NULL;
    *(size_t *)(pool + at) = size;
    return pool + at + 16;
}

void *calloc(size_t count, size_t size)
{
    /* The pool is zero until it is used, and never used twice. */
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

int main(int count, char **arguments)
{
    MUST(count == 2);
    size_t pages = number(arguments[1]) * MIB / PAGE;
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
    for (size_t i = 0; i < pages; i++)
        check_page(paged + i * PAGE, i, 1, "own_malloc");
    printf("%d strings of a malloc of its own\n", STRINGS);
    return 0;
}
