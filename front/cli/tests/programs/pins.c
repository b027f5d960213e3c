/* Pages that are pinned for I/O keep the data that the kernel writes to them, for every way in
 * which Highwater learns that a program may pin pages:
 *
 *   pins MIB early|late|fork|exec WAY
 *   pins MIB direct ROUNDS
 *
 * in a writable directory. The way is taken before memory is requested (early), or after; then this
 * process, its child, or a program that it executes pins pages. In each case the ring that pins
 * pages is made by system calls that Highwater does not see: with the way `none`, contents are
 * lost.
 */
#ifdef LIBRARY
/* In place of liburing: only the name matters. */
int io_uring_register_buffers(void *ring, const void *buffers, unsigned count);
int io_uring_register_buffers(void *ring, const void *buffers, unsigned count)
{
    (void)ring;
    (void)buffers;
    return (int)count + 1;
}
#else
#define _GNU_SOURCE
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __x86_64__
static long raw_call(long number, const long *a)
{
    register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
    long result;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined __aarch64__
static long raw_call(long number, const long *a)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a[0], x1 __asm__("x1") = a[1],
                  x2 __asm__("x2") = a[2], x3 __asm__("x3") = a[3], x4 __asm__("x4") = a[4],
                  x5 __asm__("x5") = a[5];
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}
#endif

/* syscall(3) of this program, for uring.h. */
static long unseen(long number, ...)
{
    extern int *__errno_location(void);
    long arguments[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    long result = raw_call(number, arguments);
    if (result >= 0)
        return result;
    *__errno_location() = (int)-result;
    return -1;
}

#define syscall(number, ...) unseen(number, __VA_ARGS__, 0l, 0l, 0l, 0l, 0l, 0l)
#include "region.h"
#include "uring.h"
#undef syscall

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

static const char FILE_NAME[] = "pins.data";
static const int DIRECT = O_RDONLY | O_DIRECT;
enum { PINNED = 8, CYCLES = 3 };

/* Buffers of a ring, spread over the region, get new bytes after each cycle through memory. */
static void check_pinned(struct region *region)
{
    struct uring ring;
    MUST(uring_open(&ring, PINNED) == 0);
    int file = open(FILE_NAME, O_RDONLY | O_CLOEXEC);
    MUST(file >= 0);
    size_t stride = region->slots / PINNED;
    struct iovec buffers[PINNED];
    for (size_t i = 0; i < PINNED; i++)
        buffers[i] = (struct iovec){region->base + i * stride * SLOT, SLOT};
    region_fill(region);
    uring_register(&ring, buffers, PINNED);
    for (size_t cycle = 0; cycle < CYCLES; cycle++) {
        region_fill(region);
        for (size_t i = 0; i < PINNED; i++) {
            struct span span = {region->base + i * stride * SLOT, i * stride, 0, SLOT,
                                (cycle * PINNED + i) * SLOT};
            uring_push(&ring, (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = file,
                                                    .off = span.file_offset, .len = SLOT,
                                                    .addr = (uintptr_t)span.at,
                                                    .buf_index = (uint16_t)i});
            uring_submit(&ring, 1);
            MUST(uring_next(&ring).result == (int)SLOT);
            check_span(region, &span, "pinned");
        }
    }
    uring_close(&ring);
    for (size_t slot = 0; slot < region->slots; slot++)
        if (slot % stride != 0 || slot / stride >= PINNED)
            check_kept(region, slot, 0, SLOT, "not pinned");
    MUST(close(file) == 0);
}

/* ---- O_DIRECT: most of the memory is in flight, 8 MiB, and more is used ---- */

enum { READERS = 16, READ_SLOTS = 4, PLACES = 4 };

struct reader {
    struct region *region;
    size_t number, rounds;
};

/* A disk writes to parts of the region while reclaim takes pages for other readers. */
static void *read_directly(void *argument)
{
    const struct reader *reader = argument;
    size_t length = READ_SLOTS * SLOT;
    int file = open(FILE_NAME, DIRECT | O_CLOEXEC);
    MUST(file >= 0);
    uint64_t random = reader->number;
    for (size_t round = 0; round < reader->rounds; round++) {
        size_t offset = next_random(&random) % (FILE_BYTES - length) / PAGE * PAGE;
        size_t slot = (reader->number * PLACES + round % PLACES) * READ_SLOTS;
        unsigned char *at = reader->region->base + slot * SLOT;
        MUST(pread(file, at, length, (off_t)offset) == (ssize_t)length);
        for (size_t i = 0; i < READ_SLOTS; i++) {
            expect_bytes(wanted_bytes, FILE_ID, 1, offset + i * SLOT, SLOT);
            must_equal(at + i * SLOT, SLOT, "direct", slot + i);
        }
    }
    MUST(close(file) == 0);
    return NULL;
}

static void check_direct(size_t rounds)
{
    struct region region = region_map(READERS * PLACES * READ_SLOTS * SLOT_PAGES);
    region_fill(&region);
    pthread_t threads[READERS];
    struct reader readers[READERS];
    for (size_t i = 0; i < READERS; i++) {
        readers[i] = (struct reader){&region, i, rounds};
        MUST(pthread_create(&threads[i], NULL, read_directly, &readers[i]) == 0);
    }
    for (size_t i = 0; i < READERS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    region_unmap(&region);
}

/* ---- the ways ---- */

extern int __open_2(const char *, int);
extern int __openat64_2(int, const char *, int);
extern int io_uring_register_buffers(void *, const void *, unsigned) __attribute__((weak));

static int by_open(void) { return open(FILE_NAME, DIRECT); }
static int by_open64(void) { return open64(FILE_NAME, DIRECT); }
static int by_openat(void) { return openat(AT_FDCWD, FILE_NAME, DIRECT); }
static int by_openat64(void) { return openat64(AT_FDCWD, FILE_NAME, DIRECT); }
static int by_open_2(void) { return __open_2(FILE_NAME, DIRECT); }
static int by_openat64_2(void) { return __openat64_2(AT_FDCWD, FILE_NAME, DIRECT); }

static int by_mkostemp(void)
{
    char name[] = "pins.XXXXXX";
    int file = mkostemp(name, O_DIRECT);
    MUST(unlink(name) == 0);
    return file;
}

static int by_fcntl(void)
{
    int file = open(FILE_NAME, O_RDONLY);
    MUST(fcntl(file, F_SETFL, O_DIRECT) == 0);
    return file;
}

static int by_syscall(void)
{
    return (int)syscall(SYS_openat, AT_FDCWD, FILE_NAME, DIRECT, 0);
}

static int by_openat2(void)
{
    struct open_how how = {.flags = (unsigned)DIRECT};
    return (int)syscall(SYS_openat2, AT_FDCWD, FILE_NAME, &how, sizeof how);
}

static int by_uring(void)
{
    static char buffer[PAGE];
    struct iovec memory = {buffer, sizeof buffer};
    struct io_uring_params setup = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 1, &setup);
    if (ring >= 0)
        MUST(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &memory, 1) == 0);
    return ring;
}

