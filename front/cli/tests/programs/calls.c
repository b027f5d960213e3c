/* Prints the results of memory calls, one line each:   calls [number]
 *
 * With `number` by syscall(2), not by the functions of the C library.
 *
 * Makes every call of the mmap family on mapped pages, on unmapped pages, and on both; and with
 * wrong lengths and addresses. The lines are the same wherever the addresses lie.
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { PAGES = 64 };

static int by_number;

#define mmap(address, length, access, flags, file, offset) \
    (by_number ? (void *)syscall(SYS_mmap, address, length, access, flags, file, offset) \
               : mmap(address, length, access, flags, file, offset))
#define munmap(address, length) \
    (by_number ? (int)syscall(SYS_munmap, address, length) : munmap(address, length))
#define mprotect(address, length, access) \
    (by_number ? (int)syscall(SYS_mprotect, address, length, access) \
               : mprotect(address, length, access))
#define mremap(address, old, length, ...) \
    (by_number ? (void *)syscall(SYS_mremap, address, old, length, __VA_ARGS__) \
               : mremap(address, old, length, __VA_ARGS__))

static const int PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS, BOTH = PROT_READ | PROT_WRITE;

static void say(const char *what, long result, int error)
{
    printf("%-44s %ld %s\n", what, result, result == -1 ? strerrorname_np(error) : "");
}

#define CALL(call) \
    do { \
        errno = 0; \
        long result = (call); \
        say(#call, result, errno); \
    } while (0)
/* Prints whether a returned address is the expected one. */
#define PLACE(call, expected) \
    do { \
        errno = 0; \
        void *at = (call); \
        int error = errno; \
        say(#call, at == MAP_FAILED ? -1 : at == (void *)(expected), error); \
    } while (0)

/* Pages 0 to 63, of which 16 to 31 and 48 to 63 are not mapped. */
static unsigned char *mixed(void)
{
    unsigned char *area = mmap(NULL, PAGES * PAGE, BOTH, PRIVATE, -1, 0);
    MUST(area != MAP_FAILED);
    for (size_t i = 0; i < PAGES; i++)
        area[i * PAGE] = (unsigned char)(i + 1);
    MUST(munmap(area + 16 * PAGE, 16 * PAGE) == 0);
    MUST(munmap(area + 48 * PAGE, 16 * PAGE) == 0);
    return area;
}

static void look(unsigned char *area, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        printf("%d ", area[i * PAGE]);
    printf("\n");
}

static void advice(unsigned char *p)
{
    unsigned char *hole = p + 16 * PAGE;
    unsigned char vec[PAGES];
    CALL(mincore(p, 16 * PAGE, vec));
    CALL(mincore(hole, PAGE, vec));
    CALL(mincore(p, 32 * PAGE, vec));
    CALL(mincore(p + 1, PAGE, vec));
    CALL(mincore(p, PAGE, (unsigned char *)8));
    CALL(mincore(p, 0, vec));
    CALL(msync(p, 16 * PAGE, MS_SYNC));
    CALL(msync(p, 32 * PAGE, MS_SYNC));
    CALL(msync(hole, PAGE, MS_ASYNC));
    CALL(msync(p, PAGE, MS_SYNC | MS_ASYNC));
    CALL(msync(p, PAGE, 8));
    CALL(msync(p + 1, PAGE, MS_SYNC));
    CALL(msync(hole, 0, MS_SYNC));
    CALL(madvise(hole, PAGE, MADV_NORMAL));
    CALL(madvise(hole, PAGE, MADV_DONTNEED));
    CALL(madvise(hole, PAGE, MADV_POPULATE_READ));
    CALL(madvise(hole, PAGE, 77));
    CALL(madvise(p, PAGE, 77));
    CALL(madvise(p + 1, PAGE, MADV_DONTNEED));
    CALL(madvise(p, (size_t)-1, MADV_DONTNEED));
    CALL(madvise(p, 0, MADV_DONTNEED));
    CALL(madvise(p + 14 * PAGE, 20 * PAGE, MADV_DONTNEED));
    look(p, 12, 16);
    look(p, 32, 36);
    CALL(madvise(p, PAGE, MADV_REMOVE));
    CALL(madvise(p, PAGE, MADV_WILLNEED));
    CALL(madvise(p, PAGE, MADV_DONTDUMP));
    CALL(posix_madvise(p, PAGE, POSIX_MADV_DONTNEED));
    CALL(posix_madvise(hole, PAGE, POSIX_MADV_SEQUENTIAL));
    CALL(posix_madvise(p, PAGE, 99));
    look(p, 0, 1);
}

static void protection(unsigned char *p)
{
    unsigned char *hole = p + 16 * PAGE;
    CALL(mprotect(hole, PAGE, PROT_READ));
    CALL(mprotect(p + 1, PAGE, PROT_READ));
    CALL(mprotect(p, 0, PROT_READ));
    CALL(mprotect(p, (size_t)-1, PROT_READ));
    CALL(mprotect(p, PAGE, 0x100));
    CALL(mprotect(p + 8 * PAGE, 10 * PAGE, PROT_READ));
    /* The call took effect up to the hole. */
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "abcdef", 6) == 6);
    CALL(read(ends[0], p + 7 * PAGE, 1));
    CALL(read(ends[0], p + 8 * PAGE, 1));
    CALL(read(ends[0], p + 15 * PAGE, 1));
    CALL(mprotect(p + 8 * PAGE, 8 * PAGE, BOTH));
    CALL(read(ends[0], p + 15 * PAGE, 1));
    CALL(mprotect(p, 2 * PAGE, PROT_NONE));
    CALL(madvise(p, PAGE, MADV_POPULATE_READ));
    CALL(write(ends[1], p, 1));
    CALL(mprotect(p, 2 * PAGE, BOTH));
    close(ends[0]);
    close(ends[1]);
}

