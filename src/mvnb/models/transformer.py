"""A Transformer on tokens with learned positions, for stacks of networks and for changes of depth.

Each kind of parameter is one tensor over all layers, ``layers.NAME`` ``(layer, ...)``: indexing the layer axis of the
parameters and of an optimizer's moments grows or cuts a network. A stack of networks adds a leading replica axis,
``(replica, layer, ...)``, and one call of :func:`transformer_logits` evaluates all of them. There are no biases, and
normalisation has no parameters (as in PaLM, Chowdhery et al. 2022, and OLMo, Groeneveld et al. 2024).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb.gradients import returns_gradients
from mvnb.seeds import Seed, as_generator

Params = dict[str, Tensor]
Norm = Literal["pre", "post", "none"]
LAYER = "layers."
"""Prefix of the names of parameters with a layer axis."""


def visible(prefix: Tensor, length: int) -> Tensor:
    """Return the attention mask ``(..., query, key)``: true for keys up to the query and for the first ``prefix`` ``(...)``.

    A prefix of 0 gives a causal mask, ``length`` a bidirectional mask, and anything between a prefix language model's mask.
    """
    place = torch.arange(length, device=prefix.device)
    return (place <= place[:, None]) | (place < prefix[..., None, None])


def normalise(x: Tensor) -> Tensor:
    """Normalise the last axis to mean 0 and variance 1: layer normalisation without gain and bias."""
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
    """Apply multi-head softmax attention to a stack.

    ``x`` ``(R, n * length, dim)``; ``w_in`` ``(R, dim, 3 dim)`` for queries, keys and values; ``w_out`` ``(R, dim, dim)``;
    ``mask`` ``(R * n, 1, length, length)`` as in :func:`visible`, used if ``causal`` is false; None masks nothing. With
    ``last``, only the last token of each sequence is a query, and it attends to all tokens: ``(R, n, dim)``.
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
    """Return the final residual stream ``(R, n * length, dim)``; arguments as in :func:`transformer_logits`. Differentiable."""
    x = _embed_tokens(params, tokens)
    replicas, n, length = tokens.shape
    mask, causal = None, False
    if torch.is_tensor(prefix):
        mask = visible(prefix, length).view(replicas * n, 1, length, length)
    elif prefix < length:
        causal = prefix <= 1
        mask = None if causal else visible(torch.tensor([[prefix]], device=x.device), length)
    names = sorted(k for k in params if k.startswith(LAYER))
    before, after = (normalise if norm == place else nn.Identity() for place in ("pre", "post"))
    layers = list(zip(*(params[k].unbind(1) for k in names)))
    for i, (down, out, qkv, up) in enumerate(layers):
        only = last and i == len(layers) - 1  # the output uses only the last token of the last layer
        read = _attention(before(x), qkv, out, n_heads, length, mask, causal, only)
        x = after((x[:, length - 1 :: length] if only else x) + read)
        x = after(x + torch.bmm(F.relu(torch.bmm(before(x), up)), down))
    return x


def transformer_logits(
    params: Params, tokens: Tensor, prefix: Tensor | int = 0, *, n_heads: int, norm: Norm = "pre", last: bool = False
) -> Tensor:
    """Return logits ``(R, n, length, vocabulary)`` of a stack of Transformers for ``tokens`` ``(R, n, length)``.

    ``prefix`` as in :func:`visible`: one number for all, or ``(R, n)``. ``norm="pre"`` normalises the inputs of each block and
    of the output matrix, ``"post"`` the residual stream after each block, ``"none"`` nothing. With ``last``, return only the
    last token's logits ``(R, n, 1, vocabulary)`` and skip everything they do not depend on. ``params`` determines the sizes;
    ``last`` needs at least one layer. Differentiable. Sources: Xiong et al. 2020, Vaswani et al. 2017.
    """
    x = residual_stream(params, tokens, prefix, n_heads=n_heads, norm=norm, last=last)
    x = normalise(x) if norm == "pre" else x
    return torch.bmm(x, params["head"]).view(*tokens.shape[:2], 1 if last else tokens.shape[2], -1)


