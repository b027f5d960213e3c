/* Work on small stacks (a thread's of 16 KiB, or a coroutine's of 8 KiB): the first request,
 * faults, a system call, a forked child that needs its memory, and the start of programs.
 *
 *   small_stacks
 */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <ucontext.h>

extern char **environ;

enum { PAGES = 6144 };

static char *memory;

static void expect_success(pid_t child)
{
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    if (status != 0)
        die("a child's status is %x", status);
}

static void check_all(const char *where)
{
    for (size_t page = 0; page < PAGES; page++)
        check_page(memory + page * PAGE, page, 1, where);
}

static void work(void)
{
    memory = malloc(PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++)
        fill_page(memory + page * PAGE, page, 1);
    check_all("after the first request");

    int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    MUST(zero >= 0 && read(zero, memory, PAGE) == PAGE);
    close(zero);
    check_page(memory, 0, 0, "a page that was read");
    fill_page(memory, 0, 1);

    pid_t child = fork();
    if (child == 0) {
        check_all("a child");
        _exit(0);
    }
    expect_success(child);

    char *arguments[] = {"true", NULL};
    if ((child = fork()) == 0) {
        execl("/bin/true", "true", NULL);
        _exit(3);
    }
    expect_success(child);
    if ((child = vfork()) == 0) {
        execvp("true", arguments);
        _exit(3);
    }
    expect_success(child);
    MUST(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
    expect_success(child);
    check_all("at the end");
    free(memory);
}

static void *thread(void *unused)
{
    work();
    return unused;
}

static void on_thread(void)
{
    pthread_attr_t attributes;
    pthread_t made;
    MUST(pthread_attr_init(&attributes) == 0);
    MUST(pthread_attr_setstacksize(&attributes, 4 * PAGE) == 0);
    MUST(pthread_create(&made, &attributes, thread, NULL) == 0);
    MUST(pthread_join(made, NULL) == 0);
}

static void on_coroutine(void)
{
    static ucontext_t back, coroutine;
    char *stack = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    MUST(stack != MAP_FAILED && mprotect(stack, PAGE, PROT_NONE) == 0);
    MUST(getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = stack + PAGE;
    coroutine.uc_stack.ss_size = 2 * PAGE;
    coroutine.uc_link = &back;
    makecontext(&coroutine, work, 0);
    MUST(swapcontext(&back, &coroutine) == 0);
}

int main(void)
{
    /* Each in a process that makes its first request there. */
    void (*const places[])(void) = {on_thread, on_coroutine};
    for (size_t at = 0; at < sizeof places / sizeof *places; at++) {
        pid_t child = fork();
        if (child == 0) {
            places[at]();
            _exit(0);
        }
        expect_success(child);
    }
    on_coroutine();
    puts("ok");
    return 0;
}
