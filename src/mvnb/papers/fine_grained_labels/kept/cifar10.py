"""Pretraining on labels of CIFAR-10 from two to one per image, then training on "animal or vehicle"."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb.data import load_images
from mvnb.papers.fine_grained_labels.data import cluster_within, grouped_labels, random_ids

VEHICLES = (0, 1, 8, 9)  # airplane, automobile, ship, truck; the other six classes are animals
PAIRS = ((0, 8), (1, 9), (2, 6), (3, 5), (4, 7))  # airplane and ship, two cars, bird and frog, two pets, deer and horse
NONE = "none"


class Split:
    """Standardised images in parts that share none: ``pretraining``, ``target``, ``validation`` and ``test``.

    The official test images come first in ``test``, then training images that no other part uses, ``n_test`` in all.
    """

    def __init__(self, dataset: str, sizes: dict[str, int], n_test: int, seed: int, device):
        images = load_images(dataset).standardised()
        order = torch.randperm(len(images.y_train), generator=torch.Generator().manual_seed(seed))
        *parts, rest = order.split([*sizes.values(), len(order) - sum(sizes.values())])
        self.x = {name: images.x_train[rows] for name, rows in zip(sizes, parts)}
        self.y = {name: images.y_train[rows] for name, rows in zip(sizes, parts)}
        self.x["test"] = torch.cat([images.x_test, images.x_train[rest]])[:n_test]
        self.y["test"] = torch.cat([images.y_test, images.y_train[rest]])[:n_test]
        self.x = {name: x.to(device, memory_format=torch.channels_last) for name, x in self.x.items()}
        self.y = {name: y.to(device) for name, y in self.y.items()}

    def target(self, part: str) -> Tensor:
        """Return 1 for vehicles and 0 for animals."""
        return torch.isin(self.y[part], torch.tensor(VEHICLES, device=self.y[part].device)).long()


def pretraining_labels(split: Split, seed: int) -> dict[str, Tensor]:
    """Return the labels of the pretraining images by each label function.

    Clusters and random IDs divide the animals into six parts and the vehicles into four, like the classes.
    """
    classes, target = split.y["pretraining"].cpu(), split.target("pretraining").cpu()
    g = torch.Generator().manual_seed(seed + 10**6)
    animals, vehicles = random_ids(0 * target, 6, g), 6 + random_ids(0 * target, 4, g)
    pixels = F.avg_pool2d(split.x["pretraining"], 2).flatten(1).cpu().numpy()
    return {
        "two": target,
        "pairs": grouped_labels(classes, PAIRS),
        "ten": classes,
        "clusters": torch.from_numpy(cluster_within(pixels, target.numpy(), (6, 4), seed)),
        "random IDs": torch.where(target == 1, vehicles, animals),
        "unique": torch.arange(len(classes)),
    }


def network(channels: int, n_labels: int, width: int) -> nn.Sequential:
    """Return four 3x3 convolutions with batch normalisation, an average over the image, and a linear layer."""
    sizes, layers = [channels, width, 2 * width, 4 * width, 4 * width], []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i < 3 else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], n_labels))


def new(split: Split, n_labels: int, width: int, seed: int) -> nn.Sequential:
    """Return an untrained network for the images of ``split``."""
    torch.manual_seed(seed)
    x = split.x["target"]
    return network(x.shape[1], n_labels, width).to(x.device, memory_format=torch.channels_last)


def train(net, x, y, *, steps: int, batch: int, step_size: float, weight_decay: float, seed: int) -> list[float]:
    """Train with momentum, a linear warm-up, a cosine and flipped, shifted images; return the loss of each step."""
    g = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=step_size, momentum=0.9, weight_decay=weight_decay)
    rise = max(1, steps // 12)

    def scale(step):
        return (step + 1) / rise if step < rise else (1 + math.cos(math.pi * (step - rise) / (steps - rise))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    net.train()
    order, losses = torch.empty(0, dtype=torch.long), []
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
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def in_parts(function, x: Tensor) -> Tensor:
    """Return the outputs of ``function`` for images ``x``, without gradients and in parts that fit the memory."""
    with torch.no_grad():
        return torch.cat([function(part) for part in x.split(1000)])


def wrong(net, x, y) -> Tensor:
    """Return for each image whether the network, in evaluation mode, misclassifies it."""
    net.eval()
    return in_parts(net, x).argmax(1) != y


def percent(mask: Tensor) -> float:
    """Return the percentage of true entries."""
    return round(100 * float(mask.double().mean()), 3)


def fall(losses: list[float]) -> float:
    """Return by what percentage the loss fell over the last fifth of the steps; each end is an average over a 20th."""
    width = max(1, len(losses) // 20)
    start, end = (sum(part) / width for part in (losses[-4 * width :][:width], losses[-width:]))
    return round(100 * (1 - end / start), 2)


def probe(net, split: Split) -> dict[str, float]:
    """Return errors of logistic regression on the frozen features, its penalty chosen on the validation images."""
    from sklearn.linear_model import LogisticRegression

    net.eval()
    x = {part: in_parts(net[:-1], split.x[part]).cpu().double().numpy() for part in ("target", "validation", "test")}
    y = {part: split.target(part).cpu().numpy() for part in x}
    mean, std = x["target"].mean(0), x["target"].std(0) + 1e-6
    x = {part: (value - mean) / std for part, value in x.items()}
    fits = [LogisticRegression(C=c, max_iter=1000).fit(x["target"], y["target"]) for c in (1e-3, 1e-2, 1e-1, 1.0)]
    best = max(fits, key=lambda fit: fit.score(x["validation"], y["validation"]))
    return {part: round(100 * (1 - best.score(x[part], y[part])), 3) for part in x}


def tune(net, split: Split, part: str, width: int, seed: int, hard, **how) -> tuple[dict[str, float], Tensor]:
    """Return errors after training a copy of ``net`` with a new last layer on one part's target labels; also what is wrong."""
    copied = new(split, 2, width, seed + 10**5)
    body = {name: value for name, value in net.state_dict().items() if not name.startswith(f"{len(net) - 1}.")}
    copied.load_state_dict(body, strict=False)
    losses = train(copied, split.x[part], split.target(part), seed=seed + 10**5, **how)
    missed = {name: wrong(copied, split.x[name], split.target(name)) for name in (part, "validation", "test")}
    found = {"step_size": how["step_size"], "train": percent(missed[part]), "fell": fall(losses)}
    found |= {name: percent(missed[name]) for name in ("validation", "test")}
    hard = missed["test"] if hard is None else hard
    return found | {"hard": percent(missed["test"][hard]), "easy": percent(missed["test"][~hard])}, missed["test"]


