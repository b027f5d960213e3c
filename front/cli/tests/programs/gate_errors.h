/* Bad pointers: NULL, and into memory that is not mapped or is protected. */
#ifndef GATE_ERRORS_H
#define GATE_ERRORS_H

#include "gate_system.h"

static const enum bad BAD[] = {HOLE, NO_ACCESS, READ_ONLY};

static void no_pointer(size_t length)
{
    char *data = text("data");
    struct timespec *zero = PUT(struct timespec, 0, 0);
    struct iovec *pieces = PUT_VARYING(struct iovec, NULL, 10);
    socklen_t *size = PUT(socklen_t, 16);
    struct stat *about = vary(sizeof *about);
    struct sockaddr_in any = loopback(), *name = put(&any, sizeof any);
    (void)length;
    swapped();
    int file = data_file(O_RDWR), a = socket(AF_INET, SOCK_DGRAM, 0), ends[2];
    MUST(pipe(ends) == 0);
    CALL(syscall(SYS_read, file, NULL, 10));
    CALL(syscall(SYS_write, ends[1], NULL, 10));
    CALL(readv(file, pieces, 1));
    CALL(syscall(SYS_readv, file, NULL, 1));
    CALL(syscall(SYS_open, NULL, O_RDONLY));
    CALL(syscall(SYS_stat, data, NULL));
    CALL(syscall(SYS_stat, NULL, about));
    CALL(syscall(SYS_rename, data, NULL));
    CALL(syscall(SYS_symlink, NULL, data));
    CALL(syscall(SYS_readlink, data, NULL, 10));
    CALL(syscall(SYS_getcwd, NULL, 100));
    CALL(syscall(SYS_pipe, NULL));
    CALL(syscall(SYS_uname, NULL));
    CALL(syscall(SYS_nanosleep, NULL, zero));
    CALL(syscall(SYS_clock_gettime, CLOCK_REALTIME, NULL));
    CALL(syscall(SYS_poll, NULL, 3, 0));
    CALL(syscall(SYS_pselect6, 0, NULL, NULL, NULL, zero, NULL));
    CALL(syscall(SYS_bind, a, NULL, 16));
    CALL(syscall(SYS_connect, a, NULL, 16));
    CALL(bind(a, (struct sockaddr *)name, sizeof any));
    CALL(syscall(SYS_getsockname, a, NULL, size));
    CALL(syscall(SYS_getsockname, a, name, NULL));
    CALL(syscall(SYS_sendmsg, a, NULL, 0));
    CALL(syscall(SYS_recvmsg, a, NULL, MSG_DONTWAIT));
    CALL(syscall(SYS_setsockopt, a, SOL_SOCKET, SO_KEEPALIVE, NULL, 4));
    CALL(syscall(SYS_getsockopt, a, SOL_SOCKET, SO_TYPE, NULL, size));
    CALL(syscall(SYS_wait4, -1, NULL, 0, NULL));
    CALL(syscall(SYS_execve, NULL, NULL, NULL));
    CALL(syscall(SYS_getdents64, ends[0], NULL, 100));
    CALL(syscall(SYS_getrandom, NULL, 10, 0));
    close_both(ends);
    MUST(close(file) == 0 && close(a) == 0);
}


