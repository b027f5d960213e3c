/* Bad arguments: a code and a line, never a crash, and nothing changes. */
#include "check.h"
#include <stdint.h>

/* Opens a memory with one setting besides a budget of 16 MiB. */
static highwater_status open_with(const char *name, const char *value)
{
    highwater_options *options = highwater_options_new();
    highwater_memory *memory = (highwater_memory *)8;
    OK(highwater_options_set(options, "memory", "16M"));
    highwater_options_set(options, name, value);
    highwater_status status = highwater_open(options, &memory);
    CHECK(memory == NULL);
    highwater_options_free(options);
    return status;
}

static void settings(void)
{
    const highwater_status setting = HIGHWATER_ERROR_SETTING;
    CHECK(failed(open_with("memory", "much"), setting, "'much' is not a size"));
    CHECK(failed(open_with("memory", "1M"), setting, "give 4 MiB or more"));
    CHECK(failed(open_with("memory", "1000T"), setting, "more than the memory of this machine"));
    CHECK(failed(open_with("memory-max", "8M"), setting, "less than memory, 16 MiB"));
    CHECK(failed(open_with("swap", "tape:1G"), setting, "unknown kind \"tape\""));
    CHECK(failed(open_with("swap", "dir:\xff:1G"), setting, "is not UTF-8"));
    CHECK(failed(open_with("seal", "maybe"), setting, "neither on nor off"));
    CHECK(failed(open_with("readahead", "17"), setting, "not 1 to 16"));
    CHECK(failed(open_with("memroy", "1G"), setting, "no setting is named 'memroy'"));
    CHECK(failed(open_with("swap", "dir:/nonexistent:1G"), HIGHWATER_ERROR_DEVICE,
                 "no such directory"));
}

static void nulls(highwater_memory *memory, char *paged)
{
    const highwater_status null = HIGHWATER_ERROR_NULL;
    uint64_t number;
    size_t size;
    void *address = paged;
    char byte;
    highwater_pin *pin;
    CHECK(failed(highwater_options_set(NULL, "memory", "1"), null, "options is NULL"));
    highwater_options *options = highwater_options_new();
    CHECK(failed(highwater_options_set(options, NULL, "1"), null, "name is NULL"));
    CHECK(failed(highwater_options_set(options, "memory", NULL), null, "value is NULL"));
    CHECK(failed(highwater_options_set_number(options, NULL, 1), null, "name is NULL"));
    CHECK(failed(highwater_open(options, NULL), null, "memory is NULL"));
    highwater_options_free(options);
    CHECK(failed(highwater_budget(NULL, &number), null, "memory is NULL"));
    CHECK(failed(highwater_budget(memory, NULL), null, "size is NULL"));
    CHECK(failed(highwater_set_budget(NULL, 1), null, "memory is NULL"));
    CHECK(failed(highwater_left(NULL, &number), null, "memory is NULL"));
    CHECK(failed(highwater_left(memory, NULL), null, "size is NULL"));
    CHECK(!highwater_serves_system_calls(NULL));
    CHECK(failed(highwater_alloc(NULL, 1, &address), null, "memory is NULL") && !address);
    CHECK(failed(highwater_alloc(memory, 1, NULL), null, "address is NULL"));
    CHECK(failed(highwater_resize(NULL, paged, 1, &address), null, "memory is NULL"));
    CHECK(failed(highwater_resize(memory, NULL, 1, &address), null, "address is NULL"));
    CHECK(failed(highwater_resize(memory, paged, 1, NULL), null, "moved is NULL"));
    CHECK(failed(highwater_free(NULL, paged), null, "memory is NULL"));
    CHECK(failed(highwater_size(NULL, paged, &size), null, "memory is NULL"));
    CHECK(failed(highwater_size(memory, NULL, &size), null, "address is NULL"));
    CHECK(failed(highwater_size(memory, paged, NULL), null, "size is NULL"));
    CHECK(failed(highwater_read(NULL, &byte, paged, 1), null, "memory is NULL"));
    CHECK(failed(highwater_read(memory, NULL, paged, 1), null, "to is NULL"));
    CHECK(failed(highwater_read(memory, &byte, NULL, 1), null, "from is NULL"));
    CHECK(failed(highwater_write(NULL, paged, &byte, 1), null, "memory is NULL"));
    CHECK(failed(highwater_write(memory, NULL, &byte, 1), null, "to is NULL"));
    CHECK(failed(highwater_write(memory, paged, NULL, 1), null, "from is NULL"));
    CHECK(failed(highwater_advise(NULL, paged, 1, 0), null, "memory is NULL"));
    CHECK(failed(highwater_advise(memory, NULL, 1, 0), null, "address is NULL"));
    CHECK(failed(highwater_pin_range(NULL, paged, 1, 0, &pin), null, "memory is NULL") && !pin);
    CHECK(failed(highwater_pin_range(memory, NULL, 1, 0, &pin), null, "address is NULL"));
    CHECK(failed(highwater_pin_range(memory, paged, 1, 0, NULL), null, "pin is NULL"));
    CHECK(failed(highwater_counter(NULL, "pgfault", &number), null, "memory is NULL"));
    CHECK(failed(highwater_counter(memory, NULL, &number), null, "name is NULL"));
    CHECK(failed(highwater_counter(memory, "pgfault", NULL), null, "value is NULL"));
    CHECK(failed(highwater_counters(NULL, &number, 1), null, "memory is NULL"));
    CHECK(failed(highwater_counters(memory, NULL, 1), null, "values is NULL"));
    /* These calls have nothing to free. */
    highwater_options_free(NULL);
    highwater_unpin(NULL);
    OK(highwater_free(memory, NULL));
    OK(highwater_close(NULL));
}

