/* Works on memory whose contents it knows, while swap devices come and go.
 *
 *   devices N MIB   fills MIB, and forks N children, which begin with the same contents. Each reads
 *                   pages at random, and writes every third, until standard input ends. Prints
 *                   "started", and "ended" if all contents were right.
 */
#include "check.h"
#include <poll.h>
#include <sys/wait.h>

static int input_ended(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, 0) == 1;
}

static void say(const char *word)
{
    MUST(puts(word) >= 0 && fflush(stdout) == 0);
}

static void work(char *pages, uint32_t *versions, size_t count, uint64_t random)
{
    while (!input_ended()) {
        for (int step = 0; step < 256; step++) {
            size_t page = next_random(&random) % count;
            check_page(pages + page * PAGE, page, versions[page], "at work");
            if (next_random(&random) % 3 == 0)
                fill_page(pages + page * PAGE, page, ++versions[page]);
        }
    }
    for (size_t page = 0; page < count; page++)
        check_page(pages + page * PAGE, page, versions[page], "at the end");
}

int main(int argc, char **argv)
{
    MUST(argc == 3);
    int children = atoi(argv[1]);
    size_t count = (size_t)atoi(argv[2]) * MIB / PAGE;
    char *pages = malloc(count * PAGE);
    uint32_t *versions = malloc(count * sizeof *versions);
    MUST(pages && versions);
    for (size_t page = 0; page < count; page++)
        fill_page(pages + page * PAGE, page, versions[page] = 1);
    for (int child = 0; child < children; child++) {
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            work(pages, versions, count, (uint64_t)child);
            _exit(0);
        }
    }
    say("started");
    work(pages, versions, count, 99);
    for (int status; children > 0; children--)
        MUST(wait(&status) > 0 && status == 0);
    say("ended");
}
