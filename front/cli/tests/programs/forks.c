/* fork while most memory is swapped out: parent and children each keep the right contents, in
 * whatever order they write. See sections.h for usage; MIB is what each process needs. */
#define _GNU_SOURCE
#include "area.h"
#include "children.h"
#include "sections.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- turns: both verify, both write, both verify again, step by step ---- */

/* One process's side of a rendezvous. */
struct meeting {
    int hear, say;
};

static void meetings(struct meeting *parent, struct meeting *child)
{
    int to_child[2], to_parent[2];
    MUST(pipe(to_child) == 0 && pipe(to_parent) == 0);
    *parent = (struct meeting){to_parent[0], to_child[1]};
    *child = (struct meeting){to_child[0], to_parent[1]};
}

/* Waits for the other process; its death reads as end of file. */
static void meet(const struct meeting *meeting, const char *where)
{
    char byte = 1;
    if (write(meeting->say, &byte, 1) != 1 || read(meeting->hear, &byte, 1) != 1)
        die("%s: the other process is gone", where);
}

/* Writes every `stride`th run of 8 pages, from run `first` on. */
static void write_runs(struct area *area, size_t first, size_t stride, uint32_t version)
{
    for (size_t run = first; (run + 1) * 8 <= area->pages; run += stride)
        area_fill(area, run * 8, 8, version);
}

static void child_turns(struct area *area, const struct meeting *meeting)
{
    area_check(area, "turns: child inherits");
    meet(meeting, "turns: child");
    write_runs(area, 0, 2, 10);
    meet(meeting, "turns: child");
    area_check(area, "turns: child after both wrote");
    meet(meeting, "turns: child");
    write_runs(area, 0, 1, 11);
    area_check(area, "turns: child wrote all");
    area_unmap(area);
}

