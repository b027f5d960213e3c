/* Sockets, messages, and waiting for descriptors. */
#ifndef GATE_SOCKETS_H
#define GATE_SOCKETS_H

#include "gate_files.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>

static void close_both(const int *ends)
{
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* A set of one signal, or none. */
static sigset_t *signal_set(int signal)
{
    sigset_t set = {{0}};
    if (signal)
        sigaddset(&set, signal);
    return put(&set, sizeof set);
}

static void socket_pairs(size_t length)
{
    int *ends = vary(2 * sizeof *ends), *type = room(sizeof *type), *one = PUT(int, 1);
    struct linger *linger = room(sizeof *linger), *lingers = PUT(struct linger, 1, 9);
    socklen_t *size = PUT(socklen_t, sizeof(int)), *big = PUT(socklen_t, 100);
    unsigned char *from = pattern(length, 3), *to = room(length + 10);
    swapped();
    CALL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    CALL(getsockopt(ends[0], SOL_SOCKET, SO_TYPE, type, size));
    CALL(setsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, one, sizeof *one));
    CALL(getsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, type, size));
    CALL(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, lingers, sizeof *lingers));
    CALL(getsockopt(ends[0], SOL_SOCKET, SO_LINGER, linger, big));
    CALL(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, lingers, 1));
    CALL(getsockopt(ends[0], SOL_SOCKET, 9999, linger, big));
    CALL(send(ends[0], from, length, MSG_DONTWAIT));
    CALL(recv(ends[1], to, length + 10, MSG_PEEK));
    CALL(recv(ends[1], to, length + 10, MSG_DONTWAIT));
    CALL(recv(ends[1], to, length + 10, MSG_DONTWAIT));
    CALL(sendto(ends[1], from, length / 2, MSG_DONTWAIT, NULL, 0));
    CALL(recvfrom(ends[0], to, length, MSG_DONTWAIT, NULL, NULL));
    CALL(read(-1, to, 1));
    close_both(ends);
}

static struct sockaddr_in loopback(void)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void datagrams(size_t length)
{
    size_t size = length == 70000 ? 60000 : length;
    struct sockaddr_in any = loopback();
    struct sockaddr_in *name = put_varying(&any, sizeof any), *peer = vary(sizeof *peer);
    struct sockaddr_in *sender = vary(2 * sizeof *sender);
    socklen_t *name_size = PUT(socklen_t, sizeof any), *sender_size = PUT(socklen_t, 30);
    unsigned char *from = pattern(size, 4), *to = room(size + 50), *cut = room(size / 2 + 1);
    swapped();
    int a = socket(AF_INET, SOCK_DGRAM, 0), b = socket(AF_INET, SOCK_DGRAM, 0);
    CALL(bind(a, (struct sockaddr *)name, sizeof *name));
    CALL(bind(b, (struct sockaddr *)name, sizeof *name));
    CALL(getsockname(a, (struct sockaddr *)name, name_size));
    CALL(sendto(b, from, size, 0, (struct sockaddr *)name, sizeof *name));
    CALL(recvfrom(a, to, size + 50, 0, (struct sockaddr *)sender, sender_size));
    CALL(getsockname(b, (struct sockaddr *)peer, name_size));
    note("sender", sender->sin_port == peer->sin_port && sender->sin_family == AF_INET);
    CALL(connect(b, (struct sockaddr *)name, sizeof *name));
    CALL(getpeername(b, (struct sockaddr *)peer, name_size));
    note("peer", memcmp(peer, name, sizeof *name) == 0);
    *name_size = 3;
    CALL(getpeername(b, (struct sockaddr *)peer, name_size));
    CALL(write(b, from, size));
    CALL(recv(a, cut, size / 2 + 1, MSG_TRUNC));
    CALL(send(b, from, size, 0));
    CALL(read(a, cut, size / 2 + 1));
    CALL(recv(a, cut, size, MSG_DONTWAIT));
    CALL(sendto(b, from, size, 0, (struct sockaddr *)name, 3));
    MUST(close(a) == 0 && close(b) == 0);
}

