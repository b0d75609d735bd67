"""Training of a stack of independent runs ("replicas") as one program.

Theory papers make statements about most random seeds, so R runs with different seeds are trained at once. Parameters are a
dictionary of tensors with a leading replica axis. An *objective* maps ``(params, *batch)`` to the losses ``(R,)`` and a
dictionary of the gradients of the trained parameters. :class:`ModuleObjective` is that of any module and loss; some models have
one with hand-derived gradients, such as :class:`mvnb.models.PatchObjective`. :func:`fit` trains the stack.
"""

from mvnb._renamed import old_names
from mvnb.training.core import Run, fit, log_steps
from mvnb.training.loop import cosine, minimise, percent_fallen
from mvnb.training.optimizers import SGD, Adam, AdamW, FlowGD
from mvnb.training.stacking import (
    Fresh,
    ModuleObjective,
    Objective,
    Params,
    fold_seed,
    generators,
    in_blocks,
    pick_device,
    pick_own,
    predict,
    stack,
    stream,
    to_device,
)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "FlowGD",
    "Fresh",
    "ModuleObjective",
    "Objective",
    "Params",
    "Run",
    "cosine",
    "fit",
    "fold_seed",
    "generators",
    "in_blocks",
    "log_steps",
    "minimise",
    "percent_fallen",
    "pick_device",
    "pick_own",
    "predict",
    "stack",
    "stream",
    "to_device",
]

__getattr__ = old_names(__name__, GD="SGD", stack_modules="stack", stacked="ModuleObjective")
