/* Mappings of files for reading:   mapped MIB [SECTION...]
 * Makes a file of MIB in the working directory; every section maps it, or a file of its own. */
#define _GNU_SOURCE
#include "sections.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The last page is partial. */
#define MISSING 1234ul
#define NAME "mapped.data"

static size_t file_pages;

static uint64_t word_of(size_t page, size_t word)
{
    return mix(page * WORDS + word + 1);
}

static size_t bytes_of(size_t pages)
{
    return pages * PAGE - MISSING;
}

static void make_file(const char *name, size_t pages)
{
    FILE *file = fopen(name, "w");
    MUST(file);
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 0; word < WORDS; word++) {
            uint64_t value = word_of(page, word);
            MUST(fwrite(&value, sizeof value, 1, file) == 1);
        }
    MUST(fflush(file) == 0 && ftruncate(fileno(file), (off_t)bytes_of(pages)) == 0);
    MUST(fsync(fileno(file)) == 0 && fclose(file) == 0);
}

static int open_file(const char *name)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    MUST(fd >= 0);
    return fd;
}

/* Maps pages of a file, and closes it. */
static const uint64_t *map(const char *name, int kind, size_t first, size_t pages)
{
    int fd = open_file(name);
    void *address = mmap(NULL, pages * PAGE, PROT_READ, kind, fd, (off_t)(first * PAGE));
    MUST(address != MAP_FAILED && close(fd) == 0);
    return address;
}

/* A page at `at` is page `page` of a file of `pages` pages; returns a word of it. */
static uint64_t page_is(const uint64_t *at, size_t page, size_t pages)
{
    size_t whole = page + 1 == pages ? (PAGE - MISSING) / sizeof(uint64_t) : WORDS;
    for (size_t word = 0; word < whole; word++)
        if (at[word] != word_of(page, word))
            die("word %zu of page %zu is %llx", word, page, (unsigned long long)at[word]);
    const unsigned char *bytes = (const unsigned char *)at;
    for (size_t byte = PAGE - MISSING; page + 1 == pages && byte < PAGE; byte++)
        if (bytes[byte] != 0)
            die("byte %zu behind the end", byte);
    return at[7];
}

static uint64_t check(const uint64_t *at, size_t first, size_t count, size_t pages)
{
    uint64_t hash = 0;
    for (size_t page = 0; page < count; page++)
        hash = mix(hash ^ page_is(at + page * WORDS, first + page, pages));
    return hash;
}

static uint64_t scan(size_t pages)
{
    uint64_t hash = 0, state = 1;
    int kinds[] = { MAP_SHARED, MAP_PRIVATE, MAP_SHARED | MAP_POPULATE };
    for (int turn = 0; turn < 3; turn++) {
        const uint64_t *at = map(NAME, kinds[turn], 0, pages);
        hash = mix(hash ^ check(at, 0, pages, pages));
        for (int i = 0; i < 3000; i++) {
            size_t page = next_random(&state) % pages;
            hash = mix(hash ^ page_is(at + page * WORDS, page, pages));
        }
        MUST(munmap((void *)at, bytes_of(pages)) == 0);
    }
    return hash;
}

/* Two mappings at once, from different pages on. */
static uint64_t offsets(size_t pages)
{
    const uint64_t *a = map(NAME, MAP_PRIVATE, 37, pages - 37);
    const uint64_t *b = map(NAME, MAP_SHARED, pages / 2, 100);
    uint64_t hash = 0;
    for (int turn = 0; turn < 2; turn++) {
        hash = mix(hash ^ check(a, 37, pages - 37, pages));
        hash = mix(hash ^ check(b, pages / 2, 100, pages));
    }
    MUST(madvise((void *)a, 200 * PAGE, MADV_DONTNEED) == 0);
    MUST(madvise((void *)(a + 200 * WORDS), 300 * PAGE, MADV_WILLNEED) == 0);
    hash = mix(hash ^ check(a, 37, 600, pages));
    /* Unmap the rest of a mapping that was cut. */
    MUST(munmap((void *)(a + 50 * WORDS), 100 * PAGE) == 0);
    hash = mix(hash ^ check(a, 37, 50, pages));
    hash = mix(hash ^ check(a + 150 * WORDS, 187, 500, pages));
    MUST(munmap((void *)a, (pages - 37) * PAGE) == 0);
    const uint64_t *c = mremap((void *)b, 100 * PAGE, 300 * PAGE, MREMAP_MAYMOVE);
    MUST(c != MAP_FAILED);
    hash = mix(hash ^ check(c, pages / 2, 300, pages));
    MUST(munmap((void *)c, 300 * PAGE) == 0);
    const uint64_t *d = map(NAME, MAP_SHARED, 5, 200);
    hash = mix(hash ^ check(d, 5, 200, pages));
    MUST(mremap((void *)d, 200 * PAGE, 60 * PAGE, 0) == d);
    hash = mix(hash ^ check(d, 5, 60, pages));
    MUST(munmap((void *)d, 60 * PAGE) == 0);
    return hash;
}

