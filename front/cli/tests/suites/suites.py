"""Runs real programs and suites without and with Highwater, and compares their results.

    python3 suites.py [--list] [--markdown FILE] [PATTERN...]

Runs the rows whose names contain one of the patterns, or all rows. The binary is $HIGHWATER, or the
release build. A row that cannot run prints the reason. The exit status is 1 if a row has a
difference that is not listed as known. All files are in target/programs.
"""

import argparse
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import compare
import install
import run
from row import MIB, SOURCES, Skip
from rows_data import DATA
from rows_languages import LANGUAGES
from rows_runtimes import RUNTIMES
from rows_servers import SERVERS
from rows_stress import STRESS
from rows_suites import SUITES

ROWS = [*SUITES, *LANGUAGES, *SERVERS, *STRESS, *DATA, *RUNTIMES]
ROOT = SOURCES.parents[3]
# Time limit of a run with Highwater, as a multiple of that without.
PATIENCE = 4
# Memory beyond the budget (code, stacks, small blocks) that needs no remark in the table.
NOT_PAGED = 32 * MIB
# Variables that a program inherits from the caller's environment.
KEPT = ("HOME", "USER", "LOGNAME", "PYENV_ROOT", "RUSTUP_HOME", "CARGO_HOME", "LANG")


def highwater():
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "release", "highwater")
    return Path(os.environ.get("HIGHWATER", built)).resolve()


class Bench:
    """Runs each row in its own directory."""

    def __init__(self, place, patience):
        self.place = place
        self.patience = patience
        self.packages = install.Packages(place)
        # The path is short, because programs make sockets in it.
        self.temporary = place / f"tmp{os.getpid()}"

    def environment(self, row):
        found = {name: os.environ[name] for name in KEPT if name in os.environ}
        found["PATH"] = install.path()
        found.update(LC_ALL="C.UTF-8", PYTHONHASHSEED="0", TMPDIR=str(self.temporary))
        found.update(row.environment)
        return found

    def line(self, row, inputs):
        """The row's command with its placeholders filled in."""
        values = {
            "python": self.packages.python,
            "suite_python": self.packages.suite_python,
            "inputs": inputs,
            "sources": SOURCES,
        }
        line = row.command
        for name, value in values.items():
            line = line.replace("{" + name + "}", str(value))
        return line

    def once(self, row, name, command, limit):
        """One run, in an emptied directory."""
        directory = self.place / "runs" / row.name / name
        for old in (directory, self.temporary):
            shutil.rmtree(old, ignore_errors=True)
        self.temporary.mkdir(mode=0o1777)
        self.temporary.chmod(0o1777)
        found = run.run(command, directory, limit, self.environment(row))
        shutil.rmtree(self.temporary, ignore_errors=True)
        return found

    def prepare(self, row):
        if row.root and os.geteuid() != 0:
            raise Skip("only root can run it")
        self.packages.provide(row)
        inputs = self.place / "inputs"
        inputs.mkdir(exist_ok=True)
        if row.prepare:
            row.prepare(inputs)
        return inputs

    def row(self, row):
        """Both runs and the verdict."""
        inputs = self.prepare(row)
        shell = ["sh", "-c", self.line(row, inputs)]
        without = self.once(row, "without", shell, row.limit)
        if without.status is None:
            raise Skip(f"takes more than {row.limit} s even without Highwater")
        if without.status and not row.outcomes:
            last = (without.errors().strip().splitlines() or ["no word"])[-1]
            raise Skip(f"fails without Highwater, too: {without.end()}, {last[:120]}")
        options = ["--paged", str(row.budget), "--swap", "ram:4G", "--report", "report.json"]
        command = [str(highwater()), "run", *options, "--", *shell]
        within = self.once(row, "with", command, self.patience * row.limit)
        verdict = compare.compare(row, without, within)
        if verdict.differences and row.outcomes and within.status is not None:
            again = self.once(row, "again", shell, row.limit)
            verdict = compare.compare_stable(row, (without, again), within)
        verdict.notes.extend(residency(row, within))
        return without, within, verdict


