"""Contrastive pretraining on growing unions of small sets of pictures, and what can be read from the features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb import kept_runs
from mvnb.data import load_images, resize
from mvnb.gradients import Params
from mvnb.models import MLP, ResNet18, SmallConvNet
from mvnb.papers.contrastive_tradeoff.data import PICTURE_SETS, Augmentation
from mvnb.papers.contrastive_tradeoff.training import (
    ContrastiveNet,
    ContrastiveObjective,
    RegularisedObjective,
)
from mvnb.training import AdamW, fit, generators, in_blocks, predict, stream, to_device

TARGET = "handwriting"
SETS = (TARGET, "photographs", "relief", "letters")
HEADS = {"simclr": ((), ()), "moco": ((), ()), "simsiam": ((64, 64), (16, 64)), "nnclr": ((64, 32), (64, 32))}
SLOWER = {"moco": 10, "simsiam": 3}  # by what the step size is divided
COOLER = {"moco": 3}  # and the temperature


def load_pictures(dataset: str, side: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the four sets, in a fixed random order: grey pictures ``(n, 1, side, side)`` and labels ``(n,)``."""
    target = load_images(dataset)
    x = resize(torch.cat([target.x_train, target.x_test]), side).mean(1, keepdim=True)
    sets = {TARGET: (x, torch.cat([target.y_train, target.y_test]))} | {name: PICTURE_SETS[name](side) for name in SETS[1:]}
    orders = {name: torch.randperm(len(y), generator=torch.Generator().manual_seed(0)) for name, (_, y) in sets.items()}
    return {name: (x[orders[name]], y[orders[name]]) for name, (x, y) in sets.items()}


