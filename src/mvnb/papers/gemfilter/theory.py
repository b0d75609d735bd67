r"""Finding a few tokens against reading them: margins, work and memory of long prompts.

Source: Shi thesis 2024, chapter 9 and appendix G ("Shi" below); what finding and reading need is derived in chapter 15.
Symbols: n tokens in the prompt, k of them selected, t generated, m layers of h heads with h_kv key heads of dimension d, r the
filter layer, counted from 0. Arguments may be arrays where nothing else is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

# --- One needle among noise: its score is ``margin``, those of n other tokens are independent N(0, sigma^2) ---


def finding_probability(margin, sigma, n, k):
    """Probability that the needle is among the k largest scores: fewer than k of n noise scores exceed it.

    It is the distribution function of a binomial law, exact for all n and ``1 <= k``; 1 for ``k > n``. Source: chapter 15.
    """
    exceed = special.ndtr(-np.asarray(margin, dtype=float) / sigma)
    return np.where(np.greater(k, n), 1.0, special.bdtr(np.minimum(k, n) - 1, n, exceed))


def finding_margin(sigma, n, k):
    """The margin at which k noise scores are expected to exceed the needle, ``sigma z``, z the upper k/n quantile.

    At most ``sigma sqrt(2 log(n / k))`` for ``k <= n / 2``. Source: chapter 15.
    """
    return -sigma * special.ndtri(np.asarray(k) / n)


def reading_share(margin, sigma, n):
    """Least expected share of the softmax that falls on the needle, ``1 / (1 + n exp(sigma^2 / 2 - margin))``, by Jensen.

    The share itself tends to it when n grows and ``margin - log n`` stays. Source: chapter 15.
    """
    return special.expit(margin - reading_margin(sigma, n))


def reading_margin(sigma, n):
    """Return the margin at which :func:`reading_share` is one half: ``log n + sigma^2 / 2``."""
    return np.log(n) + np.square(sigma) / 2


def surviving_noise(sigma, n, k):
    """Share of the noise's softmax weight that the k largest of n scores carry, n large: ``Phi(sigma - z)``, in [k/n, 1].

    Tokens that are selected by the very scores that read them are the loudest ones; with other, independent scores it is k/n.
    Source: chapter 15.
    """
    return special.ndtr(sigma + special.ndtri(np.asarray(k) / n))


# --- Work and memory ---


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-type model: m, h, h_kv, d, width of the residual stream, and inner width of its gated MLP."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    width: int
    inner: int

    @property
    def layer_weights(self) -> int:
        """Weights of one layer (w), without those of its normalisations."""
        heads = 2 * self.n_heads + 2 * self.n_kv_heads
        return self.width * self.head_dim * heads + 3 * self.width * self.inner


LLAMA_31_8B = Shape(32, 32, 8, 128, 4096, 14336)
"""The model of the thesis's main figures."""

PAPER_MODELS = {
    "LLaMA 3.1 8B": (LLAMA_31_8B, 13),
    "Mistral Nemo 12B": (Shape(40, 32, 8, 128, 5120, 14336), 19),
    "Phi 3.5 Mini": (Shape(32, 32, 32, 96, 3072, 8192), 19),
}
"""The thesis's three models, by the names of its tables: shape, and filter layer from 0. Source: Shi thesis 2024, 9.4."""


def prefill_flops(shape: Shape, n, layers=None):
    """Floating-point operations of whole layers (all of them unless told) on a prompt of n tokens, two a multiply-add.

    ``2 n w`` for the matrices and ``4 n^2 h d`` for scores and values of all pairs, as counted for kernels that do not use the
    mask; causal ones save half of the second. Embedding and read-out are left out.
    """
    layers = shape.n_layers if layers is None else layers
    return layers * (2 * n * shape.layer_weights + 4 * n**2 * shape.n_heads * shape.head_dim)


def step_flops(shape: Shape, cached):
    """Operations of one generated token, counted alike, beside ``cached`` tokens: ``m (2 w + 4 h d (cached + 1))``."""
    return shape.n_layers * (2 * shape.layer_weights + 4 * (cached + 1) * shape.n_heads * shape.head_dim)


