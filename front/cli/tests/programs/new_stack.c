/* A coroutine's stack in a block of malloc: the library's own calls are the first to use the
 * stack's pages, wherever in a page the stack pointer stands. */
#define _GNU_SOURCE
#include "check.h"

#include <ucontext.h>

enum { STACK = 256 << 10, STEPS = 256, STEP = 16, AREA = 24 << 20 };

static ucontext_t outside, inside;
static int steps;

/* Maps and unmaps memory with `more` further bytes of the stack in use. */
__attribute__((noinline))
static void map_below(size_t more)
{
    volatile char used[more];
    used[0] = 1;
    char *mapped = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *block = malloc(1 << 20);
    MUST(mapped != MAP_FAILED && block != NULL);
    mapped[0] = block[0] = used[0];
    free(block);
    MUST(munmap(mapped, 1 << 20) == 0);
}

static void coroutine(void)
{
    map_below((size_t)(1 + steps) * STEP);
}

int main(void)
{
    char *area = malloc(AREA);
    MUST(area != NULL);
    for (size_t page = 0; page < AREA / PAGE; page++)
        fill_page(area + page * PAGE, page, 1);
    for (steps = 0; steps < STEPS; steps++) {
        char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(stack != MAP_FAILED && getcontext(&inside) == 0);
        inside.uc_stack.ss_sp = stack;
        inside.uc_stack.ss_size = STACK;
        inside.uc_link = &outside;
        makecontext(&inside, coroutine, 0);
        MUST(swapcontext(&outside, &inside) == 0);
        MUST(munmap(stack, STACK) == 0);
    }
    for (size_t page = 0; page < AREA / PAGE; page++)
        check_page(area + page * PAGE, page, 1, "a page");
    printf("%d stacks\n", steps);
    return 0;
}
