"""Times the phases of a program, and prints a line of JSON for each."""

import json
import resource
import time


def phase(name, work):
    """Runs `work`, and prints what it took and what it returned, which must be equal each time."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    check = work()
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
    faults = after.ru_majflt - before.ru_majflt
    line = {"phase": name, "seconds": seconds, "check": str(check), "ru_majflt": faults}
    print(json.dumps(line), flush=True)