/* Transfers of `wanted` bytes that begin `good` bytes before the border. */
static void transfers(unsigned char *border, size_t good, size_t wanted)
{
    unsigned char *at = border - good;
    struct iovec pieces[2] = {{border - EDGE, 100}, {at, wanted}};
    int file = data_file(O_RDONLY), out = empty_file(), ends[2], local[2];
    MUST(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, local) == 0);
    long done = CALL(read(file, at, wanted));
    look("read", at, done > 0 ? (size_t)done < good ? (size_t)done : good : 0);
    CALL(lseek(file, 0, SEEK_CUR));
    CALL(pread(file, at, wanted, 5));
    CALL(readv(file, pieces, 2));
    CALL(preadv(file, pieces, 2, 70));
    CALL(write(out, at, wanted));
    CALL(lseek(out, 0, SEEK_CUR));
    CALL(pwrite(out, at, wanted, 10));
    CALL(writev(out, pieces, 2));
    CALL(send(local[0], at, wanted, 0));
    MUST(write(ends[1], "0123456789", 10) == 10);
    CALL(read(ends[0], at, wanted));
    MUST(send(local[0], "0123456789", 10, 0) == 10);
    CALL(recv(local[1], at, wanted, MSG_DONTWAIT));
    close_both(ends);
    close_both(local);
    MUST(close(file) == 0 && close(out) == 0);
}

static void bad_buffers(size_t length)
{
    unsigned char *border = edge();
    swapped();
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        spoil(border, BAD[i]);
        transfers(border, 0, length);
        transfers(border, length > 5000 ? 5000 : length, length + 20000);
        transfers(border, 3, length);
        transfers(border, 20, 20);
        transfers(border - 4096, 4, 4);
    }
}

/* A structure of zeros that ends 4 bytes behind the border. */
static void *behind(unsigned char *border, size_t size)
{
    memset(border - 1000, 0, 1000);
    return border + 4 - size;
}

#define ENDS_BEHIND(type) ((type *)behind(border, sizeof(type)))

static void bad_structures(size_t length)
{
    unsigned char *border = edge();
    struct timespec *zero = PUT(struct timespec, 0, 0);
    struct sockaddr_in any = loopback(), *name = put(&any, sizeof any);
    socklen_t *size = PUT(socklen_t, sizeof any);
    struct iovec bad = {border, 100};
    struct msghdr *in_bad = PUT_VARYING(struct msghdr, .msg_iov = (void *)(border - 8),
                                        .msg_iovlen = 1);
    struct msghdr *to_bad = PUT_VARYING(struct msghdr, .msg_iov = put_varying(&bad, sizeof bad),
                                        .msg_iovlen = 1);
    (void)length;
    swapped();
    int file = data_file(O_RDWR), a = socket(AF_INET, SOCK_DGRAM, 0), set = epoll_create1(0);
    MUST(bind(a, (struct sockaddr *)&any, sizeof any) == 0);
    MUST(getsockname(a, (struct sockaddr *)name, size) == 0);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        spoil(border, BAD[i]);
        CALL(fstat(file, ENDS_BEHIND(struct stat)));
        CALL(syscall(SYS_pipe, border - 4));
        CALL(syscall(SYS_clock_gettime, CLOCK_REALTIME, ENDS_BEHIND(struct timespec)));
        CALL(syscall(SYS_nanosleep, ENDS_BEHIND(struct timespec), NULL));
        CALL(uname(ENDS_BEHIND(struct utsname)));
        CALL(sysinfo(ENDS_BEHIND(struct sysinfo)));
        CALL(getrusage(RUSAGE_SELF, ENDS_BEHIND(struct rusage)));
        CALL(syscall(SYS_getrlimit, RLIMIT_NOFILE, ENDS_BEHIND(struct timespec)));
        CALL(poll(ENDS_BEHIND(struct pollfd), 1, 0));
        CALL(syscall(SYS_select, 64, border, NULL, NULL, zero));
        CALL(syscall(SYS_ppoll, NULL, 0, ENDS_BEHIND(struct timespec), NULL, 8));
        CALL(epoll_ctl(set, EPOLL_CTL_ADD, a, ENDS_BEHIND(struct epoll_event)));
        epoll_ctl(set, EPOLL_CTL_DEL, a, NULL);
        CALL(syscall(SYS_bind, a, ENDS_BEHIND(struct sockaddr_in), sizeof any));
        CALL(sendto(a, name, 10, 0, (struct sockaddr *)name, sizeof *name));
        CALL(syscall(SYS_recvfrom, a, border - 10, 10, MSG_DONTWAIT, border, size));
        CALL(syscall(SYS_recvfrom, a, border - 10, 10, MSG_DONTWAIT, border - 80, border));
        CALL(syscall(SYS_getsockname, a, border - 8, size));
        CALL(syscall(SYS_getsockname, a, border - 80, border - 2));
        CALL(sendmsg(a, ENDS_BEHIND(struct msghdr), 0));
        CALL(sendmsg(a, in_bad, 0));
        CALL(sendmsg(a, to_bad, 0));
        CALL(recvmsg(a, to_bad, MSG_DONTWAIT));
        CALL(syscall(SYS_rt_sigprocmask, SIG_BLOCK, ENDS_BEHIND(uint64_t), NULL, 8));
        CALL(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, border - 4, 8));
        CALL(syscall(SYS_sched_getaffinity, 0, 128, border - 4));
        CALL(syscall(SYS_futex, border, 129, 1, NULL, NULL, 0));
        CALL(syscall(SYS_futex, border, 128, 12345, zero, NULL, 0));
        CALL(ioctl(file, FIONREAD, border - 2));
        CALL(fcntl(file, F_GETLK, ENDS_BEHIND(struct flock)));
        CALL(syscall(SYS_getcwd, border - 2, 4096));
        CALL(BAD[i] == READ_ONLY ? 0 : syscall(SYS_execve, "/bin/true", ENDS_BEHIND(void *), NULL));
        CALL(syscall(SYS_getdents64, set, border - 4, 100));
        CALL(getrandom(border, 8, 0));
    }
    MUST(close(file) == 0 && close(a) == 0 && close(set) == 0);
    *name = any;
}

