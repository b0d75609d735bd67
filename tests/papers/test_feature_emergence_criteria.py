"""The criteria of chapter 08 hold for what they judge and fail for what they do not.

The settings are smaller than the chapter's; the limits are the chapter's own.
"""

import math

import numpy as np
import pytest
import torch
from chapter_source import functions_of
from torch.nn import functional as F

from mvnb import probes, training
from mvnb.data import GaussianMixture
from mvnb.models import TwoLayerObjective
from mvnb.papers.feature_emergence import theory
from mvnb.papers.feature_emergence.data import DictionaryData, PatternCodes

WORLD = DictionaryData.parity(40, 5)
GAMMA, K, RUNS, PAIRS = WORLD.correlations[0], 5, 2, 40


def draw(world, n, seed=0):
    return training.stack([world.sample(n, g) for g in training.generators(seed, RUNS)])


def equal_classes(y):
    positive = (y > 0).float().mean(-1, keepdim=True)
    return torch.where(y > 0, 0.5 / positive, 0.5 / (1 - positive))


def emergence(x, y, weighted=True, step_size=None, **options):
    std = theory.output_std(GAMMA, WORLD.scale, K)
    eta = step_size or theory.first_step_size(GAMMA, WORLD.scale, K, PAIRS)
    start = theory.paired_start(PAIRS, x.shape[-1], K, std, training.generators(5, RUNS), torch.float32)
    weight = equal_classes(y) if weighted else None
    return start, *theory.first_steps(start, x, y, eta, K**-1.5, weight=weight, **options)


def hidden(params, x):
    return torch.baddbmm(params["b"][:, None], x, params["w"].mT).clamp(0, 1)


def head(features, train, test, steps=200):
    """Test accuracy of a linear classifier on frozen features, as in the chapter."""
    h, fresh = features(train.x), features(test.x)
    size = h.square().mean((1, 2), keepdim=True).sqrt()
    h, fresh, y = h / size, fresh / size, train.y.to(h.dtype)

    def objective(params, z, y):
        margin = y * (z @ params["a"][..., None])[..., 0]
        push = -y * (margin < 1) / y.shape[1]
        return (1 - margin).clamp(min=0).mean(1), {"a": (push[:, None] @ z)[:, 0]}

    run = training.fit(
        objective,
        {"a": torch.zeros_like(h[:, 0])},
        lambda t: (h[:, t % 8 * 500 :][:, :500], y[:, t % 8 * 500 :][:, :500]),
        steps=steps,
        optimizer=training.Adam(lambda t: 0.3 * (1 - t / steps)),
    )
    output = (fresh @ run.params["a"][..., None])[..., 0]
    loss = (1 - test.y * output).clamp(min=0).mean(1)
    return (output * test.y > 0).double().mean(1), loss, run.params["a"].norm(dim=1) / size[:, 0, 0]


@pytest.fixture(scope="module")
def structured():
    train = draw(WORLD, 8000)
    return train, draw(WORLD, 2000, 50), emergence(*train)


@pytest.fixture(scope="module")
def unstructured():
    train = draw(WORLD.without_structure(), 8000)
    return train, draw(WORLD.without_structure(), 2000, 50), emergence(*train)


RELEVANT = (torch.arange(40) < K).double()


def best_cosine(params):
    return probes.cosines(params["w"], RELEVANT).amax(1).min()


def test_emergence_fails_without_structure_and_without_a_step(structured, unstructured):
    start, once, twice = structured[2]
    assert best_cosine(twice) >= 0.99
    assert not best_cosine(start) >= 0.99 and not best_cosine(unstructured[2][2]) >= 0.99
    agree = ((probes.cosines(once["w"], RELEVANT) > 0) == (start["a"] > 0)).double().mean()
    by_chance = ((probes.cosines(start["w"], RELEVANT) > 0) == (start["a"] > 0)).double().mean()
    assert agree > 0.99 and not by_chance > 0.99


def collinear(params):
    return 1 - torch.stack([probes.cosines(w, w[0]).abs().min() for w in params["w"]]).min() < 1e-5


def test_collinearity_needs_a_small_first_step_and_forgetting(structured):
    x, y = structured[0]
    assert collinear(structured[2][2])
    assert not collinear(structured[2][1])
    assert not collinear(emergence(x, y, step_size=0.3)[2])
    assert not collinear(emergence(x, y, forget=0.9)[2])


