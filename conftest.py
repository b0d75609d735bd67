"""How pytest runs and compares notebooks: kernels without TCP ports, and outputs that are the same on every machine."""

from functools import partial

import nbval.kernel
from jupyter_client.manager import KernelManager

from mvnb.runner.kernel import sockets

VOLATILE = ("text/html", "application/vnd.mvnb.claims+json", "stderr")


def pytest_configure():
    """Let nbval's kernels speak as those of the chapters do; it makes one kernel a process."""
    nbval.kernel.KernelManager = partial(KernelManager, **sockets())


def pytest_collectstart(collector):
    """Leave measured values out of nbval's comparison; a marked cell is compared by its text."""
    if getattr(collector, "skip_compare", None):
        collector.skip_compare += VOLATILE
