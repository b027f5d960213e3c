"""The checks of one guest. Each writes a line to the console:

    check NAME: ok SECONDS
    check NAME: failed: REASON
    check NAME: not run: REASON

`HIGHWATER_CHECKS=PART;PART` on the kernel's command line chooses checks; `_` is a blank.
"""

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HIGHWATER = "/highwater/highwater"
USER = 1000
PATIENCE = 120
"""Seconds for one command, several times what the slowest takes."""
MIB = 1 << 20
KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
HAS_USER_MODE = KERNEL >= (5, 14)
"""What the default mode needs: faults of user mode alone, and MADV_POPULATE_READ."""

TREE = """
import hashlib, multiprocessing, random
def work(n):
    numbers = [i * n for i in range(30000)]
    random.Random(n).shuffle(numbers)
    numbers.sort()
    return hashlib.md5(repr(numbers).encode()).hexdigest()
if __name__ == "__main__":
    texts = [str(i) for i in range(60000)]
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, range(4)))
    print(hashlib.md5("".join(texts).encode()).hexdigest(), work(9))
"""
"""A Python program, and processes that it forks."""

PIPELINE = """
sort -S 64M numbers | gzip -1 | gzip -d | sort -n -S 64M | xz -0 | xz -d > piped
for part in 1 2 3; do (sort -r -S 32M numbers | head -n "$part") & wait; done
cat piped
"""


class NotRun(Exception):
    """This kernel or machine cannot run the check."""


class Failed(Exception):
    """What Highwater did is wrong."""


def run(command, user=None, timeout=PATIENCE):
    """Output and errors of a command that must succeed within its time."""
    status, output, errors = attempt(command, user, timeout)
    if status != 0:
        raise Failed(f"status {status}: {last_line(errors)}")
    return output, errors


def attempt(command, user=None, timeout=PATIENCE):
    """Status, output and errors of a command."""
    identity = {"user": user, "group": user, "extra_groups": []} if user else {}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **identity
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        describe()
        os.killpg(process.pid, 9)
        process.communicate()
        raise Failed(f"still running after {timeout} s") from None
    return process.returncode, output, errors.decode(errors="replace")


def last_line(text):
    return (text.strip().splitlines() or ["no message"])[-1][:300]


def describe():
    """Writes where every thread of the programs stands."""
    for task in sorted(Path("/proc").glob("[0-9]*/task/[0-9]*")):
        with contextlib.suppress(OSError):
            if not (task / "cmdline").read_bytes():
                continue
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            stack = [line.split()[-1] for line in (task / "stack").read_text().splitlines()]
            name = (task / "comm").read_text().strip()
            where = f"{fields[0]}, CPU {fields[11]} + {fields[12]}, {' < '.join(stack[:4])}"
            print(f"stuck {task.parts[2]} {task.name} {name}: {where}", flush=True)


def highwater(program, options=(), memory=("--paged", "6M"), swap="dir:/var/tmp:256M", user=None):
    """Runs a program under Highwater: its output, after its bounds were checked."""
    report = Path(f"/tmp/report-{user}.json")
    command = [HIGHWATER, "run", "--quiet", *memory, "--swap", swap, *options]
    output, _ = run([*command, "--report", str(report), "--", *program], user)
    check_bounds(json.loads(report.read_text()), memory)
    return output


def check_bounds(report, memory):
    """Peak within the limit, as front/cli/tests/programs/report.rs has it; pages were swapped."""
    if report["vmstat"]["pswpout"] == 0:
        raise Failed("no page was swapped out")
    peak, paged = report["peak_resident"], report["paged_peak_bytes"]
    bound = report["budget_bytes"]
    if memory[0] == "--paged":
        bound += 4 * MIB + paged // 50 + peak["elsewhere_bytes"] + peak["ram_swap_bytes"]
    if peak["bytes"] > bound:
        raise Failed(f"peak {peak['bytes']} bytes, over {bound}")


EXPECTED = {}


def same(program, **options):
    """Runs a program without and with Highwater, and compares the outputs."""
    key = tuple(program)
    if key not in EXPECTED:
        EXPECTED[key] = hashlib.md5(run(program)[0]).digest()
    if hashlib.md5(highwater(program, **options)).digest() != EXPECTED[key]:
        raise Failed("the output differs")


SORT = ["sort", "--parallel=1", "-S", "100M", "numbers"]
PYTHON = ["python3", "tree.py"]
SMALL = ("--paged", "4M")
ROOMY = ("--paged", "16M")
HANDLERS = ("--faults", "handlers")
IN_THREAD = ("--faults", "in-thread")
COPIES = ("--faults", "handlers", "--system-calls", "copies")
COPY = ("--mapping", "copy")


def needs(what, there):
    if not there:
        raise NotRun(what)


def needs_user_mode():
    needs("faults of user mode alone need Linux 5.14", HAS_USER_MODE)


def refusal(command, user=None, says=""):
    """The command ends with status 2 and one line."""
    status, output, errors = attempt(command, user)
    lines = errors.strip().splitlines()
    if status != 2 or len(lines) != 1 or output or says not in errors:
        raise Failed(f"status {status}, {len(lines)} lines: {last_line(errors)}")