static void streams(size_t length)
{
    struct sockaddr_in any = loopback();
    struct sockaddr_in *name = put_varying(&any, sizeof any), *peer = vary(sizeof *peer);
    socklen_t *size = PUT(socklen_t, sizeof any), *option_size = PUT(socklen_t, sizeof(int));
    int *option = PUT(int, 1);
    struct tcp_info *info = vary(sizeof *info);
    unsigned char *from = pattern(length, 4), *to = room(length);
    swapped();
    int listener = socket(AF_INET, SOCK_STREAM, 0), end = socket(AF_INET, SOCK_STREAM, 0);
    CALL(bind(listener, (struct sockaddr *)name, sizeof *name));
    MUST(listen(listener, 2) == 0);
    CALL(getsockname(listener, (struct sockaddr *)name, size));
    CALL(connect(end, (struct sockaddr *)name, sizeof *name));
    int other = (int)TRY(accept(listener, (struct sockaddr *)peer, size));
    note("family", peer->sin_family);
    CALL(setsockopt(end, IPPROTO_TCP, TCP_NODELAY, option, sizeof *option));
    CALL(getsockopt(end, IPPROTO_TCP, TCP_NODELAY, option, option_size));
    *option_size = sizeof *info;
    CALL(getsockopt(end, IPPROTO_TCP, TCP_INFO, info, option_size));
    note("state", info->tcpi_state);
    CALL(send(end, from, length, 0));
    CALL(recv(other, to, length, MSG_WAITALL));
    CALL(write(other, from, length));
    CALL(recv(end, to, length, MSG_WAITALL));
    int again = socket(AF_INET, SOCK_STREAM, 0);
    CALL(connect(again, (struct sockaddr *)name, sizeof *name));
    *size = 5;
    int last = (int)TRY(accept4(listener, (struct sockaddr *)peer, size, SOCK_CLOEXEC));
    int sockets[] = {listener, end, other, again, last};
    for (size_t i = 0; i < 5; i++)
        MUST(close(sockets[i]) == 0);
}

static void local_names(size_t length)
{
    struct sockaddr_un *name = PUT(struct sockaddr_un, AF_UNIX, "socket");
    struct sockaddr_un *missing = PUT(struct sockaddr_un, AF_UNIX, "missing");
    struct sockaddr_un *found = room(sizeof *found);
    socklen_t *size = PUT(socklen_t, sizeof *found);
    char *path = text("socket");
    (void)length;
    swapped();
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), end = socket(AF_UNIX, SOCK_STREAM, 0);
    CALL(bind(listener, (struct sockaddr *)name, sizeof *name));
    CALL(bind(end, (struct sockaddr *)name, sizeof *name));
    MUST(listen(listener, 1) == 0);
    CALL(getsockname(listener, (struct sockaddr *)found, size));
    CALL(connect(end, (struct sockaddr *)missing, sizeof *missing));
    CALL(connect(end, (struct sockaddr *)name, sizeof *name));
    CALL(getpeername(end, (struct sockaddr *)found, size));
    int other = (int)TRY(accept(listener, (struct sockaddr *)found, size));
    CALL(unlink(path));
    MUST(close(listener) == 0 && close(end) == 0 && close(other) == 0);
}