static uint64_t turns(size_t pages)
{
    struct area area = area_map(pages, 1 << 20);
    area_fill(&area, 0, pages, 1);
    struct meeting parent, of_child;
    meetings(&parent, &of_child);
    pid_t child = must_fork();
    if (child == 0) {
        close(parent.hear), close(parent.say);
        child_turns(&area, &of_child);
        _exit(0);
    }
    close(of_child.hear), close(of_child.say);
    meet(&parent, "turns: parent");
    write_runs(&area, 0, 3, 20);
    meet(&parent, "turns: parent");
    area_check(&area, "turns: parent after both wrote");
    meet(&parent, "turns: parent");
    write_runs(&area, 1, 3, 21);
    must_finish(child, "turns");
    area_check(&area, "turns: parent alone");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- nested: a child of a child of a child; each level inherits what the last one wrote ---- */

static void descend(struct area *area, uint32_t level)
{
    area_check(area, "nested: inherits");
    write_runs(area, level, 4, 30 + level);
    if (level < 3) {
        pid_t child = must_fork();
        if (child == 0) {
            descend(area, level + 1);
            _exit(0);
        }
        write_runs(area, level + 1, 4, 40 + level);
        must_finish(child, "nested");
    }
    area_check(area, "nested: after its child");
}

static uint64_t nested(size_t pages)
{
    struct area area = area_map(pages, 2 << 20);
    area_fill(&area, 0, pages, 1);
    descend(&area, 0);
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

/* ---- orphans: the parent unmaps, the children's contents stay ---- */

enum { CHILDREN = 3 };

static uint64_t orphans(size_t pages)
{
    struct area area = area_map(pages, 3 << 20);
    area_fill(&area, 0, pages, 1);
    uint64_t hash = area_hash(&area);
    int gate[2];
    MUST(pipe(gate) == 0);
    pid_t children[CHILDREN];
    for (size_t i = 0; i < CHILDREN; i++) {
        children[i] = must_fork();
        if (children[i] != 0)
            continue;
        char byte;
        close(gate[1]);
        MUST(read(gate[0], &byte, 1) == 0);
        area_check(&area, "orphans: after the parent unmapped");
        write_runs(&area, i, CHILDREN, 50);
        MUST(madvise(area.base, pages / 4 * PAGE, MADV_DONTNEED) == 0);
        area_zeroed(&area, 0, pages / 4);
        area_check(&area, "orphans: after writing");
        _exit(0);
    }
    area_unmap(&area);
    struct area other = area_map(pages, 4 << 20);
    area_fill(&other, 0, pages, 2);
    MUST(close(gate[1]) == 0);
    for (size_t i = 0; i < CHILDREN; i++)
        must_finish(children[i], "orphans");
    area_check(&other, "orphans: new memory of the parent");
    close(gate[0]);
    area_unmap(&other);
    return hash;
}

/* ---- busy: fork while threads rewrite pages ---- */

enum { WRITERS = 3, FORKS = 6 };

struct writer {
    struct area *area;
    size_t from, count;
    atomic_int *stop;
};

/* Word 0 is the version of the other words, which are written after it in address order. */
static void write_telling(unsigned char *at, uint64_t id, uint32_t version)
{
    volatile uint64_t *word = (volatile uint64_t *)at;
    uint64_t value = seed_of(id, version);
    word[0] = version;
    for (size_t i = 1; i < WORDS; i++)
        word[i] = value + i;
}

/* A fork may copy a half-written page: new words first, then words of the previous version. */
static void check_telling(const unsigned char *at, uint64_t id, const char *where)
{
    const volatile uint64_t *word = (const volatile uint64_t *)at;
    uint32_t version = (uint32_t)word[0];
    if (version == 0) {
        check_page(at, id, 0, where);
        return;
    }
    uint64_t now = seed_of(id, version), before = seed_of(id, version - 1);
    size_t i = 1;
    while (i < WORDS && word[i] == now + i)
        i++;
    for (; i < WORDS; i++)
        if (word[i] != (version == 1 ? 0 : before + i))
            die("%s: page %llu is torn: version %u, word %zu: %016llx", where,
                (unsigned long long)id, version, i, (unsigned long long)word[i]);
}

static void *rewrite_until_stopped(void *argument)
{
    struct writer *writer = argument;
    for (uint32_t version = 1; !atomic_load(writer->stop) || version < 3; version++)
        for (size_t page = writer->from; page < writer->from + writer->count; page++)
            write_telling(writer->area->base + page * PAGE, page, version);
    return NULL;
}

static void check_snapshot(struct area *area, size_t quiet)
{
    area_check_part(area, 0, quiet, "busy: the child's quiet part");
    for (size_t page = quiet; page < area->pages; page++) {
        check_telling(area->base + page * PAGE, page, "busy: the child's snapshot");
        fill_page(area->base + page * PAGE, page, 60);
    }
    for (size_t page = quiet; page < area->pages; page++)
        check_page(area->base + page * PAGE, page, 60, "busy: the child's own");
}

static uint64_t busy(size_t pages)
{
    struct area area = area_map(pages, 5 << 20);
    size_t quiet = pages - WRITERS * (pages / 8);
    atomic_int stop = 0;
    struct writer writers[WRITERS];
    pthread_t threads[WRITERS];
    area_fill(&area, 0, quiet, 1);
    for (size_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){&area, quiet + i * (pages / 8), pages / 8, &stop};
        MUST(pthread_create(&threads[i], NULL, rewrite_until_stopped, &writers[i]) == 0);
    }
    for (uint32_t i = 0; i < FORKS; i++) {
        pid_t child = must_fork();
        if (child == 0) {
            check_snapshot(&area, quiet);
            _exit(0);
        }
        write_runs(&area, 0, 2 * quiet, 2 + i);
        must_finish(child, "busy");
    }
    atomic_store(&stop, 1);
    for (size_t i = 0; i < WRITERS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    for (size_t page = quiet; page < pages; page++)
        check_telling(area.base + page * PAGE, page, "busy: the parent");
    area_check_part(&area, 0, quiet, "busy: the parent's quiet part");
    area.pages = quiet;
    uint64_t hash = area_hash(&area);
    area.pages = pages;
    area_unmap(&area);
    return hash;
}

/* ---- advice: madvise about children ---- */

static uint64_t advice(size_t pages)
{
    struct area area = area_map(pages, 6 << 20);
    area_fill(&area, 0, pages, 1);
    size_t half = pages / 2;
    int wiped = madvise(area.base + half * PAGE, (pages - half) * PAGE, MADV_WIPEONFORK) == 0;
    MUST(wiped || errno == EINVAL);
    pid_t child = must_fork();
    if (child == 0) {
        if (wiped)
            area_zeroed(&area, half, pages - half);
        area_check(&area, "advice: the child");
        _exit(0);
    }
    must_finish(child, "advice");
    area_check(&area, "advice: the parent");
    uint64_t hash = area_hash(&area);
    area_unmap(&area);
    return hash;
}

static const struct section SECTIONS[] = {
    {"turns", turns}, {"nested", nested}, {"orphans", orphans}, {"busy", busy},
    {"advice", advice}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_sections(SECTIONS, count, arguments);
}
