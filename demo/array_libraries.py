#!/usr/bin/env python3
"""pandas, scikit-learn, PyArrow and Polars on arrays four times the memory.

    demo/array_libraries.py [--data MIB] [--budget MIB] [--directory DIR]

Each variant runs in its own process: ordinary arrays without a limit, then numpy.memmap and
Highwater's arrays and files within a memory cgroup. The cgroup's limit is the budget plus 300 MiB
for Python, the libraries, and their own copies. Results must be equal. Polars groups the same
table, read from a Parquet file, with its streaming engine and POLARS_OOC_MEMORY_BUDGET_MB set to
the budget. Needs root for the cgroup, and pandas, scikit-learn, pyarrow, polars and highwater.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from arrays import measured

WAYS = ["ordinary", "memmap", "highwater", "highwater files", "polars"]
BESIDE_MIB = 300
GROUPS = 1000
PART = 1 << 18
"""Rows that are generated at a time."""


def columns(way, rows, budget_mib, directory):
    """Keys and two columns of numbers, in arrays of the kind that `way` names."""
    if way.startswith("highwater"):
        import highwater

        highwater.configure(memory=f"{budget_mib}M", swap=f"dir:{directory}:4G")
    made = []
    for name, dtype in (("key", "i8"), ("x", "f8"), ("y", "f8")):
        path = f"{directory}/{name}"
        if way == "memmap":
            made.append(np.memmap(path, dtype, "w+", shape=(rows,)))
        elif way == "highwater files":
            made.append(highwater.memmap(path, dtype, "w+", shape=rows))
        elif way == "highwater":
            made.append(highwater.zeros(rows, dtype))
        else:
            made.append(np.zeros(rows, dtype))
    random = np.random.default_rng(11)
    for at in range(0, rows, PART):
        count = min(PART, rows - at)
        made[0][at : at + count] = random.integers(0, GROUPS, count)
        # Whole numbers: their sums do not depend on the order.
        made[1][at : at + count] = random.integers(0, 1000, count)
        made[2][at : at + count] = 3 * made[1][at : at + count] + random.integers(0, 9, count)
    return made


def digest(*arrays):
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def polars_work(rows, budget_mib, directory):
    os.environ["POLARS_OOC_MEMORY_BUDGET_MB"] = str(budget_mib)
    os.environ["POLARS_TEMP_DIR"] = directory
    import polars
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([("key", pyarrow.int64()), ("x", pyarrow.float64())])
    random = np.random.default_rng(11)
    with pyarrow.parquet.ParquetWriter(f"{directory}/table", schema, compression="none") as writer:
        for at in range(0, rows, PART):
            count = min(PART, rows - at)
            key, x = random.integers(0, GROUPS, count), random.integers(0, 1000, count)
            random.integers(0, 9, count)
            writer.write_table(pyarrow.table({"key": key, "x": x.astype("f8")}, schema))
    start = time.perf_counter()
    table = polars.scan_parquet(f"{directory}/table")
    sums = table.group_by("key").agg(polars.col("x").sum()).sort("key").collect(engine="streaming")
    took = time.perf_counter() - start
    return {"group": took}, {"group": digest(sums["x"].to_numpy())}


def work(way, rows, budget_mib, directory):
    """Times in seconds and results, by step."""
    if way == "polars":
        return polars_work(rows, budget_mib, directory)
    import pandas
    import pyarrow
    import pyarrow.compute
    from sklearn.linear_model import SGDRegressor

    key, x, y = columns(way, rows, budget_mib, directory)
    times, results = {}, {}

    def step(name, act):
        start = time.perf_counter()
        results[name] = act()
        times[name] = time.perf_counter() - start

    def group():
        frame = pandas.DataFrame({"key": key, "x": x}, copy=False)
        return digest(frame.groupby("key")["x"].sum().to_numpy())

    def merge():
        names = pandas.DataFrame({"key": np.arange(GROUPS), "weight": np.arange(GROUPS) % 7})
        total = 0.0
        # Part by part: the joined table is as large as the first one.
        for at in range(0, rows, 1 << 20):
            part = slice(at, at + (1 << 20))
            frame = pandas.DataFrame({"key": key[part], "x": x[part]}, copy=False)
            joined = frame.merge(names, on="key")
            total += float((joined["x"] * joined["weight"]).sum())
        return total

    def fit():
        model = SGDRegressor(random_state=1, learning_rate="constant", eta0=1e-8)
        for at in range(0, rows, 1 << 20):
            model.partial_fit(x[at : at + (1 << 20)].reshape(-1, 1), y[at : at + (1 << 20)])
        return digest(model.coef_, model.intercept_)

    def arrow():
        # No copy: the table uses the buffers of the arrays.
        table = pyarrow.table({"x": np.asarray(x), "y": np.asarray(y)})
        x_of, y_of = table["x"], table["y"]
        return [pyarrow.compute.sum(x_of).as_py(), pyarrow.compute.max(y_of).as_py()]

    with paged_results(way):
        for name, act in (("group", group), ("merge", merge), ("fit", fit), ("arrow", arrow)):
            step(name, act)
    return times, results


def paged_results(way):
    """With Highwater, arrays that the libraries allocate through NumPy are paged, too."""
    if not way.startswith("highwater"):
        return contextlib.nullcontext()
    import highwater

    return highwater.allocator()


def rss_peak(stop, found):
    """Samples the peak of resident memory; file pages count only if the process maps them."""
    while not stop.wait(0.02):
        status = Path("/proc/self/status").read_text().splitlines()
        rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        found[0] = max(found[0], rss)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=int, default=768)
    parser.add_argument("--budget", type=int, default=192)
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--work", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = (options.data << 20) // 24
    if options.work:
        found, stop = [0], threading.Event()
        threading.Thread(target=rss_peak, args=(stop, found), daemon=True).start()
        times, results = work(options.work, rows, options.budget, options.directory)
        stop.set()
        json.dump({"times": times, "results": results, "peak_mib": found[0] >> 10}, sys.stdout)
        return
    print(f"{options.data} MiB of columns, {options.budget} MiB of memory")
    first = None
    for way in WAYS:
        limit = None if way == "ordinary" else options.budget + BESIDE_MIB
        try:
            found = measured(__file__, way, options, limit)
        except subprocess.CalledProcessError:
            print(f"{way:16} killed, or failed", flush=True)
            continue
        first = first or found
        for name, result in found["results"].items():
            if result != first["results"][name]:
                sys.exit(f"{way}: another result of {name} than ordinary arrays")
        times = "  ".join(f"{name} {took:6.1f} s" for name, took in found["times"].items())
        print(f"{way:16} {times}  peak {found['peak_mib']} MiB", flush=True)


if __name__ == "__main__":
    main()