static void moves(unsigned char *p)
{
    unsigned char *hole = p + 16 * PAGE;
    void *away = (void *)0x300000000000;
    PLACE(mremap(hole, PAGE, 2 * PAGE, MREMAP_MAYMOVE), 0);
    PLACE(mremap(p, 32 * PAGE, 33 * PAGE, MREMAP_MAYMOVE), 0);
    PLACE(mremap(p + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE), 0);
    PLACE(mremap(p, PAGE, 0, MREMAP_MAYMOVE), 0);
    PLACE(mremap(p, 0, PAGE, MREMAP_MAYMOVE), 0);
    PLACE(mremap(p, PAGE, PAGE, 64), 0);
    PLACE(mremap(p, PAGE, PAGE, MREMAP_FIXED, away), 0);
    PLACE(mremap(p, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p), 0);
    PLACE(mremap(p, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (char *)away + 1), 0);
    PLACE(mremap(p, PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP), 0);
    PLACE(mremap(p, 2 * PAGE, PAGE, 0), p);
    PLACE(mremap(p, PAGE, PAGE, 0), p);
    MUST(mprotect(p + 5 * PAGE, PAGE, PROT_NONE) == 0);
    PLACE(mremap(p + 4 * PAGE, PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, away), away);
    look(away, 0, 4);
    PLACE(mremap(away, 4 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, hole), hole);
    look(hole, 0, 2);
    hole[0] = 99;
    PLACE(mremap(p + 8 * PAGE, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, hole), hole);
    look(hole, 0, 2);
    CALL(mprotect(p + 8 * PAGE, PAGE, BOTH));
    CALL(munmap(away, 4 * PAGE));
    CALL(mprotect(hole, 2 * PAGE, PROT_READ));
    PLACE(mremap(hole, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, away), away);
    look(away, 0, 2);
    CALL(read(open("/dev/zero", O_RDONLY), away, 1));
    CALL(munmap(away, 2 * PAGE));
}