static void sizes(highwater_memory *memory, char *paged, size_t size)
{
    char bytes[16] = {0};
    void *address;
    highwater_pin *pin;
    const highwater_status invalid = HIGHWATER_ERROR_INVALID, unmapped = HIGHWATER_ERROR_NOT_MAPPED,
                           range = HIGHWATER_ERROR_RANGE;
    CHECK(failed(highwater_alloc(memory, 0, &address), invalid, "size is 0") && !address);
    CHECK(failed(highwater_alloc(memory, SIZE_MAX, &address), HIGHWATER_ERROR_FULL, "left"));
    address = paged;
    CHECK(failed(highwater_resize(memory, paged, 0, &address), invalid, "size is 0"));
    CHECK(failed(highwater_resize(memory, paged, SIZE_MAX, &address), HIGHWATER_ERROR_FULL,
                 "left") && address == paged);
    CHECK(failed(highwater_resize(memory, paged + 1, 1, &address), unmapped, "begins"));
    CHECK(failed(highwater_free(memory, bytes), unmapped, "no mapping of this memory begins"));
    CHECK(failed(highwater_free(memory, paged + 4096), unmapped, "begins"));
    CHECK(failed(highwater_size(memory, paged + 1, &(size_t){0}), unmapped, "not its first"));
    CHECK(failed(highwater_read(memory, bytes, paged + size, 1), unmapped, "in no mapping"));
    CHECK(failed(highwater_read(memory, bytes, paged + size - 1, 2), range, "behind the end"));
    CHECK(failed(highwater_read(memory, bytes, paged, SIZE_MAX), range, "behind the end"));
    CHECK(failed(highwater_write(memory, paged + size - 1, bytes, 2), range, "behind the end"));
    CHECK(failed(highwater_write(memory, bytes, paged, 1), unmapped, "in no mapping"));
    CHECK(failed(highwater_advise(memory, paged, size + 1, 0), range, "behind the end"));
    CHECK(failed(highwater_advise(memory, paged, size, 5), invalid, "advice 5"));
    CHECK(failed(highwater_advise(memory, paged, size, -1), invalid, "advice -1"));
    CHECK(failed(highwater_pin_range(memory, paged, 0, 0, &pin), invalid, "size of 0"));
    CHECK(failed(highwater_pin_range(memory, paged, 1, 2, &pin), invalid, "access") && !pin);
    CHECK(failed(highwater_set_budget(memory, 1 << 20), HIGHWATER_ERROR_SETTING, "4 MiB or more"));
    CHECK(failed(highwater_set_budget(memory, 1 << 30), HIGHWATER_ERROR_SETTING, "memory_max"));
    uint64_t value;
    CHECK(failed(highwater_counter(memory, "pgfalut", &value), invalid, "'pgfalut'"));
    CHECK(failed(highwater_counters(memory, &value, 100000), range, "asked for"));
    OK(highwater_read(memory, bytes, paged, 0));
    OK(highwater_advise(memory, paged, 0, HIGHWATER_ADVICE_DONTNEED));
}

int main(void)
{
    const size_t size = 3 * 4096 + 5;
    CHECK(strcmp(highwater_error_message(), "") == 0);
    CHECK(strcmp(highwater_version(), HIGHWATER_VERSION) == 0);
    CHECK(strcmp(highwater_status_name(HIGHWATER_ERROR_BUSY), "HIGHWATER_ERROR_BUSY") == 0);
    CHECK(strcmp(highwater_status_name(-1), "unknown") == 0);
    settings();
    highwater_memory *memory = open_memory("ram:32M");
    char *paged = alloc(memory, size);
    memset(paged, 7, size);
    nulls(memory, paged);
    sizes(memory, paged, size);
    size_t found;
    OK(highwater_size(memory, paged, &found));
    CHECK(found == size);
    for (size_t at = 0; at < size; at++)
        CHECK(paged[at] == 7);
    OK(highwater_free(memory, paged));
    CHECK(failed(highwater_free(memory, paged), HIGHWATER_ERROR_NOT_MAPPED, "begins"));
    OK(highwater_close(memory));
    return 0;
}
