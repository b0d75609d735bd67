"""Linear and softmax attention with trained Q, P and steps: errors by condition number and number of loops."""

import torch

from mvnb import training as core
from mvnb.papers.looped_transformers import data, training


def run(seed, device, scratch, *, dim, n, prompts, tests, kappas, loops, target, batch, arms) -> dict[str, dict]:
    """Return by arm, condition number and number of loops how the error ends; finished loops are saved in ``scratch``."""
    values = {arm: {} for arm in arms}
    for i, kappa in enumerate(kappas):
        drawn = data.conditioned_prompts(n, dim, kappa, prompts + tests, core.stream(seed, i))
        x, theta = (part.to(device) for part in drawn)
        for arm, setting in arms.items():
            ends = values[arm][f"{kappa:g}"] = {}
            for count in loops[arm.split(", ")[1]][i]:
                path = scratch / f"{arm} {kappa:g} {count}.pt"
                if not path.exists():
                    torch.save(training.conditioned_arm(kappa, count, x, theta, tests, batch=batch, **setting)[0], path)
                ends[str(count)] = torch.load(path)
    return values


def beginning(seed, device, *, dim, n, kappas, batch, arms, **_) -> list[float]:
    """Return the losses of the first 50 steps of softmax attention with four loops, each with its own step."""
    x, theta = (part.to(device) for part in data.conditioned_prompts(n, dim, kappas[1], 1025, core.stream(seed, 1)))
    setting = arms["softmax, a step per loop"] | {"steps": 50, "batch": batch, "log_at": range(50)}
    return training.conditioned_arm(kappas[1], 4, x, theta, 1, **setting)[1]["loss"][:, 0].tolist()
