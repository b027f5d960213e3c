/* A library whose fork handlers, registered when it is loaded, read memory in the child, as the
 * handlers of some allocators do. Without LIBRARY: the program linked with it.   handlers MIB */
#define _GNU_SOURCE
#include "check.h"

void remember(void *pages, size_t count);

#ifdef LIBRARY

#include <pthread.h>

static unsigned char *remembered;
static size_t remembered_count;

static void look(void)
{
    for (size_t i = 0; i < remembered_count; i++)
        check_page(remembered + i * PAGE, i, 1, "handler");
}

__attribute__((constructor))
static void begin(void)
{
    MUST(pthread_atfork(look, look, look) == 0);
}

void remember(void *pages, size_t count)
{
    remembered = pages;
    remembered_count = count;
}

#else

#include <sys/wait.h>

int main(int count, char **arguments)
{
    if (count != 2)
        die("usage: handlers MIB");
    size_t pages = number(arguments[1]) * MIB / PAGE;
    unsigned char *block = malloc(pages * PAGE);
    MUST(block);
    for (size_t i = 0; i < pages; i++)
        fill_page(block + i * PAGE, i, 1);
    remember(block, pages);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0)
            _exit(0);
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (status != 0)
            die("child %d: status %x", i, status);
    }
    free(block);
    printf("%zu pages in 3 processes\n", pages);
    return 0;
}

#endif
