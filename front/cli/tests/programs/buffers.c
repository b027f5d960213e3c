/* System calls that read and write swapped-out buffers, checked byte by byte.
 *
 *   buffers MIB [SECTION...]      in a writable directory
 *
 * See sections.h. The sections uring_fixed, direct and direct_write pin pages.
 */
#define _GNU_SOURCE
#include "region.h"
#include "sections.h"
#include "uring.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>

static const char FILE_NAME[] = "buffers.data";
static struct region region;

static int open_file(int flags)
{
    int file = open(FILE_NAME, flags | O_CLOEXEC);
    MUST(file >= 0);
    return file;
}

/* One region for all sections; each fills it with a new version. */
static void fresh_region(size_t pages)
{
    if (region.base == NULL)
        region = region_map(pages);
    region_fill(&region);
}

static void must_move(ssize_t moved, size_t length, const char *where, size_t slot)
{
    if (moved != (ssize_t)length)
        die("%s: slot %zu: %zd of %zu bytes: %s", where, slot, moved, length, strerror(errno));
}

/* ---- read, pread, readv, preadv ---- */

typedef ssize_t read_call(int file, const struct span *span);

static ssize_t by_read(int file, const struct span *span)
{
    MUST(lseek(file, (off_t)span->file_offset, SEEK_SET) >= 0);
    return read(file, span->at, span->length);
}

static ssize_t by_pread(int file, const struct span *span)
{
    return pread(file, span->at, span->length, (off_t)span->file_offset);
}

enum { PIECES = 4 };

/* Cuts a span into pieces of unequal length. */
static void cut(const struct span *span, struct iovec *pieces)
{
    size_t done = 0;
    for (size_t i = 0; i < PIECES; i++) {
        size_t take = i + 1 < PIECES ? span->length * (i + 1) / 11 : span->length - done;
        pieces[i] = (struct iovec){span->at + done, take};
        done += take;
    }
}

static ssize_t by_readv(int file, const struct span *span)
{
    struct iovec pieces[PIECES];
    cut(span, pieces);
    MUST(lseek(file, (off_t)span->file_offset, SEEK_SET) >= 0);
    return readv(file, pieces, PIECES);
}

static ssize_t by_preadv(int file, const struct span *span)
{
    struct iovec pieces[PIECES];
    cut(span, pieces);
    return preadv(file, pieces, PIECES, (off_t)span->file_offset);
}

/* Reads every slot, in the order of eviction. */
static uint64_t read_slots(size_t pages, int flags, size_t grain, read_call *call, const char *name)
{
    fresh_region(pages);
    int file = open_file(O_RDONLY | flags);
    uint64_t hash = 0;
    for (size_t slot = 0; slot < region.slots; slot++) {
        struct span span = span_of(&region, slot, grain);
        must_move(call(file, &span), span.length, name, slot);
        hash ^= check_span(&region, &span, name);
    }
    MUST(close(file) == 0);
    return hash;
}

static uint64_t reads(size_t pages) { return read_slots(pages, 0, 1, by_read, "read"); }
static uint64_t preads(size_t pages) { return read_slots(pages, 0, 1, by_pread, "pread"); }
static uint64_t readvs(size_t pages) { return read_slots(pages, 0, 1, by_readv, "readv"); }
static uint64_t preadvs(size_t pages) { return read_slots(pages, 0, 1, by_preadv, "preadv"); }

/* ---- write, pwrite, writev out of swapped-out buffers ---- */

/* Reads the written bytes back into memory that is not managed. */
static uint64_t check_written(int file, size_t slot, size_t skew, size_t length, const char *where)
{
    static unsigned char back[SLOT];
    must_move(pread(file, back, length, (off_t)skew), length, where, slot);
    expect_bytes(wanted_bytes, slot * SLOT_PAGES, region.version, skew, length);
    must_equal(back, length, where, slot);
    return hash_bytes(slot, back, length);
}

static ssize_t write_somehow(int file, const struct span *span)
{
    struct iovec pieces[PIECES];
    switch (span->slot % 3) {
    case 0:
        MUST(lseek(file, (off_t)span->skew, SEEK_SET) >= 0);
        return write(file, span->at, span->length);
    case 1:
        return pwrite(file, span->at, span->length, (off_t)span->skew);
    default:
        cut(span, pieces);
        MUST(lseek(file, (off_t)span->skew, SEEK_SET) >= 0);
        return writev(file, pieces, PIECES);
    }
}

