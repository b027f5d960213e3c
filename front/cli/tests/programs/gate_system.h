/* Times, timers, limits, children, and other objects of the system. */
#ifndef GATE_SYSTEM_H
#define GATE_SYSTEM_H

#include "gate_sockets.h"

#include <sched.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>

static void clocks(size_t length)
{
    struct timespec *at = vary(sizeof *at), *grain = room(sizeof *grain);
    struct timeval *day = vary(sizeof *day);
    struct timezone *zone = room(sizeof *zone);
    struct tms *used = vary(sizeof *used);
    time_t *seconds = vary(sizeof *seconds);
    struct timespec *pause = PUT(struct timespec, 0, 1000), *bad = PUT(struct timespec, -1, 0);
    struct timespec *left = room(sizeof *left);
    (void)length;
    swapped();
    struct timespec now_at;
    MUST(clock_gettime(CLOCK_REALTIME, &now_at) == 0);
    CALL(syscall(SYS_clock_gettime, CLOCK_REALTIME, at));
    note("near", at->tv_sec - now_at.tv_sec < 5 && at->tv_sec >= now_at.tv_sec);
    CALL(syscall(SYS_gettimeofday, day, zone));
    note("near", day->tv_sec - now_at.tv_sec < 5 && day->tv_sec >= now_at.tv_sec);
    TRY(syscall(SYS_time, seconds));
    note("near", *seconds - now_at.tv_sec < 5 && *seconds >= now_at.tv_sec - 1);
    CALL(clock_gettime(CLOCK_MONOTONIC, at));
    CALL(gettimeofday(day, NULL));
    CALL(syscall(SYS_clock_getres, CLOCK_REALTIME, grain));
    CALL(syscall(SYS_clock_gettime, 77, at));
    TRY(times(used));
    CALL(nanosleep(pause, left));
    CALL(nanosleep(bad, left));
    CALL(clock_nanosleep(CLOCK_MONOTONIC, 0, pause, left));
    CALL(syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, pause, NULL));
}

static void limits(size_t length)
{
    struct rusage *used = vary(sizeof *used);
    struct sysinfo *info = vary(sizeof *info);
    struct utsname *name = room(sizeof *name);
    struct rlimit *files = room(sizeof *files), *core = room(sizeof *core);
    struct rlimit *set = PUT(struct rlimit, 0, RLIM_INFINITY);
    gid_t *groups = room(100 * sizeof *groups);
    int *sizes = vary(16), *code = vary(8);
    uid_t *users = room(12);
    (void)length;
    swapped();
    CALL(getrusage(RUSAGE_SELF, used));
    note("used", used->ru_maxrss > 0);
    CALL(sysinfo(info));
    note("memory", (long)info->totalram);
    CALL(uname(name));
    CALL(getrlimit(RLIMIT_NOFILE, files));
    CALL(syscall(SYS_getrlimit, RLIMIT_STACK, core));
    CALL(prlimit(0, RLIMIT_CORE, NULL, core));
    set->rlim_max = core->rlim_max;
    CALL(prlimit(0, RLIMIT_CORE, set, core));
    CALL(setrlimit(RLIMIT_CORE, core));
    CALL(getrlimit(77, core));
    TRY(getgroups(100, groups));
    CALL(getresuid(users, users + 1, users + 2));
    CALL(getresgid(users, users + 1, users + 2));
    CALL(syscall(SYS_getcpu, sizes, sizes + 1, NULL));
    CALL(prctl(PR_GET_PDEATHSIG, code));
}

