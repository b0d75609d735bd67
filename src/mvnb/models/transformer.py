"""Transformer on tokens with learned position embeddings, for stacks of networks and for changes of depth.

Each kind of parameter is one tensor for all layers, ``layers.NAME`` of shape ``(layer, ...)``, so layers can be added to a
network or removed from it by indexing this axis of the parameters and of the optimizer's moments. A stack of networks has an
additional first axis, ``(replica, layer, ...)``, and one call of :func:`transformer_logits` evaluates all of them. There are no
biases (as in PaLM, Chowdhery et al. 2022), and normalisation has no parameters (as in OLMo, Groeneveld et al. 2024).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb._checks import NO_LABEL, labels_below, require_within
from mvnb.gradients import Params, returns_gradients, with_gradients
from mvnb.seeds import Seed, as_generator

Norm = Literal["pre", "post", "none"]
LAYER = "layers."
"""Prefix of the names of parameters that have a layer axis."""


def visible(prefix: Tensor, length: int) -> Tensor:
    """Return attention masks ``(..., length, length)`` for sequences whose first ``prefix`` tokens are visible to all tokens.

    Entry ``[..., query, key]`` is true if ``key <= query`` or ``key < prefix``; ``prefix`` is an integer tensor ``(...)``. A
    prefix of 0 gives a causal mask and a prefix of ``length`` a bidirectional mask; values in between give the mask of a prefix
    language model.
    """
    place = torch.arange(length, device=prefix.device)
    return (place <= place[:, None]) | (place < prefix[..., None, None])


def normalise(x: Tensor) -> Tensor:
    """Normalise the last axis to mean 0 and variance 1, by layer normalisation without gain and bias."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-5)


def _attention(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    n_heads: int,
    length: int,
    mask: Tensor | None = None,
    causal: bool = False,
    last: bool = False,
) -> Tensor:
    """Return the output ``(R, n * length, dim)`` of multi-head softmax attention for a stack of networks.

    The inputs ``x`` have shape ``(R, n * length, dim)``, the weights ``w_in`` of queries, keys and values ``(R, dim, 3 dim)``
    and the output weights ``w_out`` ``(R, dim, dim)``. If ``causal`` is true, attention is causal and ``mask`` must be None.
    Otherwise, ``mask`` is a mask as returned by :func:`visible`, of a shape that broadcasts to ``(R * n, 1, length, length)``,
    or None for bidirectional attention. If ``last`` is true, only the last token of each sequence is a query; it attends to all
    tokens, and the output has shape ``(R, n, dim)``.
    """
    replicas, points, dim = x.shape
    sequences, size = replicas * points // length, dim // n_heads
    if last:
        q = torch.bmm(x[:, length - 1 :: length], w_in[..., :dim]).view(sequences, 1, n_heads, size)
        k, v = torch.bmm(x, w_in[..., dim:]).view(sequences, length, 2, n_heads, size).unbind(2)
        # With one query per sequence, element-wise products take a tenth of the time of matrix products.
        p = ((q * k).sum(-1, keepdim=True) / size**0.5).softmax(1)  # (R * n, length, head, 1)
        return torch.bmm((p * v).sum(1).view(replicas, -1, dim), w_out)
    parts = torch.bmm(x, w_in).view(sequences, length, 3, n_heads, size)
    q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (R * n, head, length, dim / head)
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return torch.bmm(seen.transpose(1, 2).reshape(replicas, points, dim), w_out)


