/* Processes that share memory: each fills a block, and checks it again and again.
 *
 *   shares work N MIB        N children with MIB each; each checks its block three times
 *   shares wake N MIB LARGE  N children with MIB each wait. The parent fills LARGE MiB, prints
 *                            "grown" and goes on checking. At a line of standard input it prints
 *                            "woken", and the children check, too, until standard input ends.
 *   shares kill N MIB        N children with MIB each check their blocks until standard input ends;
 *                            one that is killed is replaced. Prints "started", then "ended".
 */
#include "check.h"
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

static char *block(size_t mib, uint64_t id)
{
    char *pages = map_pages(mib * MIB / PAGE);
    for (size_t page = 0; page < mib * MIB / PAGE; page++)
        fill_page(pages + page * PAGE, id + page, 1);
    return pages;
}

static void check_block(const char *pages, size_t mib, uint64_t id)
{
    for (size_t page = 0; page < mib * MIB / PAGE; page++)
        check_page(pages + page * PAGE, id + page, 1, "a block");
}

/* Whether a line can be read, or standard input has ended. */
static int input_is_there(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, 0) == 1;
}

static void check_until_input(const char *pages, size_t mib, uint64_t id)
{
    do
        check_block(pages, mib, id);
    while (!input_is_there());
}

static void say(const char *word)
{
    MUST(puts(word) >= 0 && fflush(stdout) == 0);
}

static void await_children(int count)
{
    for (int status; count > 0; count--)
        MUST(wait(&status) > 0 && status == 0);
}

static void work(int count, size_t mib)
{
    for (int child = 0; child < count; child++) {
        uint64_t id = (uint64_t)child << 32;
        if (fork() == 0) {
            char *pages = block(mib, id);
            for (int round = 0; round < 3; round++)
                check_block(pages, mib, id);
            _exit(0);
        }
    }
    await_children(count);
    say("worked");
}

static void wake(int count, size_t mib, size_t large)
{
    int go[2];
    MUST(pipe(go) == 0);
    for (int child = 0; child < count; child++) {
        uint64_t id = (uint64_t)child << 32;
        if (fork() == 0) {
            char *pages = block(mib, id), byte;
            MUST(close(go[1]) == 0 && read(go[0], &byte, 1) == 0);
            check_until_input(pages, mib, id);
            _exit(0);
        }
    }
    uint64_t id = (uint64_t)count << 32;
    char *pages = block(large, id);
    say("grown");
    check_until_input(pages, large, id);
    for (char byte = 0; byte != '\n';)
        MUST(read(STDIN_FILENO, &byte, 1) == 1);
    MUST(close(go[0]) == 0 && close(go[1]) == 0);
    say("woken");
    check_until_input(pages, large, id);
    await_children(count);
}

static void start_one(size_t mib)
{
    if (fork() == 0) {
        uint64_t id = (uint64_t)getpid() << 32;
        char *pages = block(mib, id);
        check_until_input(pages, mib, id);
        _exit(0);
    }
}

static void replace_killed(int count, size_t mib)
{
    for (int child = 0; child < count; child++)
        start_one(mib);
    say("started");
    for (int status; wait(&status) > 0;) {
        MUST(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
        if (!input_is_there())
            start_one(mib);
    }
    say("ended");
}

int main(int argc, char **argv)
{
    MUST(argc >= 4);
    int count = (int)number(argv[2]);
    size_t mib = number(argv[3]);
    /* The parent touches memory of its own, so that it is served before it forks. */
    char *own = block(1, 1ull << 60);
    if (!strcmp(argv[1], "work"))
        work(count, mib);
    else if (!strcmp(argv[1], "wake") && argc == 5)
        wake(count, mib, number(argv[4]));
    else if (!strcmp(argv[1], "kill"))
        replace_killed(count, mib);
    else
        die("unknown section %s", argv[1]);
    check_block(own, 1, 1ull << 60);
    return 0;
}
