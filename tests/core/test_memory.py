"""Memory that training frees stays with the process."""

import os
import subprocess
import sys

import pytest

from mvnb import memory

# Thirty-two tensors of 64 MB, one after the other: how many pages the system had to give, in pages of one of them. They are
# small pages (41: PR_SET_THP_DISABLE), of which there are enough to count.
ASK = """
import ctypes
import resource

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
{first}
import torch

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.ones(16 << 20)
before = pages()
for _ in range(32):
    torch.ones(16 << 20)
print((pages() - before) * resource.getpagesize() / (64 << 20))
"""


def given(first, **environment):
    command = [sys.executable, "-c", ASK.format(first=first)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(not memory.keep_freed(), reason="another C library than glibc, or its memory is limited")
@pytest.mark.parametrize("environment", [{}, {"MALLOC_TRIM_THRESHOLD_": "65536"}], ids=["as usual", "in a worker of Dask"])
def test_tensors_get_the_pages_of_those_before(environment):
    assert given("import mvnb.training", **environment) < 8 < 24 < given("", **environment)


def test_another_c_library_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert memory.keep_freed() is False


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_process_with_a_limit_is_left_as_it_is():
    limited = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30)); import mvnb.training"
    assert given(limited) > 24
