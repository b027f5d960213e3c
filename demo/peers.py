#!/usr/bin/env python3
"""UMap, vmcache and Polars beside Highwater, on data four times the memory.

    demo/peers.py --umap DIR --vmcache DIR [--only umap|vmcache|polars] [--threads N,N,...]
                  [--rounds N] [--directory DIR] [--target DIR] [--check]

Each run is a process in a memory cgroup of its own. Rounds take the ways in turn; figures are
medians of the rounds. "peak" is the cgroup's, in MiB: page cache and tables of the kernel count.

    umap     random_pages.c: reads and updates of random pages of a file; contents are checked
    vmcache  its own benchmark of random lookups in a B-tree: with its own buffer manager, and with
             its buffers larger than the data, under `highwater run`
    polars   a sort and a group-by with many groups, from and to Parquet; results must be equal

Needs root for the cgroups, and numpy, polars and pyarrow. DIR of --umap and --vmcache: where they
were cloned and built. --directory is on the disk to measure; --check only says what is missing.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = 4096
FILE_MIB, MEMORY_MIB = 512, 128
SECONDS = 3
VMCACHE_RECORDS = 27_000_000
"""3.8 GiB: vmcache takes its memory in whole GiB."""
VMCACHE_SECONDS, VMCACHE_WARM = 12, 3
TABLE_MIB, TABLE_MEMORY_MIB = 256, 64
PAGED_MORE_MIB = 192
"""For pages in two rows of Highwater: Polars takes three to five times its own budget."""
BESIDE_MIB = 400
"""Python and Polars."""
ROWS = (TABLE_MIB << 20) // 16
GROUPS = ROWS // 4
RUN_SECONDS = 300
"""No run takes longer."""
LINKS = {"umap": "LLNL/umap", "vmcache": "viktorleis/vmcache"}
BUILDS = {"umap": "cmake -S . -B build -DCMAKE_BUILD_TYPE=Release && cmake --build build",
          "vmcache": "make"}
BUILT = {"umap": "build/src/umap/libumap.a", "vmcache": "vmcache"}


class Stopped(Exception):
    """A run that took too long, or was killed because its cgroup was full."""


class Group:
    """A memory cgroup, version 1 or 2."""

    def __init__(self, limit_mib):
        is_second = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        root = Path("/sys/fs/cgroup") if is_second else Path("/sys/fs/cgroup/memory")
        names = ("memory.max", "memory.peak") if is_second else (
            "memory.limit_in_bytes", "memory.max_usage_in_bytes")
        self.path = root / f"highwater-peers-{os.getpid()}"
        self.peak_file = self.path / names[1]
        try:
            self.path.mkdir()
            if limit_mib:
                (self.path / names[0]).write_text(str(limit_mib << 20))
        except OSError as error:
            raise SystemExit(f"peers.py: no memory cgroup in {root} (needs root): {error}")

    def start(self, command, **options):
        """Starts a process in the group; its output is read as text."""
        join = (self.path / "cgroup.procs").write_text
        return subprocess.Popen(command, preexec_fn=lambda: join("0"), stdout=subprocess.PIPE,
                                text=True, **options)

    def used(self):
        """CPU seconds, and pages read and written, of the processes that now run."""
        ticks, read, written = 0, 0, 0
        for pid in (self.path / "cgroup.procs").read_text().split():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            read += int(io["read_bytes"]) // PAGE
            written += int(io["write_bytes"]) // PAGE
        return ticks / os.sysconf("SC_CLK_TCK"), read, written

    def end(self):
        """Removes the group, with the processes in it; returns its peak in MiB."""
        peak = int(self.peak_file.read_text()) >> 20
        for _ in range(100):
            for pid in (self.path / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            try:
                self.path.rmdir()
                return peak
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"peers.py: {self.path} cannot be removed")


def run(command, limit_mib, watch=None, **options):
    """Figures that `watch` makes of the output of a process, with the peak of its cgroup."""
    group = Group(limit_mib)
    try:
        line = ["timeout", str(RUN_SECONDS), *map(str, command)]
        process = group.start(line, **options)
        found = watch(group, process) if watch else {"output": process.stdout.read()}
        status = process.wait()
    finally:
        peak = group.end()
    reasons = {124: f"not done in {RUN_SECONDS} s", 128 + signal.SIGKILL: "killed: out of memory"}
    if status in reasons:
        raise Stopped(reasons[status])
    if status:
        raise SystemExit(f"peers.py: {command[0]} ended with {status}")
    return found | {"peak": peak}


def interleaved(rounds, ways, measure, print_row):
    """Prints median figures of each way; the ways take turns. A way that is stopped ends."""
    found, stopped = {way: [] for way in ways}, {}
    for _ in range(rounds):
        for way in ways:
            if way in stopped:
                continue
            try:
                found[way].append(measure(way))
                print(f"{way}: {found[way][-1]}", file=sys.stderr, flush=True)
            except Stopped as reason:
                stopped[way] = reason
    for way, runs in found.items():
        print(f"  {way:22} ", end="")
        if way in stopped:
            print(stopped[way], flush=True)
            continue
        first = [each["first"] for each in runs]
        print_row({key: statistics.median(each[key] for each in runs) for key in runs[0]},
                  min(first), max(first))


def print_rate(row, low, high):
    print(f"{row['first']:8.0f}/s ({low:.0f} to {high:.0f}), CPU {row['cpu']:6.1f} us,"
          f" pages read {row['read']:5.2f}, written {row['written']:5.2f},"
          f" peak {row['peak']:.0f} MiB", flush=True)


def print_time(row, low, high):
    print(f"{row['first']:6.1f} s ({low:.1f} to {high:.1f}), CPU {row['cpu']:6.1f} s,"
          f" peak {row['peak']:.0f} MiB", flush=True)


def per_access(accesses, seconds, cpu, read, written):
    return {"first": accesses / seconds, "cpu": cpu / accesses * 1e6, "read": read / accesses,
            "written": written / accesses}


def make_pages(path):
    """A file of pages as random_pages.c expects them."""
    import numpy as np

    pages = np.zeros((FILE_MIB << 20) // 8, np.uint64).reshape(-1, PAGE // 8)
    pages[:, 0] = np.arange(len(pages), dtype=np.uint64)
    pages[:, -1] = ~pages[:, 0]
    pages.tofile(path)
    with open(path) as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compare_umap(options, directory):
    umap, target = Path(options.umap), Path(options.target)
    links = {
        "mmap": [],
        "umap": ["-DUMAP", f"-I{umap}/src", umap / BUILT["umap"], "-lstdc++", "-lm"],
        "highwater": ["-DHIGHWATER", f"-I{HERE.parent}/front/c/include",
                      target / "release/libhighwater_c.a", "-lm"],
    }
    for name, words in links.items():
        line = ["cc", "-O2", HERE / "random_pages.c", *words, "-lpthread"]
        subprocess.run([*line, "-o", directory / name], check=True)
    make_pages(directory / "pages")
    # The limits only stop what does not keep to its own; mmap has no limit of its own.
    ways = {
        "mmap": ("mmap", [], MEMORY_MIB + 8),
        "UMap": ("umap", [], MEMORY_MIB + 128),
        "UMap, 16 workers": ("umap", ["8"], MEMORY_MIB + 128),
        "Highwater, handlers": ("highwater", ["handlers"], MEMORY_MIB + 128),
        "Highwater, in-thread": ("highwater", ["in-thread"], MEMORY_MIB + 128),
    }
    for pattern in ("uniform", "skewed"):
        for threads in options.threads:
            def measure(way):
                program, setting, limit = ways[way]
                command = [directory / program, directory / "pages", MEMORY_MIB, threads, pattern]
                found = run([*command, SECONDS, *setting], limit)
                numbers = map(float, found["output"].split())
                return per_access(*numbers) | {"peak": found["peak"]}

            # Its default: a worker for each CPU that reads, and one that evicts.
            used = [way for way in ways if way != "UMap, 16 workers" or threads > 2]
            print(f"{pattern}, {threads} threads: accesses", flush=True)
            interleaved(options.rounds, used, measure, print_rate)


def watch_vmcache(group, process):
    """Lookups of the seconds after the warm-up: a line each, after a header."""
    process.stdout.readline()
    for _ in range(VMCACHE_WARM):
        process.stdout.readline()
    start, before, lookups = time.monotonic(), group.used(), 0
    for _ in range(VMCACHE_WARM, VMCACHE_SECONDS - 1):
        lookups += int(process.stdout.readline().split(",")[1])
    seconds = time.monotonic() - start
    used = [after - first for first, after in zip(before, group.used())]
    process.stdout.read()
    return per_access(lookups, seconds, *used)


def compare_vmcache(options, directory):
    ours = [Path(options.target) / "release/highwater", "run", "--quiet", "--paged", "1G"]
    # The kernel must reach the program's memory, because vmcache asks it for a context of libaio.
    ours += ["--swap", f"dir:{directory}:6G", "--seal", "off", "--faults", "handlers", "--"]
    # Buffers larger than the data: vmcache never evicts, and Highwater does.
    ways = {"vmcache": ([], "1"), "under highwater run": (ours, "6")}
    for threads in options.threads:
        def measure(way):
            prefix, memory_gib = ways[way]
            file = directory / "vmcache"
            with open(file, "w") as made:
                made.truncate(6 << 30)
            settings = {"BLOCK": str(file), "VIRTGB": "6", "PHYSGB": memory_gib, "RNDREAD": "1",
                        "THREADS": str(threads), "DATASIZE": str(VMCACHE_RECORDS),
                        "RUNFOR": str(VMCACHE_SECONDS)}
            command = [*prefix, Path(options.vmcache) / "vmcache"]
            try:
                return run(command, 1024 + 256, watch_vmcache, env=os.environ | settings,
                           stderr=subprocess.DEVNULL)
            finally:
                file.unlink()

        print(f"vmcache's B-tree, {threads} threads: lookups", flush=True)
        interleaved(options.rounds, ways, measure, print_rate)


def make_table(path):
    import numpy as np
    import pyarrow
    import pyarrow.parquet

    random = np.random.default_rng(5)
    schema = pyarrow.schema([("key", pyarrow.int64()), ("x", pyarrow.int64())])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="none") as writer:
        for _ in range(0, ROWS, 1 << 18):
            columns = {"key": random.integers(0, GROUPS, 1 << 18),
                       "x": random.integers(0, 1 << 40, 1 << 18)}
            writer.write_table(pyarrow.table(columns, schema))


def digest(path, is_sorted):
    """Of the rows of a table in any order; those of a sorted table must be in order."""
    import numpy as np
    import pyarrow.parquet

    total, rows, last = 0, 0, -1
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1 << 16):
        key, x = (column.to_numpy().astype(np.uint64) for column in batch.columns)
        assert not is_sorted or (int(key[0]) >= last and (key[1:] >= key[:-1]).all()), "order"
        last, rows = int(key[-1]), rows + len(key)
        mixed = (key * np.uint64(0x9E3779B97F4A7C15)) ^ x
        total += int((mixed * np.uint64(0xD6E8FEB86659FD93)).sum())
    return [rows, total % (1 << 64)]


def polars_work(engine, step, table, made):
    """One step of Polars, in this process."""
    import polars

    start, cpu = time.perf_counter(), time.process_time()
    work = polars.scan_parquet(table)
    if step == "sort":
        work = work.sort("key")
    else:
        work = work.group_by("key").agg(polars.col("x").sum())
    if engine == "streaming":
        work.sink_parquet(made, compression="uncompressed")
    else:
        work.collect(engine="in-memory").write_parquet(made, compression="uncompressed")
    print(time.perf_counter() - start, time.process_time() - cpu)


def compare_polars(options, directory):
    ours = [Path(options.target) / "release/highwater", "run", "--quiet", "--swap",
            f"dir:{directory}:6G", "--seal", "off", "--paged"]
    budget = {"POLARS_OOC_MEMORY_BUDGET_MB": str(TABLE_MEMORY_MIB),
              "POLARS_TEMP_DIR": str(directory)}
    limit = TABLE_MEMORY_MIB + BESIDE_MIB
    # The engine, how it is started, its settings, the limit in MiB.
    ways = {
        "in-memory, no limit": ("in-memory", [], {}, None),
        "streaming, no limit": ("streaming", [], {}, None),
        "streaming, its budget": ("streaming", [], budget, limit),
        "in-memory, 64 paged": ("in-memory", [*ours, f"{TABLE_MEMORY_MIB}M", "--"], {}, limit),
        "in-memory, 192 paged": ("in-memory", [*ours, f"{PAGED_MORE_MIB}M", "--"], {}, limit),
        "streaming, 192 paged": ("streaming", [*ours, f"{PAGED_MORE_MIB}M", "--"], {}, limit),
    }
    make_table(directory / "table")
    for step in ("sort", "group"):
        first = []

        def measure(way):
            engine, prefix, settings, limit_mib = ways[way]
            made = directory / "made"
            command = [*prefix, sys.executable, __file__, "--polars", engine, step]
            found = run([*command, directory / "table", made], limit_mib, env=os.environ | settings)
            took, cpu = map(float, found["output"].split())
            first.append(digest(made, step == "sort"))
            if first[-1] != first[0]:
                raise SystemExit(f"peers.py: {way}: another {step} than {list(ways)[0]}")
            made.unlink()
            return {"first": took, "cpu": cpu, "peak": found["peak"]}

        print(f"Polars, {step}", flush=True)
        interleaved(options.rounds, ways, measure, print_time)


def require_built(name, directory):
    if not directory or not (Path(directory) / BUILT[name]).exists():
        print(f"peers.py: no {BUILT[name]} in '{directory or ''}': clone"
              f" https://github.com/{LINKS[name]}, build it ({BUILDS[name]}), and name its"
              f" directory: {name.upper()}=DIR", file=sys.stderr)
        sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--umap", help="a clone of UMap, built")
    parser.add_argument("--vmcache", help="a clone of vmcache, built")
    parser.add_argument("--only", choices=["umap", "vmcache", "polars"])
    parser.add_argument("--threads", type=lambda text: [int(part) for part in text.split(",")],
                        default=[1, 2, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--target", default=os.environ.get("CARGO_TARGET_DIR", "target"))
    parser.add_argument("--check", action="store_true", help="say what is missing, and end")
    parser.add_argument("--polars", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.polars:
        polars_work(*options.polars)
        return
    compare = {"umap": compare_umap, "vmcache": compare_vmcache, "polars": compare_polars}
    names = [options.only] if options.only else list(compare)
    for name in names:
        if name in BUILT:
            require_built(name, getattr(options, name))
    if options.check:
        return
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="highwater-peers.") as directory:
        for name in names:
            compare[name](options, Path(directory))


if __name__ == "__main__":
    main()
