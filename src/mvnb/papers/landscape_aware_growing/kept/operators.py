"""Twelve ways to grow a network by two layers: validation losses after growing, at a constant and at a falling rate."""

import json

import numpy as np

from mvnb import training as core
from mvnb.papers.landscape_aware_growing import data, model, training


def setup_of(device, text, **sizes):
    """Return the set-up, and the operators."""
    n_layers, new = sizes.pop("n_layers"), sizes.pop("new_layers")
    operators = model.search_space(new, range(n_layers - new + 1), [b for b in range(1, new + 1) if new % b == 0])
    return training.Setup(data.load_text(text), device=device, **sizes), n_layers, operators


def run(seed, device, scratch, *, text, sizes, lr, steps, looks, arms) -> dict:
    """Return the losses by arm, look and operator; finished parts are saved in ``scratch``.

    ``small`` is the loss before growing, and ``again`` has by arm the losses after the last look on other validation windows.
    """
    setup, n_layers, operators = setup_of(device, text, **sizes)
    path = scratch / "small.pt"
    if not path.exists():
        training.pretrain(setup, n_layers, [seed], steps, training.falling(lr, 0, 1, 1.0)).save(path)
    small = core.Run.load(path, device)
    values = {"operators": [str(one) for one in operators], "small": training.validation(setup, [seed])(small.params).item()}
    for arm, last in arms.items():
        path = scratch / f"{arm}.json"
        if not path.exists():
            rate = training.falling(lr, steps, looks[-1], last)
            losses, params = training.race(setup, small, operators, [seed], rate, looks)
            again = training.validation(setup, [seed + 500_000])(params).tolist()
            path.write_text(json.dumps({"losses": np.round(losses[:, 0], 6).tolist(), "again": again}))
        values[arm] = json.loads(path.read_text())
    return values


def beginning(seed, device, *, text, sizes, lr, **_) -> list[float]:
    """Return the losses of 25 steps before growing and the mean validation losses of 25 steps after it."""
    setup, n_layers, operators = setup_of(device, text, **sizes | {"n_valid": 16})
    rate = training.falling(lr, 0, 1, 1.0)
    small = training.pretrain(setup, n_layers, [seed], 25, rate, log_at=range(25))
    losses, _ = training.race(setup, small, operators[::5], [seed], rate, range(1, 26))
    return [*small.log["loss"][:, 0].tolist(), *losses.mean((1, 2)).tolist()]
