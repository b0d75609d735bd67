"""The protocol of DomainBed for a stack: train on all domains but one, choose by validation, test on the one left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mvnb.papers.nuclear_norm.training import DomainBatches, DomainObjective, Penalties, SegmentMeans, averaged, loss_valley
from mvnb.training.core import fit
from mvnb.training.optimizers import Adam
from mvnb.training.stacking import Params, predict, stack_modules


class Domains(NamedTuple):
    """Points ``x`` ``(N, inputs)``, ``y`` ``(N,)`` and the indices of B runs' points.

    ``train`` ``(B, E, m)``, ``valid`` ``(B, v)`` of the training domains, ``test`` ``(B, t)`` of the domain left out.
    """

    x: Tensor
    y: Tensor
    train: Tensor
    valid: Tensor
    test: Tensor


class LeftOut(NamedTuple):
    """What was measured, each ``(settings, B)``.

    Accuracy in the domain left out: ``best`` at the checkpoint of the best validation accuracy (the first of them), ``last``,
    and ``averaged`` of SWAD's weights. ``valid`` is the last validation accuracy, ``train`` the last accuracy on as many points
    that are trained on, ``risk`` their mean cross-entropy then, and ``earlier`` after four fifths of the steps; ``head`` is the
    Frobenius norm of the last layer, and ``features`` ``(settings, B, t, k)`` are the last features of the domain left out.
    """

    best: Tensor
    last: Tensor
    averaged: Tensor
    valid: Tensor
    train: Tensor
    risk: Tensor
    earlier: Tensor
    head: Tensor
    features: Tensor


def leave_one_out(
    settings: Sequence[dict[str, float]],
    domains: Domains,
    nets: Sequence[nn.Sequential],
    generators: Sequence[torch.Generator],
    *,
    steps: int,
    batch: int,
    step_size: float,
    checkpoints: int,
) -> LeftOut:
    """Train every setting (of :class:`Penalties`) on every run, all as one stack with Adam.

    ``nets`` and ``generators`` have one of :class:`mvnb.models.MLP` and one source of batches a run; settings of a run share
    both. ``batch`` points a domain and step. Penalties that warm up do so for a tenth of the steps. ``ValueError`` when there
    are fewer steps than checkpoints.
    """
    if steps < checkpoints:
        raise ValueError(f"steps must be at least the {checkpoints} checkpoints, got {steps}")
    copies, every, net = len(settings), steps // checkpoints, nets[0]
    objective, params, batches = _stack(settings, domains, nets, generators, steps, batch)
    optimizer = SegmentMeans(Adam(step_size), every, checkpoints)
    fitted = domains.train[..., : domains.valid.shape[1] // domains.train.shape[1]].flatten(1)
    points = (fitted, domains.valid, domains.test)
    train, valid, test = ((domains.x[i].repeat(copies, 1, 1), domains.y[i].repeat(copies, 1)) for i in points)

    def outputs(p: Params, part: nn.Module, x: Tensor) -> Tensor:
        return predict(part, {k: p[k] for k, _ in part.named_parameters()}, x)

    def judged(p: Params, points: tuple[Tensor, Tensor]) -> Tensor:
        logits = outputs(p, net, points[0])
        risk = -logits.log_softmax(-1).gather(-1, points[1][..., None]).mean((1, 2))
        return torch.stack([_accuracy(logits, points[1]), risk.double()], 1)

    run = fit(
        objective,
        params,
        batches,
        steps=steps,
        optimizer=optimizer,
        probes={
            "valid": lambda p: judged(p, valid),
            "test": lambda p: judged(p, test)[:, 0],
            "train": lambda p: judged(p, train),
        },
        log_at=[every * (i + 1) for i in range(checkpoints)],
    )
    seen, risk, there = run.log["valid"][..., 0], run.log["valid"][..., 1], run.log["test"]  # (checkpoint, replica)
    mean = averaged(optimizer.means(run), [loss_valley(one) for one in risk.T])
    head = [k for k in run.params if k.endswith(".weight")][-1]
    measured = (
        there.gather(0, seen.argmax(0)[None])[0],
        there[-1],
        judged(mean, test)[:, 0],
        seen[-1],
        run.log["train"][-1, :, 0],
        run.log["train"][-1, :, 1],
        run.log["train"][4 * checkpoints // 5 - 1, :, 1],
        run.params[head].flatten(1).norm(dim=1),
        outputs(run.params, nn.Sequential(*list(net)[:-1]), test[0]),
    )
    return LeftOut(*(v.cpu().double().unflatten(0, (copies, len(nets))) for v in measured))


def first_losses(
    settings: Sequence[dict[str, float]],
    domains: Domains,
    nets: Sequence[nn.Sequential],
    generators: Sequence[torch.Generator],
    *,
    steps: int,
    batch: int,
    step_size: float,
    stop: int,
) -> Tensor:
    """The losses ``(stop, settings * B)`` of the first steps of what :func:`leave_one_out` would train."""
    objective, params, batches = _stack(settings, domains, nets, generators, steps, batch)
    return fit(objective, params, batches, steps=stop, optimizer=Adam(step_size), log_at=range(stop)).log["loss"]


def _stack(settings, domains, nets, generators, steps, batch):
    """The objective, the parameters and the batches of all settings on all runs."""
    copies = len(settings)
    params = {k: v.repeat(copies, *[1] * (v.dim() - 1)).to(domains.x.device) for k, v in stack_modules(nets).items()}
    params["q"] = domains.x.new_full((copies * len(nets), domains.train.shape[1]), 1 / domains.train.shape[1])
    penalties = Penalties.of([one for one in settings for _ in nets], domains.x.device)
    batches = DomainBatches(domains.x, domains.y, domains.train, batch, copies, generators)
    return DomainObjective(penalties, warmup=steps // 10, anneal=steps // 10), params, batches


def _accuracy(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.argmax(-1) == y).double().mean(-1)
