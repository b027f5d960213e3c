// A program that goes on without pages that could not be read: it handles SIGBUS, and checks that
// every other page has its contents. argv[1]: MiB. Everything it needs besides the pages is static:
// memory from malloc may be lost as well.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
#define THREADS 4

static unsigned char *base;
static size_t pages;
static unsigned char lost[1 << 16];
static int ends[2];

static _Thread_local sigjmp_buf back;
static _Thread_local void *volatile at;
static _Thread_local volatile int code;
static _Thread_local volatile int in_call;

#define MUST(condition) \
    do { \
        if (!(condition)) { \
            dprintf(2, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
            _exit(3); \
        } \
    } while (0)

static int is_blocked(int signal)
{
    sigset_t now;
    MUST(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
    return sigismember(&now, signal);
}

static void on_bus(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    MUST(is_blocked(SIGUSR1) && !in_call);
    at = info->si_addr;
    code = info->si_code;
    siglongjmp(back, 1);
}

// A handler that puts a new page in the place of the lost one, and returns.
static void repair(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    void *page = (void *)((uintptr_t)info->si_addr / PAGE * PAGE);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    MUST(mmap(page, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == page);
}

static void handle(void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaddset(&action.sa_mask, SIGUSR1);
    MUST(sigaction(SIGBUS, &action, NULL) == 0);
}

static uint64_t word(size_t page, size_t index)
{
    return (page << 20 | index) * 0x9e3779b97f4a7c15;
}

static void fill(size_t page)
{
    uint64_t *words = (uint64_t *)(base + page * PAGE);
    for (size_t i = 0; i < WORDS; i++)
        words[i] = word(page, i);
}

static void check_signal(const void *address)
{
    // A kernel without CONFIG_MEMORY_FAILURE gives the address only.
    MUST(code == BUS_MCEERR_AR || code == BUS_ADRERR);
    MUST((uintptr_t)at / PAGE == (uintptr_t)address / PAGE);
    MUST(!is_blocked(SIGUSR1));
}

// Whether a load of the byte succeeds; where it does not, SIGBUS says which page is lost.
static int loads(const void *address)
{
    if (sigsetjmp(back, 1)) {
        check_signal(address);
        return 0;
    }
    (void)*(const volatile unsigned char *)address;
    return 1;
}

static int stores(void *address)
{
    if (sigsetjmp(back, 1)) {
        check_signal(address);
        return 0;
    }
    *(volatile unsigned char *)address = 7;
    return 1;
}

// Checks a page that may be lost; one that is known to be lost stays so.
static int check(size_t page)
{
    const uint64_t *words = (const uint64_t *)(base + page * PAGE);
    int there = loads(words + page % WORDS);
    MUST(!(there && lost[page]));
    if (!there) {
        lost[page] = 1;
        return 0;
    }
    // It may have been evicted meanwhile, and be lost now.
    for (size_t i = 0; i < WORDS; i += 64) {
        if (!loads(words + i)) {
            lost[page] = 1;
            return 0;
        }
        MUST(words[i] == word(page, i));
    }
    return 1;
}

static size_t mixed(size_t index)
{
    return (index * 2654435761u) % pages;
}

static void *check_part(void *part)
{
    for (size_t i = (size_t)part; i < pages; i += THREADS)
        check(mixed(i));
    return NULL;
}

static void check_by_threads(void)
{
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, check_part, (void *)i) == 0);
    for (size_t i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
}

static size_t count_lost(void)
{
    size_t count = 0;
    for (size_t page = 0; page < pages; page++)
        count += lost[page];
    return count;
}

static size_t next_lost(size_t from)
{
    while (from < pages && !lost[from])
        from++;
    MUST(from < pages);
    return from;
}

static void drain(size_t page, ssize_t len)
{
    static uint64_t got[WORDS];
    MUST(read(ends[0], got, sizeof(got)) == len);
    for (size_t i = 0; i < len / sizeof(uint64_t); i++)
        MUST(got[i] == word(page, i));
}

// System calls find lost pages, too, also those that the program has not accessed before.
static void pass_to_kernel(size_t page)
{
    unsigned char *address = base + page * PAGE;
    ssize_t sent = write(ends[1], address, PAGE);
    if (sent == (ssize_t)PAGE) {
        MUST(!lost[page]);
        return drain(page, sent);
    }
    MUST(sent == -1 && errno == EFAULT);
    MUST(!loads(address + 9) && !stores(address + 8));
    lost[page] = 1;
    MUST(write(ends[1], "12345678", 8) == 8);
    MUST(read(ends[0], address + 16, 8) == -1 && errno == EFAULT);
    // A pipe may drop what it could not hand over.
    static unsigned char rest[PAGE];
    MUST(write(ends[1], "x", 1) == 1);
    MUST(read(ends[0], rest, sizeof(rest)) >= 1);
    // Up to the page the call does what it can, or nothing.
    if (page > 0 && check(page - 1)) {
        ssize_t before = write(ends[1], address - 64, 128);
        MUST(before == 64 || (before == -1 && errno == EFAULT));
        if (before == 64)
            MUST(read(ends[0], rest, sizeof(rest)) == 64);
    }
}

#define LATE (4 * PAGE)
static unsigned char *buffer;

static void *read_late(void *vector)
{
    struct iovec parts[] = {{buffer, PAGE}, {buffer + PAGE, LATE - PAGE}};
    in_call = 1;
    ssize_t got = vector ? readv(ends[0], parts, 2) : read(ends[0], buffer, LATE);
    in_call = 0;
    return (void *)(got < 0 ? -(ssize_t)errno : got);
}

static void empty_pipe(void)
{
    static unsigned char rest[LATE];
    MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    while (read(ends[0], rest, sizeof(rest)) > 0)
        ;
    MUST(errno == EAGAIN && fcntl(ends[0], F_SETFL, 0) == 0);
}

// Twice the memory: what is not used meanwhile is swapped out.
static void press(void)
{
    const size_t len = 8 << 20;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned char *fresh = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, -1, 0);
    MUST(fresh != MAP_FAILED);
    for (size_t i = 0; i < len; i += PAGE)
        fresh[i] = 1;
    MUST(munmap(fresh, len) == 0);
}

// A call waits for data while its buffer is swapped out, and is lost: it fails, or says how much
// it has read, and that is there. The handler does not run inside it.
static size_t read_into_evicted(size_t round)
{
    static uint64_t data[LATE / sizeof(uint64_t)];
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    buffer = mmap(NULL, LATE, PROT_READ | PROT_WRITE, flags, -1, 0);
    MUST(buffer != MAP_FAILED);
    memset(buffer, 1, LATE);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, read_late, (void *)(round % 2)) == 0);
    usleep(20000);
    press();
    for (size_t i = 0; i < LATE / sizeof(uint64_t); i++)
        data[i] = word(round, i);
    MUST(write(ends[1], data, sizeof(data)) == sizeof(data));
    void *result;
    MUST(pthread_join(thread, &result) == 0);
    ssize_t got = (ssize_t)result;
    MUST(got == -EFAULT || (got > 0 && got <= (ssize_t)LATE));
    for (ssize_t i = 0; i < got / (ssize_t)sizeof(uint64_t); i += 64) {
        const uint64_t *there = (const uint64_t *)buffer + i;
        MUST(!loads(there) || *there == data[i]);
    }
    empty_pipe();
    MUST(munmap(buffer, LATE) == 0);
    return got != (ssize_t)LATE;
}

