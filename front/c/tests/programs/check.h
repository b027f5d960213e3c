/* Functions that the programs of the tests share. */
#ifndef CHECK_H
#define CHECK_H

#include <highwater.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: %s; last message: %s\n", __FILE__, __LINE__, #condition, \
                    highwater_error_message());                                              \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

#define OK(call) CHECK((call) == HIGHWATER_OK)

/* Whether a call has failed with this code and a message of one line that contains `part`. */
static inline int failed(highwater_status status, highwater_status expected, const char *part)
{
    const char *message = highwater_error_message();
    if (status == expected && strstr(message, part) && !strchr(message, '\n'))
        return 1;
    fprintf(stderr, "%s, not %s\n", highwater_status_name((int)status),
            highwater_status_name((int)expected));
    return 0;
}

/* A memory of 8 MiB. FAULTS in the environment says which threads serve faults. */
static inline highwater_memory *open_memory(const char *swap)
{
    highwater_options *options = highwater_options_new();
    const char *faults = getenv("FAULTS");
    OK(highwater_options_set_number(options, "memory", 8 << 20));
    OK(highwater_options_set(options, "swap", swap));
    if (faults)
        OK(highwater_options_set(options, "faults", faults));
    highwater_memory *memory;
    OK(highwater_open(options, &memory));
    highwater_options_free(options);
    return memory;
}

static inline void *alloc(highwater_memory *memory, size_t size)
{
    void *address;
    OK(highwater_alloc(memory, size, &address));
    return address;
}

#endif
