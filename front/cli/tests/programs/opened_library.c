/* A library with 8 MiB of constants, and with pointers that the loader relocates. */
#include <stddef.h>

__asm__(".section .rodata\n.balign 4096\n"
        ".globl constants\n.hidden constants\nconstants: .fill 8 << 20, 1, 7\n.previous");
extern const unsigned char constants[8 << 20];

static int target;
static int *pointers[64 << 10] = { [0 ... (64 << 10) - 1] = &target };

const unsigned char *all_constants(void)
{
    return constants;
}

/* How many pointers lead to where they should. */
size_t right_pointers(void)
{
    size_t right = 0;
    for (size_t at = 0; at < sizeof pointers / sizeof *pointers; at++)
        right += pointers[at] == &target;
    return right;
}