@contextlib.contextmanager
def setting(path, value):
    """A kernel setting, until the end of a check."""
    path = Path(path)
    needs(f"no {path}", path.exists())
    before = path.read_text().strip()
    before = before.partition("[")[2].partition("]")[0] or before
    path.write_text(value)
    try:
        yield
    finally:
        path.write_text(before)


def doctor(user=None):
    status, output, errors = attempt([HIGHWATER, "doctor", "--json", "--swap", "zram:64M"], user)
    if errors:
        raise Failed(last_line(errors))
    items = {item["name"]: item for item in json.loads(output)["items"]}
    runs = json.loads(output)["works"]
    failed = (item for item in items.values() if item["status"] == "fail")
    bad = [f"{item['name']}: {item['found']}" for item in failed]
    if not runs or status != 0:
        raise Failed("; ".join(bad))
    mode = "thread that faults" if HAS_USER_MODE else "threads beside"
    if mode not in items["page faults"]["found"]:
        raise Failed(items["page faults"]["found"])
    if (KERNEL >= (6, 8)) != (items["page move"]["status"] == "ok"):
        raise Failed(items["page move"]["found"])


def unprivileged_denied():
    """vm.unprivileged_userfaultfd=0: faults of user mode, or one line."""
    with setting("/proc/sys/vm/unprivileged_userfaultfd", "0"):
        if HAS_USER_MODE:
            return same(SORT, user=USER)
        command = [HIGHWATER, "run", "--paged", "6M", "--swap", "ram:64M", "--", *SORT]
        refusal(command, USER, "vm.unprivileged_userfaultfd=1")


def denied_mode():
    """A mode that needs faults of user mode is refused with a remedy that works."""
    needs("faults of user mode are there", not HAS_USER_MODE)
    for options in (IN_THREAD, COPIES):
        command = [HIGHWATER, "run", "--paged", "6M", "--swap", "ram:64M", *options, "--", *SORT]
        refusal(command, says="leave out --faults in-thread")


def pipeline():
    same(["sh", "-c", PIPELINE], memory=("--paged", "8M"), swap="zram:64M")


def signals():
    """SIGTERM to `highwater run` ends the program by its own handler."""
    program = (
        "import signal, sys, time\n"
        "numbers = [i * 3 for i in range(400000)]\n"
        "def end(*_):\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    print(sum(numbers), flush=True)\n"
        "    sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\n"
        "count = [0]\n"
        "def tick(*_): count[0] += numbers[count[0] * 4096 % 400000] >= 0\n"
        "signal.signal(signal.SIGALRM, tick)\n"
        "print('ready', flush=True)\n"
        "while True: sum(numbers[::4096])\n"
    )
    command = [HIGHWATER, "run", "--quiet", "--paged", "8M", "--swap", "ram:64M"]
    process = subprocess.Popen([*command, "--", "python3", "-c", program], stdout=subprocess.PIPE)
    try:
        ready = process.stdout.readline()
        time.sleep(2)
        process.terminate()
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    expected = f"{sum(i * 3 for i in range(400000))}\n".encode()
    if (ready, output, process.returncode) != (b"ready\n", expected, 7):
        raise Failed(f"status {process.returncode}, output {output}")


def c_program(*command, **options):
    options = {"memory": SMALL, "swap": "ram:128M", **options}
    return lambda: same([f"/programs/{command[0]}", *command[1:]], **options)


def sort(**options):
    return lambda: same(SORT, **options)


def python(**options):
    return lambda: same(PYTHON, **{"memory": ROOMY, "swap": "zram:64M", **options})


def with_user_mode(check):
    def checked():
        needs_user_mode()
        check()

    return checked


@contextlib.contextmanager
def swap_device():
    """Swap of the kernel's: on zram, or, where its package has none, on a file in memory."""
    zram, file = Path("/sys/block/zram0"), "/dev/shm/swap"
    if zram.exists():
        device = "/dev/zram0"
        (zram / "disksize").write_text(str(256 * MIB))
    else:
        device = "/dev/loop0"
        run(["truncate", "-s", "256M", file])
        run(["losetup", device, file])
    try:
        run(["mkswap", device])
        run(["swapon", device])
        yield
        run(["swapoff", device])
    finally:
        if zram.exists():
            (zram / "reset").write_text("1")
        else:
            run(["losetup", "-d", device])
            os.unlink(file)


def host_swap(*options):
    """Pages that the kernel swaps out itself."""

    def checked():
        with swap_device():
            sections = ("evicted", "forked", "changed")
            c_program("host", "12", *sections, options=options, memory=("--paged", "6M"))()

    return checked


def overcommit():
    with setting("/proc/sys/vm/overcommit_memory", "2"):
        command = [HIGHWATER, "run", "--paged", "6M", "--swap", "ram:64M", "--", *SORT]
        refusal(command, says="vm.overcommit_memory=0")


def few_mappings():
    with setting("/proc/sys/vm/max_map_count", "1000"):
        c_program("regions", "2000", "alternate")()
        c_program("forks", "6", "turns", "nested")()


