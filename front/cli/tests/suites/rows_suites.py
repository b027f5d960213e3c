"""Suites that report by test: CPython's, NumPy's, mimalloc's."""

import os
import subprocess
import xml.etree.ElementTree as xml

from row import MIB, Row, Skip

REGRESSION = "{suite_python} -m test -v -u none --junit-xml junit.xml"


def junit(_text, directory):
    """Outcomes by test, from a junit.xml file written by CPython or pytest."""
    path = directory / "junit.xml"
    if not path.exists() or not path.stat().st_size:
        return {}
    found = {}
    for case in xml.parse(path).iter("testcase"):
        name = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        worst = [kind for kind in ("error", "failure", "skipped") if case.find(kind) is not None]
        skipped = case.get("result") == "skipped" or case.get("status") == "notrun"
        found[name] = worst[0] if worst else "skipped" if skipped else "passed"
    return found


def cpython(module, limit=60, select=(), skip=(), known=None, budget=12):
    # Shorter than the time limit of the row, so that the suite itself reports where it hangs.
    options = f" --timeout {2 * limit}"
    options += "".join([f" -m '{name}'" for name in select] + [f" -i '{name}'" for name in skip])
    return Row(
        name=f"cpython {module}".replace(" ", "-"),
        command=f"{REGRESSION}{options} {module}",
        modules=(f"test.{module}",),
        budget=budget * MIB,
        outcomes=junit,
        known=known or {},
        limit=limit,
    )


MIMALLOC = "https://github.com/microsoft/mimalloc"


def mimalloc(inputs):
    """mimalloc's source and tests, from $MIMALLOC (a directory or a repository) or its home."""
    source, built = inputs / "mimalloc", inputs / "mimalloc-build"
    if not source.exists():
        home = os.environ.get("MIMALLOC", MIMALLOC)
        clone = ["git", "clone", "-q", "--depth", "1", home, str(source)]
        if subprocess.run(clone, timeout=120, check=False).returncode:
            raise Skip(f"cannot be fetched from {home}")
    if not (built / "done").exists():
        for command in (
            ["cmake", "-S", str(source), "-B", str(built), "-DCMAKE_BUILD_TYPE=Release"],
            ["cmake", "--build", str(built), "-j2"],
        ):
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        (built / "done").touch()


def ctest(text, _directory):
    """Outcomes by test, from the output of ctest."""
    found = {}
    for line in text.splitlines():
        if " Test " in line and "..." in line:
            name, _, rest = line.partition(": ")[2].partition(" ...")
            found[name.strip()] = rest.strip(" .*").split("  ")[0]
    return found


MODULES = [
    cpython("test_threading", limit=100),
    cpython("test_subprocess", limit=150,
            known={"test_pass_fds_redirected|^exit$": "the channel is a descriptor at 900"}),
    cpython("test_os", limit=60),
    # Sockets to virtual machines (vsock) wait for ever inside some virtual machines.
    cpython("test_socket", limit=100, skip=["*VSOCK*"]),
    cpython("test_asyncio", limit=200, budget=24),
    cpython("test_concurrent_futures", limit=200),
    cpython("test_multiprocessing_fork", limit=200),
    cpython("test_multiprocessing_spawn", limit=200, select=["*WithProcessesTestProcess*"]),
    cpython("test_multiprocessing_forkserver", limit=200, select=["*WithProcessesTestProcess*"]),
    cpython("test_multiprocessing_main_handling", limit=100),
    *(
        cpython(f"test_{name}")
        for name in (
            "mmap fork1 signal tempfile bytes list dict set array buffer memoryview "
            "gc weakref thread threading_local threadsignals faulthandler posix pty "
            "resource select selectors epoll wait3 wait4 popen atexit io zlib lzma bz2 hashlib "
            "struct deque heapq json pickle marshal re unicode sqlite3 ctypes "
            "capi embed cmd_line tracemalloc interpreters"
        ).split()
    ),
]

SUITES = [
    *MODULES,
    Row(
        name="numpy-test",
        command=(
            "{python} -c 'import sys, numpy; sys.exit(not numpy.test(tests=["
            '"numpy._core.tests.test_multiarray", "numpy._core.tests.test_umath", '
            '"numpy.lib", "numpy.linalg", "numpy.fft", "numpy.ma"], '
            'extra_argv=["-q", "-p", "no:cacheprovider", "--junit-xml=junit.xml"]))\''
        ),
        pip=("numpy", "pytest", "hypothesis"),
        budget=48 * MIB,
        outcomes=junit,
        limit=200,
    ),
    Row(
        name="mimalloc-tests",
        command="cd {inputs}/mimalloc-build && ctest --timeout 60",
        needs=("cmake", "git", "cc"),
        apt=("cmake", "git", "gcc"),
        prepare=mimalloc,
        budget=150 * MIB,
        outcomes=ctest,
        limit=120,
    ),
]
