/*
 * A swap file that loses pages: a checked copy returns an error. With a second argument, the pages
 * are read through a plain pointer: the process ends.
 */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <unistd.h>

#define SIZE ((size_t)32 << 20)

/* Truncates the files of this process that lie in a directory. */
static int truncate_files(const char *directory)
{
    int found = 0;
    DIR *open = opendir("/proc/self/fd");
    CHECK(open);
    for (struct dirent *entry; (entry = readdir(open));) {
        char path[512], target[512] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) > 0 &&
            strncmp(target, directory, strlen(directory)) == 0)
            found += ftruncate(atoi(entry->d_name), 0) == 0;
    }
    closedir(open);
    return found;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    char swap[512], bytes[4096];
    snprintf(swap, sizeof swap, "dir:%s:64M", argv[1]);
    highwater_memory *memory = open_memory(swap);
    char *paged = alloc(memory, SIZE);
    memset(paged, 5, SIZE);
    /* Afterwards all pages are in the file, so no later write makes the truncated file longer. */
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < SIZE; at += 4096)
            CHECK(paged[at] == 5);
    CHECK(truncate_files(argv[1]) == 1);
    for (size_t at = 0; argc == 2 && at < SIZE; at += 4096) {
        memset(bytes, 0, sizeof bytes);
        highwater_status status = highwater_read(memory, bytes, paged + at, 4096);
        if (status == HIGHWATER_OK) {
            CHECK(bytes[0] == 5 && bytes[4095] == 5);
            continue;
        }
        CHECK(failed(status, HIGHWATER_ERROR_READ, "could not be read"));
        OK(highwater_close(memory));
        return 0;
    }
    for (size_t at = 0; at < SIZE; at++)
        CHECK(paged[at] == 5);
    return 1;
}
