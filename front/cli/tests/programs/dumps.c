/* Ends with a core file:   dumps DIRECTORY MIB
 *
 * Writes MIB and a marker, keeps the end of the marker in pages that stay in memory, and aborts.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sys/prctl.h>
#include <sys/resource.h>

int main(int count, char **arguments)
{
    if (count != 3)
        die("usage: dumps DIRECTORY MIB");
    struct rlimit limit;
    MUST(chdir(arguments[1]) == 0 && getrlimit(RLIMIT_CORE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    MUST(setrlimit(RLIMIT_CORE, &limit) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    size_t pages = number(arguments[2]) * MIB / PAGE;
    unsigned char *area = map_pages(pages), *secret = map_pages(16);
    for (size_t i = 0; i < pages; i++)
        fill_page(area + i * PAGE, i, 1);
    /* In two steps: the program's own text is in the core file, too. */
    char *marker = (char *)area + (pages - 1) * PAGE;
    strcpy(marker, "in use: ");
    strcat(marker, "8bd1a6f2");
    MUST(madvise(secret, 16 * PAGE, MADV_DONTDUMP) == 0);
    strcpy((char *)secret, "left out: ");
    strcat((char *)secret, "8bd1a6f2");
    abort();
}
