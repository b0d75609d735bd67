"""What hand-written gradients are compared with: plain modules for autograd, and linearised networks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from mvnb.models import initial_parameters, patch_logits, transformer_logits
from mvnb.models.transformer import LAYER, Norm
from mvnb.papers.fourier_features.polynomial import polynomial_logits


class PatchCNN(nn.Module):
    r"""One hidden layer of filters that slide over patches; every class owns its filters.

    ``g_y(x) = sum_r sum_p s(<w_{y,r}, x^(p)>)`` with the smoothed ReLU ``s`` of exponent ``power`` and threshold
    ``threshold``; the second layer is fixed to ones. Source: Chidambaram et al. 2024, Def. 4.2.
    ``weight`` has shape ``(n_classes, n_filters, dim)`` and starts as ``N(0, init_scale^2)``; the paper's ``init_scale``
    is ``1/sqrt(dim)``, the default.
    """

    def __init__(
        self,
        n_classes: int,
        n_filters: int,
        dim: int,
        power: int = 8,
        threshold: float = 0.1,
        init_scale: float | None = None,
        generator: torch.Generator | None = None,
        dtype=torch.float64,
    ):
        super().__init__()
        self.power, self.threshold = power, threshold
        scale = 1 / math.sqrt(dim) if init_scale is None else init_scale
        self.weight = nn.Parameter(scale * torch.randn(n_classes, n_filters, dim, generator=generator, dtype=dtype))

    def forward(self, x: Tensor, multiplicity: Tensor | None = None) -> Tensor:
        """Logits ``(..., n, n_classes)`` of patches ``x`` of shape ``(..., n, patches, dim)``."""
        return patch_logits(self.weight, x, multiplicity, self.power, self.threshold)


class Transformer(nn.Module):
    """A Transformer language model: learned positions, multi-head softmax attention, ReLU MLPs, untied output matrix.

    Called with tokens ``(n, length)`` it returns logits ``(n, length, n_tokens)``.

    The parameters are those of ``initial_parameters``; ``prefix`` and ``norm`` are those of ``transformer_logits``.
    """

    def __init__(
        self,
        n_tokens: int,
        length: int,
        dim: int,
        n_layers: int,
        n_heads: int,
        generator: torch.Generator,
        *,
        hidden: int | None = None,
        norm: Norm = "pre",
        std: float = 0.02,
    ):
        super().__init__()
        self.n_heads, self.norm = n_heads, norm
        values = initial_parameters(n_tokens, length, dim, n_layers, generator, hidden=hidden, std=std)
        self.embedding, self.positions, self.head = (nn.Parameter(values[k]) for k in ("embedding", "positions", "head"))
        self.layers = nn.ParameterDict({k.removeprefix(LAYER): v for k, v in values.items() if k.startswith(LAYER)})

    def forward(self, tokens: Tensor, prefix: Tensor | int = 0) -> Tensor:
        params = {k: v[None] for k, v in self.named_parameters()}
        prefix = prefix[None] if torch.is_tensor(prefix) else prefix
        return transformer_logits(params, tokens[None], prefix, n_heads=self.n_heads, norm=self.norm)[0]


class PolynomialNet(nn.Module):
    r"""``f(a) = sum_i (u_{i,1}(a_1) + ... + u_{i,k}(a_k))^k w_i``, homogeneous of degree k + 1 in its parameters.

    ``u`` ``(k, p, width)`` are the embeddings of the k inputs, at least 2, and ``w`` ``(width, p)`` the output weights, both
    given. Source: Shi thesis 2024, eq. (4.2).
    """

    def __init__(self, u: Tensor, w: Tensor):
        super().__init__()
        self.u, self.w = nn.Parameter(u), nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(n, p)`` at integer inputs ``x`` ``(n, k)``."""
        return polynomial_logits({"u": self.u[None], "w": self.w[None]}, x[None])[0]


def parameter_jacobian(module: nn.Module, params: dict[str, Tensor], x: Tensor, chunk: int = 500) -> Tensor:
    """Derivative of a module's one output in all its parameters: ``(n, P)`` for inputs ``x`` ``(n, ...)``.

    Rows are the features of the empirical tangent kernel ``J J^T`` (Jacot et al. 2018); parameters in the order of ``params``,
    each flattened.
    """

    def output(p: dict[str, Tensor], z: Tensor) -> Tensor:
        return functional_call(module, p, (z[None],)).squeeze()

    rows = vmap(grad(output), (None, 0))
    parts = [torch.cat([g.flatten(1) for g in rows(params, z).values()], 1) for z in x.split(chunk)]
    return torch.cat(parts)


def linearised(module: nn.Module, params: dict[str, Tensor]) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """The module's first-order expansion around ``params``: a function of other parameters and inputs, affine in the former."""

    def call(other: dict[str, Tensor], x: Tensor) -> Tensor:
        step = {k: other[k] - params[k] for k in params}
        value, change = jvp(lambda p: functional_call(module, p, (x,)), (params,), (step,))
        return value + change

    return call