def test_improvement_and_its_law_fail_for_the_wrong_step_and_the_wrong_noise():
    x, y = draw(WORLD, 2000)
    ratios = [
        (p["w"][..., K:].double().norm(dim=-1) / p["w"][..., :K].double().norm(dim=-1)).median(1).values
        for p in emergence(x, y)[1:]
    ]
    assert (ratios[1] < ratios[0]).all() and not (ratios[0] < ratios[1]).all()
    law = theory.noise_to_signal(2000, K, 35, 0.5, GAMMA)
    assert abs(ratios[1].mean() / law - 1) <= 0.15
    for wrong in (theory.noise_to_signal(1000, K, 35, 0.5, GAMMA), theory.noise_to_signal(2000, K, 35, 0.5, 0.3)):
        assert not abs(ratios[1].mean() / wrong - 1) <= 0.15


def test_two_steps_learn_what_start_and_uniform_inputs_do_not(structured, unstructured):
    train, test, (start, _, twice) = structured
    right = head(lambda x: hidden(twice, x), train, test)[0]
    fixed = head(lambda x: hidden(start, x), train, test)[0]
    assert right.min() >= 0.99 and not fixed.min() >= 0.99
    assert (fixed >= 0.62).all() and (fixed <= 0.9).all() and not (right <= 0.9).all()
    assert right.mean() - fixed.mean() >= 0.1
    train, test, (_, _, twice) = unstructured
    nothing = head(lambda x: hidden(twice, x), train, test)[0].mean()
    assert 0.46 <= nothing <= 0.54 and not 0.46 <= right.mean() <= 0.54
    assert not (0.62 <= nothing <= 0.9)


def test_one_step_has_three_answers(structured):
    train, test, (_, once, twice) = structured
    threshold = (test.x[..., :K].sum(-1) * test.y > 0).double().mean(-1)
    precise = {k: v.double() for k, v in once.items()}
    h = hidden(precise, train.x.double())
    mean, std = h.mean(1, keepdim=True), h.std(1, keepdim=True)

    def standardised(x):
        return (hidden(precise, x.double()) - mean) / std.clamp(min=1e-300) * (std > 0)

    longer = {**once, "w": once["w"] * (twice["w"].norm(dim=-1, keepdim=True) / once["w"].norm(dim=-1, keepdim=True))}
    raw, exact, scaled = (
        head(f, train, test)[0] for f in (lambda x: hidden(once, x), standardised, lambda x: hidden(longer, x))
    )
    answers = {
        "constant": lambda v: bool(((v >= 0.46) & (v <= 0.54)).all()),
        "threshold": lambda v: bool(((v - threshold).abs() <= 0.02).all()),
        "all": lambda v: bool((v >= 0.99).all()),
    }
    for name, mine in (("constant", raw), ("threshold", exact), ("all", scaled)):
        assert [key for key, holds in answers.items() if holds(mine)] == [name]


def test_the_bound_fails_for_features_that_know_the_patterns(structured):
    train, test, (start, _, twice) = structured

    def judge(params):
        _, loss, norm = head(lambda x: hidden(params, x), train, test)
        uniform = draw(WORLD.without_structure(), 2000, 70).x
        energy = hidden(params, uniform).square().sum(-1).mean(1)
        bound = theory.fixed_feature_bound(energy.numpy(), norm.numpy(), 40, K, 0.5)
        return loss.mean().item() >= bound.mean()

    assert judge({k: v[:, :PAIRS] for k, v in start.items()})
    # Two-step features were made from the data: a hinge loss near 0 with weights of the same length.
    _, loss, norm = head(lambda x: hidden(twice, x), train, test)
    assert not loss.mean() >= 0.5 * (1 - norm.mean() * math.sqrt(1 / math.comb(400, K)))


def test_bessel_fails_for_a_feature_that_is_the_parity():
    parity = np.ones(1)
    assert not theory.fixed_feature_bound(1, 1.0, 400, K, 0.5) <= 0  # the bound claims a loss above 0
    assert not (1 - parity).clip(0).mean() >= theory.fixed_feature_bound(1, 1.0, 400, K, 0.5)


def test_decay_in_float32_is_told_from_the_direct_form(structured):
    x, y = structured[0]
    start = structured[2][0]
    slope = theory.hinge_gradient(start, x, y, K**-1.5)[1]["w"]

    def median(w):
        return probes.cosines(w, RELEVANT).abs().median()

    tiny = start["w"] - 1e-9 * (slope + 1e9 * start["w"])
    assert median(tiny) < 0.5 and median(-1e-9 * slope) > 0.97
    large = start["w"] - 1e-3 * (slope + 1e3 * start["w"])
    assert median(large) > 0.9 and not median(large) < 0.5 and not median(tiny) > 0.9


