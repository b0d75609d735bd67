"""The criteria of chapter 05 hold for what they judge and fail for what they do not.

The setting is the chapter's, small. The limits are the chapter's own, unless a test says otherwise.
"""

import itertools
import math
from functools import partial

import judged
import numpy as np
import pytest
import torch

from mvnb import probes, training
from mvnb.data import load_images
from mvnb.papers.local_signal_adaptivity import theory
from mvnb.papers.local_signal_adaptivity.backgrounds import paste
from mvnb.papers.local_signal_adaptivity.soft_threshold import SurvivorObjective, step_keys
from mvnb.papers.local_signal_adaptivity.window_net import WindowNet, active_shares, window_jacobian, window_objective

K, SIGMA, RUNS = 200, 0.2, 3
verdict = partial(judged.verdict, "local_signal_adaptivity")


def rise(values):
    """Smallest rise of each run from the mean over a fifth of training to the next."""
    fifths = np.stack([part.mean(0) for part in np.array_split(values, 5)])
    return np.diff(fifths, axis=0).min(0)


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
        optimizer=training.SGD(step_size, rates={"b": b_rate}),
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
    def found(c, b, _):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nan_to_num((-b / c)[2:])
        return verdict("two-stages", "mean", c=rise(c), fall=rise(-b[2:]), ratio=rise(ratio))

    linear, lost = train(b_rate=0.0, steps=400), train(signal=0.0, steps=400)
    assert [found(*run) for run in (trained, linear)] == ["holds", "fails"] and found(*lost) != "holds"
    assert np.allclose(linear[2][-1], theory.normal_accuracy(0.0, K, SIGMA), atol=1e-3)  # without a bias it is linear

    def beats(score):
        one = verdict("one-filter-beats-linear", "mean", accuracy=score[-1], rise=rise(score))
        return [one, verdict("small-world-solved", "mean", score[-1])]

    assert beats(trained[2]) == ["holds"] * 2 and beats(linear[2]) == ["fails"] * 2
    untrained = trained[2][:1].repeat(21, 0)
    assert beats(untrained) == ["fails"] * 2


def test_dead_units_are_told_from_live_ones(trained):
    dead, live = train(step_size=1.5, steps=200)[2][-1], trained[2][-1]

    def found(large, small):
        return verdict("dead-units", "each", dead=np.resize(large < 0.001, 12), alive=np.resize(small > 0.9, 12))

    assert [found(dead, live), found(live, live)] == ["holds", "fails"] and found(dead, dead) != "holds"


def test_the_population_path_is_the_right_one(trained):
    c, b, _ = trained

    def found(sigma, step):
        flow = theory.population_path(2000, K, sigma, step, 0.05, log_every=2000)
        off = np.abs(np.stack([c[-1] / flow[0][-1], b[-1] / flow[1][-1]]) - 1).max(0)
        return verdict("population-path", "mean", off)

    assert [found(SIGMA, 0.3), found(SIGMA * 1.2, 0.3), found(SIGMA, 0.2)] == ["holds", "fails", "fails"]


def test_the_bias_rises_first_only_because_it_is_slow():
    def found(rate):
        first = theory.population_path(60, 1000, theory.noise_scale(1000), 0.1, rate)
        share = (first[1] / first[0])[first[1] > 0].max() * 1000
        return verdict("bias-rises-first", "exact", first=first[1][1], last=first[1][-1], share=share)

    assert [found(1 / 1000), found(1 / 100)] == ["holds", "fails"]


