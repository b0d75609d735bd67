"""The criteria of chapter 05 hold for what they judge and fail for what they do not.

The setting is the chapter's, small. The limits are the chapter's own, unless a test says otherwise.
"""

import math

import numpy as np
import pytest
import torch
from torch.func import functional_call

from mvnb import probes, training
from mvnb.data import load_images
from mvnb.papers.local_signal_adaptivity import theory
from mvnb.papers.local_signal_adaptivity.backgrounds import draw_corners, gaussian_background, paste
from mvnb.papers.local_signal_adaptivity.soft_threshold import SurvivorObjective, step_keys
from mvnb.papers.local_signal_adaptivity.window_net import WindowNet, WindowObjective, window_jacobian

K, SIGMA, RUNS = 200, 0.2, 3


def rises(values):
    fifths = np.stack([part.mean(0) for part in np.array_split(values, 5)])
    return bool((np.diff(fifths, axis=0) > 0).all())


def train(step_size=0.3, b_rate=0.05, steps=2000, k=K, sigma=SIGMA, signal=1.0):
    """c, b and accuracy, (T, R) each; ``signal=0`` takes the signal out of the gradient."""
    objective = SurvivorObjective(k, sigma, 300)

    def noise_only(params, keys):
        losses, grads = objective(params, keys)
        out = objective.outputs(params, keys)[0]
        own = (1 - signal) * torch.sigmoid(-out).mean(1)
        grads["w"][:, 0] += own * (
            (params["w"][:, 0] + params["b"] > 0).double() + (params["b"] - params["w"][:, 0] > 0).double()
        )
        return losses, grads

    start = {"w": torch.full((RUNS, 1), 1e-6).double(), "b": torch.zeros(RUNS).double()}
    run = training.fit(
        noise_only,
        start,
        step_keys(0, RUNS),
        steps=steps,
        optimizer=training.GD(step_size, rates={"b": b_rate}),
        probes={"c": lambda p: p["w"][:, 0], "b": lambda p: p["b"]},
        log_at=training.log_steps(steps, 21),
    )
    c, b = (run.log[name].numpy() for name in "cb")
    score = [[theory.accuracy(*p, k, sigma) for p in zip(*row)] for row in zip(c, b)]
    return c, b, np.array(score)


@pytest.fixture(scope="module")
def trained():
    return train()


def test_two_stages_need_the_bias_and_the_signal(trained):
    c, b, score = trained
    assert rises(c) and rises(-b[2:]) and rises((-b / c)[2:])
    _, frozen_b, frozen_score = train(b_rate=0.0, steps=400)
    assert not rises(-frozen_b[2:])
    assert np.allclose(frozen_score[-1], theory.linear_accuracy(K, SIGMA), atol=1e-3)  # without a bias it is linear
    lost, _, _ = train(signal=0.0, steps=400)
    assert not rises(lost)
    assert score[-1].min() >= 0.985 and not frozen_score[-1].min() >= 0.985


def test_dead_units_are_told_from_live_ones(trained):
    dead = train(step_size=1.5, steps=200)[2][-1]
    assert (dead < 0.001).mean() >= 0.25 and (trained[2][-1] > 0.9).all()
    assert not (trained[2][-1] < 0.001).mean() >= 0.25


def test_the_population_path_is_the_right_one(trained):
    c, b, _ = trained

    def deviation(sigma, step):
        flow = theory.population_path(2000, K, sigma, step, 0.05, log_every=2000)
        return np.abs(np.stack([c[-1] / flow[0][-1], b[-1] / flow[2][-1]]) - 1).max()

    assert deviation(SIGMA, 0.3) < 0.05
    assert not deviation(SIGMA * 1.2, 0.3) < 0.05
    assert not deviation(SIGMA, 0.2) < 0.05


def test_the_bias_rises_first_only_because_it_is_slow():
    def share(rate):
        first = theory.population_path(60, 1000, theory.noise_scale(1000), 0.1, rate)
        up = first[2] > 0
        return up[1] and not up[-1] and (first[2] / first[0])[up].max() * 1000 <= 1.01

    assert share(1 / 1000)
    assert not share(1 / 100)