def test_one_step_constant_and_class_weights_on_unbalanced_data():
    world = WORLD.unbalanced(0.9)
    train, test = draw(world, 8000), draw(world, 2000, 50)
    accuracy = {}
    for weighted in (True, False):
        _, once, twice = emergence(*train, weighted=weighted)
        accuracy[weighted] = head(lambda x, p=twice: hidden(p, x), train, test, 300)[0]
    one = head(lambda x: hidden(once, x), train, test)[0]
    assert (one - 0.9).abs().max() <= 0.04
    assert not (accuracy[True] - 0.9).abs().max() <= 0.04
    assert accuracy[True].min() - accuracy[False].max() >= 0.01
    assert not accuracy[False].min() - accuracy[True].max() >= 0.01


def test_codes_fail_for_the_correlations_of_others():
    words = [PatternCodes.random(100, 20, 40, g) for g in training.generators(0, 2)]
    x, y = training.stack([one.sample(6000, g) for one, g in zip(words, training.generators(3, 2))])
    start = theory.paired_start(10, 100, 20, 1.0, training.generators(5, 2), torch.float32)
    twice = theory.first_steps(start, x, y, 1e-9, 20**-1.5, weight=equal_classes(y))[1]
    for mine, holds in ((0, True), (1, False)):
        found = [probes.cosines(twice["w"][r], words[r ^ mine].correlations).abs().median() for r in (0, 1)]
        assert (min(found) >= 0.95) == holds


def test_sides_need_training():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, 600, 30, generator=g)
    y = x[..., 0].sign()
    start = {"w": 0.1 * torch.randn(1, 40, 30, generator=g) / 30**0.5, "b": torch.zeros(1, 40)}
    start["a"] = 0.05 * torch.randn(1, 40, generator=g)

    def apart(w):
        unit = F.normalize(w[0], dim=-1)
        gram, equal = unit @ unit.T, start["a"][0].sign()[:, None] * start["a"][0].sign() > 0
        own = equal & ~torch.eye(40, dtype=torch.bool)
        return gram[own].mean() - gram[~equal].mean()

    run = training.fit(TwoLayerObjective("logistic"), start, (x, y), steps=100, optimizer=training.GD(0.05, momentum=0.95))
    assert apart(run.params["w"]) >= 0.5 and not apart(start["w"]) >= 0.5
    assert apart(start["w"]) <= 0.1 and not apart(run.params["w"]) <= 0.1


@pytest.fixture(scope="module")
def page():
    return functions_of("08_feature_emergence")


def test_median_neurons_turn_in_one_step_and_not_without_structure(structured, unstructured):
    def holds(stages):
        start, once = (probes.cosines(p["w"], RELEVANT).abs().median(1).values for p in stages[:2])
        return bool(once.min() >= 0.9 and start.max() < 0.3)

    assert holds(structured[2]) and not holds(unstructured[2])
    assert not holds((structured[2][1],) * 2) and not holds((structured[2][0],) * 2)


def test_raw_features_are_constants_in_either_precision(structured):
    train, test, (_, once, twice) = structured
    for precision in (torch.float32, torch.float64):
        params = {k: v.to(precision) for k, v in once.items()}
        raw = head(lambda x, p=params: hidden(p, x.to(p["w"].dtype)), train, test)[0]
        assert ((raw >= 0.46) & (raw <= 0.54)).all()
    assert not (head(lambda x: hidden(twice, x), train, test)[0] <= 0.54).any()


def test_the_printed_third_stage_stops_where_adam_goes_on(structured):
    (x, y), test, (_, _, twice) = structured
    steps = 200

    def stage(optimizer):
        run = training.fit(
            TwoLayerObjective("hinge", truncated=True),
            twice,
            lambda t: (x[:, t % 8 * 500 :][:, :500], y[:, t % 8 * 500 :][:, :500]),
            steps=steps,
            optimizer=optimizer,
        )
        output = (hidden(run.params, test.x) @ run.params["a"][..., None])[..., 0]
        return bool((((output * test.y > 0).double().mean(1) - 27 / 32).abs() <= 0.04).all())

    assert stage(training.GD(K**2 / steps / PAIRS ** (1 / 3)))
    assert not stage(training.Adam(lambda t: 0.03 * (1 - t / steps)))


def test_fixed_features_lag_and_uniform_inputs_give_nothing_on_unbalanced_classes():
    accuracy = {}
    for name, world in (("structured", WORLD.unbalanced(0.8)), ("uniform", WORLD.without_structure().unbalanced(0.8))):
        train, test = draw(world, 8000), draw(world, 2000, 50)
        start, _, twice = emergence(*train)
        accuracy[name] = [head(lambda x, p=p: hidden(p, x), train, test, 300)[0] for p in (start, twice)]
        direction = best_cosine(twice) >= 0.95
        assert direction == (name == "structured")
    fixed, right = accuracy["structured"]
    assert right.mean() - fixed.mean() >= 0.03 and not fixed.mean() - fixed.mean() >= 0.03
    assert (accuracy["uniform"][1] - 0.8).max() <= 0.02 and not (right - 0.8).max() <= 0.02


