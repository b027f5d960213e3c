"""Memories of 16 MiB, with faults served by handlers or by the faulting thread."""

import highwater
import pytest

MIB = 1 << 20


@pytest.fixture(params=["handlers", "in-thread"])
def memory(request):
    highwater.configure(memory="16M", swap="ram:96M", faults=request.param)
    return request.param
