"""Training: stacks of patch networks on hierarchical multi-view data, and of networks on images (Hong et al. 2024, sec. 6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb import losses, probes, training
from mvnb.models import MLP
from mvnb.papers.fine_grained_labels import measure, theory
from mvnb.papers.fine_grained_labels.data import TARGET, HierarchicalMultiView, HierarchicalPatches, LabelledImages, Split
from mvnb.papers.fine_grained_labels.measure import margins, own_growth
from mvnb.papers.fine_grained_labels.model import (
    SCALE,
    SLACK,
    ReluPatchObjective,
    Start,
    compressed_detectors,
    convolutions,
    detector_masks,
    resnet34,
    stratified_detectors,
)
from mvnb.training import Params, Run


@dataclass(frozen=True)
class Trainer:
    """Training of stacks of networks on fresh easy points, and of their tests.

    ``purpose`` numbers the random streams: run r of an experiment has the seed ``seed + 10^6 purpose + r``. ``step_size`` is
    that of the idealised networks.
    """

    replicas: int
    seed: int
    device: torch.device
    bias_rate: float
    step_size: float

    def generators(self, purpose: int) -> list[torch.Generator]:
        """Return one generator per run."""
        return training.generators(self.seed + purpose * 10**6, self.replicas)

    def drawn(self, world: HierarchicalMultiView, n_labels: int, n_neurons: int, n_detectors: float) -> Start:
        """Draw compressed networks; on average ``n_detectors`` of the ``n_neurons`` of a class fire on each feature."""
        threshold, n = theory.detector_threshold(n_neurons, n_detectors), world.n_features
        params = compressed_detectors(n_labels, n_neurons, n, world.dim, SCALE, threshold, self.generators(0), SLACK)
        return training.to_device(Start(params, *detector_masks(params["weight"], n, SCALE, threshold, SLACK)), self.device)

    def idealised(self, world: HierarchicalMultiView, n_labels: int) -> Start:
        """Return networks in which each class has one detector of each feature and no other neuron."""
        params = stratified_detectors(n_labels, world.n_features, world.dim, SCALE, self.replicas)
        masks = detector_masks(params["weight"], world.n_features, SCALE, 1.0, 0.05)
        return training.to_device(Start(params, *masks), self.device)

    def held_out(self, world: HierarchicalMultiView, purpose: int, copies: int, hard: bool = False) -> HierarchicalPatches:
        """Draw ``copies`` test points of each subclass for each run."""
        n = 2 * world.n_subclasses * copies
        samples = [world.sample(n, g, hard=hard) for g in self.generators(purpose)]
        return training.to_device(training.stack(samples), self.device)

    def train(
        self,
        world: HierarchicalMultiView,
        label: Callable[[HierarchicalPatches], Tensor],
        table: np.ndarray,
        purpose: int,
        steps: int,
        *,
        start: Start | None = None,
        step_size: float | None = None,
        tests: Mapping[str, HierarchicalPatches] | None = None,
        log_at: Sequence[int] | None = None,
        points: int = 2,
        superclasses: bool = False,
    ) -> Run:
        """Train on batches with ``points`` of each subclass; log ``"growth"`` and the :func:`margins` on ``tests`` by name.

        ``label`` maps points to the labels, and ``table`` ``(label, feature)`` has Pr[label | feature]. Networks are idealised
        unless ``start`` is given. With ``superclasses`` the max read-out is trained.
        """
        start = start or self.idealised(world, len(table))
        fresh = training.Fresh(world.sample, 2 * world.n_subclasses * points, self.generators(purpose), device=self.device)
        measured = {name: partial(margins, test=test) for name, test in (tests or {}).items()}
        return training.fit(
            ReluPatchObjective(self.bias_rate, superclasses),
            start.params,
            lambda step: (fresh(step)[0], label(HierarchicalPatches(*fresh(step)))),
            steps=steps,
            optimizer=training.SGD(step_size or self.step_size),
            probes={"growth": partial(own_growth, start=start, table=table), **measured},
            log_at=log_at,
        )


class ImageTrainer:
    """Stacks of networks, one per run, trained on the images ``chosen`` ``(R, n)`` by each run with the paper's recipe.

    Momentum is 0.9 and the weight decay 5e-5. The step rises over the first 8 % of the steps and falls along a cosine.
    Fine-tuning has a quarter of the step and of the batch. A ResNet-34 is trained on crops of 7/8 of the side, half of them
    flipped.
    """

    def __init__(
        self,
        images: LabelledImages,
        chosen: Tensor,
        network: str,
        *,
        epochs: int,
        batch: int,
        step_size: float,
        seed: int,
        device,
    ):
        self.images, self.chosen, self.cropped = images, chosen, network == "resnet34"
        self.epochs, self.batch, self.step_size, self.seed, self.device = epochs, batch, step_size, seed, device
        self.target = images.levels[TARGET][chosen]
        some = images.x[:: 1 + len(images.x) // 10_000].float()
        self.mean, self.std = some.mean((0, 2, 3))[:, None, None], some.std((0, 2, 3))[:, None, None]

    def train(self, labels: Tensor, backbone: Params | None = None) -> tuple[nn.Module, Params]:
        """Train on ``labels`` ``(R, n)`` and return the network and the parameters; fine-tune if ``backbone`` is given."""
        share = 1 if backbone is None else 4
        batch = max(1, min(self.batch // share, labels.shape[1]))
        per_epoch = labels.shape[1] // batch
        steps, streams = self.epochs * per_epoch, training.generators(self.seed + 10**7, len(labels))
        modules, order = [], []
        for r in range(len(labels)):
            torch.manual_seed(self.seed + r)
            modules.append(self._network(int(labels.max()) + 1))

        def draw(step: int) -> tuple[Tensor, Tensor]:
            place = step % per_epoch
            if place == 0:
                order[:] = [torch.randperm(labels.shape[1], generator=g) for g in streams]
            rows = torch.stack(order)[:, place * batch : (place + 1) * batch]
            x = [self._pixels(self.images.x[own[i]], g) for own, i, g in zip(self.chosen, rows, streams)]
            return torch.stack(x), labels.gather(1, rows)

        def step_size(t: int) -> float:
            return self.step_size / share * min(1, (t + 1) / (0.08 * steps)) * (1 + math.cos(math.pi * t / steps)) / 2

        run = training.fit(
            training.ModuleObjective(modules[0], losses.cross_entropy),
            training.to_device(training.stack(modules), self.device) | (backbone or {}),
            training.in_blocks(draw, self.device, 2),
            steps=steps,
            optimizer=training.SGD(step_size, momentum=0.9, weight_decay=5e-5),
        )
        return modules[0], run.params

    def errors(self, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Pretrain on ``labels``; return the test errors on the target of a probe and after fine-tuning, in percent."""
        net, params = self.train(labels)
        backbone = {name: value for name, value in params.items() if name.startswith("0.")}
        seen, unseen = (self._outputs(net[:1], backbone, test) for test in (False, True))
        scale = seen.square().sum(-1).mean(1).sqrt()[:, None, None]
        how = (int(self.target.max()) + 1, training.Adam(0.3), 150, scale)
        probed = probes.linear_probe(seen, self.target.to(self.device), *how)(unseen)
        return self._error(probed), self.error(backbone)

    def error(self, backbone: Params | None = None) -> np.ndarray:
        """Train on the target, from a backbone or from the start, and return the test errors in percent."""
        return self._error(self._outputs(*self.train(self.target, backbone), True))

    def _error(self, logits: Tensor) -> np.ndarray:
        return 100 - 100 * probes.accuracy(logits, self.images.y_test.to(self.device)).cpu().numpy()

    def _network(self, n_labels: int) -> nn.Sequential:
        channels, side = self.images.x.shape[1:3]
        if self.cropped:
            return nn.Sequential(resnet34(channels), nn.Linear(512, n_labels))
        body = nn.Sequential(nn.Flatten(), MLP((channels * side * side, 64, 32)), nn.ReLU())
        return nn.Sequential(body, nn.Linear(32, n_labels))

    def _outputs(self, net: nn.Module, params: Params, test: bool) -> Tensor:
        """Return the outputs ``(R, n, ...)`` on the test images, or on the training images of each run."""
        x, index = self.images.x, self.chosen
        if test:
            x, index = self.images.x_test, torch.arange(len(self.images.x_test)).expand(len(index), -1)
        parts = (torch.stack([self._pixels(x[i]) for i in part]) for part in index.split(500, 1))
        return torch.cat([training.predict(net, params, part.to(self.device)) for part in parts], 1)

    def _pixels(self, x: Tensor, g: torch.Generator | None = None) -> Tensor:
        """Return standardised images ``(n, ...)``; cut from the middle, or at random and flipped if ``g`` is given."""
        x = (x.float() - self.mean) / self.std
        if not self.cropped:
            return x
        width = x.shape[-1] * 7 // 8
        top, left = [(x.shape[-1] - width) // 2] * 2
        if g is not None:
            top, left = torch.randint(x.shape[-1] - width + 1, (2,), generator=g).tolist()
            x = torch.where(torch.rand(len(x), 1, 1, 1, generator=g) < 0.5, x.flip(-1), x)
        return x[..., top : top + width, left : left + width]


def untrained(split: Split, n_labels: int, width: int, seed: int) -> nn.Sequential:
    """Return an untrained convolutional network for the images of ``split``."""
    torch.manual_seed(seed)
    x = split.x["target"]
    return convolutions(x.shape[1], n_labels, width).to(x.device, memory_format=torch.channels_last)


def descend(net, x, y, *, steps: int, batch: int, step_size: float, weight_decay: float, seed: int) -> list[float]:
    """Train with momentum, a linear warm-up, a cosine and flipped, shifted images; return the loss of each step."""
    g = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=step_size, momentum=0.9, weight_decay=weight_decay)
    rise = max(1, steps // 12)

    def scale(step):
        return (step + 1) / rise if step < rise else (1 + math.cos(math.pi * (step - rise) / (steps - rise))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    net.train()
    order, history = torch.empty(0, dtype=torch.long), []
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(len(x), generator=g)])
        rows, order = order[:batch].to(x.device), order[batch:]
        flip = torch.rand(batch, generator=g).to(x.device) < 0.5
        down, right = torch.randint(7, (2,), generator=g).tolist()
        seen = torch.where(flip[:, None, None, None], x[rows].flip(-1), x[rows])
        seen = F.pad(seen, (3, 3, 3, 3))[..., down : down + x.shape[-2], right : right + x.shape[-1]]
        loss = F.cross_entropy(net(seen), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        history.append(loss.detach())
    return torch.stack(history).tolist()


def pretrained(
    split: Split, labels: Tensor | None, width: int, seed: int, path: Path, **how
) -> tuple[nn.Sequential, dict[str, float]]:
    """Return a network trained on ``labels``, its training error and the fall of its loss; saved to ``path``.

    ``how`` is passed to :func:`descend`. Without labels the network is untrained.
    """
    if labels is None:
        return untrained(split, 2, width, seed), {}
    x, labels = split.x["pretraining"], labels.to(split.x["pretraining"].device)
    net = untrained(split, int(labels.max()) + 1, width, seed)
    if path.exists():
        saved = torch.load(path, map_location=labels.device)
        net.load_state_dict(saved["net"])
        return net, saved["found"]
    fell = measure.fall(descend(net, x, labels, seed=seed, **how))
    found = {"train": measure.percent(measure.wrong(net, x, labels)), "fell": fell}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"net": net.state_dict(), "found": found}, path)
    return net, found


def fine_tuned(net: nn.Sequential, split: Split, part: str, width: int, seed: int, **how) -> tuple[nn.Sequential, list[float]]:
    """Return a copy of ``net`` with a new last layer, trained on the target of one part, and the losses of its steps."""
    copied = untrained(split, 2, width, seed + 10**5)
    copied[:-1].load_state_dict(net[:-1].state_dict())
    return copied, descend(copied, split.x[part], split.target(part), seed=seed + 10**5, **how)