def test_the_cosines_of_table_a4_are_those_of_a_hundred_dimensions():
    def best(dim):
        g = torch.Generator().manual_seed(0)
        return probes.cosines(torch.randn(16, 300, dim, generator=g), torch.ones(dim)).amax(1).mean()

    assert abs(best(100) - 0.295) <= 0.05 and not abs(best(500) - 0.295) <= 0.05


def test_filters_that_gather_are_told_from_chance(page):
    g = np.random.default_rng(0)
    chance = g.standard_normal((32, 72))
    axis = g.choice([-1, 1], 32)[:, None] * g.standard_normal(72)
    one, two = chance + 3, chance + axis

    def probe(directions):
        return page["two_means"](directions / np.linalg.norm(directions, axis=1, keepdims=True))

    assert probe(two)[0] < 0 and not probe(one)[0] < 0
    assert probe(two)[1] - probe(chance)[1] >= 0.03 and not probe(g.standard_normal((32, 72)))[1] - probe(chance)[1] >= 0.03


def test_centres_are_not_found_by_untrained_neurons(page):
    vertex = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 4)
    world = GaussianMixture(F.pad(vertex, (0, 21)), vertex.prod(1), stds=torch.full((16,), 0.28))
    start = page["relu_start"](200, 25, 0.1, training.generators(0, 1))
    x, y = training.stack([world.sample(4000, torch.Generator().manual_seed(1))])
    run = training.fit(
        TwoLayerObjective("logistic"),
        start,
        lambda t: (x[:, t % 20 * 200 :][:, :200], y[:, t % 20 * 200 :][:, :200]),
        steps=400,
        optimizer=training.GD(0.1, momentum=0.9),
    )
    before, after = (probes.cosines(p["w"][0], world.features).amax(0) for p in (start, run.params))
    assert after.min() >= 0.8 and not before.mean() >= 0.8


def test_the_second_neurons_of_pairs_add_nothing_to_the_tangent_kernel(page):
    """Half the neurons with twice the step of Adam are all of them: the same outputs, and the same bound."""
    train, test = draw(WORLD, 1000), draw(WORLD, 500, 50)
    start = theory.paired_start(12, 40, K, 4.0, training.generators(0, RUNS))
    start = {k: v.float() for k, v in start.items()}
    page["train_tangent"].__globals__["batch"] = 100
    halves = page["one_of_each_pair"](start)
    half = page["train_tangent"](halves, train, test, 30, 0.02, RUNS)
    full = page["train_tangent"](start, train, test, 30, 0.01, RUNS)
    assert torch.allclose(half.log["fresh loss"], full.log["fresh loss"], atol=1e-4)
    reach = [run.log["norm"] ** 2 * torch.tensor(page["energies"](p, test.x)[1]) for run, p in ((half, halves), (full, start))]
    assert torch.allclose(*reach, rtol=1e-3)


def test_two_printed_step_sizes_give_one_direction(structured):
    x, y = structured[0]
    eta = theory.first_step_size(GAMMA, WORLD.scale, K, PAIRS)
    one, other = (emergence(x, y, step_size=s)[2]["w"].double() for s in (eta, eta * WORLD.scale))
    assert F.cosine_similarity(one, other, dim=-1).min() > 1 - 1e-6


def test_class_weights_and_the_regulariser_have_the_moments_of_the_page(page):
    y = torch.where(torch.rand(2, 3000, generator=torch.Generator().manual_seed(0)) < 0.1, 1.0, -1.0)
    weight = page["equal_classes"](y)
    assert (weight * y).mean(1).abs().max() < 1e-5 and (weight.mean(1) - 1).abs().max() < 1e-5
    for scale in (0.0, 1.0, 100.0):
        logits = scale * torch.randn(400, 10, generator=torch.Generator().manual_seed(1)).double()
        assert -math.log(10) - 1e-9 <= page["informative"](logits) <= 1e-9
    assert page["informative"](100 * torch.eye(10).double()) == pytest.approx(-math.log(10), abs=1e-6)


def test_gradients_of_no_common_direction_fail_in_pairs_but_not_with_their_mean():
    """Three independent averages have a cosine of 0.58 with their mean: only pairs tell agreement from noise."""
    noise = torch.randn(3, 64, 72, generator=torch.Generator().manual_seed(0))
    shared = noise + torch.randn(64, 72, generator=torch.Generator().manual_seed(1))

    def least_pair(v):
        return F.cosine_similarity(v[[0, 0, 1]], v[[1, 2, 2]], dim=-1).mean(1).min()

    assert least_pair(shared) >= 0.1 and not least_pair(noise) >= 0.1
    assert F.cosine_similarity(noise, noise.mean(0, keepdim=True), dim=-1).mean() > 0.5