def test_the_gradient_criterion_notices_a_missing_part():
    params = {"w": torch.tensor([[0.3, 0.05]]).double().expand(40, 2).contiguous(), "b": torch.full((40,), -0.1).double()}
    _, grads = SurvivorObjective(K, SIGMA, 2000)(params, step_keys(0, 40)(0)[0])
    found = torch.cat([grads["w"], grads["b"][:, None]], 1)
    g = theory.population_gradient(0.3, -0.1, K, SIGMA, 0.05)

    def deviation(c, v, b):
        return ((found.mean(0) - torch.tensor([c, v, b])).abs() / (found.std(0) / math.sqrt(40))).max().item()

    assert deviation(g.c, g.v, g.b) < 5
    assert not deviation(g.c_signal, g.v, g.b) < 5
    assert not deviation(g.c, g.v, g.b_noise) < 5
    assert not deviation(g.c, -g.v, g.b) < 5


def test_the_pull_bound_is_sharp_enough_to_fail():
    sigma = theory.noise_scale(1000)
    got = theory.population_gradient(0.01, 0.0, 1000, sigma).c_noise
    assert 0 <= got <= theory.noise_pull_bound(0.01, 0.0, 1000, sigma)
    assert not got <= 0.9 * theory.noise_pull_bound(0.01, 0.0, 1000, sigma)


def test_filter_growth_fails_beyond_its_range():
    def early(c):
        return max(theory.population_gradient(c(q), 0.0, q, theory.noise_scale(q)).c for q in (1e2, 1e3, 1e5, 1e8, 1e12))

    assert early(lambda q: 1 / math.log(q) ** 4) <= -0.25
    assert not early(lambda q: 4 / math.log(q) ** 2) <= -0.25


def test_accuracy_map_needs_its_own_noise_level():
    ratios = np.array([0.0, 0.4, 0.6])
    stack = {"w": torch.ones(3, 1).double(), "b": -torch.as_tensor(ratios)}
    found = (SurvivorObjective(1000, 0.2184, 20_000).outputs(stack, *step_keys(1, 3)(0))[0] > 0).double().mean(1).numpy()

    def gap(sigma):
        return np.abs(found - [theory.accuracy(1.0, -r, 1000, sigma) for r in ratios]).max()

    assert gap(0.2184) <= 0.02
    assert not gap(0.24) <= 0.02
    assert np.abs(theory.normal_accuracy(ratios, 1000, 0.2184) - found).max() <= 0.025
    assert not abs(theory.normal_accuracy(0.8, 1000, 0.2184) - theory.accuracy(1, -0.8, 1000, 0.2184)) <= 0.002


def errors(m, k, dim, draws=12, aligned=0.0):
    """Best common threshold for random filters; ``aligned`` turns the first towards the signal."""
    out = []
    for r in range(draws):
        gram = theory.random_gram(m, dim, np.random.default_rng([7, m, r]))
        if aligned:
            factor = np.linalg.cholesky(gram)
            factor[1] = aligned * factor[0] + math.sqrt(1 - aligned**2) * np.eye(m + 1)[1]
            gram = factor @ factor.T
        out.append(min(theory.frozen_error(gram, np.full(m, t), k, dim**-0.5) for t in (0.0, 0.5, 1.0, 1.5, 2.0, 3.5)))
    return np.array(out)


def test_few_filters_fail_unless_they_know_the_signal():
    random = {m: errors(m, 1000, 21).mean() for m in (1, 4, 16)}
    assert min(random[1], random[4]) >= 0.28 and random[1] > random[4] > random[16]
    assert not errors(1, 1000, 21, aligned=0.95).mean() >= 0.28
    large = errors(4, 1e24, theory.kernel_dim(1e24))
    assert large.min() >= 0.1 and large.mean() > errors(4, 1e6, theory.kernel_dim(1e6)).mean()
    assert not errors(1, 1000, 21, aligned=0.95).min() >= 0.1


IMAGES, STEPS, BATCH = 2000, 2000, 10
DIGITS = load_images("digits")
VARIANTS = ("whole", "frozen filters", "shuffled labels")


