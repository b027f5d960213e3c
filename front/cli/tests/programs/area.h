/* A mapping and a model of it: the version of each page, and which pages are unmapped. */
#ifndef AREA_H
#define AREA_H

#include "check.h"

struct area {
    unsigned char *base;
    size_t pages;
    uint64_t id;            /* identity of page 0; the others follow */
    uint32_t *version;      /* per page */
    unsigned char *mapped;  /* per page: 0 where the program unmapped it */
};

/* Maps `pages` of zeros; the model has room for `capacity`. */
__attribute__((unused))
static struct area area_with_room(size_t pages, size_t capacity, uint64_t id)
{
    struct area area = {.base = map_pages(pages), .pages = pages, .id = id};
    MUST(area.version = calloc(capacity, sizeof *area.version));
    MUST(area.mapped = malloc(capacity));
    memset(area.mapped, 1, capacity);
    return area;
}

__attribute__((unused))
static struct area area_map(size_t pages, uint64_t id)
{
    return area_with_room(pages, pages, id);
}

__attribute__((unused))
static void area_unmap(struct area *area)
{
    MUST(munmap(area->base, area->pages * PAGE) == 0);
    free(area->version);
    free(area->mapped);
}

__attribute__((unused))
static void area_fill(struct area *area, size_t from, size_t count, uint32_t version)
{
    for (size_t page = from; page < from + count; page++) {
        if (!area->mapped[page])
            continue;
        fill_page(area->base + page * PAGE, area->id + page, version);
        area->version[page] = version;
    }
}

/* Updates the model: pages are zeros again, and mapped. */
__attribute__((unused))
static void area_zeroed(struct area *area, size_t from, size_t count)
{
    memset(area->version + from, 0, count * sizeof *area->version);
    memset(area->mapped + from, 1, count);
}

__attribute__((unused))
static void area_check_part(const struct area *area, size_t from, size_t count, const char *where)
{
    for (size_t page = from; page < from + count; page++)
        if (area->mapped[page])
            check_page(area->base + page * PAGE, area->id + page, area->version[page], where);
}

__attribute__((unused))
static void area_check(const struct area *area, const char *where)
{
    area_check_part(area, 0, area->pages, where);
}

__attribute__((unused))
static uint64_t area_hash(const struct area *area)
{
    uint64_t hash = 0;
    for (size_t page = 0; page < area->pages; page++)
        if (area->mapped[page])
            hash = hash_bytes(hash, area->base + page * PAGE, PAGE);
    return hash;
}

#endif
