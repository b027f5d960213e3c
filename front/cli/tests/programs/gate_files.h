/* Files: contents, names, attributes. In a directory with `data` (200,000 bytes) and `list`. */
#ifndef GATE_FILES_H
#define GATE_FILES_H

#include "gate_frame.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <termios.h>
#include <utime.h>

enum { DATA_SIZE = 200000, PARTS = 5 };

static int data_file(int flags)
{
    int file = open("data", flags | O_CLOEXEC);
    MUST(file >= 0);
    return file;
}

static int empty_file(void)
{
    int file = open("out", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    MUST(file >= 0 && unlink("out") == 0);
    return file;
}

/* Notes the contents of a file, and closes it. */
static void look_at_file(const char *what, int file)
{
    static unsigned char back[ROOM];
    ssize_t length = pread(file, back, sizeof back, 0);
    MUST(length >= 0 && close(file) == 0);
    look(what, back, (size_t)length);
}

static void reads(size_t length)
{
    unsigned char *a = room(length), *b = room(length), *c = room(length);
    swapped();
    int file = data_file(O_RDONLY);
    CALL(read(file, a, length));
    CALL(syscall(SYS_read, file, a, length));
    CALL(lseek(file, -7, SEEK_END));
    CALL(read(file, b, length));
    CALL(read(file, b, length));
    CALL(pread(file, c, length, 33));
    CALL(syscall(SYS_pread64, file, c, length / 2, 50));
    CALL(pread(file, c, length, -1));
    CALL(read(-1, c, length));
    CALL(read(file, c, 0));
    MUST(close(file) == 0);
}

static void writes(size_t length)
{
    unsigned char *from = pattern(length, 5), *other = pattern(length, 6);
    swapped();
    int file = empty_file();
    CALL(write(file, from, length));
    CALL(syscall(SYS_write, file, other, length));
    CALL(pwrite(file, other, length, 10));
    CALL(syscall(SYS_pwrite64, file, from, length / 2, 3));
    CALL(write(-1, from, length));
    look_at_file("written", file);
    file = data_file(O_RDONLY);
    CALL(write(file, from, length));
    MUST(close(file) == 0);
}

/* Parts of unequal sizes, one of them empty. */
static struct iovec *parts(size_t length, uint64_t seed)
{
    struct iovec array[PARTS] = {{NULL, 0}};
    for (size_t i = 1; i < PARTS; i++) {
        size_t take = length * i / 7 + 1;
        array[i] = (struct iovec){seed ? pattern(take, seed + i) : room(take), take};
    }
    return put_varying(array, sizeof array);
}

static void vectors(size_t length)
{
    struct iovec *a = parts(length, 0), *b = parts(length, 0), *from = parts(length, 90);
    swapped();
    int file = data_file(O_RDONLY), out = empty_file();
    CALL(readv(file, a, PARTS));
    CALL(preadv(file, b, PARTS, 1000));
    CALL(preadv2(file, b, PARTS - 1, 2000, 0));
    CALL(syscall(SYS_preadv2, file, a, 3, -1l, -1l, 0));
    CALL(lseek(file, -20, SEEK_END));
    CALL(readv(file, b, PARTS));
    CALL(readv(file, b, 0));
    CALL(syscall(SYS_readv, file, b, -1));
    CALL(syscall(SYS_readv, file, b, 1025));
    CALL(writev(out, from, PARTS));
    CALL(pwritev(out, from, PARTS, 5));
    CALL(pwritev2(out, from, 3, 100, 0));
    CALL(pwritev2(out, from, 3, 100, 0x4000000));
    look_at_file("written", out);
    MUST(close(file) == 0);
}

static void many_parts(size_t length)
{
    static struct iovec array[1024];
    unsigned char *to = room(20000);
    for (size_t i = 0; i < 1024; i++)
        array[i] = (struct iovec){to + (1023 - i) * 19, i % 19 + length % 2};
    struct iovec *paged = put_varying(array, sizeof array);
    swapped();
    int file = data_file(O_RDONLY), ends[2];
    CALL(readv(file, paged, 1024));
    MUST(pipe(ends) == 0);
    CALL(writev(ends[1], paged, 1024));
    CALL(readv(ends[0], paged, 500));
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0 && close(file) == 0);
}