def test_the_gradient_criterion_notices_a_missing_part():
    params = {"w": torch.tensor([[0.3, 0.05]]).double().expand(160, 2).contiguous(), "b": torch.full((160,), -0.1).double()}
    _, grads = SurvivorObjective(K, SIGMA, 2000)(params, step_keys(0, 160)(0)[0])
    runs = torch.cat([grads["w"], grads["b"][:, None]], 1).view(4, 40, 3)
    g = theory.population_gradient(0.3, -0.1, K, SIGMA, 0.05)

    def found(c, v, b):
        off = (runs.mean(1) - torch.tensor([c, v, b])).abs() / (runs.std(1) / math.sqrt(40))
        return verdict("population-gradient", "mean", off.amax(1))

    assert found(g.c, g.v, g.b) == "holds"
    signal = g.c - g.c_noise  # its part of the derivative in b, too
    assert found(signal, g.v, g.b) == found(g.c, g.v, g.b - signal) == found(g.c, -g.v, g.b) == "fails"


def test_the_pull_bound_is_sharp_enough_to_fail():
    sigma = theory.noise_scale(1000)
    got = theory.population_gradient(0.01, 0.0, 1000, sigma).c_noise
    share = got / theory.noise_pull_bound(0.01, 0.0, 1000, sigma)

    def found(share):
        return verdict("noise-shrinks-filter", "exact", wrong=int(share < 0), share=share)

    assert [found(share), found(share / 0.9), found(-share)] == ["holds", "fails", "fails"]


def test_filter_growth_fails_beyond_its_range():
    def found(c):
        early = [theory.population_gradient(c(q), 0.0, q, theory.noise_scale(q)).c for q in (1e2, 1e3, 1e5, 1e8, 1e12)]
        return verdict("filter-grows-when-small", "exact", max(early))

    assert found(lambda q: 1 / math.log(q) ** 4) == "holds" and found(lambda q: 4 / math.log(q) ** 2) == "fails"


def test_the_bias_does_not_fall_without_the_noise():
    sigma = theory.noise_scale(1000)

    def found(part):
        column = np.array([part(theory.population_gradient(c, 0.0, 1000, sigma)) for c in np.geomspace(0.005, 1, 40)])
        ends = {"small": column[0], "large": column[-1]}
        silent = part(theory.population_gradient(1.0, -0.9, 1000, sigma))
        changes = np.count_nonzero(np.diff(column > 0))
        return verdict("bias-falls-beyond-a-filter-size", "exact", changes=changes, silent=silent, **ends)

    def signal(g):  # its part of both derivatives
        return g.c - g.c_noise

    assert [found(lambda g: g.b), found(signal), found(lambda g: g.b - signal(g))] == ["holds", "fails", "fails"]


def test_accuracy_map_needs_its_own_noise_level():
    ratios = np.array([0.0, 0.4, 0.6])
    stack = {"w": torch.ones(12, 1).double(), "b": -torch.as_tensor(ratios).repeat(4)}
    said = SurvivorObjective(1000, 0.2184, 20_000).outputs(stack, *step_keys(1, 12)(0))[0]
    simulated = (said > 0).double().mean(1).view(4, 3).numpy()

    def found(sigma):
        off = simulated - [theory.accuracy(1.0, -r, 1000, sigma) for r in ratios]
        map_ = verdict("accuracy-is-a-function-of-the-ratio", "mean", np.abs(off).max(1))
        return [map_, verdict("linear-at-chance", "mean", simulated[:, 0] - theory.normal_accuracy(0.0, 1000, sigma))]

    assert found(0.2184) == ["holds"] * 2 and found(0.45) == ["fails"] * 2

    def gaussian(sigma):
        near, over = (theory.normal_accuracy(r, 1000, sigma) - theory.accuracy(1, -r, 1000, 0.2184) for r in (0.6, 0.8))
        return verdict("gaussian-sum", "exact", deviation=abs(near), excess=over)

    assert [gaussian(0.2184), gaussian(0.28)] == ["holds", "fails"]


def test_the_accuracies_are_those_fixed_beforehand():
    pilot = {0.0: 0.555, 0.2: 0.611, 0.4: 0.737, 0.5: 0.857, 0.6: 0.964, 0.7: 0.993, 0.8: 0.997}
    for ratio, value in pilot.items():
        assert abs(theory.accuracy(1.0, -ratio, 1000, theory.noise_scale(1000)) - value) <= 0.02


