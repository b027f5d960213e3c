/* One big region cut into slots, which the system-call tests read into and write from.
 *
 *   | slot 0      | slot 1      | ...       a slot:  | kept | data: what the call moves | kept |
 *
 * If the region is filled in order and the budget is well below its size, every slot is swapped out
 * by the time it is visited in the same order. Bytes beside the data must stay as they were.
 */
#ifndef REGION_H
#define REGION_H

#include "check.h"

#include <fcntl.h>

#define SLOT (128ul << 10)
#define SLOT_PAGES (SLOT / PAGE)
#define FILE_ID (1ull << 32)
#define FILE_BYTES (16 * MIB)

struct region {
    unsigned char *base;
    size_t slots;
    uint32_t version; /* of all bytes that no call has written */
};

/* The bytes of a slot that a call moves. */
struct span {
    unsigned char *at;
    size_t slot, skew, length;
    size_t file_offset; /* where in the file such bytes are taken from */
};

__attribute__((unused))
static struct region region_map(size_t pages)
{
    struct region region = {.slots = pages / SLOT_PAGES};
    region.base = map_pages(region.slots * SLOT_PAGES);
    return region;
}

__attribute__((unused))
static void region_unmap(struct region *region)
{
    MUST(munmap(region->base, region->slots * SLOT) == 0);
    region->base = NULL;
}

/* Writes all of it, in order. */
__attribute__((unused))
static void region_fill(struct region *region)
{
    region->version++;
    for (size_t page = 0; page < region->slots * SLOT_PAGES; page++)
        fill_page(region->base + page * PAGE, page, region->version);
}

/* Unaligned and of many lengths; with `grain` > 1, aligned to that. */
__attribute__((unused))
static struct span span_of(const struct region *region, size_t slot, size_t grain)
{
    uint64_t random = slot * 977 + grain;
    struct span span = {.slot = slot};
    span.skew = next_random(&random) % (2 * PAGE) / grain * grain;
    span.length = (1 + next_random(&random) % (SLOT - 3 * PAGE) + grain - 1) / grain * grain;
    span.file_offset = next_random(&random) % (FILE_BYTES - SLOT) / grain * grain;
    span.at = region->base + slot * SLOT + span.skew;
    return span;
}

/* The file of known bytes, made with small writes so that it costs no memory. */
__attribute__((unused))
static void make_file(const char *name)
{
    static unsigned char bytes[16 * PAGE];
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    MUST(file >= 0);
    for (size_t at = 0; at < FILE_BYTES; at += sizeof bytes) {
        expect_bytes(bytes, FILE_ID, 1, at, sizeof bytes);
        MUST(write(file, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
    }
    MUST(close(file) == 0);
}

/* Both hold one slot at most, and lie outside of managed memory. */
static __thread unsigned char wanted_bytes[SLOT];

static void must_equal(const unsigned char *at, size_t length, const char *where, size_t slot)
{
    if (memcmp(at, wanted_bytes, length) == 0)
        return;
    size_t i = 0;
    while (at[i] == wanted_bytes[i])
        i++;
    die("%s: slot %zu, byte %zu of %zu at %p: %02x instead of %02x", where, slot, i, length,
        (const void *)(at + i), at[i], wanted_bytes[i]);
}

/* Bytes [from, to) of a slot are those that region_fill wrote. */
__attribute__((unused))
static void check_kept(const struct region *region, size_t slot, size_t from, size_t to,
                       const char *where)
{
    expect_bytes(wanted_bytes, slot * SLOT_PAGES, region->version, from, to - from);
    must_equal(region->base + slot * SLOT + from, to - from, where, slot);
}

/* The span holds the bytes of the file, and the rest of its slot was left alone. */
__attribute__((unused))
static uint64_t check_span(const struct region *region, const struct span *span, const char *where)
{
    expect_bytes(wanted_bytes, FILE_ID, 1, span->file_offset, span->length);
    must_equal(span->at, span->length, where, span->slot);
    check_kept(region, span->slot, 0, span->skew, where);
    check_kept(region, span->slot, span->skew + span->length, SLOT, where);
    return hash_bytes(span->slot, wanted_bytes, span->length);
}

#endif