def residency(row, within):
    """Remarks about the resident size."""
    if not within.report:
        return ["no report"]
    peak = within.report["peak_resident"]
    if not within.report["processes"]:
        return ["nothing was paged"]
    if not peak:
        return []
    beyond = peak["bytes"] - peak["ram_swap_bytes"] - row.budget
    if beyond > NOT_PAGED:
        parts = f"not paged {mib(peak['elsewhere_bytes'])}, Highwater {mib(peak['manager_bytes'])}"
        return [f"{mib(beyond)} beyond the budget: {parts}"]
    return []


def resident(within):
    """Peak resident size of the largest served process, without swap devices in memory."""
    peak = (within.report or {}).get("peak_resident")
    return peak["bytes"] - peak["ram_swap_bytes"] if peak else within.rss


def mib(size):
    return f"{size / MIB:.0f} MiB"


class Table:
    """The table, printed in lines and written as Markdown."""

    HEAD = ["program", "seconds without", "with", "resident without", "with", "budget", "outcome"]
    BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"

    def __init__(self):
        self.lines = {}

    def add(self, row, cells, outcome):
        shown = [*cells, mib(row.budget), outcome]
        self.lines[row.name] = "| " + " | ".join([row.name, *shown]) + " |"
        numbers = "  ".join(f"{cell:>9}" for cell in shown[:-1])
        print(f"{row.name:28} {numbers}  {outcome}", flush=True)

    def write(self, path):
        """Writes the table between the marks of a page; rows that did not run keep their lines."""
        page = Path(path)
        before, _, rest = page.read_text().partition(self.BEGIN)
        old, _, after = rest.partition(self.END)
        kept = {line.split(" | ")[0][2:]: line for line in old.splitlines()[2:]}
        kept.update(self.lines)
        head = ["| " + " | ".join(self.HEAD) + " |", "|---" * len(self.HEAD) + "|"]
        lines = [*head, *(kept[row.name] for row in ROWS if row.name in kept)]
        page.write_text(before + self.BEGIN + "\n".join(lines) + "\n" + self.END + after)


def judge(bench, row, table):
    """Runs a row and prints its line; returns `passed`, `failed` or `skipped`."""
    try:
        without, within, verdict = bench.row(row)
    except Skip as reason:
        table.add(row, [""] * 4, f"skipped: {reason}")
        return "skipped"
    cells = [f"{without.seconds:.1f}", f"{within.seconds:.1f}"]
    cells += [mib(without.rss), mib(resident(within))]
    table.add(row, cells, verdict.text())
    return "failed" if verdict.differences else "passed"


def chosen(patterns):
    """The rows that the patterns select: the row with that name, or all whose names contain it."""
    names = {row.name for row in ROWS}

    def fits(row, pattern):
        return row.name == pattern if pattern in names else pattern in row.name

    return [row for row in ROWS if not patterns or any(fits(row, p) for p in patterns)]


def ask():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the names of rows")
    parser.add_argument("--markdown", help="the page whose table is written anew")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="times a row's limit")
    parser.add_argument("patterns", nargs="*", help="parts of names of rows")
    return parser.parse_args()


def main():
    asked = ask()
    rows = chosen(asked.patterns)
    if asked.list:
        print("\n".join(row.name for row in rows))
        return 0
    if not rows:
        print("no row has such a name", file=sys.stderr)
        return 2
    run.adopt_orphans()
    # No core files: that of a program with large reservations fills a disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # An interrupted run then leaves no processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell ignores SIGINT in background jobs, but suites test interruption.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    place = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "programs"
    place.mkdir(parents=True, exist_ok=True)
    bench, table = Bench(place, asked.patience), Table()
    counts = dict(passed=0, failed=0, skipped=0)
    begun = time.monotonic()
    try:
        for row in rows:
            counts[judge(bench, row, table)] += 1
    finally:
        run.end_descendants()
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print(f"{summary}, in {time.monotonic() - begun:.0f} s")
    if asked.markdown:
        table.write(asked.markdown)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