static void pipes(size_t length)
{
    unsigned char *from = pattern(length, 8), *to = room(length);
    int *ends = vary(2 * sizeof *ends), *others = vary(2 * sizeof *others), *queued = room(4);
    swapped();
    CALL(pipe(ends));
    CALL(pipe2(others, O_NONBLOCK | O_CLOEXEC));
    CALL(pipe2(others, -1));
    CALL(read(others[0], to, length));
    long sent = CALL(write(others[1], from, length));
    CALL(ioctl(others[0], FIONREAD, queued));
    CALL(read(others[0], to, length));
    size_t fits = length < 60000 ? length : 60000;
    CALL(write(ends[1], from, fits));
    CALL(read(ends[0], to, length));
    note("sent", sent);
    for (int i = 0; i < 2; i++)
        MUST(close(ends[i]) == 0 && close(others[i]) == 0);
}

static void opens(size_t length)
{
    char *data = text("data"), *fresh = text("made"), *missing = text("missing/x");
    char *empty = text("");
    struct open_how *how = PUT(struct open_how, .flags = O_RDONLY, .resolve = RESOLVE_BENEATH);
    (void)length;
    swapped();
    int files[] = {
        (int)TRY(open(data, O_RDONLY)),
        (int)TRY(syscall(SYS_open, data, O_RDWR, 0)),
        (int)TRY(openat(AT_FDCWD, data, O_RDONLY)),
        (int)TRY(syscall(SYS_openat, AT_FDCWD, data, O_RDONLY | O_DIRECTORY, 0)),
        (int)TRY(syscall(SYS_openat2, AT_FDCWD, data, how, sizeof *how)),
        (int)TRY(syscall(SYS_openat2, AT_FDCWD, data, how, 3)),
        (int)TRY(creat(fresh, 0640)),
        (int)TRY(open(fresh, O_CREAT | O_EXCL | O_RDWR, 0600)),
        (int)TRY(open(missing, O_RDONLY)),
        (int)TRY(open(empty, O_RDONLY)),
        (int)TRY(syscall(SYS_memfd_create, fresh, 1)),
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] >= 0)
            MUST(close(files[i]) == 0);
    CALL(unlink(fresh));
    FILE *stream = fopen(data, "r");
    CALL(stream && fread(how, 8, 2, stream) == 2 && fclose(stream) == 0);
}

static void stats(size_t length)
{
    char *data = text("data"), *missing = text("missing"), *empty = text("");
    struct stat *a = room(sizeof *a), *b = room(sizeof *b), *c = room(sizeof *c);
    struct statx *x = room(sizeof *x), *y = room(sizeof *y);
    struct statfs *system = vary(sizeof *system), *of_file = vary(sizeof *of_file);
    (void)length;
    swapped();
    int file = data_file(O_RDONLY);
    CALL(stat(data, a));
    CALL(syscall(SYS_stat, data, a));
    CALL(syscall(SYS_lstat, data, b));
    CALL(syscall(SYS_fstat, file, c));
    CALL(stat(missing, a));
    CALL(fstat(file, b));
    CALL(lstat(data, b));
    CALL(syscall(SYS_newfstatat, AT_FDCWD, data, a, AT_SYMLINK_NOFOLLOW));
    CALL(syscall(SYS_newfstatat, file, empty, c, AT_EMPTY_PATH));
    CALL(statx(AT_FDCWD, data, 0, STATX_BASIC_STATS, x));
    CALL(statx(file, empty, AT_EMPTY_PATH, STATX_ALL & ~STATX_ATIME, y));
    CALL(statfs(data, system));
    CALL(fstatfs(file, of_file));
    CALL(statfs(missing, system));
    note("type", system->f_type == of_file->f_type ? system->f_type : -2);
    note("names", system->f_namelen);
    MUST(close(file) == 0);
}

static void names(size_t length)
{
    char *data = text("data"), *a = text("name a"), *b = text("name b"), *dir = text("dir");
    char *link_text = room(100), *short_text = room(3), *inside = text("dir/x");
    char *self = text("/proc/self/cwd"), *dot = text(".");
    (void)length;
    swapped();
    CALL(access(data, R_OK));
    CALL(faccessat(AT_FDCWD, a, F_OK, 0));
    CALL(syscall(SYS_faccessat2, AT_FDCWD, data, W_OK, AT_EACCESS));
    CALL(symlink(data, a));
    CALL(symlinkat(data, AT_FDCWD, a));
    CALL(readlink(a, link_text, 100));
    CALL(readlinkat(AT_FDCWD, a, short_text, 3));
    CALL(readlink(data, link_text, 100));
    TRY(readlink(self, link_text, 5));
    CALL(rename(a, b));
    CALL(renameat(AT_FDCWD, b, AT_FDCWD, a));
    CALL(syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, data, 1));
    CALL(unlink(a));
    CALL(link(data, a));
    CALL(linkat(AT_FDCWD, data, AT_FDCWD, b, 0));
    CALL(unlinkat(AT_FDCWD, b, 0));
    CALL(unlink(a));
    CALL(unlink(a));
    CALL(mkdir(dir, 0700));
    CALL(mkdirat(AT_FDCWD, dir, 0700));
    CALL(mknod(inside, S_IFIFO | 0600, 0));
    CALL(rmdir(dir));
    CALL(chdir(dir));
    CALL(chdir(".."));
    CALL(unlink(inside));
    CALL(rmdir(dir));
    CALL(chdir(dot));
    CALL(chdir(data));
}

