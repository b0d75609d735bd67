"""What ``python -m mvnb.models`` compiles ahead of time is what the objectives call."""

import importlib
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

import mvnb.models
from mvnb.models.__main__ import compile_kernels

MODULES = sorted(path.stem for path in Path(mvnb.models.__file__).parent.glob("_*_kernels.py"))


@pytest.mark.parametrize("name", MODULES)
def test_every_kernel_is_compiled_ahead_of_time(name):
    compile_kernels()
    module = importlib.import_module(f"mvnb.models.{name}")
    called = [f for k, f in vars(module).items() if isinstance(f, Dispatcher) and not k.startswith("_")]
    called = [f for f in called if f.targetoptions.get("inline") != "always"]
    assert called and all(f.signatures for f in called)
    if name != "_soft_threshold_kernels":  # which draws in double precision only
        assert all(len(f.signatures) >= 2 for f in called)