static sigjmp_buf back;
static volatile sig_atomic_t caught;
static void *volatile where;

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    caught = number;
    where = info->si_addr;
    siglongjmp(back, 1);
}

/* The signal that an access raises, at its own address. */
static int signal_of(volatile char *at, int writes)
{
    caught = 0;
    if (sigsetjmp(back, 1) == 0) {
        if (writes)
            *at = 1;
        else
            (void)*at;
    }
    if (caught != 0 && where != (void *)at)
        die("signal %d at %p instead of %p", (int)caught, where, (void *)at);
    return caught;
}

static void catch_signals(void)
{
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
    MUST(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
}

/* Writes are refused; a private mapping can be made writable. */
static uint64_t writes(size_t pages)
{
    catch_signals();
    uint64_t hash = 0;
    for (int turn = 0; turn < 2; turn++) {
        int kind = turn == 0 ? MAP_SHARED : MAP_PRIVATE;
        char *at = (char *)map(NAME, kind, 0, pages);
        hash = mix(hash ^ check((uint64_t *)at, 0, 40, pages));
        size_t places[] = { 3, 200, pages - 1 };
        for (int i = 0; i < 3; i++) {
            MUST(signal_of(at + places[i] * PAGE + 5, 1) == SIGSEGV);
            MUST(signal_of(at + places[i] * PAGE + 5, 0) == 0);
        }
        int zeros = open_file("/dev/zero");
        MUST(read(zeros, at + 20 * PAGE, 10) == -1 && errno == EFAULT && close(zeros) == 0);
        MUST(mprotect(at + 10 * PAGE, PAGE, PROT_NONE) == 0);
        MUST(signal_of(at + 10 * PAGE, 0) == SIGSEGV);
        MUST(mprotect(at + 10 * PAGE, PAGE, PROT_READ) == 0);
        hash = mix(hash ^ check((uint64_t *)at, 0, pages, pages));
        int writable = mprotect(at + 30 * PAGE, 10 * PAGE, PROT_READ | PROT_WRITE);
        if (kind == MAP_SHARED) {
            MUST(writable == -1 && errno == EACCES);
        } else {
            MUST(writable == 0);
            memset(at + 35 * PAGE, 7, PAGE);
            MUST(at[35 * PAGE + 9] == 7);
            hash = mix(hash ^ check((uint64_t *)at, 0, 35, pages));
            hash = mix(hash ^ check((uint64_t *)(at + 36 * PAGE), 36, pages - 36, pages));
            MUST(madvise(at + 35 * PAGE, PAGE, MADV_DONTNEED) == 0);
        }
        hash = mix(hash ^ check((uint64_t *)at, 0, pages, pages));
        MUST(munmap(at, pages * PAGE) == 0);
    }
    return hash;
}

/* Beyond the end of the file, and after the file was truncated. */
static uint64_t ends(size_t pages)
{
    catch_signals();
    (void)pages;
    make_file("short.data", 100);
    char *at = (char *)map("short.data", MAP_SHARED, 0, 140);
    uint64_t hash = check((uint64_t *)at, 0, 100, 100);
    MUST(signal_of(at + 100 * PAGE, 0) == SIGBUS && signal_of(at + 139 * PAGE, 0) == SIGBUS);
    MUST(munmap(at, 140 * PAGE) == 0);
    at = (char *)map("short.data", MAP_SHARED, 0, 100);
    hash = mix(hash ^ check((uint64_t *)at, 0, 4, 100));
    MUST(truncate("short.data", 60 * PAGE) == 0);
    MUST(signal_of(at + 90 * PAGE, 0) == SIGBUS && signal_of(at + 61 * PAGE, 0) == SIGBUS);
    hash = mix(hash ^ check((uint64_t *)at, 0, 60, 100));
    MUST(munmap(at, 100 * PAGE) == 0 && unlink("short.data") == 0);
    return hash;
}

static uint64_t child_of(pid_t child)
{
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("the child ended with %d", status);
    return mix(1);
}

static uint64_t forks(size_t pages)
{
    const uint64_t *at = map(NAME, MAP_SHARED, 3, pages - 3);
    uint64_t hash = check(at, 3, pages / 2, pages);
    unsigned char *own = malloc(8 * MIB);
    memset(own, 5, 8 * MIB);
    pid_t child = fork();
    if (child == 0) {
        check(at, 3, pages - 3, pages);
        const uint64_t *more = map(NAME, MAP_PRIVATE, 0, pages);
        check(more, 0, pages, pages);
        for (size_t byte = 0; byte < 8 * MIB; byte++)
            if (own[byte] != 5)
                die("byte %zu of the heap", byte);
        MUST(munmap((void *)at, (pages - 3) * PAGE) == 0);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            check(more, 0, pages, pages);
            _exit(0);
        }
        child_of(grandchild);
        _exit(0);
    }
    hash = mix(hash ^ check(at, 3, pages - 3, pages));
    hash ^= child_of(child);
    MUST(munmap((void *)at, (pages - 3) * PAGE) == 0);
    free(own);
    return hash;
}

