"""Arms: what is trained on what, from which start; patch networks in stacks of runs, and networks for images.

``activation`` is the exponent and the threshold of the smoothed ReLU. Points are samples of
:class:`~mvnb.papers.mask_reconstruction.data.SparseMultiView`, stacked. ``pace`` is the optimizer that follows the flow.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb import losses, probes, training
from mvnb.blocks import in_parts
from mvnb.models import PatchObjective, patch_logits
from mvnb.papers.mask_reconstruction.data import Split, shifted
from mvnb.papers.mask_reconstruction.model import (
    PATCH,
    Classifier,
    Filler,
    FineTuneObjective,
    MaskedAutoencoderObjective,
    Network,
    TeacherStudentObjective,
    convolutions,
)
from mvnb.seeds import Seed, as_generator
from mvnb.training import Params, Run

Activation = tuple[int, float]
Logits = Callable[[Tensor], Tensor]
Probe = Callable[[Params], Tensor]


def logged(best: Probe, steps: int, every: int = 1) -> dict:
    """Return the keywords of a training that log the best correlations every so many steps."""
    return {"probes": {"best": best}, "log_at": range(0, steps + 1, every)}


# --- Pretraining ---


def autoencode(weight: Tensor, batches, activation: Activation, steps: int, pace, gradient="exact", **kwargs) -> Run:
    """Train kernels ``weight`` ``(R, kernels, dim)`` as a masked autoencoder; ``batches`` are those of its objective."""
    objective = MaskedAutoencoderObjective(*activation, gradient)
    return training.fit(objective, {"weight": weight}, batches, steps=steps, optimizer=pace, **kwargs)


def draw_kept(x: Tensor, keep: float, seed: int) -> Callable[[int], Tensor]:
    """Return a function of the step that draws which patches of ``x`` are kept, ``(R, n, patches)``, anew for every step."""
    shape, g = x.shape[:3], torch.Generator().manual_seed(seed)
    drawn = training.in_blocks(lambda step: (torch.rand(shape, generator=g) < keep,), x.device)
    return lambda step: drawn(step)[0]


def teacher_student(weight: Tensor, batches, activation: Activation, steps: int, pace, **kwargs) -> Run:
    """Train kernels by the teacher-student loss; ``batches`` are those of its objective."""
    objective = TeacherStudentObjective(*activation)
    return training.fit(objective, {"weight": weight}, batches, steps=steps, optimizer=pace, **kwargs)


def until_all_held(weight: Tensor, x: Tensor, keep: float, activation: Activation, steps: int, best: Probe) -> Run:
    """Train by the teacher-student loss until each feature has a kernel at the threshold, the time T_0; log ``best``."""
    pace = training.FlowGD(relative=0.03, absolute=0.02, knee=1.0)
    how = logged(best, steps) | {"until": lambda p, losses: best(p).amin(-1) >= activation[1]}
    return teacher_student(weight, (x, keep), activation, steps, pace, **how)


def student_of(teacher: Tensor, weight: Tensor, x: Tensor, keep: float, activation: Activation, steps: int) -> Run:
    """Train kernels ``weight`` as students of a fixed teacher, whose kernels are ``teacher`` divided by ``keep``."""
    target = TeacherStudentObjective(*activation).features(teacher, x, 1 / keep)
    pace = training.FlowGD(relative=0.1, absolute=0.1, knee=0.4, max_step=2.0)
    return teacher_student(weight, (x, keep, target), activation, steps, pace)


# --- Training with labels ---


def _train(objective, params: Params, batches, activation: Activation, steps: int, stop: float = 0.01, **kwargs) -> Run:
    """Follow the flow until the loss is ``stop``, or for all steps."""
    how = {"optimizer": training.FlowGD(relative=0.1, absolute=0.1, knee=activation[1]), "log_at": range(0, steps + 1, 10)}
    return training.fit(objective, params, batches, steps=steps, until=lambda p, losses: losses <= stop, **how | kwargs)


def from_scratch(
    weight: Tensor, points, activation: Activation, steps: int, batches=None, dtype=torch.float32, **kwargs
) -> Run:
    """Train kernels ``weight`` ``(R, classes, kernels, dim)`` that classes own, with a head of ones."""
    objective = PatchObjective(*activation, dtype)
    return _train(objective, {"weight": weight}, batches or tuple(points[:3]), activation, steps, **kwargs)


def train_on(run: Run, points, activation: Activation, steps: int, best: Probe) -> tuple[Run, dict[str, Tensor]]:
    """Continue a run from scratch up to ``steps`` steps, whatever the loss; return also the log of both, with ``best``."""
    rest = steps - run.step
    how = {"dtype": torch.float64, "stop": -1.0, **logged(best, rest, 2)}
    further = from_scratch(run.params["weight"], points, activation, rest, **how)
    log = {key: torch.cat([rows, further.log[key]]) for key, rows in run.log.items()}
    log["time"][len(run.steps) :] += run.log["time"][-1]
    return further, log


def masked_labels(weight: Tensor, points, keep: float, activation: Activation, steps: int, seed: int) -> Run:
    """Train from scratch for all steps on points with fresh masks in every step; the outputs are divided by ``keep``.

    The kernels may be those of the first runs only.
    """
    x, y, multiplicity = (part[: len(weight)] for part in points[:3])
    kept = draw_kept(x, keep, seed)

    def batches(step):
        return x * kept(step)[..., None], y, multiplicity / keep

    return from_scratch(weight, points, activation, steps, batches, stop=0.0)


def centroid_head(weight: Tensor, points, activation: Activation, n_classes: int) -> Tensor:
    """Return the direction of the first step of a head from zero, ``(R, classes, kernels)``."""
    zero = torch.zeros(len(weight), n_classes, weight.shape[1], device=weight.device, dtype=weight.dtype)
    return -FineTuneObjective(*activation)({"weight": weight, "head": zero}, points.x.to(weight.dtype), points.y)[1]["head"]


def with_head(weight: Tensor, points, activation: Activation, n_classes: int, steps: int, head: Tensor | None = None) -> Run:
    """Train kernels and a head along the flow until the loss is 0.01; without ``head`` it starts as the centroid, of norm 1."""
    if head is None:
        head = centroid_head(weight, points, activation, n_classes)
        head = head / head.norm(dim=-1, keepdim=True)
    return _train(FineTuneObjective(*activation), {"weight": weight, "head": head}, (points.x, points.y), activation, steps)


def fine_tune(weight: Tensor, points, activation: Activation, n_classes: int, steps=300, stop=0.01, **kwargs) -> Run:
    """Train kernels and a head from zero by steps of 0.2 and of k, as in Theorem 2."""
    head = torch.zeros(len(weight), n_classes, weight.shape[1], device=weight.device)
    params, pace = {"weight": weight, "head": head}, training.SGD(1.0, rates={"weight": 0.2, "head": float(n_classes)})
    how = {"log_at": range(0, steps + 1, 5), "until": lambda p, losses: losses <= stop, **kwargs}
    return training.fit(FineTuneObjective(*activation), params, (points.x, points.y), steps=steps, optimizer=pace, **how)


def fine_tune_on(weight: Tensor, points, activation: Activation, n_classes: int, steps: int) -> Run:
    """Fine-tune for 100 steps, then follow the flow: features that are new have to grow from their initial size."""
    begun = fine_tune(weight, points, activation, n_classes, steps=100).params
    return with_head(begun["weight"], points, activation, n_classes, steps, begun["head"])


def outputs(params: Params, activation: Activation) -> Logits:
    """Return the outputs of networks with a head, or of networks whose classes own their kernels."""
    if "head" not in params:
        return lambda x: patch_logits(params["weight"], x, None, *activation)
    objective = FineTuneObjective(*activation)
    return lambda x: objective.logits(params, x.expand(len(params["head"]), -1, -1, -1))


def linear_probe(weight: Tensor, points, activation: Activation, n_classes: int, steps: int = 600) -> Logits:
    """Return the outputs of a linear head on fixed kernels, trained on standardised features."""
    objective = FineTuneObjective(*activation)
    hidden = objective.features(weight, points.x)
    logits = probes.linear_probe(hidden, points.y, n_classes, training.SGD(0.3), steps, hidden.std((1, 2), keepdim=True))
    return lambda x: logits(objective.features(weight, x.expand(len(weight), -1, -1, -1)))


# --- Images: what the run on planted parts and the run on MNIST share ---


def fill_in(f, x: Tensor, masked: Tensor) -> Tensor:
    """Return the mean absolute error of ``f(x, masked)`` on masked pixels, the loss of SimMIM."""
    return ((f(x, masked) - x).abs() * masked).sum() / (masked.sum() * x.shape[1])


def draw_masks(x: Tensor, ratio: float, generator: Seed, patch: int = PATCH) -> Tensor:
    """Return masks ``(n, 1, height, width)`` that cover each patch of images ``x`` with probability ``ratio``, on the CPU."""
    shape = len(x), 1, x.shape[-2] // patch, x.shape[-1] // patch
    cells = torch.rand(shape, generator=as_generator(generator)) < ratio
    return cells.repeat_interleave(patch, 2).repeat_interleave(patch, 3)


def fall(losses: Tensor, last: int, window: int) -> float:
    """Return by what share the loss fell over the ``last`` steps; each end is an average over ``window`` steps."""
    start, end = (part.mean() for part in (losses[-last:][:window], losses[-last:][-window:]))
    return float(1 - end / start)


# --- Images in stacks ---


def image_batches(x: Tensor, y: Tensor, pool: int, batch: int, generators, patch: int = 0, mask_ratio: float = 0.0):
    """Return batches of the first ``pool`` images ``(R, n, channels, side, side)``, with masks of patches or with labels."""

    def drawn(step):
        rows = torch.stack([torch.randperm(pool, generator=g)[:batch] for g in generators])
        blank = torch.empty(rows.shape[1], 0, *x.shape[-2:])
        masks = [draw_masks(blank, mask_ratio, g, patch) for g in generators] if patch else []
        return (rows, torch.stack(masks)) if patch else (rows,)

    sent = training.in_blocks(drawn, x.device)

    def batches(step):
        rows, *masks = sent(step)
        return training.pick_own(x, rows), *(masks or [y.gather(1, rows)])

    return batches


def image_arms(
    x, y, network: Network, *, labels, n_classes, batch, seed, steps, label_steps, step_size=3e-3, mask_ratio=0.6
) -> tuple[Classifier, dict[str, Run]]:
    """Return a classifier and stacks of runs: "SimMIM", and classifiers from it ("MAE") and from its start ("ERM").

    Pretraining sees all images ``x`` ``(R, n, channels, side, side)``, the classifiers the first ``labels`` with labels ``y``.
    """
    channels, modules, pools = x.shape[2], [], (x.shape[1], labels)
    for r in range(len(x)):
        torch.manual_seed(seed + r)
        make, features = network.make, network.features * network.width
        filler = Filler(make(channels, network.width), features, channels, network.patch)
        modules.append((filler, Classifier(make(channels, network.width), features, n_classes, network.squares)))
    fillers, scratch = (training.to_device(training.stack(column), x.device) for column in zip(*modules))
    start = {k: v for k, v in scratch.items() if k.startswith("encoder")}

    def fit(which, loss, params, steps):
        generators, patch = training.generators(seed + (8 + which) * 10**6, len(x)), (network.patch, 0)[which]
        batches = image_batches(x, y, pools[which], batch, generators, patch, mask_ratio)
        objective = training.ModuleObjective(modules[0][which], loss)
        pace = training.Adam(lambda step: step_size * training.cosine(step, steps))
        return training.fit(objective, params, batches, steps=steps, optimizer=pace, log_at=range(steps))

    runs = {"SimMIM": fit(0, fill_in, fillers | start, steps)}
    pretrained = {k: runs["SimMIM"].params[k] for k in start}
    for name, encoder in (("ERM", start), ("MAE", pretrained)):
        runs[name] = fit(1, losses.cross_entropy, scratch | encoder, label_steps)
    return modules[0][1], runs


# --- One network on MNIST ---


def pair(split: Split, width: int, seed: int, squares: int = 7) -> tuple[Filler, Classifier]:
    """Return an untrained network for filling in, and a classifier with its encoder that sees all 7x7 patches."""
    torch.manual_seed(seed)
    x, channels = split.x["judged"], split.x["judged"].shape[1]
    encoder, classes = convolutions(channels, width), int(split.y["judged"].max()) + 1
    nets = Filler(encoder, 2 * width, channels), Classifier(encoder, 2 * width, classes, squares)
    return tuple(net.to(x.device, memory_format=torch.channels_last) for net in nets)


def _minimise(
    net: nn.Module, loss, n: int, *, steps: int, step_size: float, weight_decay: float, encoder_rate: float = 1.0, **how
) -> list[float]:
    """Minimise ``loss(rows, generator)`` by AdamW; ``how`` is passed to :func:`mvnb.training.minimise`.

    Steps and decay of the encoder are multiplied by ``encoder_rate``; at 0 it is frozen, but for its batch statistics.
    """
    net.train()
    groups: dict[bool, list] = {True: [], False: []}
    for name, weight in net.named_parameters():
        groups[name.startswith("encoder.")].append(weight.requires_grad_(encoder_rate > 0 or not name.startswith("encoder.")))
    both = [{"params": groups[inside], "lr": step_size * (encoder_rate if inside else 1)} for inside in groups]
    optimizer = torch.optim.AdamW(both, weight_decay=weight_decay)
    return training.minimise(optimizer, loss, n, steps=steps, rise=max(1, steps // 20), **how)


def simmim(filler: Filler, x: Tensor, mask_ratio: float, **how) -> list[float]:
    """Train a network to fill in masked patches, in place; return the loss of each step."""

    def loss(rows, g):
        return fill_in(filler, x[rows.to(x.device)], draw_masks(x[: len(rows)], mask_ratio, g).to(x.device))

    return _minimise(filler, loss, len(x), **how)


def few_labels(net: Classifier, split: Split, part: tuple[int, int], shift: int, smoothing: float, **how) -> dict[str, float]:
    """Train a copy of a classifier on a labelled set ``part``, shifted by up to ``shift`` pixels; return what came out.

    All are percentages: errors on that set (unshifted) and on the judged images, and by how much the loss fell in the last
    fifth.
    """
    copied, x, y = deepcopy(net), split.x[part], split.y[part]

    def loss(rows, g):
        rows = rows.to(x.device)
        return F.cross_entropy(copied(shifted(x[rows], shift, g)), y[rows], label_smoothing=smoothing)

    fell = training.percent_fallen(_minimise(copied, loss, len(x), **how))
    wrong = {of: 1 - probes.accuracy(_outputs(copied, split.x[of]), split.y[of]).item() for of in (part, "judged")}
    return {"train": round(100 * wrong[part], 3), "error": round(100 * wrong["judged"], 3), "fell": fell}


def _outputs(net: nn.Module, x: Tensor) -> Tensor:
    net.eval()
    with torch.no_grad():
        return in_parts(net, (x,), 1000)
