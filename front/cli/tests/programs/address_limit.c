/* A program that limits its addresses, and one that limits its data (RLIMIT_AS, RLIMIT_DATA). Each
 * can use as much as its limit says, and the memory manager's range takes nothing away from its
 * threads, shared memory and children.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* RLIMIT_AS or RLIMIT_DATA. */
static int resource;

static void *nothing(void *argument)
{
    return argument;
}

static void limit(rlim_t soft, rlim_t hard)
{
    struct rlimit new = {soft, hard};
    MUST(setrlimit(resource, &new) == 0);
}

static void show(const char *who)
{
    struct rlimit seen, again;
    MUST(getrlimit(resource, &seen) == 0 && prlimit(0, resource, NULL, &again) == 0);
    MUST(seen.rlim_cur == again.rlim_cur && seen.rlim_max == again.rlim_max);
    printf("%s: %llu and %llu MiB\n", who, (unsigned long long)seen.rlim_cur / MIB,
           (unsigned long long)seen.rlim_max / MIB);
    fflush(stdout);
}

/* Uses as much as the limit allows; a larger request is refused. */
static void use(void)
{
    size_t size = 48 * MIB;
    unsigned char *at = malloc(size);
    MUST(at != NULL);
    memset(at, 7, size);
    errno = 0;
    MUST(malloc(4096 * MIB) == NULL && errno == ENOMEM);
    void *much = mmap(NULL, 4096 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(much == MAP_FAILED && errno == ENOMEM);
    void *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED && munmap(shared, MIB) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    for (size_t i = 0; i < size; i += PAGE)
        MUST(at[i] == 7);
    free(at);
}

static void await(pid_t child)
{
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void execute(const char *who)
{
    execl("/proc/self/exe", "address_limit", who, resource == RLIMIT_AS ? "as" : "data", NULL);
    _exit(1);
}

static int go(int of)
{
    resource = of;
    show("before");
    limit(1024 * MIB, 2048 * MIB);
    show("limited");
    use();
    struct rlimit wrong = {2, 1};
    MUST(setrlimit(resource, &wrong) == -1 && errno == EINVAL);
    limit(1536 * MIB, 1536 * MIB);
    show("raised");
    use();
    pid_t child = fork();
    if (child == 0) {
        show("forked");
        limit(1024 * MIB, 1024 * MIB);
        use();
        execute("executed");
    }
    await(child);
    child = vfork();
    if (child == 0) {
        execl("/nonexistent", "nothing", NULL);
        execute("executed by a child of vfork");
    }
    await(child);
    MUST(execl("/nonexistent", "nothing", NULL) == -1 && errno == ENOENT);
    use();
    show("after");
    return 0;
}

int main(int count, char **arguments)
{
    if (count > 1) {
        resource = strcmp(arguments[2], "as") ? RLIMIT_DATA : RLIMIT_AS;
        show(arguments[1]);
        use();
        return 0;
    }
    pid_t child = fork();
    if (child == 0)
        return go(RLIMIT_AS);
    await(child);
    return go(RLIMIT_DATA);
}
