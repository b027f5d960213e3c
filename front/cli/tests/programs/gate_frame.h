/* Runs cases, each with its arguments in ordinary memory and in several places of paged memory that
 * is swapped out, and compares their recorded results, error numbers and contents.
 *
 *   case: put(), room() ... swapped() CALL() ... ---> entries, one list per place ---> compare
 *
 * Until swapped(), a case only fills memory: all places get that far before their pages are swapped
 * out together. From there on the places run one after the other.
 */
#ifndef GATE_FRAME_H
#define GATE_FRAME_H

#include "check.h"

#include <sys/syscall.h>
#include <ucontext.h>

/* REFERENCE and FRESH_REFERENCE are ordinary memory. */
enum place {
    REFERENCE,       /* what the next three are compared with */
    START,           /* at the start of a page */
    STRADDLE,        /* across a page border */
    HALF,            /* across a page border; of the pages, every second one is resident */
    FRESH_REFERENCE, /* of zeros; what the next one is compared with */
    FRESH,           /* across a page border; room() was never touched */
    PLACES
};

static const char *const PLACE_NAMES[] = {"ordinary", "start", "straddle", "half",
                                          "ordinary zeros", "fresh"};

/* Properties of a case. */
enum { ONCE = 0, LENGTHS = 1, ALIGNED = 2 };

struct gate_case {
    const char *name;
    void (*run)(size_t length);
    int needs;
};

#define CASE(function, needs) {#function, function, needs}

enum { ROOM = 1 << 20, STACK = 1 << 17, GUARD = 64, BLOCKS = 96, ENTRIES = 8192 };
enum { SLICES = 6, PAGED_PLACES = 4, EDGE = 16 * 4096, FILLER = 24 << 20, STEP = 2 << 20 };

struct block {
    unsigned char *at;
    size_t size;
    int noted;
};

struct entry {
    const char *what;
    size_t offset, length;
};

struct run {
    ucontext_t context;
    enum place place;
    int aligned, done;
    unsigned char *next, *end, *border;
    size_t blocks, entries, logged, calls;
    struct block block[BLOCKS];
    struct entry entry[ENTRIES];
    unsigned char log[4 * ROOM];
};

static struct run runs[PLACES], *now;
static ucontext_t scheduler;
static _Alignas(64) unsigned char stacks[PLACES][STACK];
static _Alignas(4096) unsigned char ordinary[2][ROOM];
static unsigned char *arena, *filler, *shared_edges;
static const struct gate_case *current;
static size_t current_length, slice;
/* Whether pages are swapped out: unknown, no, yes. */
static int evicts = -1;
/* How often all pages were swapped out, and how often some stayed, as in a batch of another CPU. */
static size_t times_out, times_stayed;

/* ---- what a case records ---- */

__attribute__((unused))
static void look(const char *what, const void *at, size_t length)
{
    if (now->entries == ENTRIES || now->logged + length > sizeof now->log)
        die("%s: too much is noted", current->name);
    now->entry[now->entries++] = (struct entry){what, now->logged, length};
    memcpy(now->log + now->logged, at, length);
    now->logged += length;
}

__attribute__((unused))
static void note(const char *what, long value)
{
    look(what, &value, sizeof value);
}

static long called(const char *what, long result)
{
    int error = result == -1 ? errno : 0;
    note(what, result);
    note(what, error);
    now->calls++;
    errno = error;
    return result;
}

static long tried(const char *what, long result)
{
    int error = result < 0 ? errno : 0;
    called(what, result < 0 ? -1 : 0);
    errno = error;
    return result;
}

/* Makes a call; records its result and error number. */
#define CALL(call) called(#call, (errno = 0, (long)(call)))
/* For results that vary, such as those of open. */
#define TRY(call) tried(#call, (errno = 0, (long)(call)))

/* ---- memory for arguments ---- */

static int is_ordinary(void)
{
    return now->place == REFERENCE || now->place == FRESH_REFERENCE;
}

static unsigned char fill(void)
{
    return now->place == FRESH_REFERENCE || now->place == FRESH ? 0 : 0xa5;
}

static unsigned char *take(size_t size, int noted)
{
    size_t before = size / 2 < 600 ? size / 2 : 600;
    unsigned char *at = now->next + PAGE;
    if (now->place != START && !is_ordinary())
        at += PAGE - before;
    if (now->aligned)
        at = (unsigned char *)((uintptr_t)at & ~7ul);
    now->next = (unsigned char *)(((uintptr_t)at + size + GUARD + PAGE - 1) & ~(PAGE - 1));
    if (now->next > now->end || now->blocks == BLOCKS)
        die("%s: too much memory", current->name);
    now->block[now->blocks++] = (struct block){at, size, noted};
    if (now->place != FRESH)
        memset(at - GUARD, fill(), size + 2 * GUARD);
    return at;
}

