"""The criteria of chapter 05 hold for what they judge and fail for what they do not.

The setting is the chapter's, small. Arms, measures and limits are the chapter's own, unless a test says otherwise.
"""

import math
from functools import partial

import judged
import numpy as np
import pytest
import torch

from mvnb.papers.local_signal_adaptivity import measure, theory, training

K, SIGMA, RUNS = 200, 0.2, 3


verdicts = partial(judged.verdicts, "local_signal_adaptivity")


def train(step_size=0.3, bias_rate=0.05, steps=2000, signal=1.0, runs=RUNS):
    """c, v and b ``(21, run)`` of the chapter's arm; ``signal=0`` takes the signal out of the gradient."""
    objective = training.SurvivorObjective(K, SIGMA, 300)

    def without_signal(params, keys):
        losses, grads = objective(params, keys)
        out = objective.outputs(params, keys)[0]
        own = (1 - signal) * torch.sigmoid(-out).mean(1)
        up, down = (params["w"][:, 0] + params["b"] > 0).double(), (params["b"] - params["w"][:, 0] > 0).double()
        grads["w"][:, 0] += own * (up + down)
        return losses, grads

    start = {"w": torch.full((runs, 1), 1e-6).double(), "b": torch.zeros(runs).double()}
    marks = np.linspace(0, steps, 21).astype(int)
    return training.train_filters(without_signal, training.step_keys(0, runs), start, steps, step_size, bias_rate, marks)


def path(sigma=SIGMA, step_size=0.3):
    return theory.population_path(2000, K, sigma, step_size, 0.05, log_every=100)


@pytest.fixture(scope="module")
def trained():
    return train()


def stages(log, path=path, sigma=SIGMA):
    with np.errstate(divide="ignore", invalid="ignore"):
        found = measure.stage_claims(log, path(), K, sigma)
    return verdicts(
        {
            id: {k: np.nan_to_num(v) for k, v in one.items()} if isinstance(one, dict) else np.nan_to_num(one)
            for id, one in found.items()
        }
    )


def test_the_stages_need_the_bias_and_the_signal(trained):
    assert set(stages(trained).values()) == {"holds"}
    linear = stages(train(bias_rate=0.0))
    assert linear["two-stages"] == linear["one-filter-beats-linear"] == "fails"
    lost = stages(train(signal=0.0))
    assert "holds" not in (lost["two-stages"], lost["one-filter-beats-linear"])
    shuffled = {"c": trained["c"], "v": trained["v"], "b": trained["b"][::-1]}  # the biases of other steps
    assert stages(shuffled)["two-stages"] == "fails"


def test_the_path_is_that_of_this_noise_and_step(trained):
    for other in (partial(path, sigma=1.2 * SIGMA), partial(path, step_size=0.2)):
        assert stages(trained, other)["population-path"] == "fails"


def test_a_filter_off_the_signal_is_not_judged_by_its_ratio(trained):
    off = trained | {"v": 0.5 * trained["c"]}
    assert stages(off)["ratio-decides-accuracy"] == "fails"
    assert stages(trained)["ratio-decides-accuracy"] == "holds"


def test_the_small_world_is_solved_and_dead_units_are_told_from_live_ones(trained):
    def ends(log):
        return measure.accuracy(log["c"][-1], log["b"][-1], K, SIGMA)

    dead, live_ones = ends(train(step_size=1.5, steps=200, runs=12)), np.resize(ends(trained), 12)

    def found(works, too_large):
        found = verdicts(measure.small_world_claims(works, too_large))
        return found["small-world-solved"], found["dead-units"]

    assert found(live_ones, dead) == ("holds", "holds")
    assert found(live_ones, live_ones) == ("holds", "fails") and found(dead, dead)[0] == "fails"
    assert found(ends(train(bias_rate=0.0)), dead)[0] == "fails"


def test_the_bias_rises_first_only_because_it_is_slow():
    def found(rate):
        first = theory.population_path(60, 1000, theory.noise_scale(1000), 0.1, rate)
        return verdicts(measure.first_steps_claims(first, 1000))["bias-rises-first"]

    assert [found(1 / 1000), found(1 / 100)] == ["holds", "fails"]


def test_forces_fail_without_noise_or_signal():
    def signal(*spot):  # its part of both derivatives
        g = theory.population_gradient(*spot)
        return g._replace(b=g.c - g.c_noise, c_noise=-g.c_noise)

    def noise(*spot):
        g = theory.population_gradient(*spot)
        return g._replace(c=g.c_noise, b=g.b - (g.c - g.c_noise), c_noise=g.c_noise / 0.9)

    assert set(verdicts(measure.force_claims(1000)).values()) == {"holds"}
    assert verdicts(measure.force_claims(1000, signal)) == {
        "noise-shrinks-filter": "fails",
        "filter-grows-when-small": "holds",
        "bias-falls-beyond-a-filter-size": "fails",
    }
    assert set(verdicts(measure.force_claims(1000, noise)).values()) == {"fails"}


@pytest.fixture(scope="module")
def errors():
    found = {m: measure.frozen_errors(m, 32, 1000, 21, 7) for m in (1, 4, 16)}
    return found | {64: measure.frozen_errors(64, 4, 1000, 21, 7, common=(1.5,))} | {256: np.full((2, 2), 0.02)}


TRAINED = np.array([0.209, 0.214, 0.219])  # errors of the trained filter in the chapter


