"""Closed forms for in-context linear regression with one layer of linear self-attention of rank r.

Source: Shi thesis 2024, section 5.4 and appendix D.2 (after Shi, Wei, Xu and Liang 2024), called "Shi" below. Symbols:
token covariance with eigenvalues ``spectrum`` lambda_1 >= ... >= lambda_d, N examples in pretraining, M in evaluation, task
weights w (here always in the eigenbasis), label noise sigma, and tau_i = lambda_i v_i, the share of direction i that the
attention passes on. The flipped labels, the gain of one direction and the attention share are derived in chapter 11.

Ranks and other settings may be arrays; the axis of directions is the last.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def _spectrum(spectrum) -> np.ndarray:
    spectrum = np.asarray(spectrum, dtype=float)
    if spectrum.ndim != 1 or np.any(spectrum < 0) or np.any(np.diff(spectrum) > 1e-12 * spectrum.max(initial=0)):
        raise ValueError("spectrum must be one-dimensional, non-negative and in descending order")
    return spectrum


def self_attention(x: Tensor, y: Tensor, query: Tensor, v: Tensor, w: Tensor) -> Tensor:
    r"""Return the predictions ``(...)`` for queries of one layer of linear self-attention, ``v^T (E E^T / N) W x_q``.

    ``x`` ``(..., N, d)`` and ``y`` ``(..., N)`` are the examples of a prompt E, whose last column holds ``query`` ``(..., d)``
    with a 0 in place of its label. ``v`` ``(d + 1,)`` is the last row of the projection-value matrix and ``w`` ``(d + 1, d)``
    the first columns of the key-query matrix; the other entries never reach the prediction. Source: Shi, eq. (5.2).
    """
    examples, last = torch.cat([x, y[..., None]], -1), torch.nn.functional.pad(query, (0, 1))
    moments = (examples.mT @ examples + last[..., :, None] * last[..., None, :]) / x.shape[-2]
    return ((moments @ v) * (query @ w.mT)).sum(-1)


def loaded_spectrum(spectrum, n_train):
    """Eigenvalues ``(1 + 1/N) lambda_i + tr / N`` of Gamma, ``(d,)``. Source: Shi, Lemma 5.1."""
    spectrum = _spectrum(spectrum)
    return (1 + 1 / n_train) * spectrum + spectrum.sum() / n_train


def pass_through(spectrum, n_train, rank):
    """``tau_i = N lambda_i / ((N + 1) lambda_i + tr)`` for i <= r and 0 beyond: ranks ``(...)`` to ``(..., d)``, in [0, 1).

    It is the optimal ``U = Q V Q^T`` times the covariance, ``V D``. Source: Shi, Theorem 5.4.1.
    """
    spectrum, rank = _spectrum(spectrum), np.asarray(rank)
    full = np.divide(spectrum, loaded_spectrum(spectrum, n_train), out=np.zeros_like(spectrum), where=spectrum > 0)
    return np.where(np.arange(len(spectrum)) < rank[..., None], full, 0.0)


def optimal_weight(covariance: Tensor, n_train: int, rank: int) -> Tensor:
    """The best U of rank r (with u = 1), ``(d, d)``, in the basis of ``covariance`` ``(d, d)``. Source: Shi, Theorem 5.4.1."""
    values, vectors = torch.linalg.eigh(covariance)
    values, vectors = values.flip(0), vectors.flip(1)
    loaded = (1 + 1 / n_train) * values + values.sum() / n_train
    return vectors[:, :rank] / loaded[:rank] @ vectors[:, :rank].T


def population_loss(weight: Tensor, covariance: Tensor, n_train: int) -> Tensor:
    """Half the mean squared error of pretraining at ``U`` ``(..., d, d)`` (u = 1): ``(...)``; ``tr(Lambda) / 2`` at U = 0.

    Source: Shi, Lemma 5.1, with the constant that it leaves out.
    """
    moved = covariance @ weight @ covariance
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    loaded = (1 + 1 / n_train) * covariance + covariance.trace() / n_train * identity
    square = ((loaded @ moved) * weight).sum((-2, -1))
    return square / 2 - ((covariance @ covariance) * weight).sum((-2, -1)) + covariance.trace() / 2


def pretrained_loss(spectrum, n_train, rank):
    """The least :func:`population_loss` at rank r, ``(tr - sum_{i <= r} lambda_i tau_i) / 2``. Source: Shi, Theorem 5.4.1."""
    spectrum = _spectrum(spectrum)
    return (spectrum.sum() - (spectrum * pass_through(spectrum, n_train, rank)).sum(-1)) / 2


def risk_terms(spectrum, weights, tau, n_context, noise=0.0, flip=0.0):
    """Bias and variance ``(..., d)`` of every direction, whose sum is the evaluation risk; all of the arguments broadcast.

    With ``a = 1 - 2 flip``: bias ``w_i^2 lambda_i (1 - a tau_i)^2``, variance
    ``tau_i^2 ((2 - a^2) w_i^2 lambda_i + |w|_Lambda^2 + sigma^2) / M``. Labels are flipped one by one with probability
    ``flip``, their noise with them. Source: Shi, Theorem 5.4.2, at ``flip = 0``.
    """
    spectrum, weights = _spectrum(spectrum), np.asarray(weights, dtype=float)
    noise, flip, n_context = (np.asarray(v, dtype=float)[..., None] for v in (noise, flip, n_context))
    power, a = weights**2 * spectrum, 1 - 2 * flip
    variance = tau**2 * ((2 - a**2) * power + power.sum(-1, keepdims=True) + noise**2) / n_context
    return power * (1 - a * tau) ** 2, variance


def risk(spectrum, weights, n_train, rank, n_context, noise=0.0, flip=0.0):
    """Mean squared error ``(...)`` for the noise-free target of the best model of rank r. Source: Shi, Theorem 5.4.2."""
    bias, variance = risk_terms(spectrum, weights, pass_through(spectrum, n_train, rank), n_context, noise, flip)
    return (bias + variance).sum(-1)


def direction_gain(spectrum, weights, n_train, n_context, noise=0.0, flip=0.0):
    """Change ``(..., d)`` of the risk when direction i is added; where it is negative the larger model is the better one."""
    bias, variance = risk_terms(spectrum, weights, pass_through(spectrum, n_train, len(spectrum)), n_context, noise, flip)
    return variance + bias - np.asarray(weights, dtype=float) ** 2 * _spectrum(spectrum)


def attention_share(tau, n_relevant):
    """Share ``(...)`` of the mean squared attention score ``sum_j tau_j^2`` that falls on the first directions.

    ``tau`` ``(..., d)``, not all zero; 1 for ranks up to ``n_relevant``, about ``n_relevant / r`` beyond.
    """
    squares = np.asarray(tau, dtype=float) ** 2
    return squares[..., :n_relevant].sum(-1) / squares.sum(-1)
