"""Closed forms for learning decision lists with one layer of softmax attention.

Source: Karp thesis 2024, chapter 4 (after Karp, Awasthi and Kale 2023), called "Karp" below. Symbols: L tokens (and labels),
sequences of n different tokens, a list of at most M tokens for every token, permutation pi with matrix P, W the key-query and
V the value matrix, sigma the softmax. The smoothness constants, the sharper count of steps and the formula of the first step
on V are derived in chapter 06.

Matrices come in stacks: W and V have shape ``(R, L, L)``, sequences ``(R, S, n)``, lists ``(R, L, M)``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# --- The model and its gradient ---


class Pass(NamedTuple):
    """One forward and backward pass, position by position; axes are replica, sequence, then key, query or class.

    ``attention`` ``(R, S, key, query)``; ``logits`` and ``residual`` (sigma minus the one-hot label) ``(R, S, query, class)``;
    ``loss`` ``(R, S, query)``; ``slope`` ``(R, S, key, query)``, the derivative of a position's loss by W[key, query].
    """

    attention: Tensor
    logits: Tensor
    residual: Tensor
    loss: Tensor
    slope: Tensor


def forward_backward(w: Tensor, v: Tensor, tokens: Tensor, labels: Tensor) -> Pass:
    """Return the forward pass of ``sigma(V X sigma(X^T W X))`` on one-hot tokens, and its derivatives.

    ``w`` and ``v`` ``(R, L, L)``; ``tokens`` and ``labels`` ``(R, S, n)``. Source: Karp, eq. (4.1) and Theorem 4.3.
    """
    r = torch.arange(len(w), device=w.device)[:, None, None]
    scores = w[r[..., None], tokens[..., :, None], tokens[..., None, :]]  # (R, S, key, query)
    p = scores.softmax(2)
    columns = v.mT[r, tokens]  # (R, S, key, class): the columns of V that a sequence meets
    z = p.mT @ columns  # (R, S, query, class)
    loss = z.logsumexp(-1) - z.gather(-1, labels[..., None])[..., 0]
    residual = z.softmax(-1) - torch.nn.functional.one_hot(labels, z.shape[-1]).to(z.dtype)
    by_attention = columns @ residual.mT  # (R, S, key, query)
    slope = p * (by_attention - (p * by_attention).sum(2, keepdim=True))
    return Pass(p, z, residual, loss, slope)


def objective(
    params: dict[str, Tensor], tokens: Tensor, labels: Tensor, probability: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss ``(R,)`` over sequences and positions, and its gradient, for :func:`mvnb.training.fit`.

    ``params`` holds ``w`` and ``v`` ``(R, L, L)``; ``probability`` ``(R, S)`` weighs the sequences, equally by default. Over
    all sequences it is the population loss. The losses are differentiable. Source: Karp, section 4.3.
    """
    w, v, (n_sequences, length) = params["w"], params["v"], tokens.shape[-2:]
    one = forward_backward(w, v, tokens, labels)
    weight = w.new_full((1, 1, 1), 1 / (n_sequences * length)) if probability is None else probability[..., None] / length
    pair = tokens[..., :, None] * w.shape[-1] + tokens[..., None, :]  # where W[key, query] lies in the flat matrix
    slope = (weight[..., None] * one.slope).flatten(1)
    d_w = torch.zeros_like(w).flatten(1).scatter_add(1, pair.flatten(1), slope).view_as(w)
    push = (one.attention @ (weight[..., None] * one.residual)).flatten(1, 2)  # (R, S * key, class)
    d_v = torch.zeros_like(v).scatter_add(1, tokens.flatten(1)[..., None].expand_as(push), push).mT
    return (weight * one.loss).sum((1, 2)), {"w": d_w, "v": d_v}


