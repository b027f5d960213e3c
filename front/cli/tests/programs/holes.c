/* One thread unmaps memory, uses other memory, and maps the first again at its old addresses:
 * meanwhile, no other mapping was placed there.   holes PAGED_MIB
 *
 * The manager works in this program's address space, and its memory grows while the program waits
 * for its pages. The kernel would place this memory in the holes.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sys/wait.h>

enum { SIZES = 15, OF_EACH = 4, HOLES = SIZES * OF_EACH };

struct hole {
    unsigned char *at;
    size_t size;
};

static struct hole holes[HOLES];

/* The line of /proc/self/maps about an address. */
static const char *mapping_at(const unsigned char *at)
{
    static char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    uintptr_t first, end;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &first, &end) == 2 && end > (uintptr_t)at)
            return line;
    return "?";
}

/* From one page to 64 MiB; shared, so that the mappings are not paged, and close to each other. */
static void make_holes(void)
{
    for (size_t i = 0; i < HOLES; i++) {
        struct hole *hole = &holes[i];
        hole->size = PAGE << i / OF_EACH;
        hole->at = mmap(NULL, hole->size + PAGE, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        MUST(hole->at != MAP_FAILED);
    }
    for (size_t i = 0; i < HOLES; i++)
        MUST(munmap(holes[i].at, holes[i].size) == 0);
}

static void fill_holes(void)
{
    int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    for (size_t i = 0; i < HOLES; i++) {
        struct hole *hole = &holes[i];
        if (mmap(hole->at, hole->size, PROT_READ | PROT_WRITE, flags, -1, 0) != hole->at)
            die("%zu KiB at %p: %s: %s", hole->size >> 10, hole->at, strerror(errno),
                mapping_at(hole->at));
        fill_page(hole->at, i, 1);
    }
}

static void use(unsigned char *paged, size_t pages, uint32_t version)
{
    for (size_t page = 0; page < pages; page++) {
        check_page(paged + page * PAGE, page, version - 1, "a page");
        fill_page(paged + page * PAGE, page, version);
    }
}

int main(int argc, char **argv)
{
    size_t pages = number(argc == 2 ? argv[1] : "") * MIB / PAGE;
    unsigned char *paged = map_pages(pages);
    for (uint32_t round = 0; round < 3; round++) {
        make_holes();
        use(paged, pages, 1 + 2 * round);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        int status;
        MUST(waitpid(child, &status, 0) == child && status == 0);
        use(paged, pages, 2 + 2 * round);
        fill_holes();
        for (size_t i = 0; i < HOLES; i++)
            MUST(munmap(holes[i].at, holes[i].size + PAGE) == 0);
    }
    printf("%zu pages, %d holes: ok\n", pages, HOLES);
    return 0;
}
