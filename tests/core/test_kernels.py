"""What ``python -m mvnb.papers`` compiles ahead of time is what the objectives call."""

import importlib
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

import mvnb
from mvnb.papers.__main__ import compile_kernels

PACKAGE = Path(mvnb.__file__).parent
MODULES = sorted(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("_*_kernels.py"))


@pytest.mark.parametrize("name", MODULES)
def test_every_kernel_is_compiled_ahead_of_time(name):
    compile_kernels()
    called = [f for k, f in vars(importlib.import_module(name)).items() if isinstance(f, Dispatcher) and not k.startswith("_")]
    called = [f for f in called if f.targetoptions.get("inline") != "always"]
    assert called and all(f.signatures for f in called)
    if not name.endswith(("_soft_threshold_kernels", "_sampling_kernels")):  # which draw in one precision only
        assert all(len(f.signatures) >= 2 for f in called)