def _selection_flops(shape: Shape, n, layer, published=False):
    """The same for GemFilter's first pass: ``layer`` whole layers, then queries, keys and values of the next, and one row.

    Only the last query meets the keys of the filter layer. The ``published`` code runs the filter layer whole.
    """
    if published:
        return prefill_flops(shape, n, layer + 1)
    projections = 2 * n * shape.width * shape.head_dim * (shape.n_heads + 2 * shape.n_kv_heads)
    return prefill_flops(shape, n, layer) + projections + 2 * n * shape.n_heads * shape.head_dim


def speed_up(shape: Shape, n, k, layer, published=False):
    """Operations of a whole prefill over those of GemFilter's, second pass included.

    For n >> k about ``m / layer``, and ``m / (layer + 1)`` as ``published``, where the filter layer is run whole.
    """
    gem_filter = _selection_flops(shape, n, layer, published) + prefill_flops(shape, np.minimum(k, n))
    return prefill_flops(shape, n) / gem_filter


def cached_numbers(shape: Shape, n):
    """Keys and values that a cache of n tokens holds: ``2 m h_kv n d``."""
    return 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim * n


def peak_memory(shape: Shape, method: str, n, k, t, layer, loaded=True):
    """Largest count of numbers held, weights of the layers and cache, over prompt and generation, by Shi's Theorem 9.3.

    Parameters
    ----------
    shape, n, k, t, layer
        As above; keys and values of h_kv heads are counted, where the theorem counts h.
    method
        ``"All KV"``, ``"SnapKV"`` (H2O needs as much by the theorem) or ``"GemFilter"``.
    loaded
        Whether all weights are there all the time, as in the published code; else GemFilter's first pass holds ``layer + 1``
        layers, as in the theorem.

    Returns
    -------
    The larger of the two phases. The theorem's table misses an n in the first method's prompt phase. ``ValueError`` for another
    method.
    """
    one, weights = 2 * shape.n_kv_heads * shape.head_dim, shape.n_layers * shape.layer_weights
    generation = weights + one * shape.n_layers * ((n if method == "All KV" else np.minimum(k, n)) + t)
    if method == "All KV":
        prompt = weights + cached_numbers(shape, n)
    elif method == "SnapKV":
        prompt = weights + one * n + cached_numbers(shape, np.minimum(k, n))
    elif method == "GemFilter":
        prompt = (weights if loaded else (layer + 1) * shape.layer_weights) + one * n
    else:
        raise ValueError(f"method must be 'All KV', 'SnapKV' or 'GemFilter', got {method!r}")
    return np.maximum(prompt, generation)


def savings(models=PAPER_MODELS, n=131_072, held=122_880, k=1024, t=50) -> dict[str, dict[str, float]]:
    """Return what GemFilter saves each of ``models``, by name: times fewer operations, and shares of the peak of memory.

    Operations on a prompt of n tokens are ``"counted"`` or as ``"published"``; memory for ``held`` tokens is beside that of
    ``"SnapKV"`` and ``"All KV"``.
    """
    found = {}
    for name, (shape, r) in models.items():
        found[name] = {way: float(speed_up(shape, n, k, r, way == "published")) for way in ("counted", "published")}
        gem = peak_memory(shape, "GemFilter", held, k, t, r, loaded=False)
        found[name] |= {of: float(1 - gem / peak_memory(shape, of, held, k, t, r)) for of in ("SnapKV", "All KV")}
    return found


def costs(saved) -> dict[str, dict[str, float]]:
    """Return the numbers of the claims on work and memory, by claim and name of its rule, from :func:`savings`."""
    llama = saved["LLaMA 3.1 8B"]
    speeds = [one[way] for one in saved.values() for way in ("counted", "published")]
    return {
        "speed-up-on-the-prompt": {way: llama[way] for way in ("counted", "published")},
        "speed-up-of-all-three-models": {"least": min(speeds), "most": max(speeds)},
        "memory-by-the-theorem": {"value": max(one["SnapKV"] for one in saved.values())},
        "memory-beside-all-kv": {"value": llama["All KV"]},
    }