def errors(m, k, dim, draws=12, aligned=0.0):
    """Best common threshold for random filters; ``aligned`` turns the first towards the signal, and allows high thresholds."""
    out, common = [], (0.0, 0.5, 1.0, 1.5, 2.0, *((3.5, 8.0) if aligned else ()))
    for r in range(draws):
        gram = theory.random_gram(m, dim, np.random.default_rng([7, m, r]))
        if aligned:
            factor = np.linalg.cholesky(gram)
            factor[1] = aligned * factor[0] + math.sqrt(1 - aligned**2) * np.eye(m + 1)[1]
            gram = factor @ factor.T
        out.append(min(theory.frozen_error(gram, np.full(m, t), k, dim**-0.5) for t in common))
    return np.array(out)


def test_few_filters_fail_unless_they_know_the_signal(trained):
    random = {m: errors(m, 1000, 21, 32) for m in (1, 4, 16)}
    aligned = errors(1, 1000, 21, aligned=0.95)
    for four, word in ((random[4], "holds"), (aligned, "fails")):
        assert verdict("few-frozen-filters-fail", "mean", one=random[1], four=four) == word
    falls = random[1] - random[4], random[4] - random[16]
    assert verdict("more-filters-help", "mean", **dict(zip(("first", "second"), falls))) == "holds"
    assert verdict("more-filters-help", "mean", first=-falls[0], second=-falls[1]) == "fails"
    own = np.array([0.209, 0.214, 0.219])  # errors of the trained filter in the chapter
    for one, word in ((own, "holds"), (random[1], "fails")):
        assert verdict("one-trained-beats-sixteen-frozen", "mean", trained=one, frozen=random[16]) == word


def test_the_lower_bound_fails_for_a_filter_that_knows_the_signal():
    def found(**settings):
        at_least = np.resize(errors(4, 1e24, theory.noise_scale(1e24) ** -2, **settings) >= 0.1, 96)
        return verdict("lower-bound-at-large-k", "each", one=at_least, four=at_least)

    assert [found(), found(aligned=0.95)] == ["holds", "fails"]
    rise = errors(4, 1e24, theory.noise_scale(1e24) ** -2) - errors(4, 1e3, 21)
    assert [verdict("frozen-error-rises-with-k", "mean", one=x, four=x) for x in (rise, -rise)] == ["holds", "fails"]


IMAGES, STEPS, BATCH, REPLICAS = 2500, 2000, 10, 4
DIGITS = load_images("digits")
VARIANTS = ("whole", "frozen filters", "shuffled labels")


def digits(noise, part, n, g):
    """Digits of ten classes at random places of a Gaussian background, and their labels."""
    x, y = getattr(DIGITS, f"x_{part}"), getattr(DIGITS, f"y_{part}")
    pick = torch.randint(len(y), (n,), generator=g)
    return paste(x[pick], noise * torch.randn(n, 1, 16, 16, generator=g), "anywhere", g), y[pick]


def learning_rate(step):
    return 0.015 * min(1.0, 5 * (step + 1) / STEPS) * (1 + math.cos(math.pi * step / STEPS)) / 2


