"""Training: stacks of patch networks on hierarchical multi-view data, and of networks on images (Hong et al. 2024, sec. 6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb import losses, probes, training
from mvnb.models import MLP
from mvnb.papers.fine_grained_labels import data, measure, model, theory
from mvnb.papers.fine_grained_labels.data import HierarchicalMultiView, HierarchicalPatches, LabelledImages, Labels, Split
from mvnb.papers.fine_grained_labels.model import SCALE, SLACK, Start
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
        params = model.compressed_detectors(n_labels, n_neurons, n, world.dim, SCALE, threshold, self.generators(0), SLACK)
        masks = model.detector_masks(params["weight"], n, SCALE, threshold, SLACK)
        return training.to_device(Start(params, *masks), self.device)

    def idealised(self, world: HierarchicalMultiView, n_labels: int) -> Start:
        """Return networks in which each class has one detector of each feature and no other neuron."""
        params = model.stratified_detectors(n_labels, world.n_features, world.dim, SCALE, self.replicas)
        masks = model.detector_masks(params["weight"], world.n_features, SCALE, 1.0, 0.05)
        return training.to_device(Start(params, *masks), self.device)

    def random(self, world: HierarchicalMultiView, n_labels: int, n_neurons: int, scale: float) -> Start:
        """Return networks with Gaussian weights and no biases; no neuron counts as a detector."""
        weight = scale * torch.stack([torch.randn(n_labels, n_neurons, world.dim, generator=g) for g in self.generators(0)])
        params = {"weight": weight, "bias": torch.zeros(weight.shape[:-1])}
        none = torch.zeros(*weight.shape[:-1], world.n_features, dtype=torch.bool)
        return training.to_device(Start(params, none, none), self.device)

    def held_out(self, world: HierarchicalMultiView, purpose: int, copies: int, hard: bool = False) -> HierarchicalPatches:
        """Draw ``copies`` test points of each subclass for each run."""
        n = 2 * world.n_subclasses * copies
        samples = [world.sample(n, g, hard=hard) for g in self.generators(purpose)]
        return training.to_device(training.stack(samples), self.device)

    def train(
        self,
        world: HierarchicalMultiView,
        labels: Labels,
        purpose: int,
        steps: int,
        *,
        start: Start | None = None,
        step_size: float | None = None,
        tests: Mapping[str, HierarchicalPatches] | None = None,
        probes: Mapping[str, Callable[[Params], Tensor]] | None = None,
        log_at: Sequence[int] | None = None,
        points: int = 2,
        superclasses: bool = False,
    ) -> Run:
        """Train on batches with ``points`` of each subclass.

        Log ``"growth"``, the margins on ``tests`` by name, and ``probes``. Networks are idealised unless ``start`` is given.
        With ``superclasses`` the max read-out is trained.
        """
        start = start or self.idealised(world, len(labels.table))
        fresh = training.Fresh(world.sample, 2 * world.n_subclasses * points, self.generators(purpose), device=self.device)
        looks = {name: partial(measure.margins, test=test) for name, test in (tests or {}).items()}
        looks["growth"] = partial(measure.own_growth, start=start, table=labels.table)
        return training.fit(
            model.ReluPatchObjective(self.bias_rate, superclasses),
            start.params,
            lambda step: (fresh(step)[0], labels.of(HierarchicalPatches(*fresh(step)))),
            steps=steps,
            optimizer=training.SGD(step_size or self.step_size),
            probes=looks | (probes or {}),
            log_at=log_at,
        )


def by_kind(trainer: Trainer, world: HierarchicalMultiView, kinds: Mapping, steps: int, tests: Mapping) -> dict[str, Run]:
    """Train idealised networks on each kind of labels; log the ratio at the max read-out, too, at step 1 and at the end."""
    runs = {}
    for name, labels in kinds.items():
        start = trainer.idealised(world, len(labels.table))
        probes = {"read-out": partial(measure.read_out_ratio, start=start, n_subclasses=world.n_subclasses)}
        how = {"start": start, "tests": tests, "probes": probes, "points": 8, "log_at": [1, steps]}
        runs[name] = trainer.train(world, labels, 7, steps, **how)
    return runs


def by_patches(trainer: Trainer, world: HierarchicalMultiView, start: Start, counts: Sequence[int]) -> np.ndarray:
    """Return firing on noise and error on easy points after ten steps on coarse labels, ``(2, number of patches, run)``."""
    found = []
    for n_patches in counts:
        many = replace(world, n_patches=n_patches)
        params = trainer.train(many, data.true_labels(world.n_subclasses, 1), 8, 10, start=start, points=4).params
        test = trainer.held_out(many, 9, copies=64)
        found.append((measure.firing_on_noise(params, test), measure.errors(measure.margins(params, test))))
    return np.swapaxes(found, 0, 1)


def by_subclasses(trainer: Trainer, world: HierarchicalMultiView, sizes: Sequence[int], steps: int) -> tuple[np.ndarray, ...]:
    """Train on coarse labels with each number of subclasses.

    Return the ratio of growth at step 5, and the hard errors at the end without and with strong noise, ``(size, run)`` each.
    """
    found = []
    for size in sizes:
        this = replace(world, n_subclasses=size, dim=max(world.dim, 2 + 2 * size))
        run = trainer.train(this, data.true_labels(size, 1), 10, steps, log_at=[5, steps])
        worlds, copies = (replace(this, strong_noise=0.0), this), -(-384 // (2 * size))
        tests = [trainer.held_out(one, 11, copies, hard=True) for one in worlds]
        found.append((measure.growth_ratio(run)[0], *(measure.errors(measure.margins(run.params, test)) for test in tests)))
    return tuple(map(np.array, zip(*found)))


def fine_tune(trainer: Trainer, world: HierarchicalMultiView, run: Run, start: Start, steps: int, **how) -> Run:
    """Train the networks of a run on fine labels, from ``start``, further on coarse ones, through the max read-out."""
    coarse, fine = (data.true_labels(world.n_subclasses, groups) for groups in (1, world.n_subclasses))
    trained = start._replace(params=run.params)
    return trainer.train(world, fine._replace(of=coarse.of), 12, steps, start=trained, superclasses=True, **how)


@dataclass
class ImageTrainer:
    """Stacks of networks, one per run, trained on the images ``chosen`` ``(R, n)`` by each run with the paper's recipe.

    Momentum is 0.9 and the weight decay 5e-5. The step rises over the first 8 % of the steps and falls along a cosine.
    Fine-tuning has a quarter of the step and of the batch. A ResNet-34 is trained on crops of 7/8 of the side, half of them
    flipped.
    """

    images: LabelledImages
    chosen: Tensor
    network: str
    epochs: int
    batch: int
    step_size: float
    seed: int
    device: torch.device

    def __post_init__(self):
        images, self.cropped = self.images, self.network == "resnet34"
        self.target = images.levels[data.TARGET][self.chosen]
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
            return nn.Sequential(model.resnet34(channels), nn.Linear(512, n_labels))
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


def descend(net, x, y, *, steps: int, batch: int, step_size, weight_decay, seed: int, augment: bool = True) -> list[float]:
    """Train with momentum, a linear warm-up and a cosine; return the loss of each step.

    With ``augment`` half of the images of a batch are flipped, and the batch is shifted by at most 3 pixels.
    """
    optimizer = torch.optim.SGD(net.parameters(), lr=step_size, momentum=0.9, weight_decay=weight_decay)

    def loss(rows, g):
        rows = rows.to(x.device)
        seen = x[rows]
        if augment:
            flip = torch.rand(batch, generator=g).to(x.device) < 0.5
            down, right = torch.randint(7, (2,), generator=g).tolist()
            seen = torch.where(flip[:, None, None, None], seen.flip(-1), seen)
            seen = F.pad(seen, (3, 3, 3, 3))[..., down : down + x.shape[-2], right : right + x.shape[-1]]
        return F.cross_entropy(net(seen), y[rows])

    net.train()
    return training.minimise(optimizer, loss, len(x), steps=steps, batch=batch, seed=seed, rise=max(1, steps // 12))


def fine_tuned(net: nn.Sequential, split: Split, width: int, seed: int, **how) -> tuple[nn.Sequential, list[float]]:
    """Return a copy of ``net`` with a new last layer, trained on the target of the same images, and the losses of its steps."""
    x = split.x["pretraining"]
    copied = model.convolutions(x, 2, width, seed + 10**5)
    copied[:-1].load_state_dict(net[:-1].state_dict())
    return copied, descend(copied, x, split.target("pretraining"), seed=seed + 10**5, **how)


def image_arm(split: Split, labels, width: int, seed: int, *, steps, target_steps, step_size, tuning_step, **how) -> tuple:
    """Pretrain on ``labels``, then fine-tune; return what :mod:`measure` reads, and which test images are missed at the end.

    Without labels, the target is trained from the start for as many steps as both take, with ``step_size``. ``how`` is passed
    to :func:`descend`.
    """
    x, target = split.x["pretraining"], split.target("pretraining")
    first, length = (target, steps + target_steps) if labels is None else (labels.to(x.device), steps)
    net = model.convolutions(x, int(first.max()) + 1, width, seed)
    history = descend(net, x, first, steps=length, step_size=step_size, seed=seed, **how)
    if labels is None:
        return measure.after_training(net, history, split)
    tuned = fine_tuned(net, split, width, seed, steps=target_steps, step_size=tuning_step, **how)
    found, missed = measure.after_training(*tuned, split)
    return measure.after_pretraining(net, history, split, first) | found, missed
