/* A program that defines the functions for mappings itself, by syscall(2), as statically linked
 * tcmalloc does. They are exported, so libraries find them before their own.
 *
 *   own_mmap
 */
#define _GNU_SOURCE
#include "check.h"
#include <stdarg.h>
#include <sys/syscall.h>

void *mmap(void *at, size_t length, int access, int flags, int file, off_t offset)
{
    return (void *)syscall(SYS_mmap, at, length, access, flags, file, offset);
}

int munmap(void *at, size_t length) { return (int)syscall(SYS_munmap, at, length); }

int mprotect(void *at, size_t length, int access)
{
    return (int)syscall(SYS_mprotect, at, length, access);
}

void *mremap(void *at, size_t old, size_t length, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    void *target = va_arg(rest, void *);
    va_end(rest);
    return (void *)syscall(SYS_mremap, at, old, length, flags, target);
}

int main(void)
{
    size_t pages = 24 * MIB / PAGE;
    unsigned char *memory = map_pages(pages / 2);
    memory = mremap(memory, pages / 2 * PAGE, pages * PAGE, MREMAP_MAYMOVE, NULL);
    MUST(memory != MAP_FAILED);
    for (size_t page = 0; page < pages; page++)
        fill_page(memory + page * PAGE, page, 1);
    MUST(mprotect(memory, pages * PAGE, PROT_READ) == 0);
    for (size_t page = 0; page < pages; page++)
        check_page(memory + page * PAGE, page, 1, "of its own mmap");
    MUST(munmap(memory, pages * PAGE) == 0);
    puts("ok");
    return 0;
}
