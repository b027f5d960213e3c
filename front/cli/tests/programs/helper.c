/* A paged program ends thread by thread, changes its credentials, closes every descriptor, forks
 * for generations, and is read by another process. None of this may affect the manager's threads,
 * which run in another process. See sections.h for usage. */
#define _GNU_SOURCE
#include "sections.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

static unsigned char *filled(size_t pages, uint32_t version)
{
    unsigned char *at = map_pages(pages);
    for (size_t page = 0; page < pages; page++)
        fill_page(at + page * PAGE, page, version);
    return at;
}

static uint64_t checked(const unsigned char *at, size_t pages, uint32_t version, const char *where)
{
    for (size_t page = 0; page < pages; page++)
        check_page(at + page * PAGE, page, version, where);
    return hash_bytes(1, at, pages * PAGE);
}

/* Runs `act` in a child that must exit with status 0. */
static void in_child(void (*act)(void *, size_t), void *of, size_t pages)
{
    fflush(NULL);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        act(of, pages);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (status != 0)
        die("the child ended with status %#x", status);
}

/* ---- threads: the last one ends by pthread_exit; in a forked child its only one returns ---- */

static void *ends_soon(void *of)
{
    usleep(20000);
    return of;
}

static void leave_last_thread(void *of, size_t pages)
{
    checked(of, pages, 1, "before the last thread");
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, ends_soon, NULL) == 0);
    pthread_exit(NULL);
}

struct forking {
    void *at;
    size_t pages;
};

static void *forks_and_returns(void *of)
{
    struct forking *forking = of;
    fflush(NULL);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        checked(forking->at, forking->pages, 1, "in a child of a thread");
        return NULL;
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    return of;
}

static uint64_t threads(size_t pages)
{
    void *at = filled(pages, 1);
    in_child(leave_last_thread, at, pages);
    struct forking forking = {at, pages};
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, forks_and_returns, &forking) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    return checked(at, pages, 1, "threads");
}

/* ---- seen: what /proc shows the program of itself ---- */

static long threads_seen(void)
{
    char line[256];
    long threads = 0;
    FILE *status = fopen("/proc/self/status", "r");
    MUST(status != NULL);
    while (fgets(line, sizeof line, status))
        sscanf(line, "Threads: %ld", &threads);
    fclose(status);
    return threads;
}

static void unshare_user(void *of, size_t pages)
{
    int alone = unshare(CLONE_NEWUSER);
    if (alone != 0 && errno == EINVAL)
        die("unshare: the process has several threads");
    checked(of, pages, 1, "in a user namespace of its own");
}

static uint64_t seen(size_t pages)
{
    void *at = filled(pages, 1);
    MUST(threads_seen() == 1);
    MUST(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
    in_child(unshare_user, at, pages);
    return checked(at, pages, 1, "seen");
}

/* ---- ignored: a served child executes a program while SIGCHLD is ignored ---- */

static void execute_ignoring(int flags, void (*handler)(int), size_t pages)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    int ends[2];
    MUST(sigaction(SIGCHLD, &action, NULL) == 0 && pipe(ends) == 0);
    fflush(NULL);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        checked(filled(pages, 2), pages, 2, "in the child");
        MUST(dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO);
        execl("/bin/sh", "sh", "-c", "sleep 0.2; echo alive", (char *)NULL);
        die("exec: %s", strerror(errno));
    }
    char found[16] = "";
    close(ends[1]);
    MUST(read(ends[0], found, sizeof found) == 6 && memcmp(found, "alive\n", 6) == 0);
    close(ends[0]);
}

static uint64_t ignored(size_t pages)
{
    void *at = filled(pages, 1);
    execute_ignoring(0, SIG_IGN, pages);
    execute_ignoring(SA_NOCLDWAIT, SIG_DFL, pages);
    signal(SIGCHLD, SIG_DFL);
    return checked(at, pages, 1, "ignored");
}

/* ---- groups: calls that the C library has every thread make, with paged pointers ---- */

static void set_groups(void *of, size_t pages)
{
    gid_t *groups = map_pages(1);
    if (setgroups(1, groups) != 0 && errno != EPERM)
        die("setgroups: %s", strerror(errno));
    checked(of, pages, 1, "after setgroups");
}

static uint64_t groups(size_t pages)
{
    void *at = filled(pages, 1);
    set_groups(at, pages);
    in_child(set_groups, at, pages);
    return checked(at, pages, 1, "groups");
}

/* ---- privileges: dropped before a fork ---- */

static void grow(void *of, size_t pages)
{
    checked(of, pages, 1, "in a child without privileges");
    for (size_t page = 0; page < pages; page++)
        fill_page((char *)of + page * PAGE, page, 2);
    checked(filled(pages, 3), pages, 3, "new memory without privileges");
    checked(of, pages, 2, "written without privileges");
}

static void give_up(void *of, size_t pages)
{
    if (geteuid() == 0)
        MUST(setgid(65534) == 0 && setuid(65534) == 0);
    checked(of, pages, 1, "without privileges");
    in_child(grow, of, pages);
}

static uint64_t privileges(size_t pages)
{
    void *at = filled(pages, 1);
    in_child(give_up, at, pages);
    return checked(at, pages, 1, "privileges");
}

