// Blocks of many sizes, summed and freed; with an argument it reads one byte past a block.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 2000 };

int main(int argc, char **argv)
{
    (void) argv;
    unsigned char *blocks[BLOCKS];
    unsigned long sum = 0;
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(1 + i * 7);
        memset(blocks[i], i, 1 + i * 7);
    }
    for (int i = 0; i < BLOCKS; i++)
        sum += blocks[i][i * 7];
    if (argc > 1)
        sum += blocks[5][36];
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    printf("%lu\n", sum);
    return 0;
}
