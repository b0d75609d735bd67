"""The criteria of chapter 06 hold for what they judge and fail for what they do not.

The settings are the chapter's, or smaller; the limits are the chapter's own.
"""

import numpy as np
import pytest
import torch

from mvnb import training
from mvnb.papers.decision_lists import theory
from mvnb.papers.decision_lists.data import DecisionLists

SIZE = (8, 4, 3)
FULL = (200, 25, 4)
RUNS = 4


@pytest.fixture(scope="module")
def worlds():
    return [DecisionLists.random(*SIZE, g) for g in training.generators(0, RUNS)]


@pytest.fixture(scope="module")
def population(worlds):
    sets = torch.combinations(torch.arange(SIZE[0]), SIZE[1])
    decides = torch.stack([one.deciding(sets) for one in worlds])
    labels = torch.stack([one.labels(sets) for one in worlds])
    return sets.expand_as(decides), labels, decides


def values(worlds, scale):
    return torch.stack([one.value_matrix(scale) for one in worlds])


def wrong(params, tokens, labels):
    return theory.misclassified(theory.forward_backward(**params, tokens=tokens, labels=labels).logits, labels)


def descend(population, v, step, steps, fixed="v", w=None):
    tokens, labels, _ = population
    w = torch.zeros_like(v) if w is None else w
    return training.fit(
        theory.objective,
        {"w": w, "v": v},
        (tokens, labels),
        steps=steps,
        optimizer=training.GD(step, rates={fixed: 0.0} if fixed else {}),
        probes={
            "wrong": lambda p: wrong(p, tokens, labels).double().mean((1, 2)),
            "slope": lambda p: theory.objective(p, tokens, labels)[1]["w"].square().sum((1, 2)),
            "far": lambda p: (p["v"] - v).abs().amax((1, 2)),
        },
        log_at=range(steps + 1),
    )


# --- The key lemma ---


def test_a_direction_without_the_early_tokens_does_not_pass(worlds, population):
    g = torch.Generator().manual_seed(0)
    w = 1.5 * torch.randn(RUNS, 8, 8, generator=g, dtype=torch.float64)
    lists = torch.stack([one.lists for one in worlds])
    seen = theory.directional_derivatives(w, values(worlds, 10.0), *population, lists)
    outside = seen.applies & ~seen.bad
    assert not (seen.along_v > 1e-12)[outside].any()
    assert (seen.alone > 1e-12)[outside].any()
    # In S the bound is tight enough to tell a larger factor.
    bound = -10.0 / 8 * seen.p_star * (1 - seen.p_star)
    assert (seen.along_v <= bound + 1e-12)[seen.bad].all()
    assert not (seen.along_v <= 2 * bound + 1e-12)[seen.bad].all()


def test_the_lemma_needs_the_right_values(worlds, population):
    g = torch.Generator().manual_seed(0)
    w = 1.5 * torch.randn(RUNS, 8, 8, generator=g, dtype=torch.float64)
    lists = torch.stack([one.lists for one in worlds])
    flipped = theory.directional_derivatives(w, values(worlds, -10.0), *population, lists)
    assert (flipped.along_v > 1e-12).any()


# --- One step on V ---


def one_step(world, n, seed=0, step_size=None):
    """The chapter's step on sampled sequences, by counting."""
    sample, size = world.sample(n, torch.Generator().manual_seed(seed)), world.n_tokens
    x = torch.zeros(n, size).scatter_add(1, sample.tokens, torch.ones(sample.tokens.shape))
    labels = world.permutation[sample.decides]
    y = torch.zeros(n, size).scatter_add(1, labels, torch.ones(labels.shape))
    step_size = step_size or size**2
    return (step_size * (y - world.length / size).T @ x / (world.length**2 * n)).numpy()


def finds(v, world):
    return (v.argmax(0) == world.permutation.numpy()).all()


def close(v, world):
    """The criterion of one-step-values."""
    size = world.n_tokens
    exact = theory.first_value_step(world.lists, world.permutation, world.length, size**2)
    rows = (np.arange(size)[:, None] - world.permutation.numpy()) % size
    lines = [rows == o % size for o in (0, 10, 20, 30, -10, -20, -30)]
    errors = [abs(v[line].mean() - exact[line].mean()) for line in lines]
    rest = ~np.logical_or.reduce(lines)
    return errors[0] <= 0.1 and max(errors[1:]) <= 0.05 and abs(v[rest].mean() - exact[rest].mean()) <= 0.01


def test_one_step_fails_for_other_lists_few_sequences_and_another_step():
    world = DecisionLists.shifted()
    v = one_step(world, 8000)
    assert finds(v, world) and close(v, world)
    assert not finds(one_step(world, 100), world)
    assert not close(one_step(world, 8000, step_size=0.9 * 200**2), world)
    other = DecisionLists.shifted(offsets=(10, 20, 40))
    assert not close(one_step(other, 8000), world)
    unmixed = DecisionLists.shifted(shift=21)
    assert not finds(one_step(unmixed, 8000), world)


