/* A program's own filters for system calls and for packets, whose structures and instructions are
 * swapped out, each as a section:   seccomp [SECTION...]
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* The error that a filter returns instead of making a call. */
#define ERROR 77

static void evict(void)
{
    static unsigned char *filler;
    if (filler == NULL)
        filler = map_pages(24 * MIB / PAGE);
    for (size_t i = 0; i < 24 * MIB; i += PAGE)
        filler[i]++;
}

/* A block with pages of its own: malloc gives small blocks from memory that is in use. */
static void *block(size_t size)
{
    void *at = malloc(size + 64 * 1024);
    MUST(at != NULL);
    return memset(at, 0, size);
}

static int status_of(pid_t child)
{
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A filter of `length` instructions: `call` gets an action, all other calls are allowed. */
static struct sock_fprog *filter(unsigned call, unsigned action, unsigned short length)
{
    struct sock_filter *code = block(length * sizeof *code);
    const struct sock_filter ends[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    MUST(length >= 4);
    for (int i = 0; i < length - 4; i++)
        code[i] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_IMM, i);
    memcpy(code + length - 4, ends, sizeof ends);
    struct sock_fprog *program = block(sizeof *program);
    *program = (struct sock_fprog){length, code};
    return program;
}

static struct sock_fprog *refusing(unsigned call, unsigned short length)
{
    return filter(call, SECCOMP_RET_ERRNO | ERROR, length);
}

/* A system call past the C library. */
static long raw(long number, long a, long b, const void *c)
{
    long result;
    register long d __asm__("r10") = 0, e __asm__("r8") = 0;
    __asm__ volatile("syscall" : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e)
                     : "rcx", "r11", "memory");
    return result;
}

static long load(int way, const struct sock_fprog *program)
{
    switch (way) {
    case 0: return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program);
    case 1: return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0);
    case 2: return syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0);
    default: return raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program);
    }
}

/* Each way, also with the longest filter, and with the structure on the stack. Afterwards,
 * swapped-out memory can still be accessed.
 */
static void loaded(void)
{
    char *contents = strcpy(block(8 * MIB) + 4 * MIB, "/dev/null");
    for (int way = 0; way < 4; way++) {
        struct sock_fprog *program = refusing(SYS_getppid, way % 2 ? 4 : BPF_MAXINSNS);
        evict();
        pid_t child = fork();
        if (child == 0) {
            struct sock_fprog here = *program;
            MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
            evict();
            MUST(load(way, program) == 0 && syscall(SYS_getppid) == -1 && errno == ERROR);
            MUST(strcmp(contents, "/dev/null") == 0);
            evict();
            MUST(way == 3 || load(way, &here) == 0);
            evict();
            MUST(access(contents, R_OK) == 0);
            _exit(way);
        }
        printf("loaded: %d\n", status_of(child));
    }
}

static void refused(long result)
{
    printf("refused: %ld %d\n", result, errno);
}

/* Bad structures: errors of the kernel, in its order. */
static void bad(void)
{
    char *hole = map_pages(3);
    MUST(munmap(hole + PAGE, PAGE) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    struct sock_fprog *empty = refusing(1, 4), *long_one = refusing(1, 4), *cut = refusing(1, 100);
    struct sock_fprog *nowhere = refusing(1, 4), *wrong = refusing(1, 4);
    empty->len = 0, long_one->len = BPF_MAXINSNS + 1, nowhere->filter = NULL;
    wrong->filter[1].code = 0xffff;
    cut->filter = memcpy(hole + PAGE - 99 * 8, cut->filter, 99 * 8);
    void *programs[] = {empty, long_one, cut, nowhere, wrong, NULL, hole + PAGE - 4, hole + 9};
    evict();
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (int way = 0; way < 3; way++)
            refused(load(way, programs[i]));
    refused(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1 << 30, empty));
    refused(syscall(SYS_seccomp, 99, 0, empty));
    refused(prctl(PR_SET_SECCOMP, 7, empty, 0, 0));
}

/* Operations that load nothing. */
static void asked(void)
{
    unsigned *action = block(sizeof *action);
    struct seccomp_notif_sizes *sizes = block(sizeof *sizes + 8);
    for (unsigned value = SECCOMP_RET_TRAP, i = 0; i < 2; value++, i++) {
        *action = value;
        evict();
        long result = syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, action);
        printf("action: %ld %d\n", result, result ? errno : 0);
    }
    memset(sizes, 'A', sizeof *sizes + 8);
    evict();
    MUST(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, sizes) == 0);
    printf("sizes: %d %d %c\n", sizes->seccomp_notif, sizes->seccomp_notif_resp,
           ((char *)(sizes + 1))[0]);
    MUST(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, NULL) == -1 && errno == EFAULT);
}

static atomic_int step;

static void await(int wanted)
{
    while (atomic_load(&step) < wanted)
        usleep(1000);
}

static void *other_thread(void *path)
{
    atomic_store(&step, 1);
    await(2);
    long result = access(path, R_OK);
    return (void *)(long)(result == -1 ? errno : 0);
}

/* A filter of all threads (TSYNC), for a call with a paged pointer. */
static void shared(void)
{
    struct sock_fprog *program = refusing(SYS_access, 4);
    char *path = strcpy(block(100), "/dev/null");
    pthread_t thread;
    void *found;
    atomic_store(&step, 0);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(pthread_create(&thread, NULL, other_thread, path) == 0);
    await(1);
    evict();
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, program) == 0);
    evict();
    atomic_store(&step, 2);
    MUST(pthread_join(thread, &found) == 0);
    int own = access(path, R_OK) == 0 ? 0 : errno;
    printf("all threads: %ld %d\n", (long)found, own);
}

