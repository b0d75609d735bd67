"""Measures of chapter 07, which its claims judge.

Losses of races have shape ``(look, run, operator)``; results hold one number per run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mvnb.models import initial_parameters, residual_stream
from mvnb.models.transformer import normalise
from mvnb.papers.landscape_aware_growing import theory
from mvnb.papers.landscape_aware_growing.model import search_space

# --- Races ---


def seen(losses: np.ndarray, looks: Sequence[int], step: float) -> np.ndarray:
    """Return the losses ``(run, operator)`` by which LAG@k chooses: means of the looks in the last fifth before ``step``."""
    looks = np.asarray(looks)
    return losses[(0.8 * step <= looks) & (looks <= step)].mean(0)


def end(losses: np.ndarray, looks: Sequence[int]) -> np.ndarray:
    """Return the losses ``(run, operator)`` at the end: means of the looks in the last tenth of the steps."""
    return losses[np.asarray(looks) >= 0.9 * looks[-1]].mean(0)


def foresight(losses: np.ndarray, looks: Sequence[int], step: float, final: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return how well losses at ``step`` foresee the final ones: correlations, regret, and what LAG chooses.

    ``final`` has shape ``(run, operator)`` and is :func:`end` by default.
    """
    pairs = list(zip(seen(losses, looks, step), end(losses, looks) if final is None else final))
    return {
        "spearman": np.array([theory.self_correlation(pair)[0, 1] for pair in pairs]),
        "pearson": np.array([np.corrcoef(pair)[0, 1] for pair in pairs]),
        "regret": np.array([theory.relative_regret(now[None], final)[0] for now, final in pairs]),
        "chosen": np.array([now.argmin() for now, _ in pairs]),
    }


def regrets(final: np.ndarray) -> np.ndarray:
    """Return the relative regret of every operator, of final losses ``(run, operator)``."""
    return (final - final.min(1, keepdims=True)) / np.ptp(final, axis=1, keepdims=True)


def regret_of(losses: np.ndarray, looks: Sequence[int], operator: int) -> np.ndarray:
    """Return the relative regret of a fixed operator."""
    return regrets(end(losses, looks))[:, operator]


def ranking(losses: np.ndarray, looks: Sequence[int]) -> dict[str, np.ndarray]:
    """Return :func:`foresight` at every look, ``(run, look)``."""
    found = [foresight(losses, looks, look) for look in looks]
    return {key: np.stack([one[key] for one in found], 1) for key in found[0]}


def gap(losses: np.ndarray, random: np.ndarray) -> np.ndarray:
    """Return the mean loss of copies minus that of random layers, of losses ``(run, operator)``."""
    return losses[:, ~random].mean(1) - losses[:, random].mean(1)


# --- The live run ---


def first_look(change: np.ndarray, random: np.ndarray) -> dict[str, np.ndarray]:
    """Return, of changes by growing ``(run, operator)``, the largest by a random operator, and how copies lie beside it.

    ``above`` is the lowest copy minus the highest random operator, ``far`` the logarithm to base 10 of the ratio of sizes.
    """
    most = np.abs(change[:, random]).max(1)
    far = np.log10(np.abs(change[:, ~random]).mean(1) / most)
    return {"random": most, "above": change[:, ~random].min(1) - change[:, random].max(1), "far": far}


def race(
    losses: np.ndarray, looks: Sequence[int], small: np.ndarray, random: np.ndarray, lag: int, final: np.ndarray
) -> dict[str, dict | np.ndarray]:
    """Return what the claims on the live run judge.

    ``small`` are the losses before growing ``(run,)``, ``final`` those at the end, on other windows than ``losses``.
    """
    change = losses[0] - small[:, None]
    look, (start, later) = first_look(change, random), (foresight(losses, looks, step, final) for step in (0, lag))
    recalled = [theory.recall(now[None], one, 3)[0] for now, one in zip(seen(losses, looks, lag), final)]
    return {
        "random-keeps-the-loss": look["random"],
        "copies-raise-the-loss": {"above": look["above"], "far": look["far"]},
        "initial-gap-is-forgotten": 100 * gap(final, random) / gap(change, random),
        "initial-correlation-is-negative": start["spearman"],
        "later-loss-ranks": later["spearman"],
        "later-loss-ranks-better": later["spearman"] - start["spearman"],
        "lag-has-little-regret": later["regret"],
        "lag-beats-preserving": later["regret"] - start["regret"] / 2,
        "best-is-recalled": np.array(recalled, dtype=float),
    }


# --- The kept run ---

EARLY = 0.05
"""The share of the steps after which the claims on the kept run look."""


def kept_losses(record: Mapping, arm: str) -> np.ndarray:
    """Return the losses ``(look, run, operator)`` of an arm of the kept run."""
    return np.array([run["values"][arm]["losses"] for run in record["runs"]]).swapaxes(0, 1)


def by_share(record: Mapping, arm: str, shares: Sequence[float] = (0, 0.002, 0.02, EARLY, 0.2)) -> dict[float, dict]:
    """Return :func:`foresight` of an arm after shares of the steps."""
    looks = record["parameters"]["looks"]
    return {share: foresight(kept_losses(record, arm), looks, share * looks[-1]) for share in shares}


