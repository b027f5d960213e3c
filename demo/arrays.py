#!/usr/bin/env python3
"""NumPy on an array four times the memory: numpy.memmap and Highwater's arrays, side by side.

    demo/arrays.py [--data MIB] [--budget MIB] [--directory DIR]

Each variant runs in its own process: NumPy's own array without a limit, and then numpy.memmap and
Highwater within a memory cgroup, whose limit is the budget plus 60 MiB for Python itself. All use
the same random numbers, and must compute equal results. Needs root for the cgroup, and the package
highwater (pip install ./front/python).
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WAYS = ["numpy", "memmap", "highwater handlers", "highwater in-thread"]
BESIDE_MIB = 60
"""Python, NumPy, and Highwater's tables."""
PART = 1 << 20
"""Elements that are generated, or hashed, at a time."""


def array(way, elements, budget_mib, directory):
    """Zeros, 8 bytes each."""
    if way == "numpy":
        return np.zeros(elements, np.int64)
    if way == "memmap":
        return np.memmap(f"{directory}/array", np.int64, "w+", shape=(elements,))
    import highwater

    swap = f"dir:{directory}:{elements * 8 * 2}"
    highwater.configure(memory=f"{budget_mib}M", swap=swap, faults=way.split()[1])
    return highwater.zeros(elements, np.int64)


def work(way, elements, budget_mib, directory):
    """Times in seconds, results, peak of resident memory in MiB, and total CPU time."""
    a = array(way, elements, budget_mib, directory)
    times, results = {}, []

    def step(name, act):
        start = time.perf_counter()
        result = act()
        times[name] = time.perf_counter() - start
        results.append(result)

    def fill():
        random = np.random.default_rng(7)
        for at in range(0, elements, PART):
            a[at : at + PART] = random.integers(0, 1 << 62, min(PART, elements - at))

    step("fill", fill)
    step("sum", lambda: int(a.sum()))
    step("add 1", lambda: np.add(a, 1, out=a) is None)
    step("sort", lambda: a.sort())
    digest = hashlib.sha256()
    for at in range(0, elements, PART):
        digest.update(a[at : at + PART].tobytes())
    results.append(digest.hexdigest())
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    cpu = sum(os.times()[:2])
    return {"times": times, "results": results, "peak_mib": peak >> 10, "cpu": cpu}


def limited(limit_mib):
    """A new memory cgroup for one process; None if none can be made."""
    for root, file in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                       ("/sys/fs/cgroup", "memory.max")]:
        group = Path(root, f"highwater-arrays-{os.getpid()}")
        try:
            group.mkdir()
            (group / file).write_text(str(limit_mib << 20))
            return group
        except OSError:
            if group.exists():
                group.rmdir()
    return None


def measured(script, way, options, limit_mib):
    """The figures of a separate process, in a memory cgroup if there is a limit."""
    limit = limited(limit_mib) if limit_mib else None
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        command = [sys.executable, script, "--work", way, "--data", str(options.data)]
        command += ["--budget", str(options.budget), "--directory", directory]
        join = (lambda: (limit / "cgroup.procs").write_text("0")) if limit else None
        try:
            done = subprocess.run(command, preexec_fn=join, stdout=subprocess.PIPE, check=True)
        finally:
            if limit:
                limit.rmdir()
    return json.loads(done.stdout) | {"limited": limit is not None}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=int, default=512)
    parser.add_argument("--budget", type=int, default=128)
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--work", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    elements = options.data << 17
    if options.work:
        json.dump(work(options.work, elements, options.budget, options.directory), sys.stdout)
        return
    print(f"{options.data} MiB of integers, {options.budget} MiB of memory")
    first = None
    for way in WAYS:
        limit = None if way == "numpy" else options.budget + BESIDE_MIB
        found = measured(__file__, way, options, limit)
        first = first or found
        if found["results"] != first["results"]:
            sys.exit(f"{way}: other results than NumPy's own array")
        times = "  ".join(f"{name} {took:6.1f} s" for name, took in found["times"].items())
        note = "" if found["limited"] or way == "numpy" else "  (without a limit)"
        line = f"{way:20} {times}  CPU {found['cpu']:5.1f} s  peak {found['peak_mib']} MiB{note}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