def pretrain(split: Split, labels: Tensor, width: int, seed: int, path, **how) -> tuple[nn.Sequential, dict[str, float]]:
    """Return a network trained on ``labels``, its training error and the fall of its loss; saved to ``path``."""
    net = new(split, int(labels.max()) + 1, width, seed)
    if path.exists():
        saved = torch.load(path, map_location=labels.device)
        net.load_state_dict(saved["net"])
        return net, saved["found"]
    x = split.x["pretraining"]
    losses = train(net, x, labels, seed=seed, **how)
    found = {"train": percent(wrong(net, x, labels)), "fell": fall(losses)}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"net": net.state_dict(), "found": found}, path)
    return net, found


def run(
    seed, device, scratch, *, dataset, sizes, n_test, width, step_sizes, steps, target_steps, batch, weight_decay
) -> dict[str, list]:
    """Return by arm, for each step size of pretraining, its training error and the errors on the target.

    ``step_sizes`` maps an arm to lists of step sizes: of ``pretraining``, of fine-tuning on the ``target`` images, and of
    fine-tuning on the images of pretraining, ``same``. ``hard`` is the error on the test images that the network without
    pretraining, fine-tuned on the target images with its first step size, misclassifies.
    """
    split = Split(dataset, sizes, n_test, seed, device)
    labels, values, hard = pretraining_labels(split, seed), {}, None
    how = {"batch": batch, "weight_decay": weight_decay}
    for arm in sorted(step_sizes, key=lambda name: name != NONE):
        values[arm] = []
        for size in step_sizes[arm].get("pretraining", [0.0]):
            net, found = new(split, 2, width, seed), {}
            if arm != NONE:
                path = scratch / f"{arm}, {size}.pt"
                net, found = pretrain(split, labels[arm].to(device), width, seed, path, steps=steps, step_size=size, **how)
            row = {"step_size": size, **found, "probe": probe(net, split), "target": [], "same": []}
            for key, part in {"target": "target", "same": "pretraining"}.items():
                for second in step_sizes[arm][key]:
                    one, missed = tune(net, split, part, width, seed, hard, steps=target_steps, step_size=second, **how)
                    row[key].append(one)
                    hard = missed if hard is None else hard
            values[arm].append(row)
    return values


def beginning(seed, device, *, width, batch, weight_decay, **_) -> list[float]:
    """Return the losses of the first 50 steps of pretraining on the classes of the digits, which ship with a package."""
    split = Split("digits", {"pretraining": 1000, "target": 100, "validation": 100}, 300, seed, device)
    how = {"steps": 50, "batch": batch, "step_size": 0.1, "weight_decay": weight_decay, "seed": seed}
    return train(new(split, 10, width, seed), split.x["pretraining"], split.y["pretraining"], **how)
