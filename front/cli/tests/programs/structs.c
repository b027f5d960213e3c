/* Memory that the kernel and libc use other than as buffers: small structures that straddle two
 * swapped-out pages, paths, futexes, thread stacks. See sections.h for usage. */
#define _GNU_SOURCE
#include "area.h"
#include "region.h"
#include "sections.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>

/* ---- kernel: system calls that fill or read a few bytes across a page boundary ---- */

/* Makes a call that fills `at`, and compares with the same call on other memory. */
typedef void small_call(void *at);

static void call_stat(void *at)
{
    struct stat plain;
    MUST(stat("/", &plain) == 0 && stat("/", at) == 0);
    MUST(memcmp(at, &plain, sizeof plain) == 0);
}

static void call_uname(void *at)
{
    struct utsname plain;
    MUST(uname(&plain) == 0 && uname(at) == 0 && memcmp(at, &plain, sizeof plain) == 0);
}

static void call_getcwd(void *at)
{
    char plain[128];
    MUST(getcwd(plain, sizeof plain) && getcwd(at, sizeof plain) && strcmp(at, plain) == 0);
}

static void call_readlink(void *at)
{
    char plain[128];
    ssize_t length = readlink("/proc/self/exe", plain, sizeof plain);
    MUST(length > 0 && readlink("/proc/self/exe", at, sizeof plain) == length);
    MUST(memcmp(at, plain, (size_t)length) == 0);
}

static void call_open(void *at)
{
    strcpy(at, "/dev/null");
    int file = open(at, O_RDONLY);
    MUST(file >= 0 && close(file) == 0);
}

static void call_clock(void *at)
{
    struct timespec before, after, *now = at;
    MUST(clock_gettime(CLOCK_MONOTONIC, &before) == 0);
    MUST(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, at) == 0);
    MUST(clock_gettime(CLOCK_MONOTONIC, &after) == 0);
    MUST(before.tv_sec <= now->tv_sec && now->tv_sec <= after.tv_sec);
}

