/* Defects of system calls on paged memory, now fixed, each as a section:   gate_found [SECTION...]
 *
 * Blocks of malloc are too large to stay unpaged here; evict() swaps them out.
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>

extern char **environ;

static void evict(void)
{
    static unsigned char *filler;
    if (filler == NULL)
        filler = map_pages(20 * MIB / PAGE);
    /* New pages: old pages, used in a loop, would mostly stay in memory. */
    MUST(madvise(filler, 20 * MIB, MADV_DONTNEED) == 0);
    for (size_t i = 0; i < 20 * MIB; i += PAGE)
        filler[i]++;
}

static void *block(size_t size)
{
    void *at = malloc(size);
    MUST(at != NULL);
    memset(at, 'A', size);
    return at;
}

static int status_of(pid_t child)
{
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A blocking write to a pipe writes everything. Regression: it was cut after 1 MiB. */
static void long_write(void)
{
    int ends[2];
    size_t length = 4 * MIB;
    unsigned char *at = block(length);
    MUST(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        static char part[1 << 16];
        size_t total = 0;
        close(ends[1]);
        for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;)
            total += (size_t)got;
        _exit(total == length ? 0 : 1);
    }
    MUST(close(ends[0]) == 0 && write(ends[1], at, length) == (ssize_t)length);
    MUST(close(ends[1]) == 0 && status_of(child) == 0);
    int zeros = open("/dev/zero", O_RDONLY);
    MUST(read(zeros, at, length) == (ssize_t)length && close(zeros) == 0);
    free(at);
}

#define RECORD (2 * MIB)
#define RECORDS 6

static int is_whole(const char *record)
{
    return memcmp(record, record + 1, RECORD - 1) == 0;
}

static int new_file(const char *name, int flags)
{
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
    MUST(file >= 0);
    return file;
}

/* Records stay whole, whether processes append them, or write and read them at a shared file
 * position. Regression: records of more than 1 MiB were mixed.
 */
static void whole_records(int flags)
{
    int file = new_file("records", flags);
    for (int process = 0; process < 3; process++) {
        if (fork() == 0) {
            char *record = memset(block(RECORD), 'a' + process, RECORD);
            for (int i = 0; i < RECORDS / 3; i++)
                MUST(write(file, record, RECORD) == (ssize_t)RECORD);
            _exit(0);
        }
    }
    for (int status; wait(&status) > 0;)
        MUST(status == 0);
    MUST(lseek(file, 0, SEEK_CUR) == RECORDS * RECORD && lseek(file, 0, SEEK_SET) == 0);
    for (int process = 0; process < 3; process++) {
        if (fork() == 0) {
            char *record = block(RECORD);
            while (read(file, record, RECORD) == (ssize_t)RECORD)
                MUST(is_whole(record));
            _exit(0);
        }
    }
    for (int status; wait(&status) > 0;)
        MUST(status == 0);
    char *record = block(2 * RECORD);
    MUST(lseek(file, -RECORD - 5, SEEK_END) > 0 && read(file, record, 2 * RECORD) == RECORD + 5);
    MUST(lseek(file, 0, SEEK_CUR) == RECORDS * RECORD && read(file, record, 2 * RECORD) == 0);
    free(record);
    MUST(close(file) == 0 && unlink("records") == 0);
}

static void shared_positions(void)
{
    whole_records(O_APPEND);
    whole_records(0);
}

/* The list of a file's extents is as long as the caller says. Regression: the part beyond 4096
 * bytes was lost. File systems without such a list refuse the call.
 */