static void scheduling(size_t length)
{
    cpu_set_t *set = room(sizeof *set);
    struct sched_param *parameter = room(sizeof *parameter);
    struct timespec *interval = room(sizeof *interval);
    struct { uint32_t size, policy; uint64_t more[6]; } *all = room(sizeof *all);
    char *name = text("a paged name that is long"), *found = room(16);
    (void)length;
    swapped();
    CALL(syscall(SYS_sched_getaffinity, 0, sizeof *set, set));
    CALL(sched_getaffinity(0, sizeof *set, set));
    CALL(sched_setaffinity(0, sizeof *set, set));
    CALL(syscall(SYS_sched_getaffinity, 0, 3, set));
    CALL(sched_getparam(0, parameter));
    CALL(sched_setscheduler(0, SCHED_OTHER, parameter));
    CALL(sched_setparam(0, parameter));
    TRY(syscall(SYS_sched_rr_get_interval, 0, interval));
    CALL(syscall(SYS_sched_getattr, 0, all, sizeof *all, 0));
    CALL(syscall(SYS_sched_setattr, 0, all, 0));
    CALL(prctl(PR_SET_NAME, name));
    CALL(prctl(PR_GET_NAME, found));
}

static void timers(size_t length)
{
    struct itimerval *set = PUT(struct itimerval, {0, 0}, {1000, 0}), *old = vary(sizeof *old);
    struct itimerval *stop = PUT(struct itimerval, {0, 0}, {0, 0});
    struct sigevent *event = vary(sizeof *event);
    memset(event, 0, sizeof *event);
    event->sigev_notify = SIGEV_NONE;
    timer_t *timer = vary(sizeof *timer);
    int *raw_timer = vary(sizeof *raw_timer);
    struct itimerspec *exact = PUT(struct itimerspec, {0, 0}, {1000, 0}), *left = vary(32);
    struct itimerspec *soon = PUT(struct itimerspec, {0, 1000000}, {0, 1});
    uint64_t *count = vary(sizeof *count), *more = PUT(uint64_t, 41);
    (void)length;
    swapped();
    CALL(setitimer(ITIMER_REAL, set, NULL));
    CALL(getitimer(ITIMER_REAL, old));
    note("left", old->it_value.tv_sec == 999 || old->it_value.tv_sec == 1000);
    CALL(setitimer(ITIMER_REAL, stop, old));
    note("left", old->it_value.tv_sec == 999 || old->it_value.tv_sec == 1000);
    CALL(timer_create(CLOCK_MONOTONIC, event, timer));
    CALL(timer_settime(*timer, 0, exact, left));
    CALL(timer_gettime(*timer, left));
    note("left", left->it_value.tv_sec == 999 || left->it_value.tv_sec == 1000);
    CALL(timer_delete(*timer));
    CALL(syscall(SYS_timer_create, CLOCK_MONOTONIC, event, raw_timer));
    CALL(syscall(SYS_timer_settime, *raw_timer, 0, soon, left));
    CALL(syscall(SYS_timer_delete, *raw_timer));
    int file = timerfd_create(CLOCK_MONOTONIC, 0), events = eventfd(1, EFD_NONBLOCK);
    CALL(timerfd_settime(file, 0, exact, left));
    CALL(timerfd_gettime(file, left));
    note("left", left->it_value.tv_sec == 999 || left->it_value.tv_sec == 1000);
    CALL(timerfd_settime(file, 0, soon, NULL));
    CALL(read(file, count, sizeof *count));
    CALL(write(events, more, sizeof *more));
    CALL(read(events, count, sizeof *count));
    note("sum", (long)*count);
    CALL(read(events, count, sizeof *count));
    CALL(read(events, count, 7));
    MUST(close(file) == 0 && close(events) == 0);
}

static void randoms(size_t length)
{
    unsigned char *bytes = vary(length);
    memset(bytes, 0, length);
    swapped();
    CALL(getrandom(bytes, length, 0));
    size_t set = 0;
    for (size_t i = 0; i < length; i++)
        set += (size_t)__builtin_popcount(bytes[i]);
    note("random", length < 1000 || (set > length * 3 && set < length * 5));
    CALL(getrandom(bytes, length, 0x80));
}

