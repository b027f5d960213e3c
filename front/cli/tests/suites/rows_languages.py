"""Languages and their runtimes: polars, PHP, Java, node, a C project, MPI, valgrind."""

import subprocess
import sys

from row import MIB, SOURCES, Row


def java_class(inputs):
    if not (inputs / "Heap.class").exists():
        source = SOURCES / "sources" / "Heap.java"
        subprocess.run(["javac", "-d", str(inputs), str(source)], check=True)


def java(name, options, keys=120_000, budget=64 * MIB):
    return Row(
        name=f"java-{name}",
        command=f"java -Xmx320m {options} -cp {{inputs}} Heap {keys} 16",
        needs=("java", "javac"),
        apt=("default-jdk-headless",),
        prepare=java_class,
        budget=budget,
        limit=60,
    )


def project(inputs):
    """Thirty C files."""
    if not (inputs / "project").exists():
        maker = str(SOURCES / "sources" / "unit.py")
        subprocess.run([sys.executable, maker, str(inputs / "project"), "30"], check=True)


def exchange(inputs):
    """Processes that exchange messages."""
    source = str(SOURCES / "sources" / "exchange.c")
    subprocess.run(["mpicc", "-O1", "-o", str(inputs / "exchange"), source], check=True)


def leaks(inputs):
    """A program that uses its memory correctly, or reads past a block."""
    source = str(SOURCES / "sources" / "leaks.c")
    subprocess.run(["cc", "-O1", "-g", "-o", str(inputs / "leaks"), source], check=True)


LANGUAGES = [
    Row(
        name="polars",
        command="{python} {sources}/sources/frames.py",
        pip=("polars",),
        budget=120 * MIB,
        limit=60,
    ),
    Row(
        name="php-extensions",
        command="php {sources}/sources/extensions.php",
        needs=("php",),
        apt=tuple(
            "php-cli php-mbstring php-xml php-gd php-intl php-sqlite3 php-gmp php-bz2".split()
        ),
        budget=40 * MIB,
        limit=60,
    ),
    java("g1", "-XX:+UseG1GC"),
    java("parallel", "-XX:+UseParallelGC"),
    java("serial", "-XX:+UseSerialGC"),
    java("zgc", "-XX:+UseZGC"),
    Row(
        name="node-wasm",
        command="node {sources}/sources/wasm.js",
        needs=("node",),
        apt=("nodejs",),
        budget=48 * MIB,
    ),
    Row(
        name="make-j",
        command=(
            "cp -r {inputs}/project . && make -s -j4 -C project && ./project/program"
            " && cat project/*.o | sha256sum"
        ),
        needs=("make", "cc"),
        apt=("make", "gcc"),
        prepare=project,
        budget=12 * MIB,
        limit=120,
    ),
    Row(
        name="openmpi",
        # Open MPI recovers from failed transfers by other transfers; errors go to standard error.
        command="mpirun --allow-run-as-root --oversubscribe -n 2 {inputs}/exchange 2>&1",
        needs=("mpicc", "mpirun.openmpi"),
        apt=("libopenmpi-dev", "openmpi-bin"),
        prepare=exchange,
        budget=24 * MIB,
        limit=60,
    ),
    Row(
        name="valgrind",
        command=(
            "valgrind -q --error-exitcode=9 --leak-check=full {inputs}/leaks"
            " && ! valgrind -q --error-exitcode=9 {inputs}/leaks wrong"
        ),
        needs=("valgrind", "cc"),
        apt=("valgrind", "gcc"),
        prepare=leaks,
        budget=32 * MIB,
        limit=60,
    ),
]
