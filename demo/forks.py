#!/usr/bin/env python3
"""The cost of creating processes, without and with Highwater.

    demo/forks.py [--ours HIGHWATER] [--mib N]... [--times N]

Medians in milliseconds: fork, fork with exit or exec, vfork and posix_spawn, by a program with N
MiB in use (forks.c); Python's multiprocessing.Process; and a shell that runs /bin/true 500 times.
The columns of a row are measured one after the other. Nothing is swapped out. Needs a C compiler,
and twice the memory.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROCESSES = """
import multiprocessing, statistics, time
def body(): pass
def once():
    began = time.perf_counter()
    process = multiprocessing.Process(target=body)
    process.start()
    process.join()
    return time.perf_counter() - began
multiprocessing.set_start_method("fork")
kept = bytearray(10 << 20)
print("Process", 1e6 * statistics.median(once() for _ in range({times})))
"""
SHELL = "i=0; while [ $i -lt 500 ]; do /bin/true; i=$((i + 1)); done"
SHELL_TIMES = 3


def lines_of(command):
    """The lines "NAME MICROSECONDS" that a command prints, in milliseconds."""
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {name: float(time) / 1000 for name, time in map(str.split, printed.splitlines())}


def shell(prefix):
    def once():
        began = time.perf_counter()
        subprocess.run([*prefix, "sh", "-c", SHELL], check=True)
        return 1000 * (time.perf_counter() - began)

    return {"shell, 500 /bin/true": statistics.median(once() for _ in range(SHELL_TIMES))}


def table(title, measure, ours):
    plain, with_ours = measure([]), measure(ours)
    print(f"\n{title:24} {'plain':>9} {'Highwater':>10} {'ratio':>6}")
    for name, before in plain.items():
        print(f"{name:24} {before:9.2f} {with_ours[name]:10.2f} {with_ours[name] / before:6.1f}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    built = HERE.parent / "target/release/highwater"
    parser.add_argument("--ours", default=str(built), metavar="HIGHWATER")
    parser.add_argument("--mib", type=int, action="append", metavar="N")
    parser.add_argument("--times", type=int, default=100, metavar="N")
    options = parser.parse_args()
    ours = [options.ours, "run", "--quiet", "--"]
    times = str(options.times)
    with tempfile.TemporaryDirectory() as work:
        program = f"{work}/forks"
        subprocess.run(["cc", "-O2", "-o", program, HERE / "forks.c"], check=True)
        for mib in options.mib or [1, 10, 100, 400]:
            command = [program, str(mib), times]
            table(f"{mib} MiB", lambda prefix: lines_of([*prefix, *command]), ours)
    script = PROCESSES.format(times=times)
    table("Python, 10 MiB", lambda prefix: lines_of([*prefix, sys.executable, "-c", script]), ours)
    table("sh", shell, ours)


if __name__ == "__main__":
    main()
