"""300 MB of bytearray and of array, with threads, forked processes and subprocesses.

    python3 big_bytes.py {threads|fork|subprocess} [MB]

Prints checksums that do not depend on timing; a difference from what was written is an error.
"""

import array
import hashlib
import multiprocessing
import random
import subprocess
import sys
import threading
import zlib

BLOCK = 1 << 16
WORKERS = 4
VERSIONS = 5
PART = 256


# No two pages of all blocks and versions are equal: each block is the pool from another place on.
STEP = 41
POOL = random.Random(1).randbytes(1 << 20)


def block(number, version):
    """The bytes that block `number` has at `version`."""
    start = (number * VERSIONS + version) * STEP
    return POOL[start : start + BLOCK]


def write(view, numbers, version):
    for number in numbers:
        view[number * BLOCK : (number + 1) * BLOCK] = block(number, version)


def check(view, numbers, version, where):
    """Returns a checksum of the actual contents."""
    total = 0
    for number in numbers:
        found = view[number * BLOCK : (number + 1) * BLOCK].tobytes()
        if found != block(number, version):
            raise SystemExit(f"wrong: {where}: block {number} is not version {version}")
        total = zlib.crc32(found, total)
    return total


def stripes(blocks):
    return [range(worker, blocks, WORKERS) for worker in range(WORKERS)]


def with_threads(view, blocks):
    """Each thread rewrites its stripe twice, and checks it each time."""
    sums = [0] * WORKERS

    def work(worker, numbers):
        for version in (1, 2):
            check(view, numbers, version - 1, "thread")
            write(view, numbers, version)
        sums[worker] = check(view, numbers, 2, "thread after")

    threads = [
        threading.Thread(target=work, args=(worker, numbers))
        for worker, numbers in enumerate(stripes(blocks))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("threads", *(f"{checksum:08x}" for checksum in sums))


def child(view, blocks, numbers, answers):
    """Inherits everything, rewrites its stripe, and sees its own writes only."""
    inherited = check(view, numbers, 0, "child inherits")
    write(view, numbers, 3)
    own = check(view, numbers, 3, "child after")
    others = check(view, range(numbers.start ^ 1, blocks, 16), 0, "child, others' stripe")
    answers.send((inherited, own, others))
    answers.close()


def with_fork(view, blocks):
    context = multiprocessing.get_context("fork")
    children = []
    for numbers in stripes(blocks):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(view, blocks, numbers, sender))
        process.start()
        sender.close()
        children.append((process, receiver))
    write(view, range(0, blocks, 3), 4)
    for process, receiver in children:
        answer = receiver.recv()
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"wrong: a child ended with {process.exitcode}")
        print("child", *(f"{checksum:08x}" for checksum in answer))
    for first in range(3):
        version = 4 if first == 0 else 0
        print("parent", f"{check(view, range(first, blocks, 3), version, 'parent'):08x}")


FILTER = """
import hashlib, sys
data = sys.stdin.buffer.read()
sys.stdout.write(hashlib.sha256(data).hexdigest())
"""


def with_subprocess(view, blocks):
    """Sends parts to other programs through pipes, and reads their answers."""
    for start in range(0, blocks, blocks // 4):
        part = view[start * BLOCK : (start + PART) * BLOCK]
        digest = hashlib.sha256(part).hexdigest()
        hashed = subprocess.run([sys.executable, "-c", FILTER], input=part, capture_output=True)
        if hashed.returncode != 0 or hashed.stdout.decode() != digest:
            raise SystemExit(f"wrong: a subprocess hashed {hashed.stdout!r}, {hashed.stderr!r}")
        copied = subprocess.run(["cat"], input=part, capture_output=True).stdout
        if copied != part:
            raise SystemExit("wrong: cat returned something else")
        print("subprocess", digest)
    print("after", f"{check(view, range(blocks), 0, 'after subprocesses'):08x}")


USES = {"threads": with_threads, "fork": with_fork, "subprocess": with_subprocess}


def main(use, megabytes="300"):
    blocks = int(megabytes) * 10**6 // BLOCK
    assert (blocks * VERSIONS + VERSIONS) * STEP + BLOCK <= len(POOL)
    for kind in (bytearray, lambda size: array.array("Q", [0]) * (size // 8)):
        data = kind(blocks * BLOCK)
        view = memoryview(data).cast("B")
        if data.count(0) * memoryview(data).itemsize != len(view):
            raise SystemExit("wrong: new memory is not zero")
        write(view, range(blocks), 0)
        USES[use](view, blocks)
        del view, data


if __name__ == "__main__":
    main(*sys.argv[1:])