static void extents(void)
{
    enum { COUNT = 100, APART = 1 << 14 };
    int file = new_file("extents", 0);
    for (int i = 0; i < COUNT; i++)
        MUST(pwrite(file, "x", 1, (off_t)i * APART) == 1);
    MUST(fsync(file) == 0);
    struct fiemap *map = block(sizeof *map + 2 * COUNT * sizeof map->fm_extents[0]);
    memset(map, 0, sizeof *map);
    map->fm_length = FIEMAP_MAX_OFFSET;
    map->fm_extent_count = 2 * COUNT;
    evict();
    int result = ioctl(file, FS_IOC_FIEMAP, map);
    for (unsigned i = 0; result == 0 && i < map->fm_mapped_extents; i++) {
        const struct fiemap_extent *extent = &map->fm_extents[i];
        MUST(extent->fe_length > 0 && extent->fe_logical % APART == 0);
        MUST(i == 0 || extent->fe_logical > extent[-1].fe_logical);
    }
    MUST(result == 0 ? map->fm_mapped_extents > 0 : errno == EOPNOTSUPP || errno == ENOTTY);
    free(map);
    MUST(close(file) == 0 && unlink("extents") == 0);
}

/* Regression: the gate did not know these pointer arguments, and the calls failed with EFAULT. */
static void late_pointers(void)
{
    unsigned long *vector = block(4096);
    evict();
    long length = prctl(0x41555856 /* PR_GET_AUXV */, vector, 4096, 0, 0);
    MUST(length > 0 ? vector[0] != 0x4141414141414141 : errno == EINVAL);
    int set = semget(IPC_PRIVATE, 3, 0600 | IPC_CREAT);
    struct semid_ds *found = block(sizeof *found);
    struct seminfo *information = block(sizeof *information);
    MUST(set >= 0);
    int most = semctl(0, 0, SEM_INFO, information);
    evict();
    int seen = 0;
    for (int index = 0; index <= most; index++)
        seen += semctl(index, 0, 20 /* SEM_STAT_ANY */, found) == set && found->sem_nsems == 3;
    MUST(seen == 1 && semctl(set, 0, IPC_RMID) == 0);
    static unsigned word;
    unsigned *other = block(4096);
    evict();
    MUST(syscall(SYS_futex, &word, FUTEX_WAKE_OP, 1, (void *)1, other,
                 FUTEX_OP(FUTEX_OP_SET, 7, FUTEX_OP_CMP_EQ, 0)) == 0);
    MUST(*other == 7);
    free(vector), free(found), free(information), free(other);
}

/* A change by another thread during poll is kept. Regression: the whole array was copied back. */
static struct pollfd *watched;
static int wake[2], idle[2];

static void *change_later(void *unused)
{
    usleep(50000);
    watched[1].fd = -1;
    MUST(write(wake[1], "x", 1) == 1);
    return unused;
}

static void changed_poll(void)
{
    pthread_t thread;
    watched = block(1 << 16);
    MUST(pipe(wake) == 0 && pipe(idle) == 0);
    watched[0] = (struct pollfd){wake[0], POLLIN, 0};
    watched[1] = (struct pollfd){idle[0], POLLIN, 0};
    MUST(pthread_create(&thread, NULL, change_later, NULL) == 0);
    MUST(poll(watched, 2, 10000) == 1 && watched[1].fd == -1);
    MUST(pthread_join(thread, NULL) == 0);
    free(watched);
}

/* The C library passes the environment to the kernel itself, with all signals blocked. */
static void environment(void)
{
    char *variable = block(1 << 16), **moved = block(1 << 16);
    strcpy(variable, "A=seen");
    size_t count = 0;
    for (; environ[count] != NULL; count++)
        moved[count] = environ[count];
    moved[count] = variable, moved[count + 1] = NULL;
    environ = moved;
    evict();
    MUST(system("test \"$A\" = seen") == 0);
    FILE *pipe = popen("echo $A", "r");
    char answer[16] = "";
    MUST(pipe != NULL && fgets(answer, sizeof answer, pipe) != NULL && pclose(pipe) == 0);
    MUST(strcmp(answer, "seen\n") == 0);
}

