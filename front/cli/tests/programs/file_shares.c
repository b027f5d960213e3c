/* Processes map one file, one after the other, so that the part of it that counts for each falls
 * while it does nothing:   file_shares MIB PROCESSES SECONDS
 * Makes the file in the working directory. Each process ends after SECONDS. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sys/wait.h>

#define NAME "file_shares.data"

static void make_file(size_t mib)
{
    int file = open(NAME, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    char *block = malloc(MIB);
    memset(block, 1, MIB);
    for (size_t i = 0; i < mib; i++)
        if (write(file, block, MIB) != (ssize_t)MIB)
            die("write: %s", strerror(errno));
    free(block);
    close(file);
}

/* Also needs paged memory, so that it has a manager. The mapping is writable, as a library's is
 * when it is loaded: the manager does not unmap its pages. */
static int reader(size_t mib, unsigned seconds)
{
    int file = open(NAME, O_RDONLY | O_CLOEXEC);
    char *bytes = mmap(NULL, mib * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    char *block = malloc(2 * MIB);
    if (bytes == MAP_FAILED || block == NULL)
        die("mmap: %s", strerror(errno));
    memset(block, 1, 2 * MIB);
    for (size_t at = 0; at < mib * MIB; at += PAGE)
        if (((volatile char *)bytes)[at] != 1)
            die("byte %zu", at);
    sleep(seconds);
    free(block);
    return 0;
}

int main(int count, char **arguments)
{
    size_t mib = strtoul(arguments[1], NULL, 10);
    int processes = atoi(arguments[2]);
    if (count > 4)
        return reader(mib, (unsigned)atoi(arguments[3]));
    make_file(mib);
    char *line[] = {arguments[0], arguments[1], arguments[2], arguments[3], "reader", NULL};
    for (int i = 0; i < processes; i++) {
        if (fork() == 0) {
            execv(line[0], line);
            die("execv: %s", strerror(errno));
        }
        usleep(200000);
    }
    int status;
    while (wait(&status) > 0)
        if (status != 0)
            die("a reader ended with %d", status);
    return 0;
}
