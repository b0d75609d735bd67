"""What ``python -m mvnb.papers`` compiles ahead of time is what the objectives call."""

import importlib
import os
import shutil
import subprocess
import sys
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
    if not name.endswith("_soft_threshold_kernels"):  # which draw in one precision only
        assert all(len(f.signatures) >= 2 for f in called)


def test_kernels_compile_without_a_cache_where_neither_package_nor_home_can_be_written_to(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "mvnb", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [path for path in (tmp_path / "mvnb").rglob("*") if path.is_dir()]:
        (folder / "__pycache__").touch()  # a file, so that nobody, not even root, can write into a folder of this name
    code = """if True:
        import torch
        from mvnb.models import PatchObjective
        from mvnb.models import _patch_kernels as kernels

        labels = torch.zeros(1, 2, dtype=torch.long)
        PatchObjective(3, 0.1)({"weight": torch.ones(1, 2, 2, 3)}, torch.ones(1, 2, 2, 3), labels, torch.ones(1, 2))
        print(kernels.__file__, type(kernels.plain._cache).__name__)
    """
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    environment = kept | {"HOME": os.devnull, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and done.stdout.startswith(str(tmp_path)) and "NullCache" in done.stdout, done.stderr
