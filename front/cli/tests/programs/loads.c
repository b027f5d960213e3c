/* Memory that is first used while a library is being loaded:   loads LIBRARY
 *
 * Compiled with -DLIBRARY it is that library. Its constructor allocates and fills memory under the
 * dynamic loader's lock; the threads that serve its faults must not need that lock.
 */
#include "check.h"

#define PAGES (24 * MIB / PAGE)

#ifdef LIBRARY

static void *pages;

__attribute__((constructor)) static void load(void)
{
    pages = map_pages(PAGES);
    for (size_t page = 0; page < PAGES; page++)
        fill_page(pages + page * PAGE, page, 1);
}

uint64_t checked_sum(void)
{
    for (size_t page = 0; page < PAGES; page++)
        check_page(pages + page * PAGE, page, 1, "constructor");
    return hash_bytes(0, pages, PAGES * PAGE);
}

#else

#include <dlfcn.h>

int main(int count, char **arguments)
{
    if (count != 2)
        die("usage: loads LIBRARY");
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (!library)
        die("%s", dlerror());
    uint64_t (*checked_sum)(void) = (uint64_t (*)(void))dlsym(library, "checked_sum");
    MUST(checked_sum);
    printf("%016llx\n", (unsigned long long)checked_sum());
    return 0;
}

#endif
