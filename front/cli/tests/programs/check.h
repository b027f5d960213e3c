/* Shared by the test programs: contents which follow from (page, version), and how to fail.
 *
 * A page has an identity (which never changes, even if the page is moved) and a version. Version 0
 * is an unwritten page: all zeros. Every word of a page differs from every word of any other page
 * or version, so a page that is lost, stale, torn or swapped with another page cannot go unnoticed.
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
#define MIB (1ul << 20)

/* Prints an error and exits with status 1, in a forked child too. */
__attribute__((format(printf, 1, 2), noreturn, unused))
static void die(const char *format, ...)
{
    char line[512];
    int said = snprintf(line, sizeof line, "wrong (pid %d): ", getpid());
    va_list arguments;
    va_start(arguments, format);
    said += vsnprintf(line + said, sizeof line - (size_t)said - 1, format, arguments);
    va_end(arguments);
    if ((size_t)said > sizeof line - 2)
        said = sizeof line - 2;
    line[said++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)said) < 0)
        _exit(2);
    _exit(1);
}

/* For calls that must succeed. */
#define MUST(condition) \
    ((condition) ? (void)0 : die("%s:%d: %s: %s", __FILE__, __LINE__, #condition, strerror(errno)))

/* The finaliser of splitmix64: a bijection, so that different inputs have different outputs. */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* The next number of a pseudo-random sequence with this state. */
static inline uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    return mix(*state);
}

/* The first word of page `id` at `version`; the others follow by addition. */
static inline uint64_t seed_of(uint64_t id, uint32_t version)
{
    return version == 0 ? 0 : mix(id << 24 ^ version);
}

static inline uint64_t step_of(uint32_t version)
{
    return version == 0 ? 0 : 0xd1342543de82ef95ull;
}

/* Volatile, in address order: a copy taken meanwhile holds the new words as a prefix. */
__attribute__((unused))
static void fill_page(void *at, uint64_t id, uint32_t version)
{
    volatile uint64_t *word = at;
    uint64_t value = seed_of(id, version), step = step_of(version);
    for (size_t i = 0; i < WORDS; i++, value += step)
        word[i] = value;
}

__attribute__((unused))
static void check_page(const void *at, uint64_t id, uint32_t version, const char *where)
{
    const volatile uint64_t *word = at;
    uint64_t value = seed_of(id, version), step = step_of(version);
    for (size_t i = 0; i < WORDS; i++, value += step) {
        uint64_t found = word[i];
        if (found != value)
            die("%s: page %llu version %u at %p, word %zu: %016llx instead of %016llx", where,
                (unsigned long long)id, version, at, i, (unsigned long long)found,
                (unsigned long long)value);
    }
}

/* Bytes [offset, offset + length) of the pages from `id` on, all at `version`. */
__attribute__((unused))
static void expect_bytes(unsigned char *out, uint64_t id, uint32_t version, size_t offset,
                         size_t length)
{
    for (size_t done = 0; done < length;) {
        size_t at = offset + done, inside = at % 8, word = at % PAGE / 8;
        uint64_t value = seed_of(id + at / PAGE, version) + step_of(version) * word;
        size_t take = 8 - inside < length - done ? 8 - inside : length - done;
        memcpy(out + done, (unsigned char *)&value + inside, take);
        done += take;
    }
}

/* A checksum of the actual contents. */
__attribute__((unused))
static uint64_t hash_bytes(uint64_t hash, const void *at, size_t length)
{
    const uint64_t *word = at;
    for (size_t i = 0; i < length / 8; i++)
        hash = ((hash ^ word[i]) << 23 | (hash ^ word[i]) >> 41) * 0x9e3779b97f4a7c15ull;
    return hash;
}

/* An anonymous private mapping of zeros; the only kind that Highwater pages. */
__attribute__((unused))
static void *map_pages(size_t pages)
{
    void *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap of %zu pages: %s", pages, strerror(errno));
    return at;
}

__attribute__((unused))
static size_t number(const char *text)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (end == text || *end != '\0')
        die("not a number: %s", text);
    return value;
}

#endif
