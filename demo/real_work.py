#!/usr/bin/env python3
"""Real programs in a third of their memory: with the kernel's swap, and with Highwater.

    demo/real_work.py [--only NAME]... [--swap zram|disk] [--ours HIGHWATER] [--beside HIGHWATER]
                      [--seconds N] [--json]

Each program runs without a limit, then within 128 MiB: with the kernel's swap in a cgroup
(kernel_swap.sh) and under `highwater run`, each on zram and on disk. Beside the disk, it also runs
with the devices that Highwater uses without --swap: compressed memory in front of that disk.
`--beside` adds the columns of another build. The program's results must be equal each time.

The kernel's pages in and out, and its reads and writes of the disk, are those of the whole machine
during the run; all other figures are the program's. Needs root for the kernel's columns.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "work"))

import tables  # noqa: E402: beside this file, but not installed
from programs import PROGRAMS, Skip, prepare  # noqa: E402
from run import Failure, Killed, Unavailable, run  # noqa: E402

LIMIT_MIB = 128
SWAP_MIB = 1500
TRIES = 6


@dataclass
class Column:
    """A way to run a program: `kind` is none, kernel or highwater."""

    title: str
    kind: str
    swap: str = ""
    binary: str = ""

    def prefix(self, work):
        """The command that precedes the program's command line."""
        if self.kind == "kernel":
            script = str(HERE / "kernel_swap.sh")
            return [script, self.swap, str(LIMIT_MIB), str(SWAP_MIB), str(work)]
        if self.kind == "highwater":
            limit, swap = {
                # The kernel's limit does not count zram; with --paged, ours does not, either.
                "zram": ("--paged", ["--swap", f"zram:{SWAP_MIB}M"]),
                "disk": ("--memory", ["--swap", f"dir:{work}:{SWAP_MIB}M"]),
                "default": ("--memory", []),
            }[self.swap]
            line = ["env", f"TMPDIR={work}", self.binary, "run", "--quiet"]
            line += [limit, f"{LIMIT_MIB}M", *swap, "--report", str(work / "report.json")]
            return [*line, "--"]
        return []


def columns(options):
    found = [Column("no limit", "none")]
    for swap in [options.swap] if options.swap else ["zram", "disk"]:
        found.append(Column(f"kernel {swap}", "kernel", swap))
        found.append(Column(f"ours {swap}", "highwater", swap, options.ours))
        if options.beside:
            found.append(Column(f"beside {swap}", "highwater", swap, options.beside))
        if swap == "disk":
            found.append(Column("ours default", "highwater", "default", options.ours))
    return found


def attempt(program, column, work, options):
    """A result, or the reason why there is none. A program that the kernel kills is tried again."""
    for killed in range(TRIES):
        try:
            result = run(program, column, work, options.seconds)
            result["killed_before"] = killed
            return result
        except Killed:
            print(f"{program.name}, {column.title}: killed", file=sys.stderr, flush=True)
        except Unavailable as reason:
            return {"missing": str(reason)}
    return {"missing": f"killed: out of memory, {TRIES} of {TRIES} tries"}


def measure(program, work, options):
    """All columns of a program. Fails if the results of a column differ from the first column's."""
    results, expected = {}, None
    for column in columns(options):
        if column.kind == "none":
            # The first run may be slow, because the host of a virtual machine has to provide new
            # memory.
            attempt(program, column, work, options)
        result = attempt(program, column, work, options)
        result["program"], result["column"] = program.name, column.title
        results[column.title] = result
        said = result.get("missing") or f"{result['seconds']:.1f} s"
        print(f"{program.name}, {column.title}: {said}", file=sys.stderr, flush=True)
        if "missing" in result:
            continue
        checks = [(phase["phase"], phase["check"]) for phase in result["phases"]]
        expected = expected or checks
        if checks != expected:
            raise Failure(f"{program.name}, {column.title}: {checks}, not {expected}")
    return results


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    ours = os.environ.get("HIGHWATER", str(target / "release" / "highwater"))
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", action="append", choices=names, help="one program; repeatable")
    parser.add_argument("--swap", choices=["zram", "disk"], help="only this kind of device")
    parser.add_argument("--ours", default=ours, help="the build to measure")
    parser.add_argument("--beside", help="another build, in columns of its own")
    parser.add_argument("--seconds", type=int, default=150, help="time limit of each run")
    parser.add_argument("--json", action="store_true", help="all figures, as JSON")
    options = parser.parse_args()
    for name in ["ours", "beside"]:
        binary = getattr(options, name)
        if binary and not os.access(binary, os.X_OK):
            parser.error(f"--{name}: {binary} is no program: build it, or name another")
        # The programs run in another directory.
        setattr(options, name, binary and os.path.abspath(binary))
    return options, target


def main():
    options, target = parse()
    target.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="real-work.", dir=target))
    everything = []
    try:
        for program in PROGRAMS:
            if options.only and program.name not in options.only:
                continue
            try:
                prepare(program, work, target)
            except Skip as reason:
                print(f"{program.name}: not measured: {reason}", file=sys.stderr)
                continue
            everything.append(measure(program, work, options))
    except Failure as failure:
        raise SystemExit(f"real_work.py: {failure}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        print(json.dumps([result for row in everything for result in row.values()], indent=1))
    else:
        tables.show(everything, [column.title for column in columns(options)])


if __name__ == "__main__":
    main()
