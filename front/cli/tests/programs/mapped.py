"""A file of MB megabytes, read through NumPy and mmap in several ways.

    python3 mapped.py FILE MB
"""

import hashlib
import mmap
import os
import re
import sys

import numpy as np

PIECE = 1 << 20


def make(path, megabytes):
    source = np.random.default_rng(3)
    with open(path, "wb") as out:
        for _ in range(megabytes):
            source.integers(0, 256, PIECE, np.uint8).tofile(out)
        out.flush()
        os.fsync(out.fileno())


def digest(view):
    found = hashlib.blake2b(digest_size=16)
    for start in range(0, len(view), PIECE):
        found.update(view[start : start + PIECE])
    return found.hexdigest()


def main(path, megabytes):
    make(path, megabytes)
    array = np.memmap(path, np.uint64, "r")
    print("sum", int(array.sum(dtype=np.uint64)), "max", int(array.max()))
    print("every page", int(array[:: 512].sum(dtype=np.uint64)))
    order = np.random.default_rng(4).permutation(array.size // 512)[:20000]
    print("at random", int(array[order * 512].sum(dtype=np.uint64)))
    print("digest", digest(array.view(np.uint8)))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print("child", int(array[::64].sum(dtype=np.uint64)), flush=True)
        os._exit(0)
    print("child's status", os.waitpid(child, 0)[1], flush=True)
    with open(path, "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            print("found", len(re.findall(b"\x00\xff\x17", mapped)))
    os.unlink(path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
