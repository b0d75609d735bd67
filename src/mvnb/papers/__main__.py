"""Ahead-of-time compilation of all Numba kernels with ``python -m mvnb.papers``, which saves time in the first runs.

Numba stores compiled code beside the source. It compiles a kernel for the types of its arguments, so each objective is called
with small tensors of the types that are used in chapters.
"""

from functools import partial

import torch

from mvnb import training
from mvnb.models import PatchObjective
from mvnb.papers.local_signal_adaptivity.training import SurvivorObjective, step_keys


def compile_kernels() -> None:
    """Compile all kernels by calling each objective with the types of arguments that are used in chapters."""
    labels = torch.zeros(1, 2, dtype=torch.long)
    for dtype in (torch.float32, torch.float64):
        some = partial(torch.ones, 1, dtype=dtype)  # for one replica
        patches = PatchObjective(3, 0.1, dtype)
        for lam in (None, 0.5):
            params, batch = {"weight": some(2, 2, 3)}, (some(2, 2, 3), labels, some(2), lam)
            patches(params, *batch)
            training.fit(patches, params, batch, steps=1, optimizer=training.SGD())
    SurvivorObjective(4, 1.0, 2)({"w": some(3), "b": some()}, *step_keys(0, 1)(0))


if __name__ == "__main__":
    compile_kernels()