static void call_poll(void *at)
{
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    struct pollfd *polled = at;
    *polled = (struct pollfd){.fd = ends[0], .events = POLLIN};
    MUST(poll(polled, 1, 0) == 1 && polled->revents == POLLIN);
    MUST(ioctl(ends[0], FIONREAD, at) == 0 && *(int *)at == 1);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1234567890abcdef};
    int epoll = epoll_create1(0);
    MUST(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
    MUST(epoll_wait(epoll, at, 1, 0) == 1 && memcmp(at, &event, sizeof event) == 0);
    MUST(close(epoll) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void call_getsockopt(void *at)
{
    int ends[2], *value = at;
    socklen_t *length = (socklen_t *)(value + 1);
    *length = sizeof *value;
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    MUST(getsockopt(ends[0], SOL_SOCKET, SO_TYPE, value, length) == 0);
    MUST(*value == SOCK_DGRAM && *length == sizeof *value);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void call_sigprocmask(void *at)
{
    sigset_t block, plain;
    sigemptyset(&block), sigaddset(&block, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &block, NULL) == 0);
    MUST(syscall(SYS_rt_sigprocmask, SIG_SETMASK, NULL, at, 8) == 0);
    MUST(syscall(SYS_rt_sigprocmask, SIG_SETMASK, NULL, &plain, 8) == 0);
    MUST(memcmp(at, &plain, 8) == 0);
}

static void call_random(void *at)
{
    unsigned char before[64];
    memcpy(before, at, sizeof before);
    MUST(getrandom(at, sizeof before, 0) == (ssize_t)sizeof before);
    MUST(memcmp(at, before, sizeof before) != 0);
}

static const struct {
    small_call *call;
    size_t most; /* bytes that it may change */
} SMALL[] = {
    {call_stat, sizeof(struct stat)}, {call_uname, sizeof(struct utsname)}, {call_getcwd, 128},
    {call_readlink, 128}, {call_open, 16}, {call_clock, sizeof(struct timespec)},
    {call_poll, sizeof(struct epoll_event)}, {call_getsockopt, 8}, {call_sigprocmask, 8},
    {call_random, 64},
};
enum { KINDS = sizeof SMALL / sizeof *SMALL };

/* Half of each structure is before a page boundary, half behind; the bytes around it stay. */
static uint64_t kernel(size_t pages)
{
    struct region region = region_map(pages);
    for (size_t round = 0; round < KINDS; round++) {
        region_fill(&region);
        for (size_t slot = 0; slot < region.slots; slot++) {
            size_t kind = (slot + round) % KINDS;
            size_t from = 2 * PAGE - (SMALL[kind].most / 2 + 7) / 8 * 8;
            SMALL[kind].call(region.base + slot * SLOT + from);
            check_kept(&region, slot, 0, from, "kernel: before");
            check_kept(&region, slot, from + SMALL[kind].most, SLOT, "kernel: behind");
        }
    }
    region_unmap(&region);
    return region.slots * KINDS;
}

/* ---- futex: locks and conditions that are swapped out between uses ---- */

enum { PLAYERS = 4, CELLS = 64 };

/* A counter that only one thread at a time, in turn, advances. */
struct cell {
    pthread_mutex_t lock;
    pthread_cond_t turned;
    sem_t visits;
    size_t value;
};

struct game {
    unsigned char *base;
    size_t stride; /* bytes between cells */
    size_t rounds;
    atomic_size_t ready;
};

struct player {
    struct game *game;
    size_t number;
};

static struct cell *cell_of(const struct game *game, size_t index)
{
    return (struct cell *)(game->base + index * game->stride);
}

static void *play(void *argument)
{
    struct player *player = argument;
    for (size_t round = 0; round < player->game->rounds; round++)
        for (size_t i = 0; i < CELLS; i++) {
            struct cell *cell = cell_of(player->game, i);
            MUST(pthread_mutex_lock(&cell->lock) == 0);
            while (cell->value % PLAYERS != player->number)
                MUST(pthread_cond_wait(&cell->turned, &cell->lock) == 0);
            cell->value++;
            MUST(pthread_cond_broadcast(&cell->turned) == 0);
            MUST(pthread_mutex_unlock(&cell->lock) == 0);
            MUST(sem_post(&cell->visits) == 0);
        }
    return NULL;
}

/* Writes every page that holds no cell, again and again: the cells are evicted meanwhile. */
static void cycle(struct area *area, size_t stride_pages, size_t times)
{
    for (size_t round = 0; round < times; round++)
        for (size_t page = 0; page < area->pages; page++) {
            if (page % stride_pages == 0)
                continue;
            area_check_part(area, page, 1, "futex: around");
            area_fill(area, page, 1, area->version[page] + 1);
        }
}

static uint64_t futex(size_t pages)
{
    struct area area = area_map(pages, 1 << 20);
    size_t stride = pages / CELLS;
    struct game game = {.base = area.base, .stride = stride * PAGE, .rounds = 20};
    struct player players[PLAYERS];
    pthread_t threads[PLAYERS];
    for (size_t i = 0; i < CELLS; i++) {
        struct cell *cell = cell_of(&game, i);
        MUST(pthread_mutex_init(&cell->lock, NULL) == 0 && sem_init(&cell->visits, 0, 0) == 0);
        MUST(pthread_cond_init(&cell->turned, NULL) == 0);
    }
    for (size_t i = 0; i < PLAYERS; i++) {
        players[i] = (struct player){&game, i};
        MUST(pthread_create(&threads[i], NULL, play, &players[i]) == 0);
    }
    cycle(&area, stride, 4);
    for (size_t i = 0; i < PLAYERS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    uint64_t visits = 0;
    for (size_t i = 0; i < CELLS; i++)
        for (size_t visit = 0; visit < PLAYERS * game.rounds; visit++, visits++)
            MUST(sem_trywait(&cell_of(&game, i)->visits) == 0);
    for (size_t i = 0; i < CELLS; i++)
        MUST(cell_of(&game, i)->value == PLAYERS * game.rounds);
    area_unmap(&area);
    return visits;
}

/* ---- stacks: threads whose stacks are managed memory, deep and interrupted ---- */

enum { RUNNERS = 8 };

static atomic_size_t interruptions;

static void on_signal(int signal)
{
    (void)signal;
    atomic_fetch_add(&interruptions, 1);
}

/* One page of stack per level, written on the way down and checked on the way up. */
__attribute__((noinline))
static uint64_t descend(size_t level, uint64_t id)
{
    uint64_t frame[WORDS];
    fill_page(frame, id, (uint32_t)level + 1);
    uint64_t below = level == 0 ? 0 : descend(level - 1, id);
    if (level % 64 == 0)
        pthread_kill(pthread_self(), SIGUSR2);
    check_page(frame, id, (uint32_t)level + 1, "stacks");
    return below ^ hash_bytes(0, frame, sizeof frame);
}

struct runner {
    size_t depth;
    uint64_t id, hash;
};

static void *run(void *argument)
{
    struct runner *runner = argument;
    for (size_t round = 0; round < 2; round++)
        runner->hash += descend(runner->depth, runner->id);
    return NULL;
}

static uint64_t stacks(size_t pages)
{
    size_t bytes = pages / RUNNERS * PAGE;
    unsigned char *base = map_pages(pages);
    struct sigaction action = {.sa_handler = on_signal};
    MUST(sigaction(SIGUSR2, &action, NULL) == 0);
    struct runner runners[RUNNERS];
    pthread_t threads[RUNNERS];
    for (size_t i = 0; i < RUNNERS; i++) {
        pthread_attr_t attributes;
        MUST(pthread_attr_init(&attributes) == 0);
        MUST(pthread_attr_setstack(&attributes, base + i * bytes, bytes) == 0);
        /* A frame is a page and some words; a quarter is left for these words and for signals. */
        runners[i] = (struct runner){bytes / PAGE * 3 / 4, i, 0};
        MUST(pthread_create(&threads[i], &attributes, run, &runners[i]) == 0);
        MUST(pthread_attr_destroy(&attributes) == 0);
    }
    uint64_t hash = 0;
    for (size_t i = 0; i < RUNNERS; i++) {
        MUST(pthread_join(threads[i], NULL) == 0);
        hash ^= runners[i].hash;
    }
    MUST(munmap(base, pages * PAGE) == 0);
    return hash + atomic_load(&interruptions);
}

static const struct section SECTIONS[] = {
    {"kernel", kernel}, {"futex", futex}, {"stacks", stacks}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_sections(SECTIONS, count, arguments);
}
