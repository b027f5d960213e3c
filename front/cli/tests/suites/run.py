"""Runs a command with a time limit, and ends processes that it leaves behind."""

import ctypes
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

PR_SET_CHILD_SUBREAPER = 36
# Interval between checks whether a command has ended.
LOOK_SECONDS = 0.02
# Time between SIGTERM and SIGKILL.
GRACE_SECONDS = 3.0


@dataclass
class Run:
    """How a command ended."""

    # Exit status, or minus the signal, or None after the time limit.
    status: Optional[int]
    seconds: float
    # Largest resident size of any of its processes, as counted by the kernel.
    rss: int
    directory: Path
    # The JSON of --report, if any.
    report: Optional[dict] = None

    def output(self):
        return (self.directory / "stdout").read_bytes().decode("utf-8", "replace")

    def errors(self):
        return (self.directory / "stderr").read_bytes().decode("utf-8", "replace")

    def end(self):
        if self.status is None:
            return f"no end after {self.seconds:.0f} s"
        if self.status < 0:
            return signal.Signals(-self.status).name
        return f"exit status {self.status}"


def adopt_orphans():
    """Makes daemons and orphans children of this process."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def parents():
    """The parent of every process."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text(errors="replace")
            except OSError:
                continue
            found[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants():
    """All processes below this one, children before grandchildren."""
    children = {}
    for process, parent in parents().items():
        children.setdefault(parent, []).append(process)
    found, waiting = [], [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found.extend(below)
        waiting.extend(below)
    return found


def send_all(number):
    """Sends a signal to all descendants. Returns their number."""
    targets = descendants()
    for process in targets:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass
    return len(targets)


def reap():
    """Waits for children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def end_descendants():
    """Ends all descendants, by SIGKILL if they ignore SIGTERM."""
    deadline = time.monotonic() + GRACE_SECONDS
    reap()
    left = send_all(signal.SIGTERM)
    while left and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        reap()
        left = len(descendants())
    while left:
        left = send_all(signal.SIGKILL)
        time.sleep(LOOK_SECONDS)
        reap()


def run(command, directory, limit, environment):
    """Runs a command in a directory, and writes its output to files there."""
    directory.mkdir(parents=True)
    report = directory / "report.json"
    with open(directory / "stdout", "wb") as out, open(directory / "stderr", "wb") as errors:
        begun = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        status, rss = wait(process, begun + limit)
        seconds = time.monotonic() - begun
    end_descendants()
    found = None
    if report.exists() and report.stat().st_size:
        found = json.loads(report.read_text())
    return Run(status, seconds, rss, directory, found)


def wait(process, deadline):
    """Exit status and largest resident size, or no status after the deadline."""
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_maxrss << 10
        if time.monotonic() > deadline:
            process.returncode = -signal.SIGKILL
            return None, 0
        time.sleep(LOOK_SECONDS)
