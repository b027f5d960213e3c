"""Compares the results of a run with Highwater with those of a run without."""

import filecmp
import re
from dataclasses import dataclass, field


@dataclass
class Verdict:
    """The unexplained and the known differences between two runs, and remarks."""

    differences: list = field(default_factory=list)
    known: list = field(default_factory=list)
    notes: list = field(default_factory=list)

    def text(self):
        if self.differences:
            said = "DIFFERENT: " + brief(self.differences)
        else:
            said = "equal"
        if self.known:
            said += ", but for " + brief(sorted(set(self.known)))
        return "; ".join([said, *self.notes])


def brief(items, most=4):
    said = ", ".join(items[:most])
    return said if len(items) <= most else f"{said} and {len(items) - most} more"


def scrubbed(row, run):
    """The output without the parts that differ from run to run."""
    text = run.output().replace(str(run.directory), "DIRECTORY")
    for pattern, replacement in row.scrub:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def outcomes(row, run):
    return row.outcomes(run.output(), run.directory)


def add(row, verdict, what, text):
    """Adds a difference; it counts as known if the row gives a reason for it."""
    for pattern, reason in row.known.items():
        if re.search(pattern, what):
            verdict.known.append(reason)
            return
    verdict.differences.append(text)


def compare(row, without, within):
    verdict = Verdict()
    if without.status != within.status:
        add(row, verdict, "exit", f"{within.end()}, without {without.end()}")
    if row.outcomes:
        compare_outcomes(row, without, within, verdict)
    elif within.status is not None and scrubbed(row, without) != scrubbed(row, within):
        add(row, verdict, "output", "standard output: " + first_difference(row, without, within))
    for name in row.files:
        pair = without.directory / name, within.directory / name
        if not pair[0].exists():
            raise ValueError(f"{row.name} does not write {name}")
        if not pair[1].exists() or not filecmp.cmp(*pair, shallow=False):
            add(row, verdict, "output", name)
    return verdict


def compare_outcomes(row, without, within, verdict):
    """Test by test. Tests that a suite did not reach are reported once, with its last test."""
    expected, found = outcomes(row, without), outcomes(row, within)
    if not expected:
        verdict.differences.append("the suite reports no test")
    if not found:
        last = (within.output().strip().splitlines() or ["nothing"])[-1]
        add(row, verdict, "report", f"no outcomes; the last line is {last[-100:]!r}")
        return
    for test in sorted(expected.keys() | found.keys()):
        pair = expected.get(test, "not run"), found.get(test, "not run")
        if pair[0] != pair[1]:
            add(row, verdict, test, f"{test}: {pair[1]}, without {pair[0]}")
    verdict.notes.append(f"{len(expected)} tests")


def first_difference(row, without, within):
    one, other = (scrubbed(row, run).splitlines() for run in (without, within))
    for number, (left, right) in enumerate(zip(one, other), 1):
        if left != right:
            return f"line {number} is {right[:80]!r}, without {left[:80]!r}"
    return f"{len(other)} lines, without {len(one)}"


def compare_stable(row, withouts, within):
    """As `compare`, but ignores tests that differ between two runs without Highwater."""
    first, second = (outcomes(row, run) for run in withouts)
    verdict = compare(row, withouts[0], within)
    unstable = {t for t in first.keys() | second.keys() if first.get(t) != second.get(t)}
    stays = [d for d in verdict.differences if d.partition(": ")[0] not in unstable]
    if withouts[0].status != withouts[1].status or (unstable and len(stays) == 1):
        # A suite with an unreliable test is unreliable itself.
        stays = [d for d in stays if within.status is None or not d.startswith("exit status")]
    verdict.differences = stays
    if unstable:
        verdict.notes.append(f"{len(unstable)} tests unstable without, too")
    return verdict