def digits(noise, part, n, g):
    """Digits of ten classes at random places of a Gaussian background, and their labels."""
    x, y = getattr(DIGITS, f"x_{part}"), getattr(DIGITS, f"y_{part}")
    pick = torch.randint(len(y), (n,), generator=g)
    behind = noise * gaussian_background(n, 1, 16, g)
    return paste(x[pick], behind, draw_corners(n, 8, "anywhere", g)), y[pick]


def learning_rate(step):
    return 0.015 * min(1.0, 5 * (step + 1) / STEPS) * (1 + math.cos(math.pi * step / STEPS)) / 2


@pytest.fixture(scope="module")
def images():
    """Trained networks, without and with noise: accuracy and share of active units, and the accuracy of tangent kernels.

    Three variants: all weights trained; the filters frozen and the head trained; all trained on shuffled labels.
    """
    sets, modules = [], []
    for noise in (0.0, 0.5):
        for variant in VARIANTS:
            g = torch.Generator().manual_seed(5)
            x, y = digits(noise, "train", IMAGES, g)
            y = y[torch.randperm(IMAGES, generator=g)] if variant == "shuffled labels" else y
            sets.append([x, y, *digits(noise, "test", 600, g)])
            torch.manual_seed(3)
            modules.append(WindowNet(1, 10, (8, 16)))
    x, y, x_test, y_test = map(torch.stack, zip(*sets))
    moves = torch.tensor([variant != "frozen filters" for variant in VARIANTS] * 2).float()

    def objective(params, x, y):
        losses, grads = WindowObjective()(params, x, y)
        return losses, {k: d if "head" in k else d * moves.view(-1, *[1] * (d.dim() - 1)) for k, d in grads.items()}

    def batches(step):
        index = torch.randint(IMAGES, (BATCH,), generator=torch.Generator().manual_seed(step))
        return x[:, index], y[:, index]

    start = training.stack_modules(modules)
    run = training.fit(objective, start, batches, steps=STEPS, optimizer=training.Adam(learning_rate, beta2=0.99))
    network = probes.accuracy(training.predict(modules[0], run.params, x_test), y_test).view(2, 3).numpy()
    active = []
    for params in (start, run.params):
        layers = [
            functional_call(modules[0], {k: v[r] for k, v in params.items()}, x_test[r], {"hidden": True}) for r in range(6)
        ]
        active.append(torch.stack([probes.active_fraction(second[None])[0] for _, second in layers]).view(2, 3).numpy())
    torch.manual_seed(3)
    center = {k: v.detach() for k, v in WindowNet(1, 1, (8, 16)).named_parameters()}
    kernel = []
    for r in (0, 3):
        target = torch.nn.functional.one_hot(y[r], 10) - 0.1
        weight = probes.ridge_fit(window_jacobian(center, x[r]), target, 0.001)
        kernel.append(probes.accuracy(window_jacobian(center, x_test[r]) @ weight, y_test[r]).item())
    return network, np.array(kernel), np.array(active)


def keeps_more(first, second):
    """The chapter's criterion for Gaussian noise, of pairs of accuracies without and with it."""
    share, other = first[1] / first[0], second[1] / second[0]
    return bool(share >= 0.7 and share - other >= 0.1 and min(first[0], second[0]) > 0.85)


def test_the_image_criterion_holds_for_learned_filters_and_fails_for_others(images):
    network, kernel, _ = images
    whole, frozen, shuffled = network.T
    assert keeps_more(whole, kernel)
    assert not keeps_more(frozen, kernel)  # a head on random filters is a kernel, too
    assert not keeps_more(shuffled, kernel)  # nothing to keep
    assert not keeps_more(kernel, kernel) and not keeps_more(kernel, whole)


def test_keeping_an_accuracy_of_chance_is_no_achievement(images):
    network, kernel, _ = images
    shuffled = network[:, 2]
    assert shuffled.max() < 0.3
    lucky = np.array([shuffled.max(), shuffled.max()])  # all of it kept
    assert not keeps_more(lucky, kernel)


def test_activity_falls_where_filters_learn_and_stays_where_they_are_frozen(images):
    before, after = images[2]
    fall = before - after
    assert (fall[:, 0] > 0).all()
    assert not (fall[:, 1] > 0).any()
