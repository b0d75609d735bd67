"""SimCLR on CIFAR-10 alone and with MNIST added, at equal steps and at equal passes, read out linearly with few labels."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb.data import load_images, resize
from mvnb.papers.contrastive_tradeoff.data import Augmentation
from mvnb.papers.contrastive_tradeoff.training import nt_xent

LUMA = torch.tensor([0.299, 0.587, 0.114])
STRIDES = (2, 2, 2, 1)


class Pictures:
    """Colour images of one set, drawn for a seed: ``unlabelled`` for pretraining, some of them with labels, and ``test``.

    The first ``n_valid`` unlabelled images choose the penalties of the probes; the rest are the images with labels.
    """

    def __init__(self, dataset: str, n: int, n_valid: int, n_test: int, side: int, seed: int, device):
        images = load_images(dataset)
        x, y = torch.cat([images.x_train, images.x_test]), torch.cat([images.y_train, images.y_test])
        rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[: n + n_test]
        x = resize(x[rows], side).expand(-1, 3, -1, -1).to(device, memory_format=torch.channels_last)
        self.unlabelled = x[:n]
        parts = {"valid": slice(n_valid), "labelled": slice(n_valid, n), "test": slice(n, None)}
        self.x = {part: x[where] for part, where in parts.items()}
        self.y = {part: y[rows][where] for part, where in parts.items()}
        self.n_classes = images.n_classes


class Encoder(nn.Sequential):
    """Four 3x3 convolutions with batch normalisation, and the average over the image, of ``features`` entries."""

    def __init__(self, widths: list[int]):
        layers: list[nn.Module] = []
        for (inputs, outputs), stride in zip(itertools.pairwise([3, *widths]), STRIDES):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.features = widths[-1]


def projector(features: int) -> nn.Sequential:
    """Return the two linear layers between the features and the contrastive loss."""
    return nn.Sequential(nn.Linear(features, 192, bias=False), nn.BatchNorm1d(192), nn.ReLU(), nn.Linear(192, 64))


def new(widths: list[int], seed: int, device) -> tuple[Encoder, nn.Module]:
    """Return an untrained encoder and its projector."""
    torch.manual_seed(seed)
    encoder = Encoder(widths)
    return encoder.to(device, memory_format=torch.channels_last), projector(widths[-1]).to(device)


def recoloured(x: Tensor, u: Tensor) -> Tensor:
    """Change the colours of images by uniform numbers ``u`` ``(n, 6)``.

    In turn: lightness, contrast, saturation, hue, whether these change, whether the image loses its colours.
    """
    light, contrast, saturation = (0.6 + 0.8 * u[:, i, None, None] for i in range(3))
    angle = 0.2 * math.pi * (2 * u[:, 3] - 1)
    grey, unit = LUMA.to(x).expand(3, 3), torch.eye(3).to(x)
    cross = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]]).to(x) / math.sqrt(3)
    cosine, sine = angle.cos()[:, None, None], angle.sin()[:, None, None]
    hue = cosine * unit + (1 - cosine) / 3 + sine * cross  # a rotation of the colours around the grey axis
    mix = light * hue @ (saturation * unit + (1 - saturation) * grey)
    mix = torch.where((u[:, 4] < 0.8)[:, None, None], mix, unit)
    contrast = torch.where((u[:, 4] < 0.8)[:, None, None], contrast, 1.0)
    mix = torch.where((u[:, 5] < 0.2)[:, None, None], grey @ mix, mix)
    out = mix @ x.flatten(2)
    mean = (LUMA.to(x) @ out).mean(-1)[:, None, None]
    return ((out - mean) * contrast + mean).clamp(0, 1).view(x.shape)


def view(x: Tensor, g: torch.Generator, augment: Augmentation) -> Tensor:
    """Return a random view of each image: a crop, perhaps mirrored, and other colours."""
    u = torch.rand(len(x), 12, generator=g).to(x.device)
    x = torch.where((u[:, 0] < 0.5)[:, None, None, None], x.flip(-1), x)
    return recoloured(augment.crop(x, u[:, 1:6]), u[:, 6:])


def pretrain(
    encoder, head, x: Tensor, *, steps: int, batch: int, temperature: float, step_size: float, weight_decay: float, seed: int
) -> list[float]:
    """Train an encoder by SimCLR, in place, with a warm-up and a cosine; return the loss of each step."""
    g = torch.Generator().manual_seed(seed)
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=step_size, weight_decay=weight_decay)
    rise = max(1, steps // 20)

    def scale(step):
        return (step + 1) / rise if step < rise else (1 + math.cos(math.pi * (step - rise) / (steps - rise))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    augment = Augmentation(scale=(0.2, 1.0), degrees=0.0)
    order, losses = torch.empty(0, dtype=torch.long), []
    encoder.train(), head.train()
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(len(x), generator=g)])
        rows, order = order[:batch].to(x.device), order[batch:]
        both = torch.cat([view(x[rows], g, augment) for _ in range(2)]).to(memory_format=torch.channels_last)
        first, second = F.normalize(head(encoder(both)), dim=-1).chunk(2)
        loss = nt_xent(first, second, temperature)
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


def subset(y: Tensor, n: int, g: torch.Generator) -> Tensor:
    """Return ``n`` random rows, equally many of each class; all rows if there are no more than ``n``."""
    if n >= len(y):
        return torch.arange(len(y))
    order = torch.randperm(len(y), generator=g)
    of_class = [order[y[order] == label] for label in range(int(y.max()) + 1)]
    return torch.cat([rows[: n // len(of_class)] for rows in of_class])


def probe(function, pictures: Pictures, labels: list[int], draws: int, penalties: list[float], seed: int) -> list[float]:
    """Return the test accuracy, in %, of logistic regression on features for each number of labels; 0 stands for all.

    For each of ``draws`` subsets the penalty is the best on the validation images; accuracies are averaged over subsets.
    """
    from sklearn.linear_model import LogisticRegression

    x = {part: in_parts(function, value).cpu() for part, value in pictures.x.items()}
    mean, std = x["labelled"].mean(0), x["labelled"].std(0) + 1e-6
    x = {part: ((value - mean) / std).numpy() for part, value in x.items()}
    found = []
    for n in labels:
        g, scores = torch.Generator().manual_seed(seed + 10**6), []
        for _ in range(draws if n else 1):
            rows = subset(pictures.y["labelled"], n or len(pictures.y["labelled"]), g)
            points = x["labelled"][rows], pictures.y["labelled"][rows].numpy()
            fits = [LogisticRegression(C=1 / penalty, max_iter=100).fit(*points) for penalty in penalties]
            best = max(fits, key=lambda fit: fit.score(x["valid"], pictures.y["valid"]))
            scores.append(100 * best.score(x["test"], pictures.y["test"]))
        found.append(round(sum(scores) / len(scores), 3))
    return found


def fall(losses: list[float]) -> float:
    """Return by what percentage the loss fell over the last fifth of the steps; each end is an average over a 20th."""
    width = max(1, len(losses) // 20)
    start, end = (sum(part) / width for part in (losses[-4 * width :][:width], losses[-width:]))
    return round(100 * (1 - end / start), 2)


def run(seed, device, scratch, *, target, added, sizes, side, arms, pretraining, probing) -> dict[str, dict]:
    """Return by arm the accuracies on both sets for each number of labels, and how the loss of pretraining ended.

    An arm has ``widths`` of the encoder (none: raw pixels), whether the ``added`` set takes part, and ``steps`` (0: untrained).
    """
    sets = {name: Pictures(name, **sizes, side=side, seed=seed, device=device) for name in (target, added)}
    values = {}
    for name, arm in arms.items():
        path = scratch / f"{name}.pt"
        if path.exists():
            values[name] = torch.load(path)
            continue
        function, found = nn.Flatten(), {}
        if arm["widths"]:
            function, head = new(arm["widths"], seed, device)
            if arm["steps"]:
                x = torch.cat([sets[key].unlabelled for key in (target, added)[: 1 + arm["added"]]])
                losses = pretrain(function, head, x, steps=arm["steps"], seed=seed, **pretraining)
                found = {"loss": round(losses[-1], 4), "fell": fall(losses)}
            function.eval()
        for key in sets:
            found[key] = probe(function, sets[key], **probing, seed=seed)
        values[name] = found
        torch.save(found, path)
    return values


def beginning(seed, device, *, arms, pretraining, **_) -> list[float]:
    """Return the losses of the first 50 steps of pretraining on the digits, which ship with a package."""
    pictures = Pictures("digits", 1000, 100, 100, 32, seed, device)
    encoder, head = new(arms["narrow, alone, 30 passes"]["widths"], seed, device)
    return pretrain(encoder, head, pictures.unlabelled, **pretraining | {"batch": 64}, steps=50, seed=seed)
