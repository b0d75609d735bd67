"""Python package of the book: data, models, losses, training, probes, theory and the claims ledger.

Submodules are imported on first use, so that ``import mvnb`` is enough for ``mvnb.losses.cross_entropy``.
"""

import importlib

__version__ = "0.1.0"
__all__ = ["claims", "data", "figures", "kept_runs", "losses", "models", "papers", "probes", "stats", "training"]


def __getattr__(name: str):
    if name in __all__:
        return importlib.import_module(f"mvnb.{name}")
    raise AttributeError(f"module 'mvnb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
