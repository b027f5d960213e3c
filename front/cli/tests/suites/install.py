"""Installs requirements of rows: Debian packages, a virtual environment, a Python with tests."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from row import Skip

INSTALL_SECONDS = 900
# Directories of programs that are usually not in PATH.
BESIDE = ("/usr/sbin", "/sbin")


def path():
    """The directories that are searched for programs."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *BESIDE])


def is_there(need):
    """Whether a command or a file exists."""
    return Path(need).exists() if need.startswith("/") else bool(shutil.which(need, path=path()))


def succeeds(command):
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    return done.returncode == 0


def suite_python():
    """A Python with its complete tests, which many installations lack."""
    if "SUITE_PYTHON" in os.environ:
        return os.environ["SUITE_PYTHON"]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [str(path) for path in versions.glob("3.*/bin/python3")]
    found.sort(key=lambda name: [int(n) for n in re.findall(r"\d+", name)], reverse=True)
    code = "import test.libregrtest, test.test_concurrent_futures, test._test_multiprocessing"
    for candidate in [*found, sys.executable, "/usr/bin/python3"]:
        if succeeds([candidate, "-c", code]):
            return candidate
    return sys.executable


class Packages:
    """The installed requirements, and those that failed."""

    def __init__(self, place):
        self.directory = place / "venv"
        self.python = self.directory / "bin" / "python"
        self.suite_python = suite_python()
        self.refused = set()

    def provide(self, row):
        """Raises Skip if a requirement is not available."""
        missing = [need for need in row.needs if not is_there(need)]
        if missing:
            self.install(row)
            missing = [need for need in row.needs if not is_there(need)]
        if missing:
            raise Skip(f"not installed: {' '.join(missing)} (Debian: {' '.join(row.apt)})")
        if "{suite_python}" in row.command:
            self.need_suite(row)
        if "{python}" in row.command:
            self.need_modules(row)

    def install(self, row):
        wanted = tuple(row.apt)
        if not wanted or wanted in self.refused or os.geteuid() != 0:
            return
        environment = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"]
        options = ["-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=600"]
        if not succeeds([*environment, "apt-get", "install", *options, *wanted]):
            self.refused.add(wanted)

    def need_modules(self, row):
        """A virtual environment with the packages that the row imports."""
        if not self.python.exists():
            venv.create(self.directory, with_pip=True)
        names = [requirement.partition("==")[0] for requirement in row.pip]
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check"]
        if not names or succeeds([*pip, "show", *names]):
            return
        if tuple(names) in self.refused or not succeeds([*pip, "install", "-q", *row.pip]):
            self.refused.add(tuple(names))
            raise Skip(f"not installed: {' '.join(names)} (pip)")

    def need_suite(self, row):
        code = "import sys, importlib.util; m = sys.argv[1:]; "
        code += "sys.exit(not all(importlib.util.find_spec(n) for n in m))"
        if not succeeds([self.suite_python, "-c", code, *row.modules]):
            names = " ".join(row.modules)
            raise Skip(f"{self.suite_python} has no {names} ($SUITE_PYTHON names another)")