/* Room for a result; its contents are compared at the end of the case. */
__attribute__((unused))
static void *room(size_t size)
{
    return take(size, 1);
}

/* Room for a result that varies. */
__attribute__((unused))
static void *vary(size_t size)
{
    return take(size, 0);
}

__attribute__((unused))
static void *put(const void *from, size_t size)
{
    return memcpy(take(size, 1), from, size);
}

/* For structures that contain addresses or descriptors. */
__attribute__((unused))
static void *put_varying(const void *from, size_t size)
{
    return memcpy(take(size, 0), from, size);
}

#define PUT(type, ...) ((type *)put(&(type){__VA_ARGS__}, sizeof(type)))
#define PUT_VARYING(type, ...) ((type *)put_varying(&(type){__VA_ARGS__}, sizeof(type)))

__attribute__((unused))
static char *text(const char *from)
{
    return put(from, strlen(from) + 1);
}

static void fill_pattern(unsigned char *at, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; i++)
        at[i] = (unsigned char)(mix(seed + i / 8) >> i % 8 * 8);
}

/* Bytes to be written. */
__attribute__((unused))
static unsigned char *pattern(size_t length, uint64_t seed)
{
    unsigned char *at = take(length, 1);
    fill_pattern(at, length, seed);
    return at;
}

/* The border between EDGE bytes of good memory and EDGE bytes that spoil() makes bad. */
__attribute__((unused))
static unsigned char *edge(void)
{
    unsigned char *at = (unsigned char *)(((uintptr_t)now->next + PAGE - 1) & ~(PAGE - 1));
    if (is_ordinary())
        at = shared_edges + (now->place == REFERENCE ? 0 : 4 * EDGE) + EDGE;
    else
        now->next = at + 2 * EDGE + PAGE;
    MUST(now->border == NULL && now->next <= now->end);
    fill_pattern(at, 2 * EDGE, 77);
    now->block[now->blocks++] = (struct block){at, EDGE, 0};
    return now->border = at + EDGE;
}

enum bad { HOLE, NO_ACCESS, READ_ONLY, GOOD };