/* A filter whose action is a signal, for a call with a paged pointer. */
static void on_trap(int number, siginfo_t *about, void *context)
{
    (void)context;
    printf("trapped: signal %d, call %d, %d\n", number, about->si_syscall, about->si_errno);
}

static void trapped(void)
{
    struct sock_fprog *program = filter(SYS_access, SECCOMP_RET_TRAP | 5, 4);
    char *path = strcpy(block(100), "/dev/null");
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSYS, &action, NULL) == 0);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    evict();
    MUST(load(1, program) == 0);
    evict();
    access(path, R_OK);
    access("/dev/null", R_OK);
}

static int listener;

static void *watched_thread(void *path)
{
    struct sock_fprog *program = filter(SYS_openat, SECCOMP_RET_USER_NOTIF, 4);
    evict();
    listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                            SECCOMP_FILTER_FLAG_NEW_LISTENER, program);
    MUST(listener >= 0);
    atomic_store(&step, 1);
    evict();
    long first = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
    printf("answered: %ld %d\n", first, errno);
    long second = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
    printf("added: %d\n", second >= 0 && fcntl((int)second, F_GETFD) == 0);
    return NULL;
}

/* Another thread decides about a thread's calls; the structures that it uses are swapped out. */
static void watched(void)
{
    struct seccomp_notif *asked = block(sizeof *asked);
    struct seccomp_notif_resp *answer = block(sizeof *answer);
    struct seccomp_notif_addfd *added = block(sizeof *added);
    __u64 *id = block(sizeof *id);
    char *path = strcpy(block(100), "/nonexistent");
    pthread_t thread;
    atomic_store(&step, 0);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(pthread_create(&thread, NULL, watched_thread, path) == 0);
    await(1);
    for (int round = 0; round < 2; round++) {
        memset(asked, 0, sizeof *asked), memset(added, 0, sizeof *added);
        evict();
        MUST(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, asked) == 0);
        printf("asked: %d %s\n", asked->data.nr, (char *)asked->data.args[1]);
        *id = asked->id;
        *answer = (struct seccomp_notif_resp){.id = *id, .error = -ERROR};
        *added = (struct seccomp_notif_addfd){.id = *id, .flags = SECCOMP_ADDFD_FLAG_SEND};
        evict();
        MUST(ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, id) == 0);
        if (round == 0)
            MUST(ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, answer) == 0);
        else
            MUST(ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, added) >= 0);
    }
    MUST(pthread_join(thread, NULL) == 0 && close(listener) == 0);
}

/* A filter for packets that keeps this many bytes of each. */
static struct sock_fprog *keeping(unsigned bytes, unsigned short length)
{
    struct sock_fprog *program = filter(0, 0, length);
    for (int i = 0; i < length; i++)
        program->filter[i] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_IMM, i);
    program->filter[length - 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, bytes);
    return program;
}

/* The structure is swapped out, too, or on the stack. When a filter is read, its length counts
 * instructions; there is room for one more.
 */
static void packets(void)
{
    int ends[2];
    char bytes[16];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    for (int way = 0; way < 4; way++) {
        struct sock_fprog *program = keeping(3 + way, 4 + 100 * way), here = *program;
        struct sock_fprog *attached = way % 2 ? program : &here;
        unsigned short length = program->len;
        struct sock_filter *read_back = block((length + 2) * sizeof *read_back);
        socklen_t *count = block(sizeof *count);
        memset(read_back, 'A', (length + 2) * sizeof *read_back);
        *count = length + 1;
        evict();
        long set = way / 2 ? syscall(SYS_setsockopt, ends[0], SOL_SOCKET, SO_ATTACH_FILTER,
                                     attached, sizeof *attached)
                           : setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_FILTER, attached,
                                        sizeof *attached);
        MUST(set == 0 && write(ends[1], "0123456789", 10) == 10);
        printf("packets: %zd bytes", read(ends[0], bytes, sizeof bytes));
        evict();
        MUST(getsockopt(ends[0], SOL_SOCKET, SO_GET_FILTER, read_back, count) == 0);
        int equal = memcmp(read_back, program->filter, length * sizeof *read_back) == 0;
        printf(", %u instructions, equal %d, then %c\n", *count, equal,
               *(char *)(read_back + length));
    }
    struct sock_fprog *program = keeping(1, 4);
    program->filter[1].code = 0xffff;
    evict();
    refused(setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_FILTER, program, sizeof *program));
    refused(setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_FILTER, program, 3));
    refused(setsockopt(-1, SOL_SOCKET, SO_ATTACH_FILTER, program, sizeof *program));
}

static const struct {
    const char *name;
    void (*run)(void);
} SECTIONS[] = {
    {"loaded", loaded}, {"bad", bad}, {"asked", asked}, {"shared", shared}, {"trapped", trapped},
    {"watched", watched}, {"packets", packets},
};

/* Each section is a process of its own, because filters stay. */
int main(int count, char **arguments)
{
    for (size_t i = 0; i < sizeof SECTIONS / sizeof *SECTIONS; i++) {
        if (count > 1 && strcmp(arguments[1], SECTIONS[i].name) != 0)
            continue;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            SECTIONS[i].run();
            fflush(stdout);
            _exit(0);
        }
        printf("%s: %d\n", SECTIONS[i].name, status_of(child));
    }
    return 0;
}
