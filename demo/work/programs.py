"""The programs that real_work.py runs."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEXT_MIB = 256


class Skip(Exception):
    """Why a program cannot be measured here."""


@dataclass
class Program:
    """`line`: its command line; {work} is the directory of the run. One that prints no phases is
    one phase, checked by its output. `client`: talks to it while it runs, and prints the phases."""

    name: str
    line: list
    client: list = field(default_factory=list)
    phases: bool = True


def python():
    """That of `make venv`, which has NumPy."""
    return HERE.parent.parent / ".venv" / "bin" / "python"


SOCKET = "{work}/redis.sock"
SORT = ["sort", "-S", f"{4 * TEXT_MIB}M", "--parallel=2", "{work}/text"]
REDIS = ["redis-server", "--port", "0", "--unixsocket", SOCKET, "--save", "", "--appendonly", "no"]

PROGRAMS = [
    Program("NumPy, 400 MB", [str(python()), str(HERE / "numpy_phases.py")]),
    Program(f"GNU sort, {TEXT_MIB} MiB", SORT, phases=False),
    Program("Python objects", [sys.executable, str(HERE / "object_phases.py")]),
    Program("redis", REDIS, client=[sys.executable, str(HERE / "redis_phases.py"), SOCKET]),
]


def prepare(program, work, target):
    """Makes what a program reads. Raises `Skip` where it cannot run."""
    if shutil.which(program.line[0]) is None:
        raise Skip(f"no {program.line[0]}")
    if program.client and shutil.which("redis-cli") is None:
        raise Skip("no redis-cli")
    if program.line[0] == "sort" and not (work / "text").exists():
        write_text(work / "text", target)


def write_text(path, target):
    lines = target / "release" / "examples" / "random_lines"
    if not os.access(lines, os.X_OK):
        raise Skip(f"no {lines}")
    with open(path, "wb") as text:
        subprocess.run([str(lines), str(TEXT_MIB << 20), "1"], stdout=text, check=True, timeout=120)
