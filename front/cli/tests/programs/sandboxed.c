/* Loads a filter that ends the process at nearly all system calls, before the process has needed
 * memory, then uses some memory and exits, as sshd's processes do; or only asks whether the system
 * has filters, as Firefox does:   sandboxed prctl|seccomp|asks
 */
#define _GNU_SOURCE
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(int count, char **arguments)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_mmap), ALLOW(SYS_munmap), ALLOW(SYS_mremap), ALLOW(SYS_mprotect), ALLOW(SYS_brk),
        ALLOW(SYS_madvise), ALLOW(SYS_futex), ALLOW(SYS_write), ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    MUST(count == 2 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (strcmp(arguments[1], "asks") == 0) {
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT);
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno == EFAULT);
    } else if (strcmp(arguments[1], "prctl") == 0)
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
    else
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    size_t pages = 16 * MIB / PAGE;
    char *memory = malloc(pages * PAGE);
    for (size_t page = 0; page < pages; page++)
        fill_page(memory + page * PAGE, page, 1);
    for (size_t page = 0; page < pages; page++)
        check_page(memory + page * PAGE, page, 1, "in the sandbox");
    free(memory);
    MUST(write(STDOUT_FILENO, "ok\n", 3) == 3);
    exit(0);
}