/* Also with a descriptor among the control data, which are truncated the second time. */
static void messages(size_t length)
{
    struct msghdr *out = vary(sizeof *out), *in = vary(sizeof *in);
    size_t space = CMSG_SPACE(sizeof(int)), size = length / 2 + 4;
    char *control = vary(space), *received = vary(space);
    *out = (struct msghdr){.msg_iov = parts(size, 40), .msg_iovlen = PARTS,
                           .msg_control = control, .msg_controllen = space};
    struct iovec *to = parts(size, 0);
    *in = (struct msghdr){.msg_iov = to, .msg_iovlen = PARTS,
                          .msg_control = received, .msg_controllen = space};
    int file = data_file(O_RDONLY);
    struct cmsghdr *header = CMSG_FIRSTHDR(out);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
                               .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &file, sizeof file);
    swapped();
    int ends[2], passed;
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    for (int cut = 0; cut < 2; cut++) {
        in->msg_iovlen = cut ? 3 : PARTS;
        in->msg_controllen = cut ? space / 2 : space;
        CALL(sendmsg(ends[0], out, MSG_DONTWAIT));
        CALL(recvmsg(ends[1], in, MSG_DONTWAIT));
        note("flags", in->msg_flags);
        note("control length", (long)in->msg_controllen);
        note("name length", in->msg_namelen);
        if (cut)
            break;
        header = CMSG_FIRSTHDR(in);
        look("control", header, sizeof *header);
        memcpy(&passed, CMSG_DATA(header), sizeof passed);
        CALL(pread(passed, to[2].iov_base, to[2].iov_len, 40));
        MUST(close(passed) == 0);
        swapped_again();
    }
    CALL(recvmsg(ends[1], in, MSG_DONTWAIT));
    out->msg_controllen = 3;
    CALL(sendmsg(ends[0], out, MSG_DONTWAIT));
    out->msg_iovlen = 2000;
    CALL(sendmsg(ends[0], out, MSG_DONTWAIT));
    close_both(ends);
    MUST(close(file) == 0);
}

static void many_messages(size_t length)
{
    enum { COUNT = 3 };
    struct sockaddr_in any = loopback();
    struct sockaddr_in *name = put_varying(&any, sizeof any);
    socklen_t *name_size = PUT(socklen_t, sizeof any);
    struct mmsghdr *out = vary(COUNT * sizeof *out), *in = vary(COUNT * sizeof *in);
    struct sockaddr_in *names = vary(COUNT * sizeof *names);
    struct timespec *limit = PUT_VARYING(struct timespec, 5, 0);
    size_t size = length / 4 + 5;
    for (size_t i = 0; i < COUNT; i++) {
        out[i] = (struct mmsghdr){.msg_hdr.msg_iov = parts(size, 60 + i),
                                  .msg_hdr.msg_iovlen = i + 2, .msg_hdr.msg_name = name,
                                  .msg_hdr.msg_namelen = sizeof *name};
        in[i] = (struct mmsghdr){.msg_hdr.msg_iov = parts(size, 0), .msg_hdr.msg_iovlen = 3,
                                 .msg_hdr.msg_name = names + i,
                                 .msg_hdr.msg_namelen = sizeof *names};
    }
    swapped();
    int a = socket(AF_INET, SOCK_DGRAM, 0), b = socket(AF_INET, SOCK_DGRAM, 0);
    MUST(bind(a, (struct sockaddr *)&any, sizeof any) == 0);
    CALL(getsockname(a, (struct sockaddr *)name, name_size));
    CALL(sendmmsg(b, out, COUNT, 0));
    CALL(recvmmsg(a, in, COUNT, MSG_DONTWAIT, limit));
    for (size_t i = 0; i < COUNT; i++) {
        note("sent", out[i].msg_len);
        note("received", in[i].msg_len);
        note("flags", in[i].msg_hdr.msg_flags);
        note("names", in[i].msg_hdr.msg_namelen);
        note("family", names[i].sin_family);
    }
    CALL(recvmmsg(a, in, COUNT, MSG_DONTWAIT, NULL));
    CALL(sendmmsg(-1, out, COUNT, 0));
    MUST(close(a) == 0 && close(b) == 0);
}

static void polls(size_t length)
{
    int ends[2];
    MUST(pipe(ends) == 0);
    size_t count = length == 1 ? 1 : length < 6000 ? 60 : 900;
    struct pollfd *set = vary(count * sizeof *set);
    for (size_t i = 0; i < count; i++)
        set[i] = (struct pollfd){i % 3 ? -1 : ends[i % 2], i % 2 ? POLLOUT : POLLIN, 0};
    struct timespec *short_time = PUT_VARYING(struct timespec, 0, 1000000);
    struct timespec *bad_time = PUT(struct timespec, 0, -1);
    sigset_t *mask = signal_set(0);
    struct pollfd *empty = PUT_VARYING(struct pollfd, ends[0], POLLIN, 0);
    swapped();
    CALL(poll(set, count, 1000 * (length > 1)));
    for (size_t i = 0; i < count; i++)
        note("events", set[i].revents);
    CALL(ppoll(empty, 1, short_time, mask));
    CALL(syscall(SYS_ppoll, empty, 1, short_time, NULL, 8));
    CALL(ppoll(empty, 1, bad_time, mask));
    CALL(write(ends[1], mask, 1));
    CALL(poll(empty, 1, -1));
    note("events", empty->revents);
    swapped_again();
    CALL(ppoll(set, count, NULL, mask));
    for (size_t i = 0; i < count; i++)
        note("events", set[i].revents);
    close_both(ends);
}