static void attributes(size_t length)
{
    char *name = text("other"), *missing = text("missing");
    struct timespec times[2] = {{1000000, 5}, {2000000, 7}};
    struct timespec *both = put(times, sizeof times);
    struct timeval old[2] = {{3000000, 1}, {4000000, 2}}, *older = put(old, sizeof old);
    struct utimbuf *oldest = PUT(struct utimbuf, 50, 60);
    struct stat *after = vary(sizeof *after);
    (void)length;
    swapped();
    MUST(close(open(name, O_CREAT | O_RDWR, 0600)) == 0);
    CALL(chmod(name, 0640));
    CALL(fchmodat(AT_FDCWD, name, 0604, 0));
    CALL(chmod(missing, 0600));
    CALL(chown(name, (uid_t)-1, (gid_t)-1));
    CALL(lchown(name, getuid(), getgid()));
    CALL(fchownat(AT_FDCWD, name, (uid_t)-1, (gid_t)-1, 0));
    CALL(truncate(name, 4321));
    CALL(truncate(missing, 1));
    CALL(utimensat(AT_FDCWD, name, both, 0));
    CALL(stat(name, after));
    note("mode", after->st_mode);
    note("size", after->st_size);
    look("times", &after->st_atim, 2 * sizeof(struct timespec));
    CALL(syscall(SYS_utimes, name, older));
    CALL(stat(name, after));
    look("times", &after->st_atim, 2 * sizeof(struct timespec));
    CALL(syscall(SYS_futimesat, AT_FDCWD, name, older));
    CALL(syscall(SYS_utime, name, oldest));
    CALL(stat(name, after));
    look("times", &after->st_atim, 2 * sizeof(struct timespec));
    CALL(unlink(name));
}

static void directories(size_t length)
{
    char *here = room(4096), *entries = room(length), *small = room(8);
    (void)length;
    swapped();
    CALL(syscall(SYS_getcwd, here, 4096ul));
    CALL(syscall(SYS_getcwd, small, 3ul));
    CALL(getcwd(here, 4096) == here);
    int list = open("list", O_RDONLY | O_DIRECTORY);
    MUST(list >= 0);
    CALL(syscall(SYS_getdents64, list, small, 8));
    for (int i = 0; i < 3; i++)
        CALL(syscall(SYS_getdents64, list, entries, length));
    CALL(lseek(list, 0, SEEK_SET));
    CALL(syscall(SYS_getdents, list, entries, length));
    MUST(close(list) == 0);
}

static void extended(size_t length)
{
    char *data = text("data"), *name = text("user.gate"), *value = (char *)pattern(length, 12);
    char *found = room(length), *names = room(200), *missing = text("user.missing");
    swapped();
    int file = data_file(O_RDWR);
    CALL(setxattr(data, name, value, length, 0));
    CALL(setxattr(data, name, value, length, XATTR_CREATE));
    CALL(getxattr(data, name, found, length));
    CALL(getxattr(data, name, found, length - 1));
    CALL(getxattr(data, name, NULL, 0));
    CALL(getxattr(data, missing, found, length));
    CALL(listxattr(data, names, 200));
    CALL(llistxattr(data, names, 5));
    CALL(flistxattr(file, names, 200));
    CALL(fgetxattr(file, name, found, length));
    CALL(fremovexattr(file, name));
    CALL(fsetxattr(file, name, value, length / 2, 0));
    CALL(lgetxattr(data, name, found, length));
    CALL(removexattr(data, name));
    CALL(removexattr(data, name));
    MUST(close(file) == 0);
}