/* Regression: attributes of a spawned process were passed on while all signals were blocked. */
static void spawn_attributes(void)
{
    posix_spawnattr_t *attributes = block(1 << 16);
    char *arguments[] = {"true", NULL};
    sigset_t none;
    pid_t child;
    sigemptyset(&none);
    MUST(posix_spawnattr_init(attributes) == 0);
    MUST(posix_spawnattr_setsigmask(attributes, &none) == 0);
    MUST(posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK) == 0);
    MUST(posix_spawnp(&child, "true", NULL, attributes, arguments, environ) == 0);
    MUST(status_of(child) == 0);
    free(attributes);
}

/* The kernel reads pages of a spliced buffer after the call. Regression: it got copies, which were
 * overwritten. */
static void spliced(void)
{
    int first[2], second[2];
    unsigned char *a = block(1 << 16), *b = block(1 << 16), got[PAGE];
    memset(b, 'B', 1 << 16);
    MUST(pipe(first) == 0 && pipe(second) == 0);
    struct iovec buffer = {a, PAGE};
    MUST(vmsplice(first[1], &buffer, 1, 0) == (ssize_t)PAGE);
    MUST(write(second[1], b, PAGE) == (ssize_t)PAGE);
    MUST(read(first[0], got, PAGE) == (ssize_t)PAGE);
    for (size_t i = 0; i < PAGE; i++)
        MUST(got[i] == 'A');
    free(a), free(b);
}

/* Regression: a child on a paged stack began in the page of the gate. */
static int child_reads(void *at)
{
    int zeros = open("/dev/zero", O_RDONLY);
    return read(zeros, at, PAGE) == (ssize_t)PAGE ? 7 : 8;
}

static void cloned(void)
{
    unsigned char *stack = map_pages(MIB / PAGE), *at = block(1 << 16);
    int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    MUST(status_of(clone(child_reads, stack + MIB, flags, at)) == 7);
    MUST(munmap(stack, MIB) == 0);
    free(at);
}

/* These calls set masks, too. Regression: with SIGSYS blocked, a trapped call ended the process. */
static ucontext_t here;