static void selects(size_t length)
{
    fd_set *in = vary(sizeof *in), *out = vary(sizeof *out), *bad = vary(sizeof *bad);
    struct timeval *limit = PUT_VARYING(struct timeval, 2, 0);
    struct timespec *exact = PUT_VARYING(struct timespec, 0, 1000);
    sigset_t *mask = signal_set(0);
    struct { const void *mask; size_t size; } *masks = vary(sizeof *masks);
    masks->mask = mask;
    masks->size = 8;
    FD_ZERO(in);
    FD_ZERO(out);
    FD_ZERO(bad);
    int ends[2];
    MUST(pipe(ends) == 0);
    FD_SET(ends[0], in);
    FD_SET(ends[1], out);
    (void)length;
    swapped();
    int end = ends[1] + 1;
    CALL(syscall(SYS_select, end, in, out, bad, limit));
    note("time is left", limit->tv_sec == 1 || limit->tv_sec == 2);
    note("sets", FD_ISSET(ends[0], in) * 2 + FD_ISSET(ends[1], out));
    FD_SET(ends[0], in);
    CALL(syscall(SYS_pselect6, end, in, NULL, bad, exact, masks));
    note("sets", FD_ISSET(ends[0], in));
    FD_SET(ends[0], in);
    CALL(write(ends[1], mask, 1));
    CALL(pselect(end, in, out, NULL, NULL, mask));
    note("sets", FD_ISSET(ends[0], in) * 2 + FD_ISSET(ends[1], out));
    CALL(select(end, in, NULL, NULL, limit));
    CALL(syscall(SYS_select, 1024, in, out, bad, limit));
    CALL(syscall(SYS_select, -1, in, out, bad, limit));
    FD_SET(1000, in);
    CALL(syscall(SYS_select, 1001, in, NULL, NULL, limit));
    close_both(ends);
}

static void epolls(size_t length)
{
    size_t room_for = length < 6000 ? 3 : 2000;
    struct epoll_event *add = PUT(struct epoll_event, EPOLLIN, {.u64 = 0x1234567890});
    struct epoll_event *other = PUT(struct epoll_event, EPOLLOUT, {.u64 = 77});
    struct epoll_event *events = room(room_for * sizeof *events);
    struct timespec *limit = PUT(struct timespec, 0, 1000);
    sigset_t *mask = signal_set(0);
    swapped();
    int ends[2], set = epoll_create1(EPOLL_CLOEXEC);
    MUST(pipe(ends) == 0 && set >= 0);
    CALL(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], add));
    CALL(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], add));
    CALL(epoll_wait(set, events, (int)room_for, 0));
    CALL(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], other));
    CALL(epoll_wait(set, events, (int)room_for, -1));
    CALL(write(ends[1], mask, 1));
    CALL(epoll_pwait(set, events, (int)room_for, 100, mask));
    CALL(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], other));
    CALL(epoll_pwait2(set, events, (int)room_for, limit, mask));
    CALL(epoll_wait(set, events, 0, 0));
    CALL(epoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL));
    close_both(ends);
    MUST(close(set) == 0);
}

static const struct gate_case SOCKETS[] = {
    CASE(socket_pairs, LENGTHS), CASE(datagrams, LENGTHS), CASE(streams, LENGTHS),
    CASE(local_names, ONCE), CASE(messages, LENGTHS), CASE(many_messages, LENGTHS),
    CASE(polls, LENGTHS), CASE(selects, ONCE), CASE(epolls, LENGTHS), {NULL, NULL, 0},
};

#endif