static uint64_t write_slots(size_t pages, int flags, size_t grain, const char *name)
{
    fresh_region(pages);
    int file = open("buffers.out", O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
    MUST(file >= 0);
    MUST(unlink("buffers.out") == 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int reader = open(path, O_RDONLY);
    MUST(reader >= 0);
    uint64_t hash = 0;
    for (size_t slot = 0; slot < region.slots; slot++) {
        struct span span = span_of(&region, slot, grain);
        must_move(write_somehow(file, &span), span.length, name, slot);
        hash ^= check_written(reader, slot, span.skew, span.length, name);
    }
    MUST(close(file) == 0 && close(reader) == 0);
    return hash;
}

static uint64_t writes(size_t pages) { return write_slots(pages, 0, 1, "write"); }

/* ---- sockets: both ends in managed memory ---- */

struct sender {
    int socket;
    size_t slots;
};

/* Odd slots are sent. */
static void *send_slots(void *argument)
{
    struct sender *sender = argument;
    for (size_t slot = 1; slot < sender->slots; slot += 2)
        for (size_t done = 0; done < SLOT;) {
            ssize_t sent = send(sender->socket, region.base + slot * SLOT + done, SLOT - done, 0);
            MUST(sent > 0);
            done += (size_t)sent;
        }
    MUST(shutdown(sender->socket, SHUT_WR) == 0);
    return NULL;
}

/* Even slots receive the bytes of the next odd slot. */
static uint64_t receive_slots(int socket, const char *where)
{
    uint64_t hash = 0;
    for (size_t slot = 0; slot + 1 < region.slots; slot += 2) {
        unsigned char *at = region.base + slot * SLOT;
        struct iovec halves[] = {{at, SLOT / 3}, {at + SLOT / 3, SLOT - SLOT / 3}};
        struct msghdr message = {.msg_iov = halves, .msg_iovlen = 2};
        ssize_t got = slot % 4 == 0 ? recv(socket, at, SLOT, MSG_WAITALL)
                                    : recvmsg(socket, &message, MSG_WAITALL);
        must_move(got, SLOT, where, slot);
        expect_bytes(wanted_bytes, (slot + 1) * SLOT_PAGES, region.version, 0, SLOT);
        must_equal(at, SLOT, where, slot);
        check_kept(&region, slot + 1, 0, SLOT, where);
        hash = hash_bytes(hash, at, SLOT);
    }
    return hash;
}

static uint64_t across(size_t pages, const int ends[2], const char *where)
{
    fresh_region(pages);
    struct sender sender = {ends[1], region.slots};
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, send_slots, &sender) == 0);
    uint64_t hash = receive_slots(ends[0], where);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    return hash;
}

static uint64_t local_socket(size_t pages)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    return across(pages, ends, "socketpair");
}

static uint64_t tcp(size_t pages)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0), ends[2];
    MUST(listener >= 0 && bind(listener, (struct sockaddr *)&name, size) == 0);
    MUST(listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&name, &size) == 0);
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(ends[1] >= 0 && connect(ends[1], (struct sockaddr *)&name, size) == 0);
    ends[0] = accept(listener, NULL, NULL);
    MUST(ends[0] >= 0 && close(listener) == 0);
    return across(pages, ends, "tcp");
}

/* ---- io_uring: reads and writes in flight, many at once ---- */

enum { BATCH = 8 };

/* Prints on stdout: an unlimited run on the same machine prints the same. */
static int uring_or_say(struct uring *ring)
{
    if (uring_open(ring, 2 * BATCH) == 0)
        return 0;
    printf("io_uring is not available: %s\n", strerror(errno));
    return -1;
}

static void wait_batch(struct uring *ring, const struct span *spans, size_t count, const char *name)
{
    uring_submit(ring, (unsigned)count);
    for (size_t i = 0; i < count; i++) {
        struct uring_done done = uring_next(ring);
        errno = done.result < 0 ? -done.result : 0;
        const struct span *span = &spans[done.user_data];
        must_move(done.result, span->length, name, span->slot);
    }
}

static uint64_t uring_slots(size_t pages, int flags, size_t grain, const char *name)
{
    struct uring ring;
    if (uring_or_say(&ring) != 0)
        return 0;
    fresh_region(pages);
    int file = open_file(O_RDONLY | flags);
    uint64_t hash = 0;
    for (size_t first = 0; first + BATCH <= region.slots; first += BATCH) {
        struct span spans[BATCH];
        struct iovec pieces[BATCH][PIECES];
        for (size_t i = 0; i < BATCH; i++) {
            struct span *span = &spans[i];
            *span = span_of(&region, first + i, grain);
            cut(span, pieces[i]);
            int vector = grain == 1 && i % 2;
            struct io_uring_sqe sqe = {
                .opcode = vector ? IORING_OP_READV : IORING_OP_READ,
                .fd = file,
                .off = span->file_offset,
                .addr = vector ? (uintptr_t)pieces[i] : (uintptr_t)span->at,
                .len = vector ? PIECES : (uint32_t)span->length,
                .user_data = i,
            };
            uring_push(&ring, sqe);
        }
        wait_batch(&ring, spans, BATCH, name);
        for (size_t i = 0; i < BATCH; i++)
            hash ^= check_span(&region, &spans[i], name);
    }
    MUST(close(file) == 0);
    uring_close(&ring);
    return hash;
}