/* A request of VFIO, which is not a request of a file. */
static int by_ioctl(void)
{
    int file = open(FILE_NAME, O_RDONLY);
    MUST(ioctl(file, 0x3b71, NULL) == -1 && errno == ENOTTY);
    return file;
}

/* Only a plugin has this library: the linker does not find its functions for other code. */
static int by_liburing(void)
{
    void *library = dlopen("./liburing.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        die("dlopen: %s", dlerror());
    int (*own)(void *, const void *, unsigned) = dlsym(library, "io_uring_register_buffers");
    MUST(own != NULL);
    int (*call)(void *, const void *, unsigned) = io_uring_register_buffers;
    MUST((call == NULL ? own : call)(NULL, NULL, 41) == 42);
    return open(FILE_NAME, O_RDONLY);
}

static volatile int in_handler = -1;

static void open_in_handler(int signal)
{
    (void)signal;
    in_handler = open(FILE_NAME, DIRECT);
}

static int by_handler(void)
{
    MUST(signal(SIGUSR1, open_in_handler) != SIG_ERR);
    MUST(raise(SIGUSR1) == 0);
    return in_handler;
}

/* The child of vfork shares memory, but not descriptors. */
static int by_vfork(void)
{
    pid_t child = vfork();
    if (child == 0)
        _exit(open(FILE_NAME, DIRECT) < 0);
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    return open(FILE_NAME, O_RDONLY);
}

/* For comparison: Highwater does not notice it. */
static int by_none(void) { return open(FILE_NAME, O_RDONLY); }

struct way {
    const char *name;
    int (*open)(void);
};

static const struct way WAYS[] = {
    {"open", by_open}, {"open64", by_open64}, {"openat", by_openat}, {"openat64", by_openat64},
    {"open_2", by_open_2}, {"openat64_2", by_openat64_2}, {"mkostemp", by_mkostemp},
    {"fcntl", by_fcntl}, {"syscall", by_syscall}, {"openat2", by_openat2}, {"uring", by_uring},
    {"ioctl", by_ioctl}, {"liburing", by_liburing}, {"handler", by_handler}, {"vfork", by_vfork},
    {"none", by_none}, {NULL, NULL},
};

static const struct way *way_of(const char *name)
{
    const struct way *way = WAYS;
    while (way->name != NULL && strcmp(way->name, name) != 0)
        way++;
    if (way->name == NULL)
        die("no such way: %s", name);
    return way;
}

static void in_child(struct region *region)
{
    pid_t child = fork();
    if (child == 0) {
        check_pinned(region);
        _exit(0);
    }
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static int direct(const char *rounds)
{
    int file = by_open();
    if (file < 0)
        return printf("O_DIRECT is not available here: %s\n", strerror(errno)), 0;
    MUST(close(file) == 0);
    check_direct(number(rounds));
    return printf("direct\n"), 0;
}

int main(int count, char **arguments)
{
    if (count != 4)
        die("usage: %s MIB early|late|fork|exec WAY", arguments[0]);
    size_t pages = number(arguments[1]) * MIB / PAGE;
    const char *when = arguments[2];
    make_file(FILE_NAME);
    if (strcmp(when, "direct") == 0)
        return direct(arguments[3]);
    const struct way *way = way_of(arguments[3]);
    int is_late = strcmp(when, "early") != 0 && strcmp(when, "executed") != 0;
    struct region region = {0};
    if (is_late) {
        region = region_map(pages);
        region_fill(&region);
    }
    int file = strcmp(when, "executed") == 0 ? 0 : way->open();
    if (file < 0)
        return printf("%s is not available: %s\n", way->name, strerror(errno)), 0;
    if (strcmp(when, "exec") == 0) {
        MUST(fcntl(file, F_SETFD, 0) == 0);
        execl("/proc/self/exe", arguments[0], arguments[1], "executed", way->name, (char *)NULL);
        die("exec: %s", strerror(errno));
    }
    if (!is_late)
        region = region_map(pages);
    if (strcmp(when, "fork") == 0)
        in_child(&region);
    check_pinned(&region);
    region_unmap(&region);
    printf("%s %s\n", when, way->name);
    return 0;
}
#endif
