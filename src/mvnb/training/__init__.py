"""The training core: a stack of independent runs ("replicas") trained as one program.

Theory papers speak of what happens for most seeds, so the unit of work is R runs at once. Parameters are a dictionary of
tensors with a leading replica axis. An *objective* maps ``(params, *batch)`` to the losses ``(R,)`` and the gradients (a
dictionary of the trained parameters): :func:`stacked` makes one from any module and loss, and a model may bring its own with a
hand-derived gradient (:class:`mvnb.models.PatchObjective`). :func:`fit` does the rest.
"""

from mvnb.training.core import Run, fit, log_steps
from mvnb.training.optimizers import GD, Adam, FlowGD
from mvnb.training.stacking import (
    Fresh,
    Objective,
    Params,
    fold_seed,
    generators,
    in_blocks,
    pick_device,
    pick_own,
    predict,
    stack,
    stack_modules,
    stacked,
    stream,
    to_device,
)

__all__ = [
    "GD",
    "Adam",
    "FlowGD",
    "Fresh",
    "Objective",
    "Params",
    "Run",
    "fit",
    "fold_seed",
    "generators",
    "in_blocks",
    "log_steps",
    "pick_device",
    "pick_own",
    "predict",
    "stack",
    "stack_modules",
    "stacked",
    "stream",
    "to_device",
]
