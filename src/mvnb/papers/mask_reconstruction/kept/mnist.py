"""SimMIM on MNIST: filling in masked patches of all images, then training on a few labels; the same without pretraining."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb.data import load_images
from mvnb.papers.mask_reconstruction.model import Classifier, Filler, convolutions
from mvnb.papers.mask_reconstruction.training import draw_masks, fill_in

SQUARES = 7  # the classifier sees the features of all 7x7 patches


class Split:
    """Standardised images: ``all`` for pretraining, nested balanced sets with labels, and ``judged``, which errors are for.

    These are the official test images, or ``n_valid`` training images that are then in no other part.
    """

    def __init__(self, dataset: str, labels: list[int], n_valid: int, seed: int, device):
        images = load_images(dataset).standardised()
        order = torch.randperm(len(images.y_train), generator=torch.Generator().manual_seed(seed))
        parts = {"judged": order[:n_valid], "all": order[n_valid:]}
        of_class = [parts["all"][images.y_train[parts["all"]] == label] for label in range(images.n_classes)]
        parts |= {n: torch.cat([rows[: n // images.n_classes] for rows in of_class]) for n in labels}
        self.x = {part: images.x_train[rows] for part, rows in parts.items()}
        self.y = {part: images.y_train[rows] for part, rows in parts.items()}
        if not n_valid:
            self.x["judged"], self.y["judged"] = images.x_test, images.y_test
        self.x = {part: x.to(device, memory_format=torch.channels_last) for part, x in self.x.items()}
        self.y = {part: y.to(device) for part, y in self.y.items()}


def new(split: Split, width: int, seed: int) -> tuple[Filler, Classifier]:
    """Return an untrained network for filling in, and a classifier with its encoder."""
    torch.manual_seed(seed)
    x, channels = split.x["judged"], split.x["judged"].shape[1]
    encoder = convolutions(channels, width)
    nets = Filler(encoder, 2 * width, channels), Classifier(encoder, 2 * width, int(split.y["judged"].max()) + 1, SQUARES)
    return tuple(net.to(x.device, memory_format=torch.channels_last) for net in nets)


def minimise(net: nn.Module, loss, n: int, *, steps: int, batch: int, step_size: float, weight_decay: float, seed: int) -> list:
    """Minimise ``loss(rows, generator)`` by AdamW with a warm-up and a cosine; return the loss of each step."""
    g = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=step_size, weight_decay=weight_decay)
    rise = max(1, steps // 20)

    def scale(step):
        return (step + 1) / rise if step < rise else (1 + math.cos(math.pi * (step - rise) / (steps - rise))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    order, losses = torch.empty(0, dtype=torch.long), []
    net.train()
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(n, generator=g)])
        rows, order = order[:batch], order[batch:]
        value = loss(rows, g)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
        losses.append(value.detach())
    return torch.stack(losses).tolist()


def fall(losses: list[float]) -> float:
    """Return by what percentage the loss fell over the last fifth of the steps; each end is an average over a 20th."""
    width = max(1, len(losses) // 20)
    start, end = (sum(part) / width for part in (losses[-4 * width :][:width], losses[-width:]))
    return round(100 * (1 - end / start), 2)


def pretrain(filler: Filler, x: Tensor, mask_ratio: float, **how) -> list[float]:
    """Train a network to fill in masked patches, in place; return the loss of each step."""

    def loss(rows, g):
        return fill_in(filler, x[rows.to(x.device)], draw_masks(x[: len(rows)], mask_ratio, g).to(x.device))

    return minimise(filler, loss, len(x), **how)


def shifted(x: Tensor, most: int, g: torch.Generator) -> Tensor:
    """Move each image by up to ``most`` pixels down or up and right or left, at random; the border is background."""
    n, _, height, width = x.shape
    down, right = torch.randint(2 * most + 1, (2, n, 1), generator=g).to(x.device)
    rows, columns = (move + torch.arange(side, device=x.device) for move, side in ((down, height), (right, width)))
    padded = F.pad(x, [most] * 4, value=float(x.min()))
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def train(net: nn.Module, x: Tensor, y: Tensor, shift: int, smoothing: float, **how) -> list[float]:
    """Train a classifier, in place, on images shifted by up to ``shift`` pixels; return the loss of each step."""

    def loss(rows, g):
        rows = rows.to(x.device)
        seen = shifted(x[rows], shift, g) if shift else x[rows]
        return F.cross_entropy(net(seen), y[rows], label_smoothing=smoothing)

    return minimise(net, loss, len(x), **how)


def outputs(net: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs of a network in evaluation mode."""
    net.eval()
    with torch.no_grad():
        return torch.cat([net(part) for part in x.split(1000)])


