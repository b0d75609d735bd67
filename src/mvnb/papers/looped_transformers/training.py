"""What is trained: step sizes, values, and keys with queries of loops of attention, linear or softmax, on random prompts."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb import training
from mvnb.gradients import with_gradients
from mvnb.papers.looped_transformers import data, model, theory

Params = dict[str, Tensor]


class Descent(NamedTuple):
    """Gradient descent with steps of 1 / L on prompts, and the literal loop on the first ten.

    ``kappa`` ``(prompt,)``; ``exact`` ``(prompt, T + 1)`` logarithms of squared errors by the formula, and ``iterates`` those
    of the first prompts in float64; ``difference`` is the largest one between the loop and descent, over all T.
    """

    kappa: Tensor
    exact: Tensor
    iterates: Tensor
    difference: float


def descend(x: Tensor, theta: Tensor, loops: int, part: float = 1.0, iterated: int = 100) -> Descent:
    """Run descent with steps of ``part`` / L on prompts ``(prompt, n, d)`` with tasks ``(prompt, d)``."""
    spectrum, share = theory.anatomy(x, theta)
    steps = part / spectrum[:, -1]
    exact = theory.log_error(spectrum, share, torch.arange(loops + 1), step=steps)
    x, theta, eta = x[:iterated].cpu(), theta[:iterated].cpu(), steps[:iterated, None].expand(-1, loops)
    y = (x @ theta[..., None])[..., 0]
    path = theory.descent(x, y, eta)
    solved = torch.linalg.lstsq(x, y[..., None], driver="gels").solution[..., 0]
    z = model.as_prompt(x[:10], y[:10], torch.zeros_like(theta[:10]), 1.0)
    states = model.loop(z, *model.gradient_weights(*x.shape[1:]), eta[:10])
    difference = (-states[:, :, -1, :-1] - path[:, :10]).abs().max().item()
    return Descent(spectrum[:, -1] / spectrum[:, 0], exact, (path - solved).square().sum(-1).log().T, difference)


def squared_error(params: Params, examples: Tensor, theta: Tensor, loops: int, sharpness: float = 0.0) -> Tensor:
    """Return ``|theta_T - theta*|^2`` ``(R, N)`` of R loops on N prompts each; examples ``(R, N, n, d + 1)``.

    ``params``: ``log_step`` ``(R, T)``, or ``(R, 1)`` if all loops have one step; ``query`` and ``value`` as in
    :func:`~mvnb.papers.looped_transformers.model.last_row`, with the axis R in front. Differentiable.
    """
    steps, query = params["log_step"].exp()[:, None].expand(-1, -1, loops), params["query"]
    query = query * query.shape[1] ** 0.5 / query.norm(dim=(1, 2), keepdim=True)  # its size is the sharpness
    found = model.last_row(examples, query[:, None], params["value"][:, None], steps, sharpness)
    return (found - theta).square().sum(-1)


def train(
    start: Params, learned: Sequence[str], x: Tensor, theta: Tensor, *,
    loops: int, sharpness: float = 0.0, steps: int, batch: int, lr: float, log_at: Sequence[int] | None = None,
) -> tuple[Params, dict[str, Tensor]]:  # fmt: skip
    """Train parts of R loops by Adam, its step falling to 0 along a cosine; return all parameters, and what was logged.

    ``x`` ``(R, N, n, d)`` and ``theta`` ``(R, N, d)`` are the prompts, of which a step takes ``batch``, in turn. Besides its
    loss, the mean error ``all`` on all prompts is logged, by default before and after the last fifth of the steps.
    """
    examples = data.labelled(x, theta)
    fixed = {name: value for name, value in start.items() if name not in learned}

    def loss(params, *prompts):
        return squared_error(fixed | params, *prompts, loops, sharpness).mean(1)

    def batches(step):
        first = step * batch % (x.shape[1] - batch + 1)
        return examples[:, first : first + batch], theta[:, first : first + batch]

    adam = training.Adam(lambda step: lr * training.cosine(step, steps), betas=(0.9, 0.99))
    begin, seen = {name: start[name] for name in learned}, {"all": lambda params: loss(params, examples, theta)}
    log_at = (4 * steps // 5, steps) if log_at is None else log_at
    run = training.fit(with_gradients(loss), begin, batches, steps=steps, optimizer=adam, probes=seen, log_at=log_at)
    return fixed | run.params, run.log


def by_hand(d: int, log_step: Tensor) -> Params:
    """Return parameters of R loops with Q = I, P = diag(I, 0) and the logarithms of steps ``(R, T)``."""
    query = torch.eye(d + 1, dtype=log_step.dtype, device=log_step.device).repeat(len(log_step), 1, 1)
    return {"log_step": log_step, "query": query, "value": query[..., :-1].clone()}


def random_steps(loops: int, runs: int, least: float, seed: int) -> Tensor:
    """Return logarithms of steps ``(R, T)``, uniform between ``least`` and 1.5 times as much; equal steps would stay equal."""
    chances = torch.stack([torch.rand(loops, generator=g).double() for g in training.generators(seed, runs)])
    return (least * (1 + chances / 2)).log()


def whitening_loops(x: Tensor, theta: Tensor, scale: Tensor, best: Tensor) -> tuple[dict[str, Params], Tensor]:
    """Return loops by name for tokens ``x`` ``(N, n, d)`` times ``scale`` ``(d,)``, and their examples ``(1, N, n, d + 1)``.

    ``steps``: the best steps for the mean spectrum of these tokens, with the identity as values; ``inverse``: the steps
    ``best`` ``(T,)`` for tokens before scaling, with the inverse covariance.
    """
    coloured = x * scale
    own = theory.anatomy(coloured, theta)[0] / x.shape[1]
    steps = {"steps": theory.best_steps_for(own, len(best)), "inverse": best}
    loops = {name: by_hand(x.shape[2], some[None].log().to(x.device)) for name, some in steps.items()}
    loops["inverse"]["value"][:, :-1] = (1 / scale.square()).diag()
    return loops, data.labelled(coloured, theta)[None]


def loops_needed(kappa: float, kind: str, error: float = 1e-3) -> int:
    """Return the least T with a root mean square prediction error of at most ``error``, for a kind of ``theory.SCHEDULES``.

    The sixteen eigenvalues are geometric between 1 and kappa; the mean is over theta*.
    """
    spectrum = torch.logspace(0, math.log10(kappa), 16).double()

    def enough(loops):
        steps = theory.SCHEDULES[kind](1.0, kappa, loops)
        return theory.prediction_square(theory.residuals(spectrum, steps)[-1]) <= error**2

    high = next(2**k for k in itertools.count() if enough(2**k))
    return high // 2 + 1 + bisect.bisect_left(range(high // 2 + 1, high), True, key=enough)


def limit_squares(spectra: Tensor, ratio: float, horizon: int) -> dict[str, Tensor]:
    """Return squared errors ``(T, prompt)`` for T = 1 to ``horizon`` of kinds of steps for normal tokens, d / n = ``ratio``.

    ``spectra`` ``(prompt, d)`` are those of ``X^T X / n``. Steps are those for the limit's edges.
    """
    low, high = theory.edges(1, ratio)
    found = {"1/L": [], "Chebyshev": [], "best": []}
    for T in range(1, horizon + 1):
        steps = {kind: theory.SCHEDULES[kind](low, high, T) for kind in ("1/L", "Chebyshev")}
        steps["best"] = theory.chebyshev_steps(low, high, T, kind=2)
        for kind, some in steps.items():
            found[kind].append(theory.residuals(spectra, some)[:, -1].square().mean(1))
    memory = theory.momentum_residuals(spectra, 1.0, ratio, horizon).square().mean(2).T[1:]
    return {kind: torch.stack(errors) for kind, errors in found.items()} | {"memory": memory}


def conditioned_arm(
    kappa: float, loops: int, x: Tensor, theta: Tensor, tests: int, *, own_steps: bool, sharpness: float, **setting
) -> tuple[dict[str, float], dict[str, Tensor]]:  # fmt: skip
    """Train Q, P and the steps of a loop on prompts of one condition number; return how its error ends, and what was logged.

    ``train`` and ``test``: mean squared errors on the prompts of training, and on the last ``tests`` prompts; ``fell``:
    percentage by which the former fell over the last fifth of training. Training begins with Q = I and P = diag(I, 0). All
    loops have one step, which starts as that of descent with 1 / L, or with ``own_steps`` each its own, which start as
    Chebyshev's in ascending order.
    """
    steps = theory.chebyshev_steps(1 / kappa, 1, loops).sort().values if own_steps else torch.ones(1).double()
    start = by_hand(x.shape[2], steps[None].float().log().to(x.device))
    used = x[None, :-tests].float(), theta[None, :-tests].float()
    params, log = train(start, list(start), *used, loops=loops, sharpness=sharpness, **setting)
    tested = data.labelled(x[None, -tests:], theta[None, -tests:]), theta[None, -tests:]
    test = squared_error({name: value.double() for name, value in params.items()}, *tested, loops, sharpness).mean().item()
    before, after = log["all"][-2:, 0].tolist()
    return {"train": after, "test": test, "fell": 100 * (1 - after / before)}, log
