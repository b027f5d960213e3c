/* Sets handlers for SIGBUS and SIGSYS by system calls of its own, as Go's runtime does, and has the
 * ELF note of Go's linker. Then it fills and checks 64 MiB; either handler would end it. */
#include "check.h"
#include <signal.h>
#include <sys/syscall.h>

__asm__(".pushsection .note.go.buildid, \"a\", @note\n"
        ".p2align 2\n"
        ".long 4, 4, 4\n"
        ".asciz \"Go\\0\"\n"
        ".asciz \"now\"\n"
        ".popsection");

struct action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

static void took(int signal)
{
    (void)signal;
    _exit(3);
}

static void never(void)
{
    _exit(4);
}

static void take(long signal)
{
    const unsigned long restorer = 0x04000000;
    struct action action = {took, restorer, never, 0};
    long result = SYS_rt_sigaction;
#ifdef __x86_64__
    register long size __asm__("r10") = sizeof action.mask;
    __asm__ volatile("syscall" : "+a"(result)
                     : "D"(signal), "S"(&action), "d"(0L), "r"(size)
                     : "rcx", "r11", "memory");
    MUST(result == 0);
#else
    (void)action;
    (void)result;
#endif
}

int main(void)
{
    take(SIGBUS);
    take(SIGSYS);
    size_t pages = 64 * MIB / PAGE;
    char *at = malloc(pages * PAGE);
    MUST(at);
    for (size_t page = 0; page < pages; page++)
        fill_page(at + page * PAGE, page, 1);
    for (size_t page = 0; page < pages; page++)
        check_page(at + page * PAGE, page, 1, "a page");
    puts("ok");
    return 0;
}
