"""Writes a project of C files for make: `unit.py DIRECTORY COUNT`."""

import sys
from pathlib import Path

FUNCTION = """
struct item_{n} {{ long key; char name[{size}]; struct item_{n} *next; }};
static long fold_{n}(const struct item_{n} *item, long start)
{{
    long sum = start;
    for (; item; item = item->next)
        for (unsigned long i = 0; i < sizeof item->name; i++)
            sum = sum * {factor} + (item->name[i] ^ item->key);
    return sum;
}}
long use_{unit}_{n}(long start)
{{
    struct item_{n} items[4];
    memset(items, {n}, sizeof items);
    for (int i = 0; i < 4; i++)
        items[i] = (struct item_{n}) {{ i * start, "{unit}", i ? &items[i - 1] : 0 }};
    switch (start % 7) {{
    case 0: return fold_{n}(&items[3], start);
    case 1: return fold_{n}(&items[2], start + {n});
    case 2: return fold_{n}(&items[1], start - {n});
    default: return fold_{n}(&items[3], ~start);
    }}
}}
"""
FUNCTIONS = 40


def unit(number):
    functions = (
        FUNCTION.format(n=n, unit=number, size=8 + n % 24, factor=2 * n + 3)
        for n in range(FUNCTIONS)
    )
    return "#include <string.h>\n#include <stdlib.h>\n#include <stdio.h>\n" + "".join(functions)


def main():
    directory, count = Path(sys.argv[1]), int(sys.argv[2])
    directory.mkdir(parents=True)
    calls = [f"use_{u}_{n}" for u in range(count) for n in range(FUNCTIONS)]
    for number in range(count):
        (directory / f"unit{number}.c").write_text(unit(number))
    declared = "\n".join(f"long {call}(long);" for call in calls)
    called = "\n".join(f"    sum = {call}(sum);" for call in calls)
    (directory / "main.c").write_text(
        f"#include <stdio.h>\n{declared}\nint main(void)\n{{\n    long sum = 1;\n{called}\n"
        '    printf("%ld\\n", sum);\n    return 0;\n}\n'
    )
    (directory / "Makefile").write_text(
        "OBJECTS = main.o $(patsubst %.c,%.o,$(wildcard unit*.c))\nCFLAGS = -O1\n"
        "program: $(OBJECTS)\n\t$(CC) -o $@ $(OBJECTS)\n"
    )


if __name__ == "__main__":
    main()
