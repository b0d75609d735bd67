"""Networks of chapter 13: encoders of pictures, with what stands between their features and a loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mvnb.gradients import Params
from mvnb.models import MLP, ResNet18, SmallConvNet
from mvnb.training import predict, stream

HEADS = {"simclr": ((), ()), "moco": ((), ()), "simsiam": ((64, 64), (16, 64)), "nnclr": ((64, 32), (64, 32))}


def make_encoder(network: str, side: int, hidden: int, features: int) -> Callable[[], nn.Module]:
    """Return a function that makes an encoder ``"mlp"``, ``"conv"`` or ``"resnet18"`` of grey pictures."""
    if network == "mlp":
        return lambda: nn.Sequential(nn.Flatten(), *MLP([side**2, hidden, features]))
    return lambda: {"conv": SmallConvNet, "resnet18": ResNet18}[network](1, features, hidden)


class ContrastiveNet(nn.Module):
    """An encoder with a projector and a predictor; maps inputs to embeddings and predictions ``(z, p)``.

    ``encoder`` maps ``(n, ...)`` to features ``(n, features)``. ``project`` has the widths of the projector's layers after the
    features, ``predict`` those of the predictor's layers after the projection; an empty one is the identity. Hidden layers have
    batch normalisation, always over the current batch, and a ReLU.
    """

    def __init__(self, encoder: nn.Module, features: int, project: Sequence[int] = (), predict: Sequence[int] = ()):
        super().__init__()
        widths = [features, *project]
        self.encoder, self.width = encoder, widths[-1]
        self.projector, self.predictor = _head(widths), _head([self.width, *predict])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.projector(self.encoder(x))
        return z, self.predictor(z)


def _head(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        hidden = i < len(widths) - 2
        layers.append(nn.Linear(a, b, bias=not hidden))
        if hidden:
            layers += [nn.BatchNorm1d(b, track_running_stats=False), nn.ReLU()]
    return nn.Sequential(*layers)


class Networks:
    """``runs`` networks with one kind of ``encoder``, of ``features`` outputs, on ``device``; run r starts alike everywhere.

    ``net`` is an encoder, for its architecture.
    """

    def __init__(self, encoder: Callable[[], nn.Module], features: int, runs: int, seed: int, device: torch.device):
        self.encoder, self.features, self.runs, self.seed, self.device = encoder, features, runs, seed, device
        self.net = encoder()

    def untrained(self, method: str) -> list[ContrastiveNet]:
        """Return the untrained networks of all runs, with the heads of ``method``."""
        nets = []
        for r in range(self.runs):
            torch.manual_seed(1_000_003 * (self.seed + r) + 17)
            nets.append(ContrastiveNet(self.encoder(), self.features, *HEADS[method]))
        return nets

    def streams(self, purpose: int) -> list[torch.Generator]:
        """Return one generator per run."""
        return [stream(self.seed, purpose + r) for r in range(self.runs)]

    def encode(self, params: Params, x: Tensor) -> Tensor:
        """Return features ``(R, n, features)`` of pictures ``(n, ...)``."""
        return encode(self.net, params, x.expand(self.runs, *x.shape))


def encode(net: nn.Module, params: Params, x: Tensor) -> Tensor:
    """Return the features ``(R, n, features)`` of inputs ``(R, n, ...)``, by a stack of encoders ``net`` in evaluation mode."""
    return predict(net, {k: params[f"encoder.{k}"] for k in net.state_dict()}, x)


def head_logits(params: Params, features: Tensor) -> Tensor:
    """Return the logits ``(R, n, classes)`` of the linear head ``head.weight``, ``head.bias`` on features ``(R, n, p)``."""
    return torch.baddbmm(params["head.bias"][:, None], features, params["head.weight"].mT)


class ColourEncoder(nn.Sequential):
    """Four 3x3 convolutions with batch normalisation, and the average over the image, of ``widths[-1]`` entries."""

    def __init__(self, widths: list[int]):
        layers: list[nn.Module] = []
        for (inputs, outputs), stride in zip(itertools.pairwise([3, *widths]), (2, 2, 2, 1)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def colour_network(widths: list[int], seed: int) -> ContrastiveNet:
    """Return an untrained encoder of colour images, with two layers between its features and the contrastive loss."""
    torch.manual_seed(seed)
    return ContrastiveNet(ColourEncoder(widths), widths[-1], (192, 64))