def test_one_step_fails_for_hubs_and_dense_sequences():
    world = DecisionLists.random(200, 25, 4, torch.Generator().manual_seed(0))
    own = np.arange(200)
    assert (theory.co_occurrence(world.lists, 25).argmax(0) == own).all()
    assert not (theory.co_occurrence(world.lists, 100).argmax(0) == own).all()
    hub = DecisionLists.shifted().lists.clone()
    hub[1:, 0] = 0
    assert not (theory.co_occurrence(hub, 25).argmax(0) == own).all()


# --- Theorem 4.3 ---


def test_perfect_in_time_fails_for_wrong_values_and_no_training(worlds, population):
    c = theory.needed_scale(8, 4, theory.triple_probability(*SIZE))
    step = 1 / theory.smoothness(c, 1 / 8)
    assert (descend(population, values(worlds, c), step, 40).log["wrong"][-1] == 0).all()
    shuffled = values(worlds, c).roll(1, 1)
    assert not (descend(population, shuffled, step, 40).log["wrong"][-1] == 0).any()
    assert not (descend(population, values(worlds, c), step, 0).log["wrong"][-1] == 0).any()


def column(scale, step, steps, size=FULL):
    problem = theory.ColumnPopulation(*size)
    zero = torch.zeros(1, size[2] + 1, dtype=torch.float64)
    return training.fit(
        problem,
        {"entries": zero[:, 1:], "outside": zero[:, :1]},
        (torch.tensor([scale], dtype=torch.float64),),
        steps=steps,
        optimizer=training.GD(step, rates={"outside": 1 / (size[0] - size[2])}),
        probes={
            "error": problem.error,
            "margin": problem.margin,
            "slope": lambda p: sum(g.square().sum(1) for g in problem(p, torch.tensor([scale]).double())[1].values()),
        },
        log_at=range(steps + 1),
    )


def test_gradients_and_the_bound_need_the_theorems_scale(worlds, population):
    needed = np.log(8) ** 2 / (16 * 3)

    def smallest(scale):
        run = descend(population, values(worlds, scale), 1 / theory.smoothness(scale, 1 / 8), 10)
        return (run.log["slope"] / needed)[run.log["wrong"] > 0].min()

    assert smallest(theory.needed_scale(8, 4, theory.triple_probability(*SIZE))) > 1
    assert not smallest(0.5) > 1
    curvature = theory.smoothness(10.0, 1 / 200)
    slow = column(10.0, 1 / curvature / 200, 50)
    assert not slow.log["margin"][int(theory.step_bound(4, curvature, 200))] > 0


def test_sorted_columns_tell_trained_from_untrained_and_long_steps_from_short_ones():
    short, long = column(200.0, 0.05, 100), column(200.0, 0.5, 100)
    assert short.log["margin"][-1] > 0 and short.log["error"][40] == 0
    assert not short.log["margin"][0] > 0 and not short.log["error"][5] == 0
    assert short.log["loss"].diff(dim=0).max() <= 1e-9 and short.log["error"][20:].max() == 0

    def shows_the_step_was_long(run):
        return run.log["loss"].max() > run.log["loss"][0, 0] and run.log["error"][20:].median() > 0.5

    assert not long.log["loss"].diff(dim=0).max() <= 1e-9
    assert shows_the_step_was_long(long)
    assert not shows_the_step_was_long(short)


# --- Theorem 4.4, ablation, extension ---


def test_values_leave_their_range_with_a_long_step_or_without_a_scale(worlds, population):
    epsilon = 0.5
    noise = epsilon * (torch.rand(RUNS, 8, 8, generator=torch.Generator().manual_seed(1)).double() - 0.5)

    def judge(scale, step, steps=20):
        v = values(worlds, scale)
        run = descend(population, v + noise, step, steps, fixed=None)
        far = (run.params["v"] - v).abs().max()
        return far <= epsilon, bool((run.log["wrong"][-1] == 0).all())

    step = 1 / theory.joint_smoothness(100.0, epsilon, 8, 4)
    assert judge(100.0, step) == (True, True)
    assert judge(100.0, step, 1) == (True, False)
    assert not judge(0.0, 5.0)[0]


def test_attention_beats_the_bound_that_holds_without_it(worlds, population):
    _, labels, _ = population
    bound = theory.uniform_attention_accuracy(labels)
    without = descend(population, torch.zeros(RUNS, 8, 8, dtype=torch.float64), 20.0, 100, fixed="w")
    logits = theory.forward_backward(**without.params, tokens=population[0], labels=labels).logits
    accuracy = (logits.argmax(-1) == labels).double().mean((1, 2))
    assert (accuracy <= bound + 1e-12).all() and (accuracy > 0.8 * bound).all()
    with_attention = descend(population, values(worlds, 10.0), 3.0, 100)
    assert not (1 - with_attention.log["wrong"][-1] <= bound + 1e-12).any()


def test_the_large_step_alone_is_not_the_end(worlds, population):
    v = torch.stack([torch.tensor(theory.first_value_step(w.lists, w.permutation, 4, 64.0)) for w in worlds])
    only = descend(population, v, 2.0, 0)
    both = descend(population, v, 2.0, 300, fixed=None)
    assert not (only.log["wrong"][-1] == 0).any()
    assert (both.log["wrong"][-1] == 0).all()
