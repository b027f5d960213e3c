"""Refusals are exceptions; an access that cannot be served ends the process with a line."""

import multiprocessing
import signal
import subprocess
import sys
import textwrap

import highwater
import numpy as np
import pytest

MIB = 1 << 20


def run(program):
    """The exit status of a Python process, the lines that highwater wrote, and all output."""
    program = "import highwater, numpy as np, os, resource, signal\n" + textwrap.dedent(program)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("highwater:")]
    return done.returncode, lines, done.stdout + done.stderr


def test_settings_are_checked():
    for settings, part in [
        ({"memory": "much"}, "'much' is not a size"),
        ({"memory": "1M"}, "give 4 MiB or more"),
        ({"memory": 16 * MIB, "memory_max": "8M"}, "less than memory, 16 MiB"),
        ({"memory": "16M", "swap": "tape:1G"}, "unknown kind"),
        ({"memory": "16M", "swap": "ram:16M", "kswapd": 17}, "neither 1 to 16 nor auto"),
        ({"memory": "16M", "swap": "ram:16M", "faults": "never"}, "'never' is neither"),
    ]:
        with pytest.raises(highwater.SettingError, match=part) as raised:
            highwater.configure(**settings)
        assert isinstance(raised.value, ValueError) and len(str(raised.value).splitlines()) == 1
    with pytest.raises(highwater.DeviceError, match="no such directory"):
        highwater.configure(memory="16M", swap="dir:/nonexistent:1G")


def test_what_does_not_fit_is_refused(memory):
    with pytest.raises(highwater.FullError) as raised:
        highwater.zeros(200 * MIB, "u1")
    assert isinstance(raised.value, MemoryError) and "200 MiB are needed" in str(raised.value)
    with pytest.raises(TypeError, match="arrays of objects"):
        highwater.empty(10, object)
    with pytest.raises(ValueError, match="negative"):
        highwater.zeros((3, -1))
    with pytest.raises(ValueError, match="neither"):
        highwater.zeros(3, order="K")


def test_the_budget_changes(memory):
    highwater.configure(memory="16M", memory_max="40M", swap=["ram:48M", "ram:48M"], faults=memory)
    a = highwater.array(np.arange(8 * MIB))
    for size in ("40M", "8M", 24 * MIB, "5M"):
        budget = highwater.budget(size)
        assert budget == highwater.budget() and highwater.stats()["nr_frames"] * 4096 == budget
        assert a.sum() == 8 * MIB * (8 * MIB - 1) // 2
    with pytest.raises(highwater.SettingError, match="memory_max"):
        highwater.budget("41M")


def test_a_forked_child_is_refused(memory):
    code, lines, output = run(f"""
        highwater.configure(memory="16M", swap="ram:64M", faults="{memory}")
        a = highwater.full(1 << 20, 3)
        child = os.fork()
        if child == 0:
            for call in (highwater.stats, highwater.budget, lambda: highwater.zeros(9)):
                try:
                    call()
                except highwater.ForkedError as error:
                    assert isinstance(error, RuntimeError)
                else:
                    os._exit(1)
            highwater.configure(memory="8M", swap="ram:64M", faults="{memory}")
            os._exit(0 if highwater.full(4 << 20, 1).sum() == 4 << 20 else 2)
        assert os.waitpid(child, 0)[1] == 0
        child = os.fork()
        if child == 0:
            a[5] = 1
        assert os.waitpid(child, 0)[1] == signal.SIGSEGV
        assert a.sum() == 3 << 20
        """)
    assert code == 0 and len(lines) == 1 and "forked child" in lines[0], output


def doubled(array):
    return array * 2


def test_spawned_processes_get_copies(memory):
    a = highwater.array(np.arange(100_000))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert np.array_equal(pool.apply(doubled, (a,)), np.arange(100_000) * 2)


FAILING = textwrap.dedent("""
    import tempfile
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with tempfile.TemporaryDirectory() as directory:
        highwater.configure(memory="8M", swap=f"dir:{directory}:64M", faults="FAULTS")
    a = highwater.zeros(6 << 20)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, resource.RLIM_INFINITY))
    """)


def test_a_failing_device_ends_plain_accesses_with_a_line(memory):
    code, lines, output = run(FAILING.replace("FAULTS", memory) + "a.fill(1)\n")
    assert code == -signal.SIGABRT, output
    reason = "memory is full, and writes to disk fail: the process is ended"
    assert len(lines) == 1 and reason in lines[0], output


def test_a_failing_device_raises_in_checked_calls(memory):
    code, lines, output = run(
        FAILING.replace("FAULTS", memory)
        + textwrap.dedent("""
        del a
        try:
            highwater.full(6 << 20, 1.0)
        except highwater.OutOfMemoryError as error:
            assert isinstance(error, MemoryError)
        else:
            raise AssertionError("nowhere to write")
        b = highwater.full(1 << 18, 2.0)
        assert b.sum() == 2 << 18
        """)
    )
    assert code == 0 and not lines, output
