/* Lines from getline and getdelim, each kept in a block of its own, and texts from vasprintf:
 * every byte, end of file and errors are checked.   getlines LINES */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <stdarg.h>

enum { LONG = 100000, TEXTS = 2000 };

static size_t length_of(size_t line)
{
    return line % 1000 == 999 ? LONG : line * 7919 % 500;
}

/* Some bytes are 0; none is a newline or a semicolon. */
static char byte_of(size_t line, size_t at)
{
    return (char)((line * 31 + at * 7) % 256 % 10 == 0 ? 0 : 'a' + (line + at) % 26);
}

static void write_lines(FILE *file, size_t lines, int end)
{
    for (size_t i = 0; i < lines; i++) {
        for (size_t at = 0; at < length_of(i); at++)
            MUST(putc(byte_of(i, at), file) != EOF);
        /* The last line has no newline. */
        if (i + 1 < lines)
            MUST(putc(end, file) != EOF);
    }
    rewind(file);
}

static uint64_t check_line(const char *line, ssize_t length, size_t i, size_t lines, int end)
{
    size_t bytes = length_of(i) + (i + 1 < lines);
    if (length < 0 || (size_t)length != bytes)
        die("line %zu has %zd bytes, not %zu", i, length, bytes);
    uint64_t hash = i;
    for (size_t at = 0; at < length_of(i); at++) {
        if (line[at] != byte_of(i, at))
            die("line %zu: byte %zu", i, at);
        hash = mix(hash ^ (unsigned char)line[at]);
    }
    if ((i + 1 < lines && line[bytes - 1] != end) || line[bytes] != 0)
        die("line %zu ends wrongly", i);
    return hash;
}

/* A block for each line. */
static uint64_t keep_all(size_t lines)
{
    FILE *file = tmpfile();
    char **all = calloc(lines, sizeof *all);
    ssize_t *lengths = calloc(lines, sizeof *lengths);
    MUST(file && all && lengths);
    write_lines(file, lines, '\n');
    for (size_t i = 0; i < lines; i++) {
        size_t room = i; /* ignored without a block */
        errno = 77;
        lengths[i] = getline(&all[i], &room, file);
        if (errno != 77 || room < length_of(i) + 1)
            die("line %zu: errno %d, room %zu", i, errno, room);
    }
    char *none = NULL;
    size_t room = 0;
    MUST(getline(&none, &room, file) == -1 && feof(file) && none && room > 0);
    free(none);
    uint64_t hash = 0;
    for (size_t i = 0; i < lines; i++)
        hash = mix(hash ^ check_line(all[i], lengths[i], i, lines, '\n'));
    MUST(fclose(file) == 0);
    return hash;
}

/* One block for all lines, small at first. */
static uint64_t keep_one(size_t lines)
{
    FILE *file = tmpfile();
    size_t room = 4;
    char *line = malloc(room);
    uint64_t hash = 0;
    MUST(file && line);
    write_lines(file, lines, ';');
    for (size_t i = 0; i < lines; i++) {
        char *before = line;
        size_t roomy = room;
        ssize_t length = getdelim(&line, &room, ';', file);
        hash = mix(hash ^ check_line(line, length, i, lines, ';'));
        if (room < (size_t)length + 1 || room < roomy || (room == roomy && line != before))
            die("line %zu: %zu bytes of room after %zu", i, room, roomy);
    }
    MUST(getdelim(&line, &room, ';', file) == -1 && feof(file));
    errno = 0;
    MUST(getdelim(NULL, &room, ';', file) == -1 && errno == EINVAL);
    errno = 0;
    MUST(getline(&line, NULL, file) == -1 && errno == EINVAL);
    free(line);
    MUST(fclose(file) == 0);
    return hash;
}

__attribute__((format(printf, 1, 2))) static char *text_of(const char *format, ...)
{
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    MUST(length >= 0 && text && strlen(text) == (size_t)length);
    return text;
}

static uint64_t texts(void)
{
    uint64_t hash = 0;
    for (int i = 0; i < TEXTS; i++) {
        static char *all[TEXTS];
        char expected[600];
        double part = i / 3.0;
        all[i] = text_of("%d %s %.3f %0*d %c", i, "text", part, 450, i, 'x');
        snprintf(expected, sizeof expected, "%d %s %.3f %0*d %c", i, "text", part, 450, i, 'x');
        if (strcmp(all[i], expected) != 0)
            die("text %d: %s", i, all[i]);
        for (const char *at = all[i]; *at; at++)
            hash = mix(hash ^ (unsigned char)*at);
    }
    return hash;
}

int main(int count, char **arguments)
{
    if (count != 2)
        die("usage: %s LINES", arguments[0]);
    size_t lines = number(arguments[1]);
    unsigned long long kept = keep_all(lines), one = keep_one(lines), made = texts();
    printf("%016llx %016llx %016llx\n", kept, one, made);
    return 0;
}
