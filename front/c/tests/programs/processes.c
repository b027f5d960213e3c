/*
 * Threads and fork: threads share a memory, and have messages of their own. In a child, calls with
 * the parent's memory are refused, and the child may open a memory of its own; the parent's
 * contents stay.
 */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define WORDS ((size_t)1 << 20)
#define ROUNDS 3

static highwater_memory *shared;
static uint64_t *all;

/* Writes this thread's quarter of the shared words by copies, checks it by pointers, and allocates
   meanwhile. */
static void *work(void *argument)
{
    uint64_t id = (uint64_t)(uintptr_t)argument, *mine = all + id * WORDS, part[512];
    CHECK(strcmp(highwater_error_message(), "") == 0);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (size_t at = 0; at < WORDS; at++)
            CHECK(mine[at] == (round ? at * id + round - 1 : 0));
        for (size_t at = 0; at < WORDS; at += 512) {
            for (size_t in = 0; in < 512; in++)
                part[in] = (at + in) * id + round;
            OK(highwater_write(shared, mine + at, part, sizeof part));
            if (at % (64 * 512) == 0) {
                char *other = alloc(shared, 100000);
                memset(other, (int)id, 100000);
                CHECK(other[99999] == (char)id);
                OK(highwater_free(shared, other));
            }
        }
    }
    CHECK(highwater_free(shared, &part) == HIGHWATER_ERROR_NOT_MAPPED);
    return NULL;
}

static int child(void (*act)(void))
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        act();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static highwater_pin *pin;

static void refused(void)
{
    const highwater_status forked = HIGHWATER_ERROR_FORKED;
    const char *part = "belongs to the parent";
    uint64_t number;
    size_t size;
    char byte;
    void *address;
    highwater_pin *other;
    CHECK(failed(highwater_alloc(shared, 1, &address), forked, part) && !address);
    CHECK(failed(highwater_resize(shared, all, 1, &address), forked, part));
    CHECK(failed(highwater_size(shared, all, &size), forked, part));
    CHECK(failed(highwater_read(shared, &byte, all, 1), forked, part));
    CHECK(failed(highwater_write(shared, all, &byte, 1), forked, part));
    CHECK(failed(highwater_advise(shared, all, 1, 4), forked, part));
    CHECK(failed(highwater_pin_range(shared, all, 1, 0, &other), forked, part));
    CHECK(failed(highwater_budget(shared, &number), forked, part));
    CHECK(failed(highwater_set_budget(shared, 5 << 20), forked, part));
    CHECK(failed(highwater_left(shared, &number), forked, part));
    CHECK(failed(highwater_counter(shared, "pgfault", &number), forked, part));
    CHECK(failed(highwater_counters(shared, &number, 1), forked, part));
    highwater_unpin(pin);
    OK(highwater_free(shared, all));
    OK(highwater_close(shared));
    highwater_memory *own = open_memory("ram:32M");
    char *bytes = alloc(own, 20 << 20);
    memset(bytes, 5, 20 << 20);
    for (size_t at = 0; at < 20 << 20; at++)
        CHECK(bytes[at] == 5);
    OK(highwater_close(own));
}

static void touches(void)
{
    *(volatile uint64_t *)all;
}

int main(void)
{
    shared = open_memory("ram:64M");
    all = alloc(shared, THREADS * WORDS * sizeof *all);
    pthread_t threads[THREADS];
    for (uintptr_t id = 0; id < THREADS; id++)
        CHECK(pthread_create(&threads[id], NULL, work, (void *)id) == 0);
    for (size_t id = 0; id < THREADS; id++)
        CHECK(pthread_join(threads[id], NULL) == 0);
    CHECK(strcmp(highwater_error_message(), "") == 0);
    OK(highwater_pin_range(shared, all, 1, HIGHWATER_ACCESS_READ, &pin));
    int status = child(refused);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    status = child(touches);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    highwater_unpin(pin);
    for (size_t at = 0; at < THREADS * WORDS; at++)
        CHECK(all[at] == at % WORDS * (at / WORDS) + ROUNDS - 1);
    OK(highwater_close(shared));
    return 0;
}