def _embed_tokens(params: Params, tokens: Tensor) -> Tensor:
    """Return the initial residual stream ``(R, n * length, dim)``: token embeddings plus position embeddings."""
    replicas, n, length = tokens.shape
    table, places = params["embedding"], params["positions"][:, None, :length]
    if length > params["positions"].shape[1]:
        raise ValueError(f"expected sequences of up to {params['positions'].shape[1]} tokens, got {length}")
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
    """Draw the parameters of one Transformer from N(0, std^2); ``hidden`` is the inner width of an MLP, 4 dim by default.

    ``embedding_std`` is the standard deviation of token and position embeddings, ``std`` by default: BERT has 0.02 for both
    and a normalisation after the embeddings, T5 and UL2 have 1.
    """
    generator = as_generator(generator)
    hidden = 4 * dim if hidden is None else hidden
    scale = dict.fromkeys(("embedding", "positions"), std if embedding_std is None else embedding_std)
    shapes = {"embedding": (n_tokens, dim), "positions": (length, dim), "head": (dim, n_tokens)}
    layer = {"qkv": (dim, 3 * dim), "out": (dim, dim), "up": (dim, hidden), "down": (hidden, dim)}  # input size first
    shapes |= {f"{LAYER}{k}": (n_layers, *s) for k, s in layer.items()}
    return {k: scale.get(k, std) * torch.randn(*s, generator=generator, dtype=dtype) for k, s in shapes.items()}


class _Objective:
    """Base class of objectives on stacks: a subclass defines ``losses(params, *batch)``, calls also return the gradients."""

    def __init__(self, n_heads: int, norm: Norm = "pre"):
        if norm not in ("pre", "post", "none"):
            raise ValueError(f"norm must be 'pre', 'post' or 'none', got {norm!r}")
        self.n_heads, self.norm = n_heads, norm

    @returns_gradients(tokens="int R n length")
    def __call__(self, params: Params, tokens: Tensor, *rest: Tensor) -> tuple[Tensor, Params]:
        leaves = {k: v.detach().requires_grad_() for k, v in params.items()}
        losses = self.losses(leaves, tokens, *rest)
        # Replicas are independent, so the gradient of the sum is the stack of their gradients.
        return losses.detach(), dict(zip(leaves, torch.autograd.grad(losses.sum(), list(leaves.values()))))


class TransformerObjective(_Objective):
    """Weighted cross-entropy of a stack of Transformers and its gradient, an objective for :func:`mvnb.training.fit`.

    Call it with ``params`` (see :func:`initial_parameters`, replica axis first) and the fields of a batch of texts:
    ``inputs``, ``targets``, ``weights`` ``(R, n, length)`` and ``prefix`` ``(R, n)``. The loss of a replica is the weighted
    mean over its positions. ``causal=True`` treats every prefix as 0, which is faster. Calls reject tensors that require a
    gradient; :meth:`losses` is differentiable.
    """

    def __init__(self, n_heads: int, norm: Norm = "pre", causal: bool = False):
        super().__init__(n_heads, norm)
        self.causal = causal

    def losses(self, params: Params, inputs: Tensor, targets: Tensor, weights: Tensor, prefix: Tensor) -> Tensor:
        """Return the losses ``(R,)``. Differentiable."""
        logits = transformer_logits(params, inputs, 0 if self.causal else prefix, n_heads=self.n_heads, norm=self.norm)
        each = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none").view(len(inputs), -1)
        weights = weights.flatten(1)
        return (each * weights).sum(1) / weights.sum(1)


class AnswerObjective(_Objective):
    """Cross-entropy of a stack of Transformers that answer with the last token, and its gradient.

    An objective for :func:`mvnb.training.fit`. Call it with ``params`` (see :func:`initial_parameters`, replica axis first),
    tokens ``(R, n, length)`` and answers ``(R, n)``; attention is bidirectional. ``n_heads`` and ``norm`` as in
    :func:`transformer_logits`. Calls reject tensors that require a gradient; :meth:`losses` is differentiable.
    """

    def losses(self, params: Params, tokens: Tensor, answers: Tensor) -> Tensor:
        """Return the losses ``(R,)``. Differentiable."""
        logits = transformer_logits(params, tokens, tokens.shape[-1], n_heads=self.n_heads, norm=self.norm, last=True)
        each = F.cross_entropy(logits.flatten(0, 2), answers.flatten(), reduction="none")
        return each.view(len(tokens), -1).mean(1)