def percent_wrong(scores: Tensor, y: Tensor) -> float:
    """Return the percentage of points on which the largest score is not that of the label."""
    return round(100 * float((scores.argmax(1) != y).double().mean()), 3)


def fine_tune(net: Classifier, split: Split, n: int, shift: int, **how) -> dict[str, float]:
    """Train a copy of a classifier on ``n`` labels; return its errors, and by what percentage its loss fell at the end."""
    copied = deepcopy(net)
    losses = train(copied, split.x[n], split.y[n], shift, **how)
    errors = {part: percent_wrong(outputs(copied, split.x[part]), split.y[part]) for part in (n, "judged")}
    return {"train": errors[n], "error": errors["judged"], "fell": fall(losses)}


def frozen_features(net: Classifier, split: Split) -> dict:
    """Return the standardised features of every part, for an encoder whose batch statistics are those of unmasked images."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None
    net.train()
    with torch.no_grad():
        for part in split.x["all"][:10000].split(1000):
            net.encoder(part)
    features = nn.Sequential(net.encoder, net.pool)
    mean, std = (f(outputs(features, split.x["all"][:10000]), 0) for f in (torch.mean, torch.std))
    return {part: (outputs(features, x) - mean) / (std + 1e-3) for part, x in split.x.items() if part != "all"}


def probe(features: dict, split: Split, n: int, penalty: float) -> dict[str, float]:
    """Return the errors of logistic regression on fixed features; ``penalty`` is the weight of the squared weights."""
    from sklearn.linear_model import LogisticRegression

    x, y = ({part: source[part].cpu().numpy() for part in (n, "judged")} for source in (features, split.y))
    fitted = LogisticRegression(C=1 / penalty, max_iter=500).fit(x[n], y[n])
    errors = {part: round(100 * (1 - fitted.score(x[part], y[part])), 3) for part in x}
    return {"train": errors[n], "error": errors["judged"]}


def run(seed, device, scratch, *, dataset, labels, n_valid, width, pretraining, training, arms) -> dict[str, list]:
    """Return the errors of every arm in every setting, and how the loss of each pretraining ended.

    An arm lists its settings: ``mask_ratio`` of pretraining (0: none), and either ``shift``, ``step_size`` and
    ``weight_decay`` of the training of the whole network, or the ``penalty`` of a linear layer on frozen features.
    """
    split = Split(dataset, labels, n_valid, seed, device)
    values: dict[str, list] = {"pretraining": [], "arms": []}
    for ratio in sorted({ratio for arm in arms.values() for ratio in arm["mask_ratio"]}):
        filler, net = new(split, width, seed)
        if ratio:
            path = scratch / f"{ratio}.pt"
            if not path.exists():
                losses = pretrain(filler, split.x["all"], ratio, seed=seed + 10**6, **pretraining)
                torch.save({"filler": filler.state_dict(), "loss": sum(losses[-100:]) / 100, "fell": fall(losses)}, path)
            saved = torch.load(path, map_location=device)
            filler.load_state_dict(saved.pop("filler"))
            values["pretraining"].append({"mask_ratio": ratio, **saved})
        features = None
        for name, arm in arms.items():
            keys = [key for key in arm if key != "mask_ratio"]
            for setting in product(*(arm[key] for key in keys)) if ratio in arm["mask_ratio"] else ():
                setting = dict(zip(keys, setting))
                if "penalty" in setting and features is None:
                    features = frozen_features(deepcopy(net), split)
                for n in labels:
                    if "penalty" in setting:
                        found = probe(features, split, n, **setting)
                    else:
                        found = fine_tune(net, split, n, **setting, **training, seed=seed + 2 * 10**6)
                    values["arms"].append({"arm": name, "labels": n, "mask_ratio": ratio, **setting, **found})
    return values


def beginning(seed, device, *, width, pretraining, **_) -> list[float]:
    """Return the losses of the first 50 steps of pretraining on the digits, which ship with a package."""
    split = Split("digits", [100], 0, seed, device)
    filler, _ = new(split, width, seed)
    return pretrain(filler, split.x["all"], 0.6, seed=seed + 10**6, **pretraining | {"steps": 50})
