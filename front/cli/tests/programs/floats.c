/* Floating-point exceptions trap, as in Free Pascal. Prints how many pages have their contents. */

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGE = 4096, PAGES = 16384, ROUNDS = 3 };

static unsigned char value(long page, int round) { return (unsigned char)(page * 7 + round); }

int main(void) {
    /* Enable the traps before there is a manager: its threads would inherit the same modes. */
    if (feenableexcept(FE_ALL_EXCEPT) < 0) {
        return 1;
    }
    unsigned char *memory = malloc((size_t)PAGES * PAGE);
    long right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (long page = 0; page < PAGES; page++) {
            memory[page * PAGE] = value(page, round);
        }
        for (long page = 0; page < PAGES; page++) {
            right += memory[page * PAGE] == value(page, round);
        }
    }
    printf("%ld pages, exceptions %#x trap\n", right, fegetexcept());
    return 0;
}