static void queues(size_t length)
{
    size_t size = length > 8000 ? 8000 : length;
    struct { long type; char bytes[]; } *from = vary(8 + size), *to = vary(8 + size);
    from->type = 7;
    fill_pattern((unsigned char *)from->bytes, size, 2);
    struct msqid_ds *about = vary(sizeof *about);
    struct sembuf *up = PUT(struct sembuf, 0, 2, 0), *down = PUT(struct sembuf, 0, -3, IPC_NOWAIT);
    struct timespec *limit = PUT(struct timespec, 0, 1000);
    unsigned short *values = room(2 * sizeof *values), set[2] = {5, 6}, *new = put(set, sizeof set);
    struct semid_ds *semaphores = vary(sizeof *semaphores);
    struct shmid_ds *memory = vary(sizeof *memory);
    swapped();
    int queue = (int)TRY(msgget(IPC_PRIVATE, 0600));
    CALL(msgsnd(queue, from, size, IPC_NOWAIT));
    CALL(msgctl(queue, IPC_STAT, about));
    note("queued", queue < 0 ? 0 : (long)about->msg_qnum);
    CALL(msgrcv(queue, to, size, 0, IPC_NOWAIT));
    look("message", to->bytes, queue < 0 ? 0 : size);
    CALL(msgrcv(queue, to, size, 0, IPC_NOWAIT));
    CALL(msgctl(queue, IPC_RMID, NULL));
    int group = (int)TRY(semget(IPC_PRIVATE, 2, 0600));
    CALL(semctl(group, 0, SETALL, new));
    CALL(semop(group, up, 1));
    CALL(semtimedop(group, down, 1, limit));
    CALL(semctl(group, 0, GETALL, values));
    CALL(semop(group, down, 1));
    CALL(semop(group, down, 1));
    CALL(semctl(group, 0, IPC_STAT, semaphores));
    note("semaphores", group < 0 ? 0 : (long)semaphores->sem_nsems);
    CALL(semctl(group, 0, IPC_RMID));
    int shared = (int)TRY(shmget(IPC_PRIVATE, 12345, 0600));
    CALL(shmctl(shared, IPC_STAT, memory));
    note("size", shared < 0 ? 0 : (long)memory->shm_segsz);
    CALL(shmctl(shared, IPC_RMID, NULL));
}

static void memory_calls(size_t length)
{
    static unsigned char far_away[100000];
    unsigned char *vec = vary(16), *bytes = room(length), *from = pattern(length, 7);
    struct iovec *mine = PUT_VARYING(struct iovec, bytes, length);
    struct iovec *given = PUT_VARYING(struct iovec, from, length);
    struct iovec theirs = {far_away, sizeof far_away};
    swapped();
    fill_pattern(far_away, sizeof far_away, 3);
    CALL(syscall(SYS_mincore, far_away - (uintptr_t)far_away % PAGE, 16 * PAGE, vec));
    for (int i = 0; i < 16; i++)
        note("resident", vec[i] & 1);
    CALL(process_vm_readv(getpid(), mine, 1, &theirs, 1, 0));
    CALL(process_vm_writev(getpid(), given, 1, &theirs, 1, 0));
    look("written", far_away, length);
}

