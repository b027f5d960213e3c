#!/usr/bin/env python3
"""Each way to install Highwater, into a clean Debian without a network, where sort and Python then
run in less memory than they need. `make test-packages` calls it:

    packages.py PACKAGES [--suite NAME]

PACKAGES is the directory with the package and the tarball. Needs root, mmdebstrap, a Debian mirror
for the clean system, and PyPI for what the Python package is built with. Commands are those of
docs/install.md; those of the pages for Rust and Python run, too, as they are.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
INSIDE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LC_ALL": "C"}
"""The environment in the clean system."""

USE = """
highwater doctor
seq 1000000 | sort -R --random-source=/bin/bash > numbers
sort -n numbers > expected
highwater run --memory 32M --swap dir:/var/tmp:1G --report report.json -- \
    sort -n --parallel=1 -S 512M numbers > sorted
cmp expected sorted
highwater run --memory 64M --swap zram:256M -- \
    python3 -c 'x = [i * 7 for i in range(3 << 20)]; x.sort(); print(sum(x))' > sum
test "$(cat sum)" = 34634605264896
"""


def run(command, **options):
    print("+", command if isinstance(command, str) else " ".join(map(str, command)), flush=True)
    return subprocess.run(command, check=True, **options)


def documented(command):
    """A command, which docs/install.md has on a line of its own."""
    page = (ROOT / "docs/install.md").read_text()
    assert command in page.splitlines(), f"docs/install.md lacks: {command}"
    return command


def on_host(script, home):
    """Runs a script in the repository, as a user with this home would."""
    own = Path.home()
    tools = {"CARGO_HOME": own / ".cargo", "RUSTUP_HOME": own / ".rustup"}
    environment = {name: os.environ.get(name, str(path)) for name, path in tools.items()}
    environment = os.environ | environment | {"HOME": str(home)}
    environment.pop("CARGO_TARGET_DIR", None)
    run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, env=environment)


class Clean:
    """A copy of the clean system."""

    def __init__(self, base, place, name):
        self.root = place / name
        run(["cp", "-a", base, self.root])

    def run(self, script):
        """Runs a script inside: its processes, its mounts, no network."""
        enter = """mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" &&
            cd "$0" && exec chroot . sh -euc "cd /tmp; $1" """
        command = ["unshare", "--mount", "--pid", "--net", "--fork", "sh", "-c", enter]
        run([*command, self.root, script], env=INSIDE)

    def use(self, bin_dir):
        """Highwater from a directory runs programs, and pages left memory meanwhile."""
        self.run(f"PATH={bin_dir}:$PATH" + USE)
        written = json.loads((self.root / "tmp/report.json").read_text())["vmstat"]["pswpout"]
        assert written > 0, "nothing was swapped out"
        for name in ["highwater.1", "highwater-run.1"]:
            found = [path for path in self.root.rglob(f"{name}*") if path.stat().st_size > 200]
            assert found, f"no man page {name}"


def clean_system(suite, place):
    """A minimal Debian with Python and NumPy."""
    base = place / "base"
    packages = "--include=python3,python3-numpy,python3-pip"
    run(["mmdebstrap", "--quiet", "--variant=minbase", packages, suite, base])
    return base


def debian_package(clean, packages):
    (package,) = packages.glob("highwater_*.deb")
    shutil.copy(package, clean.root / "tmp")
    clean.run(f"dpkg --install {package.name}")
    clean.use("/usr/bin")
    clean.run("dpkg --purge highwater; test ! -e /usr/bin/highwater; test ! -e /usr/lib/highwater")


def tarball(clean, packages):
    (archive,) = packages.glob("highwater-*.tar.gz")
    run(["tar", "--extract", "--file", archive, "--directory", clean.root / "opt"])
    clean.use("/opt/" + archive.name.removesuffix(".tar.gz") + "/bin")


def cargo_install(clean):
    home = clean.root / "opt/user"
    home.mkdir()
    commands = [
        'cargo install --locked --path front/cli --root "$HOME/.local"',
        "cargo build --release --package highwater-preload",
        'install -D -t "$HOME/.local/lib/highwater" target/release/libhighwater_preload.so',
        '"$HOME/.local/bin/highwater" manual "$HOME/.local/share"',
    ]
    on_host("\n".join(map(documented, commands)), home)
    clean.use("/opt/user/.local/bin")


def wheel(clean):
    command = documented('pip wheel --no-deps --wheel-dir "$HOME" ./front/python')
    on_host(command, clean.root / "tmp")
    clean.run("pip install --no-index --break-system-packages highwater-*.whl")
    program = "\n".join(blocks("start-python.md", "python"))
    (clean.root / "tmp/start.py").write_text(program)
    clean.run("python3 start.py")


def blocks(page, language):
    """The blocks of code in a page of docs."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def page(name, home):
    home.mkdir()
    on_host("\n".join(blocks(name, "sh")), home)


def default_suite():
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    return system.get("VERSION_CODENAME", "stable") if system.get("ID") == "debian" else "stable"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("packages", type=Path)
    parser.add_argument("--suite", default=default_suite())
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        sys.exit("packages.py: run it as root, and install mmdebstrap first")
    with tempfile.TemporaryDirectory(dir=options.packages) as directory:
        place = Path(directory)
        base = clean_system(options.suite, place)
        debian_package(Clean(base, place, "deb"), options.packages)
        tarball(Clean(base, place, "tarball"), options.packages)
        cargo_install(Clean(base, place, "cargo"))
        wheel(Clean(base, place, "wheel"))
        page("start-rust.md", place / "rust")
        page("start-python.md", place / "python")
    print("all ways work")


if __name__ == "__main__":
    main()