def test_few_filters_fail_unless_they_know_the_signal(errors, monkeypatch):
    assert set(verdicts(measure.frozen_claims(errors, TRAINED)).values()) == {"holds"}
    untrained = verdicts(measure.frozen_claims(errors, errors[1][0]))
    assert untrained["one-trained-beats-sixteen-frozen"] == "fails"
    other = dict(zip(errors, [*errors.values()][::-1]))  # numbers of filters exchanged
    turned = {m: np.tile(one[:, :2], 4) for m, one in other.items()}
    swapped = verdicts(measure.frozen_claims(turned, TRAINED))
    names = (
        "few-frozen-filters-fail",
        "more-filters-help",
        "many-frozen-beat-one-trained",
        "oracle-thresholds-beat-one-trained",
    )
    assert [swapped[name] for name in names] == ["fails"] * 4
    draw = theory.random_filters

    def aligned(m, dim, generator):
        filters = draw(m, dim, generator)
        filters[0] = [0.95, math.sqrt(1 - 0.95**2), *np.zeros(filters.shape[1] - 2)]
        return filters

    monkeypatch.setattr(theory, "random_filters", aligned)
    known = errors | {m: measure.frozen_errors(m, 32, 1000, 21, 7, common=(3.5,)) for m in (1, 4)}
    assert verdicts(measure.frozen_claims(known, TRAINED))["few-frozen-filters-fail"] == "fails"
    at_end = {m: measure.frozen_errors(m, 96, 1e24, theory.noise_scale(1e24) ** -2, 0, common=(0.0,))[1] for m in (1, 4)}
    scan = {m: np.linspace(0.5, 0.3, 3)[:, None].repeat(4, 1) for m in (1, 4)}
    found = measure.limit_claims(scan, (3, 6, 24), at_end)
    assert verdicts({"lower-bound-at-large-k": found["lower-bound-at-large-k"]}) == {"lower-bound-at-large-k": "fails"}
    assert verdicts({"frozen-error-rises-with-k": found["frozen-error-rises-with-k"]}) == {"frozen-error-rises-with-k": "fails"}


def test_the_limits_hold_at_large_k_and_not_before(monkeypatch):
    sizes = [(10.0**e, theory.noise_scale(10.0**e) ** -2) for e in (3, 6, 24)]
    scan = {m: np.array([measure.frozen_errors(m, 8, *one, 0)[0] for one in sizes]) for m in (1, 4)}
    at_end = {m: measure.frozen_errors(m, 96, *sizes[-1], 0, common=(0.0,))[1] for m in (1, 4)}
    found = measure.limit_claims(scan, (3, 6, 24), at_end)
    exact = {id: found[id] for id in ("lower-bound-begins", "linear-at-chance")}
    assert set(verdicts(exact).values()) == {"holds"}
    assert verdicts({"lower-bound-at-large-k": found["lower-bound-at-large-k"]}) == {"lower-bound-at-large-k": "holds"}
    assert verdicts({"frozen-error-rises-with-k": found["frozen-error-rises-with-k"]}) == {"frozen-error-rises-with-k": "holds"}
    scale = theory.noise_scale
    monkeypatch.setattr(theory, "noise_scale", lambda k: 0.5 * scale(k))  # weaker noise than the paper's
    weak = measure.limit_claims(scan, (3, 6, 24), at_end)
    assert verdicts({id: weak[id] for id in exact}) == {"lower-bound-begins": "fails", "linear-at-chance": "fails"}


def test_the_formula_is_that_of_these_filters():
    filters = [theory.random_filters(4, 21, [1, r]) for r in range(3)]
    sigma, bars = 21**-0.5, np.full(4, 0.5)
    pairs = np.array([[measure.drawn_error(one, bars, 1000, sigma, r, 1000)] for r, one in enumerate(filters)])
    assert verdicts(measure.formula_claims(pairs)) == {"frozen-error-formula": "holds"}
    pairs[..., 1] = [[theory.best_weights(one, np.zeros(4), 1000, sigma)[1] + 0.05] for one in filters]  # other thresholds
    assert verdicts(measure.formula_claims(pairs)) == {"frozen-error-formula": "fails"}


def test_claims_on_frozen_filters_read_their_own_thresholds_and_numbers():
    """Errors that differ by number and by kind of threshold come back under the names of what they are."""
    errors = {m: np.array([[0.5 - i / 20] * 3, [0.2 - i / 40] * 3]) for i, m in enumerate((1, 4, 16, 64, 256))}
    got = measure.frozen_claims(errors, TRAINED)
    flat = {id: [one[name].mean() for name in one] for id, one in got.items()}
    own = TRAINED.mean()
    assert flat == {
        "few-frozen-filters-fail": pytest.approx([0.5, 0.45]),
        "more-filters-help": pytest.approx([0.05, 0.05]),
        "one-trained-beats-sixteen-frozen": pytest.approx([own, 0.4]),
        "many-frozen-beat-one-trained": pytest.approx([own, 0.35, 0.3]),
        "oracle-thresholds-beat-one-trained": pytest.approx([own, 0.125, 0.1]),
    }


def test_frozen_errors_are_those_of_the_best_common_and_of_oracle_thresholds():
    """With one filter, for each draw: the least error over the common thresholds, and that of a threshold just below it."""
    common, oracle = measure.frozen_errors(1, 12, 1000, 21, 7)
    sigma, overlaps = 21**-0.5, [abs(theory.random_filters(1, 21, [7, 1, r])[0, 0]) for r in range(12)]
    each = np.array([[theory.one_filter_error(c, t, 1000, sigma) for t in measure.COMMON] for c in overlaps])
    assert np.allclose(common, each.min(1), atol=1e-6) and len({*each.argmin(1)}) > 1
    assert np.allclose(oracle, [theory.one_filter_error(c, 0.999 * c / sigma, 1000, sigma) for c in overlaps], atol=1e-6)
