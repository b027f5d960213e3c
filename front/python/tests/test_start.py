"""The package has a version, and the program of docs/start-python.md runs."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import highwater

PAGE = Path(__file__).resolve().parents[3] / "docs/start-python.md"


def test_the_version_is_that_of_the_package():
    assert highwater.__version__ == importlib.metadata.version("highwater")


def test_the_program_of_the_first_page():
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    command = [sys.executable, "-c", found[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3, done.stdout
