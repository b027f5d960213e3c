/* A program of named sections: PROGRAM MIB [SECTION...]. Each needs MIB of memory at its peak and
 * prints one line with a checksum, which does not depend on timing. */
#ifndef SECTIONS_H
#define SECTIONS_H

#include "check.h"

struct section {
    const char *name;
    uint64_t (*run)(size_t pages);
};

static int section_wanted(const char *name, int count, char **names)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return 1;
    return count == 0;
}

/* Runs the sections named on the command line, or all. */
static int run_sections(const struct section *sections, int count, char **arguments)
{
    if (count < 2)
        die("usage: %s MIB [SECTION...]", arguments[0]);
    size_t pages = number(arguments[1]) * MIB / PAGE;
    int ran = 0;
    for (; sections->name; sections++) {
        if (!section_wanted(sections->name, count - 2, arguments + 2))
            continue;
        uint64_t hash = sections->run(pages);
        printf("%s %016llx\n", sections->name, (unsigned long long)hash);
        fflush(stdout);
        ran++;
    }
    if (ran == 0)
        die("no such section");
    return 0;
}

#endif