/* Not vmsplice, because the pages would belong to the pipe after the call. */
static void offsets(size_t length)
{
    off_t *in = PUT(off_t, 100), *out = PUT(off_t, 50), *sent = PUT(off_t, 7);
    off_t *spliced = PUT(off_t, 3);
    size_t some = length < 60000 ? length : 60000;
    swapped();
    int file = data_file(O_RDONLY), to = empty_file(), ends[2];
    MUST(pipe(ends) == 0);
    CALL(sendfile(to, file, sent, length));
    CALL(copy_file_range(file, in, to, out, length, 0));
    CALL(splice(file, spliced, ends[1], NULL, some, SPLICE_F_NONBLOCK));
    CALL(splice(ends[0], NULL, to, out, some, SPLICE_F_NONBLOCK));
    CALL(splice(file, spliced, ends[1], spliced, some, SPLICE_F_NONBLOCK));
    CALL(sendfile(-1, file, sent, length));
    look_at_file("copied", to);
    MUST(close(file) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void locks(size_t length)
{
    struct flock *lock = PUT(struct flock, .l_type = F_WRLCK, .l_start = 10, .l_len = 20);
    struct flock *other = PUT(struct flock, .l_type = F_WRLCK, .l_start = 15, .l_len = 1);
    struct flock *bad = PUT(struct flock, .l_type = 99);
    struct f_owner_ex *owner = vary(sizeof *owner);
    struct f_owner_ex *set = PUT_VARYING(struct f_owner_ex, F_OWNER_PID, getpid());
    struct termios *terminal = room(sizeof *terminal);
    struct winsize *size = room(sizeof *size), *set_size = PUT(struct winsize, 30, 100, 1, 2);
    int *number = vary(sizeof *number), *unlock = PUT(int, 0);
    (void)length;
    swapped();
    int file = data_file(O_RDWR), terminal_file = posix_openpt(O_RDWR | O_NOCTTY);
    CALL(fcntl(file, F_SETLK, lock));
    CALL(fcntl(file, F_GETLK, other));
    CALL(fcntl(file, F_SETLK, bad));
    CALL(fcntl(file, F_OFD_GETLK, lock));
    CALL(fcntl(file, F_SETOWN_EX, set));
    CALL(fcntl(file, F_GETOWN_EX, owner));
    note("owner", owner->type == F_OWNER_PID && owner->pid == getpid());
    CALL(fcntl(file, F_GETFL, unlock));
    CALL(ioctl(file, FIONREAD, number));
    CALL(ioctl(file, TCGETS, terminal));
    CALL(ioctl(terminal_file, TCGETS, terminal));
    CALL(ioctl(terminal_file, TIOCSPTLCK, unlock));
    CALL(ioctl(terminal_file, TIOCSWINSZ, set_size));
    CALL(ioctl(terminal_file, TIOCGWINSZ, size));
    TRY(ioctl(terminal_file, TIOCGPTN, number));
    close(terminal_file);
    MUST(close(file) == 0);
}

static void watches(size_t length)
{
    char *watched = text("list"), *events = vary(4096);
    struct file_handle *handle = vary(sizeof *handle + 128);
    handle->handle_bytes = 128;
    int *mount = vary(sizeof *mount);
    swapped();
    int file = inotify_init1(IN_NONBLOCK);
    MUST(file >= 0);
    CALL(inotify_add_watch(file, watched, IN_CREATE | IN_DELETE));
    CALL(read(file, events, 4096));
    MUST(close(open("list/new", O_CREAT | O_RDWR, 0600)) == 0 && unlink("list/new") == 0);
    CALL(read(file, events, 5));
    long size = CALL(read(file, events, 4096));
    for (long at = 0; at < size;) {
        struct inotify_event *event = (void *)(events + at);
        note("mask", event->mask);
        look("name", event->name, event->len);
        at += (long)sizeof *event + event->len;
    }
    MUST(close(file) == 0);
    CALL(name_to_handle_at(AT_FDCWD, watched, handle, mount, 0));
    look("handle", handle, sizeof *handle);
    (void)length;
}

static const struct gate_case FILES[] = {
    CASE(reads, LENGTHS), CASE(writes, LENGTHS), CASE(vectors, LENGTHS), CASE(many_parts, ONCE),
    CASE(pipes, LENGTHS), CASE(opens, ONCE), CASE(stats, ONCE), CASE(names, ONCE),
    CASE(attributes, ONCE), CASE(directories, LENGTHS), CASE(extended, LENGTHS),
    CASE(offsets, LENGTHS), CASE(locks, ONCE), CASE(watches, ONCE), {NULL, NULL, 0},
};

static void files_begin(void)
{
    static unsigned char data[DATA_SIZE];
    fill_pattern(data, DATA_SIZE, 1);
    int file = open("data", O_CREAT | O_RDWR | O_TRUNC, 0600);
    MUST(file >= 0 && write(file, data, DATA_SIZE) == DATA_SIZE && close(file) == 0);
    MUST(mkdir("list", 0700) == 0);
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "list/file %d", i);
        MUST(close(open(name, O_CREAT | O_RDWR, 0600)) == 0);
    }
}

static void files_end(void)
{
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "list/file %d", i);
        MUST(unlink(name) == 0);
    }
    MUST(rmdir("list") == 0 && unlink("data") == 0);
}

#endif