static uint64_t uring(size_t pages) { return uring_slots(pages, 0, 1, "uring"); }

static uint64_t uring_write(size_t pages)
{
    struct uring ring;
    if (uring_or_say(&ring) != 0)
        return 0;
    fresh_region(pages);
    int file = open("buffers.out", O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(file >= 0 && unlink("buffers.out") == 0);
    uint64_t hash = 0;
    for (size_t slot = 0; slot < region.slots; slot++) {
        struct span span = span_of(&region, slot, 1);
        uring_push(&ring, (struct io_uring_sqe){.opcode = IORING_OP_WRITE, .fd = file,
                                                .off = span.skew, .addr = (uintptr_t)span.at,
                                                .len = (uint32_t)span.length});
        wait_batch(&ring, &span, 1, "uring_write");
        hash ^= check_written(file, slot, span.skew, span.length, "uring_write");
    }
    MUST(close(file) == 0);
    uring_close(&ring);
    return hash;
}

/* ---- pins: registered buffers stay where they are while all other memory is cycled ---- */

static void check_fixed(struct uring *ring, int file, size_t stride, const char *where)
{
    for (size_t i = 0; i < BATCH; i++) {
        struct span span = {region.base + i * stride * SLOT, i * stride, 0, SLOT, i * SLOT};
        uring_push(ring, (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = file,
                                               .off = span.file_offset, .len = SLOT,
                                               .addr = (uintptr_t)span.at,
                                               .buf_index = (uint16_t)i});
        wait_batch(ring, &span, 1, where);
        check_span(&region, &span, where);
    }
}

static uint64_t uring_fixed(size_t pages)
{
    struct uring ring;
    if (uring_or_say(&ring) != 0)
        return 0;
    fresh_region(pages);
    int file = open_file(O_RDONLY);
    size_t stride = region.slots / BATCH;
    struct iovec buffers[BATCH];
    for (size_t i = 0; i < BATCH; i++)
        buffers[i] = (struct iovec){region.base + i * stride * SLOT, SLOT};
    uring_register(&ring, buffers, BATCH);
    check_fixed(&ring, file, stride, "uring_fixed: first");
    region_fill(&region);
    for (size_t i = 0; i < BATCH; i++)
        check_kept(&region, i * stride, 0, SLOT, "uring_fixed: written by the program");
    check_fixed(&ring, file, stride, "uring_fixed: after a cycle");
    uring_close(&ring);
    for (size_t slot = 0; slot < region.slots; slot++)
        if (slot % stride != 0 || slot / stride >= BATCH)
            check_kept(&region, slot, 0, SLOT, "uring_fixed: the rest");
    MUST(close(file) == 0);
    return region.slots;
}

/* ---- O_DIRECT: devices write into the pages, while another thread forces reclaim ---- */

struct thrasher {
    atomic_int stop;
    unsigned char *at;
    size_t pages;
};

static void *thrash(void *argument)
{
    struct thrasher *thrasher = argument;
    for (uint32_t version = 1; !atomic_load(&thrasher->stop); version++) {
        for (size_t page = 0; page < thrasher->pages; page++)
            fill_page(thrasher->at + page * PAGE, page, version);
        for (size_t page = 0; page < thrasher->pages; page++)
            check_page(thrasher->at + page * PAGE, page, version, "direct: thrasher");
    }
    return NULL;
}

static int direct_or_say(void)
{
    int file = open(FILE_NAME, O_RDONLY | O_DIRECT);
    if (file < 0)
        return printf("O_DIRECT is not available here: %s\n", strerror(errno)), -1;
    return close(file);
}

static uint64_t direct(size_t pages)
{
    if (direct_or_say() != 0)
        return 0;
    struct thrasher thrasher = {.at = map_pages(pages / 4), .pages = pages / 4};
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, thrash, &thrasher) == 0);
    uint64_t hash = read_slots(pages, O_DIRECT, PAGE, by_pread, "direct");
    hash ^= uring_slots(pages, O_DIRECT, PAGE, "direct uring");
    atomic_store(&thrasher.stop, 1);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(munmap(thrasher.at, thrasher.pages * PAGE) == 0);
    return hash;
}

static uint64_t direct_write(size_t pages)
{
    return direct_or_say() == 0 ? write_slots(pages, O_DIRECT, PAGE, "direct_write") : 0;
}

static const struct section SECTIONS[] = {
    {"read", reads}, {"pread", preads}, {"readv", readvs}, {"preadv", preadvs},
    {"write", writes}, {"socketpair", local_socket}, {"tcp", tcp}, {"uring", uring},
    {"uring_write", uring_write}, {"uring_fixed", uring_fixed}, {"direct", direct},
    {"direct_write", direct_write}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    make_file(FILE_NAME);
    int status = run_sections(SECTIONS, count, arguments);
    MUST(unlink(FILE_NAME) == 0);
    region_unmap(&region);
    return status;
}
