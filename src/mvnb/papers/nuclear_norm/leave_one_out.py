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
    and ``averaged`` of SWAD's weights. ``valid`` is the last validation accuracy, ``head`` the Frobenius norm of the last
    layer, and ``features`` ``(settings, B, t, k)`` are the last features of the domain left out.
    """

    best: Tensor
    last: Tensor
    averaged: Tensor
    valid: Tensor
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
    params = {k: v.repeat(copies, *[1] * (v.dim() - 1)).to(domains.x.device) for k, v in stack_modules(nets).items()}
    params["q"] = domains.x.new_full((copies * len(nets), domains.train.shape[1]), 1 / domains.train.shape[1])
    objective = DomainObjective(
        Penalties.of([one for one in settings for _ in nets], domains.x.device), warmup=steps // 10, anneal=steps // 10
    )
    optimizer = SegmentMeans(Adam(step_size), every, checkpoints)
    valid, test = ((domains.x[i].repeat(copies, 1, 1), domains.y[i].repeat(copies, 1)) for i in (domains.valid, domains.test))

    def outputs(p: Params, part: nn.Module, x: Tensor) -> Tensor:
        return predict(part, {k: p[k] for k, _ in part.named_parameters()}, x)

    def on_validation(p: Params) -> Tensor:
        logits = outputs(p, net, valid[0])
        risk = -logits.log_softmax(-1).gather(-1, valid[1][..., None]).mean((1, 2))
        return torch.stack([_accuracy(logits, valid[1]), risk.double()], 1)

    run = fit(
        objective,
        params,
        DomainBatches(domains.x, domains.y, domains.train, batch, copies, generators),
        steps=steps,
        optimizer=optimizer,
        probes={"valid": on_validation, "test": lambda p: _accuracy(outputs(p, net, test[0]), test[1])},
        log_at=[every * (i + 1) for i in range(checkpoints)],
    )
    seen, risk, there = run.log["valid"][..., 0], run.log["valid"][..., 1], run.log["test"]  # (checkpoint, replica)
    mean = averaged(optimizer.means(run), [loss_valley(one) for one in risk.T])
    head = [k for k in run.params if k.endswith(".weight")][-1]
    measured = (
        there.gather(0, seen.argmax(0)[None])[0],
        there[-1],
        _accuracy(outputs(mean, net, test[0]), test[1]),
        seen[-1],
        run.params[head].flatten(1).norm(dim=1),
        outputs(run.params, nn.Sequential(*list(net)[:-1]), test[0]),
    )
    return LeftOut(*(v.cpu().double().unflatten(0, (copies, len(nets))) for v in measured))


def _accuracy(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.argmax(-1) == y).double().mean(-1)
