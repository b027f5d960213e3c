/* A program that is not position-independent and uses the address of malloc: the address is one in
 * the program itself, of a jump to the function. Usage: addresses MIB. */
#include "check.h"

static void *(*volatile allocate)(size_t) = malloc;

int main(int argc, char **argv)
{
    size_t len = (size_t)(argc > 1 ? atoi(argv[1]) : 32) << 20;
    unsigned char *block = allocate(len);
    if (!block)
        return 1;
    for (size_t at = 0; at < len; at += 64)
        block[at] = (unsigned char)(at >> 12);
    size_t wrong = 0;
    for (size_t at = 0; at < len; at += 64)
        wrong += block[at] != (unsigned char)(at >> 12);
    printf("%zu wrong\n", wrong);
    return 0;
}
