/* A minimal io_uring by raw system calls: one ring, one thread. */
#ifndef URING_H
#define URING_H

#include "check.h"

#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* The shared indices of one of the two queues. */
struct uring_queue {
    unsigned *head, *tail, mask;
};

struct uring {
    int file;
    struct uring_queue submit, complete;
    unsigned *array;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    void *rings;
    size_t rings_bytes, sqes_bytes;
};

static void uring_close(struct uring *ring)
{
    MUST(munmap(ring->rings, ring->rings_bytes) == 0);
    MUST(munmap(ring->sqes, ring->sqes_bytes) == 0);
    MUST(close(ring->file) == 0);
}

static void *uring_map(int file, size_t bytes, uint64_t what)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file,
                    (off_t)what);
    MUST(at != MAP_FAILED);
    return at;
}

/* Both queues in one mapping (Linux 5.4). -1 and errno if the kernel or a filter refuses. */
static int uring_open(struct uring *ring, unsigned entries)
{
    struct io_uring_params setup = {0};
    ring->file = (int)syscall(SYS_io_uring_setup, entries, &setup);
    if (ring->file < 0)
        return -1;
    MUST(setup.features & IORING_FEAT_SINGLE_MMAP);
    size_t submit = setup.sq_off.array + setup.sq_entries * sizeof(unsigned);
    size_t complete = setup.cq_off.cqes + setup.cq_entries * sizeof(struct io_uring_cqe);
    ring->rings_bytes = submit > complete ? submit : complete;
    ring->sqes_bytes = setup.sq_entries * sizeof(struct io_uring_sqe);
    ring->rings = uring_map(ring->file, ring->rings_bytes, IORING_OFF_SQ_RING);
    ring->sqes = uring_map(ring->file, ring->sqes_bytes, IORING_OFF_SQES);
    char *at = ring->rings;
    ring->submit = (struct uring_queue){(unsigned *)(at + setup.sq_off.head),
                                        (unsigned *)(at + setup.sq_off.tail),
                                        *(unsigned *)(at + setup.sq_off.ring_mask)};
    ring->complete = (struct uring_queue){(unsigned *)(at + setup.cq_off.head),
                                          (unsigned *)(at + setup.cq_off.tail),
                                          *(unsigned *)(at + setup.cq_off.ring_mask)};
    ring->array = (unsigned *)(at + setup.sq_off.array);
    ring->cqes = (struct io_uring_cqe *)(at + setup.cq_off.cqes);
    return 0;
}

/* The caller never has more in flight than the ring has entries. */
static void uring_push(struct uring *ring, struct io_uring_sqe sqe)
{
    unsigned tail = *ring->submit.tail, index = tail & ring->submit.mask;
    ring->sqes[index] = sqe;
    ring->array[index] = index;
    __atomic_store_n(ring->submit.tail, tail + 1, __ATOMIC_RELEASE);
}

/* Hands `count` requests to the kernel and waits until as many are done. */
static void uring_submit(struct uring *ring, unsigned count)
{
    unsigned left = count;
    while (left > 0) {
        long taken = syscall(SYS_io_uring_enter, ring->file, left, count, IORING_ENTER_GETEVENTS,
                             NULL, 0);
        MUST(taken >= 0 || errno == EINTR);
        left -= taken > 0 ? (unsigned)taken : 0;
    }
}

/* The next completion: result and user data. */
struct uring_done {
    uint64_t user_data;
    int result;
};

static struct uring_done uring_next(struct uring *ring)
{
    unsigned head = *ring->complete.head;
    while (__atomic_load_n(ring->complete.tail, __ATOMIC_ACQUIRE) == head)
        MUST(syscall(SYS_io_uring_enter, ring->file, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0
             || errno == EINTR);
    const struct io_uring_cqe *entry = &ring->cqes[head & ring->complete.mask];
    struct uring_done done = {entry->user_data, entry->res};
    __atomic_store_n(ring->complete.head, head + 1, __ATOMIC_RELEASE);
    return done;
}

/* Pins the buffers until the ring is closed. */
static void uring_register(struct uring *ring, const struct iovec *buffers, unsigned count)
{
    MUST(syscall(SYS_io_uring_register, ring->file, IORING_REGISTER_BUFFERS, buffers, count) == 0);
}

#endif
