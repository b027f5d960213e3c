"""A dictionary of many small objects: made, walked, asked at random, every third replaced.

    object_phases.py [COUNT]

Python's garbage collector walks all objects now and then, as it does in every program.
"""

import random
import sys

from phase import phase

ASKED = 100_000


def entry(number, version):
    return [f"{number}.{version}", (number, version + number * 0.5), {"number": number}]


def checksum(entries):
    total = 0
    for text, (number, half), inner in entries:
        total = (total * 31 + len(text) + number + int(half) + inner["number"]) % (1 << 61)
    return total


def make(table, count):
    for number in range(count):
        table[number] = entry(number, 0)
    return len(table)


def ask(table):
    source = random.Random(1)
    return checksum(table[source.randrange(len(table))] for _ in range(ASKED))


def replace(table):
    for number in range(0, len(table), 3):
        table[number] = entry(number, 1)
    return len(table)


def main(count="400000"):
    table = {}
    phase("make", lambda: make(table, int(count)))
    phase("walk", lambda: checksum(table.values()))
    phase(f"{ASKED:,} random lookups", lambda: ask(table))
    phase("replace every third", lambda: replace(table))
    phase("walk again", lambda: checksum(table.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