/* A path that ends right before bad memory is good; one that runs into it is not. */
static void bad_paths(size_t length)
{
    unsigned char *border = edge();
    char *longest = room(4096), *too_long = room(6000), *long_name = room(257);
    memset(longest, '/', 4096);
    memcpy(longest, ".", 1);
    strcpy(longest + 4095 - 4, "data");
    memset(too_long, '/', 6000);
    strcpy(too_long + 6000 - 5, "data");
    memset(long_name, 'n', 256);
    long_name[256] = '\0';
    struct stat *about = vary(sizeof *about);
    (void)length;
    swapped();
    CALL(stat(longest, about));
    CALL(stat(too_long, about));
    CALL(stat(long_name, about));
    CALL(rename(too_long, long_name));
    CALL(symlink(too_long, "link"));
    CALL(mkdir(long_name, 0700));
    CALL(syscall(SYS_memfd_create, long_name, 0));
    strcpy((char *)border - 5, "data");
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        spoil(border, BAD[i]);
        CALL(access((char *)border - 5, F_OK));
        CALL(access((char *)border - 1, F_OK));
        CALL(access((char *)border, F_OK));
        CALL(access((char *)border + 5000, F_OK));
        border[-1] = '/';
        TRY(open((char *)border - 5, O_RDONLY));
        CALL(rename((char *)border - 5, longest));
        CALL(syscall(SYS_symlinkat, border - 5, AT_FDCWD, "link"));
        CALL(unlink("link"));
        CALL(getxattr(longest, (char *)border - 5, about, 10));
        CALL(prctl(PR_SET_NAME, border - 5));
        border[-1] = '\0';
    }
    memset(border - EDGE, 'y', EDGE);
    spoil(border, HOLE);
    CALL(access((char *)border - 4096, F_OK));
    CALL(access((char *)border - 4095, F_OK));
    CALL(access((char *)border - 5000, F_OK));
}

static const struct gate_case ERRORS[] = {
    CASE(no_pointer, ONCE), CASE(bad_buffers, LENGTHS), CASE(bad_structures, ONCE),
    CASE(bad_paths, ONCE), {NULL, NULL, 0},
};

#endif