/* ---- closed: all descriptors, by raw system calls ---- */

static void close_all(void *of, size_t pages)
{
    syscall(SYS_close_range, 3, ~0u, 0);
    for (size_t page = 0; page < pages; page++)
        fill_page((char *)of + page * PAGE, page, 2);
    checked(of, pages, 2, "with all descriptors closed");
}

static uint64_t closed(size_t pages)
{
    void *at = filled(pages, 1);
    in_child(close_all, at, pages);
    return checked(at, pages, 1, "closed");
}

/* ---- strict: a filter that allows four system calls ---- */

static void enter_strict(void *of, size_t pages)
{
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
        die("prctl: %s", strerror(errno));
    unsigned char *at = of;
    uint64_t wrong = 0;
    for (size_t page = 0; page < pages; page++)
        wrong += *(volatile uint64_t *)(at + page * PAGE) != seed_of(page, 1);
    syscall(SYS_exit, wrong != 0);
}

static uint64_t strict(size_t pages)
{
    void *at = filled(pages, 1);
    in_child(enter_strict, at, pages);
    return checked(at, pages, 1, "strict");
}

/* ---- read: by another process, at any time after fork, stopped or not ---- */

static void read_from(pid_t child, unsigned char *at, size_t pages, uint32_t version)
{
    static unsigned char copy[PAGE] __attribute__((aligned(4096)));
    for (size_t page = 0; page < pages; page++) {
        struct iovec to = {copy, PAGE}, from = {at + page * PAGE, PAGE};
        MUST(process_vm_readv(child, &to, 1, &from, 1, 0) == (ssize_t)PAGE);
        check_page(copy, page, version, "read from a child");
    }
}

static uint64_t read_child(size_t pages)
{
    unsigned char *at = filled(pages, 1);
    for (int delay = 0; delay < 40; delay++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0)
            for (;;)
                pause();
        usleep((useconds_t)delay * 50);
        read_from(child, at, 4, 1);
        MUST(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    }
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        for (size_t page = 0; page < pages; page++)
            fill_page(at + page * PAGE, page, 5);
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    read_from(child, at, pages, 5);
    MUST(kill(child, SIGCONT) == 0 && waitpid(child, &status, 0) == child && status == 0);
    return checked(at, pages, 1, "read");
}

/* ---- early: a child finds its own contents even if it is read from its first moment on ---- */

enum { EARLY_PAGES = 64, EARLY_CHILDREN = 60 };

static double milliseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

/* Reads of pages that are not registered yet may fail; they must not return or leave zeros. */
static void read_early(pid_t child, unsigned char *at, double until)
{
    static unsigned char copy[PAGE] __attribute__((aligned(4096)));
    for (size_t page = 0; milliseconds() < until; page = (page + 1) % EARLY_PAGES) {
        struct iovec to = {copy, PAGE}, from = {at + page * PAGE, PAGE};
        if (process_vm_readv(child, &to, 1, &from, 1, 0) == (ssize_t)PAGE)
            check_page(copy, page, 1, "read early from a child");
    }
}

static uint64_t early(size_t pages)
{
    unsigned char *at = filled(pages, 1);
    for (int number = 0; number < EARLY_CHILDREN; number++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            usleep(20000);
            checked(at, EARLY_PAGES, 1, "in a child that was read early");
            _exit(0);
        }
        read_early(child, at, milliseconds() + 15);
        int status;
        MUST(waitpid(child, &status, 0) == child && status == 0);
    }
    return checked(at, pages, 1, "early");
}

/* ---- generations: their number changes neither contents nor the number of descriptors ---- */

/* Each generation has the swap files of up to this many ancestors. */
enum { GENERATIONS = 24, ANCESTORS = 4 };

static int descriptors(void)
{
    int found = 0;
    DIR *dir = opendir("/proc/self/fd");
    MUST(dir != NULL);
    while (readdir(dir))
        found++;
    closedir(dir);
    return found;
}

static void descend(unsigned char *at, size_t pages, uint32_t now, int first)
{
    for (size_t page = 0; page < pages; page++)
        check_page(at + page * PAGE, page, page % GENERATIONS < now ? 2 : 1, "a generation");
    if (descriptors() > first + ANCESTORS)
        die("generation %u has %d descriptors, the first has %d", now, descriptors(), first);
    if (now == GENERATIONS)
        return;
    for (size_t page = now; page < pages; page += GENERATIONS)
        fill_page(at + page * PAGE, page, 2);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        struct rlimit few = {64, 64};
        MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
        descend(at, pages, now + 1, first);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

static uint64_t generations(size_t pages)
{
    unsigned char *at = filled(pages, 1);
    fflush(NULL);
    descend(at, pages, 0, descriptors());
    return hash_bytes(1, at, PAGE * GENERATIONS);
}

int main(int count, char **arguments)
{
    static const struct section sections[] = {
        {"threads", threads},   {"seen", seen},         {"groups", groups},
        {"closed", closed},     {"strict", strict},     {"read", read_child},
        {"early", early},       {"privileges", privileges}, {"generations", generations},
        {"ignored", ignored},
        {NULL, NULL},
    };
    return run_sections(sections, count, arguments);
}