// A forked child sees no zeros where its parent has lost a page.
static void check_in_child(void)
{
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        for (size_t i = 0; i < pages; i++)
            check(mixed(i));
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void check_zeros(size_t page)
{
    unsigned char *address = base + page * PAGE;
    for (size_t i = 0; i < PAGE; i++)
        MUST(address[i] == 0);
    fill(page);
    lost[page] = 0;
    MUST(check(page));
}

// What drops or replaces a lost page makes it a page like others.
static void give_up(void)
{
    size_t page = next_lost(0);
    MUST(madvise(base + page * PAGE, PAGE, MADV_DONTNEED) == 0);
    check_zeros(page);
    page = next_lost(page);
    unsigned char *address = base + page * PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    MUST(mmap(address, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == address);
    check_zeros(page);
    page = next_lost(page);
    address = base + page * PAGE;
    MUST(munmap(address, PAGE) == 0);
    MUST(mmap(address, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == address);
    check_zeros(page);
    page = next_lost(page);
    handle(repair);
    MUST(*(volatile unsigned char *)(base + page * PAGE) == 0);
    handle(on_bus);
    check_zeros(page);
}

// A lost page moves with its mapping, and leaves nothing behind.
static void move(void)
{
    size_t page = next_lost(0);
    unsigned char *from = base + page * PAGE;
    unsigned char *to =
        mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(to != MAP_FAILED);
    MUST(mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + PAGE) == to + PAGE);
    MUST(loads(to) && !loads(to + PAGE + 5) && loads(to + 2 * PAGE));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    MUST(mmap(from, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == from);
    check_zeros(page);
    MUST(munmap(to, 4 * PAGE) == 0);
}

int main(int argc, char **argv)
{
    pages = (size_t)atoi(argc > 1 ? argv[1] : "12") << 8;
    MUST(pages <= sizeof(lost) && pipe(ends) == 0);
    handle(on_bus);
    base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(base != MAP_FAILED);
    for (size_t page = 0; page < pages; page++)
        fill(page);
    for (size_t i = 0; i < pages; i++)
        check(mixed(i));
    size_t by_access = count_lost();
    for (size_t i = 0; i < pages; i++)
        pass_to_kernel(mixed(i));
    size_t by_calls = count_lost() - by_access;
    check_by_threads();
    size_t all = count_lost();
    check_in_child();
    for (size_t i = 0; i < pages; i++)
        check(mixed(i));
    MUST(all >= by_access + by_calls && by_access >= 5);
    give_up();
    move();
    check_in_child();
    check_by_threads();
    size_t refused = 0;
    for (size_t round = 0; round < 32; round++)
        refused += read_into_evicted(round);
    static char line[100];
    int len = snprintf(line, sizeof(line),
                       "lost by accesses %zu, by calls %zu, then %zu; %zu calls refused\n",
                       by_access, by_calls, all - by_access - by_calls, refused);
    MUST(write(1, line, len) == len);
    return 0;
}