def misclassified(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ``(...)`` whether another class has a logit at least as large as the label's, for ``logits`` ``(..., L)``."""
    own = logits.gather(-1, labels[..., None])
    others = logits.scatter(-1, labels[..., None], -math.inf)
    return own[..., 0] <= others.amax(-1)


def list_margin(columns: Tensor, lists: Tensor) -> Tensor:
    """Return by how much columns of W ``(..., L)`` are ordered like their ``lists`` ``(..., M)``, without repetitions.

    It is the least gap in ``w[a_1] > ... > w[a_M] > w[b]`` for all b outside the list. With V = c P and c > 0 a positive margin
    is the same as perfect classification of every sequence in which any pair can meet.
    """
    entries = columns.gather(-1, lists)
    outside = columns.scatter(-1, lists, -math.inf).amax(-1, keepdim=True)
    return -torch.cat([entries, outside], -1).diff(dim=-1).amax(-1)


# --- The key direction ---


class Directional(NamedTuple):
    """Derivatives of the loss of single sequences, by the column of one token, all ``(R, S, n)``.

    ``along_v`` is the derivative along the key direction, ``alone`` the one by the entry of k* only; ``bad`` marks the
    sequences of the set S, ``applies`` the positions whose token is misclassified somewhere, and ``p_star`` is the attention
    to k* (0 where it is absent).
    """

    along_v: Tensor
    alone: Tensor
    bad: Tensor
    applies: Tensor
    p_star: Tensor


def list_ranks(lists: Tensor) -> Tensor:
    """Return the place of every token in every list, ``(R, a, token)``, counted from 0; M for tokens that are not in it."""
    replicas, n_tokens, length = lists.shape
    ranks = torch.full((replicas, n_tokens, n_tokens), length)
    return ranks.scatter_reduce(2, lists, torch.arange(length).expand_as(lists), "amin")


def directional_derivatives(
    w: Tensor, v: Tensor, tokens: Tensor, labels: Tensor, deciding: Tensor, lists: Tensor
) -> Directional:
    """Return derivatives of every sequence's loss along the direction that is 1 on k* and all tokens before it in the list.

    k* is, token by token, the earliest deciding token with a misclassification among ``tokens``, which should be all
    sequences. ``tokens``, ``labels``, ``deciding`` ``(R, S, n)``; ``lists`` ``(R, L, M)``. Source: Karp, proof of Theorem 4.3.
    """
    one = forward_backward(w, v, tokens, labels)
    wrong = misclassified(one.logits, labels)
    ranks, n_none = list_ranks(lists), lists.shape[-1]
    r = torch.arange(len(w))[:, None, None]
    rank = ranks[r, tokens, deciding]
    where = torch.where(wrong, rank, n_none).flatten(1)
    earliest = torch.full(w.shape[:2], n_none).scatter_reduce(1, tokens.flatten(1), where, "amin")  # (R, L): the rank of k*
    star = earliest[r, tokens]
    place = ranks[r[..., None], tokens[..., None, :], tokens[..., :, None]]  # (R, S, key, query)
    star_key = (place == star[..., None, :]) & (star < n_none)[..., None, :]
    support = (place <= star[..., None, :]) & (star < n_none)[..., None, :]
    slope, n = one.slope, tokens.shape[-1]
    return Directional(
        (slope * support).sum(2) / n,
        (slope * star_key).sum(2) / n,
        wrong & (rank == star),
        star < n_none,
        (one.attention * star_key).sum(2),
    )


# --- Curvature ---


def hessian_blocks(w: Tensor, v: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
    """Return the nonzero blocks ``(R, L, L, L)`` of the Hessian of the mean loss in W, one for every column of W.

    For one position it is ``J V^T (diag(sigma) - sigma sigma^T) V J + diag(h) - h p^T - p h^T`` with
    ``J = diag(p) - p p^T`` and h the derivative of the position's loss by its scores.
    """
    one = forward_backward(w, v, tokens, labels)
    r = torch.arange(len(w))[:, None, None]
    size = w.shape[-1]
    p, h = one.attention.mT, one.slope.mT  # (R, S, query, key)
    jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    moved = jacobian @ v.mT[r, tokens][:, :, None]  # (R, S, query, key, class)
    sigma = one.logits.softmax(-1)[..., None]
    mean = moved @ sigma
    block = (moved * sigma.mT) @ moved.mT - mean @ mean.mT
    cross = h[..., :, None] * p[..., None, :]
    block = (block + torch.diag_embed(h) - cross - cross.mT) / tokens[0].numel()
    pair = tokens[..., :, None] * size + tokens[..., None, :]
    place = tokens[..., :, None, None] * size**2 + pair[:, :, None]  # (R, S, query, key, key)
    out = torch.zeros(len(w), size**3, dtype=w.dtype)
    return out.scatter_add(1, place.flatten(1), block.flatten(1)).view(-1, size, size, size)


def token_share(n_tokens: int, tokens: Tensor, probability: Tensor) -> Tensor:
    """Return ``max_a Pr[a in s] / n``, ``(R,)``, for sequences ``tokens`` ``(R, S, n)`` of ``probability`` ``(R, S)``."""
    n = tokens.shape[-1]
    weight = probability[..., None].expand(tokens.shape).flatten(1)
    present = torch.zeros(len(tokens), n_tokens, dtype=weight.dtype).scatter_add(1, tokens.flatten(1), weight)
    return present.amax(1) / n


def smoothness(scale, share):
    """Return an upper bound for the eigenvalues of the Hessian in W, at every W, with V = c P: ``(c^2 / 8 + c) share``.

    ``scale`` is c, ``share`` :func:`token_share`; it is 1 / L for uniform sequences.
    """
    return (scale**2 / 8 + scale) * share


def joint_smoothness(scale, epsilon, n_tokens, length):
    """Return such a bound in W and V together, for uniform sequences, where all entries of V are within ``epsilon`` of c P.

    It is the larger of ``((c + epsilon sqrt(L n))^2 / 4 + c + 2 epsilon + 1 / sqrt(2)) / L`` and ``1 + 1 / sqrt(2)``.
    """
    norm = scale + epsilon * np.sqrt(n_tokens * length)
    return np.maximum((norm**2 / 4 + scale + 2 * epsilon + 0.5**0.5) / n_tokens, 1 + 0.5**0.5)


# --- The theorems' numbers ---


def initial_loss(n_tokens, length, scale):
    """Return the loss at W = 0, V = c P, which is ``log(n + (L - n) exp(-c / n))`` for all lists."""
    return np.log(length + (n_tokens - length) * np.exp(-np.asarray(scale, dtype=float) / length))


def subset_probability(n_tokens, length, included, excluded=0):
    """Return the probability that ``length`` uniform tokens hold ``included`` given ones and none of ``excluded`` others."""
    rest = n_tokens - included - excluded
    if rest < 0 or not included <= length:
        return 0.0
    return math.comb(rest, length - included) / math.comb(n_tokens, length)


def triple_probability(n_tokens, length, list_length):
    """Return the delta of Assumption 4.3 for uniform sequences and lists of ``list_length`` different tokens.

    It is the least positive probability that a, b and c are in a sequence and b decides a's label. Source: Karp, section 4.2.3.
    """
    cases = [subset_probability(n_tokens, length, 2, list_length - 1)]  # b = a, all others of the list absent
    cases += [subset_probability(n_tokens, length, 3, place) for place in range(list_length - 1)]
    return min(case for case in cases if case > 0)


def least_triple(n_tokens: int, tokens: Tensor, deciding: Tensor, probability: Tensor) -> Tensor:
    """Return this delta, ``(R,)``, for any distribution over ``tokens`` ``(R, S, n)``, by counting all triples."""
    key = tokens[..., None, :].expand(*tokens.shape, tokens.shape[-1])  # (R, S, query, key)
    triple = (tokens[..., None] * n_tokens + deciding[..., None]) * n_tokens + key
    weight = probability[..., None, None].expand(triple.shape)
    mass = torch.zeros(len(tokens), n_tokens**3, dtype=weight.dtype).scatter_add(1, triple.flatten(1), weight.flatten(1))
    return torch.where(mass > 0, mass, math.inf).amin(1)


def needed_scale(n_tokens, length, delta):
    """Return the scale ``c = 4 n^2 log L / delta`` of Karp, Theorem 4.3."""
    return 4 * length**2 * math.log(n_tokens) / delta


def step_bound(list_length, curvature, n_tokens):
    """Return the number of steps ``32 M lambda / log L`` of Karp, Theorem 4.3, for the step size ``1 / lambda``."""
    return 32 * list_length * curvature / math.log(n_tokens)


def needed_scale_joint(length, delta, list_length, epsilon, start_loss):
    """Return the scale ``(4 B sqrt(M / eps) + 6 eps / n) 10 n^2 / delta + 4 eps`` of Karp, Theorem 4.4.

    B is the larger of 1 and ``start_loss``.
    """
    bar = max(1.0, start_loss)
    return (4 * bar * math.sqrt(list_length / epsilon) + 6 * epsilon / length) * 10 * length**2 / delta + 4 * epsilon


def step_bound_joint(curvature, epsilon, start_loss):
    """Return the number of steps ``lambda eps / (2 max(1, start loss))`` of Karp, Theorem 4.4."""
    return curvature * epsilon / (2 * np.maximum(1.0, start_loss))


# --- The first step on V, under uniform attention ---


def co_occurrence(lists: Tensor, length: int) -> np.ndarray:
    """Return ``Q[b, i] = sum_a Pr[a and i are in s, and b decides a]`` for uniform sequences of ``length`` tokens.

    ``lists`` ``(L, M)`` are without repetitions. Every term is a hypergeometric ratio.
    """
    lists = np.asarray(lists)
    n_tokens, n_places = lists.shape
    rows, q = np.arange(n_tokens), np.zeros((n_tokens, n_tokens))  # q: (b, i)
    for place in range(n_places):
        own = place == n_places - 1  # then b = a
        size = 1 if own else 2
        chance = np.full((n_tokens, n_tokens), subset_probability(n_tokens, length, size + 1, place))  # (a, i)
        chance[rows, rows] = subset_probability(n_tokens, length, size, place)
        chance[rows, lists[:, place]] = subset_probability(n_tokens, length, size, place)
        chance[rows[:, None], lists[:, :place]] = 0.0
        q += (lists[:, place] == rows[:, None]).astype(float) @ chance
    return q


def first_value_step(lists: Tensor, permutation: Tensor, length: int, step_size: float) -> np.ndarray:
    """Return ``V_1 - V_0`` ``(L, L)`` of one step on the population loss from W = 0 and V = 0.

    It is ``eta (Q[b, i] / n^2 - 1 / L^2)`` in row ``permutation[b]`` and column i.
    """
    q = co_occurrence(lists, length)
    out = np.empty_like(q)
    out[np.asarray(permutation)] = step_size * (q / length**2 - 1 / len(q) ** 2)
    return out


def uniform_attention_accuracy(labels: Tensor) -> Tensor:
    """Return the best accuracy with W = 0 on sequences with ``labels`` ``(..., S, n)``: the mean share of the commonest label.

    Under uniform attention all positions of a sequence get the same prediction.
    """
    same = labels[..., :, None] == labels[..., None, :]
    return same.sum(-1).amax(-1).double().mean(-1) / labels.shape[-1]


# --- One column is enough ---


class ColumnPopulation:
    r"""Exact population loss of one column of W, with V = c P and uniform sequences, in M + 1 numbers.

    Tokens outside a list are interchangeable, so only which entries of the list are present matters: ``2^(M - 1)`` cases with
    hypergeometric probabilities. Every column of every world with the same L, n and M is the same problem, relabelled.

    An objective for :func:`mvnb.training.fit`: called with ``params`` ``entries`` ``(R, M)`` (the weights of the list, own
    token last) and ``outside`` ``(R, 1)`` (the weight of every other token), and ``scale`` ``(R,)``, it returns the loss of the
    own token's position, given that it is present, ``(R,)``, and the gradients. A step eta on W is a step ``eta / L`` here,
    divided by ``L - M`` for ``outside``, which is ``L - M`` weights at once. The losses are differentiable.
    Raises ``ValueError`` unless ``1 <= list_length <= n_tokens - length``.
    """

    def __init__(self, n_tokens: int, length: int, list_length: int):
        if not 1 <= list_length <= n_tokens - length:
            raise ValueError(f"list_length must be from 1 to {n_tokens - length}, got {list_length}")
        self.n_tokens, self.length, self.list_length = n_tokens, length, list_length
        cases = torch.arange(2 ** (list_length - 1))[:, None] >> torch.arange(list_length - 1) & 1
        cases = torch.cat([cases, torch.ones(len(cases), 1, dtype=torch.long)], 1)  # the own token is always there
        cases = cases[cases.sum(1) <= length]
        others = length - cases.sum(1)
        ways = [math.comb(n_tokens - list_length, m) / math.comb(n_tokens - 1, length - 1) for m in others.tolist()]
        self.probability = torch.tensor(ways, dtype=torch.float64)  # (case,)
        self.copies = torch.cat([cases, others[:, None]], 1).double()  # (case, M + 1): tokens present of every kind
        self.decides = cases.argmax(1)  # (case,)

    def __call__(self, params: dict[str, Tensor], scale: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        w = torch.cat([params["entries"], params["outside"]], 1)[:, None]  # (R, 1, M + 1)
        p = (w + self.copies.log()).softmax(-1) / self.copies.clamp(min=1)  # (R, case, M + 1), of one token
        c = scale[:, None, None]
        absent = p.new_tensor([math.log(self.n_tokens - self.length)])
        z = torch.cat([c * p + self.copies.log(), absent.expand(*p.shape[:2], 1)], -1)
        own = self.decides.expand(len(w), -1)[..., None]
        loss = z.logsumexp(-1) - c[..., 0] * p.gather(-1, own)[..., 0]
        mass = self.copies * p
        sigma = z.softmax(-1)[..., :-1]  # all copies together
        pull = c * (sigma - torch.nn.functional.one_hot(self.decides, p.shape[-1]))  # (R, case, M + 1)
        # by kind: sum over copies of p (g - mean g), with g the derivative by the attention to one copy
        mean = (p * pull).sum(-1, keepdim=True)
        slope = (self.probability[:, None] * (p * pull - mass * mean)).sum(1)
        return loss @ self.probability, {"entries": slope[:, :-1], "outside": slope[:, -1:]}

    def error(self, params: dict[str, Tensor]) -> Tensor:
        """Return the probability ``(R,)`` that the own token's position is misclassified, given that the token is present."""
        w = torch.cat([params["entries"], params["outside"]], 1)[:, None].expand(-1, *self.copies.shape)
        own = torch.nn.functional.one_hot(self.decides, w.shape[-1]).bool()
        others = w.masked_fill(own | (self.copies == 0), -math.inf).amax(-1)
        return (w[:, own] <= others).double() @ self.probability

    def margin(self, params: dict[str, Tensor]) -> Tensor:
        """Return by how much the column is ordered like its list, ``(R,)``; see :func:`list_margin`."""
        return -torch.cat([params["entries"], params["outside"]], 1).diff(dim=1).amax(1)


def first_attention_step(n_tokens, length, list_length, scale):
    """Return ``-dL/dW[:, a]`` ``(M + 1,)`` at W = 0, V = c P, uniform sequences, for the list's entries and the others.

    It is ``c / n^2 (Pr[a in s and k decides] - Pr[a and k in s] / n)``.
    """
    both = subset_probability(n_tokens, length, 2)
    gain = [subset_probability(n_tokens, length, 2, place) - both / length for place in range(list_length - 1)]
    gain.append(subset_probability(n_tokens, length, 1, list_length - 1) - subset_probability(n_tokens, length, 1) / length)
    return scale / length**2 * np.array([*gain, -both / length])
