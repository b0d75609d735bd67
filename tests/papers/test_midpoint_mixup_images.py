"""Two-view images: what a batch consists of, that runs can be interrupted, and the network that learns them by heart."""

import runpy

import pytest
import torch
from torch.nn.functional import normalize

from mvnb import kept_runs, training
from mvnb.papers.midpoint_mixup.data import ConcatenatedViews, class_pairing, draw_companions
from mvnb.papers.midpoint_mixup.images import LAWS, StridedConvNet, TwoViewTask

R, N, DIM, BATCH, EPOCHS = 2, 23, 4, 5, 3
SCRIPT = kept_runs.declared("midpoint_mixup")["cifar10"].script


@pytest.fixture(scope="module")
def points():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(R, N, DIM, generator=g)
    y = torch.arange(N).remainder(4).expand(R, -1)
    companions = torch.stack([draw_companions(row, class_pairing(4, g), g) for row in y])
    return ConcatenatedViews(x, companions), y


def batches(points, law, seed=0, runs=R):
    views, y = points
    task = TwoViewTask(ConcatenatedViews(views.x[:runs], views.companions[:runs]), y[:runs], views.x, y)
    return task.prepare(lambda: torch.nn.Linear(1, 1), law, seed=seed, epochs=EPOCHS, batch=BATCH).batches


@pytest.mark.parametrize("law", LAWS.values())
def test_a_batch_follows_from_the_step_and_the_run_alone(points, law):
    stack, alone = batches(points, law), batches(points, law, runs=1)
    forward = [stack(step) for step in range(stack.steps)]
    for step in reversed(range(stack.steps)):  # whatever was asked for before
        for part, same, first in zip(forward[step], stack(step), alone(step)):
            assert torch.equal(part, same) and torch.equal(part[:1], first)
    assert all(torch.equal(a, b) for a, b in zip(stack(stack.steps), stack(stack.steps - stack.per_epoch)))


def test_an_epoch_meets_every_point_once_in_a_new_order_with_new_weights(points):
    views, y = points
    stack = batches(points, "uniform")
    assert stack.per_epoch == N // BATCH and stack.steps == EPOCHS * (N // BATCH)
    seen = []
    for epoch in range(EPOCHS):
        of_epoch = [stack(epoch * stack.per_epoch + k) for k in range(stack.per_epoch)]
        x, labels = (torch.cat(parts, 1) for parts in list(zip(*of_epoch))[:2])
        index = (normalize(x[0, :, :DIM], dim=-1) @ normalize(views.x[0], dim=-1).T).argmax(1)
        weight = (x[0, :, :DIM] / views.x[0, index])[:, 0]
        assert len(index.unique()) == len(index) and torch.equal(labels[0], y[0, index])
        other = views.x[0, views.companions[0, index]]
        assert torch.allclose(x[0, :, DIM:], (1 - weight)[:, None] * other, atol=1e-5)
        seen.append((index, weight))
    assert not torch.equal(seen[0][0], seen[1][0])
    weights = torch.cat([weight for _, weight in seen])
    assert len(weights.unique()) == len(weights) and weights.min() < 0.2 and weights.max() > 0.8


def test_one_mixing_weight_a_batch(points):
    for law in ("midpoint", "uniform"):
        stack = batches(points, law)
        lam = torch.stack([stack(step)[-1] for step in range(stack.steps)])
        assert lam.shape == (stack.steps, R)
        assert (lam == 0.5).all() if law == "midpoint" else len(lam.unique()) == lam.numel()
    assert len(batches(points, None)(0)) == 2


@pytest.mark.parametrize("side", [8, 28, 32])
def test_the_network_takes_images_of_any_side(side):
    assert StridedConvNet(2, 7, 4, side)(torch.randn(3, 2, side, side)).shape == (3, 7)


def test_a_kept_run_that_is_interrupted_is_the_run(tmp_path):
    """The script's own curves, on the digits: to the end at once, and killed after its first look."""
    script = runpy.run_path(str(SCRIPT))
    task = script["two_views"]("digits", 200, 100, 3, True, torch.device("cpu"))
    how = {"every": 1, "judged": 50, "batch": 40, "step_size": 1e-3}
    whole = script["curves"](task, 3, "uniform", 4, tmp_path / "whole.pt", epochs=4, **how)

    class Killed(Exception):
        pass

    def save(run, path, into=training.Run.save):
        into(run, path)
        if run.step == 2 * 5:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Run, "save", save)
        with pytest.raises(Killed):
            script["curves"](task, 3, "uniform", 4, tmp_path / "part.pt", epochs=4, **how)
    assert script["curves"](task, 3, "uniform", 4, tmp_path / "part.pt", epochs=4, **how) == whole
    assert [len(curve) for curve in whole.values()] == [4, 4, 4]


def test_it_learns_its_training_views_and_not_shuffled_labels():
    """On the digits, some epochs: nearly all views right; with labels shuffled the test error stays at chance."""
    script = runpy.run_path(str(SCRIPT))
    task = script["two_views"]("digits", 500, 0, 0, True, torch.device("cpu"))

    def fitted(task):
        new = script["prepare"](task, 0, None, 16, 20, 25)
        run = training.fit(new.objective, new.params, new.batches, steps=new.batches.steps, optimizer=training.Adam(1e-3))
        return {k: probe(run.params).item() for k, probe in script["seen_by"](new.net, task, 0, 300).items()}

    found = fitted(task)
    assert found["right"] > 90 and found["error"] < 50
    shuffled = task.y[:, torch.randperm(task.y.shape[1], generator=torch.Generator().manual_seed(0))]
    assert fitted(TwoViewTask(task.views, shuffled, task.test_x, task.test_y))["error"] > 75