/* More mappings at once than can be served; some are left to the kernel. */
static uint64_t many(size_t pages)
{
    enum { MANY = 300 };
    static const uint64_t *at[MANY];
    uint64_t hash = 0;
    for (int turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < MANY; i++)
            at[i] = map(NAME, MAP_SHARED, i, 20 + i % 50);
        for (size_t i = 0; i < MANY; i++)
            hash = mix(hash ^ check(at[i], i, 20 + i % 50, pages));
        for (size_t i = 0; i < MANY; i++)
            MUST(munmap((void *)at[(i * 7) % MANY], (20 + (i * 7) % MANY % 50) * PAGE) == 0);
    }
    return hash;
}

/* Maps, reads and unmaps, with blocks of memory at the same addresses in between. */
static void *comes_and_goes(void *argument)
{
    size_t pages = file_pages, number = (size_t)argument;
    uint64_t state = number, hash = 0;
    for (int turn = 0; turn < 60; turn++) {
        size_t first = next_random(&state) % (pages / 2);
        size_t count = 20 + next_random(&state) % 500;
        const uint64_t *at = map(NAME, turn % 2 ? MAP_SHARED : MAP_PRIVATE, first, count);
        size_t looked = next_random(&state) % count;
        hash = mix(hash ^ check(at, first, looked, pages));
        MUST(madvise((void *)at, count * PAGE, MADV_WILLNEED) == 0);
        MUST(munmap((void *)at, count * PAGE) == 0);
        unsigned char *block = malloc(count * PAGE);
        MUST(block);
        memset(block, (int)(number + 1), count * PAGE);
        for (size_t byte = 0; byte < count * PAGE; byte += 64)
            if (block[byte] != number + 1)
                die("byte %zu of a block", byte);
        free(block);
    }
    return (void *)(uintptr_t)hash;
}

static uint64_t threads(size_t pages)
{
    enum { THREADS = 4 };
    pthread_t all[THREADS];
    uint64_t hash = 0;
    file_pages = pages;
    for (size_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&all[i], NULL, comes_and_goes, (void *)i) == 0);
    for (size_t i = 0; i < THREADS; i++) {
        void *one;
        MUST(pthread_join(all[i], &one) == 0);
        hash = mix(hash ^ (uintptr_t)one);
    }
    return hash;
}

/* Closing any descriptor of a file drops its POSIX locks; Highwater's must not. */
static uint64_t locks(size_t pages)
{
    make_file("locked.data", 200);
    for (int turn = 0; turn < 2; turn++) {
        int fd = open_file("locked.data");
        struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
        const uint64_t *at = NULL;
        if (turn == 1)
            at = mmap(NULL, 200 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
        MUST(fcntl(fd, F_SETLK, &lock) == 0);
        if (turn == 0)
            at = mmap(NULL, 200 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
        MUST(at != MAP_FAILED);
        check(at, 0, 200, 200);
        MUST(munmap((void *)at, 200 * PAGE) == 0);
        pid_t child = fork();
        if (child == 0) {
            int own = open("locked.data", O_RDWR);
            struct flock asked = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
            MUST(own >= 0 && fcntl(own, F_GETLK, &asked) == 0 && asked.l_type == F_RDLCK);
            _exit(0);
        }
        child_of(child);
        MUST(close(fd) == 0);
    }
    MUST(unlink("locked.data") == 0);
    return mix(pages);
}

int main(int count, char **arguments)
{
    static const struct section sections[] = {
        { "scan", scan },   { "offsets", offsets }, { "writes", writes },   { "ends", ends },
        { "forks", forks }, { "many", many },       { "threads", threads }, { "locks", locks },
        { NULL, NULL },
    };
    if (count < 2)
        die("usage: %s MIB [SECTION...]", arguments[0]);
    make_file(NAME, number(arguments[1]) * MIB / PAGE);
    int status = run_sections(sections, count, arguments);
    MUST(unlink(NAME) == 0);
    return status;
}
