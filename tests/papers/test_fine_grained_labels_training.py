"""Arms of chapter 02 on simulated points: what is trained on what, from which start, and at which points it is tested."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from mvnb.papers.fine_grained_labels import data, measure, model
from mvnb.papers.fine_grained_labels import training as arms

K, RUNS = 4, 2
WORLD = data.HierarchicalMultiView(K, 2 + 2 * K, 16, jitter=0.05, noise=0.005, strong_noise=0.2)
TRAINER = arms.Trainer(RUNS, 50, torch.device("cpu"), 0.05, 0.064)
COARSE, FINE = data.true_labels(K, 1), data.true_labels(K, K)


def weights(run):
    return run.params["weight"]


@pytest.fixture
def fits(monkeypatch):
    """Of each call of the training loop the objective, the start, the batches and the other arguments."""
    calls, fit = [], arms.training.fit

    def recorded(objective, start, batches, **how):
        seen = {}
        calls.append((objective, start, seen, how))
        return fit(objective, start, lambda step: seen.setdefault(step, batches(step)), **how)

    monkeypatch.setattr(arms.training, "fit", recorded)
    return calls


def test_runs_and_experiments_have_streams_of_their_own():
    draws = [torch.rand(1, generator=g).item() for purpose in (0, 1, 2) for g in TRAINER.generators(purpose)]
    assert len(set(draws)) == 6
    assert draws[1] == torch.rand(1, generator=torch.Generator().manual_seed(51)).item()


def test_points_of_tests_are_of_each_subclass_and_hard_if_asked_for():
    easy, hard = (TRAINER.held_out(WORLD, 3, 5, hard=hard) for hard in (False, True))
    for test, kind in ((easy, data.COMMON), (hard, data.DISTRACTOR)):
        assert test.x.shape == (RUNS, 40, 16, 10) and torch.equal(test.subclass[0].bincount(), torch.full((8,), 5))
        assert ((test.kind == kind).sum(-1) == 4).all() and not torch.equal(test.x[0], test.x[1])
    assert not torch.equal(easy.x, TRAINER.held_out(WORLD, 4, 5).x)


def test_starts_have_their_detectors():
    one = TRAINER.idealised(WORLD, 3)
    assert torch.equal(one.single[0, 0], torch.eye(10, dtype=torch.bool)) and torch.equal(one.single, one.possible)
    drawn = TRAINER.drawn(WORLD, 2, 2000, 10)
    fires = (drawn.params["weight"][..., :10] > -drawn.params["bias"][..., None]).sum(2).double()
    assert abs(fires.mean() - 10) < 1.5 and (drawn.single.sum(2) < drawn.possible.sum(2)).all()
    free = TRAINER.random(WORLD, 2, 200, 1e-3)
    assert abs(free.params["weight"].std() / 1e-3 - 1) < 0.03 and not free.params["bias"].any() and not free.single.any()
    assert free.params["weight"].shape == (RUNS, 2, 200, 10) and free.possible.shape == free.params["weight"].shape


def test_training_is_on_the_labels_from_the_start_with_the_step_that_are_given(fits):
    start = TRAINER.random(WORLD, 8, 3, 0.01)
    probes = {"extra": lambda params: params["bias"].sum((1, 2))}
    run = TRAINER.train(WORLD, FINE, 5, 2, start=start, step_size=0.3, points=3, probes=probes, log_at=[0, 2])
    objective, params, batches, _ = fits[0]
    (x, y), (later, _) = batches[0], batches[1]
    assert objective.bias_rate == 0.05 and not objective.superclasses and params is start.params
    assert x.shape == (RUNS, 24, 16, 10) and torch.equal(y, (torch.arange(24) % 8).expand(RUNS, -1))
    assert not torch.equal(x, later) and not torch.equal(x[0], x[1])
    assert torch.equal(x, arms.training.Fresh(WORLD.sample, 24, TRAINER.generators(5))(0)[0])
    expected = dict(params)
    for points in (x, later):
        _, gradient = model.ReluPatchObjective(0.05)(expected, points, y)
        expected = {name: value - 0.3 * gradient[name] for name, value in expected.items()}
    assert torch.allclose(weights(run), expected["weight"], atol=1e-7)
    assert torch.allclose(run.log["extra"][1], run.params["bias"].sum((1, 2))) and set(run.log) >= {"growth", "extra"}
    TRAINER.train(WORLD, COARSE, 5, 1, superclasses=True)
    objective, params, batches, how = fits[1]
    assert objective.superclasses and how["optimizer"].lr == 0.064 and torch.equal(batches[0][1][0], torch.arange(16) % 8 // 4)
    assert torch.equal(params["weight"], TRAINER.idealised(WORLD, 2).params["weight"])


def test_tests_are_logged_by_name():
    tests = {"easy": TRAINER.held_out(WORLD, 2, 3), "hard": TRAINER.held_out(WORLD, 3, 3, hard=True)}
    run = TRAINER.train(WORLD, FINE, 1, 3, tests=tests, log_at=[3])
    for name, test in tests.items():
        assert torch.allclose(run.log[name][-1], measure.margins(run.params, test))
    assert torch.allclose(run.log["growth"][-1], measure.own_growth(run.params, TRAINER.idealised(WORLD, 8), FINE.table))


def test_each_kind_of_labels_is_trained_on_its_own():
    kinds = {"fine": FINE, "coarse": COARSE, "random, 2": data.dealt_ids(K, 2)}
    tests = {"hard": TRAINER.held_out(WORLD, 3, 3, hard=True)}
    for name, run in arms.by_kind(TRAINER, WORLD, kinds, 6, tests).items():
        start = TRAINER.idealised(WORLD, len(kinds[name].table))
        for look, steps in enumerate((1, 6)):
            alone = TRAINER.train(WORLD, kinds[name], 7, steps, start=start, points=8)
            assert torch.allclose(run.log["read-out"][look], measure.read_out_ratio(alone.params, start, K), rtol=1e-3)
        assert torch.allclose(weights(run), weights(alone), rtol=1e-4, atol=1e-6) and list(run.steps) == [1, 6]
        assert torch.allclose(run.log["hard"][1], measure.margins(alone.params, tests["hard"]), rtol=1e-3, atol=1e-4)


def test_numbers_of_patches_and_of_subclasses_are_those_asked_for(fits):
    start = TRAINER.random(WORLD, 2, 5, 0.01)
    found = arms.by_patches(TRAINER, replace(WORLD, noise=0.3), start, (16, 40))
    assert found.shape == (2, 2, RUNS) and (found[0] > 0).all()  # with noise that is heard, so that points tell
    for i, patches in enumerate((16, 40)):
        world = replace(WORLD, n_patches=patches, noise=0.3)
        _, params, batches, how = fits[i]
        x, y = batches[0]
        assert x.shape[:3] == (RUNS, 32, patches) and how["steps"] == 10 and params is start.params
        assert torch.equal(y[0], torch.arange(32) % 8 // 4)
        alone = TRAINER.train(world, COARSE, 8, 10, start=start, points=4).params
        test = TRAINER.held_out(world, 9, 64)
        assert np.allclose(found[0, i], measure.firing_on_noise(alone, test), atol=0.01)
        assert np.allclose(found[1, i], measure.errors(measure.margins(alone, test)), atol=0.01)
    fits.clear()
    ratio, clean, noisy = arms.by_subclasses(TRAINER, replace(WORLD, strong_noise=3.0), (4, 8), 6)
    for i, size in enumerate((4, 8)):
        world = replace(WORLD, n_subclasses=size, dim=2 + 2 * size)
        run = TRAINER.train(world, data.true_labels(size, 1), 10, 6, log_at=[5, 6])
        assert np.allclose(ratio[i], measure.growth_ratio(run)[0], rtol=1e-4)
        for errors, strong in ((clean, 0.0), (noisy, 3.0)):
            test = TRAINER.held_out(replace(world, strong_noise=strong), 11, 384 // (2 * size), hard=True)
            assert np.allclose(errors[i], measure.errors(measure.margins(run.params, test)), atol=0.01)
    assert (noisy != clean).any()


def test_fine_tuning_goes_on_from_the_run_on_coarse_labels_through_the_read_out(fits):
    start = TRAINER.idealised(WORLD, 8)
    before = TRAINER.train(WORLD, FINE, 1, 20, start=start)
    tuned = arms.fine_tune(TRAINER, WORLD, before, start, 4, step_size=0.01, log_at=[0, 4])
    objective, params, batches, how = fits[1]
    assert params is before.params and objective.superclasses and how["optimizer"].lr == 0.01
    assert torch.equal(batches[0][1][0], torch.arange(16) % 8 // 4)
    assert (tuned.log["growth"][0] == 0).all()  # counted from the fine-tuned network's own start
    expected = measure.own_growth(tuned.params, start._replace(params=before.params), FINE.table)
    assert torch.allclose(tuned.log["growth"][1], expected) and (expected > 0).all()


def test_a_probe_is_fitted_on_the_points_that_it_is_given():
    """Detectors of common features alone: right on easy points, at hard ones worse than chance, and always there if fitted."""
    eye = torch.eye(10)[:2].expand(RUNS, 1, 2, 10)
    params = {"weight": eye.clone(), "bias": torch.zeros(RUNS, 1, 2)}
    easy, hard, test = (TRAINER.held_out(replace(WORLD, noise=0.0, strong_noise=0.0), n, 10, hard=n > 1) for n in (1, 2, 3))
    error = partial(measure.probe_error, params, easy, hard)
    assert error(easy).max() == 0 and error(test).min() == 1
    assert error(test, 1).max() == 0 and error(easy, 1).min() == 1
    fine = {"weight": torch.eye(10)[2:].expand(RUNS, 1, 8, 10).clone(), "bias": torch.zeros(RUNS, 1, 8)}
    assert measure.probe_error(fine, easy, hard, test).max() == 0
    every = {"weight": torch.eye(10).expand(RUNS, 1, 10, 10), "bias": torch.zeros(RUNS, 1, 10)}
    few, many = (measure.probe_error(every, easy, hard, test, n).mean() for n in (None, 3))
    assert many < few