static void masks(void)
{
    char *at = block(1 << 16);
    volatile int rounds = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    int before = sigblock(~0);
    MUST(syscall(SYS_access, strcpy(at, "/"), 0) == 0);
    sigsetmask(~0);
    MUST(syscall(SYS_access, at, 0) == 0);
    sigsetmask(before);
#pragma GCC diagnostic pop
    MUST(getcontext(&here) == 0);
    if (rounds++ == 0) {
        sigfillset(&here.uc_sigmask);
        MUST(setcontext(&here) == 0);
    }
    MUST(syscall(SYS_access, at, 0) == 0);
    free(at);
    sigset_t none;
    sigemptyset(&none);
    MUST(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
}

/* Signals while coroutines run on paged stacks whose lower pages are missing; and exec with strings
 * on such a stack, after a directory of PATH without the program. */
enum { COROUTINES = 100, STACK = 1 << 16 };

static ucontext_t caller, coroutines[COROUTINES];
static volatile int ticks;

static void tick(int signal)
{
    ticks += signal == SIGALRM;
}

static void turn(int id)
{
    for (;;) {
        for (volatile int i = 0; i < 200000; i++)
            continue;
        MUST(swapcontext(&coroutines[id], &caller) == 0);
    }
}

static void make_coroutine(ucontext_t *coroutine, void (*run)(void), int id)
{
    MUST(getcontext(coroutine) == 0);
    coroutine->uc_stack.ss_sp = block(STACK);
    coroutine->uc_stack.ss_size = STACK - (size_t)(id * 131) % 4000;
    coroutine->uc_link = &caller;
    makecontext(coroutine, run, 1, id);
}

static void interrupted_coroutines(void)
{
    struct sigaction action = {.sa_handler = tick};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    for (int id = 0; id < COROUTINES; id++)
        make_coroutine(&coroutines[id], (void (*)(void))turn, id);
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int round = 0; round < 5; round++) {
        evict();
        for (int id = 0; id < COROUTINES; id++)
            MUST(swapcontext(&caller, &coroutines[id]) == 0);
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    MUST(ticks > 10);
}

static void run_program(void)
{
    char *arguments[] = {"sh", "-c", strdup("test \"$B\" = 5"), NULL};
    execvp("sh", arguments);
    _exit(126);
}

static void exec_of_coroutine(void)
{
    pid_t child = fork();
    if (child == 0) {
        ucontext_t *coroutine = &coroutines[0];
        MUST(setenv("PATH", "/nonexistent:/usr/bin:/bin", 1) == 0 && setenv("B", "5", 1) == 0);
        make_coroutine(coroutine, run_program, 0);
        swapcontext(&caller, coroutine);
        _exit(125);
    }
    MUST(status_of(child) == 0);
}

/* vmsplice of a pipe's read end fills memory. Regression: nothing was copied back. */
static void vmspliced(void)
{
    int ends[2];
    char *at = block(2 * PAGE);
    struct iovec piece = {at + 100, 5};
    MUST(pipe(ends) == 0 && write(ends[1], "hello", 5) == 5);
    evict();
    MUST(vmsplice(ends[0], &piece, 1, 0) == 5 && memcmp(at + 99, "AhelloA", 7) == 0);
    MUST(vmsplice(ends[1], &piece, 1, 0) == 5);
    char back[5];
    MUST(read(ends[0], back, 5) == 5 && memcmp(back, "hello", 5) == 0);
    close(ends[0]), close(ends[1]);
}

static int fails(long result, int error)
{
    return result == -1 && errno == error;
}

/* Buffers of more than 1 GiB are legal. Regression: the kernel was given pages that do not exist,
 * and a datagram was lost. Lengths that no buffer has are refused at once. */
static void long_buffers(void)
{
    size_t length = 3ul << 29;
    int pipes[2], grams[2], zero = open("/dev/zero", O_RDWR), null = open("/dev/null", O_RDWR);
    char *at = mmap(NULL, length, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct iovec whole = {at, length}, two[2] = {{at, 10}, {at, SSIZE_MAX}};
    MUST(at != MAP_FAILED && zero >= 0 && null >= 0 && pipe(pipes) == 0);
    MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, grams) == 0);
    MUST(write(pipes[1], "hello", 5) == 5 && read(pipes[0], at, length) == 5);
    MUST(write(pipes[1], "again", 5) == 5 && readv(pipes[0], &whole, 1) == 5);
    MUST(memcmp(at, "again", 5) == 0);
    for (int i = 0; i < 2; i++)
        MUST(send(grams[1], i ? "second" : "first", 5, 0) == 5);
    MUST(recv(grams[0], at, length, 0) == 5 && memcmp(at, "first", 5) == 0);
    MUST(recvfrom(grams[0], at, SIZE_MAX, 0, NULL, NULL) == 5 && memcmp(at, "secon", 5) == 0);
    MUST(munmap(at + 64 * MIB, length - 64 * MIB) == 0);
    MUST(write(null, at, INT_MAX) == 0x7ffff000);
    MUST(fails(write(null, at, SSIZE_MAX), EFAULT) && fails(read(zero, at, SSIZE_MAX), EFAULT));
    MUST(fails(readv(zero, two, 2), EFAULT));
    two[1].iov_len = SIZE_MAX;
    MUST(fails(writev(null, two, 2), EINVAL));
    for (int file = 0; file < 2; file++)
        close(pipes[file]), close(grams[file]);
    close(zero), close(null), munmap(at, 64 * MIB);
}

