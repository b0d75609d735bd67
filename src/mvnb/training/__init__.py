"""The training core: a stack of independent runs ("replicas") trained as one program.

Theory papers speak of what happens for most seeds, so the unit of work is R runs at once. Parameters are a dictionary of
tensors with a leading replica axis. An *objective* maps ``(params, *batch)`` to the losses ``(R,)`` and the gradients (a
dictionary of the trained parameters): :func:`stacked` makes one from any module and loss, and a model may bring its own with a
hand-derived gradient (:class:`mvnb.models.PatchObjective`). :func:`fit` does the rest.
"""

from mvnb.training.coordinates import join, random_coordinates, split
from mvnb.training.core import Run, fit, log_steps
from mvnb.training.domains import DomainBatches, DomainObjective, Penalties, SegmentMeans, averaged, loss_valley
from mvnb.training.leave_one_out import Domains, LeftOut, leave_one_out
from mvnb.training.optimizers import GD, Adam, FlowGD
from mvnb.training.pairs import LockStep, Swaps, sample_swaps
from mvnb.training.stacking import (
    Fresh,
    Objective,
    Params,
    generators,
    in_blocks,
    pick_device,
    predict,
    stack,
    stack_modules,
    stacked,
)

__all__ = [
    "GD",
    "Adam",
    "DomainBatches",
    "DomainObjective",
    "Domains",
    "FlowGD",
    "Fresh",
    "LeftOut",
    "LockStep",
    "Objective",
    "Params",
    "Penalties",
    "Run",
    "SegmentMeans",
    "Swaps",
    "averaged",
    "fit",
    "generators",
    "in_blocks",
    "join",
    "leave_one_out",
    "log_steps",
    "loss_valley",
    "pick_device",
    "predict",
    "random_coordinates",
    "sample_swaps",
    "split",
    "stack",
    "stack_modules",
    "stacked",
]