def residual_stream(
    params: Params, tokens: Tensor, prefix: Tensor | int = 0, *, n_heads: int, norm: Norm = "pre", last: bool = False
) -> Tensor:
    """Return the residual stream ``(R, n * length, dim)`` after the last layer, or ``(R, n, dim)`` if ``last`` is true.

    The arguments and errors are those of :func:`transformer_logits`. The result is differentiable.
    """
    _check_norm(norm)
    x = _embed_tokens(params, tokens)
    replicas, n, length = tokens.shape
    mask, causal = None, False
    if torch.is_tensor(prefix):
        mask = visible(prefix, length).view(replicas * n, 1, length, length)
    elif prefix < length:
        causal = prefix <= 1
        mask = None if causal else visible(torch.tensor([[prefix]], device=x.device), length)
    names = sorted(k for k in params if k.startswith(LAYER))
    if (dim := x.shape[-1]) % n_heads:
        raise ValueError(f"n_heads must divide the dimension of the residual stream, {dim}, got {n_heads}")
    before, after = (normalise if norm == place else nn.Identity() for place in ("pre", "post"))
    layers = list(zip(*(params[k].unbind(1) for k in names)))
    if last and not layers:
        raise ValueError("params must contain at least one layer if last is true, got none")
    for i, (down, out, qkv, up) in enumerate(layers):
        only = last and i == len(layers) - 1  # the output uses only the last token of the last layer
        read = _attention(before(x), qkv, out, n_heads, length, mask, causal, only)
        x = after((x[:, length - 1 :: length] if only else x) + read)
        x = after(x + torch.bmm(F.relu(torch.bmm(before(x), up)), down))
    return x


def transformer_logits(
    params: Params, tokens: Tensor, prefix: Tensor | int = 0, *, n_heads: int, norm: Norm = "pre", last: bool = False
) -> Tensor:
    """Return the logits ``(R, n, length, vocabulary)`` of a stack of Transformers for ``tokens`` ``(R, n, length)``.

    ``params`` are the parameters (see :func:`initial_parameters`) with an additional first axis for the ``R`` replicas; they
    determine the sizes of the networks. ``prefix`` is the number of first tokens that are visible to all tokens (see
    :func:`visible`), either one number for all sequences or a tensor ``(R, n)``. ``norm="pre"`` normalises the inputs of each
    block and of the output matrix, ``"post"`` normalises the residual stream after each block, and ``"none"`` normalises
    nothing. If ``last`` is true, only the logits ``(R, n, 1, vocabulary)`` after the last token are computed, which requires at
    least one layer. The result is differentiable. Sources: Xiong et al. 2020, Vaswani et al. 2017.

    Raises ``ValueError`` if ``norm`` is unknown, ``n_heads`` does not divide the dimension of the residual stream, ``last`` is
    true without layers, sequences are longer than the position embeddings or, on a CPU, a token is out of range.
    """
    x = residual_stream(params, tokens, prefix, n_heads=n_heads, norm=norm, last=last)
    x = normalise(x) if norm == "pre" else x
    return torch.bmm(x, params["head"]).view(*tokens.shape[:2], 1 if last else tokens.shape[2], -1)


def _embed_tokens(params: Params, tokens: Tensor) -> Tensor:
    """Return the sum of token and position embeddings, of shape ``(R, n * length, dim)``."""
    replicas, n, length = tokens.shape
    table, places = params["embedding"], params["positions"][:, None, :length]
    if length > params["positions"].shape[1]:
        raise ValueError(f"expected sequences of up to {params['positions'].shape[1]} tokens, got {length}")
    require_within("tokens", tokens, 0, table.shape[1] - 1)  # others would be tokens of another replica
    shift = table.shape[1] * torch.arange(replicas, device=tokens.device).view(-1, 1, 1)
    x = F.embedding(tokens + shift, table.flatten(0, 1)) + places  # (R, n, length, dim)
    return x.view(replicas, n * length, -1)