/* Mapped memory ends within a buffer, after more than the budget: a read gets that far. */
static void cut_buffers(void)
{
    size_t good = 20 * MIB;
    char *at = map_pages(24 * MIB / PAGE);
    int zero = open("/dev/zero", O_RDONLY), grams[2];
    MUST(mprotect(at + good, 4 * MIB, PROT_NONE) == 0);
    memset(at, 'A', good);
    struct iovec pieces[2] = {{at, 10}, {at + 10, 23 * MIB}};
    MUST(read(zero, at + 1, 22 * MIB) == (ssize_t)good - 1 && at[0] == 'A' && at[good - 1] == 0);
    MUST(readv(zero, pieces, 2) == (ssize_t)good && at[0] == 0);
    MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, grams) == 0);
    MUST(send(grams[1], "datagram", 8, 0) == 8);
    evict();
    MUST(recv(grams[0], at + good - 8, 16, 0) == 8 && memcmp(at + good - 8, "datagram", 8) == 0);
    MUST(fails(send(grams[1], at + good - 8, 16, 0), EFAULT));
    close(zero), close(grams[0]), close(grams[1]);
    munmap(at, 24 * MIB);
}

/* Message calls with errors fail with the kernel's error, in the kernel's order of checks. */
static void messages(void)
{
    enum { CONTROL = 128 << 10, MANY = 1025 };
    int ends[2];
    char *data = block(100), *control = block(CONTROL);
    struct iovec piece = {data, 100}, *many = block(MANY * sizeof *many);
    struct msghdr one = {.msg_iov = &piece, .msg_iovlen = 1};
    struct msghdr roomy = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
                           .msg_controllen = CONTROL};
    struct msghdr too_many = {.msg_iov = many, .msg_iovlen = MANY};
    struct msghdr named = {.msg_name = data, .msg_namelen = (socklen_t)-1, .msg_iov = &piece,
                           .msg_iovlen = 1};
    struct msghdr nowhere = {.msg_name = map_pages(1), .msg_namelen = 100, .msg_iov = &piece,
                             .msg_iovlen = 1};
    struct mmsghdr all = {.msg_hdr = one};
    struct timespec negative = {-1, 0}, long_nanos = {0, 2000000000}, enough = {1000, 0};
    MUST(mprotect(nowhere.msg_name, PAGE, PROT_NONE) == 0);
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    evict();
    MUST(send(ends[1], "x", 1, 0) == 1 && recvmsg(ends[0], &roomy, MSG_DONTWAIT) == 1);
    MUST(roomy.msg_controllen == 0 && data[0] == 'x');
    MUST(fails(sendmsg(ends[1], &too_many, 0), EMSGSIZE));
    MUST(fails(recvmsg(ends[0], &too_many, MSG_DONTWAIT), EMSGSIZE));
    MUST(fails(recvmsg(-1, &too_many, 0), EBADF) && fails(readv(-1, many, MANY), EBADF));
    MUST(fails(recvmsg(ends[0], &named, MSG_DONTWAIT), EINVAL));
    MUST(send(ends[1], "y", 1, 0) == 1 && recvmsg(ends[0], &nowhere, MSG_DONTWAIT) == 1);
    MUST(fails(sendmmsg(-1, &all, 0, 0), EBADF) && fails(recvmmsg(-1, &all, 0, 0, NULL), EBADF));
    MUST(fails(recvmmsg(ends[0], &all, 1, MSG_DONTWAIT, &negative), EINVAL));
    MUST(fails(recvmmsg(ends[0], &all, 1, MSG_DONTWAIT, &long_nanos), EINVAL));
    MUST(send(ends[1], "z", 1, 0) == 1 && recvmmsg(ends[0], &all, 1, 0, &enough) == 1);
    MUST(enough.tv_sec == 999 && all.msg_len == 1 && data[0] == 'z');
    close(ends[0]), close(ends[1]);
}

/* Regression: the library itself read a mask that the program may not read: SIGSEGV. */
static void bad_masks(void)
{
    sigset_t *bad = (sigset_t *)8, *closed = map_pages(1);
    int set = epoll_create1(0);
    struct epoll_event event;
    struct timespec now = {0, 0};
    MUST(mprotect(closed, PAGE, PROT_NONE) == 0 && set >= 0);
    for (int i = 0; i < 2; i++) {
        sigset_t *mask = i ? closed : bad;
        MUST(fails(epoll_pwait(set, &event, 1, 0, mask), EFAULT));
        MUST(fails(ppoll(NULL, 0, &now, mask), EFAULT));
        MUST(fails(pselect(0, NULL, NULL, NULL, &now, mask), EFAULT));
    }
    close(set);
}

