/* Runs a command behind a filter that refuses those of Highwater's system calls that Docker's
 * default profile refuses:   docker COMMAND...
 */
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define REFUSE(call, error)                                     \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1),      \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))

int main(int count, char **arguments)
{
    MUST(count > 1);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(userfaultfd, EPERM),
        REFUSE(io_uring_setup, EPERM),
        REFUSE(process_madvise, EPERM),
        REFUSE(pidfd_getfd, EPERM),
        REFUSE(kcmp, EPERM),
        REFUSE(unshare, EPERM),
        REFUSE(clone3, ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    execvp(arguments[1], arguments + 1);
    die("%s: %s", arguments[1], strerror(errno));
}