/* Children whose path, arguments and environment are in paged memory. */
static void children(size_t length)
{
    char *shell = text("/bin/sh"), *name = text("sh"), *option = text("-c");
    char *script = text("echo \"$0, $1, $GATE\" >>said; exit 7"), *first = text("first");
    char *second = room(length);
    memset(second, 'x', length);
    second[length - 1] = '\0';
    char *list[] = {name, option, script, first, second, NULL};
    char *variable = text("GATE=a paged variable"), *environment[] = {variable, NULL};
    char **arguments = put_varying(list, sizeof list);
    char **variables = put_varying(environment, sizeof environment);
    char *line = text("echo said by system >>said; exit 9");
    char *missing = text("/missing/program"), *command = text("echo by popen"), *mode = text("r");
    int *status = vary(sizeof *status);
    pid_t *pid = vary(sizeof *pid);
    siginfo_t *about = vary(sizeof *about);
    struct rusage *used = vary(sizeof *used);
    char *output = room(20);
    swapped();
    MUST(close(open("said", O_CREAT | O_TRUNC | O_RDWR, 0600)) == 0);
    CALL(execve(missing, arguments, variables));
    pid_t child = fork();
    if (child == 0) {
        execve(shell, arguments, variables);
        _exit(99);
    }
    CALL(waitid(P_PID, (id_t)child, about, WEXITED | WNOWAIT));
    note("child", about->si_pid == child ? about->si_status : -1);
    CALL(wait4(child, status, 0, used) == child);
    note("status", *status);
    CALL(wait4(child, status, 0, used));
    swapped_again();
    CALL(posix_spawn(pid, shell, NULL, NULL, arguments, variables));
    CALL(waitpid(*pid, status, 0) == *pid);
    note("status", *status);
    swapped_again();
    child = vfork();
    if (child == 0) {
        execve(shell, arguments, variables);
        _exit(99);
    }
    CALL(waitpid(child, status, 0) == child);
    note("status", *status);
    CALL(system(line));
    FILE *said = popen(command, mode);
    CALL(said && fgets(output, 20, said) == output);
    CALL(said && pclose(said) == 0);
    int file = open("said", O_RDONLY);
    MUST(file >= 0 && unlink("said") == 0);
    look_at_file("said", file);
}

static void masks(size_t length)
{
    sigset_t *set = signal_set(SIGUSR2), *old = signal_set(0), *pending = signal_set(0);
    struct sigaction *action = vary(sizeof *action), *before = vary(sizeof *before);
    memset(action, 0, sizeof *action);
    action->sa_handler = SIG_IGN;
    sigaddset(&action->sa_mask, SIGUSR1);
    siginfo_t *about = vary(sizeof *about);
    struct signalfd_siginfo *read_about = vary(sizeof *read_about);
    struct timespec *limit = PUT(struct timespec, 0, 1000);
    union sigval value = {.sival_int = 4242};
    (void)length;
    swapped();
    CALL(syscall(SYS_rt_sigprocmask, SIG_BLOCK, set, old, 8));
    CALL(sigprocmask(SIG_BLOCK, set, old));
    CALL(sigqueue(getpid(), SIGUSR2, value));
    CALL(sigpending(pending));
    CALL(syscall(SYS_rt_sigtimedwait, set, about, limit, 8));
    note("signal", about->si_signo * 100000 + about->si_value.sival_int);
    CALL(sigtimedwait(set, about, limit));
    int file = signalfd(-1, set, SFD_NONBLOCK);
    CALL(read(file, read_about, sizeof *read_about));
    CALL(sigqueue(getpid(), SIGUSR2, value));
    CALL(read(file, read_about, sizeof *read_about));
    note("signal", read_about->ssi_signo * 100000 + (uint32_t)read_about->ssi_int);
    CALL(signalfd(file, old, 0) == file);
    CALL(syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, set, NULL, 8));
    CALL(syscall(SYS_rt_sigprocmask, 77, set, old, 8));
    CALL(sigaction(SIGUSR2, action, before));
    CALL(sigaction(SIGUSR2, NULL, action));
    note("handler", action->sa_handler == SIG_IGN ? action->sa_flags : -1);
    CALL(sigaction(SIGUSR2, before, NULL));
    CALL(sigaction(SIGKILL, before, NULL));
    MUST(close(file) == 0);
}

static const struct gate_case SYSTEM[] = {
    CASE(clocks, ONCE), CASE(limits, ONCE), CASE(scheduling, ONCE), CASE(timers, ONCE),
    CASE(randoms, LENGTHS), CASE(queues, LENGTHS), CASE(memory_calls, LENGTHS),
    CASE(children, LENGTHS), CASE(masks, ONCE), {NULL, NULL, 0},
};

#endif