def check_own_images(sets: Mapping[str, tuple[Tensor, Tensor]], n: int) -> None:
    """Raise ``ValueError`` if ``n`` is more than half of one of the sets, the rest of which is for labels and tests."""
    name, most = min(((name, len(y) // 2) for name, (_, y) in sets.items()), key=lambda one: one[1])
    if n > most:
        raise ValueError(f"own_images must be at most {most}, half of the set {name}, got {n}")


def make_encoder(network: str, side: int, hidden: int, features: int) -> Callable[[], nn.Module]:
    """Return a function that makes an encoder ``"mlp"``, ``"conv"`` or ``"resnet18"`` of grey pictures."""
    if network == "mlp":
        return lambda: nn.Sequential(nn.Flatten(), *MLP([side**2, hidden, features]))
    return lambda: {"conv": SmallConvNet, "resnet18": ResNet18}[network](1, features, hidden)


def ridge_accuracy(train: Tensor, y: Tensor, test: Tensor, y_test: Tensor, classes: int, strength: float = 0.3) -> Tensor:
    """Return the accuracy ``(R,)`` of ridge regression from features ``(R, n, D)`` to one-hot labels ``(n,)``.

    The penalty is ``strength`` times the mean squared size of a feature's column.
    """
    train, test = train.double(), test.double()
    centre = train.mean(1, keepdim=True)
    a, goal = train - centre, F.one_hot(y, classes).double().to(train.device)
    gram = a.mT @ a
    size = gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-9)[:, None, None]  # above 0 for blank pictures
    penalty = strength * size * torch.eye(a.shape[-1], device=a.device)
    fitted = torch.linalg.solve(gram + penalty, a.mT @ (goal - goal.mean(0)))
    logits = (test - centre) @ fitted + goal.mean(0)
    return (logits.argmax(-1) == y_test.to(a.device)).double().mean(1).cpu()


class Study:
    """Stacks of ``runs`` networks, one stack for each method and union of sets; run r starts alike on every union.

    ``sets`` are those of :func:`load_pictures`, with pictures on ``device``. Of each set
    ``own`` pictures are used without labels. ``labels`` are numbers of labelled pictures of the target, to which all is added.
    """

    def __init__(
        self, sets, own: int, encoder, features: int, labels: Sequence[int], *, runs: int, seed: int, device, batch: int,
        step_size: float, temperature: float,
    ):  # fmt: skip
        self.sets, self.own, self.encoder, self.features, self.runs, self.seed = sets, own, encoder, features, runs, seed
        self.device, self.batch, self.step_size, self.temperature = device, batch, step_size, temperature
        self.classes = {name: int(y.max()) + 1 for name, (_, y) in sets.items()}
        x, y = self.sets[TARGET]
        self.n_test = min(1000, (len(y) - own) // 2)
        self.known, self.test = ((x[part], y[part]) for part in (slice(own, -self.n_test), slice(-self.n_test, None)))
        self.labels = [m for m in labels if m < len(self.known[1])] + [len(self.known[1])]
        self.augment = Augmentation(scale=(0.5, 1.0), degrees=15.0)
        self.net = encoder()

    def streams(self, purpose: int) -> list[torch.Generator]:
        """Return one generator per run."""
        return [stream(self.seed, purpose + r) for r in range(self.runs)]

    def networks(self, method: str) -> list[ContrastiveNet]:
        """Return the untrained networks of all runs."""
        nets = []
        for r in range(self.runs):
            torch.manual_seed(1_000_003 * (self.seed + r) + 17)
            nets.append(ContrastiveNet(self.encoder(), self.features, *HEADS[method]))
        return nets

    def views(self, x: Tensor, rows: Tensor, streams: Sequence[torch.Generator]) -> Callable[[int], tuple[Tensor, ...]]:
        """Return batches of two views of random pictures of ``x`` and their places; ``rows`` ``(R, n)`` may be drawn."""
        size = min(self.batch, rows.shape[1])

        def draw(step):
            places = [row[torch.randint(len(row), (size,), generator=g)] for row, g in zip(rows, streams)]
            return torch.stack(places), torch.stack([torch.rand(2 * size, 7, generator=g) for g in streams])

        drawn = in_blocks(draw, self.device)

        def batch(step):
            places, u = drawn(step)
            both = x[places.repeat(1, 2)].flatten(0, 1)
            first, second = self.augment.apply(both, u.flatten(0, 1)).unflatten(0, (len(rows), -1)).split(size, 1)
            return first, second, places

        return batch

    def objective(self, method: str) -> ContrastiveObjective:
        """Return the objective of a method."""
        temperature, queue = self.temperature / COOLER.get(method, 1), min(512, 8 * self.batch)
        return ContrastiveObjective(self.networks(method)[0], method, temperature, 0.99, queue)

    def start(self, method: str) -> Params:
        """Return the untrained parameters of all runs."""
        streams = generators(1000 * self.seed + 400_000, self.runs)
        return to_device(self.objective(method).start(self.networks(method), streams), self.device)

    def pretrain(self, method: str, union: Iterable[str], passes: int, decay: float = 0.0) -> Params:
        """Return parameters after ``passes`` over the unlabelled pictures of a union of sets."""
        pool = torch.cat([self.sets[name][0][: self.own] for name in union])
        rows = torch.arange(len(pool)).expand(self.runs, -1)
        steps = max(2, passes * len(pool) // self.batch)
        views = self.views(pool, rows, generators(1000 * self.seed + 500_000, self.runs))
        rate = self.step_size / SLOWER.get(method, 1)
        return self.descend(self.objective(method), self.start(method), lambda step: views(step)[:2], steps, rate, decay)

    def descend(self, objective, params: Params, batches, steps: int, rate: float, decay: float = 0.0) -> Params:
        """Return parameters after AdamW, whose step size falls to 0 along a cosine."""
        adam = AdamW(lambda step: rate * (1 + math.cos(math.pi * step / steps)) / 2, weight_decay=decay)
        return fit(objective, params, batches, steps=steps, optimizer=adam).params

    # --- What can be read ---

    def encode(self, params: Params, x: Tensor, net: nn.Module | None = None) -> Tensor:
        """Return features ``(R, n, features)`` of pictures ``(n, ...)``, or of inputs ``(R, n, ...)`` of another ``net``."""
        net = net or self.net
        own = {k: params[f"encoder.{k}"] for k in net.state_dict()}
        return predict(net, own, x if x.dim() != 4 else x.expand(self.runs, *x.shape))

    def judge(self, features: Callable[[Tensor], Tensor]) -> dict[str, np.ndarray]:
        """Return accuracies in %: on the ``"target"`` ``(R, labels)``, on each set, and their class-weighted ``"average"``.

        Accuracies on the target are means over up to eight disjoint sets of labelled pictures, the same for all networks.
        """
        (x, y), (x_test, y_test), c = self.known, self.test, self.classes
        seen, asked, rows = features(x), features(x_test), []
        for m in self.labels:
            parts = torch.arange(len(y)).split(m)[: max(1, min(8, len(y) // m))]
            scores = [ridge_accuracy(seen[:, part], y[part], asked, y_test, c[TARGET]) for part in parts]
            rows.append(torch.stack(scores).mean(0))
        found = {"target": torch.stack(rows, 1)}
        for name, (x, y) in self.sets.items():
            held = slice(self.own, self.own + self.n_test)
            found[name] = ridge_accuracy(features(x[: self.own]), y[: self.own], features(x[held]), y[held], c[name])
        found["average"] = sum(c[name] * found[name] for name in self.sets) / sum(c.values())
        return {key: 100 * value.numpy() for key, value in found.items()}

    def probe(self, params: Params) -> dict[str, np.ndarray]:
        """Return the accuracies of :meth:`judge` from the encoder's features."""
        return self.judge(lambda x: self.encode(params, x))

    def pixels(self) -> dict[str, np.ndarray]:
        """Return the accuracies of :meth:`judge` from raw pixels."""
        return self.judge(lambda x: x.flatten(1)[None])

    # --- Labels and a contrastive loss ---

    def labelled(self, n: int) -> Tensor:
        """Return the places ``(R, n)`` of each run's labelled pictures among those of the target."""
        return torch.stack([torch.randperm(len(self.known[1]), generator=g)[:n] for g in self.streams(20)])

    def probe_labelled(self, params: Params, n: int) -> np.ndarray:
        """Return the accuracies ``(R,)`` of linear probes from each run's ``n`` labelled pictures, in %."""
        (x, y), (x_test, y_test), classes = self.known, self.test, self.classes[TARGET]
        seen, asked = self.encode(params, x), self.encode(params, x_test)
        each = enumerate(self.labelled(n))
        scores = [ridge_accuracy(seen[r : r + 1, s], y[s], asked[r : r + 1], y_test, classes) for r, s in each]
        return 100 * torch.cat(scores).numpy()

    def fine_tune(self, params: Params, weight: float, n: int, steps: int) -> np.ndarray:
        """Return test accuracies ``(R,)`` in % after fine-tuning on ``n`` labels with ``weight`` times SimCLR's loss."""
        (x, y), objective = self.known, RegularisedObjective(self.objective("simclr"), weight)
        views, y = self.views(x, self.labelled(n), self.streams(40)), y.to(self.device)

        def batch(step):
            *both, places = views(step)
            return *both, y[places]

        return self._tuned(objective, params, batch, steps, 0.01, self.test[0])

    def continued(self, params: Params, steps: int) -> Params:
        """Return parameters after SimCLR on the target's labelled pictures, without their labels."""
        rows = torch.arange(len(self.known[1])).expand(self.runs, -1)
        views = self.views(self.known[0], rows, self.streams(60))
        return self.descend(self.objective("simclr"), params, lambda step: views(step)[:2], steps, 0.003)

    def adapt(self, params: Params, weight: float, n: int, steps: int, stored: int = 10) -> np.ndarray:
        """Return test accuracies ``(R,)`` in % of adapters between frozen features and a linear head.

        An adapter has one hidden layer. It is trained on ``stored`` views of each of ``n`` labelled pictures, with ``weight``
        times SimCLR's loss on its output.
        """
        rows, streams = self.labelled(n), self.streams(80)
        x = self.known[0][rows.repeat(1, stored).to(self.device)]
        u = torch.cat([torch.rand(n * stored, 7, generator=g) for g in streams])
        views = self.augment.apply(x.flatten(0, 1), u).unflatten(0, x.shape[:2])
        seen = self.encode(params, views).unflatten(1, (stored, n))
        y, scale, run = self.known[1][rows].to(self.device), seen.std(), torch.arange(self.runs)[:, None]
        torch.manual_seed(1_000_003 * self.seed + 29)
        nets = [ContrastiveNet(MLP([self.features, 64, self.features]), self.features) for _ in range(self.runs)]
        inner = ContrastiveObjective(nets[0], "simclr", self.temperature)

        def batch(step):
            u = torch.stack([torch.rand(3, self.batch, generator=g) for g in streams], 1)
            i, a, b = ((k * v).long() for k, v in zip((n, stored, stored), u))
            return seen[run, a, i] / scale, seen[run, b, i] / scale, y[run, i]

        begin, asked = to_device(inner.start(nets, streams), self.device), self.encode(params, self.test[0]) / scale
        return self._tuned(RegularisedObjective(inner, weight), begin, batch, steps, 0.003, asked)

    def _tuned(self, objective, params: Params, batches, steps: int, rate: float, asked) -> np.ndarray:
        """Return test accuracies ``(R,)`` in % on inputs ``asked`` after training with a linear head that starts at 0."""
        c, like = self.classes[TARGET], {"device": self.device}
        weight, bias = torch.zeros(self.runs, c, self.features, **like), torch.zeros(self.runs, c, **like)
        begin = params | {"head.weight": weight, "head.bias": bias}
        found = self.descend(objective, begin, batches, steps, rate)
        seen = self.encode(found, asked, objective.contrastive.net.encoder)
        logits = torch.baddbmm(found["head.bias"][:, None], seen, found["head.weight"].mT)
        return 100 * (logits.argmax(-1).cpu() == self.test[1]).double().mean(1).numpy()


def kept_accuracies() -> dict[str, dict[str, np.ndarray]]:
    """Return the accuracies ``(seed, labels)`` in % of the run on CIFAR-10, by arm and set, and their mean on ``"both"``."""
    runs = [run["values"] for run in kept_runs.load("contrastive_tradeoff", "cifar10")["runs"]]
    found = {}
    for arm in runs[0]:
        found[arm] = {key: np.array([run[arm][key] for run in runs]) for key in ("cifar10", "mnist")}
        found[arm]["both"] = (found[arm]["cifar10"] + found[arm]["mnist"]) / 2
    return found
