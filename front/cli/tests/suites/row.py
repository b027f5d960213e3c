"""A row of the table: a program, what it needs, and what must be equal both times."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

MIB = 1 << 20

# Where the sources of small programs lie.
SOURCES = Path(__file__).resolve().parent


class Skip(Exception):
    """The row cannot run on this machine; the text says why."""


@dataclass(frozen=True)
class Row:
    """One program, run without and with Highwater in a directory of its own each.

    `command` is a line for the shell. In it `{python}` is the Python of the virtual environment,
    `{suite_python}` a Python that has its `test` package, `{inputs}` the directory that `prepare`
    filled and `{sources}` that of this file.
    """

    name: str
    command: str
    # Budget of each process in bytes.
    budget: int
    # Programs that must be found.
    needs: tuple = ()
    # Debian packages that have them, and requirements of pip.
    apt: tuple = ()
    pip: tuple = ()
    # Modules that the suite's Python must have.
    modules: tuple = ()
    # Fills the directory of inputs, once; may raise Skip.
    prepare: Optional[Callable] = None
    # Files in the directory of a run that must be equal, too.
    files: tuple = ()
    # What differs from run to run: (pattern, replacement), applied to each line of the output.
    scrub: tuple = ()
    # Outcome by test from (text of standard output, directory), where a suite reports by test.
    outcomes: Optional[Callable] = None
    # Known differences: a regular expression of a test's name, or "exit" or "output", to a reason.
    known: dict = field(default_factory=dict)
    # Seconds for a run without; with Highwater it may take five times as long.
    limit: int = 60
    environment: dict = field(default_factory=dict)
    # Only root can run it.
    root: bool = False


def outcomes_of_words(pattern):
    """Outcomes by lines that match a pattern with a group `test` and a group `outcome`."""
    compiled = re.compile(pattern)

    def parse(text, _directory):
        found = {}
        for line in text.splitlines():
            match = compiled.search(line)
            if match:
                found[match["test"]] = match["outcome"]
        return found

    return parse
