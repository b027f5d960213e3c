"""A row of the table: a program, its requirements, and the results that must be equal."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

MIB = 1 << 20

# Sources of small programs.
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
    # Required programs.
    needs: tuple = ()
    # Debian packages that contain them, and requirements for pip.
    apt: tuple = ()
    pip: tuple = ()
    # Required modules of the suite's Python.
    modules: tuple = ()
    # Fills the directory of inputs, once; may raise Skip.
    prepare: Optional[Callable] = None
    # Files in the directory of a run that must be equal, too.
    files: tuple = ()
    # Output that differs from run to run: (pattern, replacement), applied to each line.
    scrub: tuple = ()
    # If the suite reports tests, returns their outcomes, given standard output and directory.
    outcomes: Optional[Callable] = None
    # Reasons for known differences; the key is a regular expression for names of tests, "exit" or
    # "output".
    known: dict = field(default_factory=dict)
    # Time limit in seconds without Highwater.
    limit: int = 60
    environment: dict = field(default_factory=dict)
    # Only root can run it.
    root: bool = False


def outcomes_of_words(pattern):
    """Outcomes of tests, from lines that match a pattern with groups `test` and `outcome`."""
    compiled = re.compile(pattern)

    def parse(text, _directory):
        found = {}
        for line in text.splitlines():
            match = compiled.search(line)
            if match:
                found[match["test"]] = match["outcome"]
        return found

    return parse
