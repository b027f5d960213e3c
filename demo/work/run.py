"""Runs a program in a column of real_work.py, and collects its figures."""

import hashlib
import json
import os
import signal
import subprocess
import threading
import time

OUT_OF_MEMORY = 128 + signal.SIGKILL
NOT_POSSIBLE = 77
TIMED_OUT = 124
PIECE = 1 << 20
# swapoff has its own limit; nothing may be killed before it has ended.
CLEANUP_SECONDS = 200
# Sets the clock beside the program: setting up swap is not its time.
CLOCK = 'date +%s.%N >"$0"; "$@"; status=$?; date +%s.%N >>"$0"; exit $status'
PAGE = 4096
SECTOR = 512


class Failure(Exception):
    """The benchmark is wrong: a wrong result, or a program that failed."""


class Killed(Exception):
    """The kernel killed the program for lack of memory."""


class Unavailable(Exception):
    """Why there is no result."""


def run(program, column, work, seconds):
    """The figures of one run."""
    fill = lambda part: part.replace("{work}", str(work))
    clock = work / "clock"
    line = ["sh", "-c", CLOCK, str(clock), *map(fill, program.line)]
    line = [*column.prefix(work), *line]
    before = machine_counters(work)
    client = [fill(part) for part in program.client]
    status, usage, output, digest = execute(line, client, work, seconds)
    after = machine_counters(work)
    judge(status, program, column, work)
    start, end = map(float, clock.read_text().split())
    result = {"seconds": end - start}
    if program.phases:
        result["phases"] = [json.loads(text) for text in output.splitlines() if text[:1] == b"{"]
    else:
        once = {"phase": "", "seconds": end - start, "check": digest, "ru_majflt": usage.ru_majflt}
        result["phases"] = [once]
    changes = {name: after[name] - before[name] for name in before}
    if column.kind == "highwater":
        result.update(our_figures(json.loads((work / "report.json").read_text())))
    else:
        result.update(kernel_figures(usage, changes))
    return result


def execute(line, client, work, seconds):
    """Runs a command line, and its client beside it: status, resource usage, output, its digest."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONHASHSEED": "0"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment["KERNEL_SWAP_SECONDS"] = str(seconds)
    with open(work / "errors", "wb") as errors:
        process = subprocess.Popen(
            line, cwd=work, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        watch = threading.Timer(seconds + 15, stop, [process])
        watch.start()
        try:
            output, digest = collect(process, client, environment, work, seconds)
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            stop(process)
            raise
        finally:
            watch.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage, output, digest


def collect(process, client, environment, work, seconds):
    """What the program printed, or its client. A long output is not kept, but hashed."""
    beside = None
    if client:
        beside = subprocess.Popen(client, cwd=work, env=environment, stdout=subprocess.PIPE)
    digest, output = hashlib.sha256(), b""
    while piece := process.stdout.read(PIECE):
        digest.update(piece)
        output = (output + piece)[:PIECE]
    if beside:
        try:
            output = beside.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            beside.kill()
            output = beside.communicate()[0]
    return output, digest.hexdigest()


def stop(process):
    """Ends a process group. kernel_swap.sh then takes its swap away."""
    for number, patience in (signal.SIGTERM, CLEANUP_SECONDS), (signal.SIGKILL, 10):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        end = time.monotonic() + patience
        while time.monotonic() < end:
            # The parent waits for it elsewhere, or has ended.
            state = process_state(process.pid)
            if state in ("", "Z"):
                return
            time.sleep(0.1)


def process_state(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def judge(status, program, column, work):
    errors = (work / "errors").read_text(errors="replace").strip()
    if status == 0:
        return
    last = errors.splitlines()[-1] if errors else ""
    if column.kind == "kernel" and status == OUT_OF_MEMORY:
        raise Killed
    if column.kind == "kernel" and status == NOT_POSSIBLE:
        raise Unavailable(last)
    if status in (TIMED_OUT, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise Unavailable("not finished in time")
    raise Failure(f"{program.name}, {column.title}: exit status {status}: {errors}")


def machine_counters(work):
    """Counters of the machine: swap, and transfers of the disk that holds `work`."""
    names = ("pswpin", "pswpout", "swap_ra", "swap_ra_hit")
    with open("/proc/vmstat") as vmstat:
        numbers = dict(line.split() for line in vmstat)
    found = {name: int(numbers.get(name, 0)) for name in names}
    device = os.stat(work).st_dev
    try:
        with open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat") as stat:
            fields = list(map(int, stat.read().split()))
    except OSError:
        fields = [0] * 8
    found.update(reads=fields[0], read_sectors=fields[2])
    found.update(writes=fields[4], write_sectors=fields[6])
    return found


def kernel_figures(usage, changes):
    pages = lambda name: changes[name] * SECTOR / PAGE
    each = lambda name, ios: pages(name) / changes[ios] if changes[ios] else 0
    return {
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "major_faults": usage.ru_majflt,
        "pages_in": changes["pswpin"],
        "pages_out": changes["pswpout"],
        "reads": changes["reads"],
        "writes": changes["writes"],
        "pages_per_read": each("read_sectors", "reads"),
        "pages_per_write": each("write_sectors", "writes"),
        "read_ahead": changes["swap_ra"],
        "read_ahead_hits": changes["swap_ra_hit"],
    }


def our_figures(report):
    program, counters = report["program"], report["vmstat"]
    cpu = program["user_seconds"] + program["system_seconds"] + report["manager_cpu_seconds"]
    return {
        "cpu_seconds": cpu,
        "major_faults": report["faults_major"],
        "minor_faults": report["faults_minor"],
        "pages_in": counters["pswpin"],
        "pages_out": counters["pswpout"],
        "reads": counters["swpin_ios"],
        "writes": counters["swpout_ios"],
        "pages_per_read": report["swap_in"]["pages_per_io"] or 0,
        "pages_per_write": report["swap_out"]["pages_per_io"] or 0,
        "read_ahead": counters["swap_ra"],
        "read_ahead_hits": counters["swap_ra_hit"],
        "counters": counters,
    }
