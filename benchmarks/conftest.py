"""Limits on the machine that the benchmarks may use, and its description in their results.

``MVNB_BENCH_CORES`` (default 1) is the number of cores, ``MVNB_BENCH_DEVICE=cuda`` moves the PyTorch contenders to a GPU.
"""

import os

CORES = int(os.environ.get("MVNB_BENCH_CORES", "1"))
# Before torch and jax are imported, since they size their thread pools on import.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from importlib import metadata  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402


def _device() -> str:
    wanted = os.environ.get("MVNB_BENCH_DEVICE", "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("MVNB_BENCH_DEVICE=cuda needs a GPU, but PyTorch found none")
    return wanted


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@pytest.fixture(scope="session")
def cores() -> int:
    """Return the number of cores that this run may use."""
    available = len(os.sched_getaffinity(0))
    if available < CORES:
        pytest.fail(f"MVNB_BENCH_CORES={CORES} needs {CORES} cores, got {available}")
    return CORES


@pytest.fixture(scope="session")
def device() -> str:
    """Return the device of the PyTorch contenders."""
    return _device()


def pytest_benchmark_update_machine_info(config, machine_info):
    """Remove the host name from the machine information, and add what the report needs."""
    machine_info.pop("node", None)
    device = _device()
    machine_info["setting"] = "cuda" if device == "cuda" else str(CORES)
    machine_info["device"] = torch.cuda.get_device_name() if device == "cuda" else None
    machine_info["versions"] = {name: _version(name) for name in ("torch", "numba", "numpy", "jax")}