static void maps(unsigned char *p)
{
    unsigned char *hole = p + 16 * PAGE;
    void *away = (void *)0x310000000000;
    const int fixed = PRIVATE | MAP_FIXED, free_only = PRIVATE | MAP_FIXED_NOREPLACE;
    PLACE(mmap(NULL, 0, BOTH, PRIVATE, -1, 0), 0);
    PLACE(mmap(NULL, (size_t)-1, BOTH, PRIVATE, -1, 0), 0);
    PLACE(mmap(NULL, (size_t)1 << 47, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0), 0);
    PLACE(mmap(NULL, PAGE, BOTH, PRIVATE, -1, 1), 0);
    PLACE(mmap(NULL, PAGE, BOTH, MAP_ANONYMOUS, -1, 0), 0);
    PLACE(mmap(p + 1, PAGE, BOTH, fixed, -1, 0), 0);
    PLACE(mmap(p, 0, BOTH, fixed, -1, 0), 0);
    PLACE(mmap(p, PAGE, BOTH, MAP_PRIVATE | MAP_FIXED, -1, 0), 0);
    look(p, 0, 1);
    PLACE(mmap(p + 15 * PAGE, 2 * PAGE, BOTH, free_only, -1, 0), 0);
    PLACE(mmap(hole, 17 * PAGE, BOTH, free_only, -1, 0), 0);
    PLACE(mmap(hole, 2 * PAGE, BOTH, free_only, -1, 0), hole);
    PLACE(mmap(hole, 2 * PAGE, BOTH, free_only, -1, 0), 0);
    PLACE(mmap(p + 15 * PAGE, 4 * PAGE, PROT_READ, fixed, -1, 0), p + 15 * PAGE);
    look(p, 14, 19);
    PLACE(mmap(p + 3 * PAGE, PAGE, BOTH, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
          p + 3 * PAGE);
    p[3 * PAGE] = 33;
    PLACE(mmap(p + 3 * PAGE, PAGE, BOTH, free_only, -1, 0), 0);
    CALL(madvise(p + 2 * PAGE, 3 * PAGE, MADV_DONTNEED));
    look(p, 1, 6);
    PLACE(mmap(p + 2 * PAGE, 3 * PAGE, BOTH, fixed, -1, 0), p + 2 * PAGE);
    look(p, 1, 6);
    PLACE(mmap(away, PAGE, BOTH, PRIVATE, -1, 0), away);
    CALL(munmap(away, PAGE));
    PLACE(mmap(hole + 8 * PAGE, PAGE, BOTH, PRIVATE, -1, 0), hole + 8 * PAGE);
    CALL(munmap(p + 1, PAGE));
    CALL(munmap(p, 0));
    CALL(munmap(p, (size_t)-1));
    CALL(munmap(hole, 4 * PAGE));
    CALL(munmap(hole, 4 * PAGE));
    CALL(munmap(p + 10 * PAGE, 30 * PAGE));
    look(p, 40, 42);
}

/* Reservations, as made by engines that keep their addresses together. */
static void reservations(void)
{
    const int reserve = PRIVATE | MAP_NORESERVE;
    size_t count = 0;
    unsigned char *huge = mmap(NULL, 8ul << 40, PROT_NONE, reserve, -1, 0);
    printf("8 TiB: %s\n", huge == MAP_FAILED ? "refused" : "done");
    while (count < 60 && mmap(NULL, 10ul << 30, PROT_NONE, reserve, -1, 0) != MAP_FAILED)
        count++;
    printf("10 GiB: %zu times\n", count);
    unsigned char *part = huge + (5ul << 40);
    CALL(mprotect(part, 4 * PAGE, BOTH));
    part[PAGE] = 7;
    PLACE(mmap(part + 8 * PAGE, 4 * PAGE, BOTH, PRIVATE | MAP_FIXED, -1, 0), part + 8 * PAGE);
    part[9 * PAGE] = 8;
    look(part, 0, 3);
    look(part, 8, 11);
    CALL(munmap(huge, 8ul << 40));
}

/* Advice about forked children. */
static void children(void)
{
    unsigned char *p = mixed();
    CALL(madvise(p, PAGE, MADV_DONTFORK));
    CALL(madvise(p + PAGE, PAGE, MADV_WIPEONFORK));
    CALL(madvise(p + 2 * PAGE, 2 * PAGE, MADV_DONTFORK));
    CALL(madvise(p + 3 * PAGE, PAGE, MADV_DOFORK));
    CALL(madvise(p + 4 * PAGE, 2 * PAGE, MADV_WIPEONFORK));
    CALL(madvise(p + 5 * PAGE, PAGE, MADV_KEEPONFORK));
    CALL(madvise(p + 16 * PAGE, PAGE, MADV_WIPEONFORK));
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        unsigned char vec[1];
        for (size_t i = 0; i < 7; i++) {
            errno = 0;
            int mapped = mincore(p + i * PAGE, PAGE, vec) == 0;
            printf("child's page %zu: %s %d\n", i, mapped ? "mapped" : strerrorname_np(errno),
                   mapped ? p[i * PAGE] : 0);
        }
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    look(p, 0, 7);
}

/* Mappings of more than the limit, one of which grows. */
static void large(void)
{
    size_t pages = 8 * MIB / PAGE;
    unsigned char *maps[] = {NULL, NULL};
    for (size_t which = 0; which < 2; which++) {
        maps[which] = mmap(NULL, pages * PAGE, BOTH, PRIVATE, -1, 0);
        MUST(maps[which] != MAP_FAILED);
        for (size_t page = 0; page < pages; page++)
            fill_page(maps[which] + page * PAGE, page, which);
    }
    maps[0] = mremap(maps[0], pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
    MUST(maps[0] != MAP_FAILED);
    for (size_t which = 0; which < 2; which++)
        for (size_t page = 0; page < pages; page++)
            check_page(maps[which] + page * PAGE, page, which, "of large mappings");
    CALL(munmap(maps[0], 2 * pages * PAGE));
    CALL(munmap(maps[1], pages * PAGE));
}

int main(int count, char **arguments)
{
    by_number = count > 1 && strcmp(arguments[1], "number") == 0;
    unsigned char *served = mmap(NULL, MIB, BOTH, PRIVATE, -1, 0);
    MUST(served != MAP_FAILED);
    served[0] = 1;
    advice(mixed());
    protection(mixed());
    moves(mixed());
    maps(mixed());
    reservations();
    children();
    large();
    return 0;
}
