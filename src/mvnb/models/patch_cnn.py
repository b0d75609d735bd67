"""Two-layer patch network of the multi-view papers, with hand-derived gradients of its cross-entropy, plain or with Mixup.

All functions operate on stacks of replicas: weights and data have leading axes, over which the computation is vectorised.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb._checks import require_within
from mvnb.blocks import CACHED, in_parts
from mvnb.gradients import returns_gradients, weight_gradient
from mvnb.models.activations import smoothed_relu, smoothed_relu_and_slope

_SHAPES = {
    "weight": "R classes filters dim",
    "x": "R n patches dim",
    "y": "int R n",
    "multiplicity": "R patches",
    "lam": "R n n",
}
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
_GPU_PART = 1 << 25  # elements of a tensor of pairs on a GPU, 130 MB in float32: few calls matter more than the cache


def patch_features(
    weight: Tensor, x: Tensor, multiplicity: Tensor | None, power: int, threshold: float, bias: Tensor | None = None
) -> Tensor:
    """Return the response of each filter summed over patches, ``sum_p s(<w_r, x^(p)> + b_r)`` ``(..., n, filters)``.

    ``s`` is the smoothed ReLU with the given ``power`` and ``threshold``; power 1 is the ReLU. ``weight`` has shape
    ``(..., filters, dim)`` and ``x`` has shape ``(..., n, patches, dim)``, with equal or broadcastable leading axes. ``bias``
    ``(..., filters)`` is zero by default. ``multiplicity`` ``(patches,)``, the weight of each patch in the sum, is one by
    default. Differentiable.

    >>> x = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])
    >>> patch_features(torch.eye(2), x, torch.tensor([1, 2]), power=1, threshold=1.0)
    tensor([[7., 2.]])
    """
    response = x.flatten(-3, -2) @ weight.mT  # (..., n * patches, filters)
    if bias is not None:
        response = response + bias[..., None, :]
    response = smoothed_relu(response, power, threshold).unflatten(-2, x.shape[-3:-1])
    if multiplicity is None:
        return response.sum(-2)
    return torch.einsum("...pf,p->...f", response, multiplicity.to(response.dtype))


def patch_logits(
    weight: Tensor, x: Tensor, multiplicity: Tensor | None, power: int, threshold: float, bias: Tensor | None = None
) -> Tensor:
    """Return the logits ``(..., n, n_classes)``, the summed responses of each class's filters to all patches. Differentiable.

    The logit of class y is ``sum_r sum_p s(<w_{y,r}, x^(p)> + b_{y,r})`` with the smoothed ReLU ``s``. ``weight`` has shape
    ``(..., n_classes, n_filters, dim)`` and ``bias`` has shape ``(..., n_classes, n_filters)``; see :func:`patch_features` for
    the other arguments. Source: Chidambaram et al. 2024, Def. 4.2, where the bias is zero.

    >>> x = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])
    >>> patch_logits(torch.eye(2).repeat(3, 1, 1), x, torch.tensor([1, 2]), power=1, threshold=1.0)
    tensor([[9., 9., 9.]])
    """
    bias = None if bias is None else bias.flatten(-2)
    features = patch_features(weight.flatten(-3, -2), x, multiplicity, power, threshold, bias)
    return features.unflatten(-1, weight.shape[-3:-1]).sum(-1)


class PatchObjective:
    """Cross-entropy of a stack of patch networks, plain or with Mixup, with a hand-derived gradient.

    This is an objective for :func:`mvnb.training.fit`. Call it with ``params["weight"]`` ``(R, n_classes, n_filters, dim)``,
    inputs ``x`` ``(R, n, patches, dim)``, labels ``y`` ``(R, n)`` and ``multiplicity`` ``(R, patches)``, which must be the same
    in all replicas. It returns the losses ``(R,)`` and the gradients. If ``lam`` is None, the loss is the plain cross-entropy
    (ERM). If it is 0.5 or a tensor ``(R, n, n)``, the loss mixes every pair of inputs as ``lam x_i + (1 - lam) x_j`` and their
    labels likewise, and averages over all n^2 ordered pairs. Only ``lam[:, i, j]`` with ``i <= j`` is used; the pair ``(j, i)``
    counts as the same point.

    ``power`` and ``threshold`` are those of :func:`~mvnb.models.smoothed_relu`. Products and powers are computed in
    ``compute_dtype``; the weights keep their own precision, because the updates of a filter far below the threshold may be
    smaller than float32 can resolve. On a CPU, the element-wise part is compiled, unless ``compiled=False``, which selects the
    tensor operations always used on a GPU. Raises ``ValueError`` unless ``power`` is an integer of at least 2 and ``threshold``
    positive and finite; when called, if a shape is wrong or, on a CPU, a label or a mixing weight is out of range. Tensors that
    require gradients are rejected; for autograd, use :func:`patch_logits`. Source: Chidambaram et al. 2024, eqs. (A.9) and
    (A.10).

    >>> from mvnb import data, training
    >>> x, y, multiplicity = training.stack([data.MultiView(3, n_patches=20).sample(8, seed) for seed in range(5)])
    >>> objective = PatchObjective(power=4, threshold=0.1)
    >>> value, grads = objective({"weight": torch.zeros(5, 3, 2, 6)}, x, y, multiplicity, lam=0.5)
    >>> value.shape, grads["weight"].shape
    (torch.Size([5]), torch.Size([5, 3, 2, 6]))
    """

    def __init__(self, power: int, threshold: float, compute_dtype=torch.float32, compiled: bool = True):
        if not (power % 1 == 0 and power >= 2):
            raise ValueError(f"power must be an integer of at least 2, got {power}")
        if not 0 < threshold < torch.inf:
            raise ValueError(f"threshold must be positive and finite, got {threshold}")
        self.power, self.threshold, self.dtype, self.compiled = int(power), float(threshold), compute_dtype, compiled

    @returns_gradients(**_SHAPES)
    def __call__(self, params: dict[str, Tensor], x: Tensor, y: Tensor, multiplicity: Tensor, lam=None):
        weight = params["weight"]
        n, n_classes = y.shape[1], weight.shape[1]
        multiplicity = self._checked(y, multiplicity, lam, n_classes)
        x = x.to(self.dtype).flatten(1, 2)  # (R, n * patches, dim)
        flat = (weight.flatten(1, 2) / self.threshold).to(self.dtype)  # (R, class * filter, dim)
        fused = self.compiled and x.device.type == "cpu"
        work = self._fused if fused else self._tensors

        def part(xs: Tensor, ws: Tensor, ys: Tensor, mix) -> tuple[Tensor, Tensor]:
            # Pre-activations in units of the threshold, which cancels in the gradient: (R, n * patches, class * filter).
            pre = torch.bmm(xs, ws.mT)
            loss, d_pre = work(pre.view(len(ys), n, -1, pre.shape[-1]), ys, multiplicity, n_classes, mix)
            return loss, weight_gradient(d_pre.view(pre.shape), xs)

        chunk = len(y)
        if fused:
            # As many replicas at a time as fit into the cache.
            chunk = max(1, CACHED // (x.shape[1] * flat.shape[1]))
        loss, grad = in_parts(part, (x, flat, y, lam), chunk)
        return loss, {"weight": grad.to(weight.dtype).reshape(weight.shape)}

    @returns_gradients(**_SHAPES)
    def descend(self, params, x: Tensor, y: Tensor, multiplicity: Tensor, lam=None, *, velocity, lr, momentum, time, steps):
        """Take steps of gradient descent in place in one call of a kernel, and return the losses ``(R,)`` before the first.

        Return None for large networks and where the gradient is not compiled. :func:`mvnb.training.fit` calls this method; the
        kernel describes the arguments.
        """
        weight = params["weight"]
        multiplicity = self._checked(y, multiplicity, lam, weight.shape[1])
        small = x[:1, ..., 0].numel() * weight[:1, ..., 0].numel() <= CACHED  # PyTorch's products of large matrices are faster
        if not (small and self.compiled and x.device.type == "cpu" and weight.is_contiguous()):
            return None
        from mvnb.models import _patch_kernels

        y, lam, common = self._arguments(y, multiplicity, weight.shape[1], lam)
        weight, velocity = (part.flatten(1, 2).numpy() for part in (weight, velocity["weight"]))
        loss, x = np.zeros(len(y)), x.to(self.dtype).contiguous().numpy()
        _patch_kernels.descend(weight, velocity, x, y, lam, steps, lr, momentum, time, loss, *common)
        return torch.from_numpy(loss * common[-1])

    def _checked(self, y: Tensor, multiplicity: Tensor, lam, n_classes: int) -> Tensor:
        """Return the row of ``multiplicity`` that all replicas share; raise ``ValueError`` if an argument is out of range."""
        if not (lam is None or torch.is_tensor(lam) or lam == 0.5):
            raise ValueError(f"lam must be None, 0.5 or a tensor of shape (R, n, n), got {lam!r}")
        if torch.is_tensor(lam):
            require_within("PatchObjective: lam", lam, 0, 1)
        require_within("PatchObjective: y", y, 0, n_classes - 1)  # compiled kernels do not check their indices
        if y.device.type == "cpu" and not (multiplicity == multiplicity[:1]).all():  # on a GPU the check would wait for it
            raise ValueError("PatchObjective: multiplicity must be the same in all replicas, got different rows")
        return multiplicity[0].to(self.dtype)

    def _arguments(self, y: Tensor, multiplicity: Tensor, n_classes: int, lam) -> tuple:
        """Return the kernels' labels, mixing weights and other arguments; every other layout would compile another kernel."""
        kind, points = _NUMPY[self.dtype], y.shape[1] if lam is None else y.shape[1] ** 2
        tiny = np.finfo(kind).tiny
        floor = float(tiny) ** (1 / (self.power - 1))
        scalars = [kind(v) for v in (1 / self.power, floor, tiny, self.threshold, 1 / points)]
        if lam is not None:
            lam = torch.as_tensor(lam, dtype=self.dtype).expand(*y.shape, y.shape[1]).contiguous().numpy()
        return y.contiguous().numpy(), lam, (multiplicity.contiguous().numpy(), n_classes, self.power - 1, *scalars)

    def _fused(self, pre: Tensor, y: Tensor, multiplicity: Tensor, n_classes: int, lam) -> tuple[Tensor, Tensor]:
        from mvnb.models import _patch_kernels  # importing numba takes half a second; few chapters need it

        loss, points = np.zeros(len(pre)), y.shape[1] if lam is None else y.shape[1] ** 2
        y, lam, common = self._arguments(y, multiplicity, n_classes, lam)
        if lam is None:
            _patch_kernels.plain(pre.numpy(), y, *common, loss)
            return torch.from_numpy(loss / points), pre
        grad = torch.zeros_like(pre)
        _patch_kernels.mixed(pre.numpy(), y, lam, *common, loss, grad.numpy())
        return torch.from_numpy(loss / points), grad

    def _tensors(self, pre: Tensor, y: Tensor, multiplicity: Tensor, n_classes: int, lam) -> tuple[Tensor, Tensor]:
        shape, pre = pre.shape, pre.flatten(2)
        pool = torch.eye(n_classes, dtype=self.dtype, device=pre.device).repeat_interleave(shape[-1] // n_classes, 0)
        pool = torch.einsum("p,fk->pfk", multiplicity, pool).flatten(0, 1)
        target = F.one_hot(y, n_classes).to(self.dtype)
        loss, d_pre = self._plain(pre, target, pool) if lam is None else self._mixed(pre, target, pool, lam)
        points = shape[1] if lam is None else shape[1] ** 2
        return loss / points, d_pre.view(shape) / points

    def _plain(self, pre: Tensor, target: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = smoothed_relu_and_slope(pre, self.power)
        log_prob = (value @ pool * self.threshold).log_softmax(-1)
        loss = -(target * log_prob).sum((1, 2), dtype=torch.float64)
        # Sum the other classes' probabilities: 1 - probability would round to 0 long before they vanish.
        others = log_prob.exp() * (1 - target)
        d_logits = others - target * others.sum(-1, keepdim=True)
        return loss, slope.mul_(d_logits @ pool.T)

    def _mixed(self, pre: Tensor, target: Tensor, pool: Tensor, lam) -> tuple[Tensor, Tensor]:
        replicas, n, width = pre.shape
        d_pre, loss = torch.zeros_like(pre), pre.new_zeros(replicas, dtype=torch.float64)
        most = CACHED if pre.device.type == "cpu" else _GPU_PART
        rows = max(1, most // (replicas * n * width))
        for a in range(0, n, rows):
            i, j = slice(a, min(a + rows, n)), slice(a, n)
            if torch.is_tensor(lam):
                left = lam[:, i, j, None].to(self.dtype)  # (R, i, j, 1)
                mixed, label = (left * v[:, i, None] + (1 - left) * v[:, None, j] for v in (pre, target))
            else:  # scaling before forming pairs saves passes over the large tensor
                mixed, label = ((lam * v)[:, i, None] + ((1 - lam) * v)[:, None, j] for v in (pre, target))
            # Each unordered pair counts twice, a point with itself once, and entries below the diagonal do not count.
            row = torch.arange(a, i.stop, device=pre.device)[:, None]
            column = torch.arange(a, n, device=pre.device)
            weight = 2 * (column > row).to(self.dtype) + (column == row)
            value, slope = smoothed_relu_and_slope(mixed, self.power)  # (R, i, j, patch * class * filter)
            block_loss, d_logits = _cross_entropy(value @ pool * self.threshold, label, weight)
            loss += block_loss
            slope.mul_(d_logits @ pool.T)
            if torch.is_tensor(lam):
                d_pre[:, i] += (slope * left).sum(2)
                d_pre[:, j] += slope.mul_(1 - left).sum(1)
            else:
                d_pre[:, i] += lam * slope.sum(2)
                d_pre[:, j] += (1 - lam) * slope.sum(1)
        return loss, d_pre


def _cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted sum over points of the cross-entropy ``(R,)`` with soft labels, and its gradient in the logits."""
    log_prob = logits.log_softmax(-1)
    point = -(target * log_prob).sum(-1)
    grad = log_prob.exp().sub_(target)
    point, grad = point * weight, grad.mul_(weight[..., None])
    return point.flatten(1).sum(1, dtype=torch.float64), grad