@pytest.fixture(scope="module")
def images():
    """Trained networks, without and with noise: accuracy and share of active units, and the accuracy of tangent kernels, which
    are twice as wide.

    Three variants: all weights trained; the filters frozen and the head trained; all trained on shuffled labels.
    """
    sets, modules = [], []
    for noise in (0.0, 0.5):
        for variant, r in itertools.product(VARIANTS, range(REPLICAS)):
            g = torch.Generator().manual_seed(5 + r)
            x, y = digits(noise, "train", IMAGES, g)
            y = y[torch.randperm(IMAGES, generator=g)] if variant == "shuffled labels" else y
            sets.append([x, y, *digits(noise, "test", 600, g)])
            torch.manual_seed(3 + r)
            modules.append(WindowNet(1, 10, (8, 16)))
    x, y, x_test, y_test = map(torch.stack, zip(*sets))
    shape = (2, len(VARIANTS), REPLICAS)
    moves = torch.tensor([variant != "frozen filters" for variant in VARIANTS]).float().repeat_interleave(REPLICAS).repeat(2)

    def objective(params, x, y):
        losses, grads = window_objective(params, x, y)
        return losses, {k: d if "head" in k else d * moves.view(-1, *[1] * (d.dim() - 1)) for k, d in grads.items()}

    def batches(step):
        index = torch.randint(IMAGES, (BATCH,), generator=torch.Generator().manual_seed(step))
        return x[:, index], y[:, index]

    start = training.stack(modules)
    run = training.fit(objective, start, batches, steps=STEPS, optimizer=training.Adam(learning_rate, betas=(0.9, 0.99)))
    network = probes.accuracy(training.predict(modules[0], run.params, x_test), y_test).view(shape).numpy()
    active = []
    for params in (start, run.params):
        active.append(active_shares(params, x_test)[:, 1].view(shape).numpy())
    kernel = []
    for r in (*range(REPLICAS), *range(len(sets) // 2, len(sets) // 2 + REPLICAS)):
        torch.manual_seed(3 + r % REPLICAS)
        center = {k: v.detach() for k, v in WindowNet(1, 1, (16, 32)).named_parameters()}
        target = torch.nn.functional.one_hot(y[r], 10) - 0.1
        weight = probes.ridge_fit(window_jacobian(center, x[r]), target, 0.001)
        kernel.append(probes.accuracy(window_jacobian(center, x_test[r]) @ weight, y_test[r]).item())
    return network, np.array(kernel).reshape(2, REPLICAS), np.array(active)


def keeps_more(network, kernel):
    """Verdicts for Gaussian noise and for textures, of the accuracies without and with noise of several runs."""
    (plain, share), (other, rest) = ((one[0], one[1] / one[0]) for one in (network, kernel))
    named = {"lead": share - rest, "plain": np.minimum(plain, other)}
    noisy = {verdict(id, "mean", **named, kept=share) for id in NOISY}
    mild = {verdict(id, "mean", **named) for id in MILD}
    return noisy | mild


NOISY = ("network-keeps-more-10-classes-gaussian", "network-keeps-more-2-classes-gaussian")
MILD = (
    "network-keeps-more-10-classes-texture",
    "network-keeps-more-2-classes-texture",
    "network-keeps-more-4-classes-distractors",
)


def test_the_image_claims_hold_for_learned_filters_and_fail_for_others(images):
    network, kernel, _ = images
    whole, frozen, shuffled = network.swapaxes(0, 1)
    assert keeps_more(whole, kernel) == {"holds"}
    assert "holds" not in keeps_more(frozen, kernel)  # a head on random filters is a kernel, too
    assert keeps_more(shuffled, kernel) == {"fails"}  # nothing to keep
    assert keeps_more(kernel, kernel) == keeps_more(kernel, whole) == {"fails"}


def test_keeping_an_accuracy_of_chance_is_no_achievement(images):
    network, kernel, _ = images
    shuffled = network[:, 2]
    assert shuffled.max() < 0.3
    lucky = np.stack([shuffled.max(0)] * 2)  # all of it kept
    assert keeps_more(lucky, kernel) == {"fails"}


def test_activity_falls_where_filters_learn_and_stays_where_they_are_frozen(images):
    before, after = images[2]

    def found(variant):
        plain, noisy = (before - after)[:, VARIANTS.index(variant)]
        return {verdict(id, "mean", plain=plain, noisy=noisy) for id in ("activations-get-sparser", "first-layer-gets-sparser")}

    assert [found("whole"), found("frozen filters")] == [{"holds"}, {"fails"}]