def noise(record: Mapping, arm: str) -> np.ndarray:
    """Return the error of a final difference of operators that comes from the choice of validation windows, in nats.

    It is the standard deviation over operators of the difference between two sets of windows, over the root of 2.
    """
    apart = np.array([np.subtract(run["values"][arm]["losses"][-1], run["values"][arm]["again"]) for run in record["runs"]])
    return apart.std(1, ddof=1) / np.sqrt(2)


def operators(record: Mapping) -> dict[str, dict | np.ndarray]:
    """Return what the claims on the kept run judge."""
    looks, names = record["parameters"]["looks"], record["runs"][0]["values"]["operators"]
    constant, falling = (kept_losses(record, arm) for arm in ("constant rate", "falling rate"))
    first, early, later = (foresight(constant, looks, share * looks[-1]) for share in (0, EARLY, 0.2))
    start, soon = (foresight(falling, looks, share * looks[-1]) for share in (0, EARLY))
    last, top = names.index("2/2 copy"), names.index("2/2 random")
    copies = np.array(["copy" in name for name in names])
    first_both, early_both, start_both = ({k: one[k] for k in ("spearman", "pearson")} for one in (first, early, start))
    return {
        "operators-early-ranks-better": early["spearman"] - first["spearman"],
        "operators-initial-correlation": first_both,
        "operators-early-correlation": early_both,
        "operators-later-correlation": later["spearman"],
        "operators-regret": {"lag": early["regret"], "preserving": first["regret"]},
        "operators-regret-falls": early["regret"] - first["regret"],
        "operators-last-block": early["regret"] - regret_of(constant, looks, last),
        "operators-best-found": early["regret"] == 0,
        "operators-preserving-takes-random-top": first["chosen"] == top,
        "operators-copies-end-lower": {"first": gap(constant[0], ~copies), "end": gap(end(constant, looks), ~copies)},
        "operators-falling-rate": soon["spearman"] - start["spearman"],
        "operators-falling-initial": start_both,
        "operators-falling-regret": {"lag": soon["regret"], "preserving": start["regret"]},
    }


# --- Random blocks, and counts of operators ---

TAUS = (0.01, 0.02, 0.04)


def random_block(g: torch.Generator, draws: int = 4000) -> tuple[float, float, float]:
    """Put random MLP blocks on top of a random network, and compare with the theorem on their covariances.

    Return the relative distance of covariances and of the standard deviation of the change in loss, the largest of three tau,
    and the power of tau in the even part of the change.
    """
    one = initial_parameters(11, 6, 16, 2, g, std=0.4, dtype=torch.float64)
    one = {name: value[None] for name, value in one.items()}
    sample, answer = torch.randint(11, (1, 3, 6), generator=g), torch.randint(11, (18,), generator=g)

    def loss(stream: Tensor) -> Tensor:
        logits = normalise(stream) @ one["head"][0]
        picked = logits.gather(-1, answer.expand(stream.shape[:-1])[..., None])[..., 0]
        return (logits.logsumexp(-1) - picked).mean(-1)

    stream = residual_stream(one, sample, n_heads=2)[0].requires_grad_()
    (slope,) = torch.autograd.grad(loss(stream), stream)
    stream = stream.detach()
    z = 4 * torch.nn.functional.normalize(normalise(stream), dim=1)  # squared length D = 16, no epsilon
    kappa = torch.tensor(theory.arc_cosine((z @ z.T / 16).numpy()))
    w1 = torch.randn(draws, 16, 64, generator=g, dtype=torch.float64)
    w2 = torch.randn(draws, 64, 16, generator=g, dtype=torch.float64)
    unit = (z @ w1).relu() @ w2  # (draw, token, dim); with tau, tau^2 times that
    second = torch.einsum("mid,mjd->ij", unit, unit) / draws / 16
    sd = (16 * 64 * (kappa * (slope @ slope.T)).sum()).sqrt()
    off, even = [], []
    for tau in TAUS:
        up, down = loss(stream + tau**2 * unit), loss(stream - tau**2 * unit)
        off.append(abs(((up - down) / 2).std() / (tau**2 * sd) - 1).item())
        even.append(((up + down) / 2 - loss(stream)).mean().item())
    return abs((second / (16 * 64 * kappa)).mean().item() - 1), max(off), np.log2(abs(even[2] / even[0])) / 2


def paper_spaces() -> list[int]:
    """Return the numbers of operators of the paper: for growing from 12 to 16 layers, and in five stages of stacking."""
    growing = search_space(4, range(0, 9, 2), (1, 2, 4))
    places = ([0], range(5), range(9), range(0, 13, 2), range(0, 17, 2))
    return [len(growing), *(len(search_space(4, i, (1, 2, 4), (False,))) for i in places)]


def counts() -> dict[str, dict[str, int]]:
    """Return what the claim on the paper's counts judges."""
    growing, *stages = paper_spaces()
    named = dict(zip(("one", "two", "three", "four", "five"), stages))
    return {"space-sizes": {"growing": growing, **named, "extra": 200 * sum(stages)}}