/* Waits until a traced child stops itself; passes on other signals, such as those of its faults. */
static void await_stop(pid_t child)
{
    for (int status;;) {
        MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGSTOP)
            return;
        MUST(ptrace(PTRACE_CONT, child, NULL, (void *)(long)WSTOPSIG(status)) == 0);
    }
}

/* Reads 42 from a word of a traced child, and writes 43. A page that was swapped out cannot be
 * reached (docs/limits.md): the child writes to it again. */
static void change_word(pid_t child, uint64_t *word, uint64_t *found)
{
    for (int round = 0; round < 100; round++) {
        if (syscall(SYS_ptrace, PTRACE_PEEKDATA, child, word, found) == 0) {
            MUST(*found == 42);
            if (ptrace(PTRACE_POKEDATA, child, word, (void *)43) == 0)
                return;
        }
        MUST(errno == EIO && ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
        await_stop(child);
    }
    die("a word that a child has just written is missing");
}

/* ptrace with paged memory on both sides. */
static void traced(void)
{
    struct all {
        siginfo_t info;
        struct user_regs_struct registers;
        uint64_t mask, word;
    } *all = block(sizeof *all);
    uint64_t *word = block(PAGE);
    pid_t child = fork();
    if (child == 0) {
        MUST(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
        do {
            *word = 42;
            MUST(raise(SIGSTOP) == 0);
        } while (*word == 42);
        _exit(*word == 43 ? 0 : 1);
    }
    MUST(child > 0);
    await_stop(child);
    evict();
    MUST(ptrace(PTRACE_GETSIGINFO, child, NULL, &all->info) == 0);
    MUST(all->info.si_signo == SIGSTOP);
    MUST(ptrace(PTRACE_GETREGS, child, NULL, &all->registers) == 0 && all->registers.rsp != 0);
    MUST(ptrace(PTRACE_GETSIGMASK, child, (void *)8, &all->mask) == 0);
    change_word(child, word, &all->word);
    MUST(ptrace(PTRACE_DETACH, child, NULL, NULL) == 0 && status_of(child) == 0);
}

/* Faults are served where the program may not read the time; unknown call numbers are refused. */
static void odd_calls(void)
{
    char *at = block(16 * MIB);
    MUST(fails(syscall(600, at), ENOSYS) && fails(syscall(-1, at), ENOSYS));
    int ends[2];
    MUST(pipe(ends) == 0 && fails(ioctl(ends[0], 0x12345678, at), ENOTTY));
    pid_t child = fork();
    if (child == 0) {
        MUST(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
        size_t wrong = 0;
        for (int round = 0; round < 2; round++)
            for (size_t i = 0; i < 16 * MIB; i += PAGE)
                wrong += at[i] != 'A';
        syscall(SYS_exit_group, wrong != 0);
    }
    MUST(status_of(child) == 0);
    close(ends[0]), close(ends[1]);
}

/* Regression: swapped-out pages kept their contents. Linux 6.13 lets a process drop its own. */
static void dropped(void)
{
    size_t pages = 2 * MIB / PAGE;
    char *memory = map_pages(pages);
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec ranges[] = {{memory, MIB}, {memory + MIB, MIB}};
    for (size_t page = 0; page < pages; page++)
        fill_page(memory + page * PAGE, page, 1);
    evict();
    ssize_t done = process_madvise(self, ranges, 2, MADV_DONTNEED, 0);
    MUST(done == 2 * MIB || done == -1);
    for (size_t page = 0; page < pages; page++)
        check_page(memory + page * PAGE, page, done < 0, "after process_madvise");
    printf("dropped: %zd %d\n", process_madvise(self, ranges, 2, MADV_NORMAL, 1), errno);
    MUST(process_madvise(-1, ranges, 2, MADV_NORMAL, 0) == -1 && errno == EBADF);
    close(self);
    munmap(memory, 2 * MIB);
}

/* Whether calls past the C library are seen: a filter traps them, from Linux 6.13 on. */
static int are_raw_calls_seen(int self)
{
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec range = {page, PAGE};
    long done = syscall(SYS_process_madvise, self, &range, 1, MADV_DONTNEED, 0);
    munmap(page, PAGE);
    return prctl(PR_GET_SECCOMP) == 2 && done == PAGE;
}

/* As above, by system calls that the C library does not make. Other pages keep their contents. */
static void dropped_by_raw_calls(void)
{
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    int seen = are_raw_calls_seen(self);
    int advices[] = {MADV_DONTNEED, 24 /* MADV_DONTNEED_LOCKED */, MADV_NORMAL};
    size_t pages = 2 * MIB / PAGE;
    close(self);
    for (int way = 0; way < 6; way++) {
        char *memory = map_pages(pages);
        int advice = advices[way / 2];
        for (size_t page = 0; page < pages; page++)
            fill_page(memory + page * PAGE, page, 1);
        evict();
        long done;
        if (way % 2)
            done = syscall(SYS_madvise, memory, MIB, advice);
        else
            __asm__ volatile("syscall"
                             : "=a"(done)
                             : "a"(SYS_madvise), "D"(memory), "S"(MIB), "d"(advice)
                             : "rcx", "r11", "memory");
        printf("by a raw call: %ld\n", done);
        for (size_t page = 0; page < pages; page++) {
            int keeps = page >= pages / 2 || advice == MADV_NORMAL;
            if (seen || keeps)
                check_page(memory + page * PAGE, page, keeps, "after madvise by a raw call");
        }
        MUST(syscall(SYS_madvise, memory + 1, PAGE, advice) == -1 && errno == EINVAL);
        munmap(memory, 2 * MIB);
    }
}

/* Arguments that the kernel does not look at. Regression: a buffer was overwritten, and a long one
 * copied. */
static void unused_buffers(void)
{
    size_t length = 16 * MIB;
    unsigned char *buffer = map_pages(length / PAGE);
    memset(buffer, 'Z', PAGE);
    evict();
    printf("log: %d\n", klogctl(10, (char *)buffer, 60));
    for (size_t i = 0; i < PAGE; i++)
        MUST(buffer[i] == 'Z');
    long set = syscall(SYS_set_mempolicy, 2, buffer, 8 * length);
    printf("nodes: %ld %d\n", set, errno);
    munmap(buffer, length);
}

static const struct {
    const char *name;
    void (*run)(void);
} SECTIONS[] = {
    {"vmspliced", vmspliced}, {"long_buffers", long_buffers}, {"cut_buffers", cut_buffers},
    {"messages", messages}, {"bad_masks", bad_masks}, {"traced", traced},
    {"odd_calls", odd_calls}, {"shared_positions", shared_positions},
    {"extents", extents}, {"late_pointers", late_pointers},
    {"long_write", long_write}, {"changed_poll", changed_poll},
    {"spawn_attributes", spawn_attributes}, {"spliced", spliced}, {"cloned", cloned},
    {"masks", masks}, {"interrupted_coroutines", interrupted_coroutines},
    {"exec_of_coroutine", exec_of_coroutine}, {"environment", environment},
    {"dropped", dropped}, {"dropped_by_raw_calls", dropped_by_raw_calls},
    {"unused_buffers", unused_buffers},
};

int main(int count, char **arguments)
{
    for (size_t i = 0; i < sizeof SECTIONS / sizeof *SECTIONS; i++) {
        if (count > 1 && strcmp(arguments[1], SECTIONS[i].name) != 0)
            continue;
        evict();
        SECTIONS[i].run();
        printf("%s: ok\n", SECTIONS[i].name);
        fflush(stdout);
    }
    return 0;
}
