"""How pytest runs and compares notebooks: kernels without TCP ports and without the user's configuration, outputs that are the
same on every machine, verdicts."""

import os
import tempfile
from functools import partial

import nbval.kernel
import pytest
from jupyter_client.manager import KernelManager

from mvnb import claims, verdicts
from mvnb.runner.kernel import sockets

VOLATILE = ("text/html", "application/vnd.mvnb.claims+json", "stderr")


def pytest_configure(config):
    """Start nbval's kernels, of which there is one per process, as those of the chapters are started."""
    folder = tempfile.TemporaryDirectory(prefix="mvnb-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    nbval.kernel.KernelManager = partial(KernelManager, **sockets(folder.name))
    os.environ["IPYTHONDIR"] = folder.name
    os.environ.pop("PYTHONSTARTUP", None)


def pytest_collectstart(collector):
    """Leave measured values out of nbval's comparison; a marked cell is compared by its text."""
    if getattr(collector, "skip_compare", None):
        collector.skip_compare += VOLATILE


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A claim whose verdict is the opposite of the committed one fails its cell, whatever else is compared of it."""
    done = yield
    if getattr(item, "test_outputs", None):
        shown, committed = (claims.rows_of({"cells": [{"outputs": outs}]}) for outs in (item.test_outputs, item.cell.outputs))
        turned = verdicts.opposite(shown, committed)
        assert not turned, f"verdicts turned to their opposite: {', '.join(turned)}"
    return done
