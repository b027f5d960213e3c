// Two processes that use memory until SIGTERM: the parent argv[1] MiB, its child half of that.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t ended;

static void end(int signal)
{
    (void)signal;
    ended = 1;
}

static void use(size_t bytes)
{
    volatile char *memory = malloc(bytes);
    if (!memory)
        exit(1);
    for (size_t at = 0; !ended; at = (at + 4096) % bytes)
        memory[at]++;
    free((void *)memory);
}

int main(int argc, char **argv)
{
    size_t bytes = (size_t)atoi(argc > 1 ? argv[1] : "32") << 20;
    signal(SIGTERM, end);
    // Nothing stays if the test fails.
    alarm(120);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, "watched-child");
        use(bytes / 2);
        return 0;
    }
    puts("ready");
    fflush(stdout);
    use(bytes);
    return waitpid(child, NULL, 0) == child ? 0 : 1;
}