def initial_parameters(
    n_tokens: int,
    length: int,
    dim: int,
    n_layers: int,
    generator: Seed,
    *,
    hidden: int | None = None,
    std: float = 0.02,
    embedding_std: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Params:
    """Draw the parameters of one Transformer from normal distributions with mean 0.

    ``n_tokens`` is the size of the vocabulary, ``length`` the maximum length of sequences, and ``dim`` the dimension of the
    residual stream. ``generator`` is a seed or a ``torch.Generator``. ``hidden`` is the inner width of the MLPs, by default
    ``4 * dim``. Token and position embeddings have the standard deviation ``embedding_std``, by default ``std``; all other
    parameters have ``std``. BERT uses 0.02 for both and normalises the embeddings, whereas T5 and UL2 use embeddings with a
    standard deviation of 1.
    """
    generator = as_generator(generator)
    hidden = 4 * dim if hidden is None else hidden
    scale = dict.fromkeys(("embedding", "positions"), std if embedding_std is None else embedding_std)
    shapes = {"embedding": (n_tokens, dim), "positions": (length, dim), "head": (dim, n_tokens)}
    layer = {"qkv": (dim, 3 * dim), "out": (dim, dim), "up": (dim, hidden), "down": (hidden, dim)}  # input size first
    shapes |= {f"{LAYER}{k}": (n_layers, *s) for k, s in layer.items()}
    return {k: scale.get(k, std) * torch.randn(*s, generator=generator, dtype=dtype) for k, s in shapes.items()}


def _check_norm(norm: str) -> None:
    if norm not in ("pre", "post", "none"):
        raise ValueError(f"norm must be 'pre', 'post' or 'none', got {norm!r}")


class _Objective:
    """Base class of objectives for stacks of Transformers.

    A subclass defines a method ``losses(params, *batch)``; calling the objective returns these losses and their gradients.
    """

    def __init__(self, n_heads: int, norm: Norm = "pre"):
        _check_norm(norm)
        self.n_heads, self.norm = n_heads, norm

    @returns_gradients(tokens="int R n length")
    def __call__(self, params: Params, tokens: Tensor, *rest: Tensor) -> tuple[Tensor, Params]:
        return with_gradients(self.losses)(params, tokens, *rest)


def _cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every token, of shape ``(R * n * length,)``; no target is ignored."""
    with labels_below(logits.shape[-1], "targets"):
        return F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none", ignore_index=NO_LABEL)


class TransformerObjective(_Objective):
    """Weighted cross-entropy of a stack of Transformers and its gradient.

    This is an objective for :func:`mvnb.training.fit`. It is called with ``params`` (see :func:`initial_parameters`), which
    have an additional first axis for the ``R`` replicas, and a batch of texts: ``inputs``, ``targets`` and ``weights`` of shape
    ``(R, n, length)``, and ``prefix`` of shape ``(R, n)``. The loss of a replica is the weighted mean over all positions of its
    texts. ``n_heads``, ``norm`` and ``prefix`` are explained in :func:`transformer_logits`. If ``causal`` is true, every prefix
    is treated as 0, which is faster. Calls reject tensors that require gradients; :meth:`losses` is differentiable.
    """

    def __init__(self, n_heads: int, norm: Norm = "pre", causal: bool = False):
        super().__init__(n_heads, norm)
        self.causal = causal

    def losses(self, params: Params, inputs: Tensor, targets: Tensor, weights: Tensor, prefix: Tensor) -> Tensor:
        """Return the losses ``(R,)``. Differentiable."""
        logits = transformer_logits(params, inputs, 0 if self.causal else prefix, n_heads=self.n_heads, norm=self.norm)
        each = _cross_entropies(logits, targets).view(len(inputs), -1)
        weights = weights.flatten(1)
        return (each * weights).sum(1) / weights.sum(1)


class AnswerObjective(_Objective):
    """Cross-entropy, and its gradient, of a stack of Transformers whose answer is the prediction at the last token.

    This is an objective for :func:`mvnb.training.fit`. It is called with ``params`` (see :func:`initial_parameters`), which
    have an additional first axis for the ``R`` replicas, with ``tokens`` of shape ``(R, n, length)`` and with the ids
    ``answers`` of the correct tokens, of shape ``(R, n)``. Attention is bidirectional. ``n_heads`` and ``norm`` are explained
    in :func:`transformer_logits`. Calls reject tensors that require gradients; :meth:`losses` is differentiable.
    """

    def losses(self, params: Params, tokens: Tensor, answers: Tensor) -> Tensor:
        """Return the losses ``(R,)``. Differentiable."""
        logits = transformer_logits(params, tokens, tokens.shape[-1], n_heads=self.n_heads, norm=self.norm, last=True)
        return _cross_entropies(logits, answers).view(len(tokens), -1).mean(1)
