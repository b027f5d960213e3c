/* Forks and waits for children. */
#ifndef CHILDREN_H
#define CHILDREN_H

#include "check.h"

#include <sys/wait.h>

/* Checks that a child exits with status 0. */
static void must_finish(pid_t child, const char *where)
{
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("%s: child %d ended with status %#x", where, child, status);
}

static pid_t must_fork(void)
{
    fflush(NULL);
    pid_t child = fork();
    MUST(child >= 0);
    return child;
}

#endif