def huge_pages():
    with setting("/sys/kernel/mm/transparent_hugepage/enabled", "always"):
        c_program("mixed", "8")()
        same(PYTHON, memory=ROOMY, swap="ram:64M", options=HANDLERS)
        c_program("mixed", "8", options=("--large-pages", "on"), memory=("--paged", "8M"))()


def no_io_uring():
    with setting("/proc/sys/kernel/io_uring_disabled", "2"):
        same(SORT)


@contextlib.contextmanager
def cgroup(version):
    """A memory cgroup of 64 MiB for this process and its children."""
    where = Path(f"/tmp/cgroup{version}")
    where.mkdir(exist_ok=True)
    kind = ["-t", "cgroup2", "none"] if version == 2 else ["-t", "cgroup", "-o", "memory", "none"]
    status, _, errors = attempt(["mount", *kind, str(where)])
    needs(last_line(errors), status == 0)
    group = where / "limited"
    try:
        if version == 2:
            controllers = (where / "cgroup.controllers").read_text().split()
            needs("no memory controller", "memory" in controllers)
            (where / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        (group / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text("64M")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield group
    finally:
        (where / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)
        if version == 2:
            # Else no cgroup of version 1 may have the controller.
            with contextlib.suppress(OSError):
                (where / "cgroup.subtree_control").write_text("-memory")
        run(["umount", str(where)])


def limited(version):
    """Default settings: half of the cgroup's limit."""

    def checked():
        with cgroup(version):
            output, _ = run([HIGHWATER, "doctor", "--swap", "zram:64M"])
            if f"64 MiB, by cgroup v{version}" not in output.decode():
                raise Failed("doctor does not find the limit")
            same(SORT, memory=("--memory", "16M"))
            same(SORT, memory=("--memory", "16M"), options=HANDLERS)

    return checked


CHECKS = {
    "doctor, root": doctor,
    "doctor, user": lambda: doctor(USER),
    "sort, default": sort(),
    "sort, user": sort(user=USER),
    "user, userfaultfd denied": unprivileged_denied,
    "modes denied": denied_mode,
    "sort, in-thread": with_user_mode(sort(options=IN_THREAD)),
    "sort, handlers": sort(options=HANDLERS),
    "sort, handlers, copies": with_user_mode(sort(options=COPIES)),
    "sort, mapping copy": sort(options=COPY),
    "sort, zram": sort(swap="zram:64M"),
    "sort, limit": sort(memory=("--memory", "16M")),
    "processes, default": python(),
    "processes, user": python(user=USER),
    "processes, handlers": python(options=HANDLERS),
    "processes, mapping copy": python(options=COPY),
    "pipeline": pipeline,
    "signals": signals,
    "C, memory calls": c_program("mixed", "8"),
    "C, memory calls, handlers": c_program("mixed", "8", options=HANDLERS),
    "C, forks": c_program("forks", "6"),
    "C, forks, handlers": c_program("forks", "6", options=HANDLERS),
    "C, nested forks": c_program("forks", "6", "turns", "nested"),
    "C, fork's surroundings": c_program("forking", "8", "handlers", "coroutine", "streams"),
    "C, shared": c_program("shared", "5"),
    "C, threads": c_program("threads", "8", "2", "16", memory=("--paged", "8M")),
    "C, malloc": c_program("heap", "8"),
    "C, structures": c_program("structs", "8"),
    "C, advice": c_program("inherits", "12"),
    "C, system calls": c_program("gate", memory=("--paged", "8M")),
    "C, own faults": with_user_mode(c_program("in_thread", memory=("--paged", "8M"))),
    "host swap": host_swap(),
    "host swap, mapping copy": host_swap(*COPY),
    "host swap, handlers, mapping copy": host_swap(*COPY, *HANDLERS),
    "huge pages always": huge_pages,
    "overcommit 2": overcommit,
    "max_map_count 1000": few_mappings,
    "no io_uring": no_io_uring,
    "cgroup v2": limited(2),
    "cgroup v1": limited(1),
}


def prepare():
    os.chdir("/tmp")
    Path("tree.py").write_text(TREE)
    multiply = 0x9E3779B97F4A7C15
    numbers = ((i * multiply) % (1 << 64) for i in range(150000))
    Path("numbers").write_text("".join(f"{number}\n" for number in numbers))


def wanted():
    """The checks whose names contain a part that the kernel's command line has; else all."""
    words = Path("/proc/cmdline").read_text().split()
    given = [word.partition("=")[2] for word in words if word.startswith("HIGHWATER_CHECKS=")]
    parts = given[0].replace("_", " ").split(";") if given and given[0] else [""]
    return [name for name in CHECKS if any(part in name for part in parts)]


def main():
    prepare()
    print("guest", platform.release(), flush=True)
    for name in wanted():
        started = time.monotonic()
        try:
            CHECKS[name]()
            result = f"ok {time.monotonic() - started:.1f}"
        except NotRun as reason:
            result = f"not run: {reason}"
        except Exception as error:  # Whatever it is, the other checks run.
            result = f"failed: {error}"
        print(f"check {name}: {result}", flush=True)


if __name__ == "__main__":
    main()