/* Not before swapped(), or another mapping could be placed in the hole. */
__attribute__((unused))
static void spoil(unsigned char *border, enum bad bad)
{
    static const int protections[] = {0, PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};
    int kind = is_ordinary() ? MAP_SHARED : MAP_PRIVATE;
    if (bad == HOLE)
        MUST(munmap(border, EDGE) == 0);
    else
        MUST(mmap(border, EDGE, protections[bad], kind | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
             == border);
}

/* ---- swapping out ---- */

static size_t resident(const unsigned char *at, size_t size)
{
    static unsigned char vec[2 * ROOM / 4096];
    uintptr_t first = (uintptr_t)at & ~(PAGE - 1), end = (uintptr_t)at + size;
    size_t count = 0, pages = (end - first + PAGE - 1) / PAGE;
    MUST(pages <= sizeof vec && syscall(SYS_mincore, first, pages * PAGE, vec) == 0);
    for (size_t i = 0; i < pages; i++)
        count += vec[i] & 1;
    return count;
}

static size_t all_resident(void)
{
    size_t count = 0;
    for (struct run *run = runs; run < runs + PLACES; run++)
        for (size_t i = 0; i < run->blocks; i++)
            if (run->place != REFERENCE && run->place != FRESH_REFERENCE)
                count += resident(run->block[i].at, run->block[i].size);
    return count;
}

/* Writes to new pages until none of `at` is resident; `at` NULL: none of the blocks of all runs.
 * Old pages would be used in a loop, in which most pages stay in memory. */
static void evict(const unsigned char *at, size_t size)
{
    static size_t position;
    for (size_t done = 0; evicts != 0 && done < FILLER; done += STEP) {
        MUST(madvise(filler + position, STEP, MADV_DONTNEED) == 0);
        for (size_t i = 0; i < STEP; i += PAGE)
            filler[position + i]++;
        position = (position + STEP) % FILLER;
        if ((at ? resident(at, size) : all_resident()) == 0) {
            evicts = 1;
            times_out++;
            return;
        }
    }
    if (evicts == -1)
        evicts = 0;
    times_stayed += evicts == 1;
}

/* Swaps out the memory that the case has filled. */
__attribute__((unused))
static void swapped(void)
{
    MUST(swapcontext(&now->context, &scheduler) == 0);
    for (size_t i = 0; now->place == HALF && i < now->blocks; i++) {
        uintptr_t first = (uintptr_t)now->block[i].at & ~(PAGE - 1);
        uintptr_t end = (uintptr_t)now->block[i].at + now->block[i].size;
        for (uintptr_t page = first + PAGE; page < end; page += 2 * PAGE)
            *(volatile unsigned char *)page;
    }
}

/* Again, when the turn of a place comes. */
__attribute__((unused))
static void swapped_again(void)
{
    if (!is_ordinary())
        for (size_t i = 0; i < now->blocks; i++)
            if (resident(now->block[i].at, now->block[i].size) > 0)
                evict(now->block[i].at, now->block[i].size);
}

/* ---- running ---- */

static void run_here(void)
{
    current->run(current_length);
    for (size_t i = 0; i < now->blocks; i++) {
        struct block *block = &now->block[i];
        if (now->border == block->at + EDGE)
            continue;
        for (size_t j = 0; j < GUARD; j++)
            if (block->at[-1 - (long)j] != fill() || block->at[block->size + j] != fill())
                die("%s (%s, length %zu): bytes outside argument %zu", current->name,
                    PLACE_NAMES[now->place], current_length, i);
        if (block->noted)
            look("an argument", block->at, block->size);
    }
    if (now->border)
        spoil(now->border, GOOD);
    now->done = 1;
}

static void prepare(struct run *run, enum place place)
{
    run->place = place;
    run->aligned = (current->needs & ALIGNED) != 0;
    run->done = 0;
    run->blocks = run->entries = run->logged = run->calls = 0;
    run->border = NULL;
    if (place == REFERENCE || place == FRESH_REFERENCE)
        run->next = ordinary[place == FRESH_REFERENCE];
    else
        run->next = arena + (slice * PAGED_PLACES + (place == FRESH ? 3 : place - START)) * ROOM;
    run->end = run->next + ROOM;
    if (place == FRESH)
        MUST(madvise(run->next, ROOM, MADV_DONTNEED) == 0);
    MUST(getcontext(&run->context) == 0);
    run->context.uc_stack.ss_sp = stacks[place];
    run->context.uc_stack.ss_size = STACK;
    run->context.uc_link = &scheduler;
    makecontext(&run->context, run_here, 0);
}

static void resume(struct run *run)
{
    now = run;
    if (!run->done)
        MUST(swapcontext(&scheduler, &run->context) == 0);
}

static void compare_runs(const struct run *wanted, const struct run *found)
{
    const char *place = PLACE_NAMES[found->place];
    for (size_t i = 0; i < wanted->entries && i < found->entries; i++) {
        const struct entry *a = &wanted->entry[i], *b = &found->entry[i];
        const unsigned char *in_a = wanted->log + a->offset, *in_b = found->log + b->offset;
        size_t at = 0, length = a->length < b->length ? a->length : b->length;
        while (at < length && in_a[at] == in_b[at])
            at++;
        if (at == length && a->length == b->length && strcmp(a->what, b->what) == 0)
            continue;
        if (length == sizeof(long)) {
            long values[2];
            memcpy(&values[0], in_a, sizeof(long));
            memcpy(&values[1], in_b, sizeof(long));
            die("%s (%s, length %zu): %s: %ld instead of %ld", current->name, place,
                current_length, b->what, values[1], values[0]);
        }
        die("%s (%s, length %zu): note %zu, %s: byte %zu of %zu: %02x instead of %02x",
            current->name, place, current_length, i, b->what, at, b->length, in_b[at], in_a[at]);
    }
    if (wanted->entries != found->entries)
        die("%s (%s): %zu notes instead of %zu", current->name, place, found->entries,
            wanted->entries);
}

/* Returns how many calls were made with ordinary memory. */
static size_t run_case(const struct gate_case *which, size_t length)
{
    current = which;
    current_length = length;
    slice = (slice + 1) % SLICES;
    for (int place = 0; place < PLACES; place++) {
        prepare(&runs[place], (enum place)place);
        resume(&runs[place]);
    }
    evict(NULL, 0);
    for (int place = 0; place < PLACES; place++)
        resume(&runs[place]);
    for (int place = 0; place < PLACES; place++)
        compare_runs(&runs[place < FRESH_REFERENCE ? REFERENCE : FRESH_REFERENCE], &runs[place]);
    return runs[REFERENCE].calls;
}

__attribute__((unused))
static void run_group(const char *name, const struct gate_case *cases)
{
    static const size_t lengths[] = {1, 100, 5000, 70000};
    size_t count = 0, calls = 0;
    for (; cases->name; cases++, count++)
        for (size_t i = 0; i < (cases->needs & LENGTHS ? 4 : 1); i++)
            calls += run_case(cases, lengths[i]);
    printf("%s: %zu cases, %zu calls in each place: ok\n", name, count, calls);
    fflush(stdout);
}

/* Fails if the cases did not test what they exist for. */
static void frame_end(void)
{
    if (times_stayed > times_out / 3)
        die("pages stayed in memory %zu times, left it %zu times", times_stayed, times_out);
}

static void frame_begin(void)
{
    arena = map_pages((size_t)SLICES * PAGED_PLACES * ROOM / PAGE);
    filler = map_pages(FILLER / PAGE);
    shared_edges = mmap(NULL, 8 * EDGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared_edges != MAP_FAILED);
}

#endif
